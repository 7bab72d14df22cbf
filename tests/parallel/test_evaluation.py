"""Evaluation on several processes gives the figures of one process, whatever divides the number of images."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from image_classification.parallel.env import free_port
from image_classification.weights import export_tensors, write_weights
from image_classification.zoo import load_model
from tests.helpers.entry import run_here, run_well

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "image_classification" / "ViT"


NUM_IMAGES = 31  # divisible by neither number of processes


def make_images(folder):
    """Write a data set of random images with a list file."""
    rng = np.random.default_rng(0)
    (folder / "val").mkdir(parents=True)
    lines = []
    for index in range(NUM_IMAGES):
        Image.fromarray(rng.integers(0, 256, (32, 32, 3), np.uint8)).save(folder / "val" / f"{index}.png")
        lines.append(f"val/{index}.png {index % 10}\n")
    (folder / "val_list.txt").write_text("".join(lines))
    return folder


def evaluate(weights, images, folder, *words, **options):
    """Return (evaluation.json, confusion.csv) of an evaluation."""
    words = *words, "-cfg=./configs/vit_tiny_digits.yaml", "-eval", f"-pretrained={weights}", "-dataset=imagenet2012"
    run_well(*words, f"-data_path={images}", "-opts", f"OUTPUT={folder}", "DATA.BATCH_SIZE_EVAL=4", **options)
    return json.loads((folder / "evaluation.json").read_text()), (folder / "confusion.csv").read_text()


@pytest.mark.parametrize("num_processes", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_evaluation_on_several_processes_equals_one(tmp_path, num_processes):
    model, _ = load_model("vit_tiny_digits")
    write_weights(tmp_path / "w.safetensors", export_tensors(model, "torch"))
    files = tmp_path / "w.safetensors", make_images(tmp_path / "images")
    alone = evaluate(*files, tmp_path / "1", run=run_here)
    together = evaluate(*files, tmp_path / "n", f"-ngpus={num_processes}", script="main_multi_gpu.py")
    # A batch of another size may be summed in another order: 1e-5 is some hundred roundings of float32.
    for name in ("loss", "expected_calibration_error"):
        assert together[0].pop(name) == pytest.approx(alone[0].pop(name), rel=1e-5)
    assert alone == together
    assert alone[0]["images"] == NUM_IMAGES


def test_dry_run_of_fewer_images_than_processes_ends_well(tmp_path):
    model, _ = load_model("vit_tiny_digits")
    write_weights(tmp_path / "w.safetensors", export_tensors(model, "torch"))
    (make_images(tmp_path / "images") / "val_list.txt").write_text("val/0.png 0\n")
    command = [sys.executable, "main_multi_gpu.py", "-ngpus=2", "-cfg=./configs/vit_tiny_digits.yaml", "-eval"]
    command += [f"-pretrained={tmp_path / 'w.safetensors'}", "-dataset=list", f"-data_path={tmp_path / 'images'}"]
    done = subprocess.run([*command, "-dry_run"], cwd=FOLDER, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert "one batch of 1 images" in done.stdout


def test_list_in_another_order_on_one_process_ends_all_with_one_line(tmp_path):
    """Each would evaluate every second line of its own: of a list and its reverse the same images."""
    model, _ = load_model("vit_tiny_digits")
    write_weights(tmp_path / "w.safetensors", export_tensors(model, "torch"))
    first, second = (make_images(tmp_path / f"images_{rank}") / "val_list.txt" for rank in range(2))
    second.write_text("\n".join(reversed(first.read_text().splitlines())))
    words = ["-cfg=./configs/vit_tiny_digits.yaml", "-dataset=list", "-eval"]
    words += [f"-pretrained={tmp_path / 'w.safetensors'}", f"-output={tmp_path / 'out'}", "-device=cpu"]
    words += ["-world_size=2", f"-port={free_port()}"]
    processes = [
        subprocess.Popen(
            [sys.executable, "main_multi_gpu.py", f"-rank={rank}", f"-data_path={tmp_path / f'images_{rank}'}", *words],
            cwd=FOLDER, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        for rank in range(2)
    ]  # fmt: skip
    texts = [process.communicate(timeout=150)[0] for process in processes]
    assert [process.returncode for process in processes] == [2, 2], texts
    assert "error: rank 1 was started for another run: the checksum of the evaluation images' labels is" in texts[0]


@pytest.mark.parametrize("kind", ["TENSOR", "PIPELINE"])
def test_image_that_one_of_those_that_share_a_pass_cannot_read_ends_all_with_its_message(tmp_path, kind):
    """As a worker that was killed does: the other one waited in the pass, up to PARALLEL.TIMEOUT."""
    for rank in range(2):
        folder = make_images(tmp_path / f"images_{rank}")
        (folder / "train_list.txt").write_text("".join(f"val/{index}.png {index % 10}\n" for index in range(4)))
    path = tmp_path / "images_1" / "val" / "20.png"
    path.write_bytes(path.read_bytes()[:50])
    words = ["-cfg=./configs/vit_tiny_digits.yaml", "-dataset=list", "-num_epochs=1", "-batch_size=2"]
    words += [f"-output={tmp_path / 'out'}", "-num_classes=10", "-device=cpu", "-world_size=2", f"-port={free_port()}"]
    processes = [
        subprocess.Popen(
            [sys.executable, "main_multi_gpu.py", f"-rank={rank}", f"-data_path={tmp_path / f'images_{rank}'}", *words,
             "-opts", "DATA.NUM_WORKERS=0", "DATA.BATCH_SIZE_EVAL=4", f"PARALLEL.{kind}=2"],
            cwd=FOLDER, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        for rank in range(2)
    ]  # fmt: skip
    texts = [process.communicate(timeout=150)[0] for process in processes]
    assert [process.returncode for process in processes] == [2, 2], texts
    assert all("20.png: corrupt image" in text for text in texts)
    assert (tmp_path / "out" / "latest.pdparams").exists()


@pytest.mark.parametrize("broken", [pytest.param("0.png", marks=pytest.mark.slow), "3.png"])  # one of each process's
def test_image_that_one_process_cannot_read_costs_no_step_and_a_resume_begins_with_it(tmp_path, broken):
    images = make_images(tmp_path / "images")
    (images / "train_list.txt").write_text("".join(f"val/{index}.png {index % 10}\n" for index in range(10, 14)))
    path = images / "val" / broken
    content = path.read_bytes()
    path.write_bytes(content[:50])
    command = [sys.executable, "main_multi_gpu.py", "-ngpus=2", "-cfg=./configs/vit_tiny_digits.yaml", "-batch_size=2"]
    command += ["-dataset=imagenet2012", f"-data_path={images}", "-num_epochs=1", f"-output={tmp_path / 'out'}"]
    command += ["-num_classes=10", "-opts", "DATA.NUM_WORKERS=0"]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2, done.stderr[-2000:]
    assert "Traceback" not in done.stderr
    assert done.stderr.count(f"{broken}: corrupt image") == 1
    path.write_bytes(content)
    command.insert(2, f"-resume={tmp_path / 'out' / 'latest'}")
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Step[" not in done.stdout
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert (report["epochs"], report["steps"], report["eval_images"]) == (1, 1, NUM_IMAGES)
