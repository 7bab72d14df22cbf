"""Which precision runs under which kind of parallelism, asked before any work is done."""

from image_classification.amp import MODES, supported
from image_classification.runtime import UserError

# The matrix of ColossalAI's documentation, which its code did not enforce, in the words of the PARALLEL section.
SUPPORT = {
    kind: frozenset(mode for mode in MODES if supported(mode, kind.lower()))
    for kind in ("DATA", "TENSOR", "PIPELINE", "SHARDING")
}


def check_supported(mode, degrees):
    """Check a precision mode against the degrees by name, upper case as in the PARALLEL section.

    Raises:
        UserError: the first kind of parallelism that the mode does not run under, and the modes that do.
    """
    for kind, modes in SUPPORT.items():
        if degrees[kind] > 1 and mode not in modes:
            allowed = ", ".join(name for name in MODES if name in modes)
            raise UserError(f"PARALLEL.{kind}: {degrees[kind]}: not with AMP.MODE {mode}; it works with {allowed}")
    if degrees["SHARDING"] > 1 and degrees["PIPELINE"] * degrees["TENSOR"] > 1:
        raise UserError("PARALLEL.SHARDING: not together with TENSOR or PIPELINE")


def support_table():
    """Return the matrix as a Markdown table."""
    lines = ["| AMP.MODE | " + " | ".join(SUPPORT) + " |", "| --- |" + " --- |" * len(SUPPORT)]
    for mode in MODES:
        lines.append(f"| {mode} | " + " | ".join("yes" if mode in modes else "no" for modes in SUPPORT.values()) + " |")
    return "\n".join(lines)
