"""Cross-entropy of logits on all formats: float32 inside, rounded once."""

import paddle

from .arguments import FLOAT32
from .compiled_library import load
from .compiled_worth import pays
from .onednn_memory import contiguous
from .onednn_primitives import bound, data_type, new_tensor, numel, pointers
from .recorded import PyLayer
from .saved import keep, own_result, saved

_INT64, _INT32 = paddle.int64, paddle.int32


class CrossEntropy(PyLayer):
    """Softmax of rows, and the cross-entropy with their labels; keeps the probabilities in float32, and the labels."""

    @staticmethod
    def forward(ctx, x, labels, ignored):
        """Return the probabilities and the losses, [..., 1], dense; labels are whole numbers or shares of classes."""
        ctx.set_materialize_grads(False)
        shares = labels.dtype is x.dtype
        x, labels = contiguous(x), contiguous(labels)
        labels = labels if shares or labels.dtype is _INT64 else labels.astype(_INT64)
        rounded, losses = new_tensor(x.dtype, x.shape), new_tensor(x.dtype, [*x.shape[:-1], 1])
        probabilities = own_result(rounded) if x.dtype is FLOAT32 else new_tensor(FLOAT32, x.shape)
        ctx.dtype, ctx.sizes = x.dtype, (data_type(x), numel(x) // x.shape[-1], x.shape[-1], ignored)
        load().cross_entropy(*ctx.sizes, *pointers(x, *_kinds(labels), rounded, probabilities, losses))
        keep(ctx, probabilities, labels)
        return rounded, losses

    @staticmethod
    def backward(ctx, unused, gradient):
        """Return the gradient of the logits; as with Paddle, the probabilities hand none back."""
        probabilities, labels = saved(ctx)
        if gradient is None:
            return paddle.zeros(probabilities.shape, ctx.dtype), None
        gradient, out = contiguous(gradient), new_tensor(ctx.dtype, probabilities.shape)
        load().cross_entropy_backward(*ctx.sizes, *pointers(probabilities, *_kinds(labels), gradient, out))
        return out, None


def _kinds(labels):
    """Return (whole numbers, shares), of which one is None."""
    return (labels, None) if labels.dtype is _INT64 else (None, labels)


def cross_entropy(original, args, kwargs):
    """Kernel of ``cross_entropy_with_softmax(logits, label, soft_label, use_softmax, stable, ignore_index, axis)`` over
    the last axis for labels without gradient. The library refuses a label that is no class: Paddle words the error."""
    names = ("input", "label", "soft_label", "use_softmax", "numeric_stable_mode", "ignore_index", "axis")
    x, labels, soft, softmax, _, ignored, axis = bound(args, kwargs, names, (False, True, True, -100, -1))
    if not pays(x, numel(x)):
        return NotImplemented
    if not softmax or not x.ndim or axis not in (-1, x.ndim - 1) or not labels.stop_gradient:
        return NotImplemented
    if soft and (labels.dtype is not x.dtype or labels.shape != x.shape):
        return NotImplemented
    if not soft and (labels.dtype not in (_INT64, _INT32) or labels.shape != [*x.shape[:-1], 1]):
        return NotImplemented
    return CrossEntropy.apply(x, labels, ignored)


KERNELS = {"cross_entropy_with_softmax": cross_entropy}
