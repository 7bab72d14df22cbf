"""The options of every mode: names, other systems' names for them, values, and errors that name the mode."""

import difflib
import math
from dataclasses import dataclass
from typing import NamedTuple

from . import levels, lists, scaler
from .scaler import LossScaler

HALF_DTYPES = ("float16", "bfloat16")

REPORTING = ("log_num_zeros_in_grad", "verbose")
LISTS = ("white_list", "black_list")
ALIASES = scaler.ALIASES | {
    "custom_white_list": "white_list",
    "custom_black_list": "black_list",
    "patch_functions": "patch_torch_functions",
    "clip_grad": "clip_grad_norm",
}
SCALING = ("enabled", "scaler", "loss_scale", "keep_float32", *scaler.OPTION_NAMES, *REPORTING)


class Mode(NamedTuple):
    """What a mode lets a user say, and what it takes where nothing is said.

    rule: whose rule the loss scaler follows.
    dtypes: number formats that can be asked for.
    default_dtype, default_dtype_on_cpu: the one that runs unasked.
    """

    options: tuple[str, ...]
    rule: str | None = None
    dtypes: tuple[str, ...] = HALF_DTYPES
    default_dtype: str = "float16"
    default_dtype_on_cpu: str = "float16"


_LEVEL = Mode((*SCALING, *LISTS, *levels.PROPERTY_NAMES[:-1], "cast_model_outputs", "num_losses", "verbosity"), "apex")
TABLE = {
    "fp32": Mode(REPORTING, dtypes=("float32", *HALF_DTYPES)),
    # O-levels and naive are defined in float16; auto takes what the device computes fast.
    "auto": Mode((*SCALING, *LISTS, "complete_lists"), "paddle", default_dtype_on_cpu="bfloat16"),
    **dict.fromkeys(levels.LEVELS, _LEVEL),
    "O0": _LEVEL._replace(dtypes=("float32", *HALF_DTYPES)),
    "naive": Mode((*SCALING, "clip_grad_norm", "keep_norms_fp32", "output_to_fp32"), "naive"),
}
MODES = tuple(TABLE)


@dataclass(frozen=True)
class Settings:
    """A mode with every choice made: what `build_precision` needs to know.

    operator_casts: "paddle" or "apex" lists of operators, None for no casts around operators.
    stored: dtype of the weights.
    masters: the optimizer updates float32 copies of the weights.
    float32_norms: "all", "batch" or "none" of the norm layers stay float32 in a half model.
    input_dtype, output_dtype: to which the model's floating inputs and outputs are cast; None for not at all.
    """

    mode: str
    dtype: str = "float32"
    operator_casts: str | None = None
    white_list: tuple = ()
    black_list: tuple = ()
    complete_lists: bool = True
    stored: str = "float32"
    masters: bool = False
    float32_norms: str = "none"
    keep_float32: tuple = ()
    input_dtype: str | None = None
    output_dtype: str | None = None
    scalers: tuple = ()  # (rule, options) for each loss
    clip_grad_norm: float | None = None
    log_num_zeros_in_grad: bool = False
    verbose: bool = False
    verbosity: int = 1
    warnings: tuple = ()


def check_mode(mode):
    """Return the mode.

    Raises:
        ValueError: no such mode; the message suggests the nearest one.
    """
    if mode in MODES:
        return mode
    typed = str(mode)
    guess = typed.upper().replace("0", "O", 1) if len(typed) == 2 else typed.lower()
    nearest = difflib.get_close_matches(guess, MODES, 1, 0.6)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    if nearest and nearest[0] in levels.LEVELS:
        hint += " The first character is the letter O, not the number zero."
    raise ValueError(f"unknown precision mode {mode!r}{hint} Modes are {', '.join(MODES)}")


def validate_options(mode, options):
    """Return the options under their own names, lower case, after checking names, values and combinations.

    Raises:
        ValueError: the message names the mode, the option, the value and what is allowed.
    """
    named = _named(check_mode(mode), options)
    _settings(mode, None, "cpu", named)
    return named


def resolve(mode, dtype=None, device="cpu", options=None):
    """Return the Settings of a mode; dtype None means the mode's own on this device.

    Raises:
        ValueError: as for `validate_options`, and for a dtype that the mode does not have.
    """
    return _settings(mode, dtype, device, _named(check_mode(mode), options or {}))


def has_option(mode, name):
    """Return whether a mode has an option, by any of its spellings."""
    option = str(name).lower()
    return ALIASES.get(option, option) in TABLE[mode].options


def _named(mode, options):
    allowed = TABLE[mode].options
    known = {*allowed, *(alias for alias, name in ALIASES.items() if name in allowed)}
    named: dict = {}
    spelt: dict = {}
    for typed, value in options.items():
        option = str(typed).lower()
        if option not in known:
            nearest = difflib.get_close_matches(option, known, 1, 0.6)
            hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
            names = ", ".join(sorted(allowed))
            raise ValueError(f"precision mode {mode} has no option {typed!r}{hint}; its options are {names}")
        name = ALIASES.get(option, option)
        if name in named:
            alias = typed if option in ALIASES else spelt[name]
            raise ValueError(f"precision mode {mode}: {alias!r} is another name of {name!r}, which is given too")
        named[name], spelt[name] = value, typed
    return named


def _settings(mode, dtype, device, options):
    try:
        return _Resolver(mode, dtype, device, options).settings()
    except (TypeError, ValueError) as error:
        raise ValueError(f"precision mode {mode}: {error}") from None


class _Resolver:
    """One mode, its options, and the answers that follow from both."""

    def __init__(self, mode, dtype, device, options):
        self.mode = mode
        self.options = options
        self.warnings = []
        self.dtype = self._dtype(dtype, device)

    def settings(self):
        if self.mode == "fp32":
            return Settings("fp32", **self._reporting())
        make = {"auto": self._auto, "naive": self._naive}.get(self.mode, self._level)
        settings = make()
        return settings if self._flag("enabled", True) else Settings("fp32", **self._reporting())

    def _auto(self):
        return Settings(
            "auto",
            self.dtype,
            operator_casts="paddle",
            complete_lists=self._flag("complete_lists", True),
            scalers=(self._scaler(self.options.get("loss_scale")),),
            **self._lists(),
            **self._common(),
        )

    def _naive(self):
        clip = self.options.get("clip_grad_norm") or 0
        if isinstance(clip, bool) or not isinstance(clip, (int, float)) or not 0 <= clip < math.inf:
            raise ValueError(f"clip_grad_norm must be a finite number, 0 or more, not {clip!r}")
        return Settings(
            "naive",
            self.dtype,
            stored=self.dtype,
            masters=True,
            float32_norms="all" if self._flag("keep_norms_fp32", True) else "none",
            input_dtype=self.dtype,
            output_dtype="float32" if self._flag("output_to_fp32", True) else None,
            scalers=(self._scaler(self.options.get("loss_scale")),),
            clip_grad_norm=clip or None,
            **self._common(),
        )

    def _level(self):
        overrides = {name: self.options.get(name) for name in levels.PROPERTY_NAMES}
        properties, warnings = levels.resolve(self.mode, overrides)
        self.warnings += warnings
        model_type = {"half": self.dtype}.get(properties.cast_model_type, properties.cast_model_type) or None
        half_model = model_type in HALF_DTYPES
        if half_model and model_type != self.dtype:
            raise ValueError(f"cast_model_type {model_type} contradicts the dtype {self.dtype}")
        outputs = self.options.get("cast_model_outputs")
        if outputs is not None:
            outputs = str(outputs).removeprefix("paddle.")
            if outputs not in levels.MODEL_TYPES:
                raise ValueError(f"cast_model_outputs must be one of {', '.join(levels.MODEL_TYPES)}, not {outputs!r}")
        idle = [name for name in LISTS if self.options.get(name) and not properties.patch_torch_functions]
        if idle:
            raise ValueError(f"{idle[0]}: patch_torch_functions is False, so no single operator is cast")
        losses = self.options.get("num_losses", 1)
        if isinstance(losses, bool) or not isinstance(losses, int) or losses < 1:
            raise ValueError(f"num_losses must be an integer of at least 1, not {losses!r}")
        return Settings(
            self.mode,
            self.dtype if half_model or properties.patch_torch_functions else "float32",
            operator_casts="apex" if properties.patch_torch_functions else None,
            stored=self.dtype if half_model else "float32",
            masters=half_model and bool(properties.master_weights),
            float32_norms="batch" if properties.keep_batchnorm_fp32 else "none",
            input_dtype=model_type,
            output_dtype=outputs or ("float32" if model_type else None),
            scalers=(self._scaler(self.options.get("loss_scale"), properties.loss_scale),) * losses,
            **self._lists(),
            **self._common(),
        )

    def _dtype(self, dtype, device):
        model_type = str(self.options.get("cast_model_type")).removeprefix("paddle.")
        if dtype is None and model_type in HALF_DTYPES:
            return model_type
        mode = TABLE[self.mode]
        if dtype is None:
            return mode.default_dtype_on_cpu if device == "cpu" else mode.default_dtype
        dtype = str(dtype).removeprefix("paddle.")
        if dtype in mode.dtypes:
            return dtype
        raise ValueError(f"dtype must be one of {', '.join(HALF_DTYPES)}, not {dtype!r}")

    def _scaler(self, loss_scale, default="dynamic"):
        """Return (rule, options) of the loss scaler; bfloat16 has float32's range, so it is static 1 unless asked."""
        rule = self.options.get("scaler", TABLE[self.mode].rule)
        given = {name: self.options[name] for name in scaler.OPTION_NAMES if name in self.options}
        if loss_scale is None:
            asked = {"init_scale", "dynamic"} & set(given)
            loss_scale = 1.0 if self.dtype == "bfloat16" and not asked else default
            if asked and default != "dynamic":
                loss_scale = "dynamic"
        elif loss_scale == "dynamic" and given.get("dynamic") is False:
            raise ValueError("loss_scale 'dynamic' and dynamic False contradict each other")
        loss_scale = levels.parse_loss_scale(loss_scale)
        if loss_scale != "dynamic":
            for name in ("init_scale", "dynamic"):
                if name in given:
                    raise ValueError(f"loss_scale {loss_scale} is static, so {name} cannot be given too")
            given |= {"init_scale": loss_scale, "dynamic": False}
        moves = LossScaler(rule, **given).dynamic
        idle = [name for name, value in given.items() if name not in ("init_scale", "dynamic") and value is not None]
        if idle and not moves:
            self.warnings.append(f"the loss scale is static, so there is no effect of: {', '.join(idle)}")
        return rule, given

    def _lists(self):
        found = {}
        for name in LISTS:
            operators = self._names(name)
            for operator in operators:
                if lists.operator_name(operator) is None:
                    nearest = difflib.get_close_matches(operator, lists.all_names(), 1, 0.6)
                    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
                    raise ValueError(f"{name}: Paddle has no operator {operator!r}{hint}")
            found[name] = operators
        both = {lists.operator_name(name) for name in found["white_list"]} & {
            lists.operator_name(name) for name in found["black_list"]
        }
        if both:
            raise ValueError(f"operator {sorted(both)[0]!r} is in white_list and in black_list")
        return found

    def _common(self):
        layers = self._names("keep_float32")
        return {"keep_float32": layers, "warnings": tuple(self.warnings), **self._reporting()}

    def _reporting(self):
        verbosity = self.options.get("verbosity", 1)
        if isinstance(verbosity, bool) or verbosity not in (0, 1, 2):
            raise ValueError(f"verbosity must be 0, 1 or 2, not {verbosity!r}")
        flags = {name: self._flag(name, False) for name in REPORTING}
        return flags | {"verbosity": verbosity}

    def _names(self, option):
        names = self.options.get(option)
        if names is None:
            return ()
        if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
            raise ValueError(f"{option} must be a list of names, not {names!r}")
        return tuple(names)

    def _flag(self, name, default):
        value = self.options.get(name, default)
        if not isinstance(value, bool):
            raise ValueError(f"{name} must be True or False, not {value!r}")
        return value
