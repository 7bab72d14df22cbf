"""What an operator call consists of: which arguments are tensors, which name a dtype, and how to replace them."""

import paddle

from . import paddle_names

FLOAT16, BFLOAT16, FLOAT32, FLOAT64 = paddle.float16, paddle.bfloat16, paddle.float32, paddle.float64
# Paddle hands out one object per dtype, so `is` decides; its `==` costs five times as much.
DTYPES = {"float16": FLOAT16, "bfloat16": BFLOAT16, "float32": FLOAT32}
HALF_NAMES: dict[object, str] = {FLOAT16: "float16", BFLOAT16: "bfloat16"}
CPU = paddle.CPUPlace()
FLOATING = frozenset((FLOAT16, BFLOAT16, FLOAT32, FLOAT64))

PLAIN, TENSOR, SEQUENCE, DTYPE = 0, 1, 2, 3


class _Kinds(dict):
    """Kind of an argument by its type; a type is classified once."""

    def __missing__(self, type_):
        if issubclass(type_, paddle_names.Tensor):
            kind = TENSOR
        elif issubclass(type_, (list, tuple)):
            kind = SEQUENCE
        elif issubclass(type_, (str, paddle_names.DataType, paddle_names.VarType)):
            kind = DTYPE
        else:
            kind = PLAIN
        self[type_] = kind
        return kind


KINDS = _Kinds()


def scan(args, kwargs):
    """Return (all tensors in the order of the call, whether any of them, or a dtype argument, is half)."""
    tensors = []
    half = False
    for value in (*args, *kwargs.values()) if kwargs else args:
        kind = KINDS[type(value)]
        if kind == PLAIN:
            continue
        if kind == TENSOR:
            tensors.append(value)
            dtype = value.dtype
            if dtype is FLOAT16 or dtype is BFLOAT16:
                half = True
        elif kind == SEQUENCE:
            for item in value:
                if KINDS[type(item)] == TENSOR:
                    tensors.append(item)
                    dtype = item.dtype
                    if dtype is FLOAT16 or dtype is BFLOAT16:
                        half = True
        elif paddle_names.names_half(value) is not None:
            half = True
    return tensors, half


def entries(index):
    """Return the entries of what stands between the brackets behind a tensor."""
    return index if isinstance(index, tuple) else (index,)


def is_whole(index, shape):
    """Return whether an index names all of a tensor of a shape, in its order."""
    parts = entries(index)
    if not all(entry is Ellipsis or isinstance(entry, slice) for entry in parts):
        return False
    behind = len(parts) - parts.index(Ellipsis) - 1 if Ellipsis in parts else 0
    sizes = [*shape[: len(parts) - behind], *shape[len(shape) - behind :]]
    return all(entry is Ellipsis or _is_all(entry, size) for entry, size in zip(parts, sizes, strict=False))


def _is_all(part, size):
    try:
        return part.indices(size) == (0, size, 1)
    except TypeError:  # an end is a tensor
        return False


def is_basic(index):
    """Return whether an index has no lists, arrays or masks in it."""
    return all(entry is None or entry is Ellipsis or isinstance(entry, (int, slice)) for entry in entries(index))


def replace_tensors(args, kwargs, replace):
    """Return (args, kwargs) with `replace(tensor)` in place of every tensor, also inside lists and tuples."""

    def visit(value):
        kind = KINDS[type(value)]
        if kind == TENSOR:
            return replace(value)
        if kind == SEQUENCE and any(KINDS[type(item)] == TENSOR for item in value):
            items = [visit(item) for item in value]
            return items if isinstance(value, list) else tuple(items)  # an index is one or the other
        return value

    return [visit(value) for value in args], {key: visit(value) for key, value in kwargs.items()}


def replace_first_tensor(args, kwargs, replace):
    """Return (args, kwargs) with `replace(tensor)` in place of the first argument that is a tensor."""
    for index, value in enumerate(args):
        if KINDS[type(value)] == TENSOR:
            return [*args[:index], replace(value), *args[index + 1 :]], kwargs
    for key, value in kwargs.items():
        if KINDS[type(value)] == TENSOR:
            return args, {**kwargs, key: replace(value)}
    return args, kwargs
