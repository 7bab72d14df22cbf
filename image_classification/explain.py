"""Where a model looks: Grad-CAM for networks of feature maps, attention rollout for those of tokens."""

import paddle
from paddle.nn import functional as F

from .layers import Attention

HEADS = ("head", "flatten")  # the first link of a chain that sees no image plane any more


def heatmap(model, images, classes):
    """Return float32 [B, h, w] in 0-1: how much each place of the image speaks for `classes`, int64 [B].

    ViT and DeiT give attention rollout, which does not depend on the class; all other models give Grad-CAM.
    """
    if any(isinstance(layer, Attention) for layer in model.sublayers()):
        return attention_rollout(model, images)
    return grad_cam(model, images, classes)


def grad_cam(model, images, classes):
    """Return the class activation of the last feature map (Selvaraju et al. 2017), [B, h, w], largest value 1."""
    chain = model.sequential_blocks()
    place = next(i for i, block in enumerate(chain) if block.name in HEADS)
    with paddle.no_grad():
        features = images
        for block in chain[:place]:
            features = block.run(features)
    features.stop_gradient = False
    logits = features
    for block in chain[place:]:
        logits = block.run(logits)
    score = (logits * F.one_hot(classes, logits.shape[1])).sum()
    gradient = paddle.grad(score, features)[0]
    if features.shape[1] == features.shape[2]:  # [B, h, w, C], as Swin has it
        weights = gradient.mean(axis=[1, 2], keepdim=True)
        activation = (weights * features).sum(axis=3)
    else:
        weights = gradient.mean(axis=[2, 3], keepdim=True)
        activation = (weights * features).sum(axis=1)
    return _to_unit(F.relu(activation.detach()))


def attention_rollout(model, images):
    """Return the product of all blocks' attention (Abnar & Zuidema 2020) towards the image patches, [B, g, g]."""
    packed = []

    def keep(_layer, _inputs, qkv):
        packed.append(qkv)

    attentions = [layer for layer in model.sublayers() if isinstance(layer, Attention)]
    hooks = [layer.qkv.register_forward_post_hook(keep) for layer in attentions]
    try:
        with paddle.no_grad():
            model(images)
    finally:
        for hook in hooks:
            hook.remove()
    rollout = None
    for layer, qkv in zip(attentions, packed, strict=True):
        batch, tokens, width = qkv.shape
        query, key, _ = qkv.reshape([batch, tokens, 3, layer.num_heads, width // (3 * layer.num_heads)]).unbind(2)
        scores = paddle.einsum("bnhd,bmhd->bhnm", query * layer.scale, key)
        weights = F.softmax(scores, axis=-1).mean(axis=1)
        weights = (weights + paddle.eye(tokens)) / 2  # the shortcut passes every token on
        rollout = weights if rollout is None else paddle.matmul(weights, rollout)
    prefix = model.num_prefix_tokens
    towards = rollout[:, 0] if prefix else rollout.mean(axis=1)
    patches = towards[:, prefix:]
    side = round(patches.shape[1] ** 0.5)
    return _to_unit(patches.reshape([-1, side, side]))


def _to_unit(maps):
    """Return maps [B, h, w] scaled to 0-1 each; a flat one is 0."""
    low, high = maps.min(axis=[1, 2], keepdim=True), maps.max(axis=[1, 2], keepdim=True)
    return (maps - low) / (high - low).clip(min=1e-12)
