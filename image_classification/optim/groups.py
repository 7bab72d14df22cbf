"""Which weight decay and which share of the learning rate each parameter gets."""

import dataclasses
import re

import paddle

from ..runtime import UserError

# blocks.3 (ViT), layers.0.blocks.1 (Swin), stages.2.blocks.0 (ConvNeXt), layer2.1 (ResNet), features.10 (VGG)
_BLOCK = re.compile(r"(?:^|\.)(?:blocks|layers?|stages|features)\.?(\d+)(?:\.(?:blocks\.)?(\d+))?(?=\.)")


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
    named_params, weight_decay, no_weight_decay=frozenset(), decay_all=False, layer_decay=1.0, holders_of=None
):
    """Return one :class:`ParameterSetting` per trainable tensor, in the given order.

    Biases and the weights of norms (tensors of at most one dimension) and the names in ``no_weight_decay`` have weight
    decay 0, unless ``decay_all``. ``layer_decay`` d gives layer i of n the learning-rate factor d ** (n - i), where the
    head is layer n and the stem layer 0. Tensors with ``stop_gradient`` are frozen and left out. ``holders_of`` returns
    the ``holders`` for a name; without it all tensors are whole.
    """
    trainable = [(name, tensor) for name, tensor in named_params if not tensor.stop_gradient]
    if not trainable:
        raise UserError("every parameter of the model is frozen: there is nothing to train")
    scales = layer_scales([name for name, _ in named_params], layer_decay)
    settings = []
    for name, tensor in trainable:
        decays = decay_all or (tensor.ndim > 1 and name not in no_weight_decay)
        decay = float(weight_decay) if decays else 0.0
        holders = holders_of(name) if holders_of else None
        settings.append(ParameterSetting(name, tensor, decay, scales[name], holders))
    return settings


def layer_scales(names, layer_decay):
    """Return {name: learning-rate factor} for layer-wise decay (Clark et al. 2020, BEiT).

    The numbered blocks found in ``names`` are the layers; what stands before the first of them is the stem, every other
    name is the head.
    """
    if not 0 < layer_decay <= 1:
        raise UserError(f"TRAIN.OPTIMIZER.LAYER_DECAY: {layer_decay} is not above 0 and at most 1")
    if layer_decay == 1:
        return dict.fromkeys(names, 1.0)
    blocks = {name: _block_key(name) for name in names}
    order = {key: index for index, key in enumerate(sorted({key for key in blocks.values() if key}), start=1)}
    if not order:
        raise UserError("TRAIN.OPTIMIZER.LAYER_DECAY: this model has no numbered blocks to tell its layers apart")
    head = len(order) + 1
    scales, seen_block = {}, False
    for name in names:
        key = blocks[name]
        seen_block = seen_block or key is not None
        layer = order[key] if key else (head if seen_block else 0)
        scales[name] = layer_decay ** (head - layer)
    return scales


def _block_key(name):
    """Return the numbers of the block that ``name`` belongs to, or None: ``layer2.1.conv1.weight`` -> (2, 1)."""
    found = _BLOCK.search(name)
    return tuple(int(number) for number in found.groups() if number is not None) if found else None
