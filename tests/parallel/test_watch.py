"""Processes that watch each other, without Paddle: who is named, with which code all end, and that all do."""

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from image_classification.config import build_config
from image_classification.parallel import _limit
from image_classification.parallel.hub import named
from image_classification.runtime import UserError

from .harness import PATIENCE, ROOT, clean_environment, free_port, own_group

PROGRAM = Path(__file__).parent / "watcher.py"
LIMIT = 3
SLOW = pytest.mark.slow
BOTH = [pytest.param(0, marks=SLOW), 1]
ALL = [pytest.param("gate", 0, marks=SLOW), pytest.param("gate", 1, marks=SLOW), ("wait", 0),
       pytest.param("wait", 1, marks=SLOW)]  # fmt: skip


class Group:
    """Started watchers; `finish` returns each one's (exit code, output)."""

    def __init__(self, *scripts, port=None, size=None, limit=LIMIT, start=40):
        self.port = port or free_port()
        self.size = size or len(scripts)
        self.environment = clean_environment(START=str(start))
        self.processes = [self.start(rank, script, limit) for rank, script in enumerate(scripts) if script is not None]

    def start(self, rank, script, limit=LIMIT):
        words = [sys.executable, str(PROGRAM), str(rank), str(self.size), str(self.port), str(limit), *script.split()]
        return subprocess.Popen(words, env=self.environment, cwd=ROOT, stdout=subprocess.PIPE, text=True,
                                stderr=subprocess.STDOUT, preexec_fn=own_group)  # fmt: skip

    def finish(self, seconds=LIMIT + 10):
        deadline = time.monotonic() + seconds * PATIENCE
        try:
            outputs = [each.communicate(timeout=max(0.1, deadline - time.monotonic()))[0] for each in self.processes]
        finally:
            for each in self.processes:
                each.kill()
        return [(each.returncode, output.strip()) for each, output in zip(self.processes, outputs, strict=True)]


def test_processes_that_come_to_the_same_gates_go_on_together():
    assert Group("gate sleep:0.3 gate", "sleep:0.3 gate gate", "gate gate").finish() == [(0, "done")] * 3


def test_gate_lets_all_through_before_rank_0_can_stop_the_hub():
    """Paddle keeps rank 0's interpreter, and with it the hub, until all processes have reached its store."""
    scripts = [f"gate hold:{LIMIT + 1}", *["sleep:0.5 gate"] * 3]  # rank 0 is the first to come
    _, *others = Group(*scripts).finish()  # who would give rank 0 up at the limit
    assert others == [(0, "done")] * 3


@pytest.mark.parametrize(("wait", "victim"), ALL)
def test_stopped_process_is_named_and_ended_by_those_of_its_host(wait, victim):
    scripts = ["stop" if rank == victim else wait for rank in range(3)]
    for rank, (code, text) in enumerate(Group(*scripts).finish()):
        assert code == (-signal.SIGKILL if rank == victim else 4), text
        if rank != victim:
            assert text.startswith(f"error: rank {victim} (process ") and "does not answer" in text
            assert len(text.splitlines()) == 1


@pytest.mark.parametrize("victim", BOTH)
def test_process_that_does_not_come_is_named_with_the_place_where_it_stands(victim):
    scripts = ["sleep:1000" if rank == victim else "gate" for rank in range(3)]
    for code, text in Group(*scripts).finish():
        assert code == 4
        assert text.startswith(f"error: rank {victim} (process ")
        assert "stalls in " in text and "the others wait for it in a gate" in text
        assert len(text.splitlines()) == 1


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("wait", ["gate", "hush", pytest.param("wait", marks=SLOW)])
def test_killed_process_is_named_at_once(victim, wait):
    scripts = ["sleep:0.5 kill" if rank == victim else wait for rank in range(3)]
    for rank, (code, text) in enumerate(Group(*scripts, limit=1000).finish()):
        assert code == (-signal.SIGKILL if rank == victim else 4)
        if rank != victim:
            assert text.startswith(f"error: rank {victim} (process ") and text.endswith(") died")


def test_process_whose_standard_error_takes_nothing_ends_as_well():
    assert Group("mute wait", "sleep:0.5 kill", limit=1000).finish(6) == [(4, ""), (-signal.SIGKILL, "")]


@pytest.mark.parametrize("victim", [0, 1])
def test_error_of_one_process_is_what_all_say(victim):
    scripts = ["sleep:0.5 fail" if rank == victim else "gate" for rank in range(2)]
    results = Group(*scripts, limit=1000).finish()
    assert results[victim] == (2, "error: DATA_PATH: no such folder")
    assert results[1 - victim] == (4, f"error: rank {victim} ended: DATA_PATH: no such folder")


@pytest.mark.parametrize("victim", [0, 1])
def test_process_that_ends_too_early_is_named(victim):
    scripts = ["gate" if rank == victim else "gate gate" for rank in range(2)]
    results = Group(*scripts, limit=1000).finish()
    assert results[victim] == (0, "done")
    assert results[1 - victim] == (4, f"error: rank {victim} ended before the others")


def test_process_that_ends_in_time_disturbs_nobody():
    assert Group("gate", "gate sleep:1", limit=1000).finish() == [(0, "done")] * 2


@pytest.mark.slow
def test_processes_that_wait_for_each_other_are_all_named():
    for code, text in Group("wait", "wait").finish():
        assert code == 4
        assert text.startswith("error: all processes wait for each other")
        assert "rank 0 in a collective; rank 1 in a collective" in text


def test_process_that_never_comes_is_named():
    for code, text in Group("gate", None, "gate", size=3, start=2).finish(14):
        assert code == 4
        assert text.startswith("error: rank 1 of 3 did not come to 127.0.0.1:")


def test_rank_0_that_never_comes_is_named():
    ((code, text),) = Group(None, "gate", size=2, start=2).finish(14)
    assert code == 4
    assert text.startswith("error: rank 0 did not open 127.0.0.1:")


def test_port_of_another_program_is_named_at_once():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        ((code, text),) = Group("gate", port=other.getsockname()[1], size=2).finish()
    assert code == 2
    assert "rank 0 cannot listen there (Address already in use)" in text


def test_rank_that_is_taken_is_refused_and_the_run_goes_on():
    group = Group("sleep:2 gate", "sleep:2 gate", limit=1000)
    time.sleep(0.7)
    group.processes.append(group.start(1, "gate"))
    *first, (code, text) = group.finish(20)
    assert first == [(0, "done")] * 2
    assert code == 2 and "is part of the run at" in text


def test_strangers_at_the_port_do_no_harm():
    group = Group("sleep:1 gate", "sleep:1 gate", limit=1000)
    deadline = time.monotonic() + 10 * PATIENCE
    for said in (b"GET / HTTP/1.0\r\n\r\n", b"\x00\xff" * 100, b"{}\n[1]\nnull\n", b""):
        while True:
            try:
                with socket.create_connection(("127.0.0.1", group.port)) as stranger:
                    stranger.sendall(said)
                break
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.05)
    assert group.finish() == [(0, "done")] * 2


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_asked_to_stop_nobody_waits_long_for_a_stopped_process(victim):
    group = Group(*("stop" if rank == victim else "say wait" for rank in range(2)), limit=1000)
    assert group.processes[1 - victim].stdout.readline() == "here\n"
    group.processes[1 - victim].send_signal(signal.SIGTERM)
    code, text = group.finish(20)[1 - victim]
    assert code == 4
    assert text.startswith(f"error: rank {victim} (process ") and "does not answer" in text


def test_limit_of_a_stall_leaves_time_for_the_data():
    def limit_of(**parallel):
        return _limit(build_config([("test", {"PARALLEL": parallel, "DATA": {"WORKER_TIMEOUT": 200.0}})]))

    assert limit_of() == 380 and limit_of(TIMEOUT=201.0) == 201
    with pytest.raises(UserError, match="PARALLEL.TIMEOUT: 200 must be larger than DATA.WORKER_TIMEOUT, 200"):
        limit_of(TIMEOUT=200.0)


def test_watch_leaves_the_address_of_paddles_store_in_the_environment():
    script = ("import os; from image_classification.parallel import watch; watch.this_process(); "
              "print(os.environ['PADDLE_MASTER'], os.environ['MASTER_PORT'])")  # fmt: skip
    port = free_port()
    place = {"PADDLE_TRAINER_ID": "0", "PADDLE_TRAINERS_NUM": "1", "PADDLE_MASTER": f"127.0.0.1:{port}"}
    done = subprocess.run([sys.executable, "-c", script], env=clean_environment(**place), cwd=ROOT, text=True,
                          capture_output=True, timeout=30 * PATIENCE)  # fmt: skip
    master, other = done.stdout.split()
    assert master == f"127.0.0.1:{other}" and int(other) != port, done.stderr


def test_signals_are_not_taken_by_the_threads_of_the_watch():
    """They come when the main thread lets them, or a Ctrl-C during the import of Paddle would be an ImportError."""
    script = (
        "import os, signal, time; from image_classification.parallel import watch; watch.this_process()\n"
        "with watch.signals_later():\n"
        "    os.kill(os.getpid(), signal.SIGINT); time.sleep(0.3); print('undisturbed', flush=True)\n"
    )
    place = {"PADDLE_TRAINER_ID": "0", "PADDLE_TRAINERS_NUM": "1", "PADDLE_MASTER": f"127.0.0.1:{free_port()}"}
    done = subprocess.run([sys.executable, "-c", script], env=clean_environment(**place), cwd=ROOT, text=True,
                          capture_output=True, timeout=30 * PATIENCE)  # fmt: skip
    assert done.stdout == "undisturbed\n" and "KeyboardInterrupt" in done.stderr


def test_process_is_named_by_rank_process_id_and_host():
    assert named(3, ("node7/4026531840", 77)) == "rank 3 (process 77 on node7)"
