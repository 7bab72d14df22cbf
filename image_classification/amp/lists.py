"""Which operators run in half precision and which in float32: Paddle's lists and Apex's, in `paddle._C_ops` names."""

from . import private


def _words(text):
    return frozenset(text.split())


# Paddle's lists use the operator names of Paddle 1; name in `paddle._C_ops` -> name in the lists.
LISTED_AS = {
    "matmul": "matmul_v2",
    "matmul_with_flatten": "mul",
    # One call for matmul and bias; on a GPU Paddle 3.3 computes it with linear_v2, which is on the white list. Older
    # ones and other devices compose it: a half product, to which the float32 bias is added in float32.
    "linear": "linear_v2",
    "sum": "reduce_sum",
    "mean": "reduce_mean",
    "mean_all": "mean",
    "prod": "reduce_prod",
    "cross_entropy_with_softmax": "softmax_with_cross_entropy",
    "embedding": "lookup_table_v2",
    "linear_interp": "linear_interp_v2",
    "nearest_interp": "nearest_interp_v2",
    "bilinear_interp": "bilinear_interp_v2",
    "bicubic_interp": "bicubic_interp_v2",
    "trilinear_interp": "trilinear_interp_v2",
    # Not in Paddle's lists, but auto_cast knows these operators by other names too.
    "grid_sample": "grid_sampler",
    "hsigmoid_loss": "hierarchical_sigmoid",
}

# What Paddle's lists forget. Without these a convolution with float32 weights that is not a plain conv2d runs in
# float32, and a norm or a loss of float16 values overflows or flushes to zero.
MISSING_WHITE = _words(
    """
    conv3d conv2d_transpose conv3d_transpose depthwise_conv2d depthwise_conv2d_transpose bmm mv addmm baddbmm
    """
)
MISSING_BLACK = _words(
    """
    p_norm norm bce_loss kldiv_loss hsigmoid_loss warpctc elementwise_pow log1p logsumexp logcumsumexp grid_sample
    """
)

# Operators of which only the first input decides and is cast; their weights and statistics stay as they are.
FIRST_INPUT_DECIDES = _words("batch_norm sync_batch_norm layer_norm")

# Apex O1. Softmin, std, normalize and other functions that Paddle composes of operators are in APEX_FLOAT_FUNCTIONS.
APEX_HALF = _words(
    """
    conv2d conv3d conv2d_transpose conv3d_transpose depthwise_conv2d depthwise_conv2d_transpose linear linear_v2
    fused_gemm_epilogue matmul matmul_with_flatten bmm mv addmm baddbmm einsum prelu rnn flash_attn
    """
)
APEX_FLOAT = _words(
    """
    linear_interp nearest_interp bilinear_interp bicubic_interp trilinear_interp grid_sample
    softplus log_softmax softmax gelu layer_norm group_norm
    cross_entropy_with_softmax c_softmax_with_cross_entropy margin_cross_entropy hinge_loss kldiv_loss nll_loss
    sigmoid_cross_entropy_with_logits huber_loss warpctc
    acos asin cosh erfinv exp expm1 log log10 log2 reciprocal rsqrt sinh tan pow elementwise_pow
    cumprod cumsum dist p_norm frobenius_norm norm prod sum renorm logsumexp
    """
)
APEX_PROMOTE = _words(
    """
    add subtract multiply divide remainder floor_divide equal not_equal less_than less_equal greater_than greater_equal
    atan2 cross bilinear dot concat stack add_n
    """
)
APEX_BANNED = _words("bce_loss")

# Functions of Python that compute in several operators; Apex runs each as a whole in float32.
APEX_FLOAT_FUNCTIONS = {
    "paddle": _words("std var"),
    "paddle.nn.functional": _words(
        """
        normalize cosine_similarity local_response_norm l1_loss mse_loss square_error_cost cosine_embedding_loss
        hinge_embedding_loss margin_ranking_loss multi_label_soft_margin_loss multi_margin_loss poisson_nll_loss
        soft_margin_loss triplet_margin_loss triplet_margin_with_distance_loss gaussian_nll_loss
        """
    ),
}


def paddle_lists(dtype, white, black, complete):
    """Return (white, black) for `dtype` in `paddle._C_ops` names, read from the installed Paddle.

    white, black: operators that the user adds, in either spelling. complete: add what Paddle's lists forget.
    """
    listed_white, listed_black = private.amp_lists(dtype)
    operators = private.operator_names()
    is_white = {name for name in operators if LISTED_AS.get(name, name) in listed_white}
    is_black = {name for name in operators if LISTED_AS.get(name, name) in listed_black}
    if complete:
        is_white |= MISSING_WHITE
        is_black |= MISSING_BLACK
    return _with_user_lists(is_white, is_black, white, black)


def apex_lists(white, black):
    """Return (half, float) operators of Apex O1 in `paddle._C_ops` names with the user's additions."""
    return _with_user_lists(APEX_HALF, APEX_FLOAT, white, black)


def operator_name(name):
    """Return the `paddle._C_ops` name of an operator given in either spelling, None when there is no such operator."""
    if name in private.operator_names():
        return name
    return next((operator for operator, listed in LISTED_AS.items() if listed == name), None)


def all_names():
    """Return every name that `operator_name` knows."""
    return private.operator_names() | set(LISTED_AS.values())


def listed_names(operators):
    """Return the names by which `paddle.amp.auto_cast` knows the operators."""
    return {LISTED_AS.get(name, name) for name in operators}


def _with_user_lists(is_white, is_black, white, black):
    white, black = {operator_name(name) for name in white}, {operator_name(name) for name in black}
    return frozenset((is_white - black) | white), frozenset((is_black - white) | black)
