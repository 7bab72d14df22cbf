"""Compile the allocator of these tests."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).with_name("edges.c")
CACHE = Path(__file__).resolve().parents[2] / ".cache"


def missing():
    """Return why the allocator cannot be built or used here, None when it can."""
    if sys.platform != "linux" or os.confstr("CS_GNU_LIBC_VERSION") is None:
        return "they need Linux and glibc, whose allocator is replaced"
    import resource  # Linux has it

    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        return "they need addresses without a limit (ulimit -v unlimited), or nothing would be forbidden"
    return None if shutil.which("gcc") else "they need gcc (Debian: apt-get install gcc)"


def build():
    """Return the library to preload; compiled when its source changed."""
    path = CACHE / f"edges-{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]}.so"
    if not path.exists():
        CACHE.mkdir(exist_ok=True)
        own = path.with_suffix(f".{os.getpid()}")
        subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-Wall", "-o", own, SOURCE], check=True)
        own.rename(path)
    return path
