"""Real processes for tests: started together, ended together, and never left behind."""

import contextlib
import ctypes
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from image_classification.parallel.env import free_port

ROOT = Path(__file__).resolve().parents[2]
# For machines with much else to do. Limits that are promises of the project are not stretched.
PATIENCE = float(os.environ.get("TEST_PATIENCE", "1"))


class ProcessFailed(AssertionError):
    """A process ended badly or the whole took too long; the text has the end of each log."""


def clean_environment(**extra):
    """Return this process's environment without any launcher's variables."""
    prefixes = ("PADDLE_", "OMPI_", "SLURM_", "PMI", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "FLAGS_selected")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    return kept | threads | {"PYTHONPATH": str(ROOT), "GLOG_minloglevel": "2"} | extra


def own_group():
    """Make this new process the head of a group, to be killed as a whole, and let it die with the test process.

    Not a session: with autogrouping Linux gives each session a share of the processors of its own, however small.
    """
    os.setpgrp()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def linger(place):
    """Let ranks go one after the other, the last one first: those before it see that when their libraries have shut
    down. To be called before these are loaded: what was registered first runs last."""
    libc = ctypes.CDLL(None)
    libc.__cxa_atexit(libc.usleep, ctypes.c_void_p(300_000 * (place.world_size - 1 - place.rank)), None)


def torchrun_variables(rank, num_ranks, port):
    return {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": num_ranks, "LOCAL_WORLD_SIZE": num_ranks,
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}  # fmt: skip


def slurm_variables(rank, num_ranks, port):
    return {"SLURM_PROCID": rank, "SLURM_LOCALID": rank, "SLURM_NTASKS": num_ranks, "SLURM_STEP_NUM_TASKS": num_ranks,
            "SLURM_STEP_NODELIST": "vm[1]", "SLURM_JOB_ID": port, "SLURM_STEP_ID": 0, "SLURM_NODEID": 0,
            "SLURM_STEP_TASKS_PER_NODE": num_ranks}  # fmt: skip


def openmpi_variables(rank, num_ranks, port):
    return {"OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": num_ranks, "OMPI_COMM_WORLD_LOCAL_RANK": rank,
            "OMPI_COMM_WORLD_LOCAL_SIZE": num_ranks, "PMIX_NAMESPACE": f"job.{port}"}  # fmt: skip


def start_ranks(script, num_ranks, folder, *arguments, variables=torchrun_variables):
    """Start `script` once per rank with a launcher's variables; outputs go to folder/rank_<r>.log."""
    folder = Path(folder)
    port = free_port()
    processes = []
    for rank in range(num_ranks):
        launcher = {name: str(value) for name, value in variables(rank, num_ranks, port).items()}
        environment = clean_environment(**launcher)
        with open(folder / f"rank_{rank}.log", "w") as log:
            command = [sys.executable, str(script), str(folder), *map(str, arguments)]
            processes.append(subprocess.Popen(
                command, env=environment, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT,
                preexec_fn=own_group,
            ))  # fmt: skip
    return processes


def run_ranks(script, num_ranks, folder, *arguments, timeout=300, variables=torchrun_variables):
    """Run `script` on every rank and return what each wrote to folder/rank_<r>.json.

    Raises:
        ProcessFailed: a rank failed (the others are killed at once), or the time was up.
    """
    processes = start_ranks(script, num_ranks, folder, *arguments, variables=variables)
    deadline = time.monotonic() + timeout * PATIENCE
    try:
        while any(process.poll() is None for process in processes):
            if any(process.poll() for process in processes) or time.monotonic() > deadline:
                time.sleep(0.5)  # the others' own messages
                break
            time.sleep(0.05)
        if any(process.poll() != 0 for process in processes):
            raise ProcessFailed(_report(processes, folder))
    finally:
        kill_all(processes)
    return [json.loads((Path(folder) / f"rank_{rank}.json").read_text()) for rank in range(num_ranks)]


def kill_all(processes):
    """End every process and its children."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _report(processes, folder):
    """Return the end of each log, of those that failed last, and then how each ended: a long text loses its start."""
    codes = [process.poll() for process in processes]
    states = [f"rank {rank}: {'still running' if code is None else f'exit code {code}'}" for rank, code in
              enumerate(codes)]  # fmt: skip
    lines = []
    for rank in sorted(range(len(codes)), key=lambda rank: bool(codes[rank])):
        tail = (Path(folder) / f"rank_{rank}.log").read_text(errors="replace").splitlines()[-25:]
        lines += [f"--- {states[rank]}", *tail]
    return "\n".join([*lines, f"--- {', '.join(states)}"])


def once_per_session(tmp_path_factory, name, produce):
    """Return `produce(folder)`, computed by the first of pytest-xdist's workers that asks, for all of them."""
    base = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        base = base.parent
    folder = base / name
    with open(base / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = folder / "result.json"
        if not result.exists():
            folder.mkdir(exist_ok=True)
            try:
                answer = {"result": produce(folder)}
            except ProcessFailed as error:
                answer = {"error": str(error)}
            result.write_text(json.dumps(answer))
    answer = json.loads(result.read_text())
    if "error" in answer:
        raise ProcessFailed(answer["error"])
    return answer["result"]
