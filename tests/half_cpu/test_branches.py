"""The gradients of several readers of one tensor: summed by a kernel, seen by hooks, whichever of them are asked for.

All values are small whole numbers, which every format holds exactly, so every comparison is for equality.
"""

import contextlib

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

from image_classification import half_cpu
from image_classification.half_cpu import branches, onednn, onednn_binary
from image_classification.half_cpu.scope import active

pytestmark = pytest.mark.skipif(not onednn.available(), reason="needs a CPU with AVX2 and a wheel with oneDNN")
DTYPES = ["float32", *(dtype for dtype in ("float16", "bfloat16") if half_cpu.backend_name(dtype) != "reference")]
SHAPE = [2, 16, 96, 96]
assert np.prod(SHAPE) >= branches.LARGE


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch):
    """No test knows from another one how many readers a tensor has."""
    monkeypatch.setattr(branches, "readers", branches.Readers())


@pytest.fixture
def sums(monkeypatch):
    """Return the list of the sums that the kernel made."""
    made, sum_of = [], onednn_binary.sum_of
    monkeypatch.setattr(onednn_binary, "sum_of", lambda *pair: made.append(pair) or sum_of(*pair))
    return made


def features(dtype="float32", strided=False):
    """Return (a leaf, a result of it that has its gradient): whole numbers from -4 to 4."""
    values = np.random.default_rng(0).integers(-4, 5, SHAPE).astype("float32")
    leaf = paddle.to_tensor(values).astype(dtype)
    leaf.stop_gradient = False
    if not strided:
        return leaf, leaf * 1
    one = paddle.eye(SHAPE[1]).reshape([SHAPE[1], SHAPE[1], 1, 1]).astype(dtype)
    return leaf, F.conv2d(leaf, one)


def positive(x):
    return (x.astype("float32") > 0).astype("float32").numpy()


def widened(tensor):
    return tensor.astype("float32").numpy()


@pytest.mark.parametrize("strided", [False, True], ids=["dense", "image"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_of_three_readers_are_summed_by_the_kernel_in_the_order_of_the_tensor(dtype, strided, sums):
    orders = []
    with half_cpu.dispatch(backend="onednn"):
        leaf, x = features(dtype, strided)
        x.register_hook(lambda gradient: orders.append(gradient.strides))
        one, two, three = F.relu(x), x * 2, F.relu(-x)
        total = one + two + three
    paddle.autograd.backward([total], [paddle.ones(SHAPE, dtype)])
    np.testing.assert_array_equal(widened(leaf.grad), 2 + positive(leaf) - positive(-leaf))
    assert orders == [x.strides] and len(sums) >= 2


def test_reader_that_pools_adaptively_reads_the_tensor_that_others_do(sums):
    """Paddle's function takes another Python object for its argument."""
    with half_cpu.dispatch(backend="onednn"):
        leaf, x = features(strided=True)
        result = F.adaptive_avg_pool2d(x, 1).sum() + F.relu(x).sum()
    result.backward()
    assert len(sums) == 1
    np.testing.assert_allclose(leaf.grad.numpy(), positive(leaf) + 96.0**-2, rtol=1e-6)
    assert x._use_gpudnn(False) is not x  # outside of the dispatch it is Paddle's


def test_gradient_that_comes_back_through_a_transposition_is_summed_by_the_kernel(sums):
    orders = []
    with half_cpu.dispatch(backend="onednn"):
        leaf, x = features()
        with paddle.no_grad():
            x = F.conv2d(leaf, paddle.eye(SHAPE[1]).reshape([SHAPE[1], SHAPE[1], 1, 1]))  # lies as [B, H, W, C]
        x.stop_gradient = False
        image = F.relu(x)
        image.register_hook(lambda gradient: orders.append(gradient.strides))
        total = F.relu(image) + F.relu(image.transpose([0, 2, 3, 1])).transpose([0, 3, 1, 2])
    paddle.autograd.backward([total], [paddle.ones(SHAPE)])
    np.testing.assert_array_equal(x.grad.numpy(), 2 * positive(leaf))
    assert orders == [image.strides] and len(sums) == 2  # of the results, then of the gradients


def two_readers():
    """Return (leaf, features, the losses of two readers of them): one of the positive ones, one of all, times three."""
    with half_cpu.dispatch(backend="onednn"):
        leaf, x = features()
        return leaf, x, F.relu(x).sum(), (x * 3).sum()


def test_hook_of_the_tensor_sees_the_sum_of_all_readers():
    seen = []
    _, x, first, second = two_readers()
    x.register_hook(lambda gradient: seen.append(gradient.numpy()))
    (first + second).backward()
    (gradient,) = seen
    np.testing.assert_array_equal(gradient, 3 + positive(x))


def test_gradient_by_the_tensor_is_the_sum_of_all_readers():
    _, x, first, second = two_readers()
    (found,) = paddle.grad(first + second, x)
    np.testing.assert_array_equal(found.numpy(), 3 + positive(x))


@pytest.mark.parametrize("reader", [0, 1])
def test_backward_from_one_reader_gives_its_gradient_alone(reader):
    leaf, _, *losses = two_readers()
    losses[reader].backward()
    np.testing.assert_array_equal(leaf.grad.numpy(), np.full(SHAPE, 3) if reader else positive(leaf))


def test_readers_outside_of_the_dispatch_add_to_those_inside():
    with half_cpu.dispatch(backend="onednn"):
        leaf, x = features()
        inside = F.relu(x).sum() + (x * 3).sum()
    (inside + (x * 5).sum()).backward()
    np.testing.assert_array_equal(leaf.grad.numpy(), 8 + positive(leaf))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reader", ["written", "added", "outside"])
def test_gradient_that_a_hook_keeps_of_a_sum_stays_where_the_engine_adds_to_that_of_a_summand(reader, dtype):
    kept = []
    with half_cpu.dispatch(backend="onednn"):
        leaf, x = features(dtype)
        total = x + leaf * 2
        total.register_hook(kept.append)
        other = paddle.zeros([1, *SHAPE], dtype)
        if reader == "written":
            other[0] = x
        elif reader == "added":
            other.add_(x)
    other = (x if reader == "outside" else other).astype("float32")
    for _ in range(8):  # a longer way back, so that it comes last
        other = other * 1.0
    ((total.astype("float32") * 2).sum() + (other * 3).sum()).backward()
    np.testing.assert_array_equal(widened(kept[0]), np.full(SHAPE, 2))
    np.testing.assert_array_equal(widened(leaf.grad), np.full(SHAPE, 9))


def test_write_between_two_readers_is_part_of_the_second_ones_history():
    with half_cpu.dispatch(backend="onednn"):
        leaf, x = features()
        before = (x * 3).sum()
        x.scale_(2.0)
        after = (x * 5).sum()
    (before + after).backward()
    np.testing.assert_array_equal(after.item(), 10 * leaf.sum().item())
    np.testing.assert_array_equal(leaf.grad.numpy(), np.full(SHAPE, 2 * 5 + 3))


@pytest.mark.parametrize(("dtype", "shape", "is_view"), [
    ("float16", [2, 128, 128], True), ("bfloat16", [2, 128, 128], True), ("float16", [2, 127, 128], False),
    ("float32", [4, 64, 32, 32], True), ("float32", [4, 63, 32, 32], False), ("float32", [4, 64, 1024], False),
])  # fmt: skip
def test_tensor_is_read_through_views_from_the_size_on_that_its_format_has(dtype, shape, is_view):
    with half_cpu.dispatch(backend="onednn"):
        x = paddle.ones(shape, dtype)
        x.stop_gradient = False
        features = x * 2.0
        features * 3.0, features * 5.0
    assert hasattr(features, "rest_of_branches") is is_view


def step(dtype, *more_readers):
    """Return (features that a training step reads, with each of the further readers, the gradient of the leaf)."""
    with half_cpu.dispatch(backend="onednn"):
        leaf, x = features(dtype)
        results = [F.relu(x), *(reader(x) for reader in more_readers)]
    paddle.autograd.backward(results, [paddle.ones(SHAPE, dtype) for _ in results])
    return x, widened(leaf.grad), positive(leaf)


@pytest.mark.parametrize("dtype", DTYPES)
def test_only_reader_gets_the_tensor_itself_from_the_second_step_on(dtype):
    viewed = []
    for _ in range(3):
        x, gradient, expected = step(dtype)
        viewed.append(hasattr(x, "rest_of_branches"))
        np.testing.assert_array_equal(gradient, expected)
    assert viewed == [True, False, False]


@pytest.mark.parametrize("dtype", DTYPES)
def test_reader_that_comes_second_after_a_step_without_one_is_known_from_then_on(dtype, sums):
    found = []
    step(dtype)
    for _ in range(2):
        del sums[:]
        _, gradient, expected = step(dtype, lambda x: x * 2)
        np.testing.assert_array_equal(gradient, expected + 2)
        found.append(len(sums))
    assert found == [0, 1]


def test_kind_that_is_read_once_and_twice_is_viewed_in_every_step(sums):
    for _ in range(3):
        del sums[:]
        step("float32", lambda x: x * 2)
        assert len(sums) == 1
        assert hasattr(step("float32")[0], "rest_of_branches")


@pytest.mark.parametrize(("first", "shape", "dtype"), [
    (F.relu, SHAPE, "float32"), (F.tanh, SHAPE, "float32"), (F.relu, [4, *SHAPE[1:]], "float32"),
    (F.relu, SHAPE, DTYPES[-1]),
])  # fmt: skip
def test_first_readers_are_told_apart_by_operator_shape_and_format(first, shape, dtype):
    step("float32")
    with half_cpu.dispatch(backend="onednn"):
        leaf = paddle.ones(shape, dtype)
        leaf.stop_gradient = False
        x = leaf * 1
        first(x)
    is_known = (first, shape, dtype) == (F.relu, SHAPE, "float32")
    assert hasattr(x, "rest_of_branches") is not is_known


def test_second_reader_that_is_alone_elsewhere_reads_a_view(sums):
    step("float32")
    with half_cpu.dispatch(backend="onednn"):
        leaf, x = features()
        results = [x * 2, F.relu(x)]
    paddle.autograd.backward(results, [paddle.ones(SHAPE)] * 2)
    np.testing.assert_array_equal(leaf.grad.numpy(), 2 + positive(leaf))
    assert len(sums) == 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_steps_that_know_the_readers_have_the_bits_of_the_first_one(dtype):
    """As a resumed training, which knows nothing at first, has those of one that was never stopped."""
    paddle.seed(0)
    values, seed = paddle.randn(SHAPE).astype(dtype), paddle.randn(SHAPE).astype(dtype)
    found = []
    for _ in range(3):
        leaf = values.detach()
        leaf.stop_gradient = False
        with half_cpu.dispatch(backend="onednn"):
            x = F.tanh(leaf * 1)  # read once, then three times
            total = F.relu(F.silu(x)) + F.sigmoid(x) * x
        paddle.autograd.backward([total], [seed])
        found.append(widened(leaf.grad))
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], found[0])


def test_only_reader_that_reads_twice_is_two(sums):
    """`x * x` is one call with the tensor in two places."""
    for expected in (1, 1):
        del sums[:]
        with half_cpu.dispatch(backend="onednn"):
            leaf, x = features()
            (x * x).sum().backward()
        np.testing.assert_array_equal(leaf.grad.numpy(), 2 * leaf.numpy())
        assert len(sums) == expected


def test_kinds_of_readers_are_forgotten_when_there_are_too_many(monkeypatch):
    monkeypatch.setattr(branches, "MOST_KNOWN", 3)
    readers = branches.Readers()
    for number in range(4):
        readers.add_alone(number)
    assert [readers.are_alone(number) for number in range(4)] == [False, False, False, True]


@pytest.mark.parametrize("backend", ["onednn", "reference"])
def test_tensor_is_read_itself_without_gradients_or_kernel(backend):
    with half_cpu.dispatch(backend=backend):
        leaf, x = features()
        with paddle.no_grad() if backend == "onednn" else paddle.enable_grad():
            F.relu(x), x * 3
    assert not hasattr(x, "rest_of_branches") and not hasattr(leaf, "rest_of_branches")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("strided", [False, True], ids=["dense", "image"])
def test_slice_of_a_tensor_is_read_where_it_begins(dtype, strided):
    with half_cpu.dispatch(backend="onednn"):
        leaf, x = features(dtype, strided)
        second = paddle.concat([x, x * 2, x])[2:4]
        found, total = F.relu(second), (second * 3).astype("float32").sum()
    total.backward()
    np.testing.assert_array_equal(widened(found), np.maximum(2 * widened(leaf), 0))
    np.testing.assert_array_equal(widened(leaf.grad), np.full(SHAPE, 6))


@pytest.mark.parametrize("index", [(slice(None), 2), (slice(None), [1, 3]), (1, 3), ([1, 0], [5, 7]), (..., [0, 2])])
def test_read_and_write_by_index_are_those_of_stock_paddle(index):
    def results():
        tensors = [paddle.to_tensor(part) if isinstance(part, list) else part for part in index]
        leaf, x = features()
        part = x[tuple(tensors)]
        before = (x * 3).sum()
        x[tuple(tensors)] = 5.0
        after = x * 2
        (part.sum() + before + after.sum()).backward()
        return part.numpy(), after.numpy(), leaf.grad.numpy()

    expected = results()
    with half_cpu.dispatch(backend="onednn"):
        found = results()
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


VIEWS = {
    "sample": lambda x: x[1],
    "squeeze": lambda x: x[:1].squeeze(0),
    "reshape": lambda x: x.reshape([2, 2, 8, 96, 96]),
    "flatten": lambda x: x.flatten(2),
    "rows": lambda x: x[:, :, 1:],
    "transpose": lambda x: x.transpose([1, 0, 3, 2]),
}
PLACES = [(slice(None), [1, 0]), (slice(None), paddle.to_tensor([1, 0])), (..., [1, 2])]


@pytest.mark.parametrize("index", PLACES)
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_view_of_strided_images_is_read_and_written_at_the_places_that_an_index_names(dtype, view, index):
    """As a dense copy of it is; stock Paddle errs where a tensor is strided."""
    found = []
    for strided in (True, False):
        with half_cpu.dispatch(backend="onednn"):
            leaf, x = features(dtype, strided)
            one = VIEWS[view](x)
            assert not strided or not one.is_contiguous()
            one = one if strided else one.clone()
            part = one[index]
            one[index] = 3.0
            total = part.astype("float32").sum() * 2 + one.astype("float32").sum()
        total.backward()
        found.append([widened(tensor) for tensor in (part, one, leaf.grad)])
    for actual, expected in zip(*found, strict=True):
        np.testing.assert_array_equal(actual, expected)


ALL_OF_IT = [slice(None), ..., slice(0, SHAPE[0]), slice(-SHAPE[0], 1000), (..., slice(0, None, 1)), (slice(None),) * 4]


@pytest.mark.parametrize("index", ALL_OF_IT)
@pytest.mark.parametrize("dtype", DTYPES)
def test_all_of_a_tensor_that_is_written_is_the_tensor(dtype, index):
    """As with stock Paddle, whose `x[:]` is x."""
    with half_cpu.dispatch(backend="onednn"):
        leaf, x = features(dtype)
        whole = x[index]
        whole.add_(whole)
        result = x * 3
    paddle.autograd.backward([result], [paddle.ones(SHAPE, dtype)])
    np.testing.assert_array_equal(widened(leaf.grad), np.full(SHAPE, 6.0))


def test_large_value_is_written_and_keeps_its_gradient():
    with half_cpu.dispatch(backend="onednn"):
        leaf, x = features()
        both = paddle.zeros([2, *SHAPE])
        both[1] = x
        both[0] = x
        total = (both * 2).sum() + (x * 3).sum()
    total.backward()
    np.testing.assert_array_equal(leaf.grad.numpy(), np.full(SHAPE, 7))


def test_tensor_with_other_data_is_read_anew():
    with half_cpu.dispatch(backend="onednn"):
        leaf, x = features()
        F.relu(x)
        x.data = paddle.full(SHAPE, 7.0)
        found = x * 3
    np.testing.assert_array_equal(found.numpy(), np.full(SHAPE, 21))


def test_gradient_of_a_gradient_passes_through_the_sum():
    leaf, x = features()
    with half_cpu.dispatch(backend="onednn"):
        one, two = x**9, x**10  # operators without kernels, which have second derivatives
    (first,) = paddle.grad([one, two], x, create_graph=True)
    first.backward()
    values = leaf.numpy()
    np.testing.assert_allclose(leaf.grad.numpy(), 72 * values**7 + 90 * values**8, rtol=1e-5, atol=1e-5)  # roundings


def test_sparse_tensor_is_read_as_it_is():
    results = []
    for context in (half_cpu.dispatch(backend="onednn"), contextlib.nullcontext()):
        leaf = features()[0]
        with context:
            x = leaf * 1
            sparse = paddle.sparse.nn.functional.relu(x.to_sparse_coo(4))
            total = sparse.to_dense().sum() + (x * x).sum()
        total.backward()
        results.append((total.item(), leaf.grad.numpy()))
    assert results[0][0] == results[1][0]
    np.testing.assert_array_equal(results[0][1], results[1][1])


def test_dispatch_goes_on_after_an_operator_without_a_kernel_reads_a_large_tensor():
    with half_cpu.dispatch(backend="onednn"):
        _, x = features()
        scope = active.scope
        assert "digamma" not in scope.float32_kernels
        paddle.digamma(x)
        assert active.scope is scope


def test_gradients_of_float32_tokens_are_summed_by_the_engine(sums):
    leaf, x = features()
    with half_cpu.dispatch(backend="onednn"):
        tokens = x.reshape([2, -1, 96])
        total = F.relu(tokens) + tokens * 2
    del sums[:]
    paddle.autograd.backward([total], [paddle.ones(total.shape)])
    np.testing.assert_array_equal(leaf.grad.numpy(), 2 + positive(leaf).reshape(SHAPE))
    assert not sums
