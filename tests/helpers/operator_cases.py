"""The operators that compiled kernels move, compare and sum: {case: (kernel, function, shapes of its inputs)}."""

import numpy as np
import paddle
import paddle.nn.functional as F

TOKENS, IMAGES, LAST = (3, 5, 33), (3, 8, 6, 7), (3, 6, 7, 8)


def _whole(high, *shape):
    return paddle.to_tensor(np.random.default_rng(high).integers(0, high, shape))


def _mask(*shape):
    return paddle.to_tensor(np.random.default_rng(len(shape)).random(shape) < 0.5)


def _last(function):
    """Return the function of images that lie as [B, H, W, C]."""
    return lambda x, *others: function(x.transpose([0, 3, 1, 2]), *others)


def _distinct(x):
    """Return whole numbers all of which differ, with the gradients of x: of equal ones any may be sorted first."""
    places = np.random.default_rng(0).random((x.shape[0], x[0].size)).argsort(1)
    return x - x.detach() + paddle.to_tensor(places).reshape(x.shape).astype(x.dtype)


PLACES, LABELS = _whole(3, 9), _whole(33, 3, 5)
SOME = paddle.where(_mask(3, 5), LABELS, paddle.full([3, 5], -100, "int64"))

# Nothing is rounded in their forward pass.
EXACT = {
    "gather": ("gather", lambda x: paddle.gather(x, PLACES, axis=1), [TOKENS]),
    "gather-32-bit": ("gather", lambda x: paddle.gather(x, PLACES.astype("int32")), [TOKENS]),
    "gather-last": ("gather", lambda x: paddle.gather(x, PLACES, axis=-1), [TOKENS]),
    "gather-strided": ("gather", lambda x: paddle.gather(x.transpose([2, 0, 1]), PLACES), [TOKENS]),
    "index_select": ("index_select", lambda x: x.index_select(PLACES, 1), [TOKENS]),
    "embedding": ("embedding", lambda w: F.embedding(PLACES.reshape([3, 3]), w), [(5, 33)]),
    "items": ("_getitem_dygraph", lambda x: x[PLACES], [TOKENS]),
    "items-behind": ("_getitem_dygraph", lambda x: x[:, PLACES.reshape([3, 3])], [TOKENS]),
    "take_along_axis": ("take_along_axis", lambda x: paddle.take_along_axis(x, _whole(5, 3, 7, 33), 1), [TOKENS]),
    "take_along_axis-last": ("take_along_axis", lambda x: x.take_along_axis(_whole(33, 3, 5, 4), -1), [TOKENS]),
    "take_along_axis-wide": ("take_along_axis", lambda x: x.take_along_axis(_whole(4, 4, 150), 0), [(4, 150)]),
    "topk": ("topk", lambda x: _distinct(x).topk(3)[0], [TOKENS]),
    "topk-middle": ("topk", lambda x: _distinct(x).topk(3, axis=1, largest=False)[0], [TOKENS]),
    "sort": ("argsort", lambda x: _distinct(x).sort(-1), [TOKENS]),
    "maximum": ("maximum", paddle.maximum, [TOKENS, TOKENS]),
    "minimum": ("minimum", paddle.minimum, [TOKENS, TOKENS]),
    "maximum-row": ("maximum", paddle.maximum, [TOKENS, (33,)]),
    "minimum-of-column": ("minimum", paddle.minimum, [(5, 1), TOKENS]),
    "maximum-strided": ("maximum", lambda x, y: paddle.maximum(x.transpose([0, 2, 1]), y), [TOKENS, (3, 33, 5)]),
    "maximum-images": ("maximum", _last(paddle.maximum), [LAST, IMAGES]),
    "where": ("where", lambda x, y: paddle.where(_mask(*TOKENS), x, y), [TOKENS, TOKENS]),
    "where-images": ("where", _last(lambda x, y: paddle.where(_mask(3, 1, 6, 7), x, y)), [LAST, IMAGES]),
    "masked_fill": ("masked_fill", lambda x: x.masked_fill(_mask(*TOKENS), -3.0), [TOKENS]),
    "masked_fill-rows": ("masked_fill", lambda x: x.masked_fill(_mask(3, 5, 1), float("-inf")), [TOKENS]),
    "masked_fill-middle": ("masked_fill", lambda x: x.masked_fill(_mask(3, 1, 33), 0.0), [TOKENS]),
    "masked_fill-columns": ("masked_fill", lambda x: x.masked_fill(_mask(33), 0.0), [TOKENS]),
    "max": ("max", lambda x: x.max(1), [TOKENS]),
    "max-last": ("max", lambda x: x.max(-1, keepdim=True), [TOKENS]),
    "max-of-all": ("max", lambda x: x.max(), [TOKENS]),
    "max-short": ("max", lambda x: x.max(-1), [(7, 5)]),
    "min-first": ("min", lambda x: x.min(0), [TOKENS]),
    "amax": ("amax", lambda x: x.amax([1, 2]), [TOKENS]),
    "amin": ("amin", lambda x: x.amin([0, 1]), [TOKENS]),
    "max-places-of-images": ("max", _last(lambda x: x.max([2, 3])), [LAST]),
    "max-channels-of-images": ("max", _last(lambda x: x.max(1)), [LAST]),
    "max-channels-and-rows-of-images": ("max", _last(lambda x: x.max([1, 2])), [LAST]),
    "max-rows-of-images": ("max", _last(lambda x: x.max(2)), [LAST]),
    "expand": ("expand", lambda x: x.expand([4, -1, 33]), [(5, 1)]),
    "expand-rows": ("expand", lambda x: x.expand([4, 5, 33]), [(1, 1, 33)]),
    "expand_as": ("expand_as", lambda x, y: x.expand_as(y), [(5, 1), TOKENS]),
    "tile": ("tile", lambda x: x.tile([1, 4, 1]), [TOKENS]),
    "tile-more-axes": ("tile", lambda x: x.tile([2, 1, 1, 3]), [TOKENS]),
    "flip": ("flip", lambda x: x.flip(2), [TOKENS]),
    "flip-two": ("flip", lambda x: x.flip([2, 3]), [IMAGES]),
    "flip-images": ("flip", _last(lambda x: x.flip(3)), [LAST]),
    "stack": ("stack", lambda x, y: paddle.stack([x, y], 1), [TOKENS, TOKENS]),
    "stack-last": ("stack", lambda x, y: paddle.stack([x, y], -1), [TOKENS, TOKENS]),
    "unfold": ("unfold", lambda x: F.unfold(x, 3, paddings=1), [IMAGES]),
    "unfold-uneven": (
        "unfold", lambda x: F.unfold(x, [2, 3], strides=2, paddings=[1, 0, 2, 1], dilations=[1, 2]), [IMAGES]),
    "unfold-wide-padding": ("unfold", lambda x: F.unfold(x, 3, strides=3, paddings=5), [(2, 1, 2, 2)]),
    "unfold-images": ("unfold", _last(lambda x: F.unfold(x, 3, strides=2, paddings=1)), [LAST]),
    "repeat_interleave-pairs": ("repeat_interleave", lambda x: x.repeat_interleave(2, axis=-1), [(3, 70, 190)]),
    "repeat_interleave-threes": ("repeat_interleave", lambda x: x[:, 1:3].repeat_interleave(3, axis=-1), [(9, 5, 7)]),
    "expand-nearest": ("expand", lambda x: x.expand([3, 5, 2, 7, 5]), [(3, 5, 1, 7, 1)]),
    "repeat_interleave": ("repeat_interleave", lambda x: x.repeat_interleave(3, axis=1), [TOKENS]),
    "roll-one-axis": ("roll", lambda x: x.roll(2, 1), [TOKENS]),
    "argmax": ("argmax", lambda x: x.argmax(-1), [TOKENS]),
    "argmax-middle": ("argmax", lambda x: x.argmax(1, keepdim=True), [TOKENS]),
    "argmin": ("argmin", lambda x: x.argmin(-1), [(7, 5)]),
}  # fmt: skip

# Computed in float32 and rounded once; the second tensor is one of labels.
ROUNDED = {
    "prelu": ("prelu", F.prelu, [IMAGES, (8,)]),
    "prelu-one": ("prelu", F.prelu, [TOKENS, (1,)]),
    "prelu-images": ("prelu", _last(F.prelu), [LAST, (8,)]),
    "prelu-rows": ("prelu", F.prelu, [(5, 8), (8,)]),
    "fold": ("fold", lambda x: F.fold(x, [6, 7], 3, paddings=1), [(3, 18, 42)]),
    "fold-apart": ("fold", lambda x: F.fold(x, [6, 7], 2, strides=3), [(3, 8, 4)]),
    "grid_sample": ("grid_sample", F.grid_sample, [IMAGES, (3, 5, 4, 2)]),
    "grid_sample-border": (
        "grid_sample", lambda x, grid: F.grid_sample(x, grid, padding_mode="border", align_corners=False),
        [IMAGES, (3, 9, 11, 2)]),
    "grid_sample-images": (
        "grid_sample", _last(lambda x, grid: F.grid_sample(x, grid, align_corners=False)),
        [(2, 5, 6, 70), (2, 4, 7, 2)]),
    "norm": ("p_norm", lambda x: x.norm(axis=-1), [TOKENS]),
    "norm-middle": ("p_norm", lambda x: x.norm(axis=1, keepdim=True), [TOKENS]),
    "norm-of-all": ("p_norm", lambda x: x.norm(), [TOKENS]),
    "outer": ("multiply", paddle.outer, [(33,), (20,)]),
    "einsum": ("einsum", lambda x, y: paddle.einsum("bnd,bmd->bnm", x, y), [TOKENS, (3, 7, 33)]),
    "einsum-heads": (
        "einsum", lambda x, y: paddle.einsum("bqhd, bkhd -> bhqk", x, y), [(2, 5, 3, 8), (2, 7, 3, 8)]),
    "einsum-turned": (
        "einsum", lambda x, y: paddle.einsum("bhqk,bkhd->bqhd", x, y), [(2, 3, 5, 7), (2, 7, 3, 8)]),
    "einsum-matrix": ("einsum", lambda x, y: paddle.einsum("nc,cd->nd", x, y), [(5, 8), (8, 9)]),
    "smooth_l1": ("huber_loss", lambda x: F.smooth_l1_loss(x, x.detach().flip(0), reduction="none"), [TOKENS]),
    "kl_div": ("kldiv_loss", lambda x: F.kl_div(x, x.detach().abs(), reduction="none"), [TOKENS]),
    "kl_div-of-zeros": (
        "kldiv_loss", lambda x: F.kl_div(x, F.relu(x.detach()), reduction="none"), [TOKENS]),
    "cumsum": ("cumsum", lambda x: x.cumsum(1), [TOKENS]),
    "cumsum-last": ("cumsum", lambda x: x.cumsum(-1), [TOKENS]),
    "sin": ("sin", lambda x: (x * 20).sin(), [TOKENS]),
    "cos": ("cos", lambda x: (x * 20).cos(), [TOKENS]),
    "log": ("log", lambda x: (x * x + 0.25).log(), [TOKENS]),
    "pow": ("pow", lambda x: x**3.0, [TOKENS]),
    "pow-quarters": ("pow", lambda x: (x * x + 0.5) ** -1.75, [TOKENS]),
    "mean-of-all": ("mean_all", lambda x: F.l1_loss(x, x * 0), [TOKENS]),
    "cross_entropy": (
        "cross_entropy_with_softmax", lambda x: F.cross_entropy(x, LABELS, reduction="none"), [TOKENS]),
    "cross_entropy-ignoring": (
        "cross_entropy_with_softmax", lambda x: F.cross_entropy(x, SOME, reduction="none"), [TOKENS]),
    "cross_entropy-far": (
        "cross_entropy_with_softmax", lambda x: F.cross_entropy(x * 64, LABELS, reduction="none"), [TOKENS]),
    "cross_entropy-soft": (
        "cross_entropy_with_softmax",
        lambda x: F.cross_entropy(x, LABELS, label_smoothing=0.25, reduction="none"), [TOKENS]),
    "binary_cross_entropy": (
        "sigmoid_cross_entropy_with_logits",
        lambda x: F.binary_cross_entropy_with_logits(x, F.one_hot(LABELS, 33).astype(x.dtype), reduction="none"),
        [TOKENS]),
}  # fmt: skip
