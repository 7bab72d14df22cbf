"""Steps under a topology against the same steps of one process with the whole batch."""

import functools

import numpy
import paddle
from paddle import nn

from image_classification import amp, trainer
from image_classification.parallel.context import Context
from image_classification.parallel.single import SingleProcess
from image_classification.parallel.topology import resolve_degrees
from image_classification.ResNet.resnet import build_model as build_resnet
from image_classification.ViT.vit import build_model as build_vit

SEED, STEPS, BATCH, CLASSES, WINDOW = 7, 8, 8, 8, 4
TINY_VIT = {"image_size": 16, "patch_size": 4, "num_classes": CLASSES, "embed_dim": 32, "depth": 4, "num_heads": 4,
            "mlp_ratio": 2.0}  # fmt: skip
TINY_RESNET = {"block": "basic", "layers": (2, 2), "num_classes": CLASSES, "base_width": 8, "small_stem": True}
# A scale that does not overflow on the first steps, which would only be a second run with other numbers.
SCALED = {"initial_scale": 1024.0}


@functools.cache
def context_of(topology):
    """Return the context of a name such as "dp2tp2"; groups are made once per process."""
    names = {"dp": "data", "tp": "tensor", "pp": "pipeline", "sh": "sharding"}
    pairs = [topology[index : index + 3] for index in range(0, len(topology), 3)]
    degrees = {names[pair[:2]]: int(pair[2]) for pair in pairs}
    return Context(resolve_degrees(int(numpy.prod(list(degrees.values()))), **degrees))


@functools.cache
def batch_of(step):
    generator = numpy.random.default_rng(step)
    images = generator.standard_normal([BATCH, 3, 16, 16], dtype="float32")
    return images, generator.integers(0, CLASSES, [BATCH])


def fresh_model(family="vit"):
    paddle.seed(SEED)
    return build_vit(**TINY_VIT) if family == "vit" else build_resnet(**TINY_RESNET)


def make_optimizer(params, clip=None, family="vit"):
    if family == "resnet":
        # Not AdamW: its first step brings every gradient to the learning rate, and where rounding turns the sign of a
        # ReLU's input one gradient jumps. Two exact kernels then drift apart by up to 1e-4 in 20 steps.
        return paddle.optimizer.Momentum(1e-2, parameters=params, weight_decay=1e-4, grad_clip=clip)
    return paddle.optimizer.AdamW(1e-3, parameters=params, weight_decay=0.05, grad_clip=clip)


def criterion(logits, labels):
    return nn.functional.cross_entropy(logits.astype("float32"), labels)


def forward_backward(parallel, model, precision, micro_batches):
    """Return [(loss, correct, count)] of a window, as the trainer runs it."""
    run = parallel.pipeline_schedule or trainer.forward_backward
    return list(run(model, criterion, precision, micro_batches))


def build(mode, dtype, clip, parallel, family="vit"):
    """Return (model, precision, optimizer) of a mode under `parallel`."""
    options = SCALED if dtype == "float16" else {}
    model = parallel.shard_model(fresh_model(family), sync_batch_norm=True)
    precision = amp.build_precision(
        mode, dtype or None, options=options, clip_grad_norm=clip, reduction=parallel.reduction,
    )  # fmt: skip
    model = precision.convert_model(model)
    named = precision.master_params(model)
    optimizer = parallel.shard_optimizer(make_optimizer([param for _, param in named], family=family), named)
    return model, precision, optimizer


def share(parallel, step, window):
    """Return this process's micro-batches of a step."""
    images, labels = batch_of(step)
    images, labels = images[parallel.data_rank :: parallel.data_size], labels[parallel.data_rank :: parallel.data_size]
    return list(zip(numpy.split(images, window), numpy.split(labels, window), strict=True))


def run(mode, dtype, parallel, window, family="vit"):
    """Return losses over the whole batch, gradient norms, and the whole final weights (rank 0)."""
    model, precision, optimizer = build(mode, dtype, 0.5, parallel, family)
    losses, norms = [], []
    for step in range(STEPS):
        done = forward_backward(parallel, model, precision, share(parallel, step, window))
        local = sum(float(loss) for loss, _, _ in done) / window
        losses.append(parallel.sum([local])[0] / parallel.data_size)
        result = precision.step(optimizer)
        assert result.applied, f"step {step} was skipped: {result}"
        norms.append(result.grad_norm)
    weights = parallel.merge(precision.model_state_dict(model))
    return losses, norms, {name: numpy.asarray(value) for name, value in weights.items()}


@functools.cache
def plain_paddle():
    """Return what `run` does, by plain Paddle: whole batch, its own clip by global norm, its own AdamW."""
    model = fresh_model()
    optimizer = make_optimizer(model.parameters(), nn.ClipGradByGlobalNorm(0.5))
    losses, norms = [], []
    for step in range(STEPS):
        images, labels = map(paddle.to_tensor, batch_of(step))
        loss = criterion(model(images), labels)
        loss.backward()
        norms.append(sum((p.grad**2).sum().item() for p in model.parameters() if p.grad is not None) ** 0.5)
        optimizer.step()
        optimizer.clear_grad()
        losses.append(loss.item())
    return losses, norms, {name: value.numpy() for name, value in model.state_dict().items()}


@functools.cache
def one_process(mode, dtype, window, family):
    return run(mode, dtype, SingleProcess(), window, family)


def parity(topology, mode="fp32", dtype=None, family="vit"):
    """Return the largest relative difference of losses and norms over the steps, absolute of the weights."""
    context = context_of(topology)
    window = min(WINDOW, BATCH // context.data_size) if context.pipeline.size > 1 else 1
    losses, norms, weights = run(mode, dtype, context, window, family)
    if not context.is_main:
        return None
    if mode == "fp32" and family == "vit":
        expected_losses, expected_norms, expected = plain_paddle()
    else:  # BatchNorm sees micro-batches, so they must be the same
        alone = one_process(mode, dtype, window if family == "resnet" else 1, family)
        expected_losses, expected_norms, expected = alone
    assert weights.keys() == expected.keys()
    return {
        "loss": relative(losses, expected_losses),
        "norm": relative(norms, expected_norms),
        "weights": max(float(abs(weights[name] - expected[name]).max()) for name in expected),
    }


def rounding(topology, mode):
    """Return how much farther bfloat16 gradients are from float32 ones than those of one process, as a factor."""
    context, alone = context_of(topology), SingleProcess()
    errors = []
    for parallel, precision in ((alone, ("fp32", None)), (alone, (mode, "bfloat16")), (context, (mode, "bfloat16"))):
        gradients = _gradients(parallel, *precision)
        if not errors:
            exact = gradients
        errors.append(sum(float(((got[name] - exact[step][name]) ** 2).sum())
                          for step, got in enumerate(gradients) for name in got))  # fmt: skip
    return (errors[2] / errors[1]) ** 0.5


def _gradients(parallel, mode, dtype):
    """Return the whole gradients of the first weights on some batches, float64."""
    model, precision, optimizer = build(mode, dtype, None, parallel)
    result = []
    for step in range(STEPS):
        forward_backward(parallel, model, precision, share(parallel, step, 1))
        own = {name: param.grad.astype("float32") for name, param in precision.master_params(model)}
        whole = parallel.merge(own)
        result.append({name: numpy.asarray(value, dtype="float64") for name, value in whole.items()})
        optimizer.clear_grad(set_to_zero=False)
    return result


def relative(got, expected):
    return max(abs(a - b) / abs(b) for a, b in zip(got, expected, strict=True))
