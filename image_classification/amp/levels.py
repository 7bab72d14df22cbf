"""Apex's optimization levels as rows of a property table, and what happens when single properties are overridden."""

from dataclasses import dataclass, fields, replace

LEVELS = ("O0", "O1", "O2", "O3")


@dataclass(frozen=True)
class Properties:
    """What a level sets. Names are Apex's; a user may override each one.

    cast_model_type: dtype of weights, inputs and outputs; False leaves them alone.
    patch_torch_functions: cast the inputs of single operators instead.
    keep_batchnorm_fp32: batch norm layers stay float32 in a half model.
    master_weights: the optimizer updates float32 copies of half weights.
    loss_scale: a number, or "dynamic".
    """

    cast_model_type: str | bool
    patch_torch_functions: bool
    keep_batchnorm_fp32: bool | None
    master_weights: bool | None
    loss_scale: float | str


# "half" stands for the 16-bit format of the run.
TABLE = {
    "O0": Properties("float32", False, None, False, 1.0),  # pure float32
    "O1": Properties(False, True, None, None, "dynamic"),  # casts around single operators, float32 weights
    "O2": Properties("half", False, True, True, "dynamic"),  # half weights, float32 batch norm and float32 masters
    "O3": Properties("half", False, False, False, 1.0),  # pure half
}
PROPERTY_NAMES = tuple(field.name for field in fields(Properties))
MODEL_TYPES = ("float16", "bfloat16", "float32")


def resolve(level, overrides):
    """Return (properties, warnings) of a level with every override that is not None applied.

    Raises:
        ValueError: an override that contradicts the level, or a value out of range.
    """
    row = TABLE[level]
    given = {name: value for name, value in overrides.items() if value is not None}
    values = {name: _CHECKS[name](value) for name, value in given.items()}
    warnings = []
    if level == "O1":
        if values.get("cast_model_type") not in (None, False, "float32"):
            raise ValueError(
                f"O1 casts the inputs of operators and keeps the weights float32, so cast_model_type cannot be "
                f"{given['cast_model_type']!r}; choose O2 or O3 for a half model"
            )
        if "keep_batchnorm_fp32" in values:
            raise ValueError(
                f"O1 keeps the weights of every layer float32, so keep_batchnorm_fp32 must be None, not "
                f"{given['keep_batchnorm_fp32']!r}"
            )
        if "master_weights" in values:
            raise ValueError(
                f"O1 keeps the weights float32, so there is nothing to make masters of: master_weights must be None, "
                f"not {given['master_weights']!r}"
            )
    elif values.get("patch_torch_functions"):
        raise ValueError(f"patch_torch_functions=True belongs to O1; {level} does not cast single operators")
    if level == "O0":
        if "loss_scale" in values:
            warnings.append(f"O0 is pure float32 and needs no loss scale; loss_scale={values['loss_scale']} is applied")
        for name in ("keep_batchnorm_fp32", "master_weights"):
            if values.get(name):
                warnings.append(f"O0 is pure float32: {name}={given[name]} has no effect")
    return replace(row, **values), warnings


def parse_loss_scale(value):
    """Return "dynamic", or the static scale as a float.

    Raises:
        ValueError: neither "dynamic" nor a finite number above 0.
    """
    if value == "dynamic":
        return value
    try:
        if isinstance(value, bool):
            raise ValueError
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"loss_scale must be a number or 'dynamic', not {value!r}") from None
    if not 0 < number < float("inf"):
        raise ValueError(f"loss_scale must be a finite number above 0, not {value!r}")
    return number


def _model_type(value):
    name = str(value).removeprefix("paddle.")
    if value is False or name in MODEL_TYPES:
        return False if value is False else name
    raise ValueError(f"cast_model_type must be False or one of {', '.join(MODEL_TYPES)}, not {value!r}")


def _flag(name):
    def check(value):
        if value in ("True", "False"):
            return value == "True"
        if not isinstance(value, bool):
            raise ValueError(f"{name} must be True, False or None, not {value!r}")
        return value

    return check


_CHECKS = {
    "cast_model_type": _model_type,
    "patch_torch_functions": _flag("patch_torch_functions"),
    "keep_batchnorm_fp32": _flag("keep_batchnorm_fp32"),
    "master_weights": _flag("master_weights"),
    "loss_scale": parse_loss_scale,
}
