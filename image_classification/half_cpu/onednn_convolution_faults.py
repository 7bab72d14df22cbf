"""Convolutions that oneDNN 3.6 computes wrong, by the arguments of a pass: they are left to other kernels."""

from . import onednn_library as onednn


def is_mistaken(name, source, filters, target, geometry, post_ops=()):
    """oneDNN 3.6 sums wrong numbers, or what lies beyond the images, where windows move by several columns: to a single
    one if there is a single channel, or, in bfloat16, fewer than 32; in bfloat16 also to two columns if the windows
    would fill the images without padding, and if a window has only padding, which may end the process. With AMX so
    does each pass where no window has a row of the images."""
    is_half = filters.data_type == onednn.BFLOAT16
    if is_half and not _meets(geometry, source.shape[2], filters.shape[-2], target.shape[2]):
        return True
    (_, stride), (_, gap), (_, before), _ = geometry
    if name != "forward" or stride == 1:
        return False
    width, columns = source.shape[3], target.shape[3]
    if columns == 1 and filters.shape[-3] < (32 if is_half else 2):
        return True
    reach = (filters.shape[-1] - 1) * (gap + 1) + 1
    fills = columns == 2 and before > 0 and width == stride + reach
    return is_half and (fills or before >= reach or (columns - 1) * stride - before >= width)


def _meets(geometry, height, taps, results):
    """Return whether any window has a row of the images."""
    (stride, _), (gap, _), (before, _), _ = geometry
    return any(0 <= row * stride - before + tap * (gap + 1) < height for row in range(results) for tap in range(taps))


def reads_too_far(name, source, filters, target, geometry, post_ops=()):
    """oneDNN 3.6 takes two columns at a time for the gradient of bfloat16 filters. Where windows move by more than a
    pixel and results have a single one, or so few that wide padding leaves some taps a single one, the other is
    whatever lies in memory. So is the gradient by wide images whose channels it fills up to a multiple of 16, where
    there are gaps between the rows of a window."""
    if name != "backward_weights" or filters.data_type != onednn.BFLOAT16:
        return False
    filled = filters.shape[-3] % 16 != 0 and geometry[1][0] > 0
    (_, stride), _, (_, before), _ = geometry
    return filled or stride > 1 and target.shape[3] <= max(1, before)
