"""Weights that stay as they are between batches are prepared once, and give the very same results."""

import contextlib

import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn
from paddle.distributed.fleet.utils import recompute

from image_classification import amp, half_cpu
from image_classification.half_cpu import onednn, onednn_convolution_passes, onednn_matmul, onednn_memory
from image_classification.half_cpu.onednn_primitives import Layout
from image_classification.half_cpu.scope import active
from image_classification.layers import linear_gelu

pytestmark = pytest.mark.skipif(not onednn.available(), reason="needs a CPU with AVX2 and a wheel with oneDNN")
FORMATS = [("fp32", None), *(
    ("auto", dtype) for dtype in ("bfloat16", "float16") if half_cpu.backend_name(dtype) != "reference"
)]  # fmt: skip


class Net(nn.Layer):
    def __init__(self):
        super().__init__()
        self.conv, self.mlp, self.fc = nn.Conv2D(3, 32, 3, padding=1), nn.Linear(32 * 64, 80), nn.Linear(80, 96)

    def forward(self, images):
        return self.fc(linear_gelu(self.mlp, F.relu(self.conv(images)).flatten(1)))


@pytest.fixture
def prepared(monkeypatch):
    """Return the list of all that was rounded or rearranged for a product or a convolution."""
    made = []
    for module in (onednn_matmul, onednn_convolution_passes):
        made_once = module.made_once
        monkeypatch.setattr(module, "made_once", lambda pointer, key, make, original=made_once: original(
            pointer, key, lambda: made.append(key) or make()))  # fmt: skip
    converted, weights = onednn_memory.converted, [parameter.shape for parameter in Net().parameters()]

    def noting(tensor, dtype):
        if tensor.shape in weights and dtype is not paddle.float32:
            made.append(tensor.shape)
        return converted(tensor, dtype)

    monkeypatch.setattr(onednn_memory, "converted", noting)
    return made


def evaluate(model, precision, batches):
    with paddle.no_grad():
        results = []
        for images in batches:
            with precision.forward_context():
                results.append(model(images).astype("float32").numpy())
    return results


class Views(nn.Layer):
    """Reads its weight whole, transposed, and its first rows: all of them begin at the same place in memory."""

    def __init__(self):
        super().__init__()
        self.weight = self.create_parameter([64, 64])

    def forward(self, x):
        x = F.linear(F.linear(x, self.weight), self.weight.T)
        return F.linear(x @ self.weight[:, :32], self.weight[:32], self.weight[0])


def two_convolutions():
    """What is rearranged for one call lies where the next one's does; what is kept must not."""
    return nn.Sequential(*[nn.Conv2D(48, 48, window, stride=2, padding=window // 2) for window in (5, 3)])


@pytest.mark.parametrize(("mode", "dtype"), FORMATS)
@pytest.mark.parametrize(("make", "shapes"), [
    (Net, [[160, 3, 8, 8], [160, 3, 8, 8], [3, 3, 8, 8]]),  # the last one is small, as in an evaluation
    (Views, [[160, 64]] * 2),
    (two_convolutions, [[2, 48, 17, 17]] * 3),
], ids=["net", "views", "convolutions"])  # fmt: skip
def test_results_of_frozen_weights_are_the_same_bits(make, shapes, mode, dtype):
    paddle.seed(0)
    precision = amp.build_precision(mode, dtype)
    model = precision.convert_model(make())
    model.eval()
    batches = [paddle.randn(shape) for shape in shapes]
    expected = evaluate(model, precision, batches)
    with half_cpu.frozen(model):
        found = evaluate(model, precision, batches)
    assert all((a == b).all() for a, b in zip(found, expected, strict=True))


def test_frozen_weights_are_prepared_for_the_first_batch_only(prepared):
    mode, dtype = FORMATS[1] if len(FORMATS) > 1 else FORMATS[0]
    precision = amp.build_precision(mode, dtype)
    model = precision.convert_model(Net())
    batches = [paddle.randn([512, 3, 8, 8])] * 3
    with half_cpu.frozen(model):
        evaluate(model, precision, batches[:1])
        first = len(prepared)
        evaluate(model, precision, batches)
    assert first > 0 and len(prepared) == first
    others = sum(key[0] != "forward" for key in prepared)  # of a convolution only what is kept is noted
    evaluate(model, precision, batches)
    assert len(prepared) == first + 3 * others  # and without the promise for each


@pytest.mark.skipif(onednn.instruction_set() is None, reason="needs bfloat16 products of oneDNN's")
def test_products_of_few_rows_have_their_frozen_weights_rearranged(prepared):
    precision = amp.build_precision("auto", "bfloat16")
    model = precision.convert_model(Net())
    images = [paddle.randn([3, 3, 8, 8])]
    expected = evaluate(model, precision, images)
    assert not products_of(prepared)
    with half_cpu.frozen(model):
        found = evaluate(model, precision, images)
    assert len(products_of(prepared)) == 2 and (found[0] == expected[0]).all()


def products_of(prepared):
    """Return what was rearranged for products: their keys begin with the layout of the left factor."""
    return [key for key in prepared if isinstance(key[0], Layout)]


@pytest.mark.parametrize(("mode", "dtype"), FORMATS)
def test_weights_that_change_after_the_context_are_read_anew(mode, dtype):
    precision = amp.build_precision(mode, dtype)
    model = precision.convert_model(Net())
    images = [paddle.randn([160, 3, 8, 8])]
    with half_cpu.frozen(model):
        (before,) = evaluate(model, precision, images)
    for parameter in model.parameters():
        parameter.set_value(parameter * 2)
    with half_cpu.frozen(model):
        (after,) = evaluate(model, precision, images)
    assert abs(after - before).max() > 0.1 * abs(before).max()


def test_gradients_inside_of_the_context_are_those_outside():
    precision = amp.build_precision(*FORMATS[-1])
    model = precision.convert_model(Net())
    images, gradients = paddle.randn([160, 3, 8, 8]), []
    for context in (half_cpu.frozen(model), half_cpu.frozen(Net())):
        with context:
            evaluate(model, precision, [images])  # what was prepared without gradients has none
            with precision.forward_context():
                loss = model(images).astype("float32").square().mean()
        loss.backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
        model.clear_gradients()
    assert all((a == b).all() for a, b in zip(*gradients, strict=True))


@pytest.mark.parametrize("dtype", ["float32", *(dtype for _, dtype in FORMATS[1:])])
@pytest.mark.parametrize(("inputs", "side", "window"), [(1024, 14, 1), (256, 28, 3), (256, 14, 3)])
def test_convolution_whose_filters_are_not_kept_is_the_one_without_a_context(inputs, side, window, dtype):
    """Frozen weights of a teacher, or a window of micro-batches: what pays for kept filters alone is not done."""
    paddle.seed(0)
    layer = nn.Conv2D(inputs, 256, window, padding=window // 2)
    layer.to(dtype=dtype)
    x = paddle.randn([1, inputs, side, side]).astype(dtype)
    results = []
    for context in (contextlib.nullcontext(), half_cpu.rounded_once(layer), half_cpu.frozen(nn.Linear(4, 4))):
        with context, half_cpu.dispatch():
            results.append(F.conv2d(x, layer.weight, padding=window // 2).astype("float32").numpy())
    assert all((result == results[0]).all() for result in results)


def window_gradients(model, precision, batches, context=contextlib.nullcontext):
    """Return the gradients of a window in training mode, and forget them."""
    model.train()
    with context():
        for images in batches:
            with precision.forward_context():
                loss = model(images).astype("float32").square().mean()
            precision.backward(loss)
    result = [master.grad.numpy() for _, master in precision.master_params(model)]
    for _, master in precision.master_params(model):
        master.clear_gradient(False)
    return result


@pytest.mark.parametrize("recomputed", [False, True])
@pytest.mark.parametrize(("mode", "dtype"), [*FORMATS, *(("naive", dtype) for _, dtype in FORMATS[1:])])
def test_window_of_micro_batches_has_the_same_gradients(mode, dtype, recomputed):
    paddle.seed(0)
    precision = amp.build_precision(mode, dtype, options={"init_scale": 64.0} if mode == "naive" else None)
    model = precision.convert_model(Net())
    forward = model.forward

    def in_context(images):
        with precision.forward_context():  # Paddle opens no context of ours when it computes the pass again
            return forward(images)

    if recomputed:
        model.forward = lambda images: recompute(in_context, images)
    batches = [paddle.randn([160, 3, 8, 8]) for _ in range(3)]
    for images in batches:
        images.stop_gradient = not recomputed  # else there is nothing to recompute for
    expected = window_gradients(model, precision, batches)
    assert all(gradient.any() for gradient in expected)
    found = window_gradients(model, precision, batches, lambda: half_cpu.rounded_once(model))
    assert all((a == b).all() for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("dtype", [dtype for _, dtype in FORMATS[1:]])
@pytest.mark.parametrize("context", [half_cpu.frozen, half_cpu.rounded_once])
def test_cast_of_a_kept_weight_may_be_written_in_place(context, dtype):
    layer = nn.Linear(64, 64)
    with half_cpu.dispatch(), paddle.no_grad(), context(layer):
        for _ in range(3):  # such as weights that a layer standardises itself
            found = layer.weight.astype(dtype)
            expected = (found.astype("float32") * 2).numpy()
            found.scale_(2.0)
            assert (found.astype("float32").numpy() == expected).all()
            assert abs(expected - 2 * layer.weight.numpy()).max() < 0.01
        layer.weight.scale_(4.0)
        assert abs(layer.weight.astype(dtype).astype("float32") - 2 * paddle.to_tensor(expected)).max() < 0.01


@pytest.mark.parametrize("dtype", [dtype for _, dtype in FORMATS[1:]])
def test_memory_of_a_weight_that_moved_is_not_taken_for_it(dtype):
    layer = nn.Linear(64, 64)
    with half_cpu.dispatch(), paddle.no_grad(), half_cpu.rounded_once(layer):
        assert layer.weight.astype(dtype).abs().max() > 0
        layer.weight.data = paddle.ones([64, 64])
        others = [paddle.full([64, 64], 2.0) for _ in range(8)]  # one of them may take its place
        assert (layer.weight.astype(dtype).astype("float32") == 1).all()
        assert all((other.astype(dtype).astype("float32") == 2).all() for other in others)


@pytest.mark.skipif(len(FORMATS) == 1, reason="nothing is rounded")
def test_weights_are_rounded_once_for_a_window(prepared):
    precision = amp.build_precision(*FORMATS[1])
    model = precision.convert_model(Net())
    weights = {tuple(parameter.shape) for parameter in model.parameters()}
    counts = []
    for window in (1, 3):
        prepared.clear()
        images = [paddle.randn([160, 3, 8, 8])] * window
        window_gradients(model, precision, images, lambda: half_cpu.rounded_once(model))
        counts.append(sum(tuple(key) in weights for key in prepared if isinstance(key, list)))
    assert counts[1] == counts[0] > 0


def test_context_within_another_gives_the_outer_one_back():
    layer = paddle.nn.Linear(4, 4)
    with half_cpu.rounded_once(layer):
        outer = active.frozen
        with half_cpu.frozen(layer):
            assert active.frozen is not outer
        assert outer is not None and active.frozen is outer
    assert active.frozen is None


def test_contexts_of_two_generators_leave_nothing_behind():
    def predictions(layer):
        with half_cpu.frozen(layer), half_cpu.update(1.0, lambda tensor: None), half_cpu.dispatch():
            yield from range(3)

    first, second = (predictions(paddle.nn.Linear(4, 4)) for _ in range(2))
    assert list(zip(first, second, strict=False)) == [(0, 0), (1, 1), (2, 2)]
    second.close()  # the first one has ended with the loop, though it began first
    assert (active.frozen, active.update, active.scope) == (None, None, None)


@pytest.mark.parametrize("needs", [(True, False), (False, True)])
def test_sum_of_two_that_repeat_each_other_gives_gradients_to_who_needs_them(needs):
    left, right = paddle.ones([3, 1, 5]), paddle.ones([1, 4, 5])
    left.stop_gradient, right.stop_gradient = (not need for need in needs)
    with half_cpu.dispatch():
        result = left + right
    result.backward(paddle.ones_like(result))
    assert [one.grad is not None for one in (left, right)] == list(needs)
