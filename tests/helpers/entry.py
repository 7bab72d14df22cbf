"""Start an entry point as a user would: a process of its own, from the model's folder."""

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

from image_classification.launch import run_guarded

PACKAGE = Path(__file__).resolve().parents[2] / "image_classification"

# the digits ViT cut down to two seconds: what is tested here is the program, not the accuracy
SMALL_VIT = [
    "-cfg=./configs/vit_tiny_digits.yaml",
    "-batch_size=128",
    "-opts",
    "MODEL.DEPTH=1",
    "MODEL.EMBED_DIM=32",
    "MODEL.NUM_HEADS=2",
    "VALIDATE_FREQ=1",
    "SAVE_FREQ=1",
    "REPORT_FREQ=5",
]


def start(*argv, model="ViT", script="main_single_gpu.py", **options):
    """Return the running process; standard output and error are pipes of text."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **options.pop("env", {})}
    return subprocess.Popen(
        [sys.executable, script, *map(str, argv)],
        cwd=PACKAGE / model,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def run(*argv, timeout=120, **options):
    """Return (exit code, standard output, standard error)."""
    process = start(*argv, **options)
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, out, err


def run_here(*argv):
    """Return the same of a run of ViT in this process, behind the import of Paddle and of all that takes longest."""
    from image_classification.ViT.vit import build_model

    folder = Path.cwd()
    os.chdir(PACKAGE / "ViT")
    try:
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
            code = run_guarded(build_model, [*map(str, argv)])
    finally:
        os.chdir(folder)
    return code, out.getvalue(), err.getvalue()


def run_well(*argv, run=run, **options):
    """Return standard output of a run that must succeed, and says nothing else."""
    code, out, err = run(*argv, **options)
    assert (code, err) == (0, ""), f"exit code {code}\n{out}\n{err}"
    return out


def report_of(folder):
    return json.loads((Path(folder) / "report.json").read_text())
