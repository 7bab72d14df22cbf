"""Build the test device and run pytest on it: python -m tests.device [arguments of pytest].

Exit code 0 and one line where it cannot be built; otherwise pytest's. `-m` and paths default to everything that runs on
a device in seconds.
"""

import os
import sys

from .build import build, missing

DEFAULT = ["-q", "-n", "2", "--dist", "loadgroup", "-m", "(device or gpu) and not slow", "tests/device", "tests/house"]


def main(arguments):
    reason = missing()
    if reason:
        print(f"tests of the test device are skipped: {reason}")
        return
    environment = {"CUSTOM_DEVICE_ROOT": str(build()), "CONTRACT_DEVICE": "npu", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", *(arguments or DEFAULT)]
    os.execve(sys.executable, command, {"GLOG_minloglevel": "2", **os.environ, **environment})


main(sys.argv[1:])
