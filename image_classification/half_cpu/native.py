"""Operators that Paddle's half CPU kernels compute exactly, forward and backward: they move, make or convert data.

Everything else goes through float32, also where Paddle has half kernels: some accumulate in half precision. Not here:
expand, tile, gather, index_select, because their gradients are sums.
"""

from .arguments import BFLOAT16, FLOATING
from .op_names import CAST, words

EXACT = words(
    """
    cast assign full full_like full_with_tensor empty empty_like zeros ones zeros_like ones_like
    reshape transpose squeeze unsqueeze flatten slice strided_slice diagonal split split_with_num unbind stack concat
    view_shape view_slice view_dtype contiguous shape shape64 numel is_empty
    cast_ assign_ assign_out_ assign_value_ full_ fill_ reshape_ squeeze_ unsqueeze_ flatten_ transpose_
    set_ share_data_ share_data copy_to memcpy memcpy_d2h memcpy_h2d coalesce_tensor coalesce_tensor_
    """
)

# Their gradient has no bfloat16 kernel.
NOT_BFLOAT16 = words("concat")


def is_exact(name, tensors):
    """Return True if Paddle's own half kernel moves these tensors exactly; tensors of mixed dtypes are promoted."""
    if name not in EXACT or name == CAST:
        return False
    common = None
    for tensor in tensors:
        dtype = tensor.dtype
        if dtype is common:
            continue
        if dtype in FLOATING:
            if common is not None:
                return False
            common = dtype
    return common is not BFLOAT16 or name not in NOT_BFLOAT16
