"""The private names of Paddle that this package stands on, in one place; tests name the one that a release removes.

Checked with Paddle 3.3.1. An operator table is a module whose attributes are built-in functions, one per operator.
"""

import ctypes
import functools
import sys
import types

import paddle
from paddle.base import core
from paddle.base.framework import EagerParamBase
from paddle.nn.layer.layers import HookRemoveHelper

OPERATORS = paddle._C_ops
LEGACY_OPERATORS = paddle._legacy_C_ops
Tensor = core.eager.Tensor
DataType = core.DataType
VarType = core.VarDesc.VarType

# The operators themselves: a dispatch replaces every module's references to them but this package's.
add_ = OPERATORS.add_
as_strided = OPERATORS.as_strided
assign_out_ = OPERATORS.assign_out_
cast = OPERATORS.cast
empty = OPERATORS.empty
full = OPERATORS.full
randint = OPERATORS.randint
reshape = OPERATORS.reshape
scale = OPERATORS.scale
scale_ = OPERATORS.scale_  # type: ignore[attr-defined]  # Paddle's annotations leave this operator out
squeeze = OPERATORS.squeeze
transpose = OPERATORS.transpose
unsqueeze = OPERATORS.unsqueeze
view_dtype = OPERATORS.view_dtype

# The number of writes to a tensor; the property `inplace_version` calls it through a Python function.
inplace_version = Tensor._inplace_version  # type: ignore[attr-defined]  # not annotated

# What `register_hook` ends in, past those who watch it.
register_hook = Tensor._register_grad_hook  # type: ignore[attr-defined]  # not annotated

# scaled_dot_product_attention out of single operators, what it is on a CPU
ATTENTION_MODULE = sys.modules["paddle.nn.functional.flash_attention"]
ATTENTION = "_math_attention"

# what calls a function again in the backward pass
RECOMPUTE_MODULE = sys.modules["paddle.distributed.fleet.recompute.recompute"]
RECOMPUTE = "recompute"

# the generators of random numbers that processes share, or do not
tracked_generators = sys.modules["paddle.distributed.fleet.layers.mpu.random"].get_rng_state_tracker

# The methods by which Python reads or changes the numbers of a tensor, or sees its gradient, past the operators: all
# ways end in these.
PAST_OPERATORS = ("numpy", "_getitem_from_offset", "get_tensor", "set_tensor", "copy_", "_register_grad_hook",
                  "_register_backward_hook")  # fmt: skip

# The methods by which a tensor gets memory past the operators.
MAKERS = ("__init__", "_copy_to", "clone", "contiguous")

# The method by which adaptive pooling takes another Python object for the tensor that it was given.
AS_ANOTHER_OBJECT = "_use_gpudnn"

# Raw copies of the operator table. Nobody calls them in dynamic mode, and patching them would double the cost.
RAW_TABLES = ("paddle._C_ops", "paddle._legacy_C_ops", "paddle._pir_ops", "paddle.base.libpaddle")


def public_builtins(table):
    """Return {operator name: built-in function} of an operator table."""
    kind = type(cast)
    return {name: value for name, value in vars(table).items() if type(value) is kind and not name.startswith("_")}


def has_memory(tensor):
    """Return whether a tensor has memory, though it be of no size, as what an operator was not asked for has not."""
    return tensor._is_initialized() or tensor._is_dense_tensor_hold_allocation()


def hooks(layer):
    """Return the functions that calling the layer runs before and after its forward."""
    return [*layer._forward_pre_hooks.values(), *layer._forward_post_hooks.values()]


def has_hooks(layer):
    """Return whether calling the layer runs more than its forward."""
    return bool(layer._forward_pre_hooks or layer._forward_post_hooks)


def hooks_ever():
    """Return how many hooks were ever put on layers."""
    return HookRemoveHelper.next_hook_id


def parameters_and_buffers(layers):
    """Return (the parameters, the buffers) of layers, each once, in the order of `Layer.parameters()`."""
    found = [list({id(one): one for layer in layers for one in vars(layer)[table].values() if one is not None}.values())
             for table in ("_parameters", "_buffers")]  # fmt: skip
    return found[0], found[1]


def tables_of_buffers(layers):
    """Return the dictionaries that hold the buffers of layers."""
    return [layer._buffers for layer in layers]


def attributes(layer):
    """Return a layer's attributes but for those that Paddle keeps beside of what calling the layer depends on."""
    return [value for name, value in vars(layer).items() if name not in _BOOKKEEPING]


# `_built` is set by the first call of a layer with hooks.
_BOOKKEEPING = frozenset((
    "_built", "_cast_to_low_precision", "_customized_attrs", "_forward_post_hooks_always_called",
    "_forward_post_hooks_with_kwargs_flag", "_forward_pre_hooks_with_kwargs_flag", "_full_name", "_helper",
    "_init_in_dynamic_mode", "_loaddict_holder", "_non_persistable_buffer_names_set", "_op_recorder",
    "_original_funcs", "_state_dict_hooks",
))  # fmt: skip


@functools.cache
def _references_too_many():
    """Return how many references Paddle counts that nobody has, each time `grad_fn` is read: 1 in 3.3.1."""
    leaf = empty([1], paddle.float32, paddle.CPUPlace())
    leaf.stop_gradient = False
    with paddle.enable_grad():  # and by operators that no recorder notes
        operator = scale(leaf, 2.0, 0.0, True).grad_fn
    return sys.getrefcount(operator) - 2  # this name's and the argument's


def backward_edges(tensor):
    """Return [(operator, what it is called, what its gradients go to)] of the operators that lead to a tensor; what
    stands for an operator is its address. Leaves are left out."""
    operator = tensor.grad_fn
    if operator is None:
        return []
    for _ in range(_references_too_many()):  # or else neither it nor what leads to it is ever freed
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(operator))
    waiting, found = [operator], {}
    while waiting:
        node = waiting.pop()
        if node.node_ptr() not in found:
            following = [one for one in node.next_functions if one is not None and one.next_functions]
            found[node.node_ptr()] = node.name(), [one.node_ptr() for one in following]
            waiting += following
    return [(node, *rest) for node, rest in found.items()]


def is_plain(layer, kind):
    """Return whether calling the layer does what the class `kind` does, and nothing else."""
    return type(layer) is kind and not has_hooks(layer) and "forward" not in vars(layer)


def data_format(layer):
    """Return the order of axes of a convolution or normalisation layer, such as "NCHW"."""
    return layer._data_format


def convolution_arguments(conv):
    """Return (strides, padding, padding algorithm, dilations, groups, data format) of a convolution layer, or None for
    one that pads with other numbers than zero."""
    if conv._padding_mode != "zeros":
        return None
    return (conv._stride, conv._updated_padding, conv._padding_algorithm, conv._dilation, conv._groups,
            conv._data_format)  # fmt: skip


def norm_arguments(norm):
    """Return (mean, variance, epsilon, momentum, data format, are the statistics given) of a BatchNorm layer."""
    given = not norm.training if norm._use_global_stats is None else norm._use_global_stats
    return norm._mean, norm._variance, norm._epsilon, norm._momentum, norm._data_format, given


def norm_epsilon(norm):
    """Return the epsilon of a normalisation layer of any kind."""
    return norm._epsilon


def optimizer_options(optimizer):
    """Return (gradient clip, whether all tensors are updated by one operator, parameters or groups) of an optimizer."""
    return optimizer._grad_clip, getattr(optimizer, "_use_multi_tensor", False), optimizer._parameter_list


def bump_version(tensor):
    """Tell autograd that a tensor was written, so that a backward pass which needs the old numbers is refused."""
    tensor._bump_inplace_version()


def separate(tensor):
    """Return another tensor of the same memory, whose writes are not the first one's."""
    other = empty([0], tensor.dtype, paddle.CPUPlace())
    other.get_tensor()._share_data_with(tensor.get_tensor())
    return other


def is_parameter(tensor):
    """Return whether the tensor is a parameter of a layer."""
    return isinstance(tensor, EagerParamBase)


def calling_layer():
    """Return the innermost layer whose call is running in this thread, or None."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not _LAYER_CALL:
        frame = frame.f_back
    return None if frame is None else frame.f_locals["self"]


_LAYER_CALL = paddle.nn.Layer.__call__.__code__


def _spellings(**vartypes):
    table = {}
    for name, vartype in vartypes.items():
        dtype = getattr(paddle, name)
        table.update(dict.fromkeys((dtype, vartype, name, f"paddle.{name}"), dtype))
    return table


# Functions of a dtype argument (DataType, VarType, "float16"): the half DataType that it names, or float32 or float64;
# None for another.
names_half = _spellings(float16=VarType.FP16, bfloat16=VarType.BF16).get
names_wide = _spellings(float32=VarType.FP32, float64=VarType.FP64).get
