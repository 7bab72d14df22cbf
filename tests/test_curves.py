"""The picture of a run's course shows the numbers of its metrics."""

import json
import math

from PIL import Image

from image_classification.curves import draw_curves, figure_of, read_series

RECORDS = [
    {"kind": "train", "epoch": 1, "batch": 2, "step": 1, "loss": 2.5, "top1": 0.1, "lr": 0.1, "loss_scale": 4.0,
     "skipped_steps": 1},
    {"kind": "train", "epoch": 1, "batch": 4, "step": 3, "loss": "nan", "top1": 0.4, "lr": 0.2, "loss_scale": 2.0,
     "skipped_steps": 1},
    {"kind": "eval", "epoch": 1, "batch": 0, "step": 3, "loss": 1.5, "top1": 0.5, "top5": 1.0},
    {"kind": "mine", "step": 3, "note": "a hook's"},
]  # fmt: skip


def test_series_count_every_step_that_was_taken():
    series = read_series(json.loads(json.dumps(RECORDS)))
    assert series["train/lr"] == ([2, 4], [0.1, 0.2])
    assert series["eval/top1"] == ([4], [0.5])
    assert math.isnan(series["train/loss"][1][1])


def test_picture_has_a_line_of_each_kind_and_the_skipped_steps(tmp_path):
    axes = {axis.get_ylabel(): axis for axis in figure_of(RECORDS).axes}
    assert list(axes) == ["loss", "top1", "lr", "loss_scale", "skipped steps"]
    lines = {line.get_label(): line.get_xydata().tolist() for line in axes["top1"].get_lines()}
    assert lines == {"train": [[2, 0.1], [4, 0.4]], "eval": [[4, 0.5]]}
    draw_curves(RECORDS, tmp_path / "curves.png")
    assert Image.open(tmp_path / "curves.png").size == (1320, 840)


def test_single_point_is_seen_and_all_curves_have_the_steps_of_the_run():
    axes = {axis.get_ylabel(): axis for axis in figure_of([RECORDS[0], *RECORDS[2:]]).axes}
    train, evaluated = axes["loss"].get_lines()
    assert train.get_marker() == evaluated.get_marker() == "o"
    assert axes["lr"].get_xlim() == axes["loss"].get_xlim()
    assert all(tick == int(tick) for tick in axes["skipped steps"].get_yticks())


def test_picture_of_a_run_without_any_line_is_empty(tmp_path):
    draw_curves([], tmp_path / "curves.png")
    assert (tmp_path / "curves.png").exists()
