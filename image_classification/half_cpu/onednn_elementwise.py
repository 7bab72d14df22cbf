"""Casts, activations and sums of equal shapes, on bfloat16 or float32 tensors; float32 arithmetic, rounded once."""

import paddle
from paddle.autograd import PyLayer

from . import onednn_library as onednn
from .onednn_primitives import (
    DATA_TYPES,
    bound,
    cache,
    contiguous,
    dense,
    is_channels_last,
    layout,
    new_like,
    new_tensor,
    numel,
    servable,
    settled,
)

_FLOAT32 = paddle.float32


def _describe_reorder(library, builder, source, target):
    return library.description("reorder", builder.md(source), builder.md(target), None), (onednn.SRC, onednn.DST)


def reorder(tensor, dtype):
    """Return a dense copy of a tensor of any strides in another number format; not recorded by autograd."""
    out = new_tensor(dtype, tensor.shape)
    if tensor.is_contiguous():
        source, target = dense(tensor.dtype, numel(tensor)), dense(dtype, numel(tensor))
    else:
        source, target = layout(tensor), layout(out)
    cache.get(_describe_reorder, source, target)(tensor.data_ptr(), out.data_ptr())
    return out


def in_dtype(tensor, dtype):
    """Return the tensor itself or a copy in another number format; not recorded by autograd."""
    return tensor if tensor.dtype is dtype else reorder(tensor, dtype)


def in_float32(tensor):
    """Return the tensor itself or a float32 copy, dense; not recorded by autograd."""
    return in_dtype(contiguous(tensor), _FLOAT32)


class Cast(PyLayer):
    """Conversion between bfloat16 and float32; the gradient is converted back."""

    @staticmethod
    def forward(ctx, tensor, dtype):
        """Return the tensor in `dtype`, rounded to nearest even."""
        ctx.dtype = tensor.dtype
        return reorder(tensor, dtype)

    @staticmethod
    def backward(ctx, gradient):
        """Return the gradient in the dtype of the input."""
        return reorder(gradient, ctx.dtype)


def cast(original, args, kwargs):
    """Kernel of ``cast(x, dtype)`` between bfloat16 and float32."""
    values = bound(args, kwargs, ("x", "dtype"), ())
    if values is None:
        return NotImplemented
    tensor, dtype = values
    if not servable(tensor) or dtype not in DATA_TYPES or tensor.dtype is dtype:
        return NotImplemented
    if not tensor.is_contiguous() and 0 in tensor.strides:
        return NotImplemented  # a broadcast view: oneDNN knows no zero strides
    return Cast.apply(tensor, dtype)


def _describe_activation(library, builder, algorithm, flat):
    md = builder.md(flat)
    description = library.description(
        "eltwise_forward", onednn.FORWARD_TRAINING, algorithm, md, md, 0.0, 0.0, None
    )
    return description, (onednn.SRC, onednn.DST)


def _describe_activation_backward(library, builder, algorithm, flat):
    md = builder.md(flat)
    hint = builder.hint("eltwise_forward", onednn.FORWARD_TRAINING, algorithm, md, md, 0.0, 0.0, None)
    description = library.description("eltwise_backward", algorithm, md, md, md, 0.0, 0.0, hint, None)
    data = onednn.DST if algorithm == onednn.RELU_USE_DST else onednn.SRC
    return description, (data, onednn.DIFF_DST, onednn.DIFF_SRC)


class Activation(PyLayer):
    """An elementwise function. ReLU keeps its output, which the next layer keeps anyway, the others their input."""

    @staticmethod
    def forward(ctx, x, algorithm):
        """Return f(x) in the dtype and memory order of x."""
        x = settled(x)
        out = new_like(x)
        cache.get(_describe_activation, algorithm, dense(x.dtype, numel(x)))(x.data_ptr(), out.data_ptr())
        ctx.algorithm = algorithm
        ctx.save_for_backward(out if algorithm == onednn.RELU_USE_DST else x)
        return out

    @staticmethod
    def backward(ctx, gradient):
        """Return the gradient of x."""
        (data,) = ctx.saved_tensor()
        gradient = ordered_like(gradient, data)
        out = new_like(data)
        cache.get(_describe_activation_backward, ctx.algorithm, dense(data.dtype, numel(data)))(
            data.data_ptr(), gradient.data_ptr(), out.data_ptr()
        )
        return out


def ordered_like(tensor, other):
    """Return the tensor, or a copy of it, in the memory order of a settled tensor of the same shape."""
    if tensor.strides == other.strides:
        return tensor
    return reorder_like(tensor, new_like(other))


def reorder_like(tensor, out):
    """Return `out` with the content of a tensor of the same shape, dtypes and memory orders as they are."""
    if 0 in tensor.strides:
        tensor = tensor.contiguous()  # a broadcast view: oneDNN knows no zero strides
    cache.get(_describe_reorder, layout(tensor), layout(out))(tensor.data_ptr(), out.data_ptr())
    return out


def gelu(original, args, kwargs):
    """Kernel of ``gelu(x, approximate)``."""
    values = bound(args, kwargs, ("x", "approximate"), (False,))
    if values is None or not servable(values[0]):
        return NotImplemented
    x, approximate = values
    return Activation.apply(x, onednn.GELU_TANH if approximate in (True, "tanh") else onednn.GELU_ERF)


def relu(original, args, kwargs):
    """Kernel of ``relu(x)``."""
    values = bound(args, kwargs, ("x",), ())
    if values is None or not servable(values[0]):
        return NotImplemented
    return Activation.apply(values[0], onednn.RELU_USE_DST)


def _describe_add(library, builder, left, right):
    description = library.description(
        "binary", onednn.BINARY_ADD, builder.md(left), builder.md(right), builder.md(left), None
    )
    return description, (onednn.SRC, onednn.SRC_1, onednn.DST)


def sum_of(left, right):
    """Return left + right in the memory order of left, a settled tensor; not recorded by autograd."""
    right = ordered_like(right, left)
    out = new_like(left)
    flat = dense(left.dtype, numel(left))
    cache.get(_describe_add, flat, flat)(left.data_ptr(), right.data_ptr(), out.data_ptr())
    return out


class Add(PyLayer):
    """The sum of two tensors of one shape and dtype. Both gradients are the gradient of the sum, without a copy."""

    @staticmethod
    def forward(ctx, left, right):
        """Return left + right in the memory order of left."""
        ctx.needs = (not left.stop_gradient, not right.stop_gradient)
        return sum_of(settled(left), right)

    @staticmethod
    def backward(ctx, gradient):
        """Return the gradient of the sum for each summand that needs one."""
        return tuple(gradient if needed else None for needed in ctx.needs)


def add(original, args, kwargs):
    """Kernel of ``add(x, y)`` for tensors of one shape and dtype."""
    values = bound(args, kwargs, ("x", "y"), ())
    if values is None:
        return NotImplemented
    left, right = values
    if not servable(left, right) or left.shape != right.shape:
        return NotImplemented
    return Add.apply(left, right)


class Fork(PyLayer):
    """A tensor for each of two branches. Paddle's engine would sum their gradients in one thread, and as rows of
    [B, C, H, W], which the layers before would have to rearrange."""

    @staticmethod
    def forward(ctx, x):
        """Return two views of x; PyLayer takes the tensor itself for a result in place."""
        return paddle.as_strided(x, x.shape, x.strides), paddle.as_strided(x, x.shape, x.strides)

    @staticmethod
    def backward(ctx, left, right):
        """Return the sum of the branches' gradients."""
        if is_channels_last(right):
            left, right = right, left
        return sum_of(settled(left), right)


def fork(original, args, kwargs):
    """Kernel of ``fork(x)``."""
    values = bound(args, kwargs, ("x",), ())
    if values is None or not servable(values[0]) or values[0].stop_gradient or not paddle.is_grad_enabled():
        return NotImplemented
    return Fork.apply(values[0])
