"""Rotary positions of the queries and keys in a packed projection, on all formats; float32 arithmetic, rounded once."""

from .compiled_library import load, numbers
from .onednn_memory import contiguous, in_float32
from .onednn_primitives import DATA_TYPES, bound, data_type, new_tensor, pointers, servable
from .recorded import PyLayer
from .saved import save, saved


def _turned(x, sine, cosine, constants, back):
    sizes, halves = constants
    out = new_tensor(x.dtype, x.shape)
    load().rotary(data_type(x), numbers(*sizes), halves, back, *pointers(sine, cosine, x, out))
    return out


class Rotary(PyLayer):
    """Queries and keys of [B, N, 3C] turned pair by pair of their channels; the values stay."""

    @staticmethod
    def forward(ctx, packed, sine, cosine, constants):
        """Return the packed projection with queries and keys turned."""
        packed, sine, cosine = contiguous(packed), in_float32(sine), in_float32(cosine)
        ctx.constants = constants
        save(ctx, sine, cosine)
        return _turned(packed, sine, cosine, constants, False)

    @staticmethod
    def backward(ctx, gradient):
        """Return the gradient of the projection; the tables get none."""
        sine, cosine = saved(ctx)
        return _turned(contiguous(gradient), sine, cosine, ctx.constants, True), None, None


def rotary(original, args, kwargs):
    """Kernel of ``rotary(qkv, sine, cosine, num_heads, halves)``."""
    packed, sine, cosine, num_heads, halves = bound(args, kwargs, ("qkv", "sine", "cosine", "num_heads", "halves"), ())
    if not servable(packed) or packed.ndim != 3 or packed.shape[-1] % (3 * num_heads):
        return NotImplemented
    batch, tokens, width = packed.shape
    dim = width // (3 * num_heads)
    for table in (sine, cosine):
        if table.dtype not in DATA_TYPES or table.shape != [tokens, 1, dim] or not table.stop_gradient or dim % 2:
            return NotImplemented
    sizes = (batch, tokens, 2 * num_heads, 3 * num_heads, dim)
    return Rotary.apply(packed, sine, cosine, (sizes, bool(halves)))


KERNELS = {"rotary": rotary}
