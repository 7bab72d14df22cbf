"""What a played step must not change, whatever the model and its loss do: each against the same steps of the layers."""

import copy
import gc
import pickle
import weakref

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn
from paddle.autograd import PyLayerContext
from paddle.distributed.fleet.utils import recompute

from image_classification import half_cpu
from image_classification.half_cpu import onednn, paddle_names
from image_classification.half_cpu.training_replay import RECORDED
from image_classification.layers import DropPath
from tests.helpers.onednn_runs import in_threads
from tests.helpers.replays import bits
from tests.helpers.trainings import both

pytestmark = pytest.mark.skipif(not onednn.available(), reason="needs a CPU with AVX2 and a wheel with oneDNN")


class Net(nn.Layer):
    """Two products, whatever else a test needs, and a function of all of it."""

    def __init__(self, function, more=lambda net: None):
        super().__init__()
        self.a, self.b, self.function = nn.Linear(8, 8), nn.Linear(8, 8), function
        more(self)

    def forward(self, *inputs):
        return self.function(self, *inputs)


def numbers(seed, *shape):
    return paddle.to_tensor(np.random.default_rng(seed).standard_normal(shape or (4, 8)).astype("float32"))


def sum_of_squares(result):
    return result.square().sum()


def of_numbers(loss=sum_of_squares, shape=()):
    """Return the step that gives a loss of the model's result alone, which nothing else holds."""
    return lambda one, number: loss(one.result(numbers(number, *shape)))


def trace_of(one, step, calls):
    paddle.seed(1)
    trace = []
    for number in range(calls):
        try:
            step(one, number).backward()
            error = None
        except (OSError, RuntimeError, ValueError) as found:  # of Paddle's engine, which words those of a PyLayer anew
            error = "written in place" if "written in place" in str(found) else str(found)
        named = [*one.model.named_parameters(), *one.model.named_buffers()]
        gradients = {name: bits(each.grad) for name, each in named if each.grad is not None}
        trace.append((error, gradients, {name: bits(each) for name, each in named}, float(paddle.rand([1]))))
        for weight in one.model.parameters():
            weight.clear_gradient(set_to_zero=False)
    return trace


def assert_same(make, step, *, calls=RECORDED + 4, is_recorded=True, **options):
    replayed, layers = both(make, **options)
    assert trace_of(replayed, step, calls) == trace_of(layers, step, calls)
    assert replayed.is_recorded() == is_recorded


def two_results(net, x):
    hidden = F.tanh(net.a(x))
    return net.b(hidden), hidden


@pytest.mark.parametrize(("function", "loss"), [
    (lambda net, x: F.tanh(net.a(x)), lambda result: result.sum()),
    (lambda net, x: F.softmax(net.a(x)), lambda result: result.square().mean()),
    (lambda net, x: F.relu(net.b(F.sigmoid(net.a(x)))), lambda result: result.sum()),
    (two_results, lambda results: results[0].square().sum() + results[1].sum()),
])  # fmt: skip
def test_result_that_only_the_backward_pass_needs_lives_until_then(function, loss):
    assert_same(lambda: Net(function), of_numbers(loss), calls=40)


def test_result_written_before_the_backward_pass_is_refused_as_by_the_layers():
    def step(one, number):
        result = one.result(numbers(number))
        loss = result.sum()
        if number > RECORDED:
            result.detach().scale_(0.0)
        return loss

    assert_same(lambda: Net(lambda net, x: F.tanh(net.a(x))), step)


def freeze(net):
    for weight in net.b.parameters():
        weight.stop_gradient = True


def test_frozen_weight_written_before_the_backward_pass_is_refused_as_by_the_layers():
    def step(one, number):
        result = one.result(numbers(number))
        if number == RECORDED + 1:
            with paddle.no_grad():
                one.model.b.weight.scale_(0.5)
        return result.square().sum()

    assert_same(lambda: Net(lambda net, x: net.b(net.a(x)), freeze), step)


def shifts(net):
    net.shift = net.create_parameter([8])


@pytest.mark.parametrize(("mode", "dtype"), [("fp32", None), ("auto", "bfloat16")])
def test_what_the_backward_pass_does_not_read_may_be_written_before_it(mode, dtype):
    """Images that are no factor of a weight's gradient, such as those of a buffer that is filled again, and biases."""

    def step(one, number):
        given = numbers(number)
        result = one.result(given)
        with paddle.no_grad():
            given.zero_()
            one.model.b.bias.scale_(0.5)
        return result.astype("float32").square().sum()

    assert_same(lambda: Net(lambda net, x: net.b(x + net.shift), shifts), step, mode=mode, dtype=dtype)


def test_weights_of_a_result_that_the_loss_does_not_read_have_no_gradient():
    assert_same(
        lambda: Net(lambda net, x: two_results(net, x)), of_numbers(lambda results: results[1].sum()), is_recorded=False
    )


def test_gradient_that_is_missing_once_is_that_of_the_layers():
    """A head of its own, dropped numbers and statistics: recorded with both results, then a loss reads one of them."""

    def function(net, x):
        hidden = F.dropout(net.norm(net.a(x)), 0.3)
        return net.b(hidden), F.relu(hidden)

    def step(one, number):
        head, trunk = one.result(numbers(number))
        trunk = trunk * paddle.rand([8])  # drawn between the passes
        return trunk.sum() if number == RECORDED + 1 else head.square().sum() + trunk.sum()

    assert_same(
        lambda: Net(function, lambda net: setattr(net, "norm", nn.BatchNorm1D(8))), step, calls=RECORDED + 5,
        is_recorded=False,
    )  # fmt: skip


def test_missing_gradient_of_images_that_were_written_since_is_refused():
    """The layers would run again, with other images."""

    def function(net, x):
        hidden = F.tanh(x + net.a.bias)
        return net.b(hidden), F.relu(hidden)

    replayed, _ = both(lambda: Net(function))
    for number in range(RECORDED + 1):
        sum(one.sum() for one in replayed.result(numbers(number))).backward()
    assert replayed.is_recorded()
    x = numbers(0)
    _, trunk = replayed.result(x)
    x.scale_(0.0)
    with pytest.raises((OSError, RuntimeError), match="written in place"):
        trunk.sum().backward()


def test_result_that_a_model_returns_twice_is_written_in_place_for_both():
    def step(one, number):
        found = one.result(numbers(number))
        found["logits"].scale_(2.0)
        return (found["logits"] * found["features"][0]).sum() + found["features"][1].sum()

    def function(net, x):
        hidden = net.a(x)
        result = net.b(hidden)
        return {"logits": result, "features": [result, hidden]}

    assert_same(lambda: Net(function), step)


def test_results_with_nothing_in_common_may_have_backward_passes_one_after_the_other():
    def step(one, number):
        left, right = one.result(numbers(number))
        left.square().sum().backward()
        return right.square().sum()

    assert_same(lambda: Net(lambda net, x: (net.a(x), net.b(x))), step, is_recorded=False)


class Twice(paddle.autograd.PyLayer):
    """A function of a model's own that no recorder notes."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def gate(net):
    net.gate = net.create_parameter([1], default_initializer=nn.initializer.Constant(0.0))


def shared(net, x):
    hidden = net.b(x)
    return net.a(hidden + net.gate * net.a(F.gelu(hidden)))


def read_unseen(net, x):
    hidden = net.a(x)
    return Twice.apply(hidden) + net.gate * net.b(hidden)


@pytest.mark.parametrize(("function", "is_recorded"), [(shared, True), (read_unseen, False)])
def test_summand_that_is_zero_as_it_is_recorded_is_one_later(function, is_recorded):
    def step(one, number):
        if number == RECORDED + 1:
            with paddle.no_grad():
                one.model.gate.add_(paddle.ones([1]))
        return one.result(numbers(number)).square().sum()

    assert_same(lambda: Net(function, gate), step, is_recorded=is_recorded)


@pytest.mark.parametrize("function", [shared, read_unseen], ids=["recorded", "refused"])
def test_recording_keeps_no_weights_and_no_operators_of_a_model_that_is_gone(function):
    def kept():
        """Return how many operators are left of a model that was recorded; the engine holds the last one or two."""
        replayed, layers = both(lambda: Net(function, gate))
        gone = [weakref.ref(weight) for weight in replayed.model.parameters()]
        for number in range(RECORDED):
            replayed.result(numbers(number)).sum().backward()
        del replayed, layers
        gc.collect()
        assert not any(weight() is not None for weight in gone)
        return sum(isinstance(one, PyLayerContext) for one in gc.get_objects())

    assert kept() == kept()


@pytest.mark.parametrize("records_gradients", [True, False])
def test_operators_that_were_looked_at_are_freed(records_gradients):
    paddle_names._references_too_many.cache_clear()
    x = paddle.ones([2])
    x.stop_gradient = False
    result = Twice.apply(x)
    with paddle.set_grad_enabled(records_gradients):
        assert [name for _, name, _ in paddle_names.backward_edges(result)][0] == "GradNodePyLayer_Twice"
    del result
    gc.collect()
    assert not any(type(one).__name__ == "Twice_backward" for one in gc.get_objects())


def small_scale(net):
    net.scale = net.create_parameter([8], default_initializer=nn.initializer.Constant(1e-5))


def read_three_times(net, x):
    hidden = net.b(x)
    return x + net.scale * (net.a(hidden) * F.tanh(hidden) + F.gelu(hidden))


def test_gradients_that_float16_would_lose_without_a_loss_scale_are_compared():
    loss = of_numbers(lambda result: result.astype("float32").square().mean() * 1024, (64, 8))
    assert_same(
        lambda: Net(read_three_times, small_scale), loss, mode="auto", dtype="float16", is_recorded=False
    )  # fmt: skip


def test_sum_of_three_gradients_of_few_numbers_is_left_to_the_layers():
    def function(net, x):
        hidden = net.a(x).mean()
        return F.tanh(hidden) + F.sigmoid(hidden) + hidden.exp() * 0.3

    assert_same(lambda: Net(function), of_numbers(lambda result: result), calls=20, is_recorded=False)


def test_model_that_shares_weights_is_left_to_its_layers_by_the_first_second_call_of_a_step():
    """The engine sums the three or four gradients of a weight in another order than those of a played pass and of one
    by layers. The step of that call is between the two."""

    def step(one, number):
        given = [number] if number <= RECORDED else [number, number + 100]
        return sum(one.result(numbers(one_of_them)).square().sum() for one_of_them in given)

    replayed, layers = both(lambda: Net(lambda net, x: net.a(net.b(net.a(x)))))
    traces = [trace_of(one, step, RECORDED + 5) for one in (replayed, layers)]
    for trace in traces:
        del trace[RECORDED + 1]
    assert traces[0] == traces[1] and not replayed.is_recorded()


def test_recomputed_part_gets_its_gradient_once():
    function = lambda net, x: recompute(lambda y: F.tanh(net.b(y)), net.a(x))  # noqa: E731
    assert_same(lambda: Net(function), of_numbers(), is_recorded=False)


def writes_input(net, x):
    x.scale_(2.0)
    return net.a(x)


def writes_weight(net, x):
    with paddle.no_grad():
        net.a.weight.scale_(0.9)
    return net.a(x)


@pytest.mark.parametrize("function", [writes_input, writes_weight])
def test_model_that_writes_in_place_is_not_called_more_often(function):
    assert_same(lambda: Net(function), of_numbers(), is_recorded=False)


@pytest.mark.parametrize("shape", [lambda labels: labels > 0, lambda labels: paddle.nonzero(labels).flatten()])
def test_shape_that_changes_with_the_data_leaves_statistics_and_random_numbers_to_the_layers(shape):
    def function(net, x, labels):
        return F.dropout(net.norm(net.a(x)), 0.3)[shape(labels)].square().sum()

    def step(one, number):
        return one.result(numbers(number), paddle.to_tensor([1, 1, 0, int(number > RECORDED)]))

    assert_same(lambda: Net(function, lambda net: setattr(net, "norm", nn.BatchNorm1D(8))), step, is_recorded=False)


class Found(paddle.autograd.PyLayer):
    """The gradient of a function of a model's own depends on how many numbers are positive."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensor()
        return gradient * paddle.nonzero(x > 0).astype("float32").mean()


def test_shape_that_changes_with_the_data_of_a_backward_pass_leaves_it_to_the_layers():
    def function(net, x):
        return net.b(Found.apply(F.dropout(net.norm(net.a(x)), 0.3)))

    def step(one, number):
        return one.result(numbers(number if number > RECORDED else 0)).square().sum()

    def more(net):
        net.norm = nn.BatchNorm1D(8)

    paddle.seed(0)
    assert_same(lambda: Net(function, more), step, is_recorded=False)


@pytest.mark.parametrize("more", [freeze, lambda net: setattr(net, "b", nn.BatchNorm1D(8))])
def test_recording_leaves_a_graph_that_waits(more):
    """Two views of the images in one loss."""

    def step(one, number):
        if not number and isinstance(one.model.b, nn.BatchNorm1D):  # whose first call of all counts for itself
            return one.result(numbers(number)).sum()
        return (one.result(numbers(number)) * one.result(numbers(number + 50))).sum()

    assert_same(lambda: Net(lambda net, x: net.b(net.a(x)), more), step)


def test_loss_that_is_still_there_after_its_backward_pass_is_no_reason_to_wait():
    def step(one, number):
        loss = one.result(numbers(number)).square().sum()
        one.loss = loss  # as the variable of a loop
        return loss

    assert_same(lambda: Net(lambda net, x: net.b(net.a(x))), step)


def test_recording_of_another_shape_leaves_a_played_step_that_waits():
    def step(one, number):
        first = one.result(numbers(number))
        return first.square().sum() + (one.result(numbers(number, 6, 8)).square().sum() if number > RECORDED else 0.0)

    assert_same(
        lambda: Net(lambda net, x: net.norm(net.a(x)), lambda net: setattr(net, "norm", nn.BatchNorm1D(8))), step,
        calls=5 * RECORDED,
    )  # fmt: skip


def of_calls(count):
    """Return the step that gives a loss of several results of the model."""
    return lambda one, number: sum(
        (call + 1) * sum_of_squares(one.result(numbers(number * count + call))) for call in range(count)
    )


@pytest.mark.parametrize(("function", "calls", "is_recorded"), [
    (lambda net, x: net.b(F.gelu(net.a(x))), 2, True),
    (lambda net, x: net.b(F.gelu(net.a(x))), 3, False),
    (lambda net, x: net.b(F.gelu(net.a(x))), 5, False),
    (lambda net, x: net.a(F.gelu(net.a(x))), 1, True),
    (lambda net, x: net.a(F.gelu(net.a(x))), 2, False),
])  # fmt: skip
def test_gradients_of_several_calls_have_the_bits_of_the_layers(function, calls, is_recorded):
    """Of two numbers a sum is the same in each order."""
    assert_same(lambda: Net(function), of_calls(calls), calls=RECORDED + 8, is_recorded=is_recorded)


def test_model_that_begins_to_be_called_several_times_a_step_is_left_to_its_layers():
    def step(one, number):
        return of_calls(3 if number > RECORDED else 1)(one, number)

    replayed, _ = both(lambda: Net(lambda net, x: net.b(F.gelu(net.a(x)))))
    trace_of(replayed, step, RECORDED)
    assert replayed.is_recorded()
    trace_of(replayed, step, RECORDED + 2)
    assert not replayed.is_recorded()


def test_second_derivatives_of_the_reference_are_those_of_the_layers():
    """The documented way to them."""

    def step(one, number):
        with half_cpu.dispatch(backend="reference"):
            loss = one.forward(numbers(number)).square().sum()
        gradients = paddle.grad(loss, one.model.parameters(), create_graph=True)
        return loss + sum(gradient.square().sum() for gradient in gradients)

    assert_same(lambda: Net(lambda net, x: net.b(F.tanh(net.a(x)))), step, is_recorded=False)


def test_model_that_asks_whether_two_inputs_are_one_is_answered_as_without_a_recording():
    def function(net, queries, keys):
        return net.a(queries) if queries is keys else net.b(queries + net.a(keys))

    def step(one, number):
        queries = numbers(number)
        return one.result(queries, numbers(number + 1) if number % 3 else queries).square().sum()

    assert_same(lambda: Net(function), step, calls=40)


def asks_for_all(net):
    """As whoever goes on with all layers of a network of which he trained a few."""
    for weight in net.parameters():
        weight.stop_gradient = False


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize(("mode", "dtype"), [("fp32", None), ("auto", "bfloat16"), ("O3", "float16")])
@pytest.mark.parametrize(("norm", "shape"), [(nn.BatchNorm1D, [4, 8]), (nn.BatchNorm2D, [1, 8, 2, 2])])
def test_statistics_that_are_asked_for_gradients_are_those_of_the_layers(later, mode, dtype, norm, shape):
    def more(net):
        net.norm = norm(8)
        if not later:
            asks_for_all(net)

    def step(one, number):
        if later and number == RECORDED + 1:
            asks_for_all(one.model)
        return one.result(numbers(number)).astype("float32").square().sum()

    function = lambda net, x: net.b(net.norm(net.a(x).reshape(shape)).reshape([4, 8]))  # noqa: E731
    assert_same(lambda: Net(function, more), step, calls=4 * RECORDED, mode=mode, dtype=dtype)


def positions(net):
    net.positions = net.create_parameter([1, 6, 8])


def sparse(net):
    net.table = nn.Embedding(10, 8, sparse=True)


@pytest.mark.parametrize(("function", "more", "shape"), [
    (lambda net, x: net.b(net.a(x)[:, :8]), freeze, ()),
    (lambda net, x: net.b(net.a(x)[...][-4:]), freeze, ()),
    (lambda net, x: net.a(x + net.positions[:, : x.shape[1]]), positions, (2, 6, 8)),
    (lambda net, x: x @ net.a.weight.T, freeze, ()),
    (lambda net, x: paddle.einsum("ij->ji", net.a(x)), freeze, ()),
    (lambda net, x: net.a(net.table(x.abs().astype("int64") % 10)), sparse, (4,)),
])  # fmt: skip
@pytest.mark.parametrize(("mode", "dtype"), [("fp32", None), ("auto", "bfloat16")])
def test_common_code_of_models_runs_recorded_or_not(function, more, shape, mode, dtype):
    def step(one, number):
        return one.result(numbers(number, *shape)).astype("float32").square().sum()

    replayed, layers = both(lambda: Net(function, more), mode, dtype)
    assert trace_of(replayed, step, RECORDED + 3) == trace_of(layers, step, RECORDED + 3)


def test_whole_slice_is_recorded():
    assert_same(lambda: Net(lambda net, x: net.b(net.a(x)[:, :8])), of_numbers())


def test_threads_that_record_at_once_each_get_their_gradients():
    def train(seed):
        one = both(lambda: nn.Sequential(*[each for _ in range(20) for each in (nn.Linear(8, 8), nn.GELU())]))[0]
        for number in range(60):
            if number % 6 == 0:
                one.forward = half_cpu.Replayed(one.model)
            one.result(numbers(number)).square().sum().backward()
        finished.append(seed)

    finished = []
    in_threads(train, range(2))
    assert sorted(finished) == [0, 1]


def test_layer_that_comes_later_is_seen_in_its_mode():
    def step(one, number):
        if number == RECORDED + 1:
            one.model.b.eval()
        return one.result(numbers(number)).square().sum()

    replayed, layers = both(lambda: Net(lambda net, x: net.b(net.a(x))))
    for one in (replayed, layers):
        paddle.seed(5)
        one.model.b = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
    assert trace_of(replayed, step, RECORDED + 4) == trace_of(layers, step, RECORDED + 4)


@pytest.mark.parametrize(("layer", "name", "value"), [
    (lambda: DropPath(0.1), "p", 0.9), (lambda: nn.BatchNorm1D(8), "_use_global_stats", True),
])  # fmt: skip
def test_attribute_that_is_set_later_is_that_of_the_next_step(layer, name, value):
    """As by a hook of the user's that lets more paths drop from epoch to epoch, or freezes statistics in the end."""

    def step(one, number):
        if number == RECORDED + 1:
            setattr(one.model.between, name, value)
        return one.result(numbers(number)).square().sum()

    def between(net):
        net.between = layer()

    replayed, layers = both(lambda: Net(lambda net, x: net.b(net.between(net.a(x))), between))
    assert trace_of(replayed, step, RECORDED + 4) == trace_of(layers, step, RECORDED + 4)


def test_generators_of_parallel_processes_stand_where_the_layers_leave_them():
    tracker = paddle.distributed.fleet.meta_parallel.get_rng_state_tracker()

    def function(net, x):
        with tracker.rng_state("test"):
            return F.dropout(net.a(x), 0.3)

    found = []
    for one in both(lambda: Net(function)):
        tracker.reset()
        tracker.add("test", 5)
        found.append(trace_of(one, of_numbers(), RECORDED + 4))
    tracker.reset()
    assert found[0] == found[1]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copy_of_a_recorded_model_is_a_model_of_its_own(copied):
    replayed, layers = both(lambda: nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)))
    trace_of(replayed, of_numbers(), RECORDED + 1)
    assert replayed.is_recorded()
    other = copied(replayed.forward)
    assert isinstance(other, half_cpu.Replayed) and other._known is not replayed.forward._known
    assert (other._model is replayed.model) == (copied is copy.copy)
    assert bits(other(numbers(0))) == bits(layers.forward(numbers(0)))


class Interrupted(paddle.autograd.PyLayer):
    """Ctrl-C in the backward pass that is recorded."""

    backwards = 0

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        Interrupted.backwards += 1
        if Interrupted.backwards == RECORDED:
            raise KeyboardInterrupt
        return gradient * 2


def test_interrupt_of_the_backward_pass_that_is_recorded_ends_the_step():
    Interrupted.backwards = 0
    replayed, _ = both(lambda: Net(lambda net, x: Interrupted.apply(net.a(x))))
    with pytest.raises((KeyboardInterrupt, OSError), match="KeyboardInterrupt|^$"):
        for number in range(RECORDED):
            replayed.result(numbers(number)).sum().backward()
    assert Interrupted.backwards == RECORDED and not replayed.is_recorded()
