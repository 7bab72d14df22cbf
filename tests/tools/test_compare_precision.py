"""The comparison of precision modes counts whole runs only."""

import json
import subprocess

import pytest

from image_classification.runtime import UserError
from tools.compare_precision import check_complete, main, parse_arguments, record, train


def run_folder(path, epochs):
    path.joinpath("config.yaml").write_text("TRAIN:\n  NUM_EPOCHS: 30\n")
    if epochs is not None:
        path.joinpath("report.json").write_text(json.dumps({"epochs": epochs, "top1": 0.9}))
    return path


@pytest.mark.parametrize("epochs", [None, 7])
def test_run_that_a_signal_stopped_is_refused(tmp_path, epochs):
    with pytest.raises(UserError, match=f"vit_fp32_0 was stopped after {epochs or 0} of 30 epochs"):
        check_complete(run_folder(tmp_path, epochs), "vit_fp32_0")


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


def test_run_when_it_was_of_another_configuration_is_no_result(tmp_path, monkeypatch):
    ran = []

    def run(command, **_):
        ran.append(command)
        folder = tmp_path / "vit_tiny_digits_fp32_float32_0"
        folder.mkdir()
        folder.joinpath("report.json").write_text(json.dumps({"epochs": 30, "top1": 0.9}))
        folder.joinpath("config.yaml").write_text("TRAIN: {NUM_EPOCHS: 30}")
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", run)
    words = ["-cfg=vit_tiny_digits", "-modes=fp32,fp32", "-seeds=0,0", f"-output={tmp_path}"]
    arguments = parse_arguments([*words, "-opts", "TRAIN.BASE_LR=0.1"])
    assert (arguments.modes, arguments.seeds) == (["fp32"], [0])
    for _ in range(2):  # the second time it is there
        assert train(arguments, tmp_path, ("fp32", "float32", 0))["top1"] == 0.9
    assert len(ran) == 1
    with pytest.raises(UserError, match="vit_tiny_digits_fp32_float32_0: has the result of another configuration"):
        train(parse_arguments([*words, "-opts", "TRAIN.BASE_LR=0.2"]), tmp_path, ("fp32", "float32", 0))


@pytest.mark.parametrize("text", ["no JSON", "[1]", '{"top1": 1}'])
def test_file_of_means_when_it_is_another_file_is_refused_before_the_runs(tmp_path, capsys, text):
    (tmp_path / "means.json").write_text(text)
    words = ["-cfg=vit_tiny_digits", f"-json={tmp_path / 'means.json'}", f"-output={tmp_path / 'runs'}"]
    assert main([*words, "-modes=fp32", "-seeds=0", "-opts", "TRAIN.NUM_EPOCHS=1"]) == 2
    assert "is no file of means" in capsys.readouterr().err and not (tmp_path / "runs").exists()


def test_run_of_all_epochs_is_counted(tmp_path):
    check_complete(run_folder(tmp_path, 30), "vit_fp32_0")
