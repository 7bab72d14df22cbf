"""softmax(scale q k^T + bias) v and its gradients by blocks of scores that stay in a core's cache.

A block holds the scores of some samples, heads and queries with all their keys, so that its softmax is whole. The
backward pass computes the scores anew, block by block; what the gradients of keys and values sum over blocks of queries
waits in float32 and is rounded once. Operands are views by any strides: queries [B, h, N, d], keys and values
[B, h, M, d].
"""

import functools
import itertools
import math
from typing import NamedTuple

import paddle

from . import compiled_attention
from . import onednn_library as onednn
from .arguments import FLOAT32
from .onednn_matmul import multiply, sum_rows
from .onednn_matrices import View, view
from .onednn_memory import convert, copy_layout, in_dtype
from .onednn_normalization import softmax_rows, softmax_rows_backward
from .onednn_primitives import DATA_TYPES, ELEMENT_SIZE, dense, layout, new_tensor, numel
from .scope import constant

# Bytes of scores that a thread computes at a time: heads and samples are taken together up to SMALL, and one head's
# queries apart from LARGE on, since sums over blocks of queries, read and written again for each, take a tenth of the
# backward pass. A training step of 577 or 1025 tokens is as fast with half and twice of both.
SMALL, LARGE = 1 << 20, 1 << 23
CAUSAL_QUERIES = 256  # at a time: keys that none of them sees are left out
_SUM = (("sum",),)


# Up to this many scores of a head its probabilities are kept for the backward pass. At 197 tokens attention then takes
# 0.87 of the time that computing them again takes, and as much memory as the packed projection; at 577 tokens three
# times as much, for the same share of time.
KEPT_SCORES = 256 * 256


def keeps(queries, keys):
    """Return whether the probabilities are kept for a backward pass."""
    return paddle.is_grad_enabled() and queries * keys <= KEPT_SCORES


class Block(NamedTuple):
    """(first, count) of the samples, heads, queries and keys of a block of scores."""

    samples: tuple
    heads: tuple
    queries: tuple
    keys: tuple

    @property
    def shape(self):
        return tuple(count for _, count in self)


def _even(total, most):
    """Return the (first, count) of parts of 0..total of about the same size, of at most `most`."""
    count = -(-total // -(-total // max(most, 1)))
    return [(first, min(count, total - first)) for first in range(0, total, count)]


class Tiles:
    """The probabilities of queries [B, h, N, d] and keys [B, h, M, d]: softmax of scale q k^T, plus a bias if given.

    Args:
        dtype: number format of all operands, in which scores and probabilities are rounded.
        causal: a query sees the keys up to its own; N = M, no bias.
        bias: a dense view [W, h or 1, N or 1, M], one for each of W samples in turn; [W, h, 1, M] is not served.
        kept: a dense view [B, h, N, M] that holds the probabilities between the passes, None to compute them again.
    """

    def __init__(self, dtype, query, key, scale, causal=False, *, bias=None, kept=None):
        self.dtype, self.query, self.key = dtype, query, key
        self.bias, self.causal, self.kept = bias, causal, kept
        self.scale = scale
        self.scaled = (("eltwise", onednn.LINEAR, scale, 0.0),)
        self._unseen = {}

    @functools.cached_property
    def groups(self):
        """Lists of blocks; those of a list differ in their queries only, and the last one sees all keys."""
        batch, heads, queries, _ = self.query.layout.shape
        keys = self.key.layout.shape[2]
        row = keys * ELEMENT_SIZE[DATA_TYPES[self.dtype]]
        in_parts = queries * row > LARGE or self.causal and queries > CAUSAL_QUERIES
        at_once = CAUSAL_QUERIES if self.causal else -(-_even(queries, LARGE // row)[0][1] // 16) * 16
        at_once = at_once if in_parts else queries
        rows = SMALL // row * onednn.load().threads()
        heads_at_once, samples_at_once = rows // at_once, 1 if in_parts else rows // (heads * queries)
        # What oneDNN adds fast is dense, and the same for all samples or for all heads, but not for both.
        count, bias_heads, *_ = (1, 1 if self.causal else heads) if self.bias is None else self.bias.layout.shape
        if count == 1 and bias_heads < heads:
            samples_at_once = 1
        if self.bias is not None and in_parts and bias_heads > 1:
            heads_at_once = 1
        period = batch if count == 1 else count
        parts = _even(period, samples_at_once)
        samples = [(start + first, count) for start in range(0, batch, period) for first, count in parts]
        parts = [(first, min(at_once, queries - first)) for first in range(0, queries, at_once)]
        groups = []
        for others, some in itertools.product(_even(heads, heads_at_once), samples):
            groups.append([Block(some, others, part, (0, sum(part) if self.causal else keys)) for part in parts])
        return groups

    def scratch(self):
        """Return memory for the scores of the largest block."""
        return new_tensor(self.dtype, [max(math.prod(block.shape) for group in self.groups for block in group)])

    def square(self, tensor, block):
        """Return the view of a block's scores at the beginning of a tensor."""
        return View(tensor.data_ptr(), dense(self.dtype, *block.shape), tensor)

    def probabilities(self, block, scratch):
        """Return the view of a block's probabilities, written to where they are kept, else to `scratch`."""
        scores = self.square(scratch, block) if self.kept is None else self.part_of(self.kept, block)
        query, key = self.query.part(*block[:3]), keys_of(self.key, block)
        bias = self._bias_of(block)
        if bias is None:
            multiply(query, key.transposed, scores, post_ops=self.scaled)
        else:
            post_ops = (*self.scaled, ("binary", onednn.BINARY_ADD, bias.layout))
            multiply(query, key.transposed, scores, post_ops=post_ops, operands=(bias.pointer,))
        softmax_rows(scores.pointer, scores.pointer, _rows(scores, self.dtype))
        return scores

    def part_of(self, whole, block):
        """Return the view of a block, dense in a dense view of all scores."""
        return whole.part(*block[:3])._replace(layout=dense(self.dtype, *block.shape))

    def _bias_of(self, block):
        if self.bias is not None:
            part = self.bias.part(*bias_ranges(self.bias, block))
            return part._replace(layout=dense(self.dtype, *part.layout.shape))
        if not self.causal:
            return None
        (first, rows), (_, keys) = block[2:]
        if first not in self._unseen:
            later = constant(lambda: paddle.triu(paddle.full([rows, keys], -math.inf, FLOAT32), first + 1))
            self._unseen[first] = in_dtype(later, self.dtype)
        unseen = self._unseen[first]
        return View(unseen.data_ptr(), dense(self.dtype, 1, 1, rows, keys), unseen)


def keys_of(operand, block):
    """Return the part of keys or values that a block sees."""
    return operand.part(block.samples, block.heads, block.keys)


def bias_ranges(bias, block):
    """Return (first, count) for each axis of a view [W, h or 1, N or 1, M], of what is added to a block's scores."""
    period, *others = bias.layout.shape
    first, count = block.samples
    ranges = ((0, 1) if size == 1 else part for size, part in zip(others, block[1:], strict=True))
    return (first % period, min(count, period)), *ranges


def _rows(scores, dtype):
    *some, keys = scores.layout.shape
    return dense(dtype, math.prod(some), keys)


def attend(tiles, value, out):
    """Write the mean of the values, weighted by the probabilities, to the view `out`, [B, h, N, d]."""
    if compiled_attention.serves(tiles, value):
        compiled_attention.attend(tiles, value, out)
        return
    scratch = tiles.scratch() if tiles.kept is None else None
    for block in itertools.chain(*tiles.groups):
        multiply(tiles.probabilities(block, scratch), keys_of(value, block), out.part(*block[:3]))


def attend_backward(tiles, value, gradient, results, bias=None):
    """Write the gradients of queries, keys and values to three views, and return that of the bias.

    Args:
        gradient: view of the gradient of what `attend` wrote.
        results: views like those of queries, keys and values.
        bias: the tensor [W, h, N, M] whose gradient is wanted, None for none.
    """
    if compiled_attention.serves_backward(tiles, value, bias):
        bias_gradient = None if bias is None else new_tensor(bias.dtype, bias.shape)
        compiled_attention.attend_backward(tiles, value, gradient, results, bias_gradient)
        return bias_gradient
    dtype, batch = tiles.dtype, tiles.query.layout.shape[0]
    slopes = None if bias is None else new_tensor(dtype, [batch, *bias.shape[1:]])  # the gradient of all scores
    scratch = tiles.scratch() if tiles.kept is None else None
    one_block = tiles.scratch() if slopes is None else None
    in_parts = len(tiles.groups[0]) > 1
    for group in tiles.groups:
        sums = [_Sums(keys_of(result, group[-1]), dtype, in_parts) for result in results[1:]]
        for block in reversed(group):  # the last one sees all keys
            further = () if block is group[-1] else _SUM
            weights = tiles.probabilities(block, scratch) if tiles.kept is None else tiles.part_of(tiles.kept, block)
            scores = tiles.square(one_block, block) if slopes is None else tiles.part_of(view(slopes), block)
            of_out = gradient.part(*block[:3])
            key_sums, value_sums = (one.view.part(None, None, block.keys) for one in sums)
            multiply(weights.transposed, of_out, value_sums, post_ops=further)
            multiply(of_out, keys_of(value, block).transposed, scores)
            softmax_rows_backward(weights.pointer, scores.pointer, scores.pointer, _rows(scores, dtype))
            multiply(scores, keys_of(tiles.key, block), results[0].part(*block[:3]), post_ops=tiles.scaled)
            query = tiles.query.part(*block[:3])
            multiply(scores.transposed, query, key_sums, post_ops=(*tiles.scaled, *further))
        for one in sums:
            one.finish()
    if bias is None:
        return None
    return sum_rows(slopes, batch // len(bias), numel(bias), dtype).reshape(bias.shape)


class _Sums:
    """Where the products of one block after another are summed: the result itself, or float32 that is rounded last."""

    def __init__(self, result, dtype, in_parts):
        self._result, self._dtype, self._tensor = result, dtype, None
        self.view = result
        if in_parts and dtype is not FLOAT32:
            shape = result.layout.shape
            self._tensor = new_tensor(FLOAT32, shape)
            self.view = View(self._tensor.data_ptr(), dense(FLOAT32, *shape), self._tensor)

    def finish(self):
        """Write the result, unless it is written."""
        if self._tensor is None:
            return
        rounded = convert(self._tensor, new_tensor(self._dtype, self._tensor.shape))
        copy_layout(layout(rounded), self._result.layout, rounded.data_ptr(), self._result.pointer)
