"""From plain values to a Precision object."""

import logging
import warnings
from collections.abc import Mapping
from typing import Any

import paddle

from . import operator_casts
from .functions import FunctionCasts
from .mixed import MixedPrecision
from .options import resolve
from .plain import PlainPrecision
from .precision import Reduction
from .scaler import LossScaler
from .storage import FLOAT32_NORMS, HalfStorage

logger = logging.getLogger(__name__)


def build_precision(
    mode: str = "fp32",
    dtype: str | None = None,
    device: str = "cpu",
    options: Mapping[str, Any] | None = None,
    clip_grad_norm: float | None = None,
    reduction: Reduction | None = None,
    functions: FunctionCasts | None = None,
) -> PlainPrecision:
    """Return the Precision of a mode.

    Args:
        mode: "fp32", "auto", "O0" to "O3" or "naive".
        dtype: "float16" or "bfloat16"; None for the mode's own: float16, or bfloat16 in mode auto on a CPU.
        device: "cpu", or the kind of Paddle's current device: "gpu", "xpu" or a plug-in's name.
        options: the mode's options, see docs/amp.md.
        clip_grad_norm: largest global L2 norm of the unscaled gradients; None or 0 for no clipping.
        reduction: collectives of a distributed run.
        functions: FunctionCasts with the user's own functions.

    Raises:
        ValueError: a mode, dtype or option that does not exist or contradicts another.
    """
    settings = resolve(mode, dtype, device, options)
    for warning in settings.warnings:
        logger.warning("%s", warning)
    if settings.clip_grad_norm and clip_grad_norm and settings.clip_grad_norm != clip_grad_norm:
        logger.warning("clip_grad_norm of mode %s is ignored: the run clips at %g", mode, clip_grad_norm)
    common = {
        "device": device,
        "clip_grad_norm": clip_grad_norm or settings.clip_grad_norm,
        "reduction": reduction,
        "log_num_zeros_in_grad": settings.log_num_zeros_in_grad,
        "verbose": settings.verbose,
    }
    if settings.mode == "fp32":
        return PlainPrecision(**common)
    if device != "cpu" and settings.dtype != "float32":
        _check_format(device, settings)
    return MixedPrecision(
        settings.mode,
        casts=_casts(settings, device, functions),
        storage=_storage(settings),
        input_dtype=settings.input_dtype,
        output_dtype=settings.output_dtype,
        keep_float32=settings.keep_float32,
        dtype=settings.dtype,
        scalers=[LossScaler(rule, **options) for rule, options in settings.scalers],
        **common,
    )


def _check_format(device, settings):
    """Try a product: refuse what Paddle has no kernel for, and what its auto_cast would silently run in float32."""
    casts = settings.operator_casts is not None
    with warnings.catch_warnings(), paddle.no_grad():
        warnings.simplefilter("ignore")
        try:
            with paddle.amp.auto_cast(enable=casts, dtype=settings.dtype):
                ones = paddle.ones([8, 8], "float32" if casts else settings.dtype)
                computed = paddle.matmul(ones, ones).dtype
        except RuntimeError:
            computed = None
    if computed != getattr(paddle, settings.dtype):
        how = "Paddle's auto_cast does not cast to" if casts and computed is not None else "Paddle does not compute"
        raise ValueError(f"{how} {settings.dtype} on {device}; take the other half format, mode fp32 or device cpu")


def _casts(settings, device, functions):
    if settings.operator_casts is None:
        return None
    user_lists = (settings.white_list, settings.black_list)
    if settings.operator_casts == "apex":
        casts = operator_casts.apex_casts(settings.dtype, device, *user_lists, functions)
    else:
        casts = operator_casts.paddle_casts(settings.dtype, device, *user_lists, settings.complete_lists, functions)
    if settings.verbosity == 2:
        casts.policy = operator_casts.LoggingPolicy(casts.policy)
    return casts


def _storage(settings):
    if settings.stored == "float32":
        return None
    norms = FLOAT32_NORMS[settings.float32_norms]
    kept = set(settings.keep_float32)
    return HalfStorage(settings.stored, settings.masters, lambda name, layer: name in kept or isinstance(layer, norms))
