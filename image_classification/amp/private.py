"""Every name that `amp` uses and Paddle does not document; a test fails when one of them vanishes."""

import functools

import paddle
from paddle.amp import amp_lists as _amp_lists
from paddle.base.framework import EagerParamBase


def squared_l2_norm(tensor):
    """Return the sum of squares of a float32 tensor, shape [] or [1]: the kernel of paddle.nn.ClipGradByGlobalNorm."""
    return paddle._C_ops.squared_l2_norm(tensor)


def optimizer_parameters(optimizer):
    """Return the tensors that an optimizer updates, the parameter groups flattened."""
    parameters: list[paddle.Tensor] = []
    for entry in optimizer._param_groups:
        parameters.extend(entry["params"] if isinstance(entry, dict) else [entry])
    return parameters


def add_param_group(optimizer, group):
    """Add a parameter group to an optimizer that was built with groups.

    Raises:
        ValueError: the optimizer was built with a plain list of parameters.
    """
    if not isinstance(optimizer._param_groups[0], dict):
        raise ValueError("the optimizer was built with a plain list; build it with groups, [{'params': ...}]")
    # Momentum and others replace the defaults that the constructor gave the first groups.
    defaults = {"weight_decay": optimizer.regularization, "grad_clip": optimizer._grad_clip, **optimizer._default_dict}
    optimizer._add_param_group({**defaults, **group})


def amp_lists(dtype):
    """Return Paddle's (white, black) lists of level O1, in the operator names of Paddle 1."""
    return _amp_lists.white_list()[dtype]["O1"], _amp_lists.black_list()[dtype]["O1"]


@functools.cache
def operator_names():
    """Return the names of all operators."""
    return frozenset(name for name in dir(paddle._C_ops) if not name.startswith("_"))


def parameter_like(param, tensor):
    """Return a parameter with the values and dtype of `tensor` and the name and attributes of `param`."""
    twin = EagerParamBase.from_tensor(tensor, name=param.name, trainable=not param.stop_gradient)
    twin.__dict__.update(param.__dict__)
    return twin


def cast_in_place(tensor, dtype):
    """Change the dtype of a parameter or buffer, rounding its values; the tensor object stays the same.

    This is what `paddle.nn.Layer.to` does to each tensor of a layer.
    """
    rounded = tensor.detach().astype(dtype)  # a name, because get_tensor() does not keep its tensor alive
    tensor.value().get_tensor()._share_data_with(rounded.value().get_tensor())
