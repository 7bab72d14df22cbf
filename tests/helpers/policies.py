"""A policy of casts that remembers what it was asked."""

import paddle


class Policy:
    """Ask for one dtype, or one per operator; remember what was seen."""

    def __init__(self, dtype=None, **by_operator):
        self.dtype = dtype
        self.by_operator = by_operator
        self.seen = []

    def cast(self, op_name, tensors):
        assert all(isinstance(tensor, paddle.Tensor) for tensor in tensors)
        self.seen.append(op_name)
        return self.by_operator.get(op_name, self.dtype)
