"""What a model's layers do beside their results, and what becomes of the model between two steps: a recorded step does
not do it, so the layers do."""

import argparse
import array
import collections
import ctypes
import dataclasses
import functools
import itertools
import logging
import random
import threading
import types
from collections.abc import Iterator

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn

from image_classification.half_cpu import onednn
from image_classification.half_cpu.training_replay import RECORDED
from tests.helpers.replays import bits
from tests.helpers.trainings import both

from .test_training_replay_promise import Net, assert_same, numbers, of_numbers, trace_of

pytestmark = pytest.mark.skipif(not onednn.available(), reason="needs a CPU with AVX2 and a wheel with oneDNN")


def counts(net, x):
    net.calls = getattr(net, "calls", 0) + 1
    return net.a(x) / net.calls


def counts_in_a_list(net, x):
    net.kept.append(None)
    return net.a(x) / len(net.kept)


def counts_in_a_dictionary(net, x):
    net.kept[0]["calls"] = net.kept[0].get("calls", 0) + 1
    return net.a(x) / net.kept[0]["calls"]


def counts_in_an_array(net, x):
    net.kept[0] += 1
    return net.a(x) / float(net.kept[0])


def draws(net, x):
    return net.a(x) * (2 if net.kept.random() < 0.5 else 3)


def counts_in_an_object(net, x):
    net.kept.calls += 1
    return net.a(x) / net.kept.calls


def counts_by_a_call(net, x):
    return net.a(x) / (net.kept.__next__ if isinstance(net.kept, Iterator) else net.kept)()


def counts_in_a_tensor(net, x):
    net.kept[0].add_(paddle.ones([1]))
    return net.a(x) / net.kept[0]


@dataclasses.dataclass(slots=True)
class Counter:
    calls: int = 0

    def next(self):
        self.calls += 1
        return self.calls


def counter():
    count = 0

    def function():
        nonlocal count
        count += 1
        return count

    return function


def counter_of_a_default():
    def function(kept):
        kept.append(None)
        return len(kept)

    function.__defaults__ = ([],)
    return function


def sets_weight(net, x):
    net.a.weight.set_value(net.a.weight * 0.9)
    return net.a(x)


def keep(make):
    return lambda net: setattr(net, "kept", make())


@pytest.mark.parametrize(("function", "more"), [
    (counts, lambda net: None), (counts_in_a_list, keep(list)), (counts_in_a_dictionary, keep(lambda: [{}])),
    (counts_in_an_array, keep(lambda: np.zeros(1))),
    (counts_in_an_object, keep(lambda: types.SimpleNamespace(calls=0))),
    (draws, keep(lambda: random.Random(0))), (draws, keep(lambda: np.random.default_rng(0))),
    (counts_in_an_array, keep(lambda: array.array("d", [0]))), (counts_in_an_array, keep(lambda: (ctypes.c_int * 1)())),
    (counts_in_an_object, keep(Counter)), (counts_by_a_call, keep(lambda: Counter().next)),
    (counts_by_a_call, keep(counter)), (counts_by_a_call, keep(counter_of_a_default)),
    (counts_by_a_call, keep(lambda: functools.partial(counter_of_a_default(), []))),
    (counts_by_a_call, keep(lambda: itertools.count(1))), (counts_by_a_call, keep(lambda: (n for n in range(1, 99)))),
    (counts_in_a_tensor, keep(lambda: [paddle.zeros([1])])), (sets_weight, lambda net: None),
])  # fmt: skip
def test_model_that_changes_itself_is_called_as_often_as_without_a_recording(function, more, caplog):
    with caplog.at_level(logging.INFO):
        assert_same(lambda: Net(function, more), of_numbers(), calls=3 * RECORDED, is_recorded=False)
    assert len([record for record in caplog.records if "are trained one by one: " in record.getMessage()]) == 1


def test_model_that_makes_what_it_needs_in_its_first_call_is_recorded_and_no_reason_is_told(caplog):
    """As Paddle's norms of rows, which then spell their data format in another way."""

    def function(net, x):
        if net.kept is None:
            net.kept = [x.shape[1]]
        return net.norm(net.a(x)) * net.kept[0]

    def more(net):
        net.norm, net.kept = nn.BatchNorm1D(8), None

    with caplog.at_level(logging.INFO):
        assert_same(lambda: Net(function, more), of_numbers(), calls=RECORDED + 3)
    assert "one by one" not in caplog.text


@pytest.mark.parametrize("make", [
    lambda: logging.getLogger(__name__), lambda: paddle.ParamAttr(), lambda: threading, lambda: Typed,
    random.SystemRandom, lambda: np.array([threading.Lock()]), lambda: np.zeros(1000), lambda: [*range(1000)],
    lambda: [float("nan")], lambda: {1: {2: {3: {4: {5: 6}}}}}, lambda: {paddle.zeros([2])},
])  # fmt: skip
def test_model_with_whatever_attributes_is_recorded(make):
    assert_same(lambda: Net(lambda net, x: net.a(x), keep(make)), of_numbers())


def replaces_buffer(net, x):
    """As a running mean written by hand: each call has another tensor, in the place of the one before the last."""
    hidden = net.a(x)
    net.mean = 0.9 * net.mean + 0.1 * hidden.detach().astype("float32")
    return net.b(hidden - net.mean)


@pytest.mark.parametrize(("mode", "dtype"), [("fp32", None), ("auto", "bfloat16")])
def test_buffer_that_each_call_replaces_is_that_of_the_layers(mode, dtype):
    """5000 rows get memory that is the same again in every second step, in both formats."""

    def more(net):
        net.register_buffer("mean", paddle.zeros([5000, 8]))

    def train(one):
        losses = []
        for number in range(30):
            loss = one.result(numbers(number, 5000, 8)).astype("float32").square().mean()
            loss.backward()
            losses.append(float(loss))
        return losses

    replayed, layers = both(lambda: Net(replaces_buffer, more), mode, dtype)
    assert train(replayed) == train(layers)


def keeps_loss(net, x):
    """As a mixture of experts, whose balance is a part of the loss."""
    hidden = net.a(x)
    net.kept.append(hidden.astype("float32").square().mean())
    return net.b(hidden)


def test_loss_that_layers_keep_for_the_caller_is_that_of_its_step():
    def step(one, number):
        one.model.kept.clear()
        return one.result(numbers(number)).square().sum() + sum(one.model.kept)

    assert_same(lambda: Net(keeps_loss, keep(list)), step, is_recorded=False)


def table(net):
    net.register_buffer("table", paddle.arange(64).astype("float32").reshape([8, 8]) / 64)


def other_activation(one):
    one.model.between = nn.Tanh()


def swapped_activations(one):
    parts = one.model.between
    parts[0], parts[1] = parts[1], parts[0]


def other_function(one):
    one.model.function = lambda net, x: net.b(net.between(net.a(x)) * 2)


def other_forward(one):
    one.model.between.forward = F.tanh


def other_exponent(one):
    one.model.between.exponent = 3


def other_gain(one):
    one.model.between.gains[0] = 3.0


def other_type(one):
    one.model.between.exponent = True  # which equals 1


def longer_list(one):
    one.model.between.gains.append(0.0)


def exchanged_lists(one):
    between = one.model.between
    between.few, between.none = between.none, between.few


def other_shape_in_place(one):
    one.model.table.reshape_([16, 4])


def other_columns(one):
    one.model.table = one.model.table[:, :4]


def turned_table(one):
    one.model.table = one.model.table.t()


def moved_weight(one):
    one.model.b.weight.data = one.model.a.weight.detach() * 2


@dataclasses.dataclass
class Gains:
    value: object


KINDS = argparse.Namespace, types.SimpleNamespace, Gains


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("held", "change"), [
    (lambda kind: kind(value=2.0), lambda kept: setattr(kept, "value", 3.0)),
    (lambda kind: kind(value=2.0), lambda kept: setattr(kept, "value", True)),
    (lambda kind: kind(value=kind(value=2.0)), lambda kept: setattr(kept.value, "value", 3.0)),
    (lambda kind: [kind(value=2.0)], lambda kept: setattr(kept[0], "value", 3.0)),
])  # fmt: skip
def test_configuration_that_is_changed_between_two_steps_is_that_of_the_next_one(kind, held, change):
    def function(net, x):
        value = net.kept
        while not isinstance(value, (float, bool)):
            value = value[0] if isinstance(value, list) else value.value
        return net.a(x) * value

    def step(one, number):
        if number == RECORDED + 1:
            change(one.model.kept)
        return one.result(numbers(number)).square().sum()

    assert_same(lambda: Net(function, keep(lambda: held(kind))), step)


def class_with(value, *bases):
    return type("Kept", bases, {"value": value})


@pytest.mark.parametrize(("make", "other"), [
    (lambda: class_with(2.0), 3.0), (lambda: class_with(2.0)(), 3.0), (lambda: class_with(2.0, nn.Layer)(), 3.0),
    (lambda: type("Derived", (class_with(2.0, nn.Layer),), {})(), 3.0), (lambda: [class_with([2.0])], [3.0]),
    (lambda: class_with(lambda layer: 2.0, nn.Layer)(), lambda layer: 3.0),
])  # fmt: skip
def test_class_that_is_changed_between_two_steps_is_that_of_the_next_one(make, other):
    def function(net, x):
        value = (net.kept[0] if isinstance(net.kept, list) else net.kept).value
        return net.a(x) * (value[0] if isinstance(value, list) else value() if callable(value) else value)

    def step(one, number):
        if number == RECORDED + 1:
            kept = one.model.kept[0] if isinstance(one.model.kept, list) else one.model.kept
            kind = kept if isinstance(kept, type) else type(kept)
            next(part for part in kind.__mro__ if "value" in vars(part)).value = other
        return one.result(numbers(number)).square().sum()

    assert_same(lambda: Net(function, keep(make)), step)


class Output(collections.OrderedDict):
    """As of models that return an object of a class of their own."""


@pytest.mark.parametrize("result", [
    lambda x: {"logits": x, "loss": None}, lambda x: (x, 4), lambda x: [x, "text", {}], lambda x: Output(logits=x),
    lambda x: Gains(x),
])  # fmt: skip
def test_result_that_is_no_tensor_is_that_of_the_layers(result, caplog):
    def step(one, number):
        found = one.result(numbers(number))
        assert type(found) is type(result(0))
        found = getattr(found, "value", found)
        return (found["logits"] if isinstance(found, dict) else found if paddle.is_tensor(found) else found[0]).sum()

    with caplog.at_level(logging.INFO):
        assert_same(lambda: Net(lambda net, x: result(net.a(x))), step, is_recorded=False)
    assert caplog.text.count("a result is no tensor") == 1


def test_format_that_new_tensors_get_is_that_of_the_step():
    def step(one, number):
        paddle.set_default_dtype("float64" if number > RECORDED else "float32")
        return one.result(numbers(number)).astype("float32").square().sum()

    try:
        assert_same(lambda: Net(lambda net, x: net.a(x) + paddle.full([8], 0.1)), step)
    finally:
        paddle.set_default_dtype("float32")


class Typed(nn.Layer):
    def __init__(self):
        super().__init__()
        self.exponent, self.gains, self.few, self.none = 1, [2.0] * 300, [2.0], []

    def forward(self, x):
        return x * (2.0 if isinstance(self.exponent, bool) else 3.0) * len(self.gains) * sum(self.few, start=1.0)


class Scaled(nn.Layer):
    def __init__(self):
        super().__init__()
        self.exponent, self.gains = 2, [2.0]

    def forward(self, x):
        return x**self.exponent * self.gains[0]


@pytest.mark.parametrize(("make", "change"), [
    (nn.ReLU, other_activation), (nn.ReLU, other_forward), (nn.ReLU, other_function), (Scaled, other_exponent),
    (Scaled, other_gain), (Typed, other_type), (Typed, longer_list), (Typed, exchanged_lists),
    (nn.ReLU, other_shape_in_place),
    (nn.ReLU, other_columns), (nn.ReLU, turned_table), (nn.ReLU, moved_weight),
    (lambda: nn.Sequential(nn.Hardsigmoid(), nn.ReLU()), swapped_activations),
])  # fmt: skip
def test_model_that_is_changed_between_two_steps_is_that_of_the_next_one(make, change):
    """Also where neither weights nor modes and rates are others, nor where a tensor begins."""

    def more(net):
        table(net)
        net.between = make()

    def function(net, x):
        columns = net.table.shape[1]
        return net.b(net.between(net.a(x)))[:, :columns] @ net.table.t()

    def step(one, number):
        if number == RECORDED + 1:
            change(one)
        return one.result(numbers(number)).square().sum()

    replayed, layers = both(lambda: Net(function, more))
    assert trace_of(replayed, step, RECORDED + 1) == trace_of(layers, step, RECORDED + 1) and replayed.is_recorded()
    assert trace_of(replayed, step, RECORDED + 4) == trace_of(layers, step, RECORDED + 4)


def test_object_in_the_place_of_one_that_is_gone_is_another():
    """CPython puts a function where one was that nobody holds any more."""

    def step(one, number):
        one.model.function = None
        one.model.function = (lambda net, x: net.a(x)) if number % 6 < 5 else (lambda net, x: net.a(x) * 2)
        return one.result(numbers(number)).square().sum()

    replayed, layers = both(lambda: Net(None))
    assert trace_of(replayed, step, 30) == trace_of(layers, step, 30)


def test_statistics_of_a_layer_in_a_list_are_those_of_each_call():
    """Paddle registers no such layer, and its norms do not count what they write."""
    norms = []

    def more(net):
        net.kept = [nn.BatchNorm1D(8)]
        norms.append(net.kept[0])

    assert_same(lambda: Net(lambda net, x: net.kept[0](net.a(x)), more), of_numbers(), is_recorded=False)
    replayed, layers = (bits(norm._mean) for norm in norms)
    assert replayed == layers


@pytest.mark.parametrize("is_other", [True, False])
def test_model_whose_attributes_are_others_in_each_call_says_once_that_its_layers_run(is_other, caplog):
    def step(one, number):
        one.model.number = number if is_other else 0
        return one.result(numbers(number)).square().sum()

    with caplog.at_level(logging.INFO):
        assert_same(lambda: Net(lambda net, x: net.a(x)), step, calls=4 * RECORDED, is_recorded=not is_other)
    assert caplog.text.count("are others in each call") == is_other
