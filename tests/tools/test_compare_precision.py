"""The comparison of precision modes counts whole runs only."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from image_classification.run_folder import take_lock
from image_classification.runtime import UserError
from tools.compare_precision import check_complete, main, parse_arguments, prepare, record, table, train, unless

ROOT = Path(__file__).resolve().parents[2]


def run_folder(path, epochs):
    path.joinpath("config.yaml").write_text("TRAIN:\n  NUM_EPOCHS: 30\n")
    if epochs is not None:
        path.joinpath("report.json").write_text(json.dumps({"epochs": epochs, "top1": 0.9}))
    return path


@pytest.mark.parametrize("epochs", [None, 7, 29])
def test_run_that_a_signal_stopped_is_refused(tmp_path, epochs):
    with pytest.raises(UserError, match=f"{tmp_path.name} was stopped after {epochs or 0} of 30 epochs"):
        check_complete(run_folder(tmp_path, epochs))


def test_means_are_added_to_those_of_other_modes_and_variants(tmp_path):
    path = tmp_path / "formats.json"
    words = ["-cfg=vit_tiny_digits", "-seeds=0,1", "-dtypes=float16", f"-json={path}"]
    for modes, reports in (
        ("fp32", {("fp32", "float32", 0): {"top1": 0.97}, ("fp32", "float32", 1): {"top1": 0.98}}),
        ("auto", {("auto", "float16", 0): {"top1": 0.5}, ("auto", "float16", 1): {"top1": 0.6}}),
    ):
        record(path, parse_arguments([*words, f"-modes={modes}"]), reports)
    record(path, parse_arguments(["-cfg=mixer_tiny_digits", "-modes=fp32", "-seeds=0"]),
           {("fp32", "float32", 0): {"top1": 0.9}})  # fmt: skip
    assert json.loads(path.read_text()) == {
        "mixer_tiny_digits": {"fp32": 0.9}, "vit_tiny_digits": {"auto/float16": 0.55, "fp32": 0.975}
    }  # fmt: skip
    assert len(path.read_text().splitlines()) == 4  # a line a variant


def test_table_gives_mean_range_and_points_to_float32_alone():
    """O0 and O1 are no reference, whatever they reach."""
    top1 = {("fp32", "float32"): (0.9, 0.8), ("O0", "float32"): (0.2, 0.4), ("auto", "float16"): (0.875, 0.85)}
    reports = {(*row, seed): {"top1": value, "skipped_steps": seed}
               for row, values in top1.items() for seed, value in enumerate(values)}  # fmt: skip
    words = ["-cfg=vit_tiny_digits", "-modes=fp32,O0,auto", "-dtypes=float16", "-seeds=0,1"]
    assert table(parse_arguments(words), reports).splitlines()[2:] == [
        "| fp32 | float32 | 0.8500 | 0.8000 - 0.9000 | +0.00 | 0, 1 |",
        "| O0 | float32 | 0.3000 | 0.2000 - 0.4000 | -55.00 | 0, 1 |",
        "| auto | float16 | 0.8625 | 0.8500 - 0.8750 | +1.25 | 0, 1 |",
    ]


def test_run_when_it_was_of_another_configuration_is_no_result(tmp_path, monkeypatch):
    ran = []

    real = subprocess.Popen

    def run(command, **pipes):
        ran.append(command)
        folder = tmp_path / "vit_tiny_digits_fp32_float32_0"
        folder.joinpath("report.json").write_text(json.dumps({"epochs": 30, "top1": 0.9}))
        folder.joinpath("config.yaml").write_text("TRAIN: {NUM_EPOCHS: 30}")
        return real([sys.executable, "-c", ""], **pipes)

    monkeypatch.setattr(subprocess, "Popen", run)
    words = ["-cfg=vit_tiny_digits", "-modes=fp32,fp32", "-seeds=0,0", f"-output={tmp_path}"]
    arguments = parse_arguments([*words, "-opts", "TRAIN.BASE_LR=0.1"])
    assert (arguments.modes, arguments.seeds) == (("fp32",), [0])
    for _ in range(2):  # the second time it is there
        assert train(arguments, *prepare(arguments, ("fp32", "float32", 0)), [])["top1"] == 0.9
    assert len(ran) == 1
    with pytest.raises(UserError, match="vit_tiny_digits_fp32_float32_0: has the result of another configuration"):
        prepare(parse_arguments([*words, "-opts", "TRAIN.BASE_LR=0.2"]), ("fp32", "float32", 0))


@pytest.mark.parametrize("text", ["no JSON", "[1]", '{"top1": 1}'])
def test_file_of_means_when_it_is_another_file_is_refused_before_the_runs(tmp_path, capsys, text):
    (tmp_path / "means.json").write_text(text)
    words = ["-cfg=vit_tiny_digits", f"-json={tmp_path / 'means.json'}", f"-output={tmp_path / 'runs'}"]
    assert main([*words, "-modes=fp32", "-seeds=0", "-opts", "TRAIN.NUM_EPOCHS=1"]) == 2
    assert "is no file of means" in capsys.readouterr().err and not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("options", "key"),
    [(["SEED=7"], "SEED"), (["AMP.MODE=O1"], "AMP.MODE"), (["AMP.MODE=O1", "AMP.DTYPE=bfloat16"], "AMP.MODE"),
     (["OUTPUT=runs"], "OUTPUT"), (["EVAL=True", "MODEL.PRETRAINED=weights.pdparams"], "EVAL"),
     (["DRY_RUN=True"], "DRY_RUN"), (["MODEL.RESUME=latest"], "MODEL.RESUME"),
     (["TRAIN.PROFILE_STEP=2"], "TRAIN.PROFILE_STEP"), (["NGPUS=2"], "NGPUS")],
)  # fmt: skip
def test_option_that_would_make_rows_of_another_run_is_refused_before_the_runs(tmp_path, capsys, options, key):
    words = ["-cfg=vit_tiny_digits", "-modes=auto", "-dtypes=float16", "-seeds=0,1", f"-output={tmp_path / 'runs'}"]
    assert main([*words, "-opts", "TRAIN.NUM_EPOCHS=1", *options]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: -opts: {key}: ") and error.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_result_of_other_weights_is_none_of_this_comparison(tmp_path):
    words = ["-cfg=vit_tiny_digits", "-modes=fp32", "-seeds=0", f"-output={tmp_path}", "-opts"]
    run = ("fp32", "float32", 0)
    output, _, configuration = prepare(parse_arguments([*words, "MODEL.PRETRAINED=one.pdparams"]), run)
    output.mkdir()
    (output / "done").write_text(configuration)
    with pytest.raises(UserError, match="has the result of another configuration"):
        prepare(parse_arguments([*words, "MODEL.PRETRAINED=other.pdparams"]), run)


def test_weights_of_a_relative_path_are_those_of_the_users_folder(tmp_path):
    """The run says that the file holds no weights, so it has found it; after the failure no further run begins."""
    words = ["-cfg=vit_tiny_digits", "-modes=fp32", "-seeds=0,1,2", "-output=runs", "-opts", "TRAIN.NUM_EPOCHS=1"]
    (tmp_path / "mine.pdparams").write_bytes(b"no weights")
    done = subprocess.run(
        [sys.executable, ROOT / "tools/compare_precision.py", *words, "MODEL.PRETRAINED=mine.pdparams"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 2
    assert "_0 failed: " in done.stderr and "mine.pdparams" in done.stderr, done.stderr
    assert done.stderr.count("error:") == 1
    assert "no such file" not in done.stderr
    assert not (tmp_path / "runs/vit_tiny_digits_fp32_float32_1").exists()


def test_run_that_fails_stops_those_that_wait(tmp_path):
    stopped = threading.Event()
    arguments = parse_arguments(["-cfg=vit_tiny_digits", "-modes=fp32", "-seeds=0", f"-output={tmp_path}"])
    output, _, configuration = prepare(arguments, ("fp32", "float32", 0))
    with pytest.raises(UserError, match="_0 failed: unknown argument '-no_such'"):
        unless(stopped, [], arguments, (output, [f"-cfg={arguments.cfg}", "-no_such"], configuration))
    assert stopped.is_set()
    assert unless(stopped, [], arguments, None) is None


def test_folder_of_a_run_that_the_tool_did_not_begin_is_kept(tmp_path, capsys):
    words = ["-cfg=vit_tiny_digits", "-modes=fp32", "-seeds=0", f"-output={tmp_path}"]
    folder = tmp_path / "vit_tiny_digits_fp32_float32_0"
    folder.mkdir()
    (folder / "thesis.txt").write_text("mine")
    assert main(words) == 2
    assert "_0: is a folder that is not empty" in capsys.readouterr().err
    assert [path.name for path in folder.iterdir()] == ["thesis.txt"]


def test_run_that_was_stopped_is_made_anew(tmp_path):
    arguments = parse_arguments(["-cfg=vit_tiny_digits", "-modes=fp32", "-seeds=0", f"-output={tmp_path}"])
    output, words, configuration = prepare(arguments, ("fp32", "float32", 0))
    with pytest.raises(UserError, match="failed"):
        train(arguments, output, ["-no_such"], configuration, [])
    (output / "latest.pdparams").write_bytes(b"cut")
    with pytest.raises(UserError, match="failed"):
        train(arguments, *prepare(arguments, ("fp32", "float32", 0))[:1], ["-no_such"], configuration, [])
    assert [path.name for path in output.iterdir()] == ["begun"]


@pytest.mark.parametrize(("number", "codes"), [
    (signal.SIGINT, (130,)), (signal.SIGTERM, (143,)), (-signal.SIGINT, (2, 130)),
], ids=["interrupt", "termination", "interrupt from a terminal"])  # fmt: skip
def test_interrupted_comparison_begins_no_other_run_and_leaves_none(tmp_path, number, codes):
    words = ["-cfg=vit_tiny_digits", "-modes=fp32", "-seeds=0,1,2", f"-output={tmp_path}"]
    command = [sys.executable, ROOT / "tools/compare_precision.py", *words, "-opts", "TRAIN.NUM_EPOCHS=1000"]
    with subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE, text=True) as comparison:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("*/metrics.jsonl")) and time.monotonic() < deadline:
            time.sleep(0.1)
        if number > 0:
            comparison.send_signal(number)
        else:
            os.killpg(comparison.pid, -number)  # as a terminal does: to the run, too, whose end may be noticed first
        try:
            _, errors = comparison.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(comparison.pid, signal.SIGKILL)  # which would be waited for without an end
            raise
    assert comparison.returncode in codes and errors.count("error:") == 1, errors
    (run,) = tmp_path.iterdir()
    assert run.name == "vit_tiny_digits_fp32_float32_0"
    with take_lock(run):  # nobody has it any more
        pass


def test_folder_in_which_a_run_is_writing_is_kept(tmp_path):
    words = ["-cfg=vit_tiny_digits", "-modes=fp32", "-seeds=0", f"-output={tmp_path}"]
    folder = tmp_path / "vit_tiny_digits_fp32_float32_0"
    folder.mkdir()
    (folder / "latest.pdparams").write_bytes(b"state")
    (folder / "begun").touch()
    hold = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", hold, folder / ".lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        other.stdout.readline()
        with pytest.raises(UserError, match="another run is writing to it"):
            train(parse_arguments(words), *prepare(parse_arguments(words), ("fp32", "float32", 0)), [])
        other.communicate(b"\n")
    assert (folder / "latest.pdparams").exists()


def test_run_of_all_epochs_is_counted(tmp_path):
    check_complete(run_folder(tmp_path, 30))


@pytest.mark.parametrize(("words", "named"), [
    (["-seeds=0,x,0"], "-seeds: expected integers, found 'x'"), (["-seeds=0,"], "-seeds: has an empty name: '0,'"),
    (["-modes=fp32,01"], "-modes: expected one of fp32, auto, O0, O1, O2, O3, naive (did you mean O1?), found '01'"),
    (["-dtypes=fp16"], "-dtypes: expected one of float16, bfloat16 (did you mean float16?), found 'fp16'"),
])  # fmt: skip
def test_wrong_word_of_a_list_is_named_alone(words, named):
    with pytest.raises(UserError, match=re.escape(named)):
        parse_arguments(["-cfg=vit_tiny_digits", *words])


def test_modes_and_formats_are_spelt_as_the_trainer_takes_them():
    arguments = parse_arguments(["-cfg=vit_tiny_digits", "-modes=o1,O1,FP32", "-dtypes=Float16"])
    assert (arguments.modes, arguments.dtypes) == (("O1", "fp32"), ("float16",))
