"""Where windows of convolutions and poolings lie: strides, dilations and padding as oneDNN takes them."""


def geometry_of(window, strides, dilations, padding):
    """Return oneDNN's numbers (strides, dilations, padding before, padding after) of a square or rectangular window.

    A dilation means nothing along an axis of a single tap; oneDNN 3.6 reads beyond the images by it.
    """
    if len(padding) == 4:
        before, after = (padding[0], padding[2]), (padding[1], padding[3])
    else:
        before = after = tuple(padding)
    dilations = tuple(value - 1 if taps > 1 else 0 for taps, value in zip(window, dilations, strict=True))
    return tuple(strides), dilations, before, after


def same_padding(sizes, windows, strides):
    """Return TensorFlow's padding [above, below, left, right] for outputs of ceil(size / stride): odd ones go last."""
    totals = [
        max((-(-size // stride) - 1) * stride + window - size, 0)
        for size, window, stride in zip(sizes, windows, strides, strict=True)
    ]
    return [part for total in totals for part in (total // 2, total - total // 2)]


def output_size(size, window, stride, dilation, before, after):
    return (size + before + after - (dilation + 1) * (window - 1) - 1) // stride + 1
