"""Every name that `amp` uses and Paddle does not document; a test fails when one of them vanishes."""

import paddle


def squared_l2_norm(tensor):
    """Return the sum of squares of a float32 tensor, shape [] or [1]: the kernel of paddle.nn.ClipGradByGlobalNorm."""
    return paddle._C_ops.squared_l2_norm(tensor)


def optimizer_parameters(optimizer):
    """Return the tensors that an optimizer updates, the parameter groups flattened."""
    parameters = []
    for entry in optimizer._parameter_list:
        parameters.extend(entry["params"] if isinstance(entry, dict) else [entry])
    return parameters
