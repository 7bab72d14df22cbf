"""The contract of every precision mode on a GPU, compared with the CPU: `make test-gpu` prints one report.

The same tests run on the CPU in `make test`. Without a GPU the GPU half is skipped; with CONTRACT_DEVICE=cpu it runs
on the CPU, which shows that the tests themselves work.

Tolerances of single operators: GPU and CPU add in different orders and both round to the half format, so results may
differ by a few units in the last place: 2^-8 in float16, 2^-5 in bfloat16, relative to the largest value.
"""

import functools

import numpy as np
import paddle
import pytest
from paddle import nn
from paddle.nn import functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from image_classification import amp
from tests.amp.test_operator_casts import CASES, name_of
from tests.helpers.amp_models import MODES, batch, network
from tests.helpers.random_rounding import ROUNDING, bound, round_at_random

TOLERANCE = {"float32": 1e-4, "float16": 2.0**-8, "bfloat16": 2.0**-5}
# The operators of the zoo's models whose results are not random.
ZOO = [  # fmt: skip
    "linear", "matmul", "conv2d", "depthwise conv2d", "batch_norm", "layer_norm", "softmax", "log_softmax",
    "cross_entropy", "relu", "gelu", "sigmoid", "silu", "hardswish", "max_pool2d", "avg_pool2d",
    "adaptive_avg_pool2d", "sum", "mean", "max", "pow", "norm", "reshape", "transpose", "slice", "split", "flatten",
    "scale by a number", "add same dtype", "add float32", "multiply float32", "concat float32", "concat same dtype",
]
# On a device auto_cast cannot take an operator off Paddle's black list, so O1 computes these in float32.
DEVICE_LEVEL_1 = {"mean": "float32"}
# Paddle for CUDA has one operator for product and bias since 3.3. Elsewhere a half product meets a float32 bias.
DEVICE_CASTS = {} if paddle.is_compiled_with_cuda() else {"linear": "float32"}
# Paddle's shape function of this loss says float32 for bfloat16 logits.
DEVICE_RESULTS = {("cross_entropy", "bfloat16")}
ALL = [("fp32", "float32"), *MODES]
# In another order a sum differs by up to a rounding per term; the longest, batch norm's, is over 16 images of 6 x 6. A
# GPU multiplies float32 numbers as TF32, which has float16's precision.
FLOAT32_SUMS = {"gpu": ROUNDING["float16"]}


def precision_for(device, mode, dtype, **options):
    if device != "cpu" and dtype != "float32":
        supported = {"float16": paddle.amp.is_float16_supported, "bfloat16": paddle.amp.is_bfloat16_supported}[dtype]
        if not supported():
            pytest.skip(f"this device does not compute {dtype}")
    return amp.build_precision(mode, dtype=None if mode == "fp32" else dtype, device=device, options=options)


def run_operator(device, case, mode, dtype, given):
    """Return (dtype of the result, its values, the gradient's values) of one operator with fixed inputs."""
    function, shape, _, _ = CASES[case]
    random = np.random.default_rng(0)

    def make(shape, dtype):
        tensor = paddle.to_tensor(random.uniform(0.1, 0.9, shape).astype("float32")).astype(dtype)
        tensor.stop_gradient = False
        return tensor

    x = make(shape, given)
    stored = dtype if mode in ("O2", "O3", "naive") else "float32"
    with precision_for(device, mode, dtype).forward_context():
        result = function(x, lambda shape: make(shape, stored))
    # Unequal weights: through a softmax or a norm the gradient of a plain sum is 0, and only rounding is compared.
    weights = paddle.to_tensor(random.uniform(0.5, 1.5, result.shape).astype("float32"))
    (result.astype("float32") * weights).sum().backward()
    return name_of(result.dtype), result.astype("float32").numpy(), x.grad.astype("float32").numpy()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("mode", ["auto", "O1", "O2", "naive"])
def test_operators_agree_with_the_cpu(device, mode, dtype):
    operator_casts = mode in ("auto", "O1")
    for case in ZOO:
        for given in (dtype, "float32") if operator_casts else (dtype,):
            _, _, auto, level_1 = CASES[case]
            kind = auto if mode == "auto" else level_1 if mode == "O1" else "half"
            if operator_casts and device != "cpu":
                kind = (DEVICE_CASTS | (DEVICE_LEVEL_1 if mode == "O1" else {})).get(case, kind)
            elif device != "cpu" and (case, dtype) in DEVICE_RESULTS:
                kind = "float32"
            if not operator_casts and case.endswith("float32"):
                continue  # weights of a half model are half
            expected = {"in": given, "half": dtype, "float32": "float32"}[kind]
            found, values, gradient = run_operator(device, case, mode, dtype, given)
            assert found == expected, case
            if device == "cpu":
                continue
            paddle.set_device("cpu")
            _, reference, reference_gradient = run_operator("cpu", case, mode, dtype, given)
            paddle.set_device(device)
            for ours, theirs in ((values, reference), (gradient, reference_gradient)):
                tolerance = TOLERANCE[dtype] * max(1e-3, np.abs(theirs).max())
                np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance, err_msg=case)


def train(device, mode, dtype, disturb=lambda model: None):
    """Return (20 losses, StepResults) of a small network from the same weights on any device."""
    paddle.set_device("cpu")  # each device draws its own random numbers
    initial = {name: tensor.numpy() for name, tensor in network().state_dict().items()}
    images, labels = (tensor.numpy() for tensor in batch())
    paddle.set_device(device)
    # naive's documented 2^32 would spend these steps on coming down
    options = {"init_scale": 1024.0} if mode == "naive" and dtype == "float16" else {}
    precision = precision_for(device, mode, dtype, **options)
    model = precision.convert_model(network())
    precision.load_model_state_dict(model, initial)
    disturb(model)
    optimizer = paddle.optimizer.AdamW(0.01, parameters=[param for _, param in precision.master_params(model)])
    images, labels = paddle.to_tensor(images), paddle.to_tensor(labels)
    losses, results = [], []
    for _ in range(20):
        with precision.forward_context():
            loss = F.cross_entropy(model(images).astype("float32"), labels)
        precision.backward(loss)
        results.append(precision.step(optimizer))
        losses.append(loss.item())
    return losses, results


@pytest.mark.parametrize(("mode", "dtype"), ALL)
def test_first_twenty_losses_are_those_of_the_cpu_but_for_a_rounding_per_operator(device, mode, dtype, report):
    """No further from the CPU's than three trainings there whose every operator is rounded at random."""
    losses, results = train(device, mode, dtype)
    assert losses[-1] < losses[0]
    assert all(result.applied for result in results)
    reference, _ = train("cpu", mode, dtype)
    difference = np.abs(np.subtract(losses, reference))
    report(mode, dtype, "first loss", f"{losses[0]:.4f}")
    report(mode, dtype, "last loss", f"{losses[-1]:.4f}")
    report(mode, dtype, "largest difference from the CPU", f"{difference.max():.1e}")
    if device == "cpu":
        assert (difference == 0).all()
        return
    size = FLOAT32_SUMS.get(device, 576 * ROUNDING["float32"]) if dtype == "float32" else ROUNDING[dtype]
    hooks = [functools.partial(round_at_random, size=size, seed=seed) for seed in range(3)]
    allowed = bound(reference, [train("cpu", mode, dtype, disturb)[0] for disturb in hooks])
    report(mode, dtype, "a rounding per operator", f"{allowed[-1]:.1e}")
    assert (difference <= allowed).all(), f"{difference} is more than {allowed}"


@pytest.mark.parametrize(("mode", "dtype"), ALL)
def test_non_finite_gradient_skips_the_step(device, mode, dtype):
    precision = precision_for(device, mode, dtype, **({} if mode == "fp32" else {"init_scale": 1024.0}))
    model = precision.convert_model(network())
    named = precision.master_params(model)
    optimizer = paddle.optimizer.Momentum(0.1, parameters=[param for _, param in named])
    before = {name: param.numpy().tobytes() for name, param in named}
    with precision.forward_context():
        loss = F.cross_entropy(model(batch()[0]).astype("float32"), batch()[1])
    precision.backward(loss * float("inf"))
    result = precision.step(optimizer)
    assert not result.applied
    assert result.first_bad in before
    assert {name: param.numpy().tobytes() for name, param in named} == before
    assert precision.loss_scale == {"fp32": 1.0, "naive": 1024.0}.get(mode, 512.0)  # naive has a hysteresis of 2


def digits_accuracy(device, mode, dtype, epochs=6):
    """Return top-1 of a small convolutional network on scikit-learn's handwritten digits."""
    data = load_digits()
    images = (data.images[:, None] / 8.0 - 1.0).astype("float32")
    x, x_test, y, y_test = train_test_split(images, data.target, test_size=0.2, random_state=0, stratify=data.target)
    paddle.seed(0)
    precision = precision_for(device, mode, dtype)
    model = precision.convert_model(
        nn.Sequential(
            nn.Conv2D(1, 16, 3, padding=1, bias_attr=False),
            nn.BatchNorm2D(16),
            nn.ReLU(),
            nn.Conv2D(16, 32, 3, stride=2, padding=1, bias_attr=False),
            nn.BatchNorm2D(32),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(512, 10),
        )
    )
    optimizer = paddle.optimizer.AdamW(2e-3, parameters=[param for _, param in precision.master_params(model)])
    order = np.random.default_rng(0)
    for _ in range(epochs):
        for rows in np.array_split(order.permutation(len(x)), 12):
            with precision.forward_context():
                logits = model(paddle.to_tensor(x[rows]))
                loss = F.cross_entropy(logits.astype("float32"), paddle.to_tensor(y[rows]))
            precision.backward(loss)
            precision.step(optimizer)
    model.eval()
    with paddle.no_grad(), precision.forward_context():
        predicted = model(paddle.to_tensor(x_test)).astype("float32").numpy().argmax(axis=1)
    return (predicted == y_test).mean()


@pytest.fixture(scope="module")
def float32_accuracy():
    """Top-1 of the float32 run on the CPU."""
    accuracy = digits_accuracy("cpu", "fp32", "float32")
    assert accuracy > 0.95
    return accuracy


@pytest.mark.parametrize(
    ("mode", "dtype"),
    [("auto", "float16"), ("auto", "bfloat16"), ("O1", "float16"), ("O2", "float16"), ("naive", "bfloat16")],
)
def test_digits_accuracy_is_that_of_float32(device, mode, dtype, float32_accuracy):
    """Within two points, seven of the 360 test images: seeds alone differ by about one."""
    assert abs(digits_accuracy(device, mode, dtype) - float32_accuracy) <= 0.02
