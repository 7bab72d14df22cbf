"""What an optimizer's kernels do beside the rule of the optimizer, while they have a tensor in the cache.

    with half_cpu.dispatch(), half_cpu.update(factor, half_of) as written:
        optimizer.step()

A gradient that is still to be unscaled and clipped, and half weights that follow, would each cost a pass over memory of
their own.
"""

import contextlib
from collections.abc import Callable, Iterator

import paddle

from . import paddle_names
from .scope import Entry, active

# The optimizers whose operators have such kernels, where nothing but the operator reads the gradients.
_OPERATORS = {
    paddle.optimizer.AdamW: "adamw_",
    paddle.optimizer.Adam: "adam_",
    paddle.optimizer.Momentum: "momentum_",
    paddle.optimizer.SGD: "sgd_",
}


class Update:
    """One step of an optimizer.

    Attributes:
        factor: what each gradient is multiplied by as it is read, rounded to the format of the weights.
        half_of: function of a float32 tensor that is updated -> the half one that is to hold it rounded, or None.
        reads_half: whether the gradients of float32 weights may be half.
        written: ids of the half tensors that hold it.
    """

    def __init__(self, factor: float, half_of: Callable, reads_half: bool = False):
        self.factor = factor
        self.half_of = half_of
        self.reads_half = reads_half
        self.written: set[int] = set()


NONE = Update(1.0, lambda tensor: None)  # what a kernel outside of every update goes by


def writes_weights_last(optimizer: paddle.optimizer.Optimizer) -> bool:
    """Return whether nothing writes the weights in this optimizer's step after its operator has: no step of one's own,
    which may clip them or move them back."""
    return type(optimizer) in _OPERATORS and "step" not in vars(optimizer)


def multiplies_gradients(optimizer: paddle.optimizer.Optimizer) -> bool:
    """Return whether the active kernels can multiply every gradient of this optimizer's step by a factor."""
    if not writes_weights_last(optimizer) or active.scope is None or not widens_gradients():
        return False
    return _OPERATORS[type(optimizer)] in active.scope.float32_kernels and _reads_gradients_itself(optimizer)


def widens_gradients() -> bool:
    """Return whether the active kernels of optimizers, and of sums of squares, take gradients in half as well."""
    return active.scope is not None and "square_sums" in active.scope.kernels


def reads_half_gradients() -> bool:
    """Return whether an optimizer steps that takes the gradients of float32 weights in half as well."""
    return active.update is not None and active.update.reads_half


def _reads_gradients_itself(optimizer):
    """Return whether the step hands its operator the gradients as they are: not clipped, nothing added."""
    clip, together, parameters = paddle_names.optimizer_options(optimizer)
    if clip is not None or optimizer.regularization is not None or together:
        return False
    in_operator = paddle.regularizer.L2Decay if type(optimizer) is paddle.optimizer.Momentum else ()
    for param in parameters:
        if isinstance(param, dict):
            return False  # groups have such options of their own
        regularizer = getattr(param, "regularizer", None)
        if regularizer is not None and not isinstance(regularizer, in_operator):
            return False
    return True


@contextlib.contextmanager
def update(factor: float, half_of: Callable, reads_half: bool = False) -> Iterator[set[int]]:
    """Give the set of ids of the half tensors that were written, which grows as the optimizer steps inside.

    A factor other than 1, and `reads_half`, are for optimizers that :func:`multiplies_gradients` is true of.
    """
    one = Update(factor, half_of, reads_half)
    entry = Entry("update", one)
    try:
        entry.enter()
        yield one.written
    finally:
        entry.leave()
