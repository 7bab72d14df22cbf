"""Tensor parallelism (Shoeybi et al. 2019, Megatron-LM): several processes share each layer of a transformer.

A plain model is built whole on every process, from the same seed, and then cut: any degree starts from the same
weights, and what the shards join to is the plain model again. A block costs two all-reduces forward (after attention
and after the MLP) and two backward (before each); the head costs one all-gather and one all-reduce.

Shapes use: B batch, N tokens, C channels, n processes of the group.
"""

from typing import NamedTuple

import numpy
import paddle
from paddle import nn
from paddle.autograd import PyLayer
from paddle.distributed import fleet
from paddle.nn import functional as F

from image_classification.layers import Attention, Mlp
from image_classification.runtime import UserError

DROPOUT_STREAM = "tensor_parallel"


class Cut(NamedTuple):
    """How a tensor is divided: `axis` falls into `blocks` equal blocks (query, key, value: 3), each cut by n."""

    axis: int
    blocks: int = 1

    def take(self, whole, index, size):
        """Return the piece of process `index` of `size`, a NumPy array."""
        blocks = numpy.split(numpy.asarray(whole), self.blocks, axis=self.axis)
        return numpy.concatenate([numpy.split(block, size, axis=self.axis)[index] for block in blocks], axis=self.axis)

    def join(self, pieces):
        """Return the whole array for the pieces of all processes, in order."""
        blocks = [numpy.split(numpy.asarray(piece), self.blocks, axis=self.axis) for piece in pieces]
        return numpy.concatenate([part for block in zip(*blocks, strict=True) for part in block], axis=self.axis)


class Copy(PyLayer):
    """Forward the tensor itself; backward the sum of the processes' gradients."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return paddle.assign(x)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.group.all_reduce(paddle.assign(gradient))


class Reduce(PyLayer):
    """Forward the sum of the processes' tensors; backward the gradient itself."""

    @staticmethod
    def forward(ctx, x, group):
        return group.all_reduce(paddle.assign(x))

    @staticmethod
    def backward(ctx, gradient):
        return paddle.assign(gradient)


class Gather(PyLayer):
    """Forward the processes' tensors side by side on the last axis; backward this process's slice of the gradient."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group, ctx.width = group, x.shape[-1]
        return paddle.concat(group.all_gather(x), axis=-1)

    @staticmethod
    def backward(ctx, gradient):
        start = ctx.group.index * ctx.width
        return paddle.assign(gradient[..., start : start + ctx.width])


class ColumnParallelLinear(nn.Layer):
    """Linear layer whose outputs are divided over the group; the input is whole on every process.

    Args:
        linear: the whole layer.
        blocks: 3 when the outputs are packed query, key and value.
        gather: return the whole outputs instead of this process's.
    """

    def __init__(self, linear, group, blocks=1, gather=False):
        super().__init__()
        self.group = group
        self.gather = gather
        self.cuts = {"weight": Cut(1, blocks), "bias": Cut(0, blocks)}
        self.weight = _piece(self, linear.weight, self.cuts["weight"], group)
        self.bias = None if linear.bias is None else _piece(self, linear.bias, self.cuts["bias"], group)

    def forward(self, x):
        out = F.linear(Copy.apply(x, self.group), self.weight, self.bias)
        return Gather.apply(out, self.group) if self.gather else out


class RowParallelLinear(nn.Layer):
    """Linear layer whose inputs are divided over the group; the output is whole on every process."""

    def __init__(self, linear, group):
        super().__init__()
        self.group = group
        self.cuts = {"weight": Cut(0)}
        self.weight = _piece(self, linear.weight, self.cuts["weight"], group)
        self.bias = linear.bias

    def forward(self, x):
        out = Reduce.apply(F.linear(x, self.weight), self.group)
        return out if self.bias is None else out + self.bias  # once, after the sum


class ShardedDropout(nn.Layer):
    """Dropout on a tensor that the processes share out: each draws from a stream of its own."""

    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, x):
        if self.p == 0.0 or not self.training:
            return x
        with dropout_stream():
            return F.dropout(x, self.p)


def seed_dropout(seed):
    """Start this process's stream for dropout inside shared layers."""
    tracker = fleet.meta_parallel.get_rng_state_tracker()
    tracker.reset()
    tracker.add(DROPOUT_STREAM, seed)


def dropout_stream():
    """Return a context in which Paddle draws from the stream of :func:`seed_dropout`."""
    return fleet.meta_parallel.get_rng_state_tracker().rng_state(DROPOUT_STREAM)


def shard_model(model, group):
    """Replace the shared layers of a plain ViT by this process's pieces; return {parameter name: Cut}.

    Attention is divided by heads, the MLP by its hidden units, the head by classes where they divide evenly. Norms,
    embeddings and biases that are added after a sum stay whole, with equal gradients on every process.

    Raises:
        UserError: the model has no attention, or its heads or hidden units do not divide by the group's size.
    """
    if group.size == 1:
        return {}
    shared = [(name, layer) for name, layer in model.named_sublayers() if type(layer) in (Attention, Mlp)]
    if not any(isinstance(layer, Attention) for _, layer in shared):
        raise UserError(f"PARALLEL.TENSOR {group.size}: {type(model).__name__} has no attention to share; "
                        "tensor parallelism is for ViT and DeiT")
    for name, layer in shared:
        if isinstance(layer, Attention):
            _shard_attention(name, layer, group)
        else:
            _shard_mlp(name, layer, group)
    head = getattr(model, "head", None)
    if isinstance(head, nn.Linear) and head.weight.shape[1] % group.size == 0:
        model.head = ColumnParallelLinear(head, group, gather=True)
    return {
        f"{name}.{parameter}": cut
        for name, layer in model.named_sublayers()
        if isinstance(layer, (ColumnParallelLinear, RowParallelLinear))
        for parameter, cut in layer.cuts.items()
        if getattr(layer, parameter) is not None
    }


def _shard_attention(name, layer, group):
    _check_divides(f"{name}: {layer.num_heads} attention heads", layer.num_heads, group)
    layer.num_heads //= group.size
    layer.qkv = ColumnParallelLinear(layer.qkv, group, blocks=3)
    layer.attn_drop = ShardedDropout(layer.attn_drop.p)
    layer.proj = RowParallelLinear(layer.proj, group)


def _shard_mlp(name, layer, group):
    hidden = layer.fc1.weight.shape[1]
    _check_divides(f"{name}: {hidden} hidden units", hidden, group)
    layer.fc1 = ColumnParallelLinear(layer.fc1, group)
    layer.drop1 = ShardedDropout(layer.drop1.p)
    layer.fc2 = RowParallelLinear(layer.fc2, group)


def _check_divides(what, count, group):
    if count % group.size:
        raise UserError(f"PARALLEL.TENSOR {group.size}: {what} do not divide by it")


def _piece(layer, whole, cut, group):
    array = cut.take(whole.numpy(), group.index, group.size)
    piece = layer.create_parameter(list(array.shape), default_initializer=nn.initializer.Assign(array))
    piece.stop_gradient = whole.stop_gradient
    return piece
