"""To which dtype an operator's inputs are cast: the rules of Paddle's level O1 and of Apex's O1.

A policy is what `half_cpu.dispatch` asks before each operator: `cast(op_name, tensors)` returns the dtype's name, or
None to leave the inputs as they are (what else it may return: docs/half_cpu.md). Tensors of other dtypes than float16,
bfloat16 and float32 are never cast.
"""

import paddle

from .lists import APEX_BANNED, APEX_PROMOTE, FIRST_INPUT_DECIDES

FLOAT16, BFLOAT16, FLOAT32 = paddle.float16, paddle.bfloat16, paddle.float32


class ListPolicy:
    """Paddle's level O1: white operators in half, black ones in float32, others in half unless an input is float32."""

    def __init__(self, dtype, white, black):
        self.dtype = dtype
        self.white = white
        self.black = black

    def cast(self, op_name, tensors):
        if op_name in self.white:
            return self.dtype
        if op_name in self.black:
            return "float32"
        if op_name in FIRST_INPUT_DECIDES:
            return "float32" if tensors[0].dtype is FLOAT32 else None
        return widest(tensors)


class ApexPolicy:
    """Apex's O1: listed operators in half or float32, arithmetic in the widest dtype, any other as its inputs come."""

    def __init__(self, dtype, half, float32):
        self.dtype = dtype
        self.half = half
        self.float32 = float32

    def cast(self, op_name, tensors):
        if op_name in self.half:
            return self.dtype
        if op_name in self.float32:
            return "float32"
        if op_name in APEX_PROMOTE:
            return widest(tensors)
        if op_name[-1] == "_" and op_name[:-1] in self.float32 and tensors[0].dtype in (FLOAT16, BFLOAT16):
            raise NotImplementedError(
                f"{op_name} writes a float32 result into a half tensor; call {op_name[:-1]} instead and keep its result"
            )
        if op_name in APEX_BANNED and any(tensor.dtype in (FLOAT16, BFLOAT16) for tensor in tensors):
            raise NotImplementedError(
                "binary_cross_entropy of half precision values is not safe: it takes the logarithm of a rounded "
                "probability. Use binary_cross_entropy_with_logits on the values before the sigmoid, register the "
                "function that computes it with float_function, or name bce_loss in black_list"
            )
        return None


def widest(tensors):
    """Return "float32" when the tensors are of different floating dtypes, one of them float32; otherwise None."""
    has_float32 = has_half = False
    for tensor in tensors:
        dtype = tensor.dtype
        if dtype is FLOAT32:
            has_float32 = True
        elif dtype is FLOAT16 or dtype is BFLOAT16:
            has_half = True
    return "float32" if has_float32 and has_half else None
