"""The weights that a training begins with are distributed as those of the library whose models a family names."""

import re

import numpy as np
import paddle
import pytest

from image_classification.weights import load_pretrained
from tests.helpers.model_zoo import build

from .test_logits import VARIANTS, job_of

pytestmark = pytest.mark.peers

# each with the smallest variant of another kind of layer; others follow their authors where timm does not
CASES = [
    ("timm", "beit_base_patch16_224"),
    ("timm", "cait_xxs24_224"),
    ("timm", "convnextv2_atto"),
    ("timm", "densenet121"),
    ("timm", "efficientnet_b0"),
    ("timm", "eva02_tiny_patch14_224"),
    ("timm", "maxvit_rmlp_pico_rw_256"),
    ("timm", "mobilenetv3_small_100"),
    ("timm", "mobilenetv4_conv_small"),
    ("timm", "poolformer_s12"),
    ("timm", "pvt_v2_b0"),
    ("timm", "regnetx_002"),
    ("timm", "xcit_nano_12_p8_224"),
    ("torchvision", "resnet18"),
]
SIGMAS = 8  # of hundreds of tensors in a run none is so far from its own distribution by chance
# Patches and heads start as linear layers do here, whatever the family; BEiT's head a thousandth as large there.
ELSE = re.compile(r"patch_embed\.proj\.|head\.(fc\.)?(weight|bias)")
OTHERS = ("beit_base_patch16_224", "cait_xxs24_224", "eva02_tiny_patch14_224", "maxvit_rmlp_pico_rw_256")
FAR = 1.9  # where float32's truncated normals put one of a million draws, in both libraries


def moments(value):
    """Return (numbers, mean, deviation, fourth moment over the deviation's) of a tensor."""
    value = value.numpy().astype("float64").ravel()
    value = value[np.abs(value) < FAR] if value.std() < 0.1 else value
    deviation = value.std()
    fourth = np.mean((value - value.mean()) ** 4) / deviation**4 if deviation else 0.0
    return len(value), value.mean(), deviation, fourth


@pytest.mark.parametrize(("library", "name"), CASES)
def test_fresh_weights_are_distributed_as_the_peers(peers, tmp_path, library, name):
    """Mean, deviation and shape (a normal's fourth moment is 3, a uniform's 1.8) of each tensor, by sampling errors."""
    side, job = job_of(library, name)
    file = tmp_path / "fresh.safetensors"
    peers.ask(action="fresh", file=file, folder=tmp_path, **job)
    paddle.seed(1)
    model = build(VARIANTS[name], image_size=side)
    ours = {each: moments(value) for each, value in model.state_dict().items() if value.is_floating_point()}
    load_pretrained(model, str(file))
    for each, (count, mean, deviation, fourth) in ours.items():
        if count == 1 or name in OTHERS and ELSE.match(each):
            continue
        _, their_mean, their_deviation, their_fourth = moments(model.state_dict()[each])
        allowed = SIGMAS * max(deviation, their_deviation) / np.sqrt(count)
        assert abs(mean - their_mean) <= allowed, each
        assert abs(deviation - their_deviation) <= allowed, each
        # a normal's fourth moment varies by sqrt(24 / count) for each of the two
        assert abs(fourth - their_fourth) <= SIGMAS * np.sqrt(48 / count), each


def test_gates_of_gmixer_start_at_one_as_in_timm(peers, tmp_path):
    """Its weights follow another rule there; where a gate starts decides whether its MLP passes anything at first."""
    side, job = job_of("timm", "gmixer_12_224")
    file = tmp_path / "fresh.safetensors"
    peers.ask(action="fresh", file=file, folder=tmp_path, **job)
    ours, theirs = (build(VARIANTS["gmixer_12_224"], image_size=side) for _ in range(2))
    load_pretrained(theirs, str(file))
    for name, value in ours.named_parameters():
        if name.endswith("fc1.bias"):  # theirs: normal 1e-6 around it
            np.testing.assert_allclose(value, theirs.state_dict()[name], atol=1e-4, err_msg=name)
