"""The program for one process does not pretend to be several; how many processes were asked for."""

import os
import signal

import pytest

from image_classification.config import preview_config
from image_classification.parallel import entry, spawn
from image_classification.runtime import UserError

from .harness import slurm_variables

DIGITS = "-cfg=image_classification/ViT/configs/vit_tiny_digits.yaml"
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "6000"}  # fmt: skip


def refuse(argv, environ):
    settings = preview_config(argv)
    entry.refuse_company(settings, entry.find_place(settings, dict(environ)))


@pytest.mark.parametrize(("argv", "environ", "asked"), [
    (["-ngpus=2"], {}, "-ngpus=2"),
    (["-sync_bn"], {}, "-sync_bn"),
    (["-rank=1", "-world_size=2"], {}, "hand started 2 processes"),
    (["-opts", "PARALLEL.DATA=2"], {}, "PARALLEL.DATA=2"),
    (["-opts", "PARALLEL.TENSOR=2"], {}, "PARALLEL.TENSOR=2"),
    (["-opts", "PARALLEL.PIPELINE=4"], {}, "PARALLEL.PIPELINE=4"),
    (["-opts", "PARALLEL.SHARDING=2"], {}, "PARALLEL.SHARDING=2"),
    ([], TORCHRUN, "torchrun started 2 processes"),
    ([], {name: str(value) for name, value in slurm_variables(1, 2, 6000).items()}, "slurm started 2 processes"),
])  # fmt: skip
def test_program_for_one_process_refuses_company(argv, environ, asked):
    with pytest.raises(UserError, match=f"^{asked}.*use main_multi_gpu.py$"):
        refuse([DIGITS, *argv], environ)


@pytest.mark.parametrize("argv", [
    ["-ngpus=1"], ["-rank=0", "-world_size=1"], ["-eval", "-sync_bn"], ["-opts", "PARALLEL.DATA=1"],
])  # fmt: skip
def test_one_process_that_was_asked_for_is_welcome(argv):
    refuse([DIGITS, *argv], {"RANK": "0", "WORLD_SIZE": "1"})


@pytest.mark.parametrize("count", ["0", "-2"])
def test_number_of_processes_that_means_nothing_is_one_line(count, capsys):
    with pytest.raises(SystemExit) as ended:
        entry.prepare_processes(argv=[DIGITS, f"-ngpus={count}"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"error: -ngpus={count}: expected at least 1, or -1 for one per visible device\n"


@pytest.mark.parametrize(("argv", "environ", "started"), [
    (["-ngpus=4"], TORCHRUN, "torchrun started 2 processes"),
    (["-ngpus=2"], {"RANK": "0", "WORLD_SIZE": "1"}, "torchrun started 1 process"),
    (["-ngpus=4", "-rank=0", "-world_size=2"], {}, "hand started 2 processes"),
    (["-ngpus=3"], TORCHRUN | {"WORLD_SIZE": "4"}, "torchrun started 4 processes, 2 of them on this host"),
])  # fmt: skip
def test_number_of_processes_that_launcher_contradicts_is_one_line(argv, environ, started):
    settings = preview_config([DIGITS, *argv])
    with pytest.raises(UserError, match=f"^{argv[0]}: {started}: leave -ngpus out, or let the launcher start as many$"):
        entry.refuse_other_number(settings, entry.find_place(settings, dict(environ)))


@pytest.mark.parametrize(("argv", "environ"), [
    ([], TORCHRUN),
    (["-ngpus=2"], TORCHRUN),
    (["-ngpus=4"], TORCHRUN | {"WORLD_SIZE": "4"}),
    (["-ngpus=2"], TORCHRUN | {"WORLD_SIZE": "4"}),  # of each host
    (["-ngpus=4"], {}),
])
def test_number_of_processes_that_launcher_started_is_welcome(argv, environ):
    settings = preview_config([DIGITS, *argv])
    entry.refuse_other_number(settings, entry.find_place(settings, dict(environ)))


def test_launcher_beside_a_rank_set_by_hand_is_one_line():
    settings = preview_config([DIGITS, "-launcher=torchrun", "-rank=0", "-world_size=2"])
    with pytest.raises(UserError, match="^-launcher=torchrun: -rank and -world_size are set by hand"):
        entry.find_place(settings, dict(TORCHRUN))


class NoProcesses(spawn._Watcher):
    def start(self, count):
        pass


class Pressed(NoProcesses):
    def __init__(self):
        super().__init__()
        os.kill(os.getpid(), signal.SIGTERM)  # before there is somebody to pass it on to


class OneTooMany(NoProcesses):
    def start(self, count):
        raise BlockingIOError(11, "Resource temporarily unavailable")


@pytest.mark.parametrize(("watcher", "code", "said"), [
    (NoProcesses, 0, ""),
    (Pressed, 143, "error: terminated\n"),
    (OneTooMany, 2, "error: -ngpus=2: a process cannot be started: Resource temporarily unavailable\n"),
])
def test_start_of_processes_ends_in_one_line_and_a_signal_behind_it_changes_nothing(
    watcher, code, said, monkeypatch, capsys
):
    monkeypatch.setattr(spawn, "_Watcher", watcher)
    with pytest.raises(SystemExit) as ended:
        entry.prepare_processes(argv=[DIGITS, "-ngpus=2"])
    os.kill(os.getpid(), signal.SIGINT)
    assert (ended.value.code, capsys.readouterr().err) == (code, said)


class DiskLost(NoProcesses):
    def watch(self):
        raise OSError(5, "Input/output error")


def test_failure_behind_the_start_of_processes_is_not_called_one_of_the_start(monkeypatch):
    monkeypatch.setattr(spawn, "_Watcher", DiskLost)
    with pytest.raises(OSError, match="Input/output error"):
        spawn.run_workers(2)
