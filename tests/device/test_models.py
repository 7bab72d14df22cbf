"""Every family of the zoo on the test device: the CPU's numbers in float32, and every mode on the device alone."""

import numpy as np
import paddle
import pytest
from paddle.nn import functional as F

from image_classification import amp
from image_classification.layers import Dropout
from tests.device.conftest import DEVICE
from tests.half_cpu.test_models import small_model
from tests.helpers.model_zoo import FOLDERS

MODES = [("auto", "float16"), ("auto", "bfloat16"), ("O1", "float16"), ("O2", "float16"), ("O2", "bfloat16"),
         ("naive", "float16")]  # fmt: skip

BATCH = 8  # a BatchNorm of two images in their last, small maps divides by a difference of roundings


def train_step(device, folder, precision):
    """Return (loss, {name: gradient}) of a family's small model without dropout, on a device, as arrays.

    The weights are drawn on the CPU: each device has random numbers of its own.
    """
    paddle.set_device("cpu")
    paddle.seed(0)
    model, size = small_model(folder)
    weights = {name: value.numpy() for name, value in model.state_dict().items()}
    images = np.random.default_rng(0).standard_normal((BATCH, 3, size, size)).astype("float32")
    paddle.set_device(device)
    model, _ = small_model(folder)
    for layer in model.sublayers():
        if isinstance(layer, Dropout):
            layer.p = 0.0
    model = precision.convert_model(model)
    precision.load_model_state_dict(model, weights)
    images, labels = paddle.to_tensor(images), paddle.arange(1, 1 + BATCH)
    with precision.forward_context():
        outputs = model(images)
        outputs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
        loss = sum(F.cross_entropy(output.astype("float32"), labels) for output in outputs) / len(outputs)
    precision.backward(loss)
    gradients = {name: param.grad for name, param in precision.master_params(model) if param.grad is not None}
    return loss, gradients


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_float32_is_bit_for_bit_that_of_the_cpu(board, folder):
    """The device runs the CPU's own kernels: any difference is a wrong copy, order or address."""
    stock = amp.build_precision("fp32", device=DEVICE)  # also on the CPU: Paddle's own kernels, without oneDNN
    results = []
    for device in ("cpu", DEVICE):
        loss, gradients = train_step(device, folder, stock)
        results.append({"loss": loss.numpy(), **{name: tensor.numpy() for name, tensor in gradients.items()}})
    assert results[0].keys() == results[1].keys()
    for name, value in results[0].items():
        np.testing.assert_array_equal(results[1][name], value, err_msg=name)


@pytest.mark.parametrize(("mode", "dtype"), MODES)
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_every_mode_computes_on_the_device_alone(board, folder, mode, dtype):
    """No operator falls back to the CPU: nothing is copied to the host until the loss is read.

    The loss is within 3 % of float32's: a hundred roundings of 2^-9 in bfloat16, most of which cancel.
    """
    plain, _ = train_step(DEVICE, folder, amp.build_precision("fp32", device=DEVICE))
    options = {} if mode in ("O2", "naive") and dtype == "bfloat16" else {"init_scale": 128.0}
    precision = amp.build_precision(mode, dtype=dtype, device=DEVICE, options=options)
    (loss, gradients), copies = board.count(lambda: train_step(DEVICE, folder, precision), "copies_to_host")
    assert copies == 0
    assert abs(loss.item() - plain.item()) < 0.03 * plain.item()
    for name, gradient in gradients.items():
        assert np.isfinite(gradient.astype("float32").numpy()).all(), name
