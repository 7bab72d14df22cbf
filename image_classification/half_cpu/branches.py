"""Where several operators read one tensor, a kernel sums the gradients that they send back.

Paddle's engine would do it: in one thread, a float16 number at a time, and for images as rows of [B, C, H, W], copied
there and back. So an operator under a dispatch does not get a large tensor itself but one of two views of it; the other
is left for the next reader; of float32 only images. Hooks and gradients of the tensor see the sum, as ever.

Most tensors have one reader, who gets the tensor itself from the second step of a training on: by then it is known.
"""

import math

import paddle

from . import paddle_names
from .arguments import BFLOAT16, FLOAT16, FLOAT32, FLOATING, replace_tensors
from .scope import active

# Elements from which on the sum of the engine takes longer than making the views: of half tensors, of float32 images.
LARGE_HALF, LARGE = 1 << 15, 1 << 18

FEW = 256  # elements whose sums in another order may be the same by chance

MOST_KNOWN = 4096  # kinds of first readers


class Readers:
    """Which kinds of first readers are the only ones of their tensors, by operator, shape and format.

    A kind is alone once a backward pass found no other reader, and never again after a tensor of it had another.
    """

    def __init__(self):
        self._alone = {}

    def are_alone(self, kind):
        """Return whether all tensors of a kind had one reader so far, and one of them had a backward pass."""
        return self._alone.get(kind, False)

    def add_alone(self, kind):
        """Note that a backward pass found one reader of a tensor."""
        self._note(kind, self._alone.get(kind, True))

    def add_another(self, kind):
        """Note a second reader of a tensor."""
        self._note(kind, False)

    def _note(self, kind, alone):
        if len(self._alone) >= MOST_KNOWN:  # images of many sizes: what is still used is known again after a step
            self._alone.clear()
        self._alone[kind] = alone


readers = Readers()


def branched(scope, reader, args, kwargs, tensors):
    """Return (args, kwargs) with a view in place of each large tensor whose gradient goes on to another operator than
    `reader`, or may do so."""
    if scope.fork is None or not paddle.is_grad_enabled():
        return args, kwargs
    shared = None
    for tensor in tensors:
        if is_inner(tensor):
            is_shared = active.recorder is not None or not _is_alone(reader, tensor)
        else:
            is_shared = active.recorder is not None and active.recorder.reads(tensor)
        if is_shared:
            shared = {id(tensor), *(shared or ())}
    if shared is None:
        return args, kwargs
    active.scope = None
    try:
        return replace_tensors(
            args, kwargs, lambda tensor: _view(scope.fork, reader, tensor) if id(tensor) in shared else tensor
        )
    finally:
        active.scope = scope


def forget_branches(tensor):
    """Let the next reader of a tensor be the first."""
    vars(tensor).pop("rest_of_branches", None)


def _is_alone(reader, tensor):
    """Return whether a reader gets the tensor itself; who comes second is noted, too late for this tensor."""
    if hasattr(tensor, "rest_of_branches"):
        return False
    first = getattr(tensor, "only_reader", None)
    if first is not None:
        readers.add_another(first)
        return True
    kind = _kind(reader, tensor)
    if not readers.are_alone(kind):
        return False
    tensor.only_reader = kind
    return True


def _kind(reader, tensor):
    return reader, tuple(tensor.shape), tensor.dtype


def is_inner(tensor):
    """Return whether a kernel is to sum the gradients of a tensor, where it has several readers."""
    if tensor.stop_gradient or tensor.is_leaf:
        return False
    if active.recorder is not None:  # which does not see what the engine does
        return tensor.dtype in FLOATING
    return _is_large(tensor)


def _is_large(tensor):
    """Return whether the engine's sum takes longer; of float32 tensors that are no images it is as fast."""
    size, dtype = math.prod(tensor.shape), tensor.dtype
    if dtype is FLOAT16 or dtype is BFLOAT16:
        return size >= LARGE_HALF
    return size >= LARGE and dtype is FLOAT32 and tensor.ndim == 4


def _view(fork, reader, tensor):
    """Return a view of a tensor for one reader, and keep the one for the next readers with the tensor."""
    state = paddle_names.inplace_version(tensor), tensor.data_ptr()  # `tensor.data = other` counts as no write
    rest, known, first, number = getattr(tensor, "rest_of_branches", (tensor, state, None, 0))
    if first is None:
        first = _kind(reader, tensor)
    else:
        readers.add_another(first)
    if number == 2 and active.recorder is not None and math.prod(tensor.shape) < FEW and not _is_large(tensor):
        active.recorder.refuse("three operators read a result of few numbers")  # the engine has an order of its own
    view, rest = fork(rest if known == state else tensor, lambda: readers.add_alone(first))
    if view is not rest:
        tensor.rest_of_branches = rest, state, first, number + 1
    return view
