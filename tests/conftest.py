"""Shared set-up of all tests: the repository root is importable, each worker uses one thread."""

import os
import sys
from pathlib import Path

# Two pytest workers on two cores: one thread each is faster than four threads on two cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("GLOG_minloglevel", "2")

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
