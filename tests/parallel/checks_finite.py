"""A value that is not finite, planted in one gradient of one process, makes all of them skip."""

import hashlib

import numpy
import paddle

from image_classification import amp
from image_classification.amp import Reduction

from .checks_parity import build, context_of, criterion, forward_backward, fresh_model, make_optimizer, share


def planted(topology, mode, dtype=None):
    """Return what went wrong (nothing, one hopes) on this process over runs with planted inf and NaN."""
    context = context_of(topology)
    pipelined = context.pipeline.size > 1
    troubles = []
    for clip, window in ((0.5, 2), (None, 2 if pipelined else 1)):
        model, precision, optimizer = build(mode, dtype, clip, context)
        scales = []
        for step, value in enumerate((None, "inf", None, "nan", None)):
            last_batch = forward_backward(context, model, precision, share(context, step, window))
            assert len(last_batch) == window
            if value is not None:
                _plant(precision.named_params(optimizer), context, float(value))
            before, scale = _digest(model, precision, optimizer), precision.loss_scale
            result = precision.step(optimizer)
            changed = _digest(model, precision, optimizer) != before
            scales.append(precision.loss_scale)
            where = f"{topology} {mode}/{dtype} clip {clip} window {window} step {step} ({value})"
            if result.applied != (value is None):
                troubles.append(f"{where}: applied is {result.applied}")
            if changed != (value is None):
                troubles.append(f"{where}: weights or moments {'changed' if changed else 'stayed'}")
            if value is not None and not str(result.first_bad).endswith(f" on rank {context.world_size - 1}"):
                troubles.append(f"{where}: the culprit is called {result.first_bad}")
            if value is not None and dtype == "float16" and not precision.loss_scale <= scale:
                troubles.append(f"{where}: the scale went from {scale} to {precision.loss_scale}")
        everyone = context.gather((scales, context.tensor.index, context.pipeline.index,
                                   _digest(model, precision, optimizer)))  # fmt: skip
        if any(other[0] != scales for other in everyone):
            troubles.append(f"{topology} {mode}: the scales differ: {[other[0] for other in everyone]}")
        replicas = {other[3] for other in everyone if other[1:3] == (context.tensor.index, context.pipeline.index)}
        if len(replicas) != 1:
            troubles.append(f"{topology} {mode}/{dtype}: replicas differ in weights or moments")
    return troubles


def _plant(named_params, context, value):
    """Spoil one number, on the last process alone; under tensor parallelism in a shard that no other process holds."""
    if context.rank != context.world_size - 1:
        return
    candidates = [param for name, param in named_params if name in context.layout.cuts] or [
        param for _, param in named_params if param.ndim == 2
    ]
    gradient = candidates[-1].grad
    spoiled = gradient.astype("float32").numpy()
    spoiled.flat[-1] = value
    gradient.set_value(paddle.to_tensor(spoiled).astype(gradient.dtype))


def _digest(model, precision, optimizer):
    """Return a hash of weights, masters and moments on this process, under ZeRO of the weights alone."""
    digest = hashlib.sha256()
    for _, value in sorted(precision.model_state_dict(model).items()):
        digest.update(numpy.ascontiguousarray(value.numpy()).tobytes())
    if hasattr(optimizer, "_inner_opt"):
        return digest.hexdigest()
    for slot, accumulators in sorted(optimizer._accumulators.items()):
        digest.update(slot.encode())
        for param in optimizer._parameter_list:
            if param.name in accumulators:
                digest.update(accumulators[param.name].numpy().tobytes())
    return digest.hexdigest()


def stand_alone(topology, api, value, together="together"):
    """Return [clipping saw a norm, applied, loss scale after] of a planted and a clean step in a user's own loop.

    Args:
        api: "initialize" (O1) or "convert" (naive), both float16.
        together: anything else leaves the decision to each process, the mistake that `reduction` prevents.
    """
    context = context_of(topology)
    model = context.shard_model(fresh_model())
    optimizer = make_optimizer(model.parameters())
    reduction = context.reduction if together == "together" else None
    if api == "initialize":
        model, optimizer = amp.initialize(
            model, optimizer, opt_level="O1", loss_scale="dynamic", verbosity=0, reduction=reduction
        )
    else:
        config = {"initial_scale": 2**16, "hysteresis": 1}
        model, optimizer, _ = amp.convert_to_amp(model, optimizer, None, "naive", config, reduction=reduction)
    outcome = []
    for step, spoil in enumerate((True, False)):
        images, labels = share(context, step, 1)[0]
        loss = criterion(model(paddle.to_tensor(images)), paddle.to_tensor(labels))
        small = loss * 2**-8  # gradients times the first scale would overflow
        if api == "initialize":
            with amp.scale_loss(small, optimizer) as scaled:
                scaled.backward()
                if spoil:
                    _plant(optimizer.precision.named_params(optimizer.optimizer), context, float(value))
        else:
            optimizer.backward(small)
            if spoil:
                _plant(optimizer.precision.named_params(optimizer.optimizer), context, float(value))
        norm = optimizer.clip_grad_norm(0.5)  # unscales; the decision must not be taken again after it
        applied = optimizer.step().applied
        outcome.append([norm is not None, applied, optimizer.precision.loss_scale])
        optimizer.clear_grad()
    digest = _digest(model.model, optimizer.precision, optimizer.optimizer)
    everyone = context.gather((context.tensor.index, digest))
    replicas = {other for index, other in everyone if index == context.tensor.index}
    return {"outcome": outcome, "replicas": len(replicas)}


class _EachForItself(Reduction):
    """The mistake that the finite check prevents: gradients and norm are shared, the decision is not."""

    def __init__(self, shared):
        self.average_gradients = shared.average_gradients
        self.norm_squared = shared.norm_squared


def decided_alone(topology):
    """Run a planted step without the common decision; the process that goes on must lose its peer."""
    context = context_of(topology)
    model, precision, optimizer = build("fp32", None, 0.5, context)
    precision.reduction = _EachForItself(context.reduction)
    forward_backward(context, model, precision, share(context, 0, 2))
    _plant(precision.named_params(optimizer), context, float("inf"))
    return precision.step(optimizer).applied
