"""A compiled `shim.c` and a server that runs whole trainings under it."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.parallel.harness import ROOT, own_group

from .contents import left_behind, scalars

FOLDER = ROOT / "tests" / "faults"
# 3 epochs of 4 steps: every kind of write, and a best epoch that is not the last one
TRAINING = ("-cfg=./configs/vit_tiny_digits.yaml", "-deterministic", "-num_epochs=3", "-batch_size=4", "-opts",
            "DATA.DATASET=synthetic", "DATA.SYNTHETIC_IMAGES=16", "DATA.BATCH_SIZE_EVAL=16", "DATA.NUM_WORKERS=0",
            "MODEL.DEPTH=1", "MODEL.EMBED_DIM=32", "MODEL.NUM_HEADS=2", "MODEL.DROPOUT=0.1", "TRAIN.WARMUP_EPOCHS=0",
            "VALIDATE_FREQ=1", "REPORT_FREQ=2", "SAVE_STEPS=2", "KEEP=1")  # fmt: skip


class Server:
    """Trainings in children of one process; `run` returns exit code, calls, printed text and log of the calls."""

    def __init__(self, shim):
        environment = os.environ | {"LD_PRELOAD": str(shim), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            [sys.executable, str(FOLDER / "server.py")], env=environment, cwd=ROOT, text=True, preexec_fn=own_group,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def run(self, folder, *arguments, fault=None, log=False, **more):
        argv = [f"-output={folder}", *TRAINING, *arguments]
        request = {"argv": argv, "folder": str(folder), "fault": fault, "log": log} | more
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def resume(self, folder, *arguments, **options):
        """Run on from the last checkpoint, or from the beginning where there is none, as a user's script would."""
        latest = [f"MODEL.RESUME={folder}/latest"] if (folder / "latest.pdparams").exists() else []
        return self.run(folder, *arguments, *latest, **options)


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs Linux and a C compiler")
    shim = tmp_path_factory.mktemp("shim") / "shim.so"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", shim, FOLDER / "shim.c", "-ldl"], check=True)
    running = Server(shim)
    yield running
    running.process.stdin.close()
    running.process.wait()


@pytest.fixture(scope="session")
def undisturbed(server, tmp_path_factory):
    """What an undisturbed training leaves, and its system calls."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    answer = server.run(folder, log=True)
    assert answer["code"] == 0, answer["text"]
    return left_behind(folder), scalars(folder), [line.split(" ", 2) for line in answer["log"]]


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the marks
def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.parent == FOLDER:
            item.add_marker(pytest.mark.xdist_group("faults"))
