"""The contract of a whole training on a GPU: what the host reads, resume, memory, evaluation, several processes.

Runs on the CPU in `make test`, on the test device in `make test-device` (CONTRACT_DEVICE) and on a GPU in
`make test-gpu`.
"""

import contextlib
import os
import time

import numpy as np
import paddle
import pytest
from paddle import nn

from image_classification import checkpoint, runtime
from image_classification.build import Parts, build_trainer
from image_classification.config import build_config
from image_classification.evaluation import evaluate
from image_classification.half_cpu.training_replay import RECORDED
from image_classification.losses import build_criterion
from image_classification.model import Block, Model
from image_classification.parallel.single import SingleProcess
from tests.helpers.entry import SMALL_VIT, report_of, run
from tests.helpers.operands import ON_THE_HOST, host_operands
from tests.house.test_gpu_contract import ALL, precision_for
from tests.test_trainer import ArrayLoader

READS = ("numpy", "item", "tolist", "cpu", "__array__", "__float__", "__int__", "__bool__")
HALF = [case for case in ALL if case[1] != "float32"]


class Net(Model):
    """Convolution, norms, dropout and a product; `seen` is the dtype that the first layer returned last."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2D(3, 8, 3, bias_attr=False)
        self.norm = nn.BatchNorm2D(8)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(8 * 36, 5)

    def features(self, images):
        features = self.conv(images)
        self.seen = features.dtype
        return self.drop(nn.functional.relu(self.norm(features))).flatten(1)

    def forward(self, images):
        return self.head(self.features(images))

    def sequential_blocks(self):
        return [Block("features", self.features, ("conv.", "norm.")), Block("head", self.head, ("head.",))]


def batches(count):
    random = np.random.default_rng(0)
    return [(random.standard_normal((16, 3, 8, 8)).astype("float32"), random.integers(0, 5, 16)) for _ in range(count)]


def make_trainer(device, mode, dtype, seed=0):
    """Return the program's own trainer of the small network."""
    optimizer = {"NAME": "AdamW"}
    train = {"NUM_EPOCHS": 9, "BASE_LR": 0.01, "WARMUP_EPOCHS": 0, "GRAD_CLIP": 1.0, "OPTIMIZER": optimizer}
    config = build_config([("test", {"MODEL": {"NUM_CLASSES": 5}, "DATA": {"BATCH_SIZE": 16}, "TRAIN": train})])
    runtime.seed_everything(seed)
    options = {} if dtype in ("float32", "bfloat16") else {"init_scale": 1024.0}
    precision = precision_for(device, mode, dtype, **options)
    model = precision.convert_model(Net())
    loader = ArrayLoader(batches(400))
    return build_trainer(
        Parts(config, device, SingleProcess(), model, precision, build_criterion(config), loader, loader)
    )


@contextlib.contextmanager
def host_reads():
    """Count the outermost calls that bring a tensor's values to the host."""
    count, depth = [0], [0]
    kind = paddle.Tensor
    originals = {name: getattr(kind, name) for name in READS if hasattr(kind, name)}

    def counted(original):
        def call(*args, **kwargs):
            count[0] += depth[0] == 0
            depth[0] += 1
            try:
                return original(*args, **kwargs)
            finally:
                depth[0] -= 1

        return call

    for name, original in originals.items():
        setattr(kind, name, counted(original))
    try:
        yield count
    finally:
        for name, original in originals.items():
            setattr(kind, name, original)


@pytest.mark.parametrize(("mode", "dtype"), ALL)
def test_step_reads_one_number(device, mode, dtype, report):
    """The norm that is the finite check; the loss is read when it is logged."""
    trainer = make_trainer(device, mode, dtype)
    steps = iter(batches(RECORDED + 3))
    for _ in range(RECORDED):  # on a CPU the last of them is recorded, and what is recorded compared
        trainer.train_step(steps, 1)
    with host_reads() as count:
        for _ in range(3):
            trainer.train_step(steps, 1)
    report(mode, dtype, "host reads a step", f"{count[0] / 3:g}")
    assert count[0] == 3
    assert trainer.progress.step == RECORDED + 3


@pytest.mark.parametrize("device", [pytest.param("gpu", marks=pytest.mark.gpu)], indirect=True)
@pytest.mark.parametrize(("mode", "dtype"), ALL)
def test_step_gives_no_operator_a_tensor_of_the_host(device, mode, dtype):
    trainer = make_trainer(device, mode, dtype)
    steps = iter(batches(2))
    trainer.train_step(steps, 1)  # the optimizer makes its state
    with host_operands() as found:
        trainer.train_step(steps, 1)
    assert found - ON_THE_HOST == set()


@pytest.mark.parametrize(("mode", "dtype"), ALL)
def test_evaluation_computes_as_training_does(device, mode, dtype):
    trainer = make_trainer(device, mode, dtype)
    trainer.train_step(iter(batches(1)), 1)
    trained = trainer.model.seen
    loader = ArrayLoader(batches(2))
    evaluate(trainer.model, trainer.precision, loader, trainer.parallel)
    assert trainer.model.seen == trained == getattr(paddle, dtype)


@pytest.mark.parametrize(("mode", "dtype"), ALL)
def test_resumed_training_ends_with_the_same_bits(device, mode, dtype, tmp_path):
    """Weights, optimizer, loss scale and the device's random state; two straight runs are the same too."""
    runtime.set_deterministic()
    data = batches(6)

    def weights(trainer):
        return {name: value.astype("float32").numpy() for name, value in trainer.model.state_dict().items()}

    straight, again = make_trainer(device, mode, dtype), make_trainer(device, mode, dtype)
    ends = []
    for trainer in (straight, again):
        paddle.seed(5)
        steps = iter(data)
        for step in range(6):
            if step == 3:
                checkpoint.save(tmp_path / "state.pdparams", trainer.state())
            trainer.train_step(steps, 1)
        ends.append(weights(trainer))
    resumed = make_trainer(device, mode, dtype, seed=9)
    resumed.load_state(checkpoint.load(tmp_path / "state.pdparams"), "a checkpoint")
    steps = iter(data[3:])
    for _ in range(3):
        resumed.train_step(steps, 1)
    ends.append(weights(resumed))
    for name, value in ends[0].items():
        np.testing.assert_array_equal(ends[1][name], value, err_msg=f"{name}: a second straight run")
        np.testing.assert_array_equal(ends[2][name], value, err_msg=f"{name}: resumed")


@pytest.mark.parametrize("num_steps", [200, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("mode", "dtype"), [("auto", "float16"), ("O2", "bfloat16")])
def test_memory_is_flat(device, mode, dtype, num_steps, report):
    """The device's to the byte; the host's to 8 MiB, a page for each of 2,000 steps: whatever is kept takes more."""
    trainer = make_trainer(device, mode, dtype)
    data = batches(20)
    kind = runtime.device_of(device)

    def train(count):
        for _ in range(count // len(data)):
            steps = iter(data)
            for _ in data:
                trainer.train_step(steps, 1)
            trainer.mean.flush()  # as the log does
        kind.synchronize()

    train(40)
    before, host_before, start = kind.peak_memory_bytes(), runtime.peak_memory_bytes(), time.perf_counter()
    train(num_steps)
    grown = runtime.peak_memory_bytes() - host_before
    report(mode, dtype, "peak memory", f"{kind.peak_memory_bytes() / 2**20:.1f} MiB")
    report(mode, dtype, "small steps/s", f"{num_steps / (time.perf_counter() - start):.0f}")
    report(mode, dtype, f"host memory grown in {num_steps} steps", f"{grown / 2**20:.1f} MiB")
    assert grown < 2000 * 4096
    if device != "cpu":
        assert kind.peak_memory_bytes() == before


@pytest.mark.parametrize(("mode", "dtype"), ALL)
def test_speed_is_reported(device, mode, dtype, report):
    """Figures for the report, of products that keep a GPU busy; no assertion: a stopwatch proves nothing here."""
    size = 4096 if device == "gpu" else 256
    precision = precision_for(device, mode, dtype)
    model = precision.convert_model(nn.Sequential(nn.Linear(size, size), nn.GELU(), nn.Linear(size, size)))
    images = paddle.ones([size, size])
    kind = runtime.device_of(device)

    def step():
        with precision.forward_context():
            loss = model(images).astype("float32").mean()
        precision.backward(loss)
        for _, param in precision.master_params(model):
            param.clear_gradient(False)

    for count in (2, 5):
        kind.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            step()
        kind.synchronize()
        seconds = time.perf_counter() - start
    report(mode, dtype, "ms a step of products", f"{1000 * seconds / 5:.1f}")



@pytest.mark.gpu
def test_two_processes_skip_a_step_together_and_train_like_one(tmp_path):
    """One process has an infinite gradient in its third step: both skip it, nobody waits, and the rest is averaged."""
    name = os.environ.get("CONTRACT_DEVICE", "gpu")
    if name != "cpu" and runtime.device_of(name).count() < 2:
        pytest.skip(f"needs two devices of the kind {name}")
    # Whoever waits for a process that went another way ends after three minutes, not after five.
    options = ["TRAIN.HOOKS=[tests.helpers.poison:PoisonHook]", "PARALLEL.TIMEOUT=180"]
    words = [*SMALL_VIT, *options, "-device", name, "-amp", "-num_epochs=1"]
    environment = {"PYTHONPATH": os.getcwd()}
    several = ["-ngpus=2", "-batch_size=64", "-output", tmp_path]
    code, out, err = run(*words, *several, script="main_multi_gpu.py", env=environment, timeout=300)
    assert code == 0, out + err
    report = report_of(tmp_path)
    assert report["skipped_steps"] == 1 and report["steps"] == 10 and report["world_size"] == 2
    assert "largest difference of weights between processes 0" in out
