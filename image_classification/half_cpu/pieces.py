"""Many images a few at a time.

What a layer makes of 64 images does not stay in the caches until the next layer reads it, and memory takes longer than
products by AMX. What it makes of a few does.
"""

from typing import Any

import paddle

from .first_calls import divided
from .replay import Evaluation, can_record, has_hooks, key_of, replay
from .scope import active

_FIRST = 8  # images of the pieces that tell how much memory one takes
_ALL = 1 << 62  # images of a piece that has them all
_IN_CACHES = 40 << 20  # bytes of intermediate results: within a tenth of the fastest piece, with one thread and two


def replay_images(model: paddle.nn.Layer, images: paddle.Tensor) -> Any:
    """Return `replay(model, images)` of a model that computes with each of the images [B, ...] by itself.

    In a half format they pass a few at a time; how many, the recorded pass of eight of them tells. In each format the
    first calls of a recorded pass may be made for fewer still (`first_calls.py`).

    Returns:
        As the model, which gets all images at once where its result is no tensor [B, ...], where a layer is in training
        mode and where one has hooks.
    """
    rows, size = images.shape[0], _piece(model, images)
    if size >= rows:
        return _replayed(model, images)
    results = []
    for start in range(0, rows, size):
        piece = images[start : start + size]
        results.append(_replayed(model, piece))
        if not isinstance(results[-1], paddle.Tensor) or results[-1].shape[:1] != piece.shape[:1]:
            active.frozen.pieces[key_of(model, [images[:_FIRST]])] = _ALL
            return replay(model, images)
    return paddle.concat(results)


def _replayed(model, images):
    """Return `replay(model, images)`, where it pays of a pass whose first calls are made for fewer images."""
    result = replay(model, images)
    recorded = active.frozen.passes.get(key_of(model, [images])) if can_record() else None
    if isinstance(recorded, Evaluation) and not recorded.is_divided:
        recorded.run, recorded.is_divided = divided(model, recorded.played, images), True
    return result


def _piece(model, images):
    """Return how many images pass at a time."""
    rows = images.shape[0]
    if not can_record() or rows < 2 * _FIRST:
        return rows
    weights, key = active.frozen, key_of(model, [images[:_FIRST]])
    if key not in weights.pieces:
        recorded = weights.passes.get(key)
        if recorded == 0 or not _computes_half(model, active.scope) or has_hooks(model) or _trains(model):
            weights.pieces[key] = _ALL  # the calls of layers take as long for a few images as for more
        elif callable(recorded):
            weights.pieces[key] = max(1, _FIRST * _IN_CACHES // recorded.bytes)
        else:
            return _FIRST
    return _divided(rows, weights.pieces[key])


def _divided(rows, most):
    """Return how many rows are a piece: a divisor of their number near to `most`, which leaves no rest, or that."""
    divisors = [size for size in range(1, rows + 1) if rows % size == 0]
    nearest = min(divisors, key=lambda size: max(size / most, most / size))
    return nearest if 2 / 3 <= nearest / most <= 3 / 2 else most


def _computes_half(model, scope):
    halves = paddle.float16, paddle.bfloat16
    return scope.policy_cast is not None or any(weight.dtype in halves for weight in model.parameters())


def _trains(model):
    return any(layer.training for layer in model.sublayers(include_self=True))
