"""Functions of one's own in O1 and auto, and switching the casts off: per precision, per thread, never left behind."""

import threading
import types

import paddle
import pytest
from paddle.nn import functional as F

from image_classification import amp


def x(dtype="float32"):
    return paddle.full([2, 4], 0.5).astype(dtype)


def weight():
    return paddle.ones([4, 3])


def dtypes(*tensors):
    return [str(tensor.dtype).removeprefix("paddle.") for tensor in tensors]


@pytest.fixture
def library():
    """A module with a function that reports the dtypes that it was given."""
    module = types.ModuleType("library")
    module.measure = lambda *tensors, **named: dtypes(*tensors, *named.values())
    return module


@pytest.mark.parametrize("mode", ["O1", "auto"])
@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        ("half", ["float32", "bfloat16"], ["float16", "float16"]),
        ("float", ["float16", "float32"], ["float32", "float32"]),
        ("promote", ["float16", "float32"], ["float32", "float32"]),
        ("promote", ["float16", "float16"], ["float16", "float16"]),
        ("half", ["int64", "float32"], ["int64", "float16"]),
    ],
)
def test_registered_function_is_cast_inside_the_context_only(mode, kind, given, expected, library):
    functions = amp.FunctionCasts()
    getattr(functions, f"register_{kind}_function")(library, "measure")
    original = library.measure
    precision = amp.build_precision(mode, dtype="float16", functions=functions)
    tensors = [x(dtype) for dtype in given]
    with precision.forward_context():
        assert library.measure(*tensors) == expected
        assert library.measure(tensors[0], named=tensors[1]) == expected
    assert library.measure is original
    assert library.measure(*tensors) == given


@pytest.mark.parametrize("kind", ["half", "float", "promote"])
def test_decorated_function_is_plain_outside_the_context(kind):
    functions = amp.FunctionCasts()

    @getattr(functions, f"{kind}_function")
    def measure(*tensors):
        """Docstring."""
        return dtypes(*tensors)

    precision = amp.build_precision("O1", dtype="bfloat16", functions=functions)
    given = [x("bfloat16"), x("float32")]
    assert measure(*given) == ["bfloat16", "float32"]
    with precision.forward_context():
        assert measure(*given) == {"half": ["bfloat16"] * 2}.get(kind, ["float32"] * 2)
    assert measure(*given) == ["bfloat16", "float32"]
    assert (measure.__name__, measure.__doc__) == ("measure", "Docstring.")


def test_registered_float_function_makes_a_banned_one_safe():
    functions = amp.FunctionCasts()
    functions.register_float_function(F, "binary_cross_entropy")
    with amp.build_precision("O1", functions=functions).forward_context():
        assert F.binary_cross_entropy(x("float16"), x("float16")).dtype == paddle.float32


def test_missing_function_is_refused(library):
    with pytest.raises(ValueError, match="module 'library' has no function 'mesure'"):
        amp.FunctionCasts().register_half_function(library, "mesure")


def test_registering_inside_a_context_is_refused(library):
    functions = amp.FunctionCasts()
    precision = amp.build_precision("O1", functions=functions)
    with precision.forward_context(), pytest.raises(RuntimeError, match="before the forward context"):
        functions.register_half_function(library, "measure")


def test_two_precisions_do_not_know_each_others_functions(library):
    mine = amp.FunctionCasts()
    mine.register_half_function(library, "measure")
    first, second = amp.build_precision("O1", functions=mine), amp.build_precision("O1")
    with second.forward_context():
        assert library.measure(x()) == ["float32"]
        with first.forward_context():
            assert library.measure(x()) == ["float16"]
        assert library.measure(x()) == ["float32"]


def test_one_registry_serves_precisions_of_different_formats(library):
    functions = amp.FunctionCasts()
    functions.register_half_function(library, "measure")
    first = amp.build_precision("O1", dtype="float16", functions=functions)
    second = amp.build_precision("auto", dtype="bfloat16", functions=functions)
    with first.forward_context():
        with second.forward_context():
            assert library.measure(x()) == ["bfloat16"]
        assert library.measure(x()) == ["float16"]


def test_functions_are_restored_after_an_error(library):
    functions = amp.FunctionCasts()
    functions.register_half_function(library, "measure")
    original, mse = library.measure, F.mse_loss
    with pytest.raises(KeyboardInterrupt), amp.build_precision("O1", functions=functions).forward_context():
        assert library.measure is not original
        raise KeyboardInterrupt
    assert library.measure is original
    assert F.mse_loss is mse


@pytest.mark.parametrize("first", [0, 1])
def test_contexts_that_end_in_any_order_keep_each_others_casts(first):
    """As those of two models in two threads do: the first one's end took the other's casts and left its own behind."""
    original, half = F.mse_loss, x().astype("float16")
    contexts = [amp.build_precision("O1").forward_context() for _ in range(2)]
    for context in contexts:
        context.__enter__()
    contexts[first].__exit__(None, None, None)
    assert F.mse_loss(half, half).dtype == paddle.float32
    contexts[1 - first].__exit__(None, None, None)
    assert F.mse_loss is original


def test_function_that_is_registered_twice_is_itself_behind_the_context(library):
    functions, original = amp.FunctionCasts(), library.measure
    functions.register_half_function(library, "measure")
    functions.register_float_function(library, "measure")
    with amp.build_precision("O1", functions=functions).forward_context():
        assert library.measure(x()) == ["float16"]  # the last one casts first
    assert library.measure is original


def test_another_thread_sees_no_casts(library):
    functions = amp.FunctionCasts()
    functions.register_half_function(library, "measure")
    seen = []
    with amp.build_precision("O1", functions=functions).forward_context():
        thread = threading.Thread(target=lambda: seen.extend(library.measure(x()) + dtypes(x() @ weight())))
        thread.start()
        thread.join()
    assert seen == ["float32", "float32"]


@pytest.mark.parametrize("mode", ["O1", "auto"])
def test_disable_casts_is_reentrant_and_ends_with_its_block(mode, library):
    functions = amp.FunctionCasts()
    functions.register_half_function(library, "measure")
    precision = amp.build_precision(mode, dtype="float16", functions=functions)

    def seen():
        return dtypes(x() @ weight()) + library.measure(x())

    with precision.forward_context():
        assert seen() == ["float16", "float16"]
        with precision.disable_casts():
            assert seen() == ["float32", "float32"]
            with precision.disable_casts():
                assert seen() == ["float32", "float32"]
            assert seen() == ["float32", "float32"]
            with precision.forward_context():
                assert seen() == ["float16", "float16"]
            assert seen() == ["float32", "float32"]
        assert seen() == ["float16", "float16"]


@pytest.mark.parametrize("mode", ["O1", "auto"])
def test_disable_casts_ends_with_an_error_too(mode):
    precision = amp.build_precision(mode, dtype="float16")
    with precision.forward_context():
        with pytest.raises(ZeroDivisionError), precision.disable_casts():
            raise ZeroDivisionError
        assert (x() @ weight()).dtype == paddle.float16


@pytest.mark.parametrize("mode", ["O1", "auto"])
def test_half_tensors_still_compute_with_casts_disabled(mode):
    precision = amp.build_precision(mode, dtype="float16")
    with precision.forward_context(), precision.disable_casts():
        assert F.softmax(x("float16")).dtype == paddle.float16


@pytest.mark.parametrize("mode", ["fp32", "O0", "O2", "naive"])
def test_disable_casts_is_harmless_where_there_are_none(mode):
    precision = amp.build_precision(mode)
    with precision.forward_context(), precision.disable_casts():
        assert (x() @ weight()).dtype == paddle.float32


def test_level_1_computes_composed_losses_in_float32_as_a_whole():
    """In float16, 1000.5 and 1000 differ by 0.5, and 300^2 overflows: mse_loss must do neither in half."""
    with amp.build_precision("O1", dtype="float16").forward_context():
        a, b = paddle.full([4], 1000.0).astype("float16"), paddle.full([4], 700.0).astype("float16")
        loss = F.mse_loss(a, b)
        assert (loss.dtype, loss.item()) == (paddle.float32, 90000.0)
        assert paddle.nn.MSELoss()(a, b).item() == 90000.0


def test_verbosity_2_logs_each_cast(caplog):
    precision = amp.build_precision("O1", options={"verbosity": 2})
    with caplog.at_level("INFO"), precision.forward_context():
        F.softmax(x() @ weight())
    assert "matmul: inputs cast to float16" in caplog.text
    assert "softmax: inputs cast to float32" in caplog.text
