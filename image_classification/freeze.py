"""Parts of a model that a training run leaves as they are."""

import difflib
import fnmatch

from paddle import nn

from .runtime import UserError, get_logger

BATCH_NORMS = (nn.BatchNorm1D, nn.BatchNorm2D, nn.BatchNorm3D)


def names_to_freeze(model, patterns):
    """Return the names of the parameters that match a shell pattern.

    Args:
        patterns: such as `layer1.*`, `blocks.[0-5].*`, or `!head*`: all but what matches.

    Raises:
        UserError: a pattern matches nothing, or nothing is left to train.
    """
    trainable, frozen = _trainable(model), set()
    for pattern in patterns:
        matches = set(fnmatch.filter(trainable, pattern.removeprefix("!")))
        if not matches:
            near = difflib.get_close_matches(pattern.removeprefix("!"), trainable, n=1, cutoff=0.4)
            raise UserError(f"TRAIN.FREEZE: {pattern!r} matches no parameter" + (f"; one is {near[0]}" if near else ""))
        frozen |= trainable.keys() - matches if pattern.startswith("!") else matches
    if patterns and len(frozen) == len(trainable):
        raise UserError(f"TRAIN.FREEZE: {', '.join(patterns)} leaves nothing to train")
    return frozen


def freeze(model, patterns):
    """Freeze the parameters that :func:`names_to_freeze` returns, and return how many there are.

    The statistics of a BatchNorm whose scale is frozen are frozen too: it normalises with them in training as well.
    Call this before anything is built from the model's parameters.
    """
    trainable, frozen = _trainable(model), names_to_freeze(model, patterns)
    for name in frozen:
        trainable[name].stop_gradient = True
    for name, layer in model.named_sublayers():
        if isinstance(layer, BATCH_NORMS) and f"{name}.weight" in frozen:
            layer._use_global_stats = True
    if frozen:
        left = sum(parameter.size for name, parameter in trainable.items() if name not in frozen)
        get_logger().info("freeze: %d of %d parameters; %d values are trained", len(frozen), len(trainable), left)
    return len(frozen)


def _trainable(model):
    return {name: parameter for name, parameter in model.named_parameters() if not parameter.stop_gradient}
