"""Float32 masters, and how the gradients of their half weights come to them.

A gradient waits in half until somebody reads it: a check and an optimizer that widen as they read move half of the
bytes, and nothing has to write float32.
"""

from collections.abc import Iterable

import paddle
from paddle.autograd import PyLayer

from .. import half_cpu
from . import private

_NONE: dict[int, tuple["MasterParameter", paddle.Tensor]] = {}


class MasterParameter(private.AskedParameter):
    """A float32 parameter whose gradient may wait in half: whoever reads it, or adds to it, finds it widened.

    Attributes:
        waiting: {id of a master: (master, half gradient)} of all that came together and wait still.
    """

    waiting = _NONE

    @property
    def half_gradient(self):
        """The gradient as it waits, None where it does not."""
        return self.waiting[id(self)][1] if id(self) in self.waiting else None

    def widen(self):
        """Widen the gradient, and those that came with it, where they wait."""
        if self.half_gradient is None:
            return
        masters, gradients = zip(*self.waiting.values(), strict=True)
        self.waiting.clear()
        left = list(reversed(gradients))
        del gradients
        with half_cpu.dispatch(), paddle.enable_grad():
            _send(masters, lambda: (left.pop().astype("float32") for _ in masters))

    def drop(self):
        """Forget the gradient that waits."""
        self.waiting.pop(id(self), None)

    def for_optimizer(self):
        """Return the gradient as it waits for an optimizer that widens it, else None."""
        return self.half_gradient if half_cpu.reads_half_gradients() else None


class _Gradients(PyLayer):
    """A number that sends masters their gradients.

    They come from a function: half weights as inputs would be sent gradients, None, which their hooks would see.
    """

    @staticmethod
    def forward(ctx, gradients, *masters):
        ctx.gradients = gradients
        return paddle.zeros([])

    @staticmethod
    def backward(ctx, one):
        return tuple(ctx.gradients())


def _send(masters, gradients):
    # Autograd adds in place where there is a gradient and takes the tensor where there is none. Assigning to `.grad`
    # copies it, and off the CPU waits for the device, once for each parameter; so would a gradient that `backward` is
    # handed be copied.
    paddle.autograd.backward([_Gradients.apply(gradients, *masters)])


def collect(halves: Iterable[private.HalfParameter]) -> None:
    """Add the gradients of half weights to those of their masters, in float32, and clear the former."""
    waiting: dict[int, tuple[MasterParameter, paddle.Tensor]] = {}
    wait = half_cpu.widens_gradients()
    now = [half for half in halves if not (wait and _waits(half, waiting))]
    if now:
        _send([half.master for half in now], lambda: map(_widened, now))


def _widened(half):
    """Return the gradient of a half weight in float32, and clear it."""
    gradient = half.grad.astype("float32")
    half.drop_gradient()
    return gradient


def _waits(half, waiting):
    """Let the gradient of a half weight wait at its master and return True, or False: one is there, or watched for."""
    master = half.master
    if private.is_plain_parameter(master) and not private.has_gradient_hooks(master):
        master.__class__ = MasterParameter
    if type(master) is not MasterParameter or master.is_watched or not half.grad.is_dense() or master.grad is not None:
        return False
    waiting[id(master)] = master, private.moved(half.grad)
    master.waiting = waiting
    half.drop_gradient()
    return True
