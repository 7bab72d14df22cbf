"""A process that stalls or dies, at any moment and under any launcher: all end in time, and all name it."""

import os
import re
import signal
import time
from pathlib import Path

import pytest

from .harness import PATIENCE, free_port
from .program import SMALL, Program, command, is_alive

LIMIT = 10 * PATIENCE
MARGIN = 10 * PATIENCE
STALLING = ("-num_epochs=2", *SMALL, "SAVE_STEPS=none", f"PARALLEL.TIMEOUT={LIMIT:g}", "DATA.WORKER_TIMEOUT=5",
            "TRAIN.HOOKS=[tests.parallel.moments:Stall]")  # fmt: skip
MOMENTS = ("import", "groups", "step", "evaluation", "checkpoint")
LAUNCHERS = ("ngpus", "paddle", "hand")
SIGNALS = (signal.SIGSTOP, signal.SIGKILL)


class Run:
    """Two processes, started in one of three ways."""

    def __init__(self, launcher, folder, arguments, **variables):
        self.launcher = launcher
        self.folder = Path(folder)
        words = (*arguments, f"-output={folder / 'run'}")
        if launcher == "ngpus":
            commands = [command("-ngpus=2", *words)]
        elif launcher == "paddle":
            logs = ("-m", "paddle.distributed.launch", "--nproc_per_node", "2", "--log_dir", str(folder / "logs"))
            commands = [command(*words, launcher=logs)]
        else:
            port = free_port()
            commands = [command(*words, f"-rank={rank}", "-world_size=2", f"-port={port}") for rank in range(2)]
        variables.setdefault("TMPDIR", str(folder))
        self.programs = [Program(each, folder / f"program_{number}.log", **variables)
                         for number, each in enumerate(commands)]  # fmt: skip

    def ranks(self):
        """Return the process ids of the two ranks once they are there."""
        if self.launcher == "hand":
            return [program.process.pid for program in self.programs]
        deadline = time.monotonic() + 60 * PATIENCE
        while True:
            found = {rank_of(pid): pid for pid in reversed(self.programs[0].workers())}  # not a rank's own children
            if {0, 1} <= found.keys():
                return [found[0], found[1]]
            assert time.monotonic() < deadline, self.text()
            time.sleep(0.02)

    def text(self):
        logs = sorted(self.folder.glob("logs/workerlog.*"))
        return "\n".join([*(program.text() for program in self.programs), *(log.read_text() for log in logs)])

    def wait(self, seconds):
        """Return the exit codes of what was started."""
        deadline = time.monotonic() + seconds
        while any(program.process.poll() is None for program in self.programs):
            assert time.monotonic() < deadline, f"still running after {seconds:.0f} s\n{self.text()}"
            time.sleep(0.1)
        return [program.process.returncode for program in self.programs]

    def kill(self):
        for program in self.programs:
            program.kill()


def rank_of(pid):
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    return next((int(each.split(b"=")[1]) for each in variables if each.startswith(b"PADDLE_TRAINER_ID=")), None)


@pytest.fixture
def start(tmp_path):
    runs = []

    def start_run(launcher, arguments=STALLING, **variables):
        folder = tmp_path / str(len(runs))
        folder.mkdir()
        runs.append(Run(launcher, folder, arguments, **variables))
        return runs[-1]

    yield start_run
    for run in runs:
        run.kill()


def wait_until(condition, what, seconds=90):
    deadline = time.monotonic() + seconds * PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.01)


def strike(run, moment, victim, number):
    """Stop or kill the process `victim` while Paddle is imported, or as soon as that is done."""
    pid = run.ranks()[victim]
    maps = Path(f"/proc/{pid}/maps")
    wait_until(lambda: not maps.exists() or "libpaddle" in maps.read_text(), run.text)
    if moment == "groups":
        wait_until(lambda: "ProcessGroup" in run.text() or "data: digits train" in run.text(), run.text)
    os.kill(pid, number)


def is_stopped(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "TtZX"
    except FileNotFoundError:
        return True


def allowed_codes(launcher, victim, number):
    """Return the documented exit codes, of each started process."""
    killed = 128 + signal.SIGKILL
    if launcher == "ngpus":
        return [{killed if number == signal.SIGKILL else 4}]
    if launcher == "hand":
        return [{-signal.SIGKILL} if rank == victim else {4} for rank in range(2)]
    # Paddle's launcher returns that of the lowest rank that failed, as the system sees it: 241 and 247 are SIGTERM
    # and SIGKILL, which it sends to whoever is left
    return [{4, 241, 247}]


CASES = [(launcher, moment, victim, number) for launcher in LAUNCHERS for moment in MOMENTS for victim in range(2)
         for number in SIGNALS]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("launcher", "moment", "victim", "number"), CASES,
                         ids=lambda each: str(getattr(each, "name", each)))  # fmt: skip
def test_process_that_stalls_or_dies_is_named_and_all_end_in_time(start, launcher, moment, victim, number):
    run = start(launcher, STALL=f"{victim}:{moment}:{int(number)}")
    ranks = run.ranks()
    if moment in ("import", "groups"):
        strike(run, moment, victim, number)
    else:
        wait_until(lambda: is_stopped(ranks[victim]), run.text)
    codes = run.wait(LIMIT + MARGIN)
    for code, allowed in zip(codes, allowed_codes(launcher, victim, number), strict=True):
        assert code in allowed, run.text()
    text = run.text()
    named = re.findall(r"^(?:\[rank \d\] )?error: (rank \d)", text, re.MULTILINE)
    if launcher == "paddle" and not named:  # it ended the others before they could speak, and says who was first
        named = re.findall(r"^Container (rank \d) status failed", text, re.MULTILINE)
    assert set(named) == {f"rank {victim}"}, text
    assert not re.search("^Traceback", text, re.MULTILINE), text  # Paddle's own, of C++, is what a SIGTERM leaves
    assert not any(is_alive(pid) for pid in ranks)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["ngpus", "paddle"])
def test_workers_end_and_nothing_stays_when_the_process_that_started_them_is_killed(start, launcher):
    run = start(launcher, (*SMALL, "-num_epochs=300"))
    ranks = run.ranks()
    wait_until(lambda: "Step[0010/" in run.text(), run.text)
    run.programs[0].process.kill()
    run.wait(10)
    wait_until(lambda: not any(is_alive(pid) for pid in ranks), run.text, 30)
    assert "stopped by a signal" in run.text()
    assert (run.folder / "run" / "step.pdparams").exists()
    assert [path.name for path in run.folder.iterdir() if path.name.startswith(("zoo_", "tmp"))] == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_run_with_a_stalled_process_ends_when_it_is_asked_to(start, number):
    run = start("ngpus", (*STALLING, "PARALLEL.TIMEOUT=1000"), STALL=f"1:step:{int(signal.SIGSTOP)}")
    ranks = run.ranks()
    wait_until(lambda: is_stopped(ranks[1]), run.text)
    run.programs[0].process.send_signal(number)
    assert run.wait(10 + MARGIN) == [4]
    assert "error: rank 1 (process" in run.text() and "does not answer" in run.text()


@pytest.mark.slow
def test_interrupt_at_any_moment_of_the_start_is_one_line(start):
    for number in range(12):
        run = start("ngpus", (*SMALL, "-num_epochs=300"))
        run.ranks()
        time.sleep(0.35 * number * PATIENCE)
        run.programs[0].process.send_signal(signal.SIGINT)
        (code,) = run.wait(60 * PATIENCE)
        text = run.text()
        assert code == (0 if "stopped by" in text else 130), text
        assert not re.search("^Traceback", text, re.MULTILINE), text
