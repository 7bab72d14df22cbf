"""Batch normalisation of image batches [B, C, H, W] on bfloat16 or float32 tensors, with float32 statistics."""

import paddle
from paddle.autograd import PyLayer

from . import compiled, paddle_names
from . import onednn_library as onednn
from .onednn_memory import in_dtype, in_float32, new_like, ordered_like, settled
from .onednn_primitives import (
    bound,
    cache,
    layout,
    new_tensor,
    servable,
)

_FLOAT32 = paddle.float32
_NAMES = ("x", "mean", "variance", "scale", "bias", "is_test", "momentum", "epsilon", "data_format",
          "use_global_stats", "trainable_statistics")  # fmt: skip


def _always(*key):
    """oneDNN's threads wait for each other by spinning, and its kernel of channels that no vector divides takes ten
    times as long in bfloat16."""
    return True


def _forward(builder, images, epsilon, flags):
    md = builder.md(images)
    return "batch_normalization_forward", onednn.FORWARD_TRAINING, md, md, epsilon, flags, None


@compiled.counterpart(compiled.batch_norm, _always)
def _describe(library, builder, images, epsilon, flags):
    numbers = (onednn.SRC, onednn.SCALE, onednn.SHIFT, onednn.DST, onednn.MEAN, onednn.VARIANCE)
    return library.description(*_forward(builder, images, epsilon, flags)), numbers


@compiled.counterpart(compiled.batch_norm_backward, _always)
def _describe_backward(library, builder, images, epsilon, flags):
    md = builder.md(images)
    hint = builder.hint(*_forward(builder, images, epsilon, flags))
    description = library.description(
        "batch_normalization_backward", onednn.BACKWARD, md, md, md, epsilon, flags, hint, None
    )
    numbers = [onednn.SRC, onednn.MEAN, onednn.VARIANCE, onednn.SCALE, onednn.DIFF_DST]
    numbers += [onednn.DIFF_SRC, onednn.DIFF_SCALE, onednn.DIFF_SHIFT]
    if library.number_of_inputs(description) == 6:
        numbers.append(onednn.SHIFT)
    return description, numbers


class BatchNorm(PyLayer):
    """Normalisation of each channel by the batch's statistics, or by given ones."""

    @staticmethod
    def forward(ctx, x, scale, shift, mean, variance, epsilon, flags):
        """Return the normalised images in the dtype of x; `mean` and `variance` are written unless the flags say
        that they are given."""
        ctx.needs = (not x.stop_gradient, not scale.stop_gradient, not shift.stop_gradient)
        ctx.parameter_dtype = scale.dtype
        x = settled(x)
        scale, shift = in_float32(scale), in_float32(shift)
        out = new_like(x)
        ctx.key = (layout(x), epsilon, flags)
        cache.get(_describe, *ctx.key)(
            *(tensor.data_ptr() for tensor in (x, scale, shift, out, mean, variance))
        )
        ctx.save_for_backward(x, scale, mean, variance)
        return out

    @staticmethod
    def backward(ctx, gradient):
        """Return the gradients of x, scale and shift; statistics get none."""
        x, scale, mean, variance = ctx.saved_tensor()
        gradient = ordered_like(gradient, x)
        results = [new_like(x), new_tensor(_FLOAT32, scale.shape), new_tensor(_FLOAT32, scale.shape)]
        primitive = cache.get(_describe_backward, *ctx.key)
        pointers = [tensor.data_ptr() for tensor in (x, mean, variance, scale, gradient, *results)]
        if primitive.arity > len(pointers):
            pointers.append(scale.data_ptr())
        primitive(*pointers)
        results[1:] = [in_dtype(result, ctx.parameter_dtype) for result in results[1:]]
        gradients = [result if needed else None for result, needed in zip(results, ctx.needs, strict=True)]
        return (*gradients, None, None)


def batch_norm(original, args, kwargs):
    """Kernel of ``batch_norm(...)`` with float32 running statistics, which it updates as Paddle does."""
    values = bound(args, kwargs, _NAMES, ())
    if values is None:
        return NotImplemented
    x, mean, variance, scale, shift, is_test, momentum, epsilon, data_format, use_global_stats, _ = values
    if not servable(x) or x.ndim != 4 or data_format != "NCHW" or scale is None or shift is None:
        return NotImplemented
    if not servable(scale, shift) or not servable(mean, variance) or mean.dtype is not _FLOAT32:
        return NotImplemented
    flags = onednn.USE_SCALE | onednn.USE_SHIFT
    if is_test or use_global_stats:
        out = BatchNorm.apply(x, scale, shift, mean, variance, float(epsilon), flags | onednn.USE_GLOBAL_STATS)
        return out, mean, variance, None, None, None
    batch_mean, batch_variance = new_tensor(_FLOAT32, mean.shape), new_tensor(_FLOAT32, mean.shape)
    out = BatchNorm.apply(x, scale, shift, batch_mean, batch_variance, float(epsilon), flags)
    with paddle.no_grad():
        for running, batch in ((mean, batch_mean), (variance, batch_variance)):
            paddle_names.scale_(running, momentum, 0.0, True)
            paddle_names.add_(running, paddle_names.scale(batch, 1.0 - momentum, 0.0, True))
    return out, mean, variance, batch_mean, batch_variance, None
