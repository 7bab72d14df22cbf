"""The comparison of precision modes counts whole runs only."""

import json

import pytest

from image_classification.runtime import UserError
from tools.compare_precision import check_complete, parse_arguments, record


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


def test_run_of_all_epochs_is_counted(tmp_path):
    check_complete(run_folder(tmp_path, 30), "vit_fp32_0")
