"""The points at which a hook is called, and hooks of the user's own."""

import importlib
import inspect

from ..runtime import UserError


class Hook:
    """The points at which a hook is called, each with the trainer; every method here does nothing."""

    priority = 50

    def before_train(self, trainer): ...

    def before_epoch(self, trainer): ...

    def before_step(self, trainer): ...

    def after_update(self, trainer):
        """After a step that changed the weights (never after a skipped one)."""

    def after_step(self, trainer):
        """After every step, applied or skipped."""

    def before_evaluation(self, trainer): ...

    def after_evaluation(self, trainer): ...

    def on_unreadable(self, trainer):
        """Where a process cannot read an image of the next step, or of an evaluation, or an evaluation has none, or is
        to stop.

        The run ends; a resume begins with that step or evaluation. Where a step came before, in the same epoch, that
        can be ``after_step`` of it instead, with ``trainer.stopping``.
        """

    def after_epoch(self, trainer): ...

    def after_train(self, trainer): ...

    def on_save(self, trainer, run):
        """Add to ``run``, on the process that writes, what a checkpoint must remember of the run folder's other files.

        ``trainer.resumed`` has it again before a training that continues. The keys are in checkpoint_schema.py.
        """


def load_hooks(names):
    """Return new instances of the user's hook classes, named ``module:Class``.

    Raises:
        UserError: a name that does not lead to a subclass of :class:`Hook`, or one that wants arguments.
    """
    hooks = []
    for name in names:
        module_name, _, class_name = name.partition(":")
        try:
            kind = getattr(importlib.import_module(module_name), class_name)
        except (ImportError, AttributeError, ValueError) as error:
            raise UserError(f"TRAIN.HOOKS: {name!r}: expected module:Class that can be imported ({error})") from None
        if not (isinstance(kind, type) and issubclass(kind, Hook)):
            raise UserError(f"TRAIN.HOOKS: {name!r}: is not a subclass of image_classification.hooks.Hook")
        try:
            inspect.signature(kind).bind()
        except TypeError as error:
            raise UserError(f"TRAIN.HOOKS: {name!r}: is made without arguments ({error})") from None
        hooks.append(kind())
    return hooks
