"""The reference arithmetic: compute in float32, round once.

That is what a tensor core does: half inputs, float32 accumulation, half output. So float16 overflows to inf from 65520
on and values up to 2^-25 become 0, exactly as on a GPU. The casts are recorded by autograd: the gradient of an operator
is computed in float32 too and rounded once, to the dtype of the input.
"""

import functools
import logging

import paddle

from . import op_names, paddle_names
from .arguments import (
    BFLOAT16,
    CPU,
    DTYPE,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    FLOATING,
    HALF_NAMES,
    KINDS,
    PLAIN,
    SEQUENCE,
    TENSOR,
    is_basic,
    replace_tensors,
    scan,
)
from .scope import noted

logger = logging.getLogger(__name__)


class UnsupportedOperator(RuntimeError):
    """Raised for an operator that can compute this dtype neither by itself nor through float32.

    Paddle's programs and pickle make one anew from the text alone, which comes as `name`.
    """

    def __init__(self, name, dtype=None, reason=None):
        super().__init__(name if reason is None else f"operator {name!r} cannot compute {dtype} on a CPU: {reason}")
        self.name = name
        self.dtype = dtype


class Widening:
    """The arguments of one call in float32: half tensors are cast, half dtype arguments become float32.

    Attributes:
        pairs: [(float32 temporary, half tensor)], one per half tensor.
        requested: the floating dtype that a dtype argument names, or None.
        promoted: the dtype to which Paddle promotes the floating tensors. float32 wins over half, float16 with bfloat16
            gives float32; tensors without dimensions are scalars and decide only among themselves.
    """

    __slots__ = ("pairs", "requested", "promoted", "_cast", "_only_scalars")

    def __init__(self, cast):
        self.pairs = []
        self.requested = None
        self.promoted = None
        self._cast = cast
        self._only_scalars = True

    def arguments(self, args, kwargs):
        """Return (args, kwargs) with everything half made float32."""
        args = [self._value(value) for value in args]
        return args, {key: self._value(value) for key, value in kwargs.items()} if kwargs else kwargs

    def rounding(self):
        """Return the half dtype to which results are rounded, or None for results that stay float32."""
        dtype = self.promoted if self.requested is None else self.requested
        return dtype if dtype is FLOAT16 or dtype is BFLOAT16 else None

    def _value(self, value):
        kind = KINDS[type(value)]
        if kind == PLAIN:
            return value
        if kind == TENSOR:
            return self._tensor(value)
        if kind == SEQUENCE:
            for item in value:
                if KINDS[type(item)] == TENSOR:
                    return [self._value(item) for item in value]
            return value
        half = paddle_names.names_half(value)
        if half is not None:
            self.requested = half
            return FLOAT32
        wide = paddle_names.names_wide(value)
        if wide is not None:
            self.requested = wide
        return value

    def _tensor(self, tensor):
        dtype = tensor.dtype
        if dtype is FLOAT16 or dtype is BFLOAT16:
            self._promote(tensor, dtype)
            for temporary, known in self.pairs:
                if known is tensor:
                    return temporary
            temporary = self._cast(tensor, FLOAT32)
            self.pairs.append((temporary, tensor))
            return temporary
        if dtype is FLOAT32 or dtype is FLOAT64:
            self._promote(tensor, dtype)
        return tensor

    def _promote(self, tensor, dtype):
        scalar = tensor.ndim == 0
        if self._only_scalars and not scalar:
            self._only_scalars = False
            self.promoted = dtype
        elif self.promoted is None:
            self.promoted = dtype
        elif dtype is not self.promoted and scalar is self._only_scalars:
            self.promoted = FLOAT32


def round_results(result, dtype, cast):
    """Return `result` with its float32 tensors rounded to `dtype`; other tensors stay."""
    kind = KINDS[type(result)]
    if kind == TENSOR:
        # unique's counts, where they are not asked for, have none
        return cast(result, dtype) if result.dtype is FLOAT32 and paddle_names.has_memory(result) else result
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
        reason = "Paddle has no float32 kernel for it either"
        raise UnsupportedOperator(name, HALF_NAMES.get(dtype, "half precision"), reason) from error


def compute(name, original, args, kwargs, tensors, cast):
    """Return an operator's result from float32 arithmetic, rounded once to the dtype that the call implies or names.

    All rules share this signature: `tensors` are the call's tensors in order, `cast(tensor, dtype)` the recorded cast.
    """
    widening = Widening(cast)
    args, kwargs = widening.arguments(args, kwargs)
    dtype = widening.rounding()
    result = call(name, original, args, kwargs, dtype)
    return result if dtype is None else round_results(result, dtype, cast)


def compute_without_rounding(name, original, args, kwargs, tensors, cast):
    """Return the result of an operator that is float32 by nature, such as accuracy."""
    args, kwargs = Widening(cast).arguments(args, kwargs)
    return call(name, original, args, kwargs, None)


# norm -> the places of its input and parameters
_LEARNING = {"layer_norm": (0, 1, 2), "instance_norm": (0, 1, 2), **dict.fromkeys(op_names.BATCH_NORMS, (0, 3, 4))}


def compute_norm(name, original, args, kwargs, tensors, cast):
    """Return a normalisation's results. The first input alone decides the dtype of the output.

    Parameters may be half or float32. Saved statistics stay float32.
    """
    dtype = tensors[0].dtype
    args, kwargs = Widening(cast).arguments(args, kwargs)
    result = call(name, original, _all_learning(name, args), kwargs, dtype)
    if dtype is not FLOAT16 and dtype is not BFLOAT16:
        return result
    if KINDS[type(result)] == SEQUENCE:
        return (cast(result[0], dtype), *result[1:])
    return cast(result, dtype)


def _all_learning(name, args):
    """Return the arguments of a norm of which all learn if one does: beside a frozen scale Paddle 3.3.1 gives a layer
    norm's input a wrong gradient, and the shift of the others none; without a scale, or a shift, the other one gets a
    gradient without memory, to cast which ends the process."""
    places = [place for place in _LEARNING.get(name, ()) if place < len(args)]
    learns = next((args[one] for one in places if args[one] is not None and not args[one].stop_gradient), None)
    if learns is None:
        return args
    args = list(args)
    if name != "layer_norm" and len(places) == 3:
        _, scale, shift = places
        for place, other, value in ((scale, shift, 1.0), (shift, scale, 0.0)):
            if args[place] is None and args[other] is not None:
                args[place] = noted(paddle_names.full, args[other].shape, value, args[other].dtype, CPU)
    for place in places:
        args[place] = None if args[place] is None else _learning(args[place], learns)
    return args


class _Learning(paddle.autograd.PyLayer):
    """A view that asks for a gradient, for nobody, as another tensor does: a leaf's own `paddle.grad` leaves out."""

    @staticmethod
    def forward(ctx, make, other):
        return make()

    @staticmethod
    def backward(ctx, gradient):
        return None


def _learning(tensor, other):
    """Return a floating tensor, or a view of it, that asks for a gradient as another one does."""
    is_asked = tensor.stop_gradient and tensor.dtype in FLOATING and paddle.is_grad_enabled()
    return _Learning.apply(tensor.detach, other) if is_asked else tensor


def all_learning(original):
    """Return the operator, asking for all gradients where it is asked for one: those of `op_names.ALL_GRADIENTS` write
    the others to no memory in Paddle 3.3.1, which ends the process."""

    @functools.wraps(original)
    def operator(*args, **kwargs):
        learns = next((tensor for tensor in scan(args, kwargs)[0] if not tensor.stop_gradient), None)
        if learns is not None:
            args, kwargs = replace_tensors(args, kwargs, lambda tensor: _learning(tensor, learns))
        return original(*args, **kwargs)

    return operator


def result_alone(original):
    """Return the operator without what it returns beside its first result."""

    @functools.wraps(original)
    def operator(*args, **kwargs):
        return original(*args, **kwargs)[:1]

    return operator


def compute_get_item(name, original, args, kwargs, tensors, cast):
    """Return part of a tensor. Slices move data; the gradient of an index array is a sum and needs float32."""
    tensor, index = args
    if is_basic(index):
        return original(tensor, index)
    return cast(original(cast(tensor, FLOAT32), index), tensor.dtype)


def compute_cast(name, original, args, kwargs, tensors, cast):
    """Return a tensor in another dtype."""
    values = (*args[1:], *kwargs.values())
    half = next((paddle_names.names_half(value) for value in values if KINDS[type(value)] == DTYPE), None)
    return original(*args, **kwargs) if half is None else cast(tensors[0], half)


def compute_embedding(name, original, args, kwargs, tensors, cast):
    """Return rows of a half weight. Its gradient is dense: no cast takes a sparse one."""
    index, weight, padding, *_ = args
    return compute(name, original, (index, weight, padding, False), kwargs, tensors, cast)


def refuse_custom(name, original, args, kwargs, tensors, cast):
    """Raise UnsupportedOperator: nothing is known of an operator compiled by a user, neither outputs nor gradients."""
    raise UnsupportedOperator(args[0], _half_name(tensors), "it is a custom operator; cast its inputs to float32")


def refuse_program(name, original, args, kwargs, tensors, cast):
    """Raise UnsupportedOperator for a program of paddle.jit.to_static, which calls its operators behind our back."""
    raise UnsupportedOperator(name, _half_name(tensors), "it is a static program; run the layer in dynamic mode")


def told_of(original):
    """Return the operator that runs a program, which is told once in a process of what it does not do."""

    @functools.wraps(original)
    def operator(*args, **kwargs):
        _tell_of_program()
        return original(*args, **kwargs)

    return operator


@functools.cache
def _tell_of_program():
    logger.warning("half_cpu: a program of paddle.jit.to_static is computed by Paddle alone, in the formats of its "
                   "inputs and weights: nothing is cast and no kernel is used")  # fmt: skip


# operator -> the function that makes of Paddle's what is called in its place
SERVED = {
    **dict.fromkeys(op_names.ALL_GRADIENTS, all_learning), op_names.EINSUM: result_alone, op_names.PROGRAM: told_of,
}  # fmt: skip


def _half_name(tensors):
    return next((HALF_NAMES[tensor.dtype] for tensor in tensors if tensor.dtype in HALF_NAMES), "half precision")
