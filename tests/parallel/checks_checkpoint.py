"""States saved under one topology and continued under another."""

import numpy

from image_classification.optim import load_optimizer_state, optimizer_state
from image_classification.parallel.single import SingleProcess

from .checks_parity import BATCH, WINDOW, build, context_of, forward_backward, relative, share

BEFORE, AFTER = 3, 5


def _steps(parallel, parts, steps):
    model, precision, optimizer = parts
    pipelined = getattr(parallel, "pipeline", None) is not None and parallel.pipeline.size > 1
    window = min(WINDOW, BATCH // parallel.data_size) if pipelined else 1
    losses = []
    for step in steps:
        done = forward_backward(parallel, model, precision, share(parallel, step, window))
        local = sum(float(loss) for loss, _, _ in done) / window
        losses.append(parallel.sum([local])[0] / parallel.data_size)
        precision.step(optimizer)
    return losses


def _save(parallel, parts):
    model, precision, optimizer = parts
    named = parallel.owned(precision.master_params(model))
    state = {
        "model": parallel.merge(precision.model_state_dict(model)),
        "optimizer": parallel.merge(optimizer_state(optimizer, named)),
        "precision": precision.state_dict(),
    }
    return {
        key: {name: numpy.array(value) for name, value in part.items()} if key != "precision" else part
        for key, part in state.items()
    }


def _load(parallel, parts, state):
    model, precision, optimizer = parts
    missing, unexpected = precision.load_model_state_dict(model, parallel.cut(state["model"]))
    assert not missing and not unexpected, (missing, unexpected)
    named = parallel.owned(precision.master_params(model))
    load_optimizer_state(optimizer, named, parallel.cut(state["optimizer"], named))
    precision.load_state_dict(state["precision"])


def move(before, after, mode="fp32", dtype=None):
    """Return how far the losses after a move from topology `before` to `after` are from those of one process."""
    first = context_of(before)
    parts = build(mode, dtype, 0.5, first)
    _steps(first, parts, range(BEFORE))
    saved = first.gather(_save(first, parts))
    state = saved[0]
    if not first.layout.is_whole:  # only the process that writes joins the model
        assert all(other["model"] == other["optimizer"] == {} for other in saved[1:])
    second = SingleProcess() if after == "one" else context_of(after)
    moved = build(mode, dtype, 0.5, second)
    _load(second, moved, state)
    if after == "one" and not first.is_main:
        return None
    losses = _steps(second, moved, range(BEFORE, BEFORE + AFTER))
    if not first.is_main:
        return None
    alone = SingleProcess()
    expected = _steps(alone, build(mode, dtype, 0.5, alone), range(BEFORE + AFTER))
    plain = build(mode, dtype, 0.5, alone)
    own = _save(alone, plain)
    assert {key: set(state[key]) for key in own} == {key: set(own[key]) for key in own}
    assert all(state["model"][name].shape == value.shape for name, value in own["model"].items())
    assert all(state["optimizer"][name].shape == value.shape for name, value in own["optimizer"].items())
    return relative(losses, expected[BEFORE:])
