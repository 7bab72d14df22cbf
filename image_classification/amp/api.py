"""Mixed precision for a training script of one's own, after Apex and ColossalAI; nothing here is global.

    model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()

What belongs to a run hangs on the model and the optimizer that `initialize` returns.
"""

import contextlib
import enum
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import paddle
from paddle.nn import Layer
from paddle.optimizer import Optimizer

from .build import build_precision
from .functions import FunctionCasts
from .options import levels
from .precision import Reduction
from .private import cast_in_place, optimizer_parameters
from .wrappers import AmpCriterion, AmpModel, AmpOptimizer, unscale

logger = logging.getLogger(__name__)
HALF = (paddle.float16, paddle.bfloat16)


class AMP_TYPE(enum.Enum):
    """The modes of `convert_to_amp`, under ColossalAI's name."""

    PADDLE = "paddle"
    TORCH = "paddle"
    APEX = "apex"
    NAIVE = "naive"


def initialize(
    models: Layer | Sequence[Layer],
    optimizers: Optimizer | Sequence[Optimizer] | None = None,
    enabled: bool = True,
    opt_level: str = "O1",
    cast_model_type: Any = None,
    patch_torch_functions: bool | None = None,
    keep_batchnorm_fp32: bool | str | None = None,
    master_weights: bool | None = None,
    loss_scale: float | str | None = None,
    cast_model_outputs: Any = None,
    num_losses: int = 1,
    verbosity: int = 1,
    min_loss_scale: float | None = None,
    max_loss_scale: float = 2.0**24,
    *,
    dtype: str | None = None,
    functions: FunctionCasts | None = None,
    reduction: Reduction | None = None,
) -> Any:
    """Return models and optimizers prepared for an optimization level, single or lists as they came.

    Call it once, after model and optimizer are built and before any parallel wrapper. Without optimizers only the
    models come back.

    Args:
        enabled: False leaves the models alone, and `scale_loss` yields the loss itself.
        opt_level: "O0", "O1", "O2" or "O3"; the seven arguments after it override what the level sets. Or one of the
            modes "auto" and "naive", which take `loss_scale` and the bounds of it only.
        num_losses: number of loss scales, one per `loss_id` of `scale_loss`.
        verbosity: 0 silent, 1 logs the settings and skipped steps, 2 each cast of O1 as well.
        min_loss_scale, max_loss_scale: bounds of a dynamic loss scale; None for no bound.
        dtype: "float16" (the default; in mode auto on a CPU the other one) or "bfloat16".
        functions: FunctionCasts with one's own functions for O1.
        reduction: collectives, when gradients are neither averaged nor checked elsewhere.

    Raises:
        TypeError: something that is not a Layer or an Optimizer.
        ValueError: an option, or a model or optimizer that was through `initialize` or a parallel wrapper already.
    """
    overrides = {
        "cast_model_type": cast_model_type,
        "patch_torch_functions": patch_torch_functions,
        "keep_batchnorm_fp32": keep_batchnorm_fp32,
        "master_weights": master_weights,
        "loss_scale": loss_scale,
        "cast_model_outputs": cast_model_outputs,
        "min_loss_scale": min_loss_scale,
    }
    options = {name: value for name, value in overrides.items() if value is not None}
    options |= {"enabled": enabled, "verbose": verbosity > 0}
    if opt_level not in (*levels.LEVELS, "auto", "naive"):
        raise ValueError(
            f"unknown optimization level {opt_level!r}: levels are O0, O1, O2, O3, with the letter O, not a zero, and "
            "the modes auto and naive"
        )
    of_levels = {"num_losses": num_losses, "verbosity": verbosity, "max_loss_scale": max_loss_scale}
    unasked: dict[str, Any] = {"max_loss_scale": 2.0**24}  # of the levels' rule, and said of a static scale it warns
    if opt_level not in levels.LEVELS:
        unasked |= {"num_losses": 1, "verbosity": verbosity}
    options |= {name: value for name, value in of_levels.items() if value != unasked.get(name)}
    model_list, optimizer_list = _as_list(models), [] if optimizers is None else _as_list(optimizers)
    _check_models(model_list)
    _check_optimizers(optimizer_list)
    precision = build_precision(
        opt_level, dtype=dtype, device=_device(), options=options, reduction=reduction, functions=functions
    )
    if verbosity:
        logger.info("%s", precision.describe())
    model_list = [_wrapped(model, precision) for model in model_list]
    optimizer_list = [AmpOptimizer(optimizer, precision) for optimizer in optimizer_list]
    new_models = model_list if isinstance(models, (list, tuple)) else model_list[0]
    if optimizers is None:
        return new_models
    return new_models, optimizer_list if isinstance(optimizers, (list, tuple)) else optimizer_list[0]


@contextlib.contextmanager
def scale_loss(
    loss: paddle.Tensor,
    optimizers: AmpOptimizer | Sequence[AmpOptimizer],
    loss_id: int = 0,
    delay_unscale: bool = False,
) -> Iterator[paddle.Tensor]:
    """Give the scaled loss to differentiate; on exit the gradients are unscaled and checked and the scale is updated.

    Args:
        optimizers: one or more of those that `initialize` returned together.
        loss_id: which of the `num_losses` scales.
        delay_unscale: leave the gradients scaled, because another backward pass of this loss follows before the step.

    Raises:
        TypeError: an optimizer that `initialize` did not return.
        ValueError: loss_id out of range, or optimizers of several calls of `initialize`.
    """
    together: list[AmpOptimizer] = _as_list(optimizers)
    for optimizer in together:
        if _check_initialized(optimizer).precision is not together[0].precision:
            raise ValueError(
                "optimizers of one loss share its scale: give their models and them to one call of initialize, as lists"
            )
    for optimizer in together:
        optimizer.prepare(loss_id)
    yield together[0].precision.scaled(loss, loss_id)
    for optimizer in together:
        optimizer.collect()
    if not delay_unscale:
        unscale(together)


def disable_casts(model: Layer) -> contextlib.AbstractContextManager:
    """Return a context inside a model's forward pass in which O1 leaves operators as their inputs come."""
    if not isinstance(model, AmpModel):
        raise TypeError(f"disable_casts needs a model that initialize returned, not {type(model).__name__}")
    return model.precision.disable_casts()


def master_params(optimizer: Optimizer | AmpOptimizer) -> list[paddle.Tensor]:
    """Return the tensors that the optimizer updates: float32 masters where the model has half weights."""
    return optimizer_parameters(optimizer)


def state_dict(optimizer: AmpOptimizer) -> dict[str, Any]:
    """Return {"loss_scaler0": ..., ...}, empty when amp is disabled."""
    state = _check_initialized(optimizer).precision.state_dict()
    return {key: value for key, value in state.items() if key.startswith("loss_scaler")}


def load_state_dict(optimizer: AmpOptimizer, state: Mapping[str, Any]) -> None:
    """Restore the loss scales; a different number of them is logged.

    Raises:
        ValueError: keys that `state_dict` does not write.
    """
    _check_initialized(optimizer).precision.load_state_dict(state)


def convert_to_amp(
    model: Layer,
    optimizer: Optimizer,
    criterion: Callable | None,
    mode: AMP_TYPE | str,
    amp_config: Mapping[str, Any] | None = None,
    *,
    reduction: Reduction | None = None,
) -> tuple[Layer, AmpOptimizer, Callable | None]:
    """Return (model, optimizer, criterion) in one of ColossalAI's modes; call `optimizer.backward(loss)` then.

    A model that was created in half precision is widened first, in the parameters that the optimizer holds: its float32
    masters then begin at the rounded weights, and the log says so.

    Args:
        mode: AMP_TYPE, or "paddle" (also "torch"), "apex", "naive".
        amp_config: options of the mode under ColossalAI's names, of any of the systems' names, and `dtype`.
        reduction: collectives, when gradients are neither averaged nor checked elsewhere.

    Raises:
        TypeError, ValueError: as for `initialize`.
    """
    config = dict(amp_config or {})
    kind = _amp_type(mode)
    _check_models([model], in_half=True)
    _check_optimizers([optimizer])
    _widen(model)
    name = {AMP_TYPE.PADDLE: "auto", AMP_TYPE.NAIVE: "naive"}.get(kind) or config.pop("opt_level", "O1")
    precision = build_precision(
        name, dtype=config.pop("dtype", None), device=_device(), options=config, reduction=reduction
    )
    logger.info("%s", precision.describe())
    if criterion is not None and precision.casts_operators:
        criterion = AmpCriterion(criterion, precision)
    return _wrapped(model, precision), AmpOptimizer(optimizer, precision), criterion


def _amp_type(mode: AMP_TYPE | str) -> AMP_TYPE:
    try:
        return AMP_TYPE("paddle" if mode == "torch" else mode)
    except ValueError:
        raise ValueError(f"mode must be an AMP_TYPE or 'paddle', 'torch', 'apex' or 'naive', not {mode!r}") from None


def _wrapped(model, precision):
    """Return the model as it is used from now on; plain float32 needs nothing around it."""
    return model if precision.is_plain else AmpModel(model, precision)


def _as_list(value):
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _device():
    return paddle.get_device().partition(":")[0]


def _widen(model):
    """Make float32 of the model's half parameters and buffers, in place, and say how many there were."""
    halves = [tensor for tensor in (*model.parameters(), *model.buffers()) if tensor.dtype in HALF]
    for tensor in halves:
        cast_in_place(tensor, "float32")
    if halves:
        logger.warning(
            "%d tensors of the model are half already: the float32 masters are made from them, with their rounding",
            len(halves),
        )


def _check_models(models, in_half=False):
    for model in models:
        if not isinstance(model, paddle.nn.Layer):
            raise TypeError(f"models must be a paddle.nn.Layer or a list of them, not {type(model).__name__}")
        if isinstance(model, AmpModel):
            raise ValueError("this model was through amp already: build the model and the optimizer anew")
        if isinstance(model, paddle.DataParallel):
            raise ValueError("this model is a DataParallel: call amp first and wrap what it returns")
        for name, param in model.named_parameters():
            if param.dtype in HALF and not in_half:
                raise ValueError(f"parameter {name!r} is {param.dtype}: give the model in float32")


def _check_optimizers(optimizers):
    for optimizer in optimizers:
        if isinstance(optimizer, AmpOptimizer):
            raise ValueError("this optimizer was through amp already: build the model and the optimizer anew")
        if not isinstance(optimizer, paddle.optimizer.Optimizer):
            raise TypeError(f"optimizers must be a paddle optimizer or a list of them, not {type(optimizer).__name__}")


def _check_initialized(optimizer: AmpOptimizer) -> AmpOptimizer:
    if not isinstance(optimizer, AmpOptimizer):
        raise TypeError(
            f"{type(optimizer).__name__} was not through amp.initialize: use the optimizer that initialize returned"
        )
    return optimizer
