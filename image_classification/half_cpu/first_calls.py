"""The first calls of a recorded pass for a few images at a time, the others for all of them.

The first layers of a network make large images with few weights: what one of them makes of two images is still in the
second cache when the next one reads it, and the weights are read again from a cache as well. In later layers it is the
other way round. So where more memory stays in the caches than is read once more, a pass begins with as many short
passes up to a call, whose results lie one after the other where the rest of it reads them.
"""

import contextlib
import ctypes
import logging
import math
from typing import Any

import numpy as np
import paddle

from . import onednn_library
from .recorded_calls import Enough, Operator, Refused
from .recorded_pass import Pass
from .recording import Recorder
from .replay import constants_of, same_bits
from .state import State, statistics

logger = logging.getLogger(__name__)

_FEW = 2  # images; with more threads one for each
_STAYS = 4 << 20  # bytes that a call reads and writes and that are in a cache anyway
_AGAIN = 1.5  # what a byte of the weights costs that is read once more, in bytes that stay in the second cache
_KERNEL, _OPERATOR = 3 << 16, 4 << 20  # what one more call costs, in the same
_LEAST = 8 << 20  # what is worth a second recording, in the same


def divided(model: paddle.nn.Layer, whole: Pass, images: paddle.Tensor) -> Any:
    """Return what gives the results of a recorded pass of `images`, [B, ...], faster, or that pass, if there is none.

    It is believed where it gives the same bits for random images, with NaN in all memory but weights and images.
    """
    rows = images.shape[0]
    few = max(_FEW, onednn_library.load().threads())
    few = next((size for size in range(few, rows) if rows % size == 0), rows)
    last = _last(whole, few / rows) if few < rows else 0
    if not last:
        return whole
    name = type(model).__name__
    state = State([*model.buffers(), *statistics(model.parameters())])
    try:
        first, pairs = _recorded(model, whole, last, images[:few].clone())
        found = Divided(whole, first, pairs, rows // few)
        random = np.random.default_rng(0).standard_normal(images.shape, np.float32)
        trial = paddle.to_tensor(random, place=images.place).astype(images.dtype)
        with whole.poisoned(), found.first.poisoned():
            if not same_bits(found([trial]), whole([trial])):
                raise Refused("fewer images have other results")
    except Exception as error:  # of what runs as a whole all the same
        why = error if isinstance(error, Refused) else f"recorded for fewer, it fails: {type(error).__name__}: {error}"
        logger.info("half_cpu: all calls of %s are made for %d images at a time: %s", name, rows, why)
        return whole
    finally:
        state.restore()
    logger.info("half_cpu: the first %d of %d calls of %s are made for %d of %d images at a time",
                last, len(whole), name, few, rows)  # fmt: skip
    return found


def _last(whole, part):
    """Return how many of the calls are to be made for a part of the images: up to where most memory is saved."""
    inputs = {slot.block for slot in whole.inputs}
    saved, most, last = 0.0, float(_LEAST), 0
    for number, step in enumerate(whole.steps[:-1], 1):
        blocks = {block for block, _, _ in step.uses}
        weights = sum(block.bytes for block in blocks if block.given and block not in inputs)
        images = sum(block.bytes for block in blocks) - weights
        saved += images * part if images > _STAYS else 0
        saved -= _AGAIN * weights + (_OPERATOR if isinstance(step, Operator) else _KERNEL)
        if saved > most:
            most, last = saved, number
    return last


def _recorded(model, whole, last, images):
    """Return (the recorded pass of fewer images up to a call of the whole pass, which returns nothing, [(block, part)]
    of the memory that later calls of the whole pass read, and where the pass of fewer images leaves a part of it).

    Raises:
        Refused: its calls are others, or keep their memory in another way.
    """
    recorder = Recorder(constants_of(model), [images], most=last)
    with contextlib.suppress(Enough), recorder.recording():
        model(images)
    if [step.name for step in recorder.steps] != [step.name for step in whole.steps[:last]]:
        raise Refused("fewer images take other calls")
    read = {block for step in whole.steps[last:] for block, _, _ in step.uses}
    read |= {slot.block for slot in whole.results}
    pairs = {}
    for step, fewer in zip(whole.steps, recorder.steps, strict=False):
        if len(step.uses) != len(fewer.uses):
            raise Refused("fewer images use other memory")
        for (block, _, _), (part, _, _) in zip(step.uses, fewer.uses, strict=True):
            if block in read and not block.given:
                pairs[block] = part
                part.use(last)  # nothing is written over it
    if any(block.apart or part.given for block, part in pairs.items()):
        raise Refused("a result is made by them")
    recorder.returns([])
    return recorder.finish(), pairs.items()


class Divided:
    """A pass that begins with several of fewer images, `first`.

    Args:
        pairs: [(block, part)] of memory that the rest of the whole pass reads, and of that in which `first` leaves a
            part of it.
        parts: how many passes there are.
    """

    def __init__(self, whole: Pass, first: Pass, pairs: Any, parts: int):
        self.first, self._whole, self._parts = first, whole, parts
        if any(block.bytes not in (part.bytes, parts * part.bytes) for block, part in pairs):
            raise Refused("what is left of each image lies between what is left of others")
        if first.inputs[0].users is None:
            raise Refused("the images are copied")
        # What is no part, such as a table of biases, depends on weights alone: all passes leave the same.
        self._copies = [(block.place, part.place, part.bytes, block.bytes > part.bytes) for block, part in pairs]

    def __call__(self, inputs):
        """Return the results for images of the recorded shape."""
        (images,), whole, last = inputs, self._whole, len(self.first)
        size = math.prod(images.shape) * images.element_size() // self._parts
        for slot in whole.inputs:
            whole.read(slot, images)
        results = [whole.write(slot) for slot in whole.results]
        for part in range(self._parts):
            self.first.look(self.first.inputs[0], images.data_ptr() + part * size)
            self.first.play(0, last)
            for place, source, count, is_part in self._copies:
                ctypes.memmove(place + part * count * is_part, source, count)
        whole.play(last, len(whole))
        return [whole.written(slot, tensor) for slot, tensor in zip(whole.results, results, strict=True)]
