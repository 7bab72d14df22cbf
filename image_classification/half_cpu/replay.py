"""A forward pass without its layers: the calls of kernels that one was made of, made again.

A small batch leaves the kernels so little to do that Python takes longer: layers, operators, shapes, results. All that
is the same for the next batch of these shapes. So a forward pass is recorded where only pointers are left of it, its
intermediate results get places in one piece of memory, and the next passes are a list of calls (`recording.py`).
"""

import logging
from typing import Any

import paddle

from . import paddle_names
from .compiled_library import CompiledError
from .recorded_calls import Refused, in_a_line
from .recorded_pass import Pass
from .recording import Recorder, copies, filled, flat, mapped, outline
from .scope import active
from .state import State, bits, statistics

logger = logging.getLogger(__name__)

RECORDED = 3  # the call of a shape that records: the last batch of an evaluation, which may be smaller, comes once
KEPT = 8  # shapes


def replay(model: paddle.nn.Layer, *inputs: Any) -> Any:
    """Return `model(*inputs)`; inside of `frozen(model)` without its layers, once these shapes came three times.

    The third call takes three passes. What it records is used until `frozen` ends, whose promise then covers all of
    the model: its mode, its attributes, its sublayers. Where a pass cannot be recorded, the log says why and the layers
    run. Outside of `frozen`, with gradients, without a dispatch or with what is no tensor this is `model(*inputs)`.

    Returns:
        A tensor, or a list, tuple or dict of tensors, which are the caller's; the same bits as those of the layers.
    """
    if not can_record() or not all(isinstance(one, paddle.Tensor) for one in inputs):
        return model(*inputs)
    weights, key = active.frozen, key_of(model, inputs)
    known = weights.passes.pop(key, 1)
    if callable(known):
        weights.passes[key] = known
        try:
            return known(inputs)
        except CompiledError:
            return model(*inputs)  # an index out of range: Paddle words the error
        except Refused as error:
            weights.passes[key] = _refuse(model, error)
            return model(*inputs)
    result = model(*inputs)
    if known == RECORDED:
        known, result = _recorded(model, inputs, result)
    elif known:
        known += 1
    weights.passes[key] = known
    if len(weights.passes) > KEPT:
        del weights.passes[next(iter(weights.passes))]
    return result


def computes_only(hook):
    """Return a hook of layers, marked as one that does nothing but compute with tensors: it may be recorded."""
    hook.computes_only = True
    return hook


def can_record():
    """Return whether passes are recorded here: not inside of one, which is recorded with its parts."""
    weights = active.frozen
    if weights is None or not weights.keeps_orders or active.scope is None or paddle.is_grad_enabled():
        return False
    return active.recorder is None


def key_of(model, inputs):
    """Return what a pass that is recorded here holds for."""
    shapes = tuple((tuple(tensor.shape), str(tensor.dtype), tensor.is_contiguous()) for tensor in inputs)
    ids = [*map(id, inputs)]
    same = tuple(map(ids.index, ids))  # a model may ask whether its queries are its keys
    scope: Any = active.scope  # there is one where passes are recorded
    # Hooks are seen, wherever they are put.
    made = paddle.get_default_dtype()
    return model, model.training, paddle_names.hooks_ever(), scope.policy_cast, scope.backend.name, made, shapes, same


def has_hooks(model):
    """Return whether something else than computation hangs on a layer."""
    hooks = (hook for layer in model.sublayers(include_self=True) for hook in paddle_names.hooks(layer))
    return not all(getattr(hook, "computes_only", False) for hook in hooks)


def _refuse(model, reason):
    logger.info("half_cpu: the layers of %s run one by one: %s", type(model).__name__, reason)
    return 0


def _recorded(model, inputs, expected):
    """Return (the recorded pass of a model for inputs of these shapes or 0, `expected`, their result).

    It is believed where it is closed (see `Recorder.returns`) and, played with NaN in all memory but weights and
    inputs, gives the bits of the layers.
    """
    state = State([*model.buffers(), *statistics(model.parameters())])
    tables = paddle_names.tables_of_buffers(model.sublayers(include_self=True))
    before = [*map(dict, tables)]
    try:
        expected = mapped(_itself, expected)  # the next pass may fill a list of the model's own again
        if not all(tensor.is_contiguous() for tensor in inputs):
            raise Refused("an input is not dense")
        if not all(active.frozen.knows(weight.data_ptr()) for weight in model.parameters()):
            raise Refused("it is not frozen")
        if has_hooks(model):
            raise Refused("it has hooks")
        own, constants = copies(inputs), constants_of(model)
        versions = [tensor.inplace_version for tensor in (*constants, *own)]
        recorder = Recorder(constants, own)
        with recorder.recording():
            result = mapped(_itself, model(*own))
        if not _are_as_before(tables, before) or versions != [tensor.inplace_version for tensor in (*constants, *own)]:
            raise Refused("it writes its inputs, weights or buffers")
        recorder.returns(flat(result))
        found = Evaluation(recorder.finish(), result)
        with found.played.poisoned():
            if not same_bits(_played(found, inputs), expected):
                raise Refused("played again, it gives other results")
    except Refused as error:
        return _refuse(model, error), expected
    except Exception as error:  # of what runs with layers all the same
        return _refuse(model, f"recorded, it fails: {in_a_line(error)}"), expected
    finally:
        for table, entries in zip(tables, before, strict=True):
            table.update(entries)
        state.restore()
    return found, expected


def _are_as_before(tables, before):
    """Return whether no buffer was replaced by another tensor."""
    pairs = zip(tables, before, strict=True)
    return all(table.get(name) is one for table, entries in pairs for name, one in entries.items())


def constants_of(model):
    """Return what the passes of a frozen model read and do not write."""
    return [*model.parameters(), *model.buffers(), *active.frozen.tensors()]


class Evaluation:
    """A recorded forward pass; call it with inputs of the recorded shapes.

    Attributes:
        run: what gives the results of `played` for inputs, that itself or something faster.
        is_divided: whether it is known if the first calls are to be made for a few images at a time.
    """

    def __init__(self, played: Pass, result):
        self.played = played
        self.run: Any = played
        self.is_divided = False
        self._outline = outline(result)

    @property
    def bytes(self):
        """Those of the intermediate results that are in use at a time."""
        return self.played.bytes

    def __call__(self, inputs):
        return filled(self._outline, self.run(inputs))


def _itself(tensor):
    return tensor


def _played(found, inputs):
    try:
        return found(inputs)
    except Exception as error:  # of an operator that got what was not written, such as indices
        raise Refused(f"played again, it fails: {in_a_line(error)}") from error


def same_bits(found, expected):
    """Return whether two results of a model are the same."""
    return mapped(bits, found) == mapped(bits, expected)
