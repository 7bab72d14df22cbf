"""Layers that several processes share, against the same layer whole in one process."""

import math
import os
import signal
import threading
import time

import numpy
import paddle
from paddle import nn

from image_classification import amp, half_cpu
from image_classification.layers import Mlp, attention, linear
from image_classification.model import Column, Model, Row, Slice, Whole
from image_classification.parallel import tensor, watch
from image_classification.parallel.group import Group
from image_classification.parallel.sync_batch_norm import SyncBatchNorm, convert_sync_batch_norm
from image_classification.transformer import Attention, TransformerBlock
from tests.helpers.small_runs import runs_of

from .checks_parity import BATCH, build, context_of, forward_backward, fresh_model, make_optimizer, share


class _Wrapped(Model):
    """A model of one layer, as `tensor.shard_model` walks over a model's sublayers."""

    head_names = ()

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)


class NormedAttention(Attention):
    """What newer transformers add: norms of the query and the key of each head, one temperature for each head."""

    def __init__(self, dim, num_heads):
        super().__init__(dim, num_heads)
        self.norm = nn.LayerNorm(self.head_dim)
        self.temperature = self.create_parameter([num_heads, 1, 1])

    def forward(self, x):
        batch, tokens, _ = x.shape
        query, key, value = self.qkv(x).reshape([batch, tokens, 3, self.num_heads, self.head_dim]).unbind(2)
        query = self.norm(query) * self.temperature.reshape([self.num_heads, 1])
        packed = paddle.stack([query, self.norm(key), value], axis=2).reshape([batch, tokens, -1])
        return self.proj(attention(packed, self.num_heads, self.scale))

    def tensor_parallel_plan(self):
        return super().tensor_parallel_plan() | {"norm": Whole(), "temperature": Slice(axis=0)}


class GatedMlp(nn.Layer):
    """SwiGLU: gate and value packed in one linear layer."""

    def __init__(self, dim, hidden_dim):
        super().__init__()
        self.fc1 = linear(dim, 2 * hidden_dim)
        self.fc2 = nn.Sequential(nn.Identity(), linear(hidden_dim, dim))

    def forward(self, x):
        gate, value = self.fc1(x).chunk(2, axis=-1)
        return self.fc2(nn.functional.silu(gate) * value)

    def tensor_parallel_plan(self):
        return {"fc1": Column(blocks=2), "fc2.1": Row()}


def whole_layer(kind):
    paddle.seed(3)
    layer = {
        "attention": lambda: Attention(32, 4),
        "attention_without_bias": lambda: Attention(32, 4, qkv_bias=False),
        "mlp": lambda: Mlp(32, 64),
        "block": lambda: TransformerBlock(32, 4, 2.0),
        "normed_attention": lambda: NormedAttention(32, 4),
        "gated_mlp": lambda: GatedMlp(32, 64),
    }[kind]()
    for param in layer.parameters():  # initial biases are zero and would hide what goes wrong with them
        param.set_value(paddle.randn(param.shape) * 0.2)
    return layer


def tensor_layer(topology, kind):
    """Return the differences of output and gradients between shared and whole layer, relative to the largest value.

    Gradients of shards are joined first; those of parameters that each process holds whole must be equal bit for bit.
    """
    context = context_of(topology)
    generator = numpy.random.default_rng(5)
    data, weights = (generator.standard_normal([4, 17, 32], dtype="float32") for _ in range(2))

    def run(layer):
        x = paddle.to_tensor(data, stop_gradient=False)
        out = layer(x)
        (out * paddle.to_tensor(weights)).sum().backward()
        return out.numpy(), x.grad.numpy(), {name: param.grad.numpy() for name, param in layer.named_parameters()}

    expected = run(_Wrapped(whole_layer(kind)))
    shared = _Wrapped(whole_layer(kind))
    cuts = tensor.shard_model(shared, context.tensor)
    got = run(shared)
    errors = {"output": _difference(got[0], expected[0]), "input": _difference(got[1], expected[1])}
    for name, gradient in got[2].items():
        pieces = context.tensor.all_gather_object(gradient)
        if name in cuts:
            gradient = cuts[name].join(pieces)
        elif any((piece != pieces[0]).any() for piece in pieces):
            errors[f"{name} differs between processes"] = math.inf
        errors[name] = _difference(gradient, expected[2][name])
    return errors


def _difference(got, expected):
    return float(abs(got - expected).max() / max(1.0, abs(expected).max()))


def sync_batch_norm(uneven=""):
    """Return the largest difference to one process with the whole batch: outputs, gradients, running statistics."""
    size = paddle.distributed.get_world_size()
    group = Group("world", range(size), paddle.distributed.get_rank())
    counts = [3, 0, 2][:size] if uneven == "empty" else ([3, 5, 1] if uneven else [3, 3, 3])[:size]
    bounds = numpy.cumsum([0, *counts])
    generator = numpy.random.default_rng(11)
    data = generator.standard_normal([bounds[-1], 6, 5, 5], dtype="float32") * 3 + 100  # a mean that would cancel
    weights = generator.standard_normal(data.shape, dtype="float32")
    errors = {}

    def run(layer, rows):
        x = paddle.to_tensor(data[rows], stop_gradient=False)
        out = layer(x)
        (out * paddle.to_tensor(weights[rows])).sum().backward()
        return out.numpy(), x.grad.numpy(), layer

    def fresh():
        layer = nn.BatchNorm2D(6, momentum=0.8)
        layer.weight.set_value(numpy.linspace(0.5, 1.5, 6, dtype="float32"))
        layer.bias.set_value(numpy.linspace(-1, 1, 6, dtype="float32"))
        return layer

    whole_out, whole_dx, whole = run(fresh(), slice(None))
    model = nn.Sequential(fresh())
    convert_sync_batch_norm(model, group)
    assert isinstance(model[0], SyncBatchNorm)
    own = slice(bounds[group.index], bounds[group.index + 1])
    out, dx, layer = run(model[0], own)
    errors["output"] = float(abs(out - whole_out[own]).max(initial=0))
    errors["input gradient"] = float(abs(dx - whole_dx[own]).max(initial=0))
    for name in ("weight", "bias"):
        total = group.all_reduce(getattr(layer, name).grad.clone()).numpy()
        errors[f"{name} gradient"] = _difference(total, getattr(whole, name).grad.numpy())
    for name in ("_mean", "_variance"):
        errors[name] = _difference(getattr(layer, name).numpy(), getattr(whole, name).numpy())
    layer.eval()
    whole.eval()
    errors["evaluation"] = float(abs(layer(paddle.to_tensor(data)) - whole(paddle.to_tensor(data))).max())
    return errors


def gate():
    """Return (seconds at a gate for which rank 1 is late, signals that arrived meanwhile)."""
    rank, size = paddle.distributed.get_rank(), paddle.distributed.get_world_size()
    received = []
    previous = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    arrived = threading.Event()

    def annoy():
        while not arrived.wait(0.003):
            os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=annoy)
    watch.this_process().gate(range(size))
    start = time.monotonic()
    time.sleep(rank * 0.5)
    thread.start()
    watch.this_process().gate(range(size))
    arrived.set()
    thread.join()
    seconds = time.monotonic() - start
    signal.signal(signal.SIGTERM, previous)
    return seconds, len(received)


def replayed(topology):
    """Return how many images the layers got in each run of an evaluation of six batches, and whether each gave the bits
    of the layers."""
    context = context_of(topology)
    model, precision, _ = build("auto", "bfloat16", None, context)
    model.eval()
    runs = runs_of(getattr(model, model.head_names[0]))
    draw = numpy.random.default_rng(0).standard_normal
    batches = [paddle.to_tensor(draw([16, 3, 16, 16], "float32")) for _ in range(6)]
    with paddle.no_grad(), half_cpu.frozen(model), precision.forward_context():
        found = [context.predict(model, images) for images in batches]
        runs_of_six = list(runs)
        expected = [model(images) for images in batches]
    same = [a.numpy().tobytes() == b.numpy().tobytes() for a, b in zip(found, expected, strict=True)]
    return [runs_of_six, all(same)]


def trained(topology, sync_batch_norm=False):
    """Return how often the layers ran in six steps, and whether these left the weights that the layers alone leave."""
    context, weights = context_of(topology), []
    family = "vit" if context.tensor.size > 1 else "resnet"
    for made in (lambda model: model, context.trained):
        model = context.shard_model(fresh_model(family), sync_batch_norm)
        precision = amp.build_precision("auto", "bfloat16", reduction=context.reduction)
        model = precision.convert_model(model)
        optimizer = make_optimizer([param for _, param in precision.master_params(model)], family=family)
        runs, forward = runs_of(model), made(model)
        for step in range(6):
            forward_backward(context, forward, precision, share(context, step, 1))
            precision.step(optimizer)
        weights.append([value.numpy().tobytes() for value in model.state_dict().values()])
    return [len(runs), weights[0] == weights[1]]


def dropout(topology):
    """Return which draws agree between the processes of a tensor group, between replicas and between stages."""
    context = context_of(topology)
    ones = paddle.ones([64, 64])

    def draws():
        context.seed_dropout(21)
        whole = nn.functional.dropout(ones, 0.5)
        part = tensor.ShardedDropout(0.5)(ones)
        after = nn.functional.dropout(ones, 0.5)
        return whole.numpy().tolist(), part.numpy().tolist(), after.numpy().tolist()

    mine, again = draws(), draws()
    everyone = context.gather(mine)
    partner = {context.tensor.ranks[1 - context.tensor.index]} if context.tensor.size == 2 else set()
    others = {group.ranks[1 - group.index] for group in (context.data, context.pipeline) if group.size == 2}
    state = context.rng_state()
    first = (nn.functional.dropout(ones, 0.5), tensor.ShardedDropout(0.5)(ones))
    context.set_rng_state(state)
    second = (nn.functional.dropout(ones, 0.5), tensor.ShardedDropout(0.5)(ones))
    return {
        "repeats": mine == again,
        "whole tensors agree in the tensor group": all(everyone[r][0::2] == mine[0::2] for r in partner),
        "shared tensors differ in the tensor group": all(everyone[r][1] != mine[1] for r in partner),
        "replicas and stages differ": all(everyone[r][0] != mine[0] and everyone[r][1] != mine[1] for r in others),
        "state restores both": all(bool((a == b).all()) for a, b in zip(first, second, strict=True)),
    }


def traffic(topology):
    """Return what one step of the tiny ViT sent on this process, by group and operation, for the cost model."""
    context = context_of(topology)
    model, precision, optimizer = build("fp32", None, None, context)
    window = 4 if context.pipeline.size > 1 else 2
    for group in context.groups:
        group.traffic.clear()
    forward_backward(context, model, precision, share(context, 0, window))
    micro = dict(_named(context.traffic()))
    for group in context.groups:
        group.traffic.clear()
    precision.step(optimizer)
    sizes = {name: value.size for name, value in model.named_parameters()}
    return {
        "window": window,
        "training": micro,
        "step": dict(_named(context.traffic())),
        "parameters": sum(sizes.values()),
        "tensors": len(sizes),
        "micro_batch": BATCH // context.data_size // window,
        "stage": context.pipeline.index,
    }


def _named(traffic):
    return [(" ".join(key), count) for key, count in traffic.items()]


def reduction(topology):
    """Return the differences between averaged gradients, norm and zero count and their definitions."""
    context = context_of(topology)
    rank, size = context.data.index, context.data.size
    numbers = numpy.arange(6, dtype="float32").reshape([2, 3])
    named = []
    for name, dtype, exists in (("a", "float32", True), ("b", "float16", True), ("c", "bfloat16", True),
                                ("none", "float32", False), ("some", "float32", rank == 0)):  # fmt: skip
        param = paddle.create_parameter([2, 3], "float32").astype(dtype).detach()
        param.stop_gradient = False
        if exists:
            param.grad = paddle.to_tensor(numbers * (rank + 1)).astype(dtype)
        named.append((name, param))
    context.reduction.bucket_elements = 10  # buckets of two, and one of one
    context.reduction.average_gradients(named, 0.0)
    context.reduction.bucket_elements = 2**23
    mean = numbers * (size + 1) / 2
    got = {name: None if param.grad is None else param.grad.astype("float32").numpy() for name, param in named}
    huge = paddle.to_tensor([3e38])
    huge.stop_gradient = False
    huge.grad = paddle.to_tensor([3e38])
    context.reduction.average_gradients([("huge", huge)], 0.0)
    return {
        "float32": _difference(got["a"], mean), "float16": _difference(got["b"], mean),
        "bfloat16": _difference(got["c"], mean), "on one rank only": _difference(got["some"], numbers / size),
        "stays without": got["none"] is None, "no overflow": float(huge.grad.item()) / 3e38,
        "norm": abs(context.reduction.norm_squared(named[:1]) - float((mean**2).sum())),
        "zeros": context.reduction.num_zeros(named[:1]),
    }  # fmt: skip


def collectives():
    """Return what all_reduce, all_gather, broadcast and the barrier did in each format."""
    size, rank = paddle.distributed.get_world_size(), paddle.distributed.get_rank()
    group = Group("world", range(size), rank)
    answers = {}
    for dtype in ("float16", "bfloat16", "float32", "float64", "int32", "int64"):
        value = paddle.to_tensor([rank + 1, 10]).astype(dtype)
        total = group.all_reduce(value.clone()).astype("float64").tolist()
        largest = group.all_reduce(value.clone(), op="max").astype("float64").tolist()
        gathered = [piece.astype("float64").tolist()[0] for piece in group.all_gather(value)]
        from_last = group.broadcast(value.clone(), size - 1).astype("float64").tolist()
        answers[dtype] = [total, largest, gathered, from_last]
    return {"answers": answers, "vote": group.vote([rank, 5]), "objects": group.all_gather_object({"rank": rank})}
