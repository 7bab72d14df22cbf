"""What Paddle's kernel registry says a device can compute: names and formats, read before any work starts."""

import re
from typing import Any

FORMATS = {"float": "float32", "double": "float64", "float16": "float16", "bfloat16": "bfloat16"}


def kernel_registry() -> dict[str, list[tuple[str, str]]]:
    """Return {kernel: [(kind of device, format)]} of this Paddle, floating formats only; "any" fits every device.

    A registry lists the kernels of its build: paddlepaddle-gpu shows those of a GPU on machines without one.
    """
    import paddle.base

    core: Any = paddle.base.core
    # Paddle lists some kernels under the operator's name of Paddle 1: add as elementwise_add.
    keys = core._get_all_register_op_kernels("phi").items()
    return {core._get_phi_kernel_name(name): _formats(found) for name, found in keys}


def _formats(keys: list[str]) -> list[tuple[str, str]]:
    found = set()
    for key in keys:
        match = re.search(r"data_type\[(?:.*::)?(\w+).*?\].*place\[Place\((\w*)", key)
        if match and match[1] in FORMATS:
            found.add((match[2] or "any", FORMATS[match[1]]))
    return sorted(found)


def has_kernel(name: str, kind: str, dtype: str) -> bool:
    """Return whether a kind of device computes an operator in a format itself, "float16" for example."""
    return bool({(kind, dtype), ("any", dtype)} & set(kernel_registry().get(name, [])))
