"""Gradients of filters by AMX: compared with float64, and when they are chosen."""

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

from image_classification import half_cpu
from image_classification.half_cpu import compiled_library, compiled_tiles, compiled_window_gradients
from image_classification.half_cpu import onednn_library as onednn
from image_classification.half_cpu.onednn_convolution import Convolution
from image_classification.half_cpu.onednn_convolution_passes import plan
from image_classification.half_cpu.onednn_primitives import Layout, dense_strides
from tests.helpers.onednn_runs import BFLOAT16, FLOAT32, ROUNDING, assert_within_one_rounding, by_threads, run, tensors

needs_tiles = pytest.mark.skipif(not compiled_tiles.has_tiles(), reason="needs AMX")
FORMATS = {BFLOAT16: onednn.BFLOAT16, FLOAT32: onednn.FLOAT32}
# images, inputs, outputs, height, width, rows and columns of a window, stride, dilation, padding [above, below, left,
# right]: several blocks of pixels, parts of tiles, all channels in a task and some of them, a single pixel, windows
# wider than images, more taps than lanes, phases that no tap reads, padding that is not alike
CASES = [
    (1, 32, 32, 5, 6, (3, 3), (1, 1), (1, 1), (1, 1, 1, 1)),
    (3, 40, 70, 31, 29, (3, 3), (1, 1), (1, 1), (1, 1, 1, 1)),
    (2, 64, 64, 60, 61, (3, 3), (1, 1), (1, 1), (1, 1, 1, 1)),
    (2, 224, 416, 9, 7, (3, 3), (1, 1), (1, 1), (1, 1, 1, 1)),
    (2, 448, 288, 28, 28, (3, 3), (1, 1), (1, 1), (1, 1, 1, 1)),
    (1, 32, 33, 1, 1, (3, 3), (1, 1), (1, 1), (1, 1, 1, 1)),
    (2, 33, 32, 2, 3, (5, 5), (1, 1), (1, 1), (2, 2, 2, 2)),
    (2, 32, 48, 11, 12, (5, 7), (1, 1), (1, 1), (2, 2, 3, 3)),
    (2, 64, 96, 17, 14, (3, 3), (2, 2), (1, 1), (1, 1, 1, 1)),
    (2, 64, 64, 16, 19, (2, 2), (2, 3), (1, 1), (0, 0, 0, 0)),
    (1, 64, 64, 40, 41, (3, 2), (4, 2), (1, 1), (2, 0, 1, 0)),
    (2, 64, 64, 23, 21, (3, 3), (1, 1), (3, 2), (3, 3, 2, 2)),
    (2, 32, 32, 12, 13, (1, 3), (1, 1), (1, 1), (0, 0, 1, 1)),
    (2, 32, 32, 12, 13, (4, 4), (1, 1), (1, 1), (0, 3, 2, 1)),
    (1, 32, 32, 8, 9, (3, 3), (1, 1), (1, 1), (0, 0, 0, 0)),
    (2, 32, 32, 6, 7, (2, 2), (1, 1), (1, 1), (3, 2, 2, 3)),
]


def gradient(x, result, window, stride, dilation, padding, dtype=FLOAT32):
    """Return the gradient of filters as the kernel writes it, from images [B, C, H, W] and the gradient of results."""
    outputs, inputs = result.shape[1], x.shape[1]
    images, results = (tensor.transpose([0, 2, 3, 1]).contiguous() for tensor in (x, result))
    out = paddle.full([outputs, inputs, *window], np.nan, dtype)
    constants = compiled_library.numbers(
        x.shape[0], 1, inputs, outputs, *x.shape[2:], *result.shape[2:], *window, *stride, *dilation, *padding[::2]
    )
    call = compiled_library.load().window_gradient
    call(FORMATS[dtype], constants, images.data_ptr(), out.data_ptr(), results.data_ptr())
    return out.astype("float64").numpy()


def exact(x, result, window, stride, dilation, padding):
    """Return the same in float64, tap by tap, each from the pixels that exist."""
    x, result = (tensor.astype("float64").numpy() for tensor in (x, result))
    out = np.zeros([result.shape[1], x.shape[1], *window])
    for i in range(window[0]):
        for j in range(window[1]):
            rows, columns = (
                np.arange(size) * stride[axis] + tap * dilation[axis] - padding[2 * axis]
                for axis, (size, tap) in enumerate(zip(result.shape[2:], (i, j), strict=True))
            )
            down, right = ((at >= 0) & (at < size) for at, size in zip((rows, columns), x.shape[2:], strict=True))
            read = x[:, :, rows[down]][:, :, :, columns[right]]
            with np.errstate(invalid="ignore"):
                out[:, :, i, j] = np.einsum("bohw,bchw->oc", result[:, :, down][:, :, :, right], read, optimize=True)
    return out


def operands(images, inputs, outputs, height, width, window, stride, dilation, padding):
    """Return random (images, gradient of the results)."""
    sizes = [
        (size + sum(padding[2 * axis : 2 * axis + 2]) - dilation[axis] * (window[axis] - 1) - 1) // stride[axis] + 1
        for axis, size in enumerate((height, width))
    ]
    paddle.seed(sum(sizes))
    shapes = [images, inputs, height, width], [images, outputs, *sizes]
    return [paddle.randn(shape).astype(BFLOAT16) for shape in shapes]


def assert_rounded_once(found, x, result, *geometry):
    """Half a unit in the last place; float32 sums lose at most 2^-24 of the absolute sum for each of their terms, and
    as a walk of random steps the root of their number."""
    expected, terms = exact(x, result, *geometry), result.shape[0] * np.prod(result.shape[2:])
    sums = exact(*(tensor.astype("float64").abs() for tensor in (x, result)), *geometry)
    assert (np.abs(found - expected) <= ROUNDING[BFLOAT16] / 2 * np.abs(expected) + sums * 2.0**-24 * terms**0.5).all()


@needs_tiles
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradient_of_filters_is_the_exact_one_rounded_once(case, dtype):
    x, result = operands(*case)
    found = gradient(x, result, *case[5:], dtype)
    assert_rounded_once(found, x, result, *case[5:])
    assert (paddle.to_tensor(found).astype(BFLOAT16).astype("float64").numpy() == found).all()


@needs_tiles
@pytest.mark.parametrize("case", [CASES[2], CASES[3], CASES[8]], ids=str)
@pytest.mark.parametrize("operand", [0, 1], ids=["images", "results"])
def test_numbers_that_are_not_finite_reach_the_taps_that_read_them_alone(case, operand):
    both = operands(*case)
    last = [size - 1 for size in both[operand].shape[2:]]
    both[operand][0, 40, 0, last[1]] = np.inf  # another strip of channels than the others
    both[operand][-1, 5, last[0], 0] = np.nan
    both[operand][-1, 5, 1, 1] = -np.inf
    found, expected = gradient(*both, *case[5:]), exact(*both, *case[5:])
    assert np.isnan(expected).any() and np.isinf(expected).any() and np.isfinite(expected).any()
    assert (np.isnan(found) == np.isnan(expected)).all()
    assert (found[np.isinf(expected)] == expected[np.isinf(expected)]).all()
    assert np.isfinite(found[np.isfinite(expected)]).all()


@needs_tiles
@pytest.mark.parametrize("operand", [0, 1], ids=["images", "results"])
def test_nothing_but_nan_gives_nothing_but_nan_and_one_pixel_of_it_the_taps_that_read_it(operand):
    case = CASES[0]
    both = operands(*case)
    both[operand][0, :, 0, 5] = np.nan
    found, expected = gradient(*both, *case[5:]), exact(*both, *case[5:])
    assert (np.isnan(found) == np.isnan(expected)).all() and not np.isnan(expected).all()
    both[operand][:] = np.nan
    assert np.isnan(gradient(*both, *case[5:])).all()


@needs_tiles
@pytest.mark.parametrize("case", [CASES[2], CASES[4]], ids=str)
def test_gradient_on_other_numbers_of_threads_is_the_same_bit_for_bit(case):
    results = by_threads((1, 2, 3), lambda: gradient(*operands(*case), *case[5:]))
    assert all((one == results[0]).all() for one in results)


@needs_tiles
@pytest.mark.parametrize("dtype", FORMATS)
def test_backward_pass_of_a_convolution_in_bfloat16_is_served(dtype, monkeypatch):
    library, calls = compiled_library.load(), []
    original = library.window_gradient
    monkeypatch.setattr(library, "window_gradient", lambda *numbers: (calls.append(numbers[0]), original(*numbers)))
    paddle.seed(0)
    # Sizes of this test alone: what is prepared for others has the function that is not counted.
    case = 2, 32, 64, 10, 23, (3, 3), (1, 1), (1, 1), (1, 1, 1, 1)
    x, seed = operands(*case)
    weight = paddle.randn([64, 32, 3, 3]).astype(dtype)
    weight.stop_gradient = False
    with half_cpu.dispatch():
        out = Convolution.apply(x, weight, plan(x, weight, [1, 1], [1, 1], "EXPLICIT", [1, 1], 1, "NCHW"))
    paddle.autograd.backward([out], [seed])
    assert calls == [FORMATS[dtype]] and weight.grad.dtype == weight.dtype
    assert_rounded_once(weight.grad.astype("float64").numpy(), x, seed, *case[5:])


@needs_tiles
def test_backward_pass_of_a_transposed_convolution_gives_the_filters_gradient_of_the_reference(monkeypatch):
    library, calls = compiled_library.load(), []
    original = library.window_gradient
    monkeypatch.setattr(library, "window_gradient", lambda *numbers: (calls.append(numbers[0]), original(*numbers)))

    def upsampled(x, weight):
        return F.conv2d_transpose(x, weight, stride=2, padding=1, output_padding=1)

    inputs = tensors([(2, 64, 9, 11), (64, 96, 3, 3)])
    _, (_, found) = run(upsampled, inputs, "auto")
    assert calls == [onednn.BFLOAT16]
    _, (_, expected) = run(upsampled, inputs, "reference")
    assert_within_one_rounding(found, expected)


@pytest.mark.parametrize(
    ("shape", "geometry", "wanted"),
    [
        ((64, 64, 3, 3), ((1, 1), (0, 0)), True),
        ((64, 64, 1, 1), ((1, 1), (0, 0)), False),
        ((64, 16, 3, 3), ((1, 1), (0, 0)), False),
        ((40, 40, 3, 3), ((1, 1), (0, 0)), False),
        ((64, 32, 3, 3), ((1, 1), (0, 0)), True),
        ((64, 32, 3, 3), ((2, 2), (0, 0)), False),
        ((64, 64, 3, 3), ((2, 2), (0, 0)), True),
        ((64, 64, 3, 3), ((1, 1), (1, 1)), True),
        ((64, 64, 3, 3), ((1, 1), (5, 5)), False),
    ],
    ids=str,
)
@pytest.mark.parametrize("by_tiles", [True, False], ids=["amx", "other"])
def test_gradients_are_chosen_where_tiles_are_full(shape, geometry, wanted, by_tiles, monkeypatch):
    monkeypatch.setattr(compiled_window_gradients, "has_tiles", lambda: by_tiles)
    shapes = (2, shape[1], 20, 20), shape, (2, shape[0], 20, 20)
    images, filters, target = (Layout(onednn.BFLOAT16, each, dense_strides(each)) for each in shapes)
    key = images, filters, target, (*geometry, (1, 1), (1, 1))
    assert compiled_window_gradients.pays("backward_weights", *key) == (wanted and by_tiles)
    assert not compiled_window_gradients.pays("forward", *key)
    wide = filters._replace(data_type=onednn.FLOAT32)
    assert not compiled_window_gradients.pays("backward_weights", images, wide, *key[2:])


