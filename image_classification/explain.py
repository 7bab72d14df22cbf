"""Where a model looks: Grad-CAM or attention rollout, whichever the model says."""

import paddle
from paddle.nn import functional as F

from .model import GradCam


def heatmap(model, images, classes):
    """Return float32 [B, h, w] in 0-1: how much each place of the image speaks for `classes`, int64 [B].

    Attention rollout does not depend on the class.

    Raises:
        UserError: the model does not say where it looks.
    """
    stated = model.explanation()
    if isinstance(stated, GradCam):
        return grad_cam(model, stated, images, classes)
    return attention_rollout(model, stated, images)


def grad_cam(model, stated, images, classes):
    """Return the class activation of the last feature map (Selvaraju et al. 2017), [B, h, w], largest value 1."""
    chain = model.sequential_blocks()
    place = [block.name for block in chain].index(stated.into)
    with paddle.no_grad():
        features = images
        for block in chain[:place]:
            features = block.run(features)
    features.stop_gradient = False
    logits = features
    for block in chain[place:]:
        logits = block.run(logits)
    score = (logits * F.one_hot(classes, logits.shape[1])).sum()
    gradient = _channels_last(paddle.grad(score, features)[0], stated)
    weights = gradient.mean(axis=[1, 2], keepdim=True)
    activation = (weights * _channels_last(features.detach(), stated)).sum(axis=3)
    return _to_unit(F.relu(activation))


def _channels_last(features, stated):
    """Return [B, H, W, C] for features in the axes that the model states."""
    if stated.axes == "BCHW":
        return features.transpose([0, 2, 3, 1])
    if stated.axes == "BNC":
        patches = features[:, stated.num_prefix_tokens :]
        return patches.reshape([features.shape[0], *stated.grid, features.shape[2]])
    return features


def attention_rollout(model, stated, images):
    """Return the product of all blocks' attention (Abnar & Zuidema 2020) towards the patches, [B, rows, columns]."""
    collected = []

    def collect(layer, inputs):
        collected.append(layer.attention_weights(*inputs).mean(axis=1))

    hooks = [layer.register_forward_pre_hook(collect) for layer in stated.layers]
    try:
        with paddle.no_grad():
            model(images)
    finally:
        for hook in hooks:
            hook.remove()
    rollout = paddle.eye(collected[0].shape[1])
    for weights in collected:
        rollout = paddle.matmul((weights + paddle.eye(weights.shape[1])) / 2, rollout)  # the shortcut passes tokens on
    prefix = stated.num_prefix_tokens
    towards = rollout[:, prefix:].mean(axis=1) if stated.reads is None else rollout[:, stated.reads]
    return _to_unit(towards[:, prefix:].reshape([-1, *stated.grid]))


def _to_unit(maps):
    """Return maps [B, h, w] scaled to 0-1 each; a flat one is 0."""
    low, high = maps.min(axis=[1, 2], keepdim=True), maps.max(axis=[1, 2], keepdim=True)
    return (maps - low) / (high - low).clip(min=1e-12)
