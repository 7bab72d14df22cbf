"""The programs on the test device, as users start them: train, resume, evaluate, several processes, tools, faults."""

import json
import signal

import numpy as np
import pytest

from image_classification import checkpoint, launch
from tests.device.conftest import DEVICE
from tests.helpers.entry import PACKAGE, SMALL_VIT, report_of, run
from tests.helpers.model_zoo import builder

SLOW = pytest.mark.slow
# What every run here has: dropout, an average of the weights, two micro-batches a step.
BUSY = [*SMALL_VIT, "MODEL.DROPOUT=0.1", "TRAIN.MODEL_EMA=True", "TRAIN.ACCUM_ITER=2", "-device", DEVICE]


@pytest.fixture
def train(board, monkeypatch):
    """A function that runs the ViT's program in this process, which has Paddle already, and returns its exit code."""
    monkeypatch.chdir(PACKAGE / "ViT")
    build_model = builder(PACKAGE / "ViT")
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield lambda *words: launch.run_guarded(build_model, [str(word) for word in words])
    for number, handler in handlers.items():
        signal.signal(number, handler)


def tensors_of(state):
    """Yield (name, array) of everything in a checkpoint that must be the same in both."""
    for part in ("model", "optimizer", "ema"):
        for name, value in state[part].items():
            yield f"{part} {name}", np.asarray(value)


MODES = {"fp32": [], "auto": ["-amp", "-amp_dtype", "bfloat16"], "O2": ["-amp_mode", "O2"]}


@pytest.mark.parametrize("precision", MODES.values(), ids=MODES)
def test_resumed_run_ends_with_the_bits_of_the_straight_one(train, tmp_path, precision):
    """Dropout goes on with the device's own random state."""
    words = [*BUSY, *precision, "-num_epochs", 2]
    assert train(*words, "-output", tmp_path / "straight") == 0
    first = tmp_path / "straight" / "epoch_0001.pdparams"
    assert train(*words, "-resume", first, "-output", tmp_path / "resumed") == 0
    straight, resumed = (checkpoint.load(tmp_path / name / "latest.pdparams") for name in ("straight", "resumed"))
    found = dict(tensors_of(resumed))
    for name, value in tensors_of(straight):
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    report = report_of(tmp_path / "straight")
    assert report["device"] == DEVICE and report["peak_memory_bytes"] > 0


def test_evaluation_on_the_device_is_that_on_the_cpu(train, tmp_path):
    """Weights trained on the device answer alike on both: top-1 within one of 360 images, the loss to 1e-3."""
    assert train(*BUSY, "-num_epochs", 1, "-output", tmp_path / "run") == 0
    weights = tmp_path / "run" / "latest.pdparams"
    for device in (DEVICE, "cpu"):
        words = [*SMALL_VIT, "-device", device, "-eval", "-pretrained", weights, "-output", tmp_path / device]
        assert train(*words) == 0
    ours, theirs = report_of(tmp_path / DEVICE), report_of(tmp_path / "cpu")
    assert abs(ours["top1"] - theirs["top1"]) <= 1.001 / 360


def test_device_without_memory_is_one_line_and_the_checkpoint_stays(train, tmp_path, board, capfd):
    assert train(*BUSY, "-num_epochs", 1, "-output", tmp_path / "run") == 0
    before = (tmp_path / "run" / "latest.pdparams").read_bytes()
    board["limit"] = board["used"]
    capfd.readouterr()
    words = [*BUSY, "-batch_size=512", "-num_epochs", 2, "-resume", tmp_path / "run/latest"]
    assert train(*words, "-output", tmp_path / "more") == 3
    assert "error: the device failed" in capfd.readouterr().err
    assert (tmp_path / "run" / "latest.pdparams").read_bytes() == before


def test_device_that_disappears_is_one_line_and_nothing_hangs(board, tmp_path):
    environment = {"TESTDEV_SET": "lose_after=4000"}
    code, _, err = run(*BUSY, "-num_epochs", 50, "-output", tmp_path / "run", env=environment, timeout=300)
    assert code == 3
    assert [line for line in err.splitlines() if line.startswith("error:")][0].startswith("error: the device failed")
    assert "Traceback" not in err
    assert checkpoint.load(tmp_path / "run" / "latest.pdparams")["progress"]["epoch"] >= 1


LAYOUTS = {  # name: (processes, images of a micro-batch, mode, its options, options of the layout), 128 images a step
    "dp2": (2, 64, "auto", [], []),
    "dp2tp2": (4, 64, "auto", [], ["PARALLEL.TENSOR=2"]),
    "dp4": (4, 32, "O2", [], []),
    "tp2": (2, 128, "naive", ["AMP.init_scale=1024"], ["PARALLEL.TENSOR=2"]),
    "pp2": (2, 64, "fp32", [], ["PARALLEL.PIPELINE=2", "TRAIN.ACCUM_ITER=2"]),
    "dp2pp2": (4, 32, "naive", ["AMP.init_scale=1024"], ["PARALLEL.PIPELINE=2", "TRAIN.ACCUM_ITER=2"]),
    "dp2sh2": (4, 32, "auto", [], ["PARALLEL.SHARDING=2"]),
}
FAST = ("dp2", "dp2tp2")


@pytest.mark.parametrize("layout", [pytest.param(name, marks=() if name in FAST else SLOW) for name in LAYOUTS])
def test_processes_over_the_device_collectives_train_like_one(train, board, tmp_path, layout):
    """The same weights but for rounding: on average to a fiftieth of what Adam moves them, the sum of the rates."""
    number, batch_size, mode, options, places = LAYOUTS[layout]
    options = [*SMALL_VIT, "MODEL.DEPTH=2", "REPORT_FREQ=1", *options]
    flags = ["-device", DEVICE, "-amp_mode", mode, "-num_epochs", "1"]
    words = [*options, *places, *flags, "-ngpus", number, "-batch_size", batch_size, "-output", tmp_path / "several"]
    count = {"TESTDEV_COUNT": str(number)}
    code, out, err = run(*words, script="main_multi_gpu.py", env=count, timeout=600)
    assert code == 0, out + err
    assert f"{number} processes over xccl" in out
    assert train(*options, *flags, "-batch_size=128", "-output", tmp_path / "one") == 0
    several, one = (checkpoint.load(tmp_path / name / "latest.pdparams")["model"] for name in ("several", "one"))
    difference = np.concatenate([np.ravel(several[name] - value) for name, value in one.items()])
    records = map(json.loads, (tmp_path / "one" / "metrics.jsonl").read_text().splitlines())
    moved = sum(record.get("lr", 0) for record in records)
    print(f"{layout}: {np.sqrt(np.mean(difference**2)) / moved:.4f} of what the weights moved")
    assert np.sqrt(np.mean(difference**2)) <= 0.02 * moved


def test_collective_that_fails_ends_both_processes_with_one_line_each(board, tmp_path):
    environment = {"TESTDEV_SET": "fail_collective_after=60", "TESTDEV_RANK": "1"}
    words = [*SMALL_VIT, "-device", DEVICE, "-num_epochs", "20", "-amp", "-ngpus=2", "-output", tmp_path / "run"]
    code, _, err = run(*words, script="main_multi_gpu.py", env=environment, timeout=300)
    assert code in (3, 4)
    assert "Traceback" not in err and "error: " in err


def test_format_that_the_device_lacks_is_one_line_before_any_work(board, tmp_path):
    """Paddle's auto_cast would go on in float32 with a warning: it casts to bfloat16 on four plug-ins by name."""
    words = [*SMALL_VIT, "-device", "other", "-amp", "-amp_dtype", "bfloat16", "-output", tmp_path / "run"]
    code, _, err = run(*words, env={"TESTDEV_NAME": "other"}, timeout=300)
    assert code == 2
    (line,) = [line for line in err.splitlines() if line.startswith("error:")]
    assert "auto_cast does not cast to bfloat16 on other" in line
    assert not (tmp_path / "run").exists()


def test_optimizer_without_a_kernel_is_one_line_before_any_work(board, tmp_path):
    words = [*SMALL_VIT, "TRAIN.OPTIMIZER.NAME=Momentum", "-device", DEVICE, "-amp_mode=O3", "-amp_dtype=bfloat16"]
    environment = {"TESTDEV_WITHOUT": "momentum bfloat16"}
    code, _, err = run(*words, "-output", tmp_path / "run", env=environment, timeout=300)
    assert code == 2
    (line,) = [line for line in err.splitlines() if line.startswith("error:")]
    assert "Momentum has no bfloat16 kernel on npu" in line


RECIPES = {"ViT": "vit_tiny_digits", "ResNet": "resnet_tiny_digits"}
FULL = [("auto", "float16"), ("auto", "bfloat16"), ("O1", "float16"), ("O2", "float16"), ("naive", "float16")]


@SLOW
@pytest.mark.parametrize(("mode", "dtype"), FULL)
@pytest.mark.parametrize("family", RECIPES)
def test_digits_recipe_reaches_the_accuracy_of_the_cpu(board, tmp_path, family, mode, dtype):
    """Top-1 0.96, the least that the recipe accepts on a CPU, with the loop's worker at work (no lazy queue)."""
    words = [f"-cfg=./configs/{RECIPES[family]}.yaml", "-device", DEVICE, "-amp_mode", mode, "-amp_dtype", dtype]
    code, out, err = run(*words, "-output", tmp_path / "run", model=family, env={"TESTDEV_SET": "lazy=0"}, timeout=1800)
    assert code == 0, out + err
    assert report_of(tmp_path / "run")["best_top1"] >= 0.96
