"""Run pytest where every tensor lies at the edge of forbidden memory: python -m tests.edges [arguments of pytest].

A kernel that reads or writes beyond a tensor, which elsewhere changes or finds what happens to lie there, then ends its
test by a signal. Each test runs in a forked process, once with tensors that end and once with tensors that begin at an
edge. Up to 63 bytes behind an end are not forbidden: tensors begin at whole cache lines.
"""

import os
import subprocess
import sys

from .build import build, missing

DEFAULT = ["-q", "-m", "not slow", "tests/half_cpu"]


def main(arguments):
    reason = missing()
    if reason:
        print(f"tests at the edges of memory are skipped: {reason}")
        return 0
    command = [sys.executable, "-m", "pytest", "-p", "tests.edges.plugin", "-p", "no:xdist", *(arguments or DEFAULT)]
    # Paddle's own allocator cuts tensors from large pieces; the system's gives each a block.
    environment = {"LD_PRELOAD": str(build()), "FLAGS_use_system_allocator": "1", "OMP_NUM_THREADS": "1"}
    codes = []
    for edge in ("after", "before"):
        print(f"forbidden memory {edge} each tensor", flush=True)
        codes.append(subprocess.run(command, env={**os.environ, **environment, "EDGES": edge}, check=False).returncode)
    return max(codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
