"""Operators that write into their inputs: computed on float32 temporaries, written back rounded once."""

import paddle

from . import paddle_names
from .arguments import FLOAT32, HALF_NAMES, KINDS, SEQUENCE, TENSOR, scan
from .reference import UnsupportedOperator, Widening, call, compute_norm
from .scope import noted

# Optimizer operators: (position of the master parameter, position of the flag multi_precision that says there is one).
_MASTERS = {
    "sgd_": (3, 4),
    "momentum_": (4, 9),
    "merged_momentum_": (4, 9),
    "adam_": (8, 15),
    "adamw_": (8, 18),
    "merged_adam_": (8, 12),
    "lamb_": (7, 14),
    "rmsprop_": (6, 11),
    "adagrad_": (4, 6),
    "adadelta_": (5, 8),
    "adamax_": (6, 10),
    "nadam_": (8, 13),
    "radam_": (8, 12),
}


def compute_inplace(name, original, args, kwargs, tensors, cast):
    """Return the operator's result; its half inputs that it writes hold the float32 result rounded to their dtype.

    With a master parameter the master is updated in float32 and the half parameter becomes the rounded master.

    Raises:
        ValueError: the written tensor is a leaf that requires a gradient.
        UnsupportedOperator: it cannot be seen which inputs the operator wrote.
    """
    args = list(args)
    parameters = None
    master, flag = _MASTERS.get(name, (None, None))
    if master is not None and args[master] is not None:
        parameters, args[0] = args[0], args[master]
        args[master], args[flag] = None, False
    widening = Widening(cast)
    wide_args, wide_kwargs = widening.arguments(args, kwargs)
    dtype = widening.pairs[0][1].dtype if widening.pairs else None
    result = call(name, original, wide_args, wide_kwargs, dtype)
    half_of = {id(temporary): half for temporary, half in widening.pairs}
    known = {id(tensor) for tensor in _flat(wide_args) + _flat(list(wide_kwargs.values()))}
    if not any(id(tensor) in known for tensor in _flat([result])):
        dtype_name = HALF_NAMES.get(dtype, "half precision")
        raise UnsupportedOperator(name, dtype_name, "Paddle does not return the tensor that it wrote")
    result = _write_back(result, half_of, cast)
    if parameters is not None:
        for half, wide in zip(_flat([parameters]), _flat([args[0]]), strict=True):
            write(half, wide, cast)
    return result


def compute_into(call, out=None, **kwargs):
    """Return `call(kwargs)`, or the tensors `out`, which take its results, shapes and formats, as Paddle's do."""
    result = call(kwargs)
    if out is None:
        return result
    for place, value in zip(_flat([out]), _flat([result]), strict=True):
        noted(paddle_names.assign_out_, value, place, writes=True)
    return out


def compute_batch_norm(name, original, args, kwargs, tensors, cast):
    """Return batch normalisation's results; running statistics are updated and keep their own dtype.

    Half running statistics are updated in float32 and rounded once per step; where they are given they are not written.
    """
    # use_global_stats, is_test, trainable_statistics, as Paddle's layers give them
    are_given = len(args) > 10 and (args[9] or args[5] and not args[10])
    # They have no gradients, also where somebody asked for those of all parameters, among which they are.
    learning = [id(one) for one in tensors[1:3] if not one.stop_gradient]
    args = [one.detach() if id(one) in learning else one for one in args]
    _, mean, variance, *_ = scan(args, kwargs)[0]
    widening = Widening(cast)
    wide_args, wide_kwargs = widening.arguments(args, kwargs)
    result = list(compute_norm(name, original, wide_args, wide_kwargs, tensors, cast))
    for temporary, half in widening.pairs:
        if half is mean or half is variance:
            if not are_given:
                write(half, temporary, cast)
            result[1 if half is mean else 2] = half
    return tuple(result)


def compute_set_item(name, original, args, kwargs, tensors, cast):
    """Assign into part of a tensor; the value is rounded to the tensor's dtype, as any assignment does.

    Paddle's kernel does that exactly. Only the gradient of a value may be a sum, where the value was broadcast.
    """
    target, index, value = args
    if KINDS[type(value)] != TENSOR or value.stop_gradient or target.dtype not in HALF_NAMES:
        return original(target, index, value)
    wide = cast(target, FLOAT32)
    call(name, original, (wide, index, cast(value, FLOAT32)), kwargs, target.dtype)
    return write(target, wide, cast)


def write(target, value, cast):
    """Write float32 `value` into half `target`, rounded; autograd continues at `value`, as with Paddle's own operators.

    Raises:
        ValueError: `target` is a leaf that requires a gradient.
    """
    if paddle.is_grad_enabled() and target.is_leaf and not target.stop_gradient:
        raise ValueError(f"{target.name} is a leaf that requires a gradient: it cannot be written in place")
    cast(value, target.dtype, target)


def _write_back(value, half_of, cast):
    kind = KINDS[type(value)]
    if kind == TENSOR and id(value) in half_of:
        target = half_of[id(value)]
        write(target, value, cast)
        return target
    if kind == SEQUENCE:
        return type(value)([_write_back(item, half_of, cast) for item in value])
    return value


def _flat(values):
    tensors = []
    for value in values:
        kind = KINDS[type(value)]
        if kind == TENSOR:
            tensors.append(value)
        elif kind == SEQUENCE:
            tensors.extend(_flat(value))
    return tensors
