"""Tensors inside nested lists, tuples, named tuples and dictionaries."""

import paddle

FLOATING = (paddle.float16, paddle.bfloat16, paddle.float32)


def cast_floating(value, dtype):
    """Return `value` with each float16, bfloat16 or float32 tensor in it cast to `dtype`; anything else stays.

    Containers keep their types; those that hold nothing to cast are returned as they are.
    """
    if isinstance(value, paddle.Tensor):
        return value.astype(dtype) if value.dtype in FLOATING and value.dtype != _DTYPES[dtype] else value
    if isinstance(value, dict):
        return _rebuilt(value, {key: cast_floating(item, dtype) for key, item in value.items()})
    if isinstance(value, (list, tuple)):
        return _rebuilt(value, [cast_floating(item, dtype) for item in value])
    return value


def floating_tensors(value):
    """Return all float16, bfloat16 and float32 tensors in `value`, in order."""
    if isinstance(value, paddle.Tensor):
        return [value] if value.dtype in FLOATING else []
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [tensor for item in items for tensor in floating_tensors(item)]


_DTYPES = {"float16": paddle.float16, "bfloat16": paddle.bfloat16, "float32": paddle.float32}


def _rebuilt(container, items):
    old = container.values() if isinstance(container, dict) else container
    new = items.values() if isinstance(items, dict) else items
    if all(before is after for before, after in zip(old, new, strict=True)):
        return container
    if isinstance(container, tuple) and hasattr(container, "_fields"):
        return type(container)(*items)
    if isinstance(container, dict) and type(container) is not dict:
        # A subclass such as OrderedDict or defaultdict has a constructor of its own; its copy does not.
        copy = container.copy()
        copy.update(items)
        return copy
    return type(container)(items)
