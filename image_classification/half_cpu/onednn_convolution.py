"""Convolution of image batches [B, C, H, W] and transposed convolution, forward and backward."""

from .arguments import BFLOAT16
from .onednn_convolution_passes import grouped, has_passes, plan, run
from .onednn_memory import channels_last, channels_last_layout, contiguous, in_dtype, new_channels_last
from .onednn_primitives import bound, data_type, layout, new_tensor, servable
from .onednn_windows import geometry_of
from .recorded import PyLayer
from .saved import save, saved


class Convolution(PyLayer):
    """x [B, C, H, W] with filters [O, C // groups, kh, kw]."""

    @staticmethod
    def forward(ctx, x, weight, found):
        """Return [B, O, H', W'] in the dtype of x, as planned."""
        ctx.needs, ctx.weight_dtype = (not x.stop_gradient, not weight.stop_gradient), weight.dtype
        x, weight, ctx.key = channels_last(x), in_dtype(contiguous(weight), x.dtype), found.key
        out = new_channels_last(x.dtype, found.shape)
        run("forward", ctx.key, x, weight, out)
        save(ctx, x, weight)
        return out

    @staticmethod
    def backward(ctx, gradient):
        """Return the gradients of x and the filters."""
        return _gradients(ctx, gradient, "backward_data", transposed=False)


def _gradients(ctx, gradient, of_images, transposed):
    """Return the gradients of x and the filters; transposed: what goes in stands where results do."""
    x, weight = saved(ctx)
    x, weight = channels_last(x), contiguous(weight)  # `Tensor.contiguous()` may have rearranged the images meanwhile
    gradient = channels_last(gradient)
    x_gradient = weight_gradient = None
    if ctx.needs[0]:
        x_gradient = new_channels_last(x.dtype, x.shape)
        run(of_images, ctx.key, gradient, weight, x_gradient)
    if ctx.needs[1]:
        weight_gradient = new_tensor(ctx.weight_dtype, weight.shape)
        images, results = (gradient, x) if transposed else (x, gradient)
        run("backward_weights", ctx.key, images, weight_gradient, results)
    return x_gradient, weight_gradient


def conv2d(original, args, kwargs, rounds=False):
    """Kernel of ``conv2d(input, filter, strides, paddings, padding_algorithm, dilations, groups, data_format)``; it
    takes float32 filters with half images, rounded to their format, where it `rounds`."""
    names = ("input", "filter", "strides", "paddings", "padding_algorithm", "dilations", "groups", "data_format")
    return _convolution(rounds, *bound(args, kwargs, names, ([1, 1], [0, 0], "EXPLICIT", [1, 1], 1, "NCHW")))


def depthwise_conv2d(original, args, kwargs, rounds=False):
    """Kernel of ``depthwise_conv2d(input, filter, strides, paddings, padding_algorithm, groups, dilations, ...)``."""
    names = ("input", "filter", "strides", "paddings", "padding_algorithm", "groups", "dilations", "data_format")
    values = bound(args, kwargs, names, ([1, 1], [0, 0], "EXPLICIT", 1, [1, 1], "NCHW"))
    x, weight, strides, padding, algorithm, groups, dilations, data_format = values
    return _convolution(rounds, x, weight, strides, padding, algorithm, dilations, groups, data_format)


def _convolution(rounds, x, weight, *arguments):
    if weight.dtype is not x.dtype and not rounds:
        return NotImplemented
    found = plan(x, weight, *arguments)
    return NotImplemented if found is None else Convolution.apply(x, weight, found)


class TransposedConvolution(PyLayer):
    """The gradient of a convolution as an operator: x [B, C, H, W] with filters [C, O // groups, kh, kw]."""

    @staticmethod
    def forward(ctx, x, weight, geometry, groups, sizes):
        """Return [B, O, *sizes] in the dtype of x."""
        ctx.needs, ctx.weight_dtype = (not x.stop_gradient, not weight.stop_gradient), weight.dtype
        x, weight = channels_last(x), contiguous(weight)
        out = new_channels_last(x.dtype, [x.shape[0], weight.shape[1] * groups, *sizes])
        ctx.key = (layout(out), grouped(layout(weight), groups), layout(x), geometry)
        run("backward_data", ctx.key, x, weight, out)
        save(ctx, x, weight)
        return out

    @staticmethod
    def backward(ctx, gradient):
        """Return the gradients of x and the filters."""
        return _gradients(ctx, gradient, "forward", transposed=True)


def conv2d_transpose(original, args, kwargs):
    """Kernel of ``conv2d_transpose(x, filter, strides, paddings, output_padding, output_size, ...)``."""
    names = ("x", "filter", "strides", "paddings", "output_padding", "output_size", "padding_algorithm", "groups",
             "dilations", "data_format")  # fmt: skip
    values = bound(args, kwargs, names, ([1, 1], [0, 0], [], [], "EXPLICIT", 1, [1, 1], "NCHW"))
    x, weight, strides, padding, further, wanted, algorithm, groups, dilations, data_format = values
    if not servable(x, weight) or x.ndim != 4 or weight.ndim != 4 or data_format != "NCHW" or algorithm != "EXPLICIT":
        return NotImplemented
    if x.shape[1] != weight.shape[0] or weight.shape[0] % groups or min(*strides, *dilations) < 1:
        return NotImplemented
    if weight.shape[1] * groups <= (1 if x.dtype is BFLOAT16 else 4):
        return NotImplemented  # channels that are written by the sixteen: Paddle's product takes a quarter to the whole
    if not isinstance(wanted, (list, tuple)) or not all(isinstance(size, int) for size in wanted):
        return NotImplemented
    strides, dilations, before, after = geometry_of(weight.shape[2:], strides, dilations, padding)
    smallest = [
        (size - 1) * stride + (dilation + 1) * (window - 1) + 1 - first - last
        for size, window, stride, dilation, first, last
        in zip(x.shape[2:], weight.shape[2:], strides, dilations, before, after, strict=True)
    ]  # fmt: skip
    sizes = list(wanted) if wanted else [size + more for size, more in zip(smallest, further or (0, 0), strict=True)]
    # The convolution whose gradient it is does not reach the last rows: they count as less padding.
    more = [size - least for size, least in zip(sizes, smallest, strict=True)]
    if min(sizes) < 1 or any(not 0 <= rows < stride for rows, stride in zip(more, strides, strict=True)):
        return NotImplemented  # Paddle words the error
    after = tuple(last - rows for last, rows in zip(after, more, strict=True))
    geometry = strides, dilations, before, after
    images = channels_last_layout(data_type(x), (x.shape[0], weight.shape[1] * groups, *sizes))
    results = channels_last_layout(data_type(x), tuple(x.shape))
    if not has_passes(images, grouped(layout(weight), groups), results, geometry):
        return NotImplemented
    return TransposedConvolution.apply(x, weight, geometry, groups, sizes)
