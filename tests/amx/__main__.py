"""Run pytest with kernels that compute by AMX in software: python -m tests.amx [--edges] [arguments of pytest].

That checks what the kernels compute, which memory they touch and how they configure tiles, by the instructions of
Intel's manual (tiles.h). It says nothing of speed, and what oneDNN would compute by AMX it computes otherwise here.
With --edges memory beyond every tensor is forbidden, too (tests/edges).
"""

import os
import subprocess
import sys

from .build import CACHE, COMPILER, missing

# Files whose tests reach AMX; all others of half_cpu pass, too.
REACHING = """
compiled compiled_attention compiled_long_products compiled_split compiled_tiled_convolution compiled_tiles
compiled_window_gradients compiled_winograd arena conv_norm frozen graphs onednn onednn_convolution_passes onednn_matmul
onednn_memory onednn_tiles first_calls pieces replay saved training_replay
"""
FILES = [f"tests/half_cpu/test_{name}.py" for name in REACHING.split()]
# The compiler is told of AMX here, whatever the processor.
DEFAULT = ["-q", "-m", "not slow", "-k", "not kind_of_processor", "tests/amx/checks.py", *FILES]


def main(arguments):
    reason = missing()
    if reason:
        print(f"tests of AMX in software are skipped: {reason}")
        return 0
    edges = "--edges" in arguments
    given = [word for word in arguments if word != "--edges"] or DEFAULT
    run = ["tests.edges"] if edges else ["pytest", "-n", "2", "--dist", "loadgroup"]
    # Two threads in each process: one that others have configured tiles in, one that nobody has.
    environment = {"CXX": str(COMPILER), "XDG_CACHE_HOME": str(CACHE), "OMP_NUM_THREADS": "2"}
    command = [sys.executable, "-m", *run, "-p", "tests.amx.plugin", *given]
    return subprocess.run(command, env={**os.environ, **environment}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
