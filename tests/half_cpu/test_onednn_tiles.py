"""Attention by blocks of scores: each score once, the same numbers whatever the blocks, memory linear in the tokens."""

import itertools

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

from image_classification import half_cpu, layers
from image_classification.amp import build_precision
from image_classification.half_cpu import compiled_attention, onednn_primitives, onednn_tiles
from image_classification.half_cpu.onednn_matrices import View
from tests.helpers.onednn_runs import (
    ALL,
    BFLOAT16,
    FLOAT32,
    HALVES,
    assert_within_one_rounding,
    needs_onednn,
    run,
    tensors,
)

pytestmark = needs_onednn


def shrink(monkeypatch, small, large, causal_queries=16):
    """Make blocks of a few scores by oneDNN, and keep none of their probabilities."""
    monkeypatch.setattr(compiled_attention, "SCORES", 0)
    for name, value in {"SMALL": small, "LARGE": large, "CAUSAL_QUERIES": causal_queries, "KEPT_SCORES": 0}.items():
        monkeypatch.setattr(onednn_tiles, name, value)


def operand(*shape):
    return View(0, onednn_primitives.dense(paddle.float32, *shape))


@pytest.mark.parametrize("bias", [None, (1, 3, 37, 29), (2, 3, 37, 29), (4, 1, 37, 29), (1, 1, 1, 29)])
@pytest.mark.parametrize("sizes", [(1, 1), (1, 4000), (4000, 1 << 20), (10000, 1 << 20), (1 << 20, 1 << 20)])
def test_blocks_hold_every_score_once_and_no_bias_twice(sizes, bias, monkeypatch):
    shrink(monkeypatch, *sizes)
    bias = None if bias is None else operand(*bias)
    tiles = onednn_tiles.Tiles(paddle.float32, operand(4, 3, 37, 8), operand(4, 3, 29, 8), 1.0, bias=bias)
    seen = np.zeros((4, 3, 37, 29), int)
    for block in itertools.chain(*tiles.groups):
        seen[tuple(slice(first, first + count) for first, count in block)] += 1
        if bias is not None:
            part = bias.part(*onednn_tiles.bias_ranges(bias, block)).layout
            assert part.strides[:-1] == bias.layout.strides[:-1]
            span = sum((size - 1) * step for size, step in zip(part.shape, part.strides, strict=True)) + 1
            assert span == np.prod(part.shape)  # dense: oneDNN reads others wrongly
    assert (seen == 1).all()
    assert all(group[-1].keys == (0, 29) for group in tiles.groups)


PACKED = {
    "plain": ((3, 37, 3 * 2 * 8), None),
    "one token": ((2, 1, 3 * 2 * 8), None),
    "bias": ((4, 37, 3 * 2 * 8), (1, 2, 37, 37)),
    "biases": ((4, 37, 3 * 2 * 8), (2, 2, 37, 37)),
}


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("case", PACKED)
def test_attention_is_the_same_for_blocks_of_any_size(case, dtype, monkeypatch):
    packed, bias = PACKED[case]
    inputs = tensors([packed] if bias is None else [packed, bias], dtype)

    def attend(qkv, bias=None):
        return layers.attention(qkv, 2, 0.3, None, bias)

    monkeypatch.setattr(compiled_attention, "SCORES", 0)
    expected, expected_gradients = run(attend, inputs, "onednn")
    for small, large in ((1, 1), (1, 1 << 20), (6000, 1 << 20), (1 << 20, 1 << 20)):
        shrink(monkeypatch, small, large)
        actual, gradients = run(attend, inputs, "onednn")
        assert_close(actual, expected, dtype, 0)
        for one, other in zip(gradients, expected_gradients, strict=True):
            assert_close(one, other, dtype, 1)  # a probability may be rounded to the other side


def assert_close(actual, expected, dtype, intermediates):
    if dtype in HALVES:
        assert_within_one_rounding(actual, expected, intermediates)
    else:  # sums of 37 float32 terms in another order
        np.testing.assert_allclose(actual.numpy(), expected.numpy(), rtol=0, atol=1e-6 * float(expected.abs().max()))


# shapes of queries, keys, values, and of the mask
DOT_PRODUCTS = {
    "plain": ([(2, 37, 3, 8), (2, 37, 3, 8), (2, 37, 3, 8)], None),
    "causal": ([(2, 37, 3, 8), (2, 37, 3, 8), (2, 37, 3, 8)], "causal"),
    "causal, one token": ([(2, 1, 3, 8), (2, 1, 3, 8), (2, 1, 3, 8)], "causal"),
    "fewer keys, wider values": ([(2, 37, 3, 8), (2, 21, 3, 8), (2, 21, 3, 11)], None),
    "one query": ([(2, 1, 3, 8), (2, 21, 3, 8), (2, 21, 3, 8)], None),
    "one key": ([(2, 37, 3, 8), (2, 1, 3, 8), (2, 1, 3, 8)], (2, 3, 37, 1)),
    "mask of all": ([(2, 37, 3, 8), (2, 21, 3, 8), (2, 21, 3, 8)], (37, 21)),
    "mask of heads": ([(4, 37, 3, 8), (4, 21, 3, 8), (4, 21, 3, 8)], (1, 3, 37, 21)),
    "mask of samples": ([(4, 37, 3, 8), (4, 21, 3, 8), (4, 21, 3, 8)], (4, 1, 37, 21)),
    "mask of samples and heads": ([(4, 37, 3, 8), (4, 21, 3, 8), (4, 21, 3, 8)], (4, 3, 37, 21)),
    "padding": ([(4, 37, 3, 8), (4, 21, 3, 8), (4, 21, 3, 8)], (4, 1, 1, 21)),
    "mask of heads and keys, left to the operators": ([(2, 37, 3, 8)] * 3, (1, 3, 1, 37)),
}


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("case", DOT_PRODUCTS)
def test_scaled_dot_product_attention_equals_float64(case, dtype, monkeypatch):
    shapes, mask = DOT_PRODUCTS[case]
    causal = mask == "causal"
    inputs = tensors(shapes if causal or mask is None else [*shapes, mask], dtype)
    wide = [tensor.astype("float64").detach() for tensor in inputs]
    for tensor in wide:
        tensor.stop_gradient = False
    if len(inputs) == 4:
        inputs[3].stop_gradient = mask[-3:] != (3, 37, 21)  # a learned bias where the kernel knows its gradient

    def attend(*operands):
        return F.scaled_dot_product_attention(*operands, is_causal=causal)

    expected, expected_gradients = run(exactly(causal), wide, "reference")
    for small, large in ((1 << 20, 1 << 20), (1, 1)):
        actual, gradients = run(attend, inputs, "onednn")
        assert (actual.grad_fn.name() == "GradNodePyLayer_DotProductAttention") == ("operators" not in case)
        # Scores, probabilities and the result are rounded in the half format, to u / 2 each; the sums of gradients, as
        # large as their largest terms, from two operands that were rounded. float32: sums of up to 37 terms.
        unit = {"float16": 2.0**-10, BFLOAT16: 2.0**-7, FLOAT32: 2.0**-20}[dtype]
        for one, other in zip([actual, *gradients], [expected, *expected_gradients], strict=True):
            if one is not None:
                difference = np.abs(one.astype("float64").numpy() - other.numpy()).max()
                assert difference <= 3 * unit * np.abs(other.numpy()).max()
        shrink(monkeypatch, small, large)


def exactly(causal):
    """Return attention in single operators."""

    def attend(query, key, value, mask=None):
        query, key, value = (tensor.transpose([0, 2, 1, 3]) for tensor in (query, key, value))
        scores = query @ key.transpose([0, 1, 3, 2]) * query.shape[-1] ** -0.5
        if causal:
            scores = scores + paddle.triu(paddle.full(scores.shape[2:], -np.inf, scores.dtype), 1)
        scores = scores if mask is None else scores + mask
        return (F.softmax(scores) @ value).transpose([0, 2, 1, 3])

    return attend


@pytest.mark.parametrize("view", ["transposed", "unbound", "expanded"])
def test_scaled_dot_product_attention_reads_strided_operands(view):
    def operands(x):
        if view == "transposed":  # [B, h, N, d] in memory
            return [x.reshape([2, 3, 13, 24])[..., i * 8 : i * 8 + 8].transpose([0, 2, 1, 3]) for i in range(3)]
        if view == "unbound":
            return x.reshape([2, 13, 3, 3, 8]).unbind(2)
        return [part.expand([2, 13, 3, 8]) for part in x.reshape([2, 13, 9, 8])[:, :, :3].split(3, axis=2)]

    (x,) = tensors([(2, 13, 72)], FLOAT32)
    expected, (expected_gradient,) = run(lambda x: exactly(False)(*operands(x)), [x], "reference")
    actual, (gradient,) = run(lambda x: F.scaled_dot_product_attention(*operands(x)), [x], "onednn")
    np.testing.assert_allclose(actual.numpy(), expected.numpy(), atol=1e-6)  # values around 1, sums of 13 terms
    np.testing.assert_allclose(gradient.numpy(), expected_gradient.numpy(), atol=1e-5)


def test_keys_that_a_mask_hides_from_a_query_do_not_count():
    query, key, value = tensors([(1, 5, 2, 8)] * 3)
    seen = paddle.tril(paddle.ones([5, 5])) > 0
    with half_cpu.dispatch():
        masked = F.scaled_dot_product_attention(query, key, value, seen)
        causal = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        first = F.scaled_dot_product_attention(query[:, :1], key[:, :1], value[:, :1])
    assert (masked.astype(FLOAT32) == causal.astype(FLOAT32)).all()
    assert (masked[:, :1].astype(FLOAT32) == first.astype(FLOAT32)).all()


def test_scaled_dot_product_attention_with_dropout_drops():
    query, key, value = tensors([(1, 64, 2, 8)] * 3)
    with half_cpu.dispatch():
        dropped = F.scaled_dot_product_attention(query, key, paddle.ones_like(value), dropout_p=0.5)
        evaluated = F.scaled_dot_product_attention(query, key, value, dropout_p=0.5, training=False)
        plain = F.scaled_dot_product_attention(query, key, value)
    assert dropped.astype(FLOAT32).std() > 0.05  # without dropout the probabilities sum to one
    assert (evaluated.astype(FLOAT32) == plain.astype(FLOAT32)).all()


def test_scaled_dot_product_attention_in_mixed_precision_computes_in_half():
    query, key, value = tensors([(1, 5, 2, 8)] * 3, FLOAT32)
    with build_precision("auto", dtype=BFLOAT16).forward_context():
        assert F.scaled_dot_product_attention(query, key, value).dtype == paddle.bfloat16
    assert F.scaled_dot_product_attention(query, key, value).dtype == paddle.float32


def allocated(kind="current"):
    return getattr(paddle.base.core, f"host_memory_stat_{kind}_value")("Allocated", 0)


@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT32])
def test_memory_of_attention_is_linear_in_the_tokens(dtype):
    """Two samples of 8 heads: a matrix of all probabilities has 34 or 67 million bytes."""
    tokens, (packed,) = 1025, tensors([(2, 1025, 3 * 8 * 16)], dtype)
    size = packed.size * packed.element_size()
    whole = 2 * 8 * tokens**2 * packed.element_size()
    gradient = paddle.ones([2, tokens, 8 * 16], dtype)
    for _ in range(2):  # the first call builds what is kept for others
        packed.clear_gradient(False)
        before = allocated()
        paddle.base.core.host_memory_stat_reset_peak_value("Allocated", 0)
        with half_cpu.dispatch(backend="onednn"):
            result = layers.attention(packed, 8, 0.25)
        held = allocated() - before
        result.backward(gradient)
        peak = allocated("peak") - before
        del result
    assert held < 1.1 * size / 3  # the result alone: the packed projection was there
    # a gradient of the size of the operand, one more of the result, and a block of probabilities and one of scores
    assert peak < 2 * size + 2 * onednn_tiles.LARGE < whole
