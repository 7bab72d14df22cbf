"""Windows of maps [B, H, W, C] that are shifted cyclically, one copy each way, in all formats."""

from .compiled_library import load, numbers
from .linear_map import both_ways
from .onednn_memory import contiguous
from .onednn_normalization import rounded_norm
from .onednn_primitives import bound, new_tensor, servable


def _cut(x, shape, constants, back):
    """Return the windows of maps, or the maps of windows, in the shape given, dense; recorded by autograd."""
    return both_ways(x, _copied, (shape, constants, back), (x.shape, constants, not back))


def _copied(shape, constants, back, x):
    x, out = contiguous(x), new_tensor(x.dtype, shape)
    load().windows(numbers(*constants, shape[-1] * x.element_size()), back, x.data_ptr(), out.data_ptr())
    return out


def windows(original, args, kwargs):
    """Kernel of ``windows(x, window, shift)`` for a window that divides the map."""
    x, window, shift = bound(args, kwargs, ("x", "window", "shift"), ())
    if not servable(x) or x.ndim != 4:
        return NotImplemented
    shape = _shape_of_windows(x, window, shift)
    return NotImplemented if shape is None else _cut(x, shape, (*x.shape[:3], window, shift), False)


def _shape_of_windows(x, window, shift):
    """Return [G, window * window, C] of maps [B, H, W, C], or None where windows do not divide them."""
    batch, height, width, dim = x.shape
    if not 0 <= shift < window or height % window or width % window:
        return None
    return [batch * (height // window) * (width // window), window * window, dim]


def norm_windows(original, args, kwargs):
    """Kernel of ``norm_windows(x, norm, window, shift)`` for a plain LayerNorm over the channels of float32 maps."""
    x, norm, window, shift, dtype = bound(args, kwargs, ("x", "norm", "window", "shift", "dtype"), ())
    shape = _shape_of_windows(x, window, shift) if x.ndim == 4 else None
    if shape is None:
        return NotImplemented
    return rounded_norm(x, norm, dtype, (*x.shape[1:3], window, shift), shape)


def maps(original, args, kwargs):
    """Kernel of ``maps(x, window, shift, height, width)``, the way back."""
    x, window, shift, height, width = bound(args, kwargs, ("x", "window", "shift", "height", "width"), ())
    if not servable(x) or x.ndim != 3:
        return NotImplemented
    count, tokens, dim = x.shape
    if tokens != window * window or not 0 <= shift < window or height % window or width % window:
        return NotImplemented
    batch, rest = divmod(count * tokens, height * width)
    if rest:
        return NotImplemented
    return _cut(x, [batch, height, width, dim], (batch, height, width, window, shift), True)


KERNELS = {"windows": windows, "norm_windows": norm_windows, "maps": maps}
