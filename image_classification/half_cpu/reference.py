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
        return cast(result, dtype) if result.dtype is FLOAT32 else result
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
    """Return the operator's result from float32 arithmetic, rounded once to the dtype that the call implies or names.

    `tensors` are the call's tensors in order, `cast(tensor, dtype)` the recorded cast.
    """
    args, kwargs, requested = replace_dtypes(args, kwargs)
    dtype = result_dtype(tensors) if requested is None else requested
    wide_args, wide_kwargs = replace_tensors(args, kwargs, Widening(cast))
    result = call(name, original, wide_args, wide_kwargs, HALF_NAMES.get(dtype, "half"))
    if dtype in HALF_NAMES:
        result = round_results(result, dtype, cast)
    return result
