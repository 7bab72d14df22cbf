"""Twenty steps under a topology against the same steps of one process with the whole batch."""

import numpy
import paddle
from paddle import nn

from image_classification import amp
from image_classification.parallel.context import Context
from image_classification.parallel.topology import resolve_degrees
from image_classification.ViT.vit import build_model

SEED, STEPS, BATCH, CLASSES, WINDOW = 7, 20, 8, 8, 4
TINY_VIT = {"image_size": 16, "patch_size": 4, "num_classes": CLASSES, "embed_dim": 32, "depth": 4, "num_heads": 4,
            "mlp_ratio": 2.0}


def parse(topology):
    """Return the degrees that a name such as "dp2tp2" stands for."""
    names = {"dp": "data", "tp": "tensor", "pp": "pipeline", "sh": "sharding"}
    pairs = [topology[index : index + 3] for index in range(0, len(topology), 3)]
    return {names[pair[:2]]: int(pair[2]) for pair in pairs}


def batch_of(step):
    generator = numpy.random.default_rng(step)
    images = generator.standard_normal([BATCH, 3, 16, 16], dtype="float32")
    return images, generator.integers(0, CLASSES, [BATCH])


def fresh_model():
    paddle.seed(SEED)
    return build_model(**TINY_VIT)


def make_optimizer(params, clip=None):
    return paddle.optimizer.AdamW(1e-3, parameters=params, weight_decay=0.05, grad_clip=clip)


def measure(logits, labels):
    return nn.functional.cross_entropy(logits, labels), (logits.argmax(-1) == labels).sum()


def reference_run():
    """Return losses and gradient norms of plain Paddle: whole batch, its own clip by global norm, its own AdamW."""
    model = fresh_model()
    optimizer = make_optimizer(model.parameters(), nn.ClipGradByGlobalNorm(0.5))
    losses, norms = [], []
    for step in range(STEPS):
        images, labels = map(paddle.to_tensor, batch_of(step))
        loss, _ = measure(model(images), labels)
        loss.backward()
        norms.append(float(sum((p.grad**2).sum().item() for p in model.parameters() if p.grad is not None)) ** 0.5)
        optimizer.step()
        optimizer.clear_grad()
        losses.append(loss.item())
    return losses, norms, {name: value.numpy() for name, value in model.state_dict().items()}


def share(context, step, window):
    """Return this process's micro-batches of a step."""
    images, labels = batch_of(step)
    images, labels = images[context.data_rank :: context.data_size], labels[context.data_rank :: context.data_size]
    return list(zip(numpy.split(images, window), numpy.split(labels, window), strict=True))


def fp32(topology):
    """Return the largest relative difference of loss and norm over the steps, and of the final weights."""
    degrees = parse(topology)
    world_size = int(numpy.prod(list(degrees.values())))
    context = Context(resolve_degrees(world_size, **degrees))
    model = context.shard_model(fresh_model())
    precision = amp.build_precision("fp32", clip_grad_norm=0.5, reduction=context.reduction)
    model = precision.convert_model(model)
    optimizer = make_optimizer([param for _, param in precision.master_params(model)])
    window = WINDOW if context.pipeline.size > 1 else 1
    window = min(window, BATCH // context.data_size)
    losses, norms = [], []
    for step in range(STEPS):
        done = list(context.train_window(model, precision, measure, share(context, step, window)))
        local = sum(float(loss) for loss, _, _ in done) / window
        losses.append(context.sum([local])[0] / context.data_size)
        result = precision.step(optimizer)
        assert result.applied
        norms.append(result.grad_norm)
    merged = context.merge(precision.model_state_dict(model))
    if not context.is_main:
        return None
    expected_losses, expected_norms, expected = reference_run()
    assert merged.keys() == expected.keys()
    return {
        "loss": relative(losses, expected_losses),
        "norm": relative(norms, expected_norms),
        "weights": max(float(abs(numpy.asarray(merged[name]) - expected[name]).max()) for name in expected),
    }


def relative(got, expected):
    return max(abs(a - b) / abs(b) for a, b in zip(got, expected, strict=True))
