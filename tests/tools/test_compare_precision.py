"""The comparison of precision modes counts whole runs only."""

import json

import pytest

from image_classification.runtime import UserError
from tools.compare_precision import check_complete


def run_folder(path, epochs):
    path.joinpath("config.yaml").write_text("TRAIN:\n  NUM_EPOCHS: 30\n")
    if epochs is not None:
        path.joinpath("report.json").write_text(json.dumps({"epochs": epochs, "top1": 0.9}))
    return path


@pytest.mark.parametrize("epochs", [None, 7])
def test_run_that_a_signal_stopped_is_refused(tmp_path, epochs):
    with pytest.raises(UserError, match=f"vit_fp32_0 was stopped after {epochs or 0} of 30 epochs"):
        check_complete(run_folder(tmp_path, epochs), "vit_fp32_0")


def test_run_of_all_epochs_is_counted(tmp_path):
    check_complete(run_folder(tmp_path, 30), "vit_fp32_0")
