"""BatchNorms folded into the convolutions and linear layers before them, for files that other engines run."""

import collections

import paddle
from paddle import nn

from .half_cpu import data_format, is_plain, norm_arguments

_PAIRS = ((nn.Conv2D, nn.BatchNorm2D), (nn.Linear, nn.BatchNorm1D))


def fold_batch_norms(model: nn.Layer, *inputs: paddle.Tensor) -> int:
    """Fold BatchNorms of a float32 model into the layers before them, in place; return how many.

    The model is run on `inputs`, a few times, and must be in evaluation mode. A norm is folded if what it normalises,
    by its running statistics, is what a convolution or linear layer returned, both are called once, nothing else reads
    that tensor or shares the weights, and neither has hooks. Such a norm becomes `nn.Identity`, and the layer gets a
    bias; all others stay as they are.
    """
    pairs = [pair for pair in _followed(model, inputs) if _is_safe(model, *pair)]
    with paddle.no_grad():
        expected = _flat(model(*inputs))
        if not _unread(model, inputs, pairs, expected):
            pairs = [pair for pair in pairs if _unread(model, inputs, [pair], expected)]
        for layer, norm in pairs:
            _fold(layer, norm)
    folded = {id(norm) for _, norm in pairs}
    for parent in model.sublayers(include_self=True):
        for name, child in list(parent.named_children()):
            if id(child) in folded:
                setattr(parent, name, nn.Identity())
    return len(pairs)


def _followed(model, inputs):
    """Return the pairs of a layer and the norm that is given its result, both of them called once."""
    calls: collections.Counter = collections.Counter()
    results, pairs, hooks = [], [], []

    def keep(layer, arguments, result):
        calls[id(layer)] += 1
        if _channels_second(layer, result):
            results.append((result, layer))  # keeps the tensor, so that no other one is taken for it

    def find(norm, arguments):
        calls[id(norm)] += 1
        given = arguments[0] if arguments else None  # by its name: it is not looked for
        pairs.extend((layer, norm) for result, layer in results if result is given)

    for each in model.sublayers(include_self=True):
        for kind, norm_kind in _PAIRS:
            if is_plain(each, kind):
                hooks.append(each.register_forward_post_hook(keep))
            elif is_plain(each, norm_kind):
                hooks.append(each.register_forward_pre_hook(find))
    try:
        with paddle.no_grad():
            model(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return [pair for pair in pairs if all(calls[id(each)] == 1 for each in pair)]


def _channels_second(layer, result):
    """Return whether a layer's outputs are the axis that a norm which is folded has its channels on."""
    return result.ndim == 2 if isinstance(layer, nn.Linear) else data_format(layer) == "NCHW"


def _is_safe(model, layer, norm):
    """Return whether a layer and its norm can be one layer."""
    if not any(type(layer) is kind and type(norm) is norm_kind for kind, norm_kind in _PAIRS):
        return False
    *_, order, given = norm_arguments(norm)
    parameters = [*layer.parameters(), *norm.parameters()]
    owners = collections.Counter(
        id(parameter) for each in model.sublayers(include_self=True)
        for parameter in each.parameters(include_sublayers=False)
    )  # fmt: skip
    return (
        given and norm.weight is not None and norm.bias is not None and order in ("NCHW", "NCL", "NC")
        and all(parameter.dtype is paddle.float32 and owners[id(parameter)] == 1 for parameter in parameters)
    )  # fmt: skip


def _unread(model, inputs, pairs, expected):
    """Return whether the model answers the same where the layers return something else and the norms alone get what
    they really returned: then nothing else reads it."""
    true, hooks = {}, []

    def falsify(layer, arguments, result):
        true[id(layer)] = result
        return 1.0 - result

    for layer, norm in pairs:
        hooks.append(layer.register_forward_post_hook(falsify))
        hooks.append(norm.register_forward_pre_hook(lambda norm, arguments, layer=layer: (true[id(layer)],)))
    try:
        found = _flat(model(*inputs))
    finally:
        for hook in hooks:
            hook.remove()
    return all(bool((one == other).all()) for one, other in zip(found, expected, strict=True))


def _flat(outputs):
    return [one for one in paddle.utils.flatten(outputs) if isinstance(one, paddle.Tensor)]


def _fold(layer, norm):
    mean, variance, epsilon, *_ = norm_arguments(norm)
    factor = norm.weight / paddle.sqrt(variance + epsilon)
    center = mean if layer.bias is None else mean - layer.bias
    shape = [-1, 1, 1, 1] if layer.weight.ndim == 4 else [-1]
    layer.weight.set_value(layer.weight * factor.reshape(shape))
    if layer.bias is None:
        layer.bias = layer.create_parameter(norm.bias.shape, is_bias=True)
    layer.bias.set_value(norm.bias - center * factor)
