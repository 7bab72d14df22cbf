"""half_cpu.dispatch: what is patched, when, and how nesting, exceptions and threads behave."""

import subprocess
import sys
import threading
import types

import paddle
import pytest

from image_classification import half_cpu
from image_classification.half_cpu import op_names, paddle_names
from image_classification.half_cpu.scope import active
from tests.helpers.policies import Policy


def references():
    """Return every place where Paddle, or a module that imported from it, refers to an operator or a patched method."""
    builtin = type(paddle_names.cast)
    found = {}
    for module_name, module in list(sys.modules.items()):
        for name in list(getattr(module, "__dict__", {})):
            value = getattr(module, name) if module_name.startswith("paddle") else None
            if type(value) is builtin:
                found[module_name, name] = value
    for name in (*op_names.ARITHMETIC_METHODS, *op_names.INDEX_METHODS):
        found["Tensor", name] = getattr(paddle.Tensor, name)
    return found


def assert_restored(before):
    after = references()
    assert after.keys() == before.keys()
    assert [key for key, value in before.items() if after[key] is not value] == []


# What is patched


def test_dispatch_inside_replaces_operators_methods_and_imported_names():
    before = references()
    with half_cpu.dispatch():
        inside = references()
    for place in ("paddle._C_ops", "paddle.linalg", "paddle.tensor.linalg", "paddle.tensor"):
        assert (place, "matmul") in before
        assert (place, "matmul") not in inside, f"{place}.matmul is still the built-in"
    assert ("paddle.nn.functional.activation", "gelu") not in inside
    assert ("paddle._legacy_C_ops", "accuracy") not in inside
    assert inside["Tensor", "__add__"] is not before["Tensor", "__add__"]
    operators = {id(value) for value in paddle_names.public_builtins(paddle_names.OPERATORS).values()}
    left = [key for key, value in inside.items() if id(value) in operators]
    assert [key for key in left if not key[0].startswith(("paddle._pir_ops", "paddle.base.libpaddle"))] == []


def test_dispatch_after_exit_restores_every_reference():
    before = references()
    with half_cpu.dispatch():
        pass
    assert_restored(before)


def test_dispatch_after_an_exception_restores_every_reference():
    before = references()
    with pytest.raises(ZeroDivisionError):
        with half_cpu.dispatch():
            with half_cpu.dispatch():
                raise ZeroDivisionError
    assert_restored(before)


def test_dispatch_leaves_what_somebody_put_in_the_table_of_operators(monkeypatch):
    def own(x, approximate):
        return x

    monkeypatch.setattr(paddle._C_ops, "gelu", own)
    with half_cpu.dispatch():
        assert paddle._C_ops.gelu is not own
    assert paddle._C_ops.gelu is own


def test_operator_that_a_script_imports_between_two_dispatches_works_in_the_second_one():
    """A notebook's next cell: no module is loaded, so nothing but the script's own names tells."""
    script = """
import paddle
from image_classification import half_cpu
with half_cpu.dispatch():
    x = paddle.ones([2, 2]).astype("float16")
from paddle._C_ops import cast, matmul
with half_cpu.dispatch():
    assert matmul(x, x, False, False).dtype == paddle.float16
assert type(matmul) is type(cast)
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def interrupted(function, number):
    """Return whether a call gets so far that it is interrupted. The interrupt of a keyboard comes where Python looks
    for it the `number`-th time: where a function of the package begins, and behind what it calls."""
    left, folder = number, half_cpu.__path__[0]

    def profile(frame, event, argument):
        nonlocal left
        if event in ("call", "c_return") and frame.f_code.co_filename.startswith(folder):
            left -= 1
            if left == 0:
                sys.setprofile(None)
                raise KeyboardInterrupt

    sys.setprofile(profile)
    try:
        function()
    except KeyboardInterrupt:
        pass
    finally:
        sys.setprofile(None)
    return left <= 0


def moments():
    """Yield the first moments of a call one by one and then some, of which most are those of its loops."""
    number = 1
    while True:
        yield number
        number += 1 + number // 12


def assert_next_dispatch_works(before):
    x = paddle.ones([2, 2]).astype("float16")
    assert active.scope is None and active.entered == []
    with half_cpu.dispatch():
        assert paddle.matmul(x, x).dtype == paddle.float16
        assert (x + x).dtype == paddle.float16
    assert_restored(before)


def test_dispatch_after_an_interrupt_while_one_was_entered_works_and_leaves_nothing_behind():
    """A notebook goes on behind an interrupt."""
    before, context = references(), half_cpu.dispatch()
    for number in moments():
        if not interrupted(context.__enter__, number):
            break
        assert_next_dispatch_works(before)
    assert number > 20
    context.__exit__()
    assert_restored(before)


def test_dispatch_after_an_interrupt_while_one_was_left_works_and_leaves_nothing_behind():
    """From its second moment on: an interrupt at the first comes before the context is left."""
    before, context = references(), half_cpu.dispatch()
    for number in moments():
        context.__enter__()
        if not interrupted(context.__exit__, 1 + number):
            break
        assert_next_dispatch_works(before)
    assert number > 20
    assert_restored(before)


def test_dispatch_that_is_entered_again_and_again_keeps_nothing_of_the_times_before():
    context = half_cpu.dispatch()
    for _ in range(3):
        with context, context:
            assert len(context._entered) == 2
    assert not context._entered


def test_dispatch_after_a_failing_operator_still_serves_the_next(dtype="float16"):
    x = paddle.ones([2, 3]).astype(dtype)
    with half_cpu.dispatch():
        with pytest.raises(ValueError):
            paddle.matmul(x, x)
        assert paddle.matmul(x, x.T).dtype == paddle.float16


def test_names_imported_in_another_module_are_replaced_and_restored():
    module = types.ModuleType("somebody_elses_model")
    module.product = paddle.linalg.matmul
    sys.modules[module.__name__] = module
    try:
        original = module.product
        x = paddle.ones([2, 2]).astype("bfloat16")
        with half_cpu.dispatch():
            assert module.product(x, x).dtype == paddle.bfloat16
        assert module.product is original
    finally:
        del sys.modules[module.__name__]


def test_names_bound_inside_the_context_are_restored_too():
    module = types.ModuleType("loaded_inside")
    original = paddle.linalg.matmul
    try:
        with half_cpu.dispatch():
            module.product = paddle.linalg.matmul
            sys.modules[module.__name__] = module
        assert module.product is original
    finally:
        del sys.modules[module.__name__]


def test_wrapper_kept_beyond_the_context_goes_straight_to_paddle():
    with half_cpu.dispatch(Policy("float16")):
        kept, kept_method, kept_index = paddle.linalg.matmul, paddle.Tensor.__matmul__, paddle.Tensor._getitem_dygraph
    x = paddle.ones([2, 2])
    assert [result.dtype for result in (kept(x, x), kept_method(x, x), kept_index(x, 0))] == [paddle.float32] * 3


def test_half_operators_outside_the_context_fail_as_stock_paddle_does():
    with half_cpu.dispatch():
        pass
    with pytest.raises(RuntimeError, match="not registered"):
        paddle.nn.functional.relu(paddle.ones([2]).astype("float16"))


def test_method_that_somebody_else_replaced_is_there_after_a_dispatch(monkeypatch):
    with half_cpu.dispatch():
        pass
    original = paddle.Tensor.__add__

    def counted(left, right):
        return original(left, right)

    monkeypatch.setattr(paddle.Tensor, "__add__", counted)
    with half_cpu.dispatch():
        assert paddle.Tensor.__add__ is not counted
    assert paddle.Tensor.__add__ is counted


def test_every_private_name_of_paddle_is_still_there():
    table = paddle_names.public_builtins(paddle_names.OPERATORS)
    legacy = paddle_names.public_builtins(paddle_names.LEGACY_OPERATORS)
    wanted = op_names.NORMS | op_names.FLOAT32_RESULTS - {"auc"} | {"cast", "assign_out_", "scale", "matmul", "add"}
    missing = [f"paddle._C_ops.{name}" for name in wanted if name not in table]
    missing += [f"paddle._legacy_C_ops.{name}" for name in op_names.LEGACY if name not in legacy]
    for name in (*op_names.ARITHMETIC_METHODS, *op_names.INDEX_METHODS, "_is_initialized"):
        if not hasattr(paddle_names.Tensor, name):
            missing.append(f"paddle.Tensor.{name}")
    if not hasattr(paddle_names.OPERATORS, op_names.CUSTOM):
        missing.append(f"paddle._C_ops.{op_names.CUSTOM}")
    assert missing == [], f"this Paddle {paddle.__version__} lacks names that half_cpu patches: {missing}"
    assert paddle.ones([1]).dtype is paddle.float32, "dtypes are no longer singletons: half_cpu compares them with `is`"


# Nesting and threads


def test_inner_dispatch_wins_and_the_outer_one_returns():
    x = paddle.ones([2, 2])
    with half_cpu.dispatch(Policy("float16")):
        assert paddle.matmul(x, x).dtype == paddle.float16
        with half_cpu.dispatch(Policy("bfloat16")):
            assert paddle.matmul(x, x).dtype == paddle.bfloat16
            with half_cpu.dispatch():
                assert paddle.matmul(x, x).dtype == paddle.float32
        assert paddle.matmul(x, x).dtype == paddle.float16


def test_one_dispatch_object_can_be_entered_again_inside_itself():
    context = half_cpu.dispatch(Policy("float16"))
    x = paddle.ones([2, 2])
    with context, context:
        pass
    with context:
        assert paddle.matmul(x, x).dtype == paddle.float16
    assert paddle.matmul(x, x).dtype == paddle.float32


def dtypes_of_products(policy):
    with half_cpu.dispatch(Policy(policy)):
        while True:
            yield paddle.matmul(paddle.ones([2, 2]), paddle.ones([2, 2])).dtype


def test_dispatch_that_a_generator_ends_first_leaves_the_later_one_and_nothing_behind():
    before = references()
    products = dtypes_of_products("float16")
    assert next(products) == paddle.float16
    with half_cpu.dispatch(Policy("bfloat16")):
        products.close()
        assert paddle.matmul(paddle.ones([2, 2]), paddle.ones([2, 2])).dtype == paddle.bfloat16
    assert active.scope is None
    assert references() == before


def test_dispatch_that_another_thread_ends_is_left_by_the_thread_that_entered_it():
    products = dtypes_of_products("float16")
    next(products)
    thread = threading.Thread(target=products.close)
    thread.start()
    thread.join()
    assert active.scope is None


def test_one_dispatch_object_serves_threads_at_once():
    shared, inside, leave = half_cpu.dispatch(Policy("float16")), threading.Event(), threading.Event()

    def work():
        with shared:
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=work)
    with shared:
        thread.start()
        inside.wait(10)
    try:
        assert active.scope is None
    finally:
        leave.set()
        thread.join()


def test_threads_have_their_own_policies():
    before = references()
    x = paddle.ones([2, 2])
    results = {}
    inside, leave = threading.Event(), threading.Event()

    def work():
        results["without"] = paddle.matmul(x, x).dtype
        with half_cpu.dispatch(Policy("bfloat16")):
            results["within"] = paddle.matmul(x, x).dtype
            inside.set()
            leave.wait(10)
            results["after the other left"] = paddle.matmul(x, x).dtype

    with half_cpu.dispatch(Policy("float16")):
        thread = threading.Thread(target=work)
        thread.start()
        inside.wait(10)
        results["main"] = paddle.matmul(x, x).dtype
    leave.set()
    thread.join()
    assert results == {
        "without": paddle.float32,
        "within": paddle.bfloat16,
        "main": paddle.float16,
        "after the other left": paddle.bfloat16,
    }
    assert_restored(before)
