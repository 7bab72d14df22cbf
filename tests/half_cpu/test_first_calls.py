"""The first calls of a recorded pass are made for a few images at a time, with the bits of the whole pass, or not."""

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn

from image_classification import half_cpu
from image_classification.half_cpu import first_calls, onednn
from image_classification.half_cpu.compiled_library import load
from image_classification.half_cpu.first_calls import Divided
from tests.helpers.replays import FORMATS, bits, images, passes

pytestmark = pytest.mark.skipif(not onednn.available(), reason="needs a CPU with AVX2 and a wheel with oneDNN")


class Net(nn.Layer):
    """Large images of few weights, then few numbers; `change` is what happens to the images in between."""

    def __init__(self, change=lambda x, images: x, result=lambda logits, x: logits):
        super().__init__()
        self.first, self.norm = nn.Conv2D(3, 16, 3, padding=1), nn.BatchNorm2D(16)
        self.second, self.third = nn.Conv2D(16, 16, 1), nn.Conv2D(16, 16, 3, stride=2, padding=1)
        self.hidden, self.fc = nn.Linear(16 * 36, 512), nn.Linear(512, 10)
        self.change, self.result = change, result

    def forward(self, images):
        x = F.relu(self.norm(self.first(images)))
        x = self.change(x + self.second(x), images)
        x = F.relu(self.third(x))
        return self.result(self.fc(F.relu(self.hidden(x.flatten(1)))), x)


@pytest.fixture(autouse=True)
def small_caches(monkeypatch):
    """Let calls of small images be worth what those of large ones are."""
    for name, value in {"_STAYS": 0, "_KERNEL": 0, "_OPERATOR": 0, "_LEAST": 0}.items():
        monkeypatch.setattr(first_calls, name, value)


def divided(model, rows=8):
    """Return the recorded pass whose results equal those of the layers, for images that it has not seen."""
    for seed in range(6):
        given = images(seed, rows)
        assert bits(half_cpu.replay_images(model, given)) == bits(model(given))
    (found,) = passes()
    return found


@pytest.mark.parametrize(("mode", "dtype"), FORMATS)
def test_first_calls_for_few_images_give_the_bits_of_the_layers(mode, dtype, inside):
    found = divided(inside(Net(), mode, dtype))
    assert isinstance(found.run, Divided)
    assert 0 < len(found.run.first) < len(found.played)


def test_statistics_of_a_norm_that_trains_are_moved_once_by_each_call(inside):
    """The passes that look for first calls leave no trace."""
    models = [inside(Net(), "fp32", None) for _ in range(2)]
    models[1].set_state_dict(models[0].state_dict())
    for model in models:
        model.norm.train()
    with half_cpu.frozen(models[0]):
        for seed in range(6):
            assert bits(half_cpu.replay(models[0], images(seed, 8))) == bits(models[1](images(seed, 8)))
            assert bits([*models[0].state_dict().values()]) == bits([*models[1].state_dict().values()])


@pytest.mark.parametrize("rows", [4, 6, 12])
def test_images_are_divided_without_a_rest(rows, inside):
    found = divided(inside(Net(), "fp32", None), rows)
    size = found.run.first.inputs[0].shape[0]
    assert rows % size == 0 and size < rows


@pytest.mark.parametrize("rows", [1, 2, 7])
def test_images_that_cannot_be_divided_pass_as_a_whole(rows, inside):
    found = divided(inside(Net(), "fp32", None), rows)
    assert found.run is found.played


@pytest.mark.parametrize(("mode", "dtype"), [each for each in FORMATS if each[0] in ("fp32", "auto")])
def test_first_calls_may_end_at_any_call(mode, dtype, inside, monkeypatch):
    """The weights of the last one may have to be ordered, by several calls, for fewer images first."""
    monkeypatch.setattr(load(), "halves_vectors", True)
    most = len(divided(inside(Net(), mode, dtype)).run.first)
    for end in range(1, most):
        monkeypatch.setattr(first_calls, "_last", lambda whole, part, end=end: end)
        assert len(divided(inside(Net(), mode, dtype)).run.first) == end


CHANGES = {
    "the images again": lambda x, images: x + images.mean(axis=1, keepdim=True),
    "other images": lambda x, images: x.flip(axis=[0]),
    "the mean of all": lambda x, images: x - x.mean(axis=0, keepdim=True),
    "images between images": lambda x, images: x.transpose([1, 0, 2, 3]).exp().transpose([1, 0, 2, 3]),
    "in place": lambda x, images: x.add_(x * 0.5),
    "the largest of all": lambda x, images: x / x.max(),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("mode", "dtype"), FORMATS[:2])
def test_whatever_happens_between_the_images_gives_the_bits_of_the_layers(mode, dtype, change, inside):
    divided(inside(Net(CHANGES[change]), mode, dtype))


def test_later_calls_read_the_images_and_what_early_calls_left_of_them(inside):
    class Skips(Net):
        def forward(self, images):
            early = F.relu(self.norm(self.first(images)))
            logits = super().forward(images)
            return logits + early.mean([1, 2, 3]).unsqueeze(1) + images.mean([1, 2, 3]).unsqueeze(1)

    assert isinstance(divided(inside(Skips(), "fp32", None)).run, Divided)


def test_views_of_what_early_calls_left_are_results(inside):
    class Early(Net):
        def forward(self, images):
            early = F.relu(self.norm(self.first(images)))
            return [early[:, :3], super().forward(images)]

    assert isinstance(divided(inside(Early(), "fp32", None)).run, Divided)


def test_what_early_calls_make_of_weights_is_there_for_later_ones(inside):
    class Biased(Net):
        def forward(self, images):
            scale = F.sigmoid(self.norm.weight)[:10]
            return super().forward(images) * scale

    assert isinstance(divided(inside(Biased(), "fp32", None)).run, Divided)


def test_what_grows_otherwise_than_the_images_keeps_them_together(inside, caplog):
    class Alike(Net):
        def forward(self, images):
            x = images.mean([2, 3])
            products = x.matmul(x, transpose_y=True)
            return super().forward(images) + products.exp().mean()

    caplog.set_level("INFO")
    found = divided(inside(Alike(), "fp32", None))
    assert found.run is found.played
    assert "what is left of each image lies between what is left of others" in caplog.text


def test_model_with_other_calls_for_fewer_images_passes_as_a_whole(inside, caplog):
    class Counts(Net):
        def forward(self, images):
            return super().forward(images if images.shape[0] == 8 else images.exp())

    caplog.set_level("INFO")
    found = divided(inside(Counts(), "fp32", None))
    assert found.run is found.played
    assert "fewer images take other calls" in caplog.text


@pytest.mark.parametrize("change", ["other images", "the mean of all", "the largest of all"])
def test_calls_with_other_images_are_made_for_all(change, inside, caplog):
    caplog.set_level("INFO")
    found = divided(inside(Net(CHANGES[change]), "fp32", None))
    assert found.run is found.played
    assert "all calls of Net are made for 8 images at a time: fewer images have other results" in caplog.text


def test_log_says_how_many_calls_are_made_for_how_many_images(inside, caplog):
    caplog.set_level("INFO")
    found = divided(inside(Net(), "fp32", None))
    calls = f"the first {len(found.run.first)} of {len(found.played)} calls of Net"
    line = f"{calls} are made for {found.run.first.inputs[0].shape[0]} of 8 images at a time"
    assert caplog.text.count(line) == 1


RESULTS = {
    "features": lambda logits, x: {"logits": logits, "features": x},
    "an early view": lambda logits, x: [x[:, :3], logits],
    "each image": lambda logits, x: logits[:, :5],
}


@pytest.mark.parametrize("result", RESULTS)
def test_results_of_any_call_are_those_of_the_layers(result, inside):
    assert isinstance(divided(inside(Net(result=RESULTS[result]), "fp32", None)).run, Divided)


def test_model_whose_result_an_early_call_makes_passes_as_a_whole(inside, caplog):
    class Side(Net):
        def __init__(self):
            super().__init__()
            self.side = nn.Linear(3, 8)

        def forward(self, images):
            return [self.side(images.mean([2, 3])), super().forward(images)]

    caplog.set_level("INFO")
    found = divided(inside(Side(), "fp32", None))
    assert found.run is found.played
    assert "a result is made by them" in caplog.text


def test_layers_with_more_weights_than_images_get_all_at_once(inside):
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 144, 256), nn.ReLU(), nn.Linear(256, 10))
    found = divided(inside(model, "fp32", None))
    assert found.run is found.played


def test_memory_of_the_first_calls_is_that_of_few_images(inside):
    found = divided(inside(Net(), "fp32", None), 32)
    first = found.run.first
    assert first.bytes <= 1.1 * found.played.bytes * first.inputs[0].shape[0] / 32


def test_model_that_takes_turns_for_fewer_images_passes_as_a_whole(inside, caplog):
    class Turns(Net):
        calls = 0

        def forward(self, images):
            self.calls += images.shape[0] < 8
            for _ in range(images.shape[0] < 8 and 1 + self.calls % 2):
                images = images.exp()
            return super().forward(images)

    caplog.set_level("INFO")
    found = divided(inside(Turns(), "fp32", None))
    assert found.run is found.played
    assert "all calls of Turns are made for 8 images at a time: fewer images take other calls" in caplog.text


def test_random_numbers_that_fewer_images_draw_are_not_drawn(inside):
    class Draws(Net):
        def forward(self, images):
            return super().forward(images if images.shape[0] == 8 else images + paddle.rand([1]))

    model = inside(Draws(), "fp32", None)
    paddle.seed(1)
    expected = paddle.rand([1]).item()
    paddle.seed(1)
    divided(model)
    assert paddle.rand([1]).item() == expected


def test_images_of_large_batches_pass_in_pieces_that_are_divided(inside):
    if len(FORMATS) == 1:
        pytest.skip("needs half kernels")
    model = inside(Net(), *FORMATS[1])
    for seed in range(5):
        given = images(seed, 32)
        found = half_cpu.replay_images(model, given)
        assert np.allclose(found.numpy(), model(given).numpy(), atol=0.05)  # a half ulp of logits, of another batch
    assert any(isinstance(known.run, Divided) for known in passes() if callable(known))


def test_interrupt_while_the_first_calls_are_recorded_is_passed_on(inside, monkeypatch):
    model = inside(Net(), "fp32", None)
    for seed in range(2):
        half_cpu.replay_images(model, images(seed, 8))

    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(first_calls, "_recorded", interrupted)
    with pytest.raises(KeyboardInterrupt):
        half_cpu.replay_images(model, images(2, 8))
    monkeypatch.undo()
    divided(model)
