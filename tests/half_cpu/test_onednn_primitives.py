"""The oneDNN binding: the cache of primitives, refusals, memory over many steps, threads."""

import ctypes
import multiprocessing
import resource
import sys
import threading
import time

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

from image_classification import half_cpu
from image_classification.half_cpu import compiled, kernels, onednn
from image_classification.half_cpu import onednn_library as library
from image_classification.half_cpu import onednn_primitives as primitives
from image_classification.half_cpu.dispatch import _references
from image_classification.half_cpu.onednn_scratch import Scratch
from image_classification.Swin.swin import SwinBlock
from tests.helpers.onednn_runs import by_threads, in_threads, needs_bfloat16_of_onednn, needs_onednn

pytestmark = needs_onednn


def describe_copy(loaded, builder, source, target):
    return loaded.description("reorder", builder.md(source), builder.md(target), None), (library.SRC, library.DST)


def copy_layouts(size):
    return (primitives.dense(paddle.float32, size),) * 2


def test_cache_keeps_the_primitives_used_last_and_no_more_than_its_size():
    cache = primitives.Cache(size=3)
    first = cache.get(describe_copy, *copy_layouts(1))
    for size in (2, 3):
        cache.get(describe_copy, *copy_layouts(size))
    assert cache.get(describe_copy, *copy_layouts(1)) is first  # used again, so 2 is the oldest now
    cache.get(describe_copy, *copy_layouts(4))
    assert len(cache) == 3
    assert cache.get(describe_copy, *copy_layouts(1)) is first


def test_cache_remembers_what_onednn_refuses():
    cache, asked = primitives.Cache(), []

    def refused(loaded, builder, source, target):
        asked.append(source)
        return describe_copy(loaded, builder, source, target)

    for _ in range(2):
        with pytest.raises(library.OneDNNError):
            cache.get(refused, primitives.dense(paddle.float32, 2), primitives.dense(paddle.float32, 3))
    assert len(asked) == 1


def test_kernel_that_onednn_refuses_is_left_to_the_reference(monkeypatch):
    def refuse(*arguments):
        raise library.OneDNNError("no implementation")

    monkeypatch.setattr(primitives.Cache, "get", refuse)
    with half_cpu.dispatch():
        result = F.gelu(paddle.ones([3], dtype="bfloat16"))
    assert result.dtype == paddle.bfloat16


def test_library_whose_numbers_mean_something_else_is_refused(monkeypatch):
    monkeypatch.setattr(library, "_EXPECTED_NAMES", (("dnnl_dt2str", {library.BFLOAT16: b"f16"}),))
    with pytest.raises(library.OneDNNError, match="expects b'f16'"):
        library.Library(library.library_path())


def test_wheel_without_onednn_leaves_the_reference_alone(monkeypatch):
    monkeypatch.setattr(library, "library_path", lambda: "/nonexistent/libdnnl.so.3")
    monkeypatch.setattr(library, "load", library.load.__wrapped__)
    assert onednn.instruction_set() is None
    monkeypatch.setattr(kernels, "_BACKENDS", dict(kernels._BACKENDS))
    onednn.register()
    assert kernels.find("auto").name == kernels.REFERENCE


def test_threads_are_those_of_the_runtime_that_paddle_and_the_kernels_have():
    """The one that the library names as its own is another, which starts none."""
    assert by_threads((1, 3), library.load().threads) == [1, 3]


@needs_bfloat16_of_onednn
def test_matmul_runs_on_the_cpus_bfloat16_instructions():
    layouts = [primitives.dense(paddle.bfloat16, 64, 64)] * 2
    built = primitives.cache.get(
        half_cpu.onednn_matmul._describe, *layouts, None, primitives.dense(paddle.bfloat16, 64, 64), ()
    )
    assert built.implementation.startswith("brg_matmul:avx512_core_") or "amx" in built.implementation


def train_steps(count, sizes):
    layer = paddle.nn.Linear(64, 64)
    for step in range(count):
        x = paddle.ones([sizes[step % len(sizes)], 64])
        with half_cpu.dispatch(BFLOAT16_LINEAR):
            loss = F.gelu(layer(x)).astype("float32").mean()
        loss.backward()
        layer.clear_gradients()


class _Policy:
    def cast(self, name, tensors):
        return "bfloat16" if name == "linear" else None


BFLOAT16_LINEAR = _Policy()


def test_two_thousand_steps_need_no_more_memory():
    train_steps(100, (1, 5))
    before = resident_bytes()
    train_steps(2000, (1, 5))
    assert resident_bytes() < 1.02 * before


@pytest.mark.slow
def test_two_thousand_steps_of_a_swin_block_need_no_more_memory():
    """Views, windows, a bias for each window: what a branch or a copy might keep alive."""
    dropout = {"dropout": 0.0, "attention_dropout": 0.0, "drop_path": 0.0}
    block = SwinBlock(16, 2, size=4, window=2, shift=1, mlp_ratio=1.0, **dropout)

    def train(count):
        for _ in range(count):
            with half_cpu.dispatch():
                block(paddle.ones([2, 4, 4, 16])).mean().backward()
            block.clear_gradients()

    train(100)
    before = resident_bytes()
    train(2000)
    assert resident_bytes() < 1.02 * before


def test_shapes_that_change_every_step_leave_the_cache_and_the_memory_bounded(monkeypatch):
    # A step needs about 8 primitives, so a cache of 16 drops each shape's before the shape comes again.
    monkeypatch.setattr(primitives.cache, "size", 16)
    monkeypatch.setattr(primitives.cache, "_entries", type(primitives.cache._entries)())
    train_steps(20, range(1, 6))
    before = resident_bytes()
    train_steps(60, range(1, 6))
    assert len(primitives.cache) <= 16
    assert resident_bytes() < 1.02 * before


def resident_bytes():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


@pytest.mark.parametrize("function", [F.gelu, lambda x: F.conv2d(x, x[:, :, :3, :3], padding=1)], ids=["gelu", "conv"])
def test_threads_that_share_a_primitive_get_their_own_results(function):
    x = paddle.to_tensor(np.random.default_rng(0).standard_normal((16, 16, 8, 8)).astype("float32"))
    inputs = [(x * factor).astype("bfloat16") for factor in (1, -1, 2, 3)]
    with half_cpu.dispatch():
        expected = [function(one).astype("float32").numpy() for one in inputs]
    wrong = []

    def work(index):
        with half_cpu.dispatch():
            for _ in range(100):
                if (function(inputs[index]).astype("float32").numpy() != expected[index]).any():
                    wrong.append(index)

    in_threads(work, range(len(inputs)))
    assert not wrong


@needs_bfloat16_of_onednn
def test_convolution_with_a_scratchpad_has_the_same_bits_in_another_thread():
    """oneDNN makes the gradient of these filters from columns, in memory that belonged to the thread of the first."""
    numbers = np.random.default_rng(0).standard_normal
    arrays = [numbers(shape).astype("float32") for shape in ((4, 39, 12, 20), (38, 39, 3, 3))]
    found = []

    def work(_):
        images, filters = (paddle.to_tensor(array).astype("bfloat16").detach() for array in arrays)
        images.stop_gradient = filters.stop_gradient = False
        with half_cpu.dispatch():
            result = F.conv2d(images, filters, stride=3, padding=2, dilation=2)
        result.backward(paddle.ones_like(result))
        found.append([tensor.astype("float32").numpy() for tensor in (result, images.grad, filters.grad)])

    work(0)
    in_threads(work, [1])
    assert len(found) == 2
    for expected, actual in zip(*found, strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_threads_that_let_the_cache_drop_primitives_get_theirs():
    def build(loaded, builder, number):
        return compiled.Primitive(lambda: number)

    cache, failures, interval = primitives.Cache(4), [], sys.getswitchinterval()

    def work(seed):
        try:
            for number in np.random.default_rng(seed).integers(0, 6, 5000).tolist():
                assert cache.get(build, number) is not None
        except Exception as error:
            failures.append(error)

    sys.setswitchinterval(1e-6)
    try:
        in_threads(work, range(6))
    finally:
        sys.setswitchinterval(interval)
    assert not failures


@pytest.mark.parametrize("lock", [library.load().lock if library.load() else None, _references()._lock])
def test_process_forked_while_another_thread_computes_does_not_wait_for_it(lock):
    """A loader's workers have none of the threads that would give a lock back."""
    x = paddle.ones([4, 64]).astype("bfloat16")
    taken = threading.Event()

    def hold():
        with lock:
            taken.set()
            time.sleep(0.2)

    def compute():
        with half_cpu.dispatch():
            F.softmax(x @ x.t())

    compute()
    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait()
    process = multiprocessing.get_context("fork").Process(target=compute)
    process.start()
    thread.join()
    process.join(20)
    process.kill()
    assert process.exitcode == 0


def test_scratch_is_shared_and_grows_without_moving_what_is_in_use():
    scratch, big = Scratch(), 1 << 25
    small = scratch.address(big)
    before = np.ctypeslib.as_array((ctypes.c_char * big).from_address(small)).view(np.uint8)
    before[:] = 7
    large = [scratch.address(size) for size in (big // 2, big + 1, 2 * big)]
    assert small == large[0] != large[1] == large[2]
    assert small % 64 == large[1] % 64 == 0
    ctypes.memset(large[1], 9, 2 * big)
    assert (before == 7).all()  # still there
