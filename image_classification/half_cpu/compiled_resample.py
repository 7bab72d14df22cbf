"""Mean pooling, interpolation and padding of images, on all formats: float32 arithmetic, rounded once.

Each row of such a result is a weighted sum of rows of its source, each column of columns, so one kernel computes all of
them from two tables. Their gradients are the same with the tables transposed.
"""

import functools
import math
from ctypes import c_float

from .compiled_library import load, numbers
from .linear_map import both_ways
from .onednn_memory import are_rows, channels_last, contiguous, new_channels_last, with_axis, without_axis
from .onednn_pooling import POOL, described, windows
from .onednn_primitives import bound, data_type, new_tensor, servable


class Taps:
    """For each row of a result the rows of the source that it is a sum of, and their weights.

    Args:
        size: number of rows of the source.
        terms: for each row of the result [(row of the source, weight)].
    """

    def __init__(self, size, terms):
        self.size = len(terms)
        starts = [0]
        for row in terms:
            starts.append(starts[-1] + len(row))
        flat = [term for row in terms for term in row]
        self.arrays = (
            numbers(*starts),
            numbers(*(index for index, _ in flat)),
            (c_float * len(flat))(*(weight for _, weight in flat)),
        )
        self._source_size, self._terms = size, terms

    @functools.cached_property
    def transposed(self):
        """The table of the gradient."""
        result: list[list] = [[] for _ in range(self._source_size)]
        for target, row in enumerate(self._terms):
            for index, weight in row:
                result[index].append((target, weight))
        return Taps(self.size, result)


_ALONE = Taps(1, [[(0, 1.0)]])


def _resample(x, down, across):
    """Return images [B, C, H, W] with other rows and columns in the memory order of x; recorded by autograd."""
    last = are_rows(x)
    back = down.transposed, across.transposed
    return both_ways(x, _resampled, (last, down, across), (last, *back))


def _resampled(last, down, across, x):
    x = (channels_last if last else contiguous)(x)
    batch, channels, height, width = x.shape
    shape = [batch, channels, down.size, across.size]
    out = (new_channels_last if last else new_tensor)(x.dtype, shape)
    outer, inner = (batch, channels) if last else (batch * channels, 1)
    return _written(x, out, (outer, height, width, inner), down, across)


def _written(x, out, sizes, down, across):
    """Return `out`, of dense x [outer, height, width, inner] with other rows and columns."""
    sizes = numbers(*sizes, down.size, across.size)
    load().resample(data_type(x), sizes, *down.arrays, *across.arrays, x.data_ptr(), out.data_ptr())
    return out


def _along_depth(x, planes):
    """Return volumes [B, C, D, H, W] with other planes; recorded by autograd."""
    return both_ways(x, _other_planes, (planes,), (planes.transposed,))


def _other_planes(planes, x):
    x = contiguous(x)
    batch, channels, depth, height, width = x.shape
    out = new_tensor(x.dtype, [batch, channels, planes.size, height, width])
    return _written(x, out, (batch * channels, depth, 1, height * width), planes, _ALONE)


def _means(size, starts, ends, divisors=None):
    """Return the taps of means over windows; bounds may reach beyond the source."""
    rows = [range(max(start, 0), min(end, size)) for start, end in zip(starts, ends, strict=True)]
    counts = divisors or [len(row) for row in rows]
    return Taps(size, [[(index, 1 / count) for index in row] for row, count in zip(rows, counts, strict=True)])


@functools.lru_cache(maxsize=256)
def _window_means(size, window, stride, before, outputs, with_padding):
    """Return the taps of a mean over windows of fixed size; the mean may count padding as zeros."""
    starts = [index * stride - before for index in range(outputs)]
    ends = [min(start + window, size + before) for start in starts]
    divisors = [end - start for start, end in zip(starts, ends, strict=True)] if with_padding else None
    return _means(size, starts, ends, divisors)


@functools.lru_cache(maxsize=256)
def _adaptive_means(size, outputs):
    """Return the taps of a mean over as many windows as are wanted."""
    starts = [index * size // outputs for index in range(outputs)]
    return _means(size, starts, [-(-(index + 1) * size // outputs) for index in range(outputs)])


def _ratio(size, outputs, align_corners, factor):
    if outputs == 1:
        return 0.0
    if align_corners:
        return (size - 1) / (outputs - 1)
    return 1 / factor if factor > 0 else size / outputs


def _nearest(size, outputs, ratio, align_corners, align_mode):
    half = 0.5 if align_corners else 0.0
    return [[(min(int(_float32(ratio * index + half)), size - 1), 1.0)] for index in range(outputs)]


def _linear(size, outputs, ratio, align_corners, align_mode):
    shifted = align_mode == 0 and not align_corners
    result = []
    for index in range(outputs):
        place = max(ratio * (index + 0.5) - 0.5, 0.0) if shifted else ratio * index
        low = int(_float32(place))
        result.append([(low, 1 - (place - low)), (min(low + 1, size - 1), place - low)])
    return result


def _cubic(size, outputs, ratio, align_corners, align_mode):  # of slope -0.75
    def near(x):
        return (1.25 * x - 2.25) * x * x + 1

    def far(x):
        return ((-0.75 * x + 3.75) * x - 6) * x + 3

    result = []
    for index in range(outputs):
        place = ratio * index if align_corners else ratio * (index + 0.5) - 0.5
        low = math.floor(_float32(place))
        t = place - low
        weights = (far(t + 1), near(t), near(1 - t), far(2 - t))
        result.append([(min(max(low + k - 1, 0), size - 1), weight) for k, weight in enumerate(weights)])
    return result


def _float32(number):
    """Return the number as Paddle computes it, so that the same places are rounded down to the same pixels."""
    return c_float(number).value


@functools.lru_cache(maxsize=256)
def _interpolation(table, size, outputs, align_corners, align_mode, factor):
    ratio = _float32(_ratio(size, outputs, align_corners, factor))
    return Taps(size, table(size, outputs, ratio, align_corners, align_mode))


def _interpolate(table):
    names = ("x", "out_size", "size_tensor", "scale_tensor", "data_format", "out_d", "out_h", "out_w", "scale",
             "interp_method", "align_corners", "align_mode")  # fmt: skip

    def kernel(original, args, kwargs):
        values = bound(args, kwargs, names, ())
        x, *tensors, data_format, _, height, width, factors, _, align_corners, align_mode = values
        if not servable(x) or x.ndim != 4 or data_format != "NCHW" or any(one is not None for one in tensors):
            return NotImplemented
        factors = list(factors) if isinstance(factors, (list, tuple)) else [factors] * 2 if factors else []
        factors = factors * 2 if len(factors) == 1 else factors or [0.0, 0.0]
        taps = []
        for size, outputs, factor in zip(x.shape[2:], (height, width), factors, strict=True):
            outputs = int(size * factor) if factor > 0 else outputs
            if outputs < 1:
                return NotImplemented
            taps.append(_interpolation(table, size, outputs, bool(align_corners), align_mode, factor))
        return _resample(x, *taps)

    return kernel


@functools.lru_cache(maxsize=256)
def _padding(size, before, after, mode):
    """Return the taps of one axis padded, or None where Paddle words the error."""
    places = range(-before, size + after)
    if mode == "constant":
        return Taps(size, [[(place, 1.0)] if 0 <= place < size else [] for place in places])
    if mode == "replicate":
        return Taps(size, [[(min(max(place, 0), size - 1), 1.0)] for place in places])
    if mode == "circular":
        return Taps(size, [[(place % size, 1.0)] for place in places])
    if max(before, after) >= size:
        return None
    last = size - 1
    return Taps(size, [[(last - abs(last - abs(place)), 1.0)] for place in places])


def _padded(x, rows, columns, mode, value):
    if min(*rows, *columns) < 0 or mode == "constant" and value != 0:
        return NotImplemented
    taps = [_padding(size, *sides, mode) for size, sides in zip(x.shape[2:], (rows, columns), strict=True)]
    return NotImplemented if None in taps else _resample(x, *taps)


def pad(original, args, kwargs):
    """Kernel of ``pad(x, paddings, pad_value)`` of images with zeros."""
    x, sides, value = bound(args, kwargs, ("x", "paddings", "pad_value"), ())
    if not servable(x) or x.ndim != 4:
        return NotImplemented
    if not all(isinstance(side, int) for side in sides) or len(sides) != 8 or any(sides[:4]):
        return NotImplemented
    return _padded(x, tuple(sides[4:6]), tuple(sides[6:8]), "constant", value)


def pad3d(original, args, kwargs):
    """Kernel of ``pad3d(x, paddings, mode, pad_value, data_format)`` of images [B, C, 1, H, W] along H and W, or of
    volumes [B, C, D, H, W] along D."""
    x, sides, mode, value, data_format = bound(args, kwargs, ("x", "paddings", "mode", "pad_value", "data_format"), ())
    if not servable(x) or x.ndim != 5:
        return NotImplemented
    if data_format != "NCDHW" or not all(isinstance(side, int) for side in sides) or len(sides) != 6:
        return NotImplemented
    if any(sides[4:]):
        if any(sides[:4]) or min(sides) < 0 or mode == "constant" and value != 0:
            return NotImplemented
        if x.shape[3:] == [1, 1]:  # of lines, as `F.pad` has them
            result = _padded(with_axis(without_axis(without_axis(x, 4), 3), 2), (0, 0), tuple(sides[4:]), mode, value)
            return result if result is NotImplemented else with_axis(with_axis(without_axis(result, 2), 3), 4)
        planes = _padding(x.shape[2], *sides[4:], mode)
        return NotImplemented if planes is None else _along_depth(x, planes)
    if x.shape[2] != 1:
        return NotImplemented
    result = _padded(without_axis(x, 2), tuple(sides[2:4]), tuple(sides[:2]), mode, value)
    return result if result is NotImplemented else with_axis(result, 2)


def pool2d(original, args, kwargs):
    """Kernel of ``pool2d(...)``: means over windows of any kind."""
    call = described(args, kwargs)
    if call is None or call.maximum:
        return NotImplemented
    if call.adaptive:
        return _resample(call.x, *map(_adaptive_means, call.x.shape[2:], call.outputs))
    size, strides, before, _ = call.window
    along = zip(call.x.shape[2:], size, strides, before, call.outputs, strict=True)
    return _resample(call.x, *(_window_means(*numbers, call.with_padding) for numbers in along))


def pool3d(original, args, kwargs):
    """Kernel of ``pool3d(...)``: means over windows of several planes and single pixels, such as those that a response
    is normalised by."""
    values = bound(args[: len(POOL)], kwargs, POOL, ())
    x, size, strides, padding, ceil_mode, exclusive, data_format, kind, whole, adaptive, algorithm = values
    if not servable(x) or x.ndim != 5 or (data_format, kind, algorithm) != ("NCDHW", "avg", "EXPLICIT"):
        return NotImplemented
    if whole or adaptive or not [*size[1:]] == [*strides[1:]] == [1, 1] or len(padding) != 3 or any(padding[1:]):
        return NotImplemented
    along = (size[0], 1), (strides[0], 1), (padding[0], 0)
    found = windows((x.shape[2], 1), *along, bool(ceil_mode))
    if found is None:
        return NotImplemented
    planes = _window_means(x.shape[2], size[0], strides[0], padding[0], found[1][0], not exclusive)
    return _along_depth(x, planes)


KERNELS = {
    "bilinear_interp": _interpolate(_linear),
    "nearest_interp": _interpolate(_nearest),
    "bicubic_interp": _interpolate(_cubic),
    "pad": pad,
    "pad3d": pad3d,
    "pool2d": pool2d,
    "pool3d": pool3d,
}
