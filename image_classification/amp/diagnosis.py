"""From what was observed to advice: which layers leave a half format's range, and which options help."""

import math
from dataclasses import dataclass, field

from .observer import ACTIVATION, FORMATS, GRADIENT, INPUT, INPUT_GRADIENT, PARAMETER, Record

MUCH = 0.5  # of the non-zero gradients of a layer: from here on it learns something else than in float32


@dataclass
class Diagnosis:
    """What a half format would do to a model, from a float32 run.

    overflow: layers whose activations the format cannot hold, in the order of execution.
    underflow: layers of whose gradients more than half would become 0 at the loss scale.
    loss_scale: a static scale under which less is flushed and no gradient overflows, None when the present one will do.
    keep_float32: layers that are to stay float32, under `loss_scale` where one is given.
    """

    dtype: str
    scale: float
    overflow: list = field(default_factory=list)
    underflow: list = field(default_factory=list)
    loss_scale: float | None = None
    keep_float32: list = field(default_factory=list)


def total(steps):
    """Return {(name, kind): Record} over all steps."""
    merged: dict[tuple[str, str], Record] = {}
    for records in steps:
        for record in records:
            key = record.name, record.kind
            merged[key] = merged[key].merged(record) if key in merged else record
    return merged


def diagnose(steps, order, dtype, scale, dynamic):
    """Return the Diagnosis of a float32 run.

    Args:
        steps: the records of each step, gradients unscaled.
        order: the layers in the order of execution.
        dtype: "float16" or "bfloat16".
        scale: the loss scale of the half run.
        dynamic: whether that scale finds its place by itself.
    """
    merged = total(steps)
    half = FORMATS[dtype]
    found = Diagnosis(dtype, scale)
    inner = {name.rsplit(".", count)[0] for name in order for count in range(1, name.count(".") + 1)}
    found.overflow = [name for name in order if _overflows(merged, name, ACTIVATION, half)]
    found.underflow = [name for name in order if _flush(merged, name, half, scale) > MUCH]
    # A block is named only for what no layer inside it explains.
    found.overflow = [n for n in found.overflow if n not in inner or not _explained(n, found.overflow)]
    found.underflow = [n for n in found.underflow if n not in inner or not _explained(n, found.underflow)]
    gradients = (GRADIENT, INPUT_GRADIENT, PARAMETER)
    largest = max((record.largest for (_, kind), record in merged.items() if kind in gradients), default=0.0)
    remaining = scale
    if largest:
        best = 2.0 ** math.floor(math.log2(half.overflow / largest) - 1)  # one bit of room
        if largest * scale >= half.overflow and not dynamic:
            remaining = found.loss_scale = best
        elif found.underflow:
            remaining = max(scale, min(best, 2.0**24))
            if remaining > scale and not dynamic:
                found.loss_scale = remaining
    keep = {name for name in order if name not in inner and _overflows(merged, name, INPUT, half)}
    keep |= {name for name in found.underflow if _flush(merged, name, half, remaining) > MUCH}
    found.keep_float32 = [name for name in order if name in keep or name in found.overflow]
    return found


def _overflows(merged, name, kind, half):
    return (name, kind) in merged and merged[name, kind].overflow_share(half) > 0


def _flush(merged, name, half, scale):
    """Return the largest share of a layer's gradients, those of its own parameters included, that would become 0."""
    kinds = [merged[name, kind] for kind in (GRADIENT, INPUT_GRADIENT) if (name, kind) in merged]
    own = [r for (param, kind), r in merged.items() if kind == PARAMETER and param.rsplit(".", 1)[0] == name]
    return max((record.flush_share(half, scale) for record in kinds + own), default=0.0)


def _explained(name, layers):
    return any(layer.startswith(f"{name}.") for layer in layers)
