"""Many images pass a few at a time and give the bits of the layers, or all of them pass at once."""

import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn

from image_classification import half_cpu
from image_classification.half_cpu import onednn, pieces
from image_classification.half_cpu.scope import active
from tests.helpers.replays import FORMATS, bits, images

pytestmark = pytest.mark.skipif(not onednn.available(), reason="needs a CPU with AVX2 and a wheel with oneDNN")

HALVES = FORMATS[1:]
needs_halves = pytest.mark.skipif(not HALVES, reason="needs half kernels")


class Net(nn.Layer):
    def __init__(self, result=lambda logits: logits):
        super().__init__()
        self.conv, self.fc = nn.Conv2D(3, 32, 3, padding=1), nn.Linear(32, 16)
        self.result = result

    def forward(self, images):
        return self.result(self.fc(F.relu(self.conv(images)).mean([2, 3])))


@pytest.fixture
def sizes(monkeypatch):
    """Return the list to which each pass adds how many images it gets."""
    found = []

    def noted(model, images):
        found.append(images.shape[0])
        return half_cpu.replay(model, images)

    monkeypatch.setattr(pieces, "replay", noted)
    return found


@pytest.mark.parametrize("rows", [16, 21, 64])
@pytest.mark.parametrize(("mode", "dtype"), HALVES)
def test_images_in_pieces_give_the_bits_of_the_layers_in_their_order(mode, dtype, rows, inside):
    model = inside(Net(), mode, dtype)
    for batch in range(4):
        given = images(batch, rows)
        assert bits(half_cpu.replay_images(model, given)) == bits(model(given))
        if batch == 1:  # pieces of another size from here on
            active.frozen.pieces.update(dict.fromkeys(active.frozen.pieces, 5))


FITS = [  # images that the caches keep, those of a batch, the pieces
    (4, 64, [4] * 16), (8, 64, [8] * 8), (11, 64, [8] * 8), (14, 64, [16] * 4), (60, 64, [64]), (9, 62, [9] * 6 + [8]),
    (9, 34, [9, 9, 9, 7]), (9, 25, [9, 9, 7]),  # 17 and 5 are far
]  # fmt: skip


@needs_halves
@pytest.mark.parametrize(("fits", "rows", "expected"), FITS)
def test_pieces_are_as_large_as_caches_keep_and_leave_no_rest_if_they_can(
    fits, rows, expected, inside, sizes, monkeypatch
):
    model = inside(Net())
    half_cpu.replay_images(model, images(0, rows))
    assert sizes == [8] * (rows // 8) + [rows % 8] * bool(rows % 8)
    (recorded,) = filter(callable, active.frozen.passes.values())
    monkeypatch.setattr(pieces, "_IN_CACHES", recorded.bytes * fits // 8)
    sizes.clear()
    half_cpu.replay_images(model, images(0, rows))
    assert sizes == expected


@needs_halves
def test_memory_of_a_pass_grows_with_its_images_only(inside):
    """By what pieces are chosen."""
    model = inside(Net())
    for rows in (8, 32):
        for batch in range(3):
            half_cpu.replay(model, images(batch, rows, side=48))
    few, many = (known.bytes for known in active.frozen.passes.values())
    assert 3 * few < many < 5 * few  # four times, and what of it does not grow


def test_few_images_pass_at_once(inside, sizes):
    half_cpu.replay_images(inside(Net()), images(0, 15))
    assert sizes == [15]


def test_float32_images_pass_at_once(inside, sizes):
    half_cpu.replay_images(inside(Net(), "fp32", None), images(0, 16))
    assert sizes == [16]


RESULTS = {
    "mean": lambda logits: logits.mean(axis=0),
    "number": lambda logits: logits.mean(),
    "dictionary": lambda logits: {"logits": logits},
}


@needs_halves
@pytest.mark.parametrize("result", RESULTS)
def test_model_whose_result_is_not_of_each_image_gets_them_at_once(result, inside, sizes):
    model = inside(Net(RESULTS[result]))
    for batch in range(2):
        given = images(batch, 16)
        assert bits(half_cpu.replay_images(model, given)) == bits(model(given))
    assert sizes == [8, 16, 16]


@needs_halves
@pytest.mark.parametrize("part", ["model", "layer"])
def test_what_is_in_training_mode_gets_all_images_at_once(part, inside, sizes):
    """A norm in it computes with the whole batch."""
    model = inside(Net())
    {"model": model, "layer": model.fc}[part].train()
    half_cpu.replay_images(model, images(0, 16))
    assert sizes == [16]


@needs_halves
@pytest.mark.parametrize("comes", ["first", "later"])
def test_hook_sees_all_images_at_once(comes, inside):
    model, seen = inside(Net()), []
    if comes == "later":
        for batch in range(3):
            half_cpu.replay_images(model, images(batch, 32))
    model.conv.register_forward_post_hook(lambda layer, inputs, result: seen.append(result.shape[0]))
    for batch in range(3):
        half_cpu.replay_images(model, images(batch, 32))
    assert seen == [32] * 3


@needs_halves
def test_model_that_cannot_be_recorded_gets_all_images_at_once_after_the_first_batch(inside, sizes):
    model = inside(Net(lambda logits: logits * float(logits.max() > 0)))
    for batch in range(3):
        half_cpu.replay_images(model, images(batch, 32))
    assert sizes == [8] * 4 + [32] * 2


@needs_halves
def test_images_with_gradients_pass_at_once(inside, sizes):
    model = inside(Net())
    with paddle.enable_grad():
        half_cpu.replay_images(model, images(0, 16))
    assert sizes == [16]
