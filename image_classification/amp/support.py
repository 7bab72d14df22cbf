"""Which mode works with which kind of parallel run, as data; asked before any work starts."""

from .options import MODES, check_mode

HALF_LEVELS = ("O1", "O2", "O3")
WHERE = {
    "data": "data parallel",
    "tensor": "tensor parallel",
    "pipeline": "pipeline parallel",
    "sharding": "ZeRO sharding",
    "accumulation": "gradient accumulation",
}
# Feature -> modes without it, why, and what to take instead. O0 is plain float32 and refuses nothing.
REFUSED = {
    "tensor": (HALF_LEVELS, "Apex's levels are defined for whole parameters on one process", "auto or naive"),
    "pipeline": (("auto", *HALF_LEVELS), "only naive sends half activations between stages", "naive"),
    "sharding": ((*HALF_LEVELS, "naive"), "masters and their shards would be kept twice", "auto"),
}
FLOAT32_ONLY = ("fp32", "O0")


def supported(mode, feature):
    """Return whether a mode works with "data", "tensor", "pipeline", "sharding", "accumulation" or "bfloat16"."""
    if feature == "bfloat16":
        return mode not in FLOAT32_ONLY
    return mode not in REFUSED.get(feature, ((),))[0]


def check_supported(mode, dtype=None, **degrees):
    """Check a mode against the degrees of a run: data, tensor, pipeline, sharding, accumulation, each 1 when absent.

    Raises:
        ValueError: the first thing that the mode does not work with, why, and the mode that does.
        TypeError: an unknown kind of degree.
    """
    check_mode(mode)
    unknown = sorted(set(degrees) - set(WHERE))
    if unknown:
        raise TypeError(f"unknown kind of parallelism {unknown[0]!r}; kinds are {', '.join(WHERE)}")
    if dtype in ("float16", "bfloat16") and mode in FLOAT32_ONLY:
        raise ValueError(f"precision mode {mode} is float32: dtype {dtype} needs another mode, such as auto")
    for feature, degree in degrees.items():
        if degree > 1 and not supported(mode, feature):
            _, why, instead = REFUSED[feature]
            raise ValueError(f"precision mode {mode} does not work with {WHERE[feature]}: {why}; use {instead} instead")


def support_table():
    """Return the matrix as a Markdown table."""
    features = (*WHERE, "bfloat16")
    rows = [["mode", *(WHERE.get(feature, feature) for feature in features)], ["---"] * (len(features) + 1)]
    for mode in MODES:
        rows.append([mode, *("yes" if supported(mode, feature) else "no" for feature in features)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
