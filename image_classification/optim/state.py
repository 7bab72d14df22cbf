"""The optimizer's tensors under the names of the model's parameters.

Paddle's own ``state_dict`` uses names that it generates while the program runs; they differ between two runs as soon as
one of them builds another layer first. The names here are ``<parameter>/<slot>``, for example
``blocks.0.attn.qkv.weight/moment1``. This is the one module that touches the private parts of Paddle's optimizers
(``_accumulators``, ``_create_accumulators``).
"""

import numpy as np
import paddle

from ..runtime import UserError


def optimizer_state(optimizer, named_params):
    """Return {"<structured name>/<slot>": tensor}, complete also before the first step.

    Holds every accumulator: moments, velocities, powers of the betas, step counters. The tensors are the optimizer's
    own: copy what must survive the next step. The learning rate is not in it: the schedule gives it anew.
    """
    names = _names_by_tensor(optimizer, named_params)
    state = {}
    for slot, accumulators in optimizer._accumulators.items():
        for tensor_name, accumulator in accumulators.items():
            state[f"{names[tensor_name]}/{slot}"] = accumulator
    return state


def load_optimizer_state(optimizer, named_params, state):
    """Copy ``state``, as :func:`optimizer_state` returned it, into the optimizer; the next step continues bit for bit.

    Values may be Paddle tensors or NumPy arrays. Nothing is changed when an entry does not fit.

    Raises:
        UserError: an entry is missing, unknown, or has another shape or dtype.
    """
    own = optimizer_state(optimizer, named_params)
    missing = [key for key in own if key not in state]
    unknown = [key for key in state if key not in own]
    if missing or unknown:
        raise UserError(
            "the optimizer's state does not fit: "
            + "; ".join(
                f"{len(keys)} entries {what}, first {keys[0]!r}"
                for keys, what in ((missing, "are missing"), (unknown, "are unknown"))
                if keys
            )
            + " (was it saved with another optimizer or model?)"
        )
    values = {key: _as_array(value) for key, value in state.items()}
    for key, tensor in own.items():
        value, expected = values[key], _as_array(tensor)
        if value.shape != expected.shape or value.dtype != expected.dtype:
            raise UserError(
                f"the optimizer's state does not fit: {key!r} is {value.dtype} {list(value.shape)}, "
                f"expected {expected.dtype} {list(expected.shape)}"
            )
    for key, tensor in own.items():
        tensor.set_value(values[key])


def _names_by_tensor(optimizer, named_params):
    """Return {generated name: structured name} after making sure that the accumulators exist.

    Paddle creates them at the first step only, and per parameter that has a gradient; a state that is saved or loaded
    before would otherwise be incomplete.
    """
    trainable = [(name, tensor) for name, tensor in named_params if not tensor.stop_gradient]
    with paddle.no_grad():
        block = paddle.static.default_main_program().global_block()
        optimizer._create_accumulators(block, [tensor for _, tensor in trainable])
    return {tensor.name: name for name, tensor in trainable}


def _as_array(value):
    return value.numpy() if isinstance(value, paddle.Tensor) else np.asarray(value)
