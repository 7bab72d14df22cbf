"""Tensor parallelism (Shoeybi et al. 2019, Megatron-LM): several processes share each layer of a model.

A plain model is built whole on every process, from the same seed, and then cut: any degree starts from the same
weights, and what the shards join to is the plain model again. A block of a ViT costs two all-reduces forward (after
attention and after the MLP) and two backward (before each); the head costs one all-gather and one all-reduce.

Shapes use: B batch, N tokens, C channels, n processes of the group.
"""

from typing import NamedTuple

import numpy
import paddle
from paddle import nn
from paddle.autograd import PyLayer
from paddle.distributed import fleet
from paddle.nn import functional as F

from image_classification.model import Column, Count, Draw, Row, Slice, TensorParallel, Whole
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
    """Replace what the layers' plans divide by this process's pieces; return {parameter name: Cut}.

    Each layer says itself how it is shared (:class:`model.TensorParallel`); the head is divided by classes where they
    divide evenly. All else stays whole, with equal gradients on every process.

    Raises:
        UserError: see :func:`shares_of`.
    """
    if group.size == 1:
        return {}
    cuts: dict[str, Cut] = {}
    for name, owner, attribute, share in shares_of(model, group.size):
        found = SHARES[type(share)](owner, attribute, share, group)
        cuts |= {f"{name}{ending}": cut for ending, cut in found.items()}
    for name in model.head_names:
        owner, attribute = _resolve(model, name)
        head = getattr(owner, attribute)
        if head.weight.shape[1] % group.size == 0:
            shared = ColumnParallelLinear(head, group, gather=True)
            setattr(owner, attribute, shared)
            cuts |= {f"{name}{ending}": cut for ending, cut in _cuts_of(shared).items()}
    return cuts


def shares_of(model, size):
    """Return (name, the layer that has it, attribute, how it is divided) of all that the layers' plans divide.

    Raises:
        UserError: no layer of the model can be shared, or something does not divide by the number of processes.
    """
    shares = [
        (f"{path}.{name}", *_resolve(layer, name), share)
        for path, layer in model.named_sublayers()
        if isinstance(layer, TensorParallel)
        for name, share in layer.tensor_parallel_plan().items()
    ]
    if not shares:
        raise UserError(f"PARALLEL.TENSOR {size}: {type(model).__name__} has no layer that processes can share")
    for name, owner, attribute, share in shares:
        what, count = _divided(name, getattr(owner, attribute), share)
        if count % size:
            raise UserError(f"PARALLEL.TENSOR {size}: {what} do not divide by it")
    return shares


def _divided(name, part, share):
    """Return what of a part of a layer is divided, in words, and its number."""
    match share:
        case Count(of):
            return f"{name.rpartition('.')[0]}: {part} {of}", part
        case Column(blocks):
            outputs = part.weight.shape[1] // blocks
            return f"{name}: {outputs} outputs", outputs
        case Row():
            return f"{name}: {part.weight.shape[0]} inputs", part.weight.shape[0]
        case Slice(axis, blocks):
            length = part.shape[axis] // blocks
            return f"{name}: {length} entries of axis {axis}", length
    return name, 0  # whole on each process


def _resolve(layer, name):
    """Return (sublayer, its attribute) of a dotted name."""
    *path, attribute = name.split(".")
    for step in path:
        layer = getattr(layer, step)
    return layer, attribute


def _share_count(layer, attribute, share, group):
    setattr(layer, attribute, getattr(layer, attribute) // group.size)
    return {}


def _share_columns(layer, attribute, share, group):
    setattr(layer, attribute, ColumnParallelLinear(getattr(layer, attribute), group, share.blocks))
    return _cuts_of(getattr(layer, attribute))


def _share_rows(layer, attribute, share, group):
    setattr(layer, attribute, RowParallelLinear(getattr(layer, attribute), group))
    return _cuts_of(getattr(layer, attribute))


def _share_slice(layer, attribute, share, group):
    whole, cut = getattr(layer, attribute), Cut(share.axis, share.blocks)
    setattr(layer, attribute, _piece(layer, whole, cut, group))
    return {"": cut}


def _share_draws(layer, attribute, share, group):
    setattr(layer, attribute, ShardedDropout(getattr(layer, attribute).p))
    return {}


def _share_whole(layer, attribute, share, group):
    """Let the layer compute with copies of its parameters whose gradients are summed; its names stay."""
    part = getattr(layer, attribute)

    def use_copies(part, inputs):
        for parameter, value in part._parameters.items():
            if value is not None:
                part.__dict__[parameter] = Copy.apply(value, group)  # found before Paddle looks among the parameters

    def use_parameters(part, inputs, outputs):
        for parameter in part._parameters:
            part.__dict__.pop(parameter, None)

    part.register_forward_pre_hook(use_copies)
    part.register_forward_post_hook(use_parameters)
    return {}


SHARES = {
    Count: _share_count,
    Column: _share_columns,
    Row: _share_rows,
    Slice: _share_slice,
    Draw: _share_draws,
    Whole: _share_whole,
}


def _cuts_of(layer):
    return {f".{name}": cut for name, cut in layer.cuts.items() if getattr(layer, name) is not None}


def _piece(layer, whole, cut, group):
    array = cut.take(whole.numpy(), group.index, group.size)
    piece = layer.create_parameter(list(array.shape), default_initializer=nn.initializer.Assign(array))
    piece.stop_gradient = whole.stop_gradient
    return piece
