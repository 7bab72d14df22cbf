"""Operator names: every way to call an operator is reported under one name, that of `paddle._C_ops`.

Paddle computes `tensor + tensor` with the operator add, and `tensor + 2.0` with the operator scale; both are Python
methods of Tensor, so the name depends on the other operand.
"""


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

# `tensor[index]` and `tensor[index] = value`
GET_ITEM, SET_ITEM = "_getitem_dygraph", "_setitem_dygraph"
INDEX_METHODS = {GET_ITEM: "getitem", SET_ITEM: "setitem"}


def is_inplace(op_name):
    """Return True for operators that write into one of their inputs, which Paddle spells with a final underscore."""
    return op_name.endswith("_")


# Operators that only make or convert tensors: a policy has no say in them.
WITHOUT_POLICY = words(
    """
    cast assign full full_like full_with_tensor empty empty_like zeros ones zeros_like ones_like eye arange linspace
    logspace uniform gaussian randint randperm truncated_gaussian_random one_hot shape numel share_data copy_to
    tril_indices triu_indices coalesce_tensor
    """
)


def sees_policy(op_name):
    """Return True for operators whose inputs a policy may cast; what is written in place keeps its dtype."""
    return op_name not in WITHOUT_POLICY and not is_inplace(op_name)
