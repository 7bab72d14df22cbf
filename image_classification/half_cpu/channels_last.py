"""Images with `data_format="NHWC"`: a kernel gets the view [B, C, H, W] of the same numbers, whose memory order is the
one that it computes in, and what it returns is viewed as [B, H, W, C] again."""

import functools

from .linear_map import LinearMap
from .onednn_memory import as_images, as_rows
from .onednn_primitives import servable
from .op_names import words

# A batch norm takes them for rows itself; nearest neighbours and padding take Paddle no longer.
OPERATORS = words(
    "conv2d depthwise_conv2d conv2d_transpose depthwise_conv2d_transpose pool2d bilinear_interp bicubic_interp "
    "group_norm prelu pixel_shuffle pixel_unshuffle channel_shuffle"
)


def _is_last(argument):
    return type(argument) is str and argument == "NHWC"


def of_rows(kernel):
    """Return the kernel of images of either format."""

    @functools.wraps(kernel)
    def adapted(original, args, kwargs):
        if not any(map(_is_last, args)):
            return kernel(original, args, kwargs)
        rows, *others = args
        if not servable(rows) or rows.ndim != 4:
            return NotImplemented
        others = ["NCHW" if _is_last(argument) else argument for argument in others]
        result = kernel(original, (LinearMap.apply(rows, as_images, as_rows), *others), kwargs)
        return result if result is NotImplemented else LinearMap.apply(result, as_rows, as_images)

    return adapted
