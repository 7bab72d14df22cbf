"""The reference arithmetic: compute in float32, round once.

That is what a tensor core does: half inputs, float32 accumulation, half output. So float16 overflows to inf from 65520
on and values up to 2^-25 become 0, exactly as on a GPU. The casts are recorded by autograd: the gradient of an operator
is computed in float32 too and rounded once, to the dtype of the input.
"""

import paddle

from .arguments import BFLOAT16, FLOAT16, FLOAT32, HALF_NAMES, KINDS, SEQUENCE, TENSOR, replace_dtypes, replace_tensors


class UnsupportedOperator(RuntimeError):
    """Raised for an operator that can compute this dtype neither by itself nor through float32."""

    def __init__(self, name, dtype, reason):
        super().__init__(f"operator {name!r} cannot compute {dtype} on a CPU: {reason}")
        self.name = name
        self.dtype = dtype


class Widening:
    """Casts half tensors to float32 and remembers which temporary stands for which tensor; one cast per tensor."""

    def __init__(self, cast):
        self.cast = cast
        self.pairs = []  # (float32 temporary, half tensor)

    def __call__(self, tensor):
        dtype = tensor.dtype
        if dtype is not FLOAT16 and dtype is not BFLOAT16:
            return tensor
        for temporary, known in self.pairs:
            if known is tensor:
                return temporary
        temporary = self.cast(tensor, FLOAT32)
        self.pairs.append((temporary, tensor))
        return temporary


def result_dtype(tensors):
    """Return the half dtype to which results are rounded, or None if Paddle's promotion makes them wider.

    float32 wins over half, float16 with bfloat16 gives float32. Tensors without dimensions are scalars: they decide
    only among themselves.
    """
    chosen = None
    chosen_scalar = True
    for tensor in tensors:
        dtype = tensor.dtype
        if dtype is not FLOAT16 and dtype is not BFLOAT16 and dtype is not FLOAT32 and dtype is not paddle.float64:
            continue
        scalar = tensor.ndim == 0
        if chosen is None or (chosen_scalar and not scalar):
            chosen, chosen_scalar = dtype, scalar
        elif chosen_scalar == scalar and dtype is not chosen:
            chosen = FLOAT32
    return chosen if chosen in HALF_NAMES else None


def round_results(result, dtype, cast):
    """Return `result` with its float32 tensors rounded to `dtype`; other tensors stay."""
    kind = KINDS[type(result)]
    if kind == TENSOR:
        # einsum returns caches that hold no data when no gradient is wanted.
        return cast(result, dtype) if result.dtype is FLOAT32 and result._is_initialized() else result
    if kind == SEQUENCE:
        return type(result)([round_results(item, dtype, cast) for item in result])
    return result


def call(name, original, args, kwargs, dtype):
    """Return `original(*args, **kwargs)`; a missing float32 kernel becomes UnsupportedOperator."""
    try:
        return original(*args, **kwargs)
    except RuntimeError as error:
        if "is not registered" not in str(error):
            raise
        raise UnsupportedOperator(name, dtype, "Paddle has no float32 kernel for it either") from error


def compute(name, original, args, kwargs, tensors, cast):
    """Return an operator's result from float32 arithmetic, rounded once to the dtype that the call implies or names.

    All rules share this signature: `tensors` are the call's tensors in order, `cast(tensor, dtype)` the recorded cast.
    """
    args, kwargs, requested = replace_dtypes(args, kwargs)
    dtype = result_dtype(tensors) if requested is None else requested
    args, kwargs = replace_tensors(args, kwargs, Widening(cast))
    result = call(name, original, args, kwargs, HALF_NAMES.get(dtype, "half"))
    return round_results(result, dtype, cast) if dtype in HALF_NAMES else result


def compute_without_rounding(name, original, args, kwargs, tensors, cast):
    """Return the result of an operator that is float32 by nature, such as accuracy."""
    args, kwargs = replace_tensors(args, kwargs, Widening(cast))
    return call(name, original, args, kwargs, "half")


def compute_norm(name, original, args, kwargs, tensors, cast):
    """Return a normalisation's results. The first input alone decides the dtype of the output.

    Parameters may be half or float32. Saved statistics stay float32.
    """
    dtype = tensors[0].dtype
    args, kwargs = replace_tensors(args, kwargs, Widening(cast))
    result = call(name, original, args, kwargs, HALF_NAMES.get(dtype, "half"))
    if dtype not in HALF_NAMES:
        return result
    if KINDS[type(result)] == SEQUENCE:
        return (cast(result[0], dtype), *result[1:])
    return cast(result, dtype)


def compute_get_item(name, original, args, kwargs, tensors, cast):
    """Return part of a tensor. Slices move data; the gradient of an index array is a sum and needs float32."""
    tensor, index = args
    parts = index if isinstance(index, tuple) else (index,)
    if all(part is None or part is Ellipsis or isinstance(part, (int, slice)) for part in parts):
        return original(tensor, index)
    return cast(original(cast(tensor, FLOAT32), index), tensor.dtype)
