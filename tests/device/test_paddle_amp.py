"""The same training by plain Paddle code (`paddle.amp.auto_cast`, `decorate`, `GradScaler`) and by ours, on the device.

On a CPU Paddle's own AMP does not run at all; here its dispatcher, scaler and optimizers do.
"""

from pathlib import Path

import numpy as np
import paddle
import pytest
from paddle.base import core
from paddle.nn import functional as F

from image_classification import amp
from tests.device.conftest import DEVICE
from tests.helpers.amp_models import batch, network
from tests.parallel.harness import run_ranks

STEPS = 12
POISONED = 10  # the step in which fleet_scaler.py has a loss of inf on one of two processes
SCALER = {"init_scale": 2.0**24, "growth_interval": 3}  # falls from far above what float16 holds, then grows
GRAD_SCALER = {"init_loss_scaling": 2.0**24, "incr_every_n_steps": 3, "decr_every_n_nan_or_inf": 1, "decr_ratio": 0.5}


@pytest.fixture
def start(board):
    """(weights, images, labels) as arrays, drawn on the CPU."""
    paddle.set_device("cpu")
    weights = {name: value.numpy() for name, value in network().state_dict().items()}
    images, labels = (tensor.numpy() for tensor in batch())
    paddle.set_device(DEVICE)
    return weights, images, labels


def by_paddle(start, level, dtype, optimizer, **decoration):
    """Return (losses, scales, skipped steps) of plain Paddle code."""
    weights, images, labels = start
    images, labels = paddle.to_tensor(images), paddle.to_tensor(labels)
    model = network()
    model.set_state_dict(weights)
    rule = getattr(paddle.optimizer, optimizer)(0.01, parameters=model.parameters())
    if level == "O2":
        model, rule = paddle.amp.decorate(model, rule, level="O2", dtype=dtype, master_weight=True, **decoration)
    scaler = paddle.amp.GradScaler(enable=dtype == "float16", **GRAD_SCALER)
    losses, scales, skipped = [], [], []
    for step in range(STEPS):
        with paddle.amp.auto_cast(level=level, dtype=dtype):
            logits = model(images)
        loss = F.cross_entropy(logits.astype("float32"), labels)
        scales.append(float(scaler._scale.item()) if dtype == "float16" else 1.0)
        before = model.state_dict()["7.bias"].astype("float32").numpy()
        scaler.scale(loss).backward()
        scaler.step(rule)
        scaler.update()
        rule.clear_grad()
        if np.array_equal(before, model.state_dict()["7.bias"].astype("float32").numpy()):
            skipped.append(step)
        losses.append(loss.item())
    return losses, scales, skipped


def by_us(start, mode, dtype, optimizer):
    """Return the same of ours."""
    weights, images, labels = start
    images, labels = paddle.to_tensor(images), paddle.to_tensor(labels)
    options = SCALER if dtype == "float16" else {}
    precision = amp.build_precision(mode, dtype=dtype, device=DEVICE, options=options)
    model = precision.convert_model(network())
    precision.load_model_state_dict(model, weights)
    params = [param for _, param in precision.master_params(model)]
    rule = getattr(paddle.optimizer, optimizer)(0.01, parameters=params)
    losses, scales, skipped = [], [], []
    for step in range(STEPS):
        with precision.forward_context():
            logits = model(images)
        loss = F.cross_entropy(logits.astype("float32"), labels)
        scales.append(precision.loss_scale)
        precision.backward(loss)
        if not precision.step(rule).applied:
            skipped.append(step)
        losses.append(loss.item())
    return losses, scales, skipped


@pytest.mark.parametrize("optimizer", ["AdamW", "Momentum"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_auto_is_level_1_bit_for_bit(start, dtype, optimizer):
    """Losses, scales and skipped steps: unscaling by a power of two rounds nothing, and the casts are the same."""
    ours, paddles = by_us(start, "auto", dtype, optimizer), by_paddle(start, "O1", dtype, optimizer)
    assert ours == paddles
    assert bool(ours[2]) == (dtype == "float16")  # the scale had to come down


@pytest.mark.parametrize("optimizer", ["AdamW", "Momentum"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("decoration", [{}, {"master_grad": True}], ids=["half_grad", "master_grad"])
def test_level_2_agrees_where_masters_start_alike(start, dtype, optimizer, decoration):
    """Paddle makes its masters of weights that were rounded already, ours are the originals.

    From weights that the format holds exactly both walk alike: the same scales and skipped steps, and in bfloat16 the
    same bits. In float16 Paddle divides half gradients by the scale, which loses what falls below 2^-24, and we do so
    in float32: losses agree to a rounding of the logits.
    """
    weights, images, labels = start
    exact = {name: paddle.to_tensor(value).astype(dtype).astype("float32").numpy() for name, value in weights.items()}
    start = exact, images, labels
    ours, paddles = by_us(start, "O2", dtype, optimizer), by_paddle(start, "O2", dtype, optimizer, **decoration)
    assert ours[1:] == paddles[1:]
    np.testing.assert_allclose(ours[0], paddles[0], rtol=0, atol={"float16": 2.0**-11, "bfloat16": 0}[dtype])


def operator_calls(run):
    """Return {operator: (float16 calls, bfloat16 calls, float32 calls)} of what a function runs."""
    paddle.set_flags({"FLAGS_low_precision_op_list": 1})
    core.clear_low_precision_op_list()
    try:
        run()
        counts = core.get_low_precision_op_list()
    finally:
        paddle.set_flags({"FLAGS_low_precision_op_list": 0})
    return {name: tuple(map(int, numbers.split(",")[:3])) for name, numbers in counts.items()}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_casts_of_each_operator_are_those_of_auto_cast(start, dtype):
    """Paddle's own count of operators by format, of a training step's forward pass and loss."""
    weights, images, labels = start
    images, labels = paddle.to_tensor(images), paddle.to_tensor(labels)
    model = network()
    precision = amp.build_precision("auto", dtype=dtype, device=DEVICE)

    def forward(context):
        with context:
            F.cross_entropy(model(images).astype("float32"), labels)

    ours = operator_calls(lambda: forward(precision.forward_context()))
    paddles = operator_calls(lambda: forward(paddle.amp.auto_cast(level="O1", dtype=dtype)))
    assert ours == paddles
    assert ours["conv2d"][{"float16": 0, "bfloat16": 1}[dtype]] == 1


def test_two_processes_step_and_skip_as_with_the_scaler_of_fleet(board, tmp_path):
    """Losses, scales and skipped steps bit for bit: halving before or after the sum of two rounds nothing."""
    ranks = run_ranks(Path(__file__).with_name("fleet_scaler.py"), 2, tmp_path)
    for rank in ranks:
        assert rank["ours"] == rank["fleet"]
        assert POISONED in rank["ours"]["skipped"] and 0 in rank["ours"]["skipped"]
    assert ranks[0]["ours"]["scales"] == ranks[1]["ours"]["scales"]
    assert ranks[0]["ours"]["losses"] != ranks[1]["ours"]["losses"]  # each has half of the images
