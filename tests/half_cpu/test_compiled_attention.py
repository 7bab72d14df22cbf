"""Attention of few tokens by the compiled kernel, against float64: sizes that fill no vector, biases of windows."""

import numpy as np
import paddle
import pytest

from image_classification import half_cpu, layers
from image_classification.half_cpu import compiled_attention, onednn_primitives
from image_classification.half_cpu.compiled_library import load
from image_classification.half_cpu.onednn_attention import parts
from image_classification.half_cpu.onednn_matrices import View
from image_classification.half_cpu.onednn_tiles import Tiles
from tests.helpers.onednn_runs import ALL, BFLOAT16, FLOAT32, HALVES, needs_onednn, run, tensors

pytestmark = [needs_onednn, pytest.mark.skipif(load() is None, reason="needs the compiled kernels")]


# samples, tokens, heads, channels of a head, biases
SIZES = {
    "windows of Swin": (4, 49, 3, 32, 2),
    "one bias for all": (40, 16, 2, 16, 1),
    "no bias": (2, 197, 2, 64, None),
    "odd": (3, 35, 2, 17, 3),
    "one token": (2, 1, 2, 8, 1),
    "one channel": (2, 33, 1, 1, None),
    "most": (1, 256, 1, 128, None),
    "more": (2, 301, 2, 33, None),
    "more, one bias for all": (2, 290, 1, 64, 1),
}


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("case", SIZES)
def test_attention_of_few_tokens_equals_float64(case, dtype):
    batch, tokens, heads, dim, biases = SIZES[case]
    shapes = [(batch, tokens, 3 * heads * dim)]
    inputs = tensors(shapes if biases is None else [*shapes, (biases, heads, tokens, tokens)], dtype)
    wide = [tensor.astype("float64").detach() for tensor in inputs]
    for tensor in wide:
        tensor.stop_gradient = False

    def attend(qkv, bias=None):
        return layers.attention(qkv, heads, dim**-0.5, None, bias)

    expected, expected_gradients = run(attend, wide, "reference")
    actual, gradients = run(attend, inputs, "onednn")
    # Probabilities and results are rounded to u / 2 each, gradients the same and those of the scores; float32 sums.
    unit = {"float16": 2.0**-10, BFLOAT16: 2.0**-7, FLOAT32: 2.0**-20}[dtype]
    for one, other in zip([actual, *gradients], [expected, *expected_gradients], strict=True):
        assert str(one.dtype) == f"paddle.{dtype}"
        difference = np.abs(one.astype("float64").numpy() - other.numpy()).max()
        assert difference <= 1.5 * unit * np.abs(other.numpy()).max()


def over(axis):
    return lambda x, *_: paddle.nn.functional.softmax(x, axis=axis)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("function", [over(-1), over(1), paddle.nn.functional.scaled_dot_product_attention],
                         ids=["rows", "columns", "attention"])  # fmt: skip
def test_gradients_of_large_probabilities_are_not_lost_in_their_rounding(function, dtype):
    """Rounded, they are not 1 together, which shows where the gradients that come in have much in common: by 29u in
    attention, before it was divided out."""
    numbers = np.random.default_rng(0).standard_normal((4, 2, 50, 3, 64))
    numbers[0] *= 4  # scores
    numbers[2:] += 8
    *operands, slope = (paddle.to_tensor(some).astype(dtype) for some in numbers)

    def gradient(backend, *operands, slope):
        operands[0].stop_gradient = False
        with half_cpu.dispatch(backend=backend):
            function(*operands).backward(slope)
        return operands[0].grad.astype("float64").numpy()

    exact = gradient("reference", *(one.astype("float64") for one in operands), slope=slope.astype("float64"))
    unit = {"float16": 2.0**-10, BFLOAT16: 2.0**-7}[dtype]
    difference = np.abs(gradient("auto", *operands, slope=slope) - exact).max()
    assert difference <= 1.5 * unit * np.abs(exact).max()  # of probabilities, gradients of scores, and the result


@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT32])
def test_gradient_of_a_bias_is_the_sum_over_its_samples(dtype):
    """Rounded once: of 96 numbers around 1 that were rounded each it would be off by several roundings."""
    qkv, bias = tensors([(96, 7, 3 * 2 * 8), (1, 2, 7, 7)], dtype)
    _, (_, together) = run(lambda qkv, bias: layers.attention(qkv, 2, 0.3, None, bias), [qkv, bias], "onednn")
    apart = paddle.concat([bias.detach()] * 96)
    apart.stop_gradient = False
    _, (_, each) = run(lambda qkv, bias: layers.attention(qkv, 2, 0.3, None, bias), [qkv.detach(), apart], "onednn")
    total = each.astype("float64").numpy().sum(axis=0)
    unit = {BFLOAT16: 2.0**-7, FLOAT32: 2.0**-20}[dtype]
    assert np.abs(together.astype("float64").numpy()[0] - total).max() <= unit * np.abs(total).max()


@pytest.mark.parametrize("value", [np.inf, np.nan])
@pytest.mark.parametrize("dtype", ALL)
def test_infinite_channel_of_a_token_spoils_its_own_sample_only(value, dtype):
    values = np.random.default_rng(0).standard_normal((3, 35, 3 * 2 * 16)).astype(np.float32)
    values[1, 34, 5] = value  # of a query
    qkv = paddle.to_tensor(values).astype(dtype)
    qkv.stop_gradient = False
    with half_cpu.dispatch():
        out = layers.attention(qkv, 2, 0.25)
    out.backward(paddle.ones_like(out))
    out, gradient = (np.isfinite(tensor.astype(FLOAT32).numpy()) for tensor in (out, qkv.grad))
    assert not out[1, 34, :16].any() and out[1, 34, 16:].all()  # the first head's result, and no other
    assert out[[0, 2]].all() and out[1, :34].all()
    assert gradient[[0, 2]].all() and not gradient[1, :, :16].all()


@pytest.mark.parametrize("value", [-1e10, -1e30, -3.3e38])
@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT32])
def test_query_whose_keys_are_all_masked_with_a_finite_number_sees_them_alike(value, dtype):
    """Beside such numbers scores count for nothing: the mean of the values, as of a sample that is padding only."""
    query, key, values = tensors([(2, 19, 3, 8)] * 3, dtype)
    mask = paddle.full([2, 1, 19, 19], 0.0)
    mask[0] = value
    mask[1, :, :, 5:] = value
    with half_cpu.dispatch():
        out = paddle.nn.functional.scaled_dot_product_attention(query, key, values, mask.astype(dtype))
    out.backward(paddle.ones_like(out))
    assert all(np.isfinite(tensor.grad.astype(FLOAT32).numpy()).all() for tensor in (query, key, values))
    out, mean = out.astype(FLOAT32).numpy()[0], values.astype(FLOAT32).mean(1).numpy()[0]
    unit = {BFLOAT16: 2.0**-7, FLOAT32: 2.0**-20}[dtype]  # of probabilities and of the result
    assert np.abs(out - mean).max() <= unit * np.abs(values.astype(FLOAT32).numpy()).max()
    assert not values.grad[1, 5:].astype(FLOAT32).numpy().any()


needs_amx = pytest.mark.skipif(load() is None or not load().has_amx, reason="needs AMX")


@needs_amx
def test_attention_of_a_long_sequence_by_amx_equals_float64():
    test_attention_of_few_tokens_equals_float64("more", BFLOAT16)


@needs_amx
def test_probabilities_that_were_not_kept_are_computed_again_from_the_mask():
    query, key, values = tensors([(2, 270, 3, 24)] * 3)
    mask = paddle.zeros([2, 1, 270, 270])
    mask[:, :, :, 200:] = -np.inf
    results = []
    for count in (270, 200):  # keys that no query sees, and none of them
        inputs = [tensor[:, :end].detach() for tensor, end in ((query, 270), (key, count), (values, count))]
        for tensor in inputs:
            tensor.stop_gradient = False
        some = mask[..., :count].astype(BFLOAT16)
        with half_cpu.dispatch():
            out = paddle.nn.functional.scaled_dot_product_attention(*inputs, some)
        out.backward(paddle.ones_like(out))
        results.append([tensor.astype(FLOAT32).numpy() for tensor in (out, *(one.grad for one in inputs))])
    for all_keys, seen_keys in zip(*results, strict=True):
        assert not all_keys[:, seen_keys.shape[1] :].any()
        # The same sums in another order, of numbers that are rounded alike, once more.
        assert np.abs(all_keys[:, : seen_keys.shape[1]] - seen_keys).max() <= 2.0**-7 * np.abs(seen_keys).max()


def test_long_sequences_and_wide_heads_are_left_to_onednn():
    def serves(tokens, dim):
        operand = View(0, onednn_primitives.dense(paddle.float32, 2, 3, tokens, dim))
        return compiled_attention.serves(Tiles(paddle.float32, operand, operand, 1.0), operand)

    assert serves(49, 32) and serves(256, 128)
    assert not serves(257, 32) and not serves(49, 129)


def test_view_of_a_part_keeps_the_memory_of_what_nobody_else_has():
    """Such as the dense copy of a strided gradient."""
    packed = paddle.ones([2, 301, 96])
    pointer, views = packed.data_ptr(), parts(packed, 2, 3)
    del packed
    others = [paddle.zeros([2, 301, 96]) for _ in range(16)]  # one of them would lie where it lay
    assert views[0].pointer == pointer and pointer not in [other.data_ptr() for other in others]
