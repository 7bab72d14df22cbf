"""The optimizer's tensors under the names of the model's parameters.

Paddle's own ``state_dict`` uses names that it generates while the program runs; they differ between two runs as soon as
one of them builds another layer first. The names here are ``<parameter>/<slot>``, for example
``blocks.0.attn.qkv.weight/moment1``. Of the private parts of Paddle's optimizers this module uses ``_accumulators`` and
``_create_accumulators``; a test fails when they, or those that rules.py inherits, vanish.
"""

import numpy as np
import paddle

from ..runtime import UserError
from .build import build_rule
from .groups import ParameterSetting

HALF = (paddle.float16, paddle.bfloat16)


def optimizer_state(optimizer, named_params):
    """Return {"<structured name>/<slot>": tensor}, complete also before the first step.

    Holds every accumulator: moments, velocities, powers of the betas. Those of a mode without master weights are half
    precision and come as float32, so that the state fits every mode. Other tensors are the optimizer's own: copy what
    must survive the next step. The learning rate is not in it: the schedule gives it anew.
    """
    accumulators = _accumulators(optimizer, named_params)
    return {key: tensor.astype("float32") if tensor.dtype in HALF else tensor for key, tensor in accumulators.items()}


def load_optimizer_state(optimizer, named_params, state):
    """Copy ``state``, as :func:`optimizer_state` returned it, into the optimizer; the next step continues bit for bit.

    Values may be Paddle tensors or NumPy arrays. Nothing is changed when an entry does not fit.

    Raises:
        UserError: an entry is missing, unknown, or has another shape or dtype.
    """
    own = _accumulators(optimizer, named_params)
    _check_entries(own, state)
    values = {key: _as_array(value) for key, value in state.items()}
    for key, tensor in own.items():
        dtype = "float32" if tensor.dtype in HALF else tensor.numpy().dtype
        if list(values[key].shape) != list(tensor.shape) or values[key].dtype != dtype:
            raise UserError(
                f"the optimizer's state does not fit: {key!r} is {values[key].dtype} {list(values[key].shape)}, "
                f"expected {dtype} {list(tensor.shape)}"
            )
    for key, tensor in own.items():
        value = values[key]
        tensor.set_value(paddle.to_tensor(value).astype(tensor.dtype) if tensor.dtype in HALF else value)


def check_optimizer_state(train_config, names, state):
    """See that ``state`` has the entries of an optimizer that is not built yet, over the parameters of these names.

    Raises:
        UserError: an entry is missing or unknown.
    """
    one = paddle.ones([1])  # each parameter has the same slots
    one.stop_gradient = False
    slots = _accumulators(build_rule(train_config, [ParameterSetting("", one, 0.0, 1.0)]), [("", one)])
    _check_entries([f"{name}{slot}" for slot in slots for name in names], state)


def _check_entries(own, state):
    missing = [key for key in own if key not in state]
    unknown = [key for key in state if key not in {*own}]
    if missing or unknown:
        raise UserError(
            "the optimizer's state does not fit: "
            + "; ".join(
                f"{len(keys)} entries {what}, first {keys[0]!r}"
                for keys, what in ((missing, "are missing"), (unknown, "are unknown"))
                if keys
            )
            + " (was it saved with another optimizer, model or TRAIN.FREEZE?)"
        )


def _accumulators(optimizer, named_params):
    """Return {"<structured name>/<slot>": the optimizer's own tensor}, after making sure that they exist.

    Paddle creates them at the first step only, and per parameter that has a gradient; a state that is saved or loaded
    before would otherwise be incomplete.
    """
    trainable = [(name, tensor) for name, tensor in named_params if not tensor.stop_gradient]
    with paddle.no_grad():
        block = paddle.static.default_main_program().global_block()
        optimizer._create_accumulators(block, [tensor for _, tensor in trainable])
    names = {tensor.name: name for name, tensor in trainable}
    return {
        f"{names[tensor_name]}/{slot}": accumulator
        for slot, accumulators in optimizer._accumulators.items()
        for tensor_name, accumulator in accumulators.items()
    }


def _as_array(value):
    return value.numpy() if isinstance(value, paddle.Tensor) else np.asarray(value)
