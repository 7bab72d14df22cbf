"""Which dtype each operator computes in, against tables written from Paddle's and Apex's documented lists."""

import contextlib

import numpy as np
import paddle
import pytest
from paddle.nn import functional as F

from image_classification import amp, half_cpu
from image_classification.amp import lists, private
from image_classification.amp.operator_casts import apex_casts, paddle_casts
from image_classification.ViT.vit import build_model

HALVES = ("float16", "bfloat16")
IMAGE, ROWS = [2, 4, 6, 6], [3, 4]


def name_of(dtype):
    return str(dtype).removeprefix("paddle.")


def tensor(shape, dtype, grad=True):
    """Return values between 0.1 and 0.9, the same on every device: in the domain of log, acos, erfinv and others."""
    result = paddle.to_tensor(np.random.default_rng(0).uniform(0.1, 0.9, shape).astype("float32")).astype(dtype)
    result.stop_gradient = not grad
    return result


def plain(function):
    return lambda x, w: function(x)


def conv(groups, function=F.conv2d, shape=(4, 1, 3, 3)):
    return lambda x, w: function(x, w(shape), groups=groups)


def labels(x):
    return paddle.zeros([x.shape[0]], "int64")


# Each case computes one operator, or one function, of x; `w(shape)` makes a weight in the dtype that the mode stores.
# name: (function, shape of x, dtype under auto, under O1): "in" is x's own dtype, "half" the run's format.
CASES = {
    "linear": (lambda x, w: F.linear(x, w([4, 5]), w([5])), ROWS, "half", "half"),
    "matmul": (lambda x, w: paddle.matmul(x, w([4, 2])), ROWS, "half", "half"),
    "matmul operator": (lambda x, w: x @ w([4, 2]), ROWS, "half", "half"),
    "bmm": (lambda x, w: paddle.bmm(x, w([2, 4, 5])), [2, 3, 4], "half", "half"),
    "addmm": (lambda x, w: paddle.addmm(w([3, 5]), x, w([4, 5])), ROWS, "half", "half"),
    "mv": (lambda x, w: paddle.mv(x, w([4])), ROWS, "half", "half"),
    "conv1d": (lambda x, w: F.conv1d(x, w([5, 4, 3])), [2, 4, 6], "half", "half"),
    "conv2d": (conv(1, shape=(5, 4, 3, 3)), IMAGE, "half", "half"),
    "depthwise conv2d": (conv(4), IMAGE, "half", "half"),
    "conv2d_transpose": (conv(1, F.conv2d_transpose, (4, 5, 3, 3)), IMAGE, "half", "half"),
    "conv3d": (conv(1, F.conv3d, (5, 4, 3, 3, 3)), [2, 4, 6, 6, 6], "half", "half"),
    "prelu": (lambda x, w: F.prelu(x, w([1])), IMAGE, "float32", "half"),
    "max_pool2d with mask": (lambda x, w: F.max_pool2d(x, 2, return_mask=True)[0], IMAGE, "half", "in"),
    "softmax": (plain(F.softmax), ROWS, "float32", "float32"),
    "log_softmax": (plain(F.log_softmax), ROWS, "float32", "float32"),
    "layer_norm": (lambda x, w: F.layer_norm(x, 4), ROWS, "float32", "float32"),
    "group_norm": (lambda x, w: F.group_norm(x, 2), IMAGE, "float32", "float32"),
    "gelu": (plain(F.gelu), ROWS, "in", "float32"),
    "softplus": (plain(F.softplus), ROWS, "float32", "float32"),
    "exp": (plain(paddle.exp), ROWS, "float32", "float32"),
    "log": (plain(paddle.log), ROWS, "float32", "float32"),
    "log10": (plain(paddle.log10), ROWS, "float32", "float32"),
    "log2": (plain(paddle.log2), ROWS, "float32", "float32"),
    "expm1": (plain(paddle.expm1), ROWS, "float32", "float32"),
    "acos": (plain(paddle.acos), ROWS, "float32", "float32"),
    "asin": (plain(paddle.asin), ROWS, "float32", "float32"),
    "cosh": (plain(paddle.cosh), ROWS, "float32", "float32"),
    "sinh": (plain(paddle.sinh), ROWS, "float32", "float32"),
    "tan": (plain(paddle.tan), ROWS, "float32", "float32"),
    "erfinv": (plain(paddle.erfinv), ROWS, "float32", "float32"),
    "reciprocal": (plain(paddle.reciprocal), ROWS, "float32", "float32"),
    "rsqrt": (plain(paddle.rsqrt), ROWS, "float32", "float32"),
    "pow": (lambda x, w: x**2, ROWS, "float32", "float32"),
    "power of a number": (lambda x, w: 2.0**x, ROWS, "float32", "float32"),
    "square": (plain(paddle.square), ROWS, "float32", "in"),
    "sum": (lambda x, w: x.sum(), ROWS, "float32", "float32"),
    "prod": (lambda x, w: x.prod(), ROWS, "float32", "float32"),
    "mean": (lambda x, w: x.mean(), ROWS, "float32", "in"),
    "cumsum": (lambda x, w: x.cumsum(0), ROWS, "float32", "float32"),
    "cumprod": (lambda x, w: x.cumprod(0), ROWS, "float32", "float32"),
    # Paddle composes these of float32 operators and rounds the result itself.
    "std": (lambda x, w: paddle.std(x), ROWS, "in", "float32"),
    "var": (lambda x, w: paddle.var(x), ROWS, "in", "float32"),
    "norm": (lambda x, w: paddle.linalg.norm(x), ROWS, "float32", "float32"),
    "dist": (lambda x, w: paddle.dist(x, x * 2), ROWS, "float32", "float32"),
    "renorm": (lambda x, w: paddle.renorm(x, 2.0, 0, 1.0), ROWS, "float32", "float32"),
    "normalize": (plain(F.normalize), ROWS, "float32", "float32"),
    "cosine_similarity": (lambda x, w: F.cosine_similarity(x, x), ROWS, "float32", "float32"),
    "local_response_norm": (lambda x, w: F.local_response_norm(x, 3), IMAGE, "float32", "float32"),
    "interpolate": (lambda x, w: F.interpolate(x, scale_factor=2), IMAGE, "float32", "float32"),
    "grid_sample": (lambda x, w: F.grid_sample(x, w([2, 3, 3, 2])), IMAGE, "float32", "float32"),
    "cross_entropy": (lambda x, w: F.cross_entropy(x, labels(x)), ROWS, "float32", "float32"),
    "nll_loss": (lambda x, w: F.nll_loss(x, labels(x)), ROWS, "float32", "float32"),
    "mse_loss": (lambda x, w: F.mse_loss(x, x * 2), ROWS, "float32", "float32"),
    "l1_loss": (lambda x, w: F.l1_loss(x, x * 2), ROWS, "float32", "float32"),
    "smooth_l1_loss": (lambda x, w: F.smooth_l1_loss(x, x * 2), ROWS, "float32", "float32"),
    "kl_div": (lambda x, w: F.kl_div(x, x), ROWS, "float32", "float32"),
    "bce with logits": (lambda x, w: F.binary_cross_entropy_with_logits(x, x.detach()), ROWS, "float32", "float32"),
    "relu": (plain(F.relu), ROWS, "in", "in"),
    "sigmoid": (plain(F.sigmoid), ROWS, "in", "in"),
    "silu": (plain(F.silu), ROWS, "in", "in"),
    "hardswish": (plain(F.hardswish), ROWS, "in", "in"),
    "tanh": (plain(paddle.tanh), ROWS, "in", "in"),
    "batch_norm": (
        lambda x, w: F.batch_norm(x, paddle.zeros([4]), paddle.ones([4]), paddle.ones([4]), paddle.zeros([4]), True),
        IMAGE,
        "in",
        "in",
    ),
    "max_pool2d": (lambda x, w: F.max_pool2d(x, 2), IMAGE, "in", "in"),
    "avg_pool2d": (lambda x, w: F.avg_pool2d(x, 2), IMAGE, "in", "in"),
    "adaptive_avg_pool2d": (lambda x, w: F.adaptive_avg_pool2d(x, 1), IMAGE, "in", "in"),
    "dropout": (lambda x, w: F.dropout(x, 0.5), ROWS, "in", "in"),
    "reshape": (lambda x, w: x.reshape([-1]), ROWS, "in", "in"),
    "transpose": (lambda x, w: x.transpose([1, 0]), ROWS, "in", "in"),
    "slice": (lambda x, w: x[:, 0], ROWS, "in", "in"),
    "split": (lambda x, w: paddle.split(x, 2, axis=1)[0], ROWS, "in", "in"),
    "flatten": (lambda x, w: x.flatten(1), IMAGE, "in", "in"),
    "max": (lambda x, w: x.max(), ROWS, "in", "in"),
    "scale by a number": (lambda x, w: x * 0.5, ROWS, "in", "in"),
    "add same dtype": (lambda x, w: x + x, ROWS, "in", "in"),
    "add float32": (lambda x, w: x + tensor(ROWS, "float32"), ROWS, "float32", "float32"),
    "multiply float32": (lambda x, w: x * tensor(ROWS, "float32"), ROWS, "float32", "float32"),
    "divide float32": (lambda x, w: x / tensor(ROWS, "float32"), ROWS, "float32", "float32"),
    "atan2 float32": (lambda x, w: paddle.atan2(x, tensor(ROWS, "float32")), ROWS, "float32", "float32"),
    "concat float32": (lambda x, w: paddle.concat([x, tensor(ROWS, "float32")]), ROWS, "float32", "float32"),
    "concat same dtype": (lambda x, w: paddle.concat([x, x]), ROWS, "in", "in"),
    "stack float32": (lambda x, w: paddle.stack([x, tensor(ROWS, "float32")]), ROWS, "float32", "float32"),
    "embedding": (lambda x, w: F.embedding(paddle.zeros([2], "int64"), x), ROWS, "float32", "in"),
}


@pytest.mark.parametrize("given", ["half", "float32"])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("mode", ["auto", "O1"])
@pytest.mark.parametrize("case", CASES)
def test_operator_and_gradient_dtypes_follow_the_lists(case, mode, dtype, given):
    function, shape, auto, level_1 = CASES[case]
    x = tensor(shape, dtype if given == "half" else "float32")
    expected = {"in": name_of(x.dtype), "half": dtype, "float32": "float32"}[auto if mode == "auto" else level_1]
    with amp.build_precision(mode, dtype=dtype).forward_context():
        result = function(x, lambda shape: tensor(shape, "float32"))
    assert name_of(result.dtype) == expected
    result.astype("float32").sum().backward()
    # The gradient of an input keeps the input's dtype, whatever the operator computed in.
    assert x.grad.dtype == x.dtype


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("mode", ["O2", "O3", "naive"])
@pytest.mark.parametrize("case", CASES)
def test_operators_of_a_half_model_stay_half(case, mode, dtype):
    """These modes cast no operator: half inputs and weights give half results and half gradients, losses included."""
    function, shape, _, _ = CASES[case]
    x = tensor(shape, dtype)
    with amp.build_precision(mode, dtype=dtype).forward_context():
        result = function(x, lambda shape: tensor(shape, dtype))
    # Only where the code itself mixes in a float32 tensor does Paddle promote the result.
    assert name_of(result.dtype) == ("float32" if case.endswith("float32") else dtype)
    result.astype("float32").sum().backward()
    assert x.grad.dtype == x.dtype


def recorded(policy, seen):
    """Return a policy that also notes (operator, dtypes that its floating inputs are computed in)."""

    class Recording:
        def cast(self, op_name, tensors):
            wanted = policy.cast(op_name, tensors)
            floating = [name_of(t.dtype) for t in tensors if name_of(t.dtype) in (*HALVES, "float32")]
            seen.append((op_name, {wanted} if wanted and floating else set(floating)))
            return wanted

    return Recording()


@contextlib.contextmanager
def static_mode():
    paddle.enable_static()
    try:
        yield
    finally:
        paddle.disable_static()


def plain_linear(x, weight, bias=None, name=None):
    """The linear layer as Paddle's static programs spell it; a dynamic call has one operator for both halves."""
    result = paddle.matmul(x, weight)
    return result if bias is None else result + bias


def test_auto_bfloat16_decides_like_paddle_itself_for_a_vit(monkeypatch):
    """In a static program Paddle inserts the casts of level O1 on any device, so its decisions can be read here."""
    monkeypatch.setattr(F, "linear", plain_linear)
    sizes = {"image_size": 16, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 4}
    program = paddle.static.Program()
    with static_mode():
        with paddle.static.program_guard(program, paddle.static.Program()), paddle.amp.auto_cast(dtype="bfloat16"):
            images = paddle.static.data("images", [2, 3, 16, 16], "float32")
            F.cross_entropy(build_model(**sizes)(images), paddle.static.data("labels", [2], "int64"))
        # What only makes or views tensors takes no part in the decision.
        silent = ("builtin.", "pd_op.data", "pd_op.full", "pd_op.cast", "pd_op.unsqueeze", "pd_op.slice")
        paddles = []
        for op in program.global_block().ops:
            if op.name().startswith(silent):
                continue
            operands = [value for value in op.operands_source() if value.initialized() and value.is_dense_tensor_type()]
            dtypes = {name_of(value.dtype) for value in operands} & {*HALVES, "float32"}
            if op.name() == "pd_op.concat":
                dtypes = {name_of(op.results()[0].dtype)}
            paddles.append((op.name().removeprefix("pd_op."), dtypes))

    ours = []
    policy = recorded(amp.build_precision("auto", dtype="bfloat16").casts.policy, ours)
    model = build_model(**sizes)
    with half_cpu.dispatch(policy=policy, backend="reference"):
        F.cross_entropy(model(paddle.randn([2, 3, 16, 16])), paddle.zeros([2], "int64"))
    spelling = {"split": "split_with_num", "mean_all": "mean"}
    ours = [(spelling.get(name, name), dtypes) for name, dtypes in ours if dtypes]
    assert len(ours) > 40
    assert ours == paddles


@pytest.mark.parametrize("dtype", HALVES)
def test_paddles_lists_are_translated_whole(dtype):
    """Every entry of Paddle's lists is an operator that exists, but for those that none of Paddle 3.3.1 is called."""
    dead = {"matmul", "pnorm", "softmin", "triplet_margin_loss", "cross_entropy", "cross_entropy2", "lookup_table",
            "hsigmoid_loss"}  # fmt: skip
    white, black = private.amp_lists(dtype)
    known = {lists.LISTED_AS.get(name, name) for name in private.operator_names()}
    assert (white | black) - known == dead
    ours_white, ours_black = lists.paddle_lists(dtype, (), (), complete=False)
    assert lists.listed_names(ours_white) == white - dead
    assert lists.listed_names(ours_black) == black - dead


@pytest.mark.parametrize("table", ["MISSING_WHITE", "MISSING_BLACK", "APEX_HALF", "APEX_FLOAT", "APEX_PROMOTE"])
def test_every_listed_operator_exists(table):
    assert getattr(lists, table) <= private.operator_names()


def test_lists_can_be_left_as_paddle_has_them():
    x = tensor(ROWS, "float16")
    with amp.build_precision("auto", dtype="float16", options={"complete_lists": False}).forward_context():
        assert paddle.linalg.norm(x).dtype == paddle.float16
        assert F.kl_div(x, x, reduction="none").dtype == paddle.float16
        weight = tensor([4, 1, 3, 3], "float32")
        assert F.conv2d(tensor(IMAGE, "float16"), weight, groups=4).dtype == paddle.float32


@pytest.mark.parametrize("mode", ["auto", "O1"])
def test_users_lists_move_operators_in_either_spelling(mode):
    options = {"white_list": ["exp", "reduce_sum"], "black_list": ["matmul_v2"]}
    with amp.build_precision(mode, dtype="float16", options=options).forward_context():
        assert paddle.exp(tensor(ROWS, "float32")).dtype == paddle.float16
        assert tensor(ROWS, "float32").sum().dtype == paddle.float16
        assert paddle.matmul(tensor(ROWS, "float16"), tensor([4, 2], "float16")).dtype == paddle.float32


@pytest.mark.parametrize("dtype", HALVES)
def test_level_1_refuses_binary_cross_entropy_of_half_values(dtype):
    x = tensor(ROWS, dtype, grad=False)
    with amp.build_precision("O1", dtype=dtype).forward_context():
        with pytest.raises(NotImplementedError, match="binary_cross_entropy_with_logits"):
            F.binary_cross_entropy(x, x)
        wide = x.astype("float32")
        assert F.binary_cross_entropy(wide, wide).dtype == paddle.float32


def test_auto_computes_binary_cross_entropy_in_float32():
    x = tensor(ROWS, "float16", grad=False)
    with amp.build_precision("auto", dtype="float16").forward_context():
        assert F.binary_cross_entropy(x, x).dtype == paddle.float32


@pytest.mark.parametrize("dtype", HALVES)
def test_level_1_refuses_float32_operators_in_place_on_half_values(dtype):
    """Apex's rule: the float32 result has no place in a half tensor."""
    with amp.build_precision("O1", dtype=dtype).forward_context():
        x = tensor(ROWS, dtype, grad=False)
        with pytest.raises(NotImplementedError, match="exp_ writes a float32 result"):
            x.exp_()
        assert tensor(ROWS, "float32", grad=False).exp_().dtype == paddle.float32


def test_level_1_adds_in_place_in_the_dtype_of_the_target():
    with amp.build_precision("O1", dtype="float16").forward_context():
        half, wide = tensor(ROWS, "float16", grad=False), tensor(ROWS, "float32", grad=False)
        assert half.clone().add_(wide).dtype == paddle.float16
        assert wide.clone().add_(half).dtype == paddle.float32
        assert F.relu_(half.clone()).dtype == paddle.float16


def test_assignment_into_a_half_tensor_keeps_its_dtype():
    for mode in ("auto", "O1"):
        with amp.build_precision(mode, dtype="float16").forward_context():
            x = tensor(ROWS, "float16", grad=False)
            x[0] = tensor([4], "float32", grad=False)
            assert x.dtype == paddle.float16


@pytest.mark.filterwarnings("ignore:amp_guard")
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("make", [paddle_casts, apex_casts])
def test_lists_for_a_gpu_are_ones_that_auto_cast_takes(make, dtype):
    """Without a GPU auto_cast casts nothing, but it takes the arguments and refuses lists that overlap."""
    casts = make(dtype, "gpu")
    assert {"matmul_v2", "linear_v2", "conv2d", "depthwise_conv2d"} <= casts.white
    assert {"softmax_with_cross_entropy", "p_norm", "reduce_sum"} <= casts.black
    assert not casts.white & casts.black
    with casts.on(), casts.off():
        assert paddle.matmul(tensor(ROWS, "float32"), tensor([4, 2], "float32")).dtype == paddle.float32


def test_weights_and_their_gradients_stay_float32_under_operator_casts():
    for mode in ("auto", "O1"):
        layer = paddle.nn.Linear(4, 2)
        with amp.build_precision(mode, dtype="float16").forward_context():
            layer(tensor(ROWS, "float32")).astype("float32").sum().backward()
        assert layer.weight.dtype == layer.weight.grad.dtype == paddle.float32


def test_casts_end_with_the_context_even_after_an_error():
    for mode in ("auto", "O1"):
        precision = amp.build_precision(mode, dtype="float16")
        with pytest.raises(ZeroDivisionError), precision.forward_context():
            raise ZeroDivisionError
        assert paddle.matmul(tensor(ROWS, "float32"), tensor([4, 2], "float32")).dtype == paddle.float32
        assert not precision.is_active


@pytest.mark.parametrize("mode", ["auto", "O1"])
def test_auto_cast_that_a_model_switches_off_leaves_operators_as_their_inputs_come(mode):
    """As on a GPU; without a GPU Paddle's own does nothing, and what a model keeps out of half precision was in it."""
    x, own = paddle.ones([2, 2]), private.AUTO_CAST_MODULE.amp_guard
    with amp.build_precision(mode, dtype="bfloat16").forward_context():
        for switch in (lambda: paddle.amp.auto_cast(enable=False), lambda: paddle.amp.autocast("cpu", enabled=False)):
            with switch():
                half = x.astype("bfloat16")
                found = [paddle.matmul(x, x).dtype, paddle.matmul(half, half).dtype]
            assert [*found, paddle.matmul(x, x).dtype] == [paddle.float32, paddle.bfloat16, paddle.bfloat16]
    assert private.AUTO_CAST_MODULE.amp_guard is own
