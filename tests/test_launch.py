"""The programs as users start them: train, evaluate, kill, resume, and every usual mistake."""

import io
import json
import os
import re
import shutil
import signal
import time
from pathlib import Path
from unittest.mock import MagicMock

import cv2
import numpy as np
import paddle
import pytest
from PIL import Image

from image_classification import build, checkpoint, launch
from image_classification.evaluation import evaluate
from image_classification.launch import run_guarded
from image_classification.run_folder import RunFolder
from image_classification.runtime import UserError, hold_interrupts, release_interrupts
from image_classification.ViT.vit import build_model
from image_classification.weights import read_weights, write_weights
from image_classification.zoo import load_model
from tests.helpers.entry import PACKAGE, SMALL_VIT, report_of, run, run_here, run_well, start

REPORT_KEYS = [
    "mode", "model", "dataset", "device", "precision", "world_size", "epochs", "steps", "skipped_steps", "loss_scale",
    "train_loss", "top1", "top5", "eval_images", "best_top1", "images_per_second", "seconds", "peak_memory_bytes",
    "checkpoint",
]  # fmt: skip


ROOT = PACKAGE.parent


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a two-epoch run in automatic mixed precision, its user's first, and what it printed."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    no_fonts_known = {"MPLCONFIGDIR": str(tmp_path_factory.mktemp("matplotlib"))}
    return folder, run_well(*SMALL_VIT, "-amp", "-num_epochs", 2, "-output", folder, env=no_fonts_known)


def test_training_leaves_every_file_of_the_contract(trained):
    folder, _ = trained
    for name in ("config.yaml", "log.txt", "metrics.jsonl", "report.json", "best.pdparams", "latest.pdparams",
                 "curves.png", "confusion.png", "per_class.csv"):  # fmt: skip
        assert (folder / name).stat().st_size > 0, name
    assert [path.stat().st_size > 0 for path in (folder / "visualdl").iterdir()] == [True]
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    # epochs from 1; a step counts before it is done, an evaluation after the epoch
    assert {(line["kind"], line["epoch"]) for line in lines} == {(k, e) for k in ("train", "eval") for e in (1, 2)}


def test_report_has_the_documented_keys_and_units(trained):
    report = report_of(trained[0])
    assert list(report) == REPORT_KEYS
    assert report["precision"] == {**report["precision"], "mode": "auto", "dtype": "bfloat16"}
    assert 0 <= report["top1"] <= report["top5"] <= 1
    assert (report["eval_images"], report["epochs"], report["steps"]) == (360, 2, 22)
    assert report["peak_memory_bytes"] > 1e8 and report["images_per_second"] > 0


def test_log_says_what_really_runs_and_has_the_tokens_that_scripts_grep(trained):
    folder, out = trained
    log = (folder / "log.txt").read_text()
    assert "precision: auto/bfloat16 on cpu (" in log
    step_line = next(line for line in log.splitlines() if "Step[" in line)
    for token in ("lr: ", "loss: ", "top1: ", "batch_cost: ", "reader_cost: ", "ips: ", "eta: "):
        assert token in step_line
    assert "\r" not in out  # no progress bar into a pipe


def test_visualdl_records_hold_the_scalars(trained):
    from visualdl import LogReader

    record = next((trained[0] / "visualdl").iterdir())
    reader = LogReader(file_path=str(record))
    assert reader.get_tags()["image"] == ["train/images", "eval/confusion"]
    (images,) = reader.get_data("image", "train/images")
    picture = np.asarray(Image.open(io.BytesIO(images.image.encoded_image_string)))
    assert picture.shape == (128, 128, 3) and picture.std() > 20  # 4 x 4 digits
    tags = reader.get_tags()["scalar"]
    expected = {"loss", "top1", "lr", "loss_scale", "skipped_steps", "images_per_second"}
    assert {f"train/{name}" for name in expected} <= set(tags)
    assert "eval/top1" in tags


def test_evaluating_the_saved_weights_repeats_the_accuracy(trained, tmp_path):
    """Same weights, same forward context, same images: the same figures to the last bit."""
    folder, _ = trained
    run_well(*SMALL_VIT, "-eval", "-amp", "-pretrained", folder / "latest", "-output", tmp_path / "eval")
    training, evaluation = report_of(folder), report_of(tmp_path / "eval")
    assert list(evaluation) == REPORT_KEYS
    assert evaluation["mode"] == "eval" and evaluation["eval_images"] == 360
    assert (evaluation["top1"], evaluation["top5"]) == (training["top1"], training["top5"])


def test_evaluation_of_a_checkpoint_is_of_its_weights_in_each_format(trained, tmp_path):
    folder, _ = trained
    words = ["EVAL_FP32=True", "-eval", "-amp", "-resume", folder, "-output", tmp_path / "eval"]
    run_well(*SMALL_VIT, *words, run=run_here)
    training, evaluation = report_of(folder), report_of(tmp_path / "eval")
    assert (evaluation["top1"], evaluation["checkpoint"]) == (training["top1"], str(folder / "latest.pdparams"))
    found = json.loads((tmp_path / "eval" / "evaluation.json").read_text())
    assert abs(found["top1_difference"]) < 0.04  # 14 of 360 images; fresh weights are twice as far away


def test_evaluation_takes_the_weights_of_the_command_line_whatever_the_file_says(trained, tmp_path):
    (tmp_path / "old.yaml").write_text(f"BASE: {trained[0]}/config.yaml\nMODEL: {{RESUME: {trained[0]}/latest}}\n")
    words = [f"-cfg={tmp_path / 'old.yaml'}", "-eval", f"-output={tmp_path / 'eval'}"]
    assert_one_line(["-pretrained", "nowhere"], *words, "-pretrained=nowhere")
    assert not (tmp_path / "eval").exists()
    assert f"weights: {trained[0]}/epoch_0001" in run_well(*words, f"-pretrained={trained[0]}/epoch_0001", run=run_here)
    assert report_of(tmp_path / "eval")["checkpoint"] == f"{trained[0]}/epoch_0001"


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_folder_of_another_run_is_refused_and_stays_as_it_is(trained):
    folder, before = trained[0], contents(trained[0])
    assert_one_line(["-output", f"-resume={folder}/latest", "another folder"], *SMALL_VIT, "-output", folder)
    assert contents(folder) == before


def test_log_file_holds_what_the_terminal_showed(trained):
    folder, out = trained
    assert (folder / "log.txt").read_text() == out


def test_best_weights_are_those_of_the_best_state_and_load_into_the_model(trained):
    """The file has PyTorch's layout, the state Paddle's; reading both as -pretrained does ends in the same model."""
    words = ["MODEL.DEPTH=1", "MODEL.EMBED_DIM=32", "MODEL.NUM_HEADS=2"]
    loaded = [load_model("vit_tiny_digits", trained[0] / name, words)[0].state_dict()
              for name in ("best.pdparams", "best_weights.safetensors")]  # fmt: skip
    for name, value in loaded[0].items():
        np.testing.assert_array_equal(value.numpy(), loaded[1][name].numpy(), err_msg=name)


def test_dry_run_writes_nothing_and_prints_the_configuration(tmp_path):
    before = set(PACKAGE.parent.rglob("*"))
    out = run_well(*SMALL_VIT, "-amp", "-dry_run", "-output", tmp_path / "run")
    assert "nothing was written" in out and "BASE_LR" in out and "precision: auto/bfloat16" in out
    assert not (tmp_path / "run").exists()
    new = {path for path in set(PACKAGE.parent.rglob("*")) - before if "__pycache__" not in path.parts}
    assert not any("output" in path.parts or "ViT" in path.parts for path in new)


def test_dry_run_with_more_accumulation_than_batches_says_the_step_that_a_run_would_make(tmp_path):
    words = "-dry_run", "-num_epochs", 3, "-accum_iter", 100  # the epoch has 11 batches
    out = run_well(*SMALL_VIT, *words, run=run_here)
    assert "one step of 11 x 128 images" in out and "a run would make 3 steps, 1 an epoch" in out


def test_epochs_already_done_leave_the_schedule_of_those_to_come(tmp_path):
    """Warm-up and decay of epoch 3 are those of a run that trained all three."""
    rates = []
    for name, done in (("whole", 0), ("rest", 2)):
        run_well(*SMALL_VIT, "-num_epochs", 3, "-last_epoch", done, "-output", tmp_path / name, run=run_here)
        lines = map(json.loads, (tmp_path / name / "metrics.jsonl").read_text().splitlines())
        rates.append([(line["step"], line["lr"]) for line in lines if line["kind"] == "train" and line["epoch"] == 3])
    assert rates[0] == rates[1] and len(rates[0]) == 3


def test_default_output_is_a_new_dated_folder(tmp_path):
    run_well(*SMALL_VIT, f"SAVE={tmp_path}", "-num_epochs", 1, run=run_here)
    run_well(*SMALL_VIT, f"SAVE={tmp_path}", "-num_epochs", 1, run=run_here)
    folders = sorted(path.name for path in tmp_path.iterdir())
    assert len(folders) == 2 and all(name.startswith("train-20") for name in folders)


MODES = [(), ("-amp",), ("-amp", "-amp_dtype", "float16")]


@pytest.mark.parametrize("precision", [
    pytest.param(MODES[0], id="fp32", marks=pytest.mark.slow),
    pytest.param(MODES[1], id="bfloat16", marks=pytest.mark.slow),
    pytest.param(MODES[2], id="float16"),
])  # fmt: skip
def test_run_killed_twice_and_resumed_ends_with_the_same_bits(tmp_path, precision):
    """SIGKILL at two arbitrary moments; -deterministic promises the uninterrupted run's weights."""
    settings = [*SMALL_VIT, "SAVE_STEPS=3", "MODEL.DROPOUT=0.1", "-deterministic", "-num_epochs", 3, *precision]
    run_well(*settings, "-output", tmp_path / "straight")
    broken = tmp_path / "broken"
    latest = broken / "latest.pdparams"
    resume = []
    for wait in (0.05, 0.5):
        process = start(*settings, "-output", broken, *resume)
        known = latest.stat().st_mtime_ns if latest.exists() else 0
        deadline = time.time() + 60
        while not (latest.exists() and latest.stat().st_mtime_ns > known) and time.time() < deadline:
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        time.sleep(wait)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        resume = ["-resume", latest]
    out = run_well(*settings, "-output", broken, *resume)
    assert "resumed from" in out
    straight, resumed = (checkpoint.load(tmp_path / name / "latest.pdparams") for name in ("straight", "broken"))
    for part in ("model", "optimizer"):
        assert straight[part].keys() == resumed[part].keys()
        for name, value in straight[part].items():
            assert (value == resumed[part][name]).all(), name
    assert report_of(broken)["top1"] == report_of(tmp_path / "straight")["top1"]


def test_sigterm_saves_at_the_next_step_and_resume_continues(tmp_path):
    settings = [*SMALL_VIT, "-output", tmp_path / "run", "-num_epochs", 30]
    process = start(*settings)
    for line in process.stdout:
        if "Step[" in line:
            break
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "SIGTERM: stopping after this step" in out and "continue with -resume" in out
    progress = checkpoint.load(tmp_path / "run" / "latest.pdparams")["progress"]
    assert 0 < progress["step"] < 30 * 11
    settings[-1] = progress["epoch"] + 1
    assert f"step {progress['step']}" in run_well(*settings, "-resume", tmp_path / "run" / "latest")


def test_checkpoint_continues_in_another_precision(trained, tmp_path):
    """auto -> fp32 -> auto: a checkpoint does not depend on the mode it was trained in."""
    last = trained[0]
    for name, *words in (("fp32", "-num_epochs", 3), ("auto", "-amp", "-num_epochs", 4)):
        out = run_well(*SMALL_VIT, *words, "-resume", last / "latest", "-output", tmp_path / name, run=run_here)
        assert name == "auto" or "trained as auto/bfloat16; continuing as fp32/float32" in out
        last = tmp_path / name
    assert report_of(tmp_path / "auto")["epochs"] == 4


def test_float16_from_an_absurd_loss_scale_skips_counts_and_recovers(tmp_path):
    """2^40 overflows float16 gradients at once; the scale halves with each skip until they fit."""
    argv = [*SMALL_VIT, "-amp", "-amp_dtype", "float16", "-num_epochs", 6]
    run_well(*argv, "-opts", "AMP.INIT_SCALE=1099511627776", "-output", tmp_path / "run", run=run_here)
    report = report_of(tmp_path / "run")
    assert report["skipped_steps"] >= 10
    assert report["steps"] + report["skipped_steps"] == 66
    assert report["loss_scale"] == 2.0 ** (40 - report["skipped_steps"])


def write_images(folder, size=(24, 20), classes=2, count=3):
    rng = np.random.default_rng(0)
    for name in range(classes):
        (folder / f"class_{name}").mkdir(parents=True)
        for number in range(count):
            image = rng.integers(0, 255, (*size, 3), dtype=np.uint8)
            cv2.imwrite(str(folder / f"class_{name}" / f"{number}.jpg"), image)


@pytest.fixture
def folders(tmp_path):
    root = tmp_path / "imagenet"
    write_images(root / "train")
    write_images(root / "val")
    return root


def on_folders(root, *more, classes=("-num_classes", 2)):
    vit = [*SMALL_VIT, "DATA.NUM_WORKERS=1", "-dataset", "imagenet2012", "-data_path", root]
    return [*vit, "-batch_size", 2, *classes, "-num_epochs", 1, "-output", root.parent / "out", *more]


def test_class_folders_train_and_evaluate_with_an_output_for_each_class(folders):
    out = run_well(*on_folders(folders, classes=()))
    assert "2 classes (class_0, class_1), so the model has 2 outputs instead of 10" in out
    assert "train, 6 images, 2 classes" in out and "val, 6 images, 2 classes" in out
    assert report_of(folders.parent / "out")["eval_images"] == 6
    assert "NUM_CLASSES: 2" in (folders.parent / "out" / "config.yaml").read_text()


def test_list_files_train_and_evaluate(folders):
    for split in ("train", "val"):
        lines = [f"{split}/class_{name}/{number}.jpg {name}" for name in range(2) for number in range(3)]
        (folders / f"{split}_list.txt").write_text("\n".join(lines))
    run_well(*on_folders(folders))
    assert report_of(folders.parent / "out")["eval_images"] == 6


def corrupt(root):
    path = root / "val" / "class_0" / "1.jpg"
    path.write_bytes(path.read_bytes()[:50])


def test_corrupt_image_with_permission_is_skipped_and_counted(folders):
    corrupt(folders)
    out = run_well(*on_folders(folders), "-opts", "DATA.NUM_WORKERS=1", "DATA.SKIP_CORRUPT=True", run=run_here)
    assert "1 " in out and "corrupt" in out
    assert report_of(folders.parent / "out")["eval_images"] == 5


@pytest.mark.parametrize(("pattern", "skip", "expected"), [
    ("val/*/*.jpg", True, ["evaluation has no image", "SKIP_CORRUPT"]),
    ("val/class_0/1.jpg", False, ["class_0/1.jpg: corrupt image"]),
])  # fmt: skip
def test_evaluation_that_cannot_read_its_images_fails_and_a_resume_begins_with_it(folders, pattern, skip, expected):
    broken = {path: path.read_bytes() for path in folders.glob(pattern)}
    for path, content in broken.items():
        path.write_bytes(content[:50])
    words = on_folders(folders, "-opts", "DATA.NUM_WORKERS=1", f"DATA.SKIP_CORRUPT={skip}")
    latest = folders.parent / "out" / "latest"
    assert_one_line(expected, *words)
    elsewhere = f"-output={folders.parent / 'evaluated'}"
    for more in ([], ["-dry_run"]):
        assert_one_line(expected, *words, elsewhere, "-eval", f"-pretrained={latest}", *more)
    for path, content in broken.items():
        path.write_bytes(content)
    out = run_well(*words, f"-resume={latest}", run=run_here)
    assert "Validation Acc@1" in out and "Step[" not in out  # every step had been saved
    report = report_of(folders.parent / "out")
    assert (report["epochs"], report["steps"], report["eval_images"]) == (1, 3, 6)
    assert (folders.parent / "out" / "best.pdparams").exists()


def empty_class(root):
    for path in (root / "train" / "class_1").iterdir():
        path.unlink()


def label_out_of_range(root):
    for split in ("train", "val"):
        (root / f"{split}_list.txt").write_text("train/class_0/0.jpg 0\ntrain/class_0/1.jpg 7\n")


def remove_data(root):
    root.rename(root.parent / "elsewhere")


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (remove_data, ["DATA_PATH", "imagenet"]),
        (empty_class, ["class_1"]),
        (label_out_of_range, ["train_list.txt:2", "7"]),
        (corrupt, ["class_0/1.jpg"]),
    ],
)
def test_bad_data_is_one_line_and_a_code(folders, damage, expected):
    damage(folders)
    assert_one_line(expected, *on_folders(folders))


def words_of(value):
    return " ".join(map(str, value[-2:])) if isinstance(value, list) else None


def assert_one_line(expected, *argv, code=2, run=run_here):
    actual, out, err = run(*argv)
    lines = err.strip().splitlines()
    assert actual == code, f"{actual}\n{out}\n{err}"
    assert "Traceback" not in out + err
    assert lines[-1].startswith("error: "), err
    for part in expected:
        assert part in lines[-1], err


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["-cfg=nowhere.yaml"], ["-cfg", "nowhere.yaml"]),
        ([*SMALL_VIT, "-datset=digits"], ["-datset", "-dataset"]),
        ([*SMALL_VIT, "MODEL.EMBED_DIMM=3"], ["MODEL.EMBED_DIMM", "MODEL.EMBED_DIM"]),
        ([*SMALL_VIT, "-dataset=digit"], ["digit", "digits"]),
        ([*SMALL_VIT, "-amp_mode=01"], ["AMP.MODE", "O1"]),
        ([*SMALL_VIT, "-amp", "SEED=3"], ["-opts SEED=3"]),
        ([*SMALL_VIT, "PARALLEL.TENSOR=2"], ["PARALLEL.TENSOR=2", "main_multi_gpu.py"]),
        ([*SMALL_VIT, "-device=gpu"], ["DEVICE", "no GPU"]),
        ([*SMALL_VIT, "TRAIN.OPTIMIZER.NAME=adamx", "-data_path=nowhere"], ["OPTIMIZER.NAME", "Adam,", "RMSProp"]),
    ],
    ids=words_of,
)
def test_wrong_command_is_one_line_and_a_code(argv, expected):
    assert_one_line(expected, *argv, run=run)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["MODEL.NUM_HEADS=5"], ["5"]),
        (["-image_size=30"], ["30"]),
        (["-resume=nowhere"], ["-resume", "nowhere"]),
        (["-eval"], ["-eval", "-pretrained"]),
        (["-eval", "-pretrained=nowhere"], ["-pretrained", "nowhere"]),
        (["AMP.INIT_SCAL=3", "-amp"], ["init_scal", "auto"]),
        (["TRAIN.HOOKS=[nowhere:Hook]"], ["TRAIN.HOOKS", "nowhere:Hook"]),
    ],
    ids=words_of,
)
def test_mistake_that_is_seen_behind_the_command_line_is_one_line_and_a_code(argv, expected):
    assert_one_line(expected, *SMALL_VIT, *argv)


def test_resume_of_another_architecture_is_one_line(trained):
    latest = trained[0] / "latest"
    assert_one_line(["-resume", "another model"], *SMALL_VIT, "MODEL.DEPTH=2", "-num_epochs", 3, "-resume", latest)


def test_dry_run_reads_what_it_would_resume(trained, tmp_path):
    words = [*SMALL_VIT, "TRAIN.OPTIMIZER.NAME=Momentum", "-dry_run", "-num_epochs", 3]
    assert_one_line(["-resume", "latest", "another optimizer"], *words, "-resume", trained[0] / "latest")


def test_dry_run_of_a_resume_within_an_epoch_says_its_own_loss_and_the_steps_that_are_left(trained, tmp_path):
    """The images of the epoch before the checkpoint are not in that loss: it is that of any other dry run."""
    state = checkpoint.load(trained[0] / "epoch_0001.pdparams")
    state["progress"] |= {"batch": 5, "step": 16, "sums": [5e5, 0.0, 500.0]}
    path = tmp_path / "within.pdparams"
    checkpoint.save(path, state)
    words = [*SMALL_VIT, "-amp", "-dry_run", "-num_epochs", 3]
    within, whole = (run_well(*words, "-resume", each, run=run_here) for each in (path, trained[0] / "epoch_0001"))
    losses = [re.search(r"one step of 1 x 128 images: (loss [\d.]+)", out)[1] for out in (within, whole)]
    assert losses[0] == losses[1]
    assert "a run would make 17 steps, 11 an epoch" in within and "a run would make 22 steps" in whole


@pytest.mark.parametrize("epochs", [1, 2])
def test_resume_of_a_finished_run_says_before_the_data_that_nothing_is_left(trained, tmp_path, epochs):
    words = [*SMALL_VIT, "DATA.DATASET=folder", "-data_path=/none", "-num_epochs", epochs]
    words += ["-resume", trained[0]]  # the folder means its latest
    assert_one_line(["has 2 epochs done", "nothing to train"], *words, "-output", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_resume_of_a_finished_run_in_its_own_folder_writes_what_a_kill_left_unwritten(trained, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(trained[0], folder)
    for name in ("best.pdparams", "report.json"):
        (folder / name).unlink()
    (tmp_path / "link").symlink_to(folder)  # such as one to a larger disk
    words = ["-amp", "-num_epochs", 2, "-resume", tmp_path / "link" / "latest", "-output", folder]
    out = run_well(*SMALL_VIT, *words, run=run_here)
    before, after = report_of(trained[0]), report_of(folder)
    assert after == before | {"checkpoint": str(folder / "latest.pdparams")}
    assert f"top-1             {before['top1']:.4f}" in out
    assert (folder / "best.pdparams").exists()


def test_resume_of_a_finished_run_that_stops_in_its_evaluation_says_how_to_continue(trained, tmp_path, monkeypatch):
    def signalled(*args):
        os.kill(os.getpid(), signal.SIGTERM)
        return evaluate(*args)

    monkeypatch.setattr("image_classification.trainer.evaluate", signalled)
    folder = tmp_path / "run"
    shutil.copytree(trained[0], folder)
    out = run_well(*SMALL_VIT, "-amp", "-num_epochs", 2, "-resume", folder / "latest", "-output", folder, run=run_here)
    assert "stopped by a signal; continue with" in out and "top-1  " not in out


def test_resume_in_its_own_folder_with_fewer_epochs_than_are_done_changes_nothing(trained, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(trained[0], folder)
    before = contents(folder)
    words = [*SMALL_VIT, "-amp", "-num_epochs", 1, "-resume", folder / "latest", "-output", folder]
    assert_one_line(["2 epochs done, TRAIN.NUM_EPOCHS is 1: nothing to train"], *words)
    assert contents(folder) == before


def test_resume_of_a_finished_run_with_another_recipe_changes_nothing(trained, tmp_path):
    """Its config.yaml would name a recipe that nothing was trained with."""
    folder = tmp_path / "run"
    shutil.copytree(trained[0], folder)
    before = contents(folder)
    words = [*SMALL_VIT, "TRAIN.BASE_LR=1e-4", "-amp", "-num_epochs", 2, "-resume", folder, "-output", folder]
    assert_one_line(["2 epochs done, TRAIN.NUM_EPOCHS is 2: nothing to train"], *words)
    assert contents(folder) == before


def test_resume_with_another_recipe_says_every_difference(trained, tmp_path):
    words = ["-amp", "-dry_run", "-num_epochs", 3, "-resume", trained[0]]
    out = run_well(*SMALL_VIT, "TRAIN.BASE_LR=1e-4", "DATA.NUM_WORKERS=1", *words, run=run_here)
    (line,) = [line for line in out.splitlines() if "another recipe" in line]
    assert "warning: -resume: " in line and "TRAIN.BASE_LR was 0.003, now it is 0.0001" in line
    assert "TRAIN.NUM_EPOCHS was 2, now it is 3" in line
    assert line.count(", now it is ") == 2  # how images are fetched changes nothing
    same = run_well(f"-cfg={trained[0]}", "-dry_run", "-resume", trained[0] / "epoch_0001", run=run_here)
    assert "another recipe" not in same


def test_resume_of_a_truncated_checkpoint_is_one_line(trained, tmp_path):
    path = tmp_path / "cut.pdparams"
    path.write_bytes((trained[0] / "latest.pdparams").read_bytes()[:5000])
    # said before the data are read, which may take long: there are none
    assert_one_line(["-resume", "damaged"], *SMALL_VIT, "DATA.DATASET=folder", "-data_path=/none", "-resume", path)


def test_checkpoint_of_another_model_is_refused_before_the_data(trained):
    words = [*SMALL_VIT, "MODEL.DEPTH=2", "DATA.DATASET=folder", "-data_path=/none", "-resume", trained[0]]
    assert_one_line(["-resume", "latest.pdparams: is of another model: it lacks"], *words)


@pytest.mark.parametrize(
    ("size", "extra", "expected"),
    [(5000, [], "damaged"), (None, ["MODEL.DEPTH=2"], "does not fit this model: it lacks")],
)
def test_pretrained_weights_that_are_damaged_or_of_another_model_are_refused_before_the_data(
    trained, tmp_path, size, extra, expected
):
    path = tmp_path / "weights.pdparams"
    path.write_bytes((trained[0] / "latest.pdparams").read_bytes()[:size])
    argv = [*SMALL_VIT, *extra, "DATA.DATASET=folder", "-data_path=/none", "-pretrained", path]
    assert_one_line(["-pretrained", "weights.pdparams", expected], *argv)


def without_slots(state):
    state["optimizer"].pop("norm.weight/moment2")


def without_state_of_the_optimizer(state):
    state["optimizer"].clear()


@pytest.mark.parametrize(
    ("cut", "option", "expected"),
    [
        (without_slots, "", "1 entries are missing, first 'norm.weight/moment2'"),
        (without_state_of_the_optimizer, "", "entries are missing"),
        (dict, "TRAIN.OPTIMIZER.NAME=Momentum", "another optimizer"),
        (dict, "TRAIN.FREEZE=[patch_embed.*]", "entries are unknown, first 'patch_embed"),
        (dict, "MODEL.NUM_CLASSES=7", "is of another model: it has other shapes: head.weight [32, 10] instead of"),
    ],
)
def test_checkpoint_that_does_not_fit_the_optimizer_or_the_given_classes_is_refused_before_the_data(
    trained, tmp_path, cut, option, expected
):
    state = checkpoint.load(trained[0] / "latest.pdparams")
    cut(state)
    checkpoint.save(tmp_path / "cut.pdparams", state)
    words = [*SMALL_VIT, "DATA.DATASET=folder", *filter(None, [option]), "-data_path=/none"]
    assert_one_line(["-resume", "cut.pdparams: ", expected], *words, "-resume", tmp_path / "cut")


@pytest.mark.parametrize("name", ["best_weights.safetensors", "latest.pdparams"])
def test_pretrained_weights_that_are_not_finite_are_refused_before_the_data(trained, tmp_path, name):
    path = spoil(trained[0] / name, tmp_path / name)
    words = [*SMALL_VIT, "DATA.DATASET=folder", "-data_path=/none", "-pretrained", path]
    assert_one_line([f"-pretrained: {path}: norm.weight has values that are not finite"], *words)


def spoil(source, path):
    """Write weights again with one number that is none, and return where."""
    if source.suffix == ".safetensors":
        tensors = {name: np.array(value) for name, value in read_weights(source).tensors.items()}
        tensors["norm.weight"][3] = np.nan
        write_weights(path, tensors)
    else:
        state = checkpoint.load(source)
        weights = state["ema"] or state["model"]  # the average is what is taken
        weights["norm.weight"] = weights["norm.weight"] * np.nan
        checkpoint.save(path, state)
    return path


def not_finite(source, path):
    return spoil(source, path), "norm.weight has values that are not finite"


def cut_short(source, path):
    path.write_bytes(source.read_bytes()[:5000])
    return path, "damaged"


def of_another_model(source, path):
    state = checkpoint.load(source)
    del state["model"]["norm.weight"], state["optimizer"]["norm.weight/moment1"]
    paddle.save(state["model"], str(path))
    return path, "does not fit this model: it lacks norm.weight"


@pytest.mark.parametrize("damage", [not_finite, cut_short, of_another_model])
def test_teacher_whose_weights_cannot_be_used_is_refused_before_the_data(trained, tmp_path, damage):
    path, expected = damage(trained[0] / "latest.pdparams", tmp_path / "teacher.pdparams")
    words = ["TRAIN.DISTILLATION_TYPE=hard", f"MODEL.TEACHER={path}", f"MODEL.TEACHER_CFG={trained[0] / 'config.yaml'}"]
    assert_one_line(["MODEL.TEACHER", "teacher.pdparams", expected], *SMALL_VIT, *words, "DATA.DATASET=folder",
                    "-data_path=/none")  # fmt: skip


@pytest.mark.parametrize("output", ["/proc/run", "file/run"])
def test_output_that_cannot_be_written_is_one_line(tmp_path, output):
    (tmp_path / "file").write_text("")
    assert_one_line(["-output", output], *SMALL_VIT, "-output", Path(tmp_path, output))


def test_diverging_run_stops_with_a_diagnosis(tmp_path):
    argv = [*SMALL_VIT, "TRAIN.BASE_LR=1e38", "TRAIN.WARMUP_EPOCHS=0", "TRAIN.MAX_SKIPPED_STEPS=5"]
    assert_one_line(["5 steps in a row", "scale"], *argv, "-output", tmp_path / "run", code=3)
    assert "error: 5 steps in a row" in (tmp_path / "run" / "log.txt").read_text()


def test_run_whose_loss_is_not_finite_to_the_end_fails_and_keeps_its_checkpoint(tmp_path):
    argv = [*SMALL_VIT, "TRAIN.BASE_LR=1e38", "TRAIN.WARMUP_EPOCHS=0", "TRAIN.MAX_SKIPPED_STEPS=100000"]
    folder = tmp_path / "run"
    assert_one_line(["no step of the last epoch"], *argv, "-num_epochs=2", "-output", folder, code=3)
    assert json.loads((folder / "report.json").read_text())["epochs"] == 2
    assert (folder / "latest.pdparams").exists() and (folder / "confusion.png").exists()
    again = [*argv, "-num_epochs=2", "-output", folder, "-resume", folder / "latest"]
    assert_one_line(["no step of the last epoch"], *again, code=3)  # finished is not mended


def too_large(num_classes: int = 10):
    """Stands for a model: what Paddle says where the memory is too small for a tensor."""
    paddle.empty([2**46])


def numpy_is_too_large(num_classes: int = 10):
    np.empty(2**46)


@pytest.mark.parametrize("build_model", [too_large, numpy_is_too_large])
def test_out_of_memory_is_one_line_with_the_way_out(build_model, capsys):
    words = ["-opts", "DATA.DATASET=digits", "DATA.IMAGE_SIZE=32", "DATA.BATCH_SIZE=8", "MODEL.NUM_CLASSES=10"]
    code = run_guarded(build_model, [f"-cfg={ROOT / 'configs' / 'datasets' / 'digits.yaml'}", *words])
    error = capsys.readouterr().err
    assert code == 3 and error.count("\n") == 1
    assert re.match("error: out of memory: .*alloc.*; lower -batch_size and raise -accum_iter", error)


def test_run_leaves_no_file_open(tmp_path):
    developers = {"PYTHONDEVMODE": "1", "PYTHONWARNINGS": "error::ResourceWarning"}
    run_well(*SMALL_VIT, "TRAIN.NUM_EPOCHS=1", f"-output={tmp_path}", env=developers)


def test_interrupt_once_ends_after_the_running_step_with_a_checkpoint(tmp_path):
    process = start(*SMALL_VIT, "-output", tmp_path / "run", "-num_epochs", 300, start_new_session=True)
    for line in process.stdout:
        if "Step[" in line:
            break
    os.kill(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "SIGINT: stopping after this step" in out
    assert 0 < checkpoint.load(tmp_path / "run" / "latest.pdparams")["progress"]["step"] < 300 * 11


@pytest.mark.parametrize(("error", "code"), [(None, 0), (UserError("wrong"), 2), (KeyboardInterrupt(2), 130)])
def test_signal_behind_the_last_line_of_a_run_changes_nothing(monkeypatch, error, code):
    """Its data workers end then, which takes a moment, and launchers send a SIGTERM more than once."""
    def train(*arguments):
        if error:
            raise error

    monkeypatch.setattr(launch, "train", train)
    monkeypatch.setattr(launch, "open_folder", lambda parts: RunFolder("nowhere"))
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    hold_interrupts()
    try:
        assert run_guarded(build_model, ["-cfg=vit_tiny_digits", "-opts", "MODEL.DEPTH=1"]) == code
        for number in numbers:
            os.kill(os.getpid(), number)
    except KeyboardInterrupt:
        pytest.fail("the end was interrupted")
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


@pytest.mark.parametrize("epoch", [1, 2])
def test_signal_while_the_end_of_a_training_is_said_changes_nothing(monkeypatch, epoch):
    """The run has its last checkpoint by then, and launchers send a SIGTERM more than once."""
    trainer, parts = MagicMock(stop_requested=True, progress=MagicMock(epoch=epoch)), MagicMock()
    parts.config.TRAIN.NUM_EPOCHS = 2
    monkeypatch.setattr(build, "folder_hooks", lambda *arguments: [])
    monkeypatch.setattr(launch, "result_table", str)
    monkeypatch.setattr(launch, "get_logger", lambda: MagicMock(info=lambda text: os.kill(os.getpid(), signal.SIGTERM)))
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    hold_interrupts()
    release_interrupts()
    try:
        launch.train(trainer, parts, MagicMock(), MagicMock())
    except KeyboardInterrupt:
        pytest.fail("the end was interrupted")
    finally:
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            signal.signal(number, handler)


TWO_SIGNALS = """
import os
from signal import SIGINT, SIGTERM
from image_classification.hooks import Hook

class Twice(Hook):
    def before_step(self, trainer):
        if trainer.progress.step == 2:
            for name in os.environ["SIGNALS"].split():
                os.kill(os.getpid(), globals()[name])
"""


@pytest.mark.parametrize(("signals", "code"), [("SIGINT SIGINT", 130), ("SIGTERM SIGTERM", 0)])
def test_second_interrupt_in_one_step_ends_at_once_and_a_second_sigterm_does_not(tmp_path, signals, code):
    (tmp_path / "signals.py").write_text(TWO_SIGNALS)
    environment = {"PYTHONPATH": str(tmp_path), "SIGNALS": signals}
    argv = [*SMALL_VIT, "TRAIN.HOOKS=[signals:Twice]", "-output", tmp_path / "run", "-num_epochs", 3]
    actual, out, err = run(*argv, env=environment)
    assert actual == code, f"{out}\n{err}"
    assert (tmp_path / "run" / "latest.pdparams").exists() == (code == 0)
    if code:
        assert err.strip().splitlines()[-1] == "error: interrupted"
        assert "Traceback" not in out + err
