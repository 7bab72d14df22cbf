"""Operator names: every way to call an operator is reported under one name, that of `paddle._C_ops`.

Paddle computes `tensor + tensor` with the operator add, and `tensor + 2.0` with the operator scale; both are Python
methods of Tensor, so the name depends on the other operand.
"""

import math


def words(text):
    """Return the set of operator names in `text`."""
    return frozenset(text.split())


# method of Tensor -> (operator when the other operand is a tensor, operator when it is a Python number)
ARITHMETIC_METHODS = {
    "__add__": ("add", "scale"),
    "__radd__": ("add", "scale"),
    "__sub__": ("subtract", "scale"),
    "__rsub__": ("subtract", "scale"),
    "__mul__": ("multiply", "scale"),
    "__rmul__": ("multiply", "scale"),
    "__div__": ("divide", "scale"),
    "__truediv__": ("divide", "scale"),
    "__rdiv__": ("divide", "divide"),
    "__rtruediv__": ("divide", "divide"),
    "__pow__": ("elementwise_pow", "pow"),
    "__rpow__": ("elementwise_pow", "elementwise_pow"),
    "__mod__": ("remainder", "remainder"),
    "__rmod__": ("remainder", "remainder"),
    "__floordiv__": ("floor_divide", "floor_divide"),
    "__rfloordiv__": ("floor_divide", "floor_divide"),
    "__matmul__": ("matmul", "matmul"),
    "__rmatmul__": ("matmul", "matmul"),
    "__eq__": ("equal", "equal"),
    "__ne__": ("not_equal", "not_equal"),
    "__lt__": ("less_than", "less_than"),
    "__le__": ("less_equal", "less_equal"),
    "__gt__": ("greater_than", "greater_than"),
    "__ge__": ("greater_equal", "greater_equal"),
}


def _reciprocal(number):
    """Return 1 / number, infinite for zero."""
    return 1.0 / number if number else math.copysign(math.inf, number)


# method of Tensor -> arguments of the operator that computes it with a Python number: factor and addend of scale, which
# is added afterwards, or the exponent of pow
NUMBER_ARGUMENTS = {
    "__add__": lambda number: (1.0, number, True),
    "__radd__": lambda number: (1.0, number, True),
    "__sub__": lambda number: (1.0, -number, True),
    "__rsub__": lambda number: (-1.0, number, True),
    "__mul__": lambda number: (number, 0.0, True),
    "__rmul__": lambda number: (number, 0.0, True),
    "__div__": lambda number: (_reciprocal(number), 0.0, True),
    "__truediv__": lambda number: (_reciprocal(number), 0.0, True),
    "__pow__": lambda number: (number,),
}

CUSTOM = "_run_custom_op"  # calls an operator compiled by a user: (name, *inputs)

GET_ITEM, SET_ITEM = "_getitem_dygraph", "_setitem_dygraph"
INDEX_METHODS = (GET_ITEM, SET_ITEM)

# The first input of these decides the dtype of the output; parameters and statistics may be float32 beside half images.
NORMS = words("batch_norm batch_norm_ sync_batch_norm_ layer_norm group_norm instance_norm rms_norm")
BATCH_NORMS = words("batch_norm batch_norm_ sync_batch_norm_")

# Their results are float32 whatever the inputs are.
FLOAT32_RESULTS = words("accuracy auc")

# Paddle's gradients of these end the process, or in an error, where one of their inputs asks for none.
ALL_GRADIENTS = words(
    """
    addmm broadcast_tensors cholesky_solve cross deformable_conv grid_sample hsigmoid_loss meshgrid multi_dot prelu rnn
    send_ue_recv send_uv solve triangular_solve
    """
)

# Operators that only make or convert tensors: a policy has no say in them.
WITHOUT_POLICY = words(
    """
    cast assign full full_like full_with_tensor empty empty_like zeros ones zeros_like ones_like eye arange linspace
    logspace uniform gaussian randint randperm truncated_gaussian_random one_hot shape numel share_data copy_to
    tril_indices triu_indices coalesce_tensor _getitem_dygraph _setitem_dygraph
    _run_custom_op run_program
    """
)

CAST = "cast"

# Its gradient may be sparse.
EMBEDDING = "embedding"

# Paddle returns, and keeps, what its gradient reads beside the result.
EINSUM = "einsum"

# A whole program compiled by paddle.jit.to_static: its operators cannot be reached one by one.
PROGRAM = "run_program"

# The operators of the legacy table that Paddle's layers and metrics still call -> their present name.
LEGACY = {
    "accuracy": "accuracy",
    "elementwise_add": "add",
    "conv2d": "conv2d",
    "conv3d": "conv3d",
    "depthwise_conv2d": "depthwise_conv2d",
    "conv2d_transpose": "conv2d_transpose",
    "hard_sigmoid": "hardsigmoid",
    "hard_swish": "hardswish",
    PROGRAM: PROGRAM,
    **{name: name for name in words("elu gelu leaky_relu mish relu relu6 sigmoid silu softmax softplus swish tanh")},
}


_WITHOUT_MEANING = {"use_cudnn": False, "use_mkldnn": False, "axis": -1}


def present_arguments(args):
    """Return (args, kwargs) of the present operator for a call of a legacy one: tensors, then names and values."""
    first = next((index for index, value in enumerate(args) if isinstance(value, str)), len(args))
    pairs = zip(args[first::2], args[first + 1 :: 2], strict=True)
    absent = object()
    return args[:first], {name: value for name, value in pairs if _WITHOUT_MEANING.get(name, absent) != value}


def is_inplace(op_name):
    """Return True for operators that write into one of their inputs, which Paddle spells with a final underscore."""
    return op_name.endswith("_") and op_name not in NORMS


def sees_policy(op_name):
    """Return True for operators whose inputs a policy may cast; what is written in place keeps its dtype."""
    return op_name not in WITHOUT_POLICY and not is_inplace(op_name)


def policy_name(op_name):
    """Return the name under which a policy knows the operator: Paddle's lists spell no final underscore."""
    return op_name.rstrip("_")
