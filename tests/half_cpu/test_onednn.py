"""The oneDNN kernels against the float32 reference, forward and backward."""

import collections

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

from image_classification import half_cpu
from image_classification.half_cpu import (
    compiled_attention,
    onednn,
    onednn_convolution_passes,
    onednn_matmul,
    onednn_memory,
    onednn_primitives,
)
from tests.helpers.onednn_cases import AFTER_ROUNDING, CASES, FEWER_ROUNDINGS
from tests.helpers.onednn_runs import (
    ALL,
    BFLOAT16,
    FLOAT32,
    HALVES,
    Calls,
    assert_within_one_rounding,
    needs_onednn,
    run,
    tensors,
)

pytestmark = needs_onednn


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("case", CASES)
def test_kernel_against_reference_differs_by_at_most_one_rounding(case, dtype, monkeypatch):
    name, function, shapes, rounded_intermediate = CASES[case]
    calls = Calls(monkeypatch, name)
    inputs = tensors(shapes, dtype)
    expected, expected_gradients = run(function, inputs, "reference")
    actual, gradients = run(function, inputs, "counted")
    assert calls.served
    further = 2 if case in FEWER_ROUNDINGS else int(case in AFTER_ROUNDING)
    assert_within_one_rounding(actual, expected, further)
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        assert_within_one_rounding(gradient, expected_gradient, further or int(rounded_intermediate))


@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT32])  # oneDNN is asked for nothing in float16
@pytest.mark.parametrize("case", CASES)
def test_kernel_never_takes_the_slow_reference_code_of_onednn(case, dtype, monkeypatch):
    """oneDNN computes what it has no kernel for by scalar loops, up to a hundred times slower, and does not say so."""
    name, function, shapes, _ = CASES[case]
    entries = collections.OrderedDict()
    monkeypatch.setattr(onednn_primitives.cache, "_entries", entries)
    monkeypatch.setattr(compiled_attention, "SCORES", 0)
    for prepared in (onednn_convolution_passes._prepared, onednn_matmul._prepared, onednn_memory._conversion):
        prepared.cache_clear()
    Calls(monkeypatch, name)  # a backend that leaves no small tensors to Paddle
    run(function, tensors(shapes, dtype), "counted")
    assert entries or name in onednn.COMPILED_KERNELS or "squeeze" in name or case.startswith("softmax-")
    assert [key for key, entry in entries.items() if entry.implementation.startswith("ref")] == []


@pytest.mark.parametrize("case", CASES)
def test_float32_kernel_against_paddle_agrees_to_float32_accuracy(case, monkeypatch):
    name, function, shapes, _ = CASES[case]
    calls = Calls(monkeypatch, name)
    inputs = tensors(shapes, FLOAT32)
    expected, expected_gradients = run(function, inputs, "reference")
    actual, gradients = run(function, inputs, "counted")
    assert calls.served
    # 1e-5 of the largest value: sums of up to 165 float32 terms and oneDNN's erf and exp, good to 2^-20
    for one, other in zip([actual, *gradients], [expected, *expected_gradients], strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=0, atol=1e-5 * float(other.abs().max()))


@pytest.mark.parametrize("case", [case for case, (_, _, shapes, _) in CASES.items() if len(shapes) > 1])
def test_gradient_of_one_input_alone_is_that_among_all(case, monkeypatch):
    """As of images for a saliency, or of a penalty; Paddle's engine refuses it of a PyLayer with several arguments."""
    name, function, shapes, _ = CASES[case]
    inputs = tensors(shapes, FLOAT32)
    Calls(monkeypatch, name)
    with half_cpu.dispatch(backend="counted"):
        result = function(*inputs)
        every = paddle.grad(result, inputs, retain_graph=True)
        alone = [paddle.grad(result, tensor, retain_graph=True)[0] for tensor in inputs]
    for found, expected in zip(alone, every, strict=True):
        np.testing.assert_array_equal(found.numpy(), expected.numpy())
    assert all(tensor.grad is None for tensor in inputs)


@pytest.mark.parametrize("case", CASES)
def test_result_without_a_backward_pass_is_freed(case, monkeypatch):
    """A PyLayer that keeps the very tensor it returns is kept by it, for ever."""
    name, function, shapes, _ = CASES[case]
    Calls(monkeypatch, name)  # a backend that leaves no small tensors to Paddle
    inputs = tensors(shapes, FLOAT32)
    held = []
    for _ in range(3):
        with half_cpu.dispatch(backend="counted"):
            result = function(*inputs)
        assert not result.stop_gradient
        del result
        held.append(paddle.base.core.host_memory_stat_current_value("Allocated", 0))
    assert held[2] <= held[1]  # the first call builds what is kept for others


@pytest.mark.parametrize("case", [case for case, (_, _, shapes, _) in CASES.items() if len(shapes) > 1])
def test_kernel_gives_frozen_inputs_no_gradient_and_others_theirs(case):
    """Paddle refuses a gradient of a tensor that needs none."""
    _, function, shapes, _ = CASES[case]
    _, expected = run(function, tensors(shapes), "onednn")
    for frozen in range(len(shapes)):
        inputs = tensors(shapes)
        inputs[frozen].stop_gradient = True
        _, gradients = run(function, inputs, "onednn")
        for index, (one, other) in enumerate(zip(gradients, expected, strict=True)):
            assert (one is None) == (index == frozen or other is None)
            if one is not None:
                one, other = (tensor.astype(FLOAT32).numpy() for tensor in (one, other))
                # neighbours: another kernel may sum in another order, or Paddle may compute one of them
                np.testing.assert_allclose(one, other, rtol=0, atol=2.0**-7 * np.abs(other).max())


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("case", CASES)
def test_kernel_with_inf_and_nan_hides_neither(case, dtype):
    _, function, shapes, _ = CASES[case]
    inputs = tensors(shapes, dtype)
    values = inputs[0].detach().astype(FLOAT32).numpy().copy()
    values.reshape(-1)[[0, -1]] = np.inf, np.inf if case.startswith("max_pool") else np.nan  # a maximum ignores NaN
    inputs[0] = paddle.to_tensor(values).astype(dtype)
    inputs[0].stop_gradient = False
    expected, _ = run(function, inputs, "reference")
    actual, _ = run(function, inputs, "onednn")
    actual, expected = actual.astype(FLOAT32).numpy(), expected.astype(FLOAT32).numpy()
    # Whether inf or NaN comes out depends on the order of the terms; of a softmax row with one of them Paddle makes NaN
    # or finite numbers. A check must find every row that it finds with Paddle.
    axis = 1 if case.startswith("softmax-channels") else -1
    assert (np.isfinite(actual).all(axis=axis) <= np.isfinite(expected).all(axis=axis)).all()


@pytest.mark.parametrize(
    "name, shapes, constants",
    [
        ("conv2d", [(0, 3, 8, 8), (4, 3, 3, 3)], ([1, 1], [0, 0], "EXPLICIT", [1, 1], 1, "NCHW")),
        ("linear", [(0, 8), (8, 4), (4,)], ()),
        ("matmul", [(2, 0, 8), (2, 8, 4)], ()),
        ("gelu", [(0, 3)], ()),
        ("relu", [(0, 3)], ()),
        ("softmax", [(2, 0)], (-1,)),
        ("add", [(0,), (0,)], ()),
        ("layer_norm", [(0, 3), (3,), (3,)], (1e-6, 1)),
        ("attention", [(2, 0, 24)], (2, 0.5)),
        ("dot_product_attention", [(2, 0, 3, 8)] * 3, ()),
        ("cast", [(0, 3)], (paddle.float32,)),
        ("hardswish", [(0, 3)], ()),
        ("multiply", [(2, 0), (2, 1)], ()),
    ],
)
def test_kernel_of_empty_tensors_leaves_them_to_the_reference(name, shapes, constants):
    for dtype in HALVES:
        inputs = [paddle.zeros(shape, dtype=dtype) for shape in shapes]
        kernel = half_cpu.kernels.find("onednn").kernels[name]
        assert kernel(None, (*inputs, *constants), {}) is NotImplemented


@pytest.mark.parametrize("case", sorted(FEWER_ROUNDINGS))
def test_kernel_that_rounds_less_is_closer_to_float64_than_the_reference(case):
    _, function, shapes, _ = CASES[case]
    inputs = tensors(shapes)
    with paddle.no_grad():
        exact = function(*(tensor.astype("float64") for tensor in inputs)).numpy()
    kernel, reference = (
        np.abs(run(function, inputs, backend)[0].astype("float64").numpy() - exact).mean()
        for backend in ("onednn", "reference")
    )
    assert kernel < reference


ROWS_OF_PIXELS = {  # what takes images as [B, H, W, C]
    "conv2d": (lambda x, w, order: F.conv2d(x, w, padding=1, data_format=order), [(2, 8, 6, 7), (8, 8, 3, 3)]),
    "conv2d-strided": (lambda x, w, order: F.conv2d(x, w, stride=2, data_format=order), [(2, 8, 6, 7), (8, 8, 3, 3)]),
    "depthwise_conv2d": (
        lambda x, w, order: F.conv2d(x, w, padding=1, groups=8, data_format=order), [(2, 8, 6, 7), (8, 1, 3, 3)]),
    "conv2d_transpose": (
        lambda x, w, order: F.conv2d_transpose(x, w, stride=2, data_format=order), [(2, 8, 6, 7), (8, 8, 3, 3)]),
    "pool2d": (lambda x, order: F.max_pool2d(x, 3, 2, 1, data_format=order), [(2, 8, 6, 7)]),
    "pool2d-means": (lambda x, order: F.avg_pool2d(x, 3, 2, 1, data_format=order), [(2, 8, 6, 7)]),
    "pool2d-whole": (lambda x, order: F.adaptive_avg_pool2d(x, 1, data_format=order), [(2, 8, 6, 7)]),
    "bilinear_interp": (
        lambda x, order: F.interpolate(x, scale_factor=2, mode="bilinear", data_format=order), [(2, 8, 6, 7)]),
    "bicubic_interp": (
        lambda x, order: F.interpolate(x, size=[5, 9], mode="bicubic", data_format=order), [(2, 8, 6, 7)]),
    "group_norm": (
        lambda x, w, b, order: F.group_norm(x, 2, 1e-5, w, b, data_format=order), [(2, 8, 6, 7), (8,), (8,)]),
    "prelu": (lambda x, w, order: F.prelu(x, w, data_format=order), [(2, 8, 6, 7), (8,)]),
    "pixel_shuffle": (lambda x, order: F.pixel_shuffle(x, 2, data_format=order), [(2, 8, 6, 7)]),
    "pixel_unshuffle": (lambda x, order: F.pixel_unshuffle(x, 2, data_format=order), [(2, 8, 6, 8)]),
    "channel_shuffle": (lambda x, order: F.channel_shuffle(x, 2, data_format=order), [(2, 8, 6, 7)]),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("case", ROWS_OF_PIXELS)
def test_images_with_their_channels_last_have_the_bits_of_others(case, dtype, monkeypatch):
    function, shapes = ROWS_OF_PIXELS[case]
    calls = Calls(monkeypatch, case.partition("-")[0])
    rows, *others = tensors(shapes, dtype)
    rows = rows.detach().transpose([0, 2, 3, 1]).contiguous()
    rows.stop_gradient = False
    inputs = [rows, *others]

    def of_images(rows, *others):
        return function(rows.transpose([0, 3, 1, 2]), *others, "NCHW").transpose([0, 2, 3, 1])

    found, expected = run(lambda *each: function(*each, "NHWC"), inputs, "counted"), run(of_images, inputs, "counted")
    assert calls.served == 2 or (case, dtype) == ("prelu", FLOAT32)  # small ones are left to Paddle
    for one, other in zip([found[0], *found[1]], [expected[0], *expected[1]], strict=True):
        np.testing.assert_array_equal(one.astype(FLOAT32).numpy(), other.astype(FLOAT32).numpy())
