"""One call of each operator that the half precision tests compare with float32 arithmetic and one rounding.

A case is (operator names that the call dispatches, function of the inputs, inputs). An input is a shape for normally
distributed values, or an object made by `positive`, `unit`, `ints`, `bools` or `fixed`. The function makes exactly one
rounding call; data movement may surround it.
"""

from dataclasses import dataclass

import numpy as np
import paddle
import paddle.nn.functional as F

C = paddle._C_ops


def words(text):
    return text.split()


@dataclass(frozen=True)
class Values:
    """How to draw an input; `floating` inputs become half tensors that require a gradient."""

    draw: object
    floating: bool = True
    differentiable: bool = True


def normal(*shape):
    return Values(lambda rng: rng.standard_normal(shape).astype("float32"))


def positive(*shape):
    return Values(lambda rng: rng.uniform(0.5, 4.0, shape).astype("float32"))


def unit(*shape):
    return Values(lambda rng: rng.uniform(0.05, 0.95, shape).astype("float32"))


def target(*shape):
    """Soft labels and other inputs that get no gradient."""
    return Values(lambda rng: rng.dirichlet(np.ones(shape[-1]), shape[:-1]).astype("float32"), differentiable=False)


def constant(*shape):
    return Values(lambda rng: rng.standard_normal(shape).astype("float32"), differentiable=False)


def ints(high, *shape):
    return Values(lambda rng: rng.integers(0, high, shape), floating=False)


def bools(*shape):
    return Values(lambda rng: rng.random(shape) < 0.5, floating=False)


@dataclass(frozen=True)
class Case:
    operator: str
    function: object
    inputs: tuple
    label: str = ""

    @property
    def id(self):
        return self.operator + (f"-{self.label}" if self.label else "")


CASES = []


def case(operator, function, *inputs, label=""):
    values = tuple(normal(*spec) if isinstance(spec, tuple) else spec for spec in inputs)
    CASES.append(Case(operator, function, values, label))


# Elementwise, two tensors
for _name in ("add", "subtract", "multiply", "divide", "maximum", "minimum", "fmax", "fmin"):
    case(_name, getattr(paddle, _name), (2, 3, 4), positive(3, 4))
for _name in ("atan2", "copysign", "heaviside"):
    case(_name, getattr(paddle, _name), (3, 4), positive(3, 4))
case("add", lambda x, y: x + y, (3, 4), (3, 4), label="operator")
case("add", lambda x, y: x + y, (3, 4), (), label="0d")
case("subtract", lambda x, y: x - y, (3, 4), (4,), label="operator")
case("multiply", lambda x, y: x * y, (3, 4), (3, 1), label="operator")
case("divide", lambda x, y: x / y, (3, 4), positive(3, 4), label="operator")
case("elementwise_pow", lambda x, y: x**y, positive(3, 4), (3, 4))
case("remainder", lambda x, y: x % y, positive(3, 4), positive(3, 4))
case("floor_divide", lambda x, y: x // y, positive(3, 4), positive(3, 4))
case("lerp", paddle.lerp, (3, 4), (3, 4), unit(3, 4))
case("add_n", lambda x, y: paddle.add_n([x, y]), (3, 4), (3, 4))

# Elementwise, tensor and Python number
case("scale", lambda x: x + 0.1, (3, 4), label="add")
case("scale", lambda x: 3 + x, (3, 4), label="radd")
case("scale", lambda x: x - 0.1, (3, 4), label="sub")
case("scale", lambda x: 0.1 - x, (3, 4), label="rsub")
case("scale", lambda x: x * 0.1, (3, 4), label="mul")
case("scale", lambda x: 3 * x, (3, 4), label="rmul")
case("scale", lambda x: x / 3, (3, 4), label="div")
case("scale", lambda x: -x, (3, 4), label="neg")
case("scale", lambda x: paddle.scale(x, 0.3, 0.7), (3, 4), label="function")
case("divide", lambda x: 0.1 / x, positive(3, 4), label="rdiv")
case("pow", lambda x: x**2, (3, 4), label="square")
case("pow", lambda x: paddle.pow(x, 0.7), positive(3, 4), label="function")
case("elementwise_pow", lambda x: 2.0**x, (3, 4), label="rpow")
case("remainder", lambda x: x % 0.3, positive(3, 4), label="number")
case("clip", lambda x: paddle.clip(x, -0.5, 0.7), (3, 4))

# Elementwise, one tensor
_UNARY = "abs exp expm1 sin cos tan sinh cosh tanh atan asinh erf square sign floor ceil round trunc sigmoid"
for _name in words(_UNARY):
    case(_name, (lambda f: lambda x: f(x))(getattr(paddle, _name, None) or getattr(F, _name)), (3, 4))
for _name in words("log log2 log10 log1p sqrt rsqrt reciprocal digamma lgamma"):
    case(_name, getattr(paddle, _name), positive(3, 4))
for _name in words("acos asin atanh erfinv logit"):
    case(_name, getattr(paddle, _name), unit(3, 4))
for _name, _arguments in (
    ("relu", {}), ("relu6", {}), ("silu", {}), ("swish", {}), ("mish", {}), ("elu", {}), ("celu", {}), ("selu", {}),
    ("softplus", {}), ("softsign", {}), ("hardsigmoid", {}), ("hardswish", {}), ("leaky_relu", {}), ("hardtanh", {}),
    ("hardshrink", {}), ("softshrink", {}), ("thresholded_relu", {}), ("tanhshrink", {}), ("log_sigmoid", {}),
    ("softmax", {}), ("log_softmax", {}),
):  # fmt: skip
    _operator = {"tanhshrink": "tanh_shrink", "log_sigmoid": "logsigmoid"}.get(_name, _name)
    case(_operator, getattr(F, _name), (3, 5))
case("gelu", F.gelu, (3, 4), label="erf")
case("gelu", lambda x: F.gelu(x, approximate=True), (3, 4), label="tanh")
case("prelu", F.prelu, (2, 3, 4), positive(3))
case("maxout", lambda x: F.maxout(x, 2), (2, 4, 3, 3))
case("stanh", paddle.stanh, (3, 4))
case("softmax", lambda x: F.softmax(x, axis=1), (2, 3, 4), label="axis")
case("swiglu", lambda x: F.swiglu(x), (3, 8))

# Matrix products
case("matmul", paddle.matmul, (3, 17), (17, 5))
case("matmul", lambda x, y: x @ y, (2, 3, 7), (2, 7, 5), label="operator")
case("matmul", lambda x, y: paddle.matmul(x, y, transpose_y=True), (2, 3, 7), (2, 5, 7), label="transposed")
case("bmm", paddle.bmm, (2, 3, 7), (2, 7, 5))
case("mv", paddle.mv, (3, 7), (7,))
case("dot", paddle.dot, (7,), (7,))
case("addmm", paddle.addmm, (3, 5), (3, 7), (7, 5))
case("einsum", lambda x, y: paddle.einsum("bhqd,bhkd->bhqk", x, y), (1, 2, 3, 4), (1, 2, 3, 4))
case("linear", lambda x, w: F.linear(x, w), (3, 7), (7, 5), label="no_bias")
case("linear_v2", lambda x, w, b: C.linear_v2(x, w, b, False), (3, 7), (7, 5), (5,))
case("bilinear", F.bilinear, (3, 4), (3, 5), (2, 4, 5))
case("cross", paddle.cross, (2, 3), (2, 3))
case("kron", paddle.kron, (2, 3), (2, 2))

# Convolution and pooling
case("conv2d", F.conv2d, (2, 3, 7, 7), (4, 3, 3, 3), label="no_bias")
case("conv2d", lambda x, w: F.conv2d(x, w, stride=2, padding=1), (2, 3, 7, 7), (4, 3, 3, 3), label="stride")
case("conv2d", lambda x, w: F.conv2d(x, w, groups=2), (2, 4, 5, 5), (4, 2, 3, 3), label="groups")
case("depthwise_conv2d", lambda x, w: F.conv2d(x, w, groups=4, padding=1), (2, 4, 5, 5), (4, 1, 3, 3))
case("conv2d", F.conv1d, (2, 3, 7), (4, 3, 3), label="conv1d")
case("conv3d", F.conv3d, (1, 2, 4, 4, 4), (3, 2, 2, 2, 2))
case("conv2d_transpose", lambda x, w: F.conv2d_transpose(x, w, stride=2), (1, 3, 4, 4), (3, 2, 2, 2))
case("depthwise_conv2d_transpose", lambda x, w: F.conv2d_transpose(x, w, groups=3), (1, 3, 4, 4), (3, 1, 2, 2))
case("conv3d_transpose", F.conv3d_transpose, (1, 2, 3, 3, 3), (2, 2, 2, 2, 2))
case("pool2d", lambda x: F.avg_pool2d(x, 2), (1, 2, 6, 6), label="avg")
case("pool2d", lambda x: F.max_pool2d(x, 3, 2, 1), (1, 2, 6, 6), label="max")
case("pool2d", lambda x: F.adaptive_avg_pool2d(x, 1), (1, 2, 5, 5), label="adaptive")
case("pool2d", lambda x: F.adaptive_avg_pool2d(x, 7), (1, 2, 3, 3), label="upsampling")
case("max_pool2d_with_index", lambda x: F.max_pool2d(x, 2, return_mask=True), (1, 2, 6, 6))
case("max_pool2d_with_index", lambda x: F.adaptive_max_pool2d(x, 2), (1, 2, 6, 6), label="adaptive")
case("pool3d", lambda x: F.avg_pool3d(x, 2), (1, 2, 4, 4, 4))
case("lp_pool2d", lambda x: F.lp_pool2d(x, 2.0, 2), positive(1, 2, 4, 4))
case("unfold", lambda x: F.unfold(x, 2), (1, 2, 4, 4))
case("fold", lambda x: F.fold(x, (4, 4), 2), (1, 8, 9))
for _mode in ("nearest", "bilinear", "bicubic"):
    case(f"{_mode}_interp", (lambda m: lambda x: F.interpolate(x, (5, 7), mode=m))(_mode), (1, 2, 4, 4))
case("linear_interp", lambda x: F.interpolate(x, (7,), mode="linear", data_format="NCW"), (1, 2, 4))
case("trilinear_interp", lambda x: F.interpolate(x, (3, 5, 4), mode="trilinear"), (1, 2, 4, 4, 4))
case("grid_sample", F.grid_sample, (1, 2, 4, 4), (1, 3, 3, 2))
case("affine_grid", lambda t: F.affine_grid(t, [1, 2, 3, 3]), (1, 2, 3))
case("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2), (1, 4, 3, 3))
case("pixel_unshuffle", lambda x: F.pixel_unshuffle(x, 2), (1, 2, 4, 4))
case("channel_shuffle", lambda x: F.channel_shuffle(x, 2), (1, 4, 3, 3))
case("temporal_shift", lambda x: F.temporal_shift(x, 2, 0.25), (4, 4, 2, 2))

# Normalisation; batch_norm has its own tests because it updates running statistics
case("layer_norm", lambda x, w, b: F.layer_norm(x, [5], w, b), (2, 3, 5), (5,), (5,))
case("layer_norm", lambda x: F.layer_norm(x, [5]), (2, 3, 5), label="no_affine")
case("group_norm", lambda x, w, b: F.group_norm(x, 2, 1e-5, w, b), (2, 4, 3, 3), (4,), (4,))
case("instance_norm", lambda x, w, b: F.instance_norm(x, weight=w, bias=b), (2, 4, 3, 3), positive(4), (4,))
case("p_norm", lambda x: paddle.linalg.norm(x, 2, -1), (3, 4))
case("p_norm", lambda x: paddle.linalg.norm(x, 3, -1), (3, 4), label="p3")
case("frobenius_norm", lambda x: paddle.linalg.norm(x, "fro", axis=[0, 1]), (3, 4))
case("squared_l2_norm", lambda x: C.squared_l2_norm(x), (3, 4))
case("clip_by_norm", lambda x: C.clip_by_norm(x, 0.5), constant(3, 4))
case("dist", lambda x, y: paddle.dist(x, y), (3, 4), (3, 4))

# Reductions and scans
for _name in ("sum", "mean", "max", "min", "amax", "amin", "prod"):
    case(_name, (lambda f: lambda x: f(x, axis=1))(getattr(paddle, _name)), (3, 4, 2))
    case(_name, (lambda f: lambda x: f(x))(getattr(paddle, _name)), (3, 4), label="all")
case("logsumexp", lambda x: paddle.logsumexp(x, axis=1), (3, 4))
case("mean_all", lambda x: C.mean_all(x), (3, 4))
case("cumsum", lambda x: paddle.cumsum(x, axis=1), (3, 9))
case("cumprod", lambda x: paddle.cumprod(x, dim=1), (3, 4))
case("logcumsumexp", lambda x: paddle.logcumsumexp(x, axis=1), (3, 4))
case("cummax", lambda x: paddle.cummax(x, axis=1), (3, 4))
case("topk", lambda x: paddle.topk(x, 2), (3, 5))
case("argsort", lambda x: C.argsort(x, -1, False, False), (3, 5))
case("kthvalue", lambda x: paddle.kthvalue(x, 2), (3, 5))
case("mode", lambda x: paddle.mode(x), (3, 5))
case("trace", paddle.trace, (3, 3))
case("reduce_as", lambda x, y: paddle.reduce_as(x, y), (3, 4), constant(4))
case("segment_pool", lambda x: paddle.geometric.segment_sum(x, paddle.to_tensor([0, 0, 1])), (3, 4))

# Losses
case("cross_entropy_with_softmax",
     lambda x, y: F.softmax_with_cross_entropy(x, y), (4, 5), ints(5, 4, 1), label="hard")  # fmt: skip
case("cross_entropy_with_softmax",
     lambda x, y: F.softmax_with_cross_entropy(x, y, soft_label=True), (4, 5), target(4, 5), label="soft")  # fmt: skip
case("cross_entropy_with_softmax",
     lambda x, y: F.cross_entropy(x, y, reduction="none"), (4, 5), ints(5, 4),
     label="api")  # fmt: skip
case("nll_loss", F.nll_loss, (4, 5), ints(5, 4))
case("kldiv_loss", lambda x, y: F.kl_div(x, y, reduction="none"), (4, 5), target(4, 5))
case("bce_loss", lambda x, y: C.bce_loss(x, y), unit(4, 5), target(4, 5))
case("sigmoid_cross_entropy_with_logits",
     lambda x, y: F.binary_cross_entropy_with_logits(x, y, reduction="none"), (4, 5), target(4, 5))  # fmt: skip
case("huber_loss", lambda x, y: F.smooth_l1_loss(x, y, reduction="none"), (4, 5), target(4, 5))
case("log_loss", F.log_loss, unit(4, 1), unit(4, 1))
case("label_smooth", lambda y: F.label_smooth(y), target(4, 5))

# Data movement, exact in any arithmetic, but whose gradients may be sums
case("reshape", lambda x: paddle.reshape(x, [4, 3]), (3, 4))
case("transpose", lambda x: paddle.transpose(x, [1, 0, 2]), (3, 4, 2))
case("transpose", lambda x: x.T, (3, 4), label="T")
case("concat", lambda x, y: paddle.concat([x, y], axis=1), (3, 4), (3, 2))
case("stack", lambda x, y: paddle.stack([x, y], axis=1), (3, 4), (3, 4))
case("split", lambda x: paddle.split(x, [1, 3], axis=1), (3, 4))
case("split_with_num", lambda x: paddle.chunk(x, 2, axis=1), (3, 4))
case("unbind", lambda x: paddle.unbind(x, axis=1), (3, 4))
case("unstack", lambda x: paddle.unstack(x, axis=1), (3, 4))
case("slice", lambda x: C.slice(x, [1], [1], [3], [1], []), (3, 4))
case("strided_slice", lambda x: paddle.strided_slice(x, [1], [0], [4], [2]), (3, 4))
case("squeeze", lambda x: paddle.squeeze(x, 1), (3, 1, 4))
case("unsqueeze", lambda x: paddle.unsqueeze(x, 1), (3, 4))
case("flatten", lambda x: paddle.flatten(x, 1), (3, 4, 2))
case("expand", lambda x: paddle.expand(x, [5, 3, 4]), (3, 4))
case("expand_as", lambda x, y: paddle.expand_as(x, y), (3, 1), constant(3, 7))
case("tile", lambda x: paddle.tile(x, [3, 5]), (3, 4))
case("repeat_interleave", lambda x: paddle.repeat_interleave(x, 7, axis=1), (3, 4))
case("broadcast_tensors", lambda x, y: paddle.broadcast_tensors([x, y]), (3, 1), (1, 9))
case("meshgrid", lambda x, y: paddle.meshgrid(x, y), (3,), (9,))
case("gather", lambda x, i: paddle.gather(x, i), (3, 4), ints(3, 9))
case("gather_nd", lambda x, i: paddle.gather_nd(x, i), (3, 4), ints(3, 9, 1))
case("index_select", lambda x, i: paddle.index_select(x, i, axis=1), (3, 4), ints(4, 9))
case("index_sample", lambda x, i: paddle.index_sample(x, i), (3, 4), ints(4, 3, 9))
case("take_along_axis", lambda x, i: paddle.take_along_axis(x, i, 1), (3, 4), ints(4, 3, 4))
case("put_along_axis", lambda x, y, i: paddle.put_along_axis(x, i, y, 1), (3, 4), (3, 1), ints(4, 3, 1))
case("index_add", lambda x, y, i: paddle.index_add(x, i, 0, y), (3, 4), (5, 4), ints(3, 5))
case("index_put", lambda x, y, i: paddle.index_put(x, (i,), y, True), (3, 4), (5, 4), ints(3, 5))
case("scatter", lambda x, y: paddle.scatter(x, paddle.to_tensor([2, 0]), y), (3, 4), (2, 4))
case("scatter_nd_add", lambda x, y, i: paddle.scatter_nd_add(x, i, y), (3, 4), (9, 4), ints(3, 9, 1))
case("masked_fill", lambda x, m: paddle.masked_fill(x, m, -1e4), (3, 4), bools(3, 4))
case("masked_select", lambda x, m: paddle.masked_select(x, m), (3, 4), bools(3, 4))
case("where", lambda x, y, m: paddle.where(m, x, y), (3, 4), (3, 4), bools(3, 4))
case("embedding", lambda w, i: F.embedding(i, w), (6, 4), ints(6, 3, 9))
case("pad", lambda x: F.pad(x, [1, 2, 0, 1], pad_from_left_axis=True), (3, 4))
case("pad3d", lambda x: F.pad(x, [1, 2, 3, 1], mode="reflect", data_format="NCHW"), (1, 2, 4, 4))
case("roll", lambda x: paddle.roll(x, [1, 2], [0, 1]), (3, 4))
case("flip", lambda x: paddle.flip(x, [1]), (3, 4))
case("tril", paddle.tril, (4, 4))
case("triu", paddle.triu, (4, 4))
case("diag", paddle.diag, (4,))
case("diagonal", paddle.diagonal, (4, 4))
case("diag_embed", paddle.diag_embed, (3, 4))
case("crop", lambda x: paddle.crop(x, [2, 2], [0, 1]), (3, 4))
case("tensor_unfold", lambda x: C.tensor_unfold(x, 1, 3, 1), (3, 5))
case("as_strided", lambda x: paddle.as_strided(x, [3, 3, 3], [5, 1, 1]), (3, 5))
case("assign", paddle.assign, (3, 4))
case("_getitem_dygraph", lambda x: x[1:, 0], (3, 4), label="slice")
case("_getitem_dygraph", lambda x: x[..., None, ::2], (3, 4), label="stride")
case("_getitem_dygraph", lambda x: x[[0, 2, 2, 0, 0]], (3, 4), label="list")
case("_getitem_dygraph", lambda x, i: x[i], (3, 4), ints(3, 9), label="tensor")
case("_getitem_dygraph", lambda x, m: x[m], (3, 4), bools(3, 4), label="mask")

# Results that are not floating
for _name in ("equal", "not_equal", "less_than", "less_equal", "greater_than", "greater_equal"):
    case(_name, getattr(paddle, _name), (3, 4), (3, 4))
for _name in ("isfinite", "isnan", "isinf"):
    case(_name, getattr(paddle, _name), (3, 4))
case("less_than", lambda x: x < 0.5, (3, 4), label="number")
case("argmax", lambda x: paddle.argmax(x, axis=-1), (3, 4))
case("argmin", lambda x: paddle.argmin(x, axis=-1), (3, 4))
case("allclose", lambda x, y: paddle.allclose(x, y), (3, 4), (3, 4))
case("isclose", lambda x, y: paddle.isclose(x, y), (3, 4), (3, 4))
case("nonzero", paddle.nonzero, (3, 4))
case("logical_not", paddle.logical_not, (3, 4))
