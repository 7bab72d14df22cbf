"""Our files, read and saved again by PyTorch in each of its formats and number formats, come back bit-equal."""

import numpy as np
import pytest

from image_classification.weights import export_tensors, read_weights, write_weights
from image_classification.zoo import load_model

pytestmark = pytest.mark.peers

ENDINGS = {"safetensors": "safetensors", "zip": "pth", "legacy": "pth"}


@pytest.fixture(scope="module")
def tensors():
    """Return weights of a network with BatchNorm (int64 counters), random where they start at 0 or 1.

    All are exact in float16 and bfloat16 (7 bits, exponents of both), so that no format may change one of them.
    """
    model, _ = load_model("resnet_tiny_digits")
    rng = np.random.default_rng(0)

    def exact(shape):
        steps = rng.integers(128, 256, shape) * rng.choice([-1, 1], shape)
        return np.ldexp(steps, rng.integers(-14, -6, shape)).astype(np.float32)

    exported = export_tensors(model, "torch")
    return {name: exact(value.shape) if value.dtype == np.float32 else value for name, value in exported.items()}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("theirs", ENDINGS)
@pytest.mark.parametrize("ours", ["pth", "safetensors"])
def test_weights_through_pytorch_and_back_are_bit_equal(peers, tmp_path, tensors, ours, theirs, dtype):
    source, target = tmp_path / f"ours.{ours}", tmp_path / f"theirs.{ENDINGS[theirs]}"
    write_weights(source, tensors)
    peers.ask(action="resave", file=source, target=target, format=theirs, dtype=dtype, folder=tmp_path)
    found = read_weights(target).tensors
    assert found.keys() == tensors.keys()
    stored = np.float16 if dtype == "float16" else np.float32  # bfloat16 is read as float32
    for name, value in tensors.items():
        assert found[name].dtype == (stored if value.dtype == np.float32 else np.int64) and name in found
        np.testing.assert_array_equal(found[name].astype(value.dtype), value, err_msg=name, strict=True)
