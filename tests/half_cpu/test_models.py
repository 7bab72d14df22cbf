"""Whole models train on real half tensors and under a policy: the zoo's, and models that nobody here wrote."""

import functools
import inspect

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn

from image_classification import half_cpu
from tests.helpers.half_cpu_cases import CASES
from tests.helpers.half_cpu_rounding import DTYPES, bits
from tests.helpers.model_zoo import FOLDERS, build, builder, digits_cases

# batch_norm and dropout have tests of their own: one updates statistics, the other draws random numbers.
TESTED = {case.operator for case in CASES} | {"batch_norm", "dropout"}


class Recorder:
    """A policy without opinion."""

    def __init__(self):
        self.seen = set()

    def cast(self, op_name, tensors):
        self.seen.add(op_name)


class Mixed(Recorder):
    """Products in half precision, sums and losses in float32, the rest as its widest input: like automatic casting."""

    half = ("conv2d", "depthwise_conv2d", "matmul", "linear", "bmm", "einsum")
    wide = ("softmax", "layer_norm", "cross_entropy_with_softmax", "mean", "mean_all", "sum", "pow")

    def __init__(self, dtype):
        super().__init__()
        self.dtype = dtype

    def cast(self, op_name, tensors):
        super().cast(op_name, tensors)
        if op_name in self.half:
            return self.dtype
        if op_name in self.wide or op_name != "batch_norm" and any(t.dtype == paddle.float32 for t in tensors):
            return "float32"
        return None


def loss_of(model, images, labels):
    outputs = model(images)
    outputs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
    return sum(F.cross_entropy(output, labels, label_smoothing=0.1) for output in outputs) / len(outputs)


def train_step(model, image_size, dtype, policy, images_dtype):
    """Run one forward and backward pass and check that every gradient is there, finite and of the right dtype."""
    paddle.seed(1)
    model.train()
    images = paddle.randn([2, 3, image_size, image_size]).astype(images_dtype)
    with half_cpu.dispatch(policy, backend="reference"):
        loss = loss_of(model, images, paddle.to_tensor([1, 2]))
    loss.backward()
    assert np.isfinite(loss.astype("float32").item())
    for name, parameter in model.named_parameters():
        if parameter.stop_gradient:
            continue
        assert parameter.grad is not None, f"{name} has no gradient"
        assert parameter.grad.dtype == parameter.dtype, name
        assert is_finite(parameter.grad), f"{name} has a non-finite gradient"
    return loss


def is_finite(tensor):
    """Look at the exponent bits: converting 138 million half numbers takes seconds."""
    if tensor.dtype == paddle.float32:
        return np.isfinite(tensor.numpy()).all()
    exponent = 0x7C00 if tensor.dtype == paddle.float16 else 0x7F80
    return ((bits(tensor) & exponent) != exponent).all()


def make_half(model, dtype):
    """Convert parameters and floating buffers; `Layer.to(dtype=...)` would convert index buffers as well."""
    for layer in model.sublayers(include_self=True):
        for tensors in (layer._parameters, layer._buffers):
            for name, tensor in tensors.items():
                if tensor is not None and paddle.is_floating_point(tensor):
                    converted = tensor.detach().astype(dtype)
                    if isinstance(tensor, paddle.base.framework.EagerParamBase):
                        trainable = not tensor.stop_gradient
                        converted = paddle.base.framework.EagerParamBase.from_tensor(converted, trainable=trainable)
                    tensors[name] = converted


def train_half(model, image_size, dtype):
    make_half(model, dtype)
    policy = Recorder()
    assert train_step(model, image_size, dtype, policy, dtype).dtype == getattr(paddle, dtype)
    return policy.seen


def train_mixed(model, image_size, dtype):
    policy = Mixed(dtype)
    assert train_step(model, image_size, dtype, policy, "float32").dtype == paddle.float32
    return policy.seen


# Values that make any model of the zoo small; a builder takes those that it knows.
SMALL = {
    "image_size": 64, "patch_size": 8, "num_classes": 10, "embed_dim": 32, "depth": 2, "hidden_dim": 32,
    "window_size": 4, "dropout": 0.1, "attention_dropout": 0.1, "drop_path": 0.1, "distilled": True,
    "batch_norm": True, "width_per_group": 16, "branch_sizes": 48, "base_width": 16, "mlp_ratio": 2.0, "grn": True,
    "head_dim": 8,
}  # fmt: skip


def shallow(depths):
    """Return depths of the same structure of which none is more than 1."""
    return tuple(map(shallow, depths)) if isinstance(depths, tuple) else min(depths, 1)


def small_model(folder):
    """Return (a small model of a zoo folder, its image size in pixels)."""
    build_model = builder(folder)
    arguments = {}
    for name, parameter in inspect.signature(build_model).parameters.items():
        if name in SMALL:
            several = isinstance(parameter.default, tuple)
            arguments[name] = (SMALL[name],) * len(parameter.default) if several else SMALL[name]
        elif name in ("depths", "layers"):
            arguments[name] = shallow(parameter.default)
        elif name == "dims":
            arguments[name] = tuple(8 * (1 + index) for index in range(len(parameter.default)))
        elif name == "num_heads":
            arguments[name] = 2 if isinstance(parameter.default, int) else (2,) * len(parameter.default)
    return build_model(**arguments), arguments.get("image_size", 64)


@pytest.mark.parametrize("train", [train_half, train_mixed], ids=["half", "policy"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_every_model_of_the_zoo_trains_and_uses_tested_operators_only(folder, dtype, train):
    paddle.seed(0)
    seen = train(*small_model(folder), dtype)
    assert seen - TESTED == set(), "add a case to tests/helpers/half_cpu_cases.py"


@pytest.mark.parametrize("train", [train_half, train_mixed], ids=["half", "policy"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("path", [case.values[0] for case in digits_cases() if case.marks], ids=lambda path: path.stem)
def test_other_variants_of_a_family_train_and_use_tested_operators_only(path, dtype, train):
    paddle.seed(0)
    seen = train(build(path), 32, dtype)
    assert seen - TESTED == set(), "add a case to tests/helpers/half_cpu_cases.py"


class Transformer(nn.Layer):
    """A vision transformer of Paddle's own layers."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2D(3, 16, 8, 8)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(16, 10)

    def forward(self, images):
        return self.head(self.encoder(self.patches(images).flatten(2).transpose([0, 2, 1])).mean(axis=1))


# Of 32 pixels one would be left at the end, and gradients through the norm of a batch of two go beyond float16.
FOREIGN = {
    "resnet18": (functools.partial(paddle.vision.models.resnet18, num_classes=10), 64),
    "mobilenet_v3_small": (functools.partial(paddle.vision.models.mobilenet_v3_small, num_classes=10), 64),
    "densenet121": (functools.partial(paddle.vision.models.densenet121, num_classes=10), 64),
    "transformer": (Transformer, 32),
}


@pytest.mark.parametrize("train", [train_half, train_mixed], ids=["half", "policy"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FOREIGN)
def test_models_that_nobody_here_wrote_train(name, dtype, train):
    paddle.seed(0)
    make, image_size = FOREIGN[name]
    seen = train(make(), image_size, dtype)
    assert seen - TESTED == set(), "add a case to tests/helpers/half_cpu_cases.py"


def test_vgg16_trains_in_both_half_formats_and_under_a_policy():
    """One model for all three, because making its 138 million weights takes longer than a step."""
    paddle.seed(0)
    model = paddle.vision.models.vgg16(num_classes=10)
    train_mixed(model, 32, "bfloat16")
    for dtype in ("bfloat16", "float16"):
        model.clear_gradients()
        train_half(model, 32, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_training_on_half_parameters_lowers_the_loss_and_moves_running_statistics(dtype):
    paddle.seed(0)
    model = nn.Sequential(
        nn.Conv2D(3, 8, 3, 2), nn.BatchNorm2D(8), nn.ReLU(), nn.MaxPool2D(2), nn.Flatten(), nn.Linear(8 * 49, 10)
    )  # fmt: skip
    model.to(dtype=dtype)
    images, labels = paddle.randn([16, 3, 32, 32]).astype(dtype), paddle.randint(0, 10, [16])
    optimizer = paddle.optimizer.Momentum(0.02, parameters=model.parameters())
    losses = []
    for _ in range(6):
        with half_cpu.dispatch(backend="reference"):
            loss = F.cross_entropy(model(images), labels)
        loss.backward()
        with half_cpu.dispatch(backend="reference"):
            optimizer.step()
        optimizer.clear_grad()
        losses.append(loss.astype("float32").item())
    assert losses[-1] < 0.5 * losses[0]
    norm = model[1]
    assert norm._mean.dtype == norm._variance.dtype == getattr(paddle, dtype)
    assert float(norm._mean.astype("float32").abs().sum()) > 0.01


def test_gradients_of_two_batches_accumulate_in_the_half_parameters():
    layer = nn.Linear(4, 3)
    layer.to(dtype="float16")
    total = np.zeros([4, 3], np.float16)
    for seed in range(2):
        paddle.seed(seed)
        x = paddle.randn([5, 4]).astype("float16")
        with half_cpu.dispatch(backend="reference"):
            loss = layer(x).sum()
        loss.backward()
        (single,) = paddle.grad(loss_again(layer, x), [layer.weight])
        total = (total.astype(np.float32) + single.numpy().astype(np.float32)).astype(np.float16)
    np.testing.assert_array_equal(layer.weight.grad.numpy(), total)


def loss_again(layer, x):
    with half_cpu.dispatch(backend="reference"):
        return layer(x).sum()
