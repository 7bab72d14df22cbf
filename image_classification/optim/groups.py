"""Which weight decay and which share of the learning rate each parameter gets."""

import dataclasses

import paddle

from ..runtime import UserError


@dataclasses.dataclass(frozen=True)
class ParameterSetting:
    """One tensor to optimize: ``weight_decay`` as it stands, ``lr_scale`` a factor of the learning rate.

    ``holders`` is the group of processes that hold a part of it each, None where the tensor is whole.
    """

    name: str
    tensor: paddle.Tensor
    weight_decay: float
    lr_scale: float
    holders: object = None


def parameter_settings(
    named_params, weight_decay, no_weight_decay=frozenset(), decay_all=False, layer_decay=1.0, holders_of=None,
    layer_groups=(),
):  # fmt: skip
    """Return one :class:`ParameterSetting` per trainable tensor, in the given order.

    Biases and the weights of norms (tensors of at most one dimension) and the names in ``no_weight_decay`` have weight
    decay 0, unless ``decay_all``. ``layer_decay`` d gives layer i of n in ``layer_groups`` the learning-rate factor
    d ** (n - i). Tensors with ``stop_gradient`` are frozen and left out. ``holders_of`` returns the ``holders`` for a
    name; without it all tensors are whole.
    """
    trainable = [(name, tensor) for name, tensor in named_params if not tensor.stop_gradient]
    if not trainable:
        raise UserError("every parameter of the model is frozen: there is nothing to train")
    scales = layer_scales([name for name, _ in trainable], layer_decay, layer_groups)
    settings = []
    for name, tensor in trainable:
        decays = decay_all or (tensor.ndim > 1 and name not in no_weight_decay)
        decay = float(weight_decay) if decays else 0.0
        holders = holders_of(name) if holders_of else None
        settings.append(ParameterSetting(name, tensor, decay, scales[name], holders))
    return settings


def layer_scales(names, layer_decay, layer_groups):
    """Return {name: learning-rate factor} for layer-wise decay (Clark et al. 2020, BEiT).

    ``layer_groups`` are the model's layers from the stem to the head, each the beginnings of its parameters' names.
    """
    if layer_decay == 1:
        return dict.fromkeys(names, 1.0)
    layer_of = {name: [i for i, prefixes in enumerate(layer_groups) if name.startswith(prefixes)] for name in names}
    strays = [name for name, layers in layer_of.items() if len(layers) != 1]
    if strays:
        raise UserError(f"TRAIN.OPTIMIZER.LAYER_DECAY: the model does not say which layer {strays[0]} belongs to")
    return {name: layer_decay ** (len(layer_groups) - 1 - layers[0]) for name, layers in layer_of.items()}
