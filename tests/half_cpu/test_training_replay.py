"""A training step that is played again gives the bits of the layers, or the layers run."""

import gc
import logging
import random
import threading

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn

from image_classification import amp, half_cpu
from image_classification.half_cpu import onednn, paddle_names, recording
from image_classification.half_cpu.onednn_primitives import new_tensor
from image_classification.half_cpu.scope import active
from image_classification.half_cpu.training_replay import KEPT, RECORDED, Training
from image_classification.layers import DropPath, residual
from tests.helpers.replays import FORMATS, bits, images

pytestmark = pytest.mark.skipif(not onednn.available(), reason="needs a CPU with AVX2 and a wheel with oneDNN")


class Net(nn.Layer):
    """Convolution, norm with statistics, dropped paths and numbers, branches, operators of Paddle's alone."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv2D(3, 32, 3, padding=1), nn.BatchNorm2D(32), nn.Linear(32, 16)
        self.path, self.unused = DropPath(0.5), self.create_parameter([4])

    def forward(self, images):
        x = F.relu(self.norm(self.conv(images)))
        x = residual(x, x * F.hardsigmoid(x.mean([2, 3], keepdim=True)), None, self.path)
        x = F.dropout(x, 0.3, training=self.training).mean([2, 3])
        return {"logits": self.fc(x), "further": [paddle.cumprod(x.astype("float32"), dim=1)]}


class Function(nn.Layer):
    """A product, and a function of its result."""

    def __init__(self, function):
        super().__init__()
        self.fc, self.function = nn.Linear(12, 24), function

    def forward(self, images):
        return self.function(self.fc(images))


class Trained:
    """A model in training, and what a step of it leaves: results, gradients, statistics and random numbers."""

    def __init__(self, model, mode="fp32", dtype=None, replayed=True):
        self.precision = amp.build_precision(mode, dtype)
        self.model = self.precision.convert_model(model)
        self.forward = half_cpu.Replayed(self.model) if replayed else self.model

    def result(self, *inputs):
        with self.precision.forward_context():
            return self.forward(*inputs)

    def step(self, *inputs):
        result = self.result(*inputs)
        sum(one.astype("float32").square().sum() for one in paddle.utils.flatten(result)).backward()
        named = [*self.model.named_parameters(), *self.model.named_buffers()]
        gradients = {name: bits(one.grad) for name, one in named if not one.stop_gradient and one.grad is not None}
        for weight in self.model.parameters():
            weight.clear_gradient(set_to_zero=False)
        kept = {name: bits(one) for name, one in named if one.stop_gradient}
        return bits(result), gradients, kept, float(paddle.rand([1]))

    @property
    def known(self):
        """What is known of the shapes that came: recorded passes, or a number."""
        return list(self.forward._known.values())

    def is_recorded(self):
        return any(isinstance(known, Training) for known in self.known)


def both(make, mode="fp32", dtype=None):
    """Return (a model that is replayed, one of the same weights whose layers run), each with its random numbers."""
    found = []
    for replayed in (True, False):
        paddle.seed(0)
        found.append(Trained(make(), mode, dtype, replayed))
    return found


def assert_same_steps(replayed, layers, inputs):
    for number, given in enumerate(inputs):
        given = given if isinstance(given, tuple) else (given,)
        paddle.seed(number)
        found = replayed.step(*given)
        paddle.seed(number)
        assert found == layers.step(*given)


@pytest.mark.parametrize(("mode", "dtype"), FORMATS)
def test_played_steps_give_the_bits_of_the_layers_on_other_images(mode, dtype):
    replayed, layers = both(Net, mode, dtype)
    assert_same_steps(replayed, layers, map(images, range(RECORDED + 3)))
    assert replayed.is_recorded()


def test_layers_of_a_played_step_do_not_run():
    replayed, _ = both(Net)
    runs, forward = [], replayed.model.fc.forward
    replayed.model.fc.forward = lambda x: runs.append(1) or forward(x)
    for seed in range(RECORDED + 5):
        replayed.step(images(seed))
    assert len(runs) == RECORDED - 1 + 2  # what is recorded is compared with the layers


FUNCTIONS = {
    "one tensor twice": lambda x: x * x,
    "branches": lambda x: F.relu(x) + x,
    "a branch before its tensor": lambda x: F.relu(F.hardsigmoid(x)) * F.hardswish(x),
    "views": lambda x: x.reshape([2, -1]).t().reshape([-1, 8]).unsqueeze(0) * 2,
    "strided views": lambda x: F.relu(x.transpose([1, 0, 2, 3])).transpose([2, 1, 0, 3])[:, :, 1].reshape([-1]) * 2,
    "part": lambda x: x[:, 1:2] * 2,
    "part of many": lambda x: paddle.unbind(x, axis=1)[1] * 3,
    "split": lambda x: sum(part * (1 + n) for n, part in enumerate(paddle.split(x, 2, axis=3))),
    "part of a split": lambda x: paddle.split(x, 3, axis=3)[1] * 2,
    "results without a gradient": lambda x: paddle.topk(x, 3)[0] * 2,
    "integers": lambda x: x * F.one_hot(x.argmax(axis=3), 24),
    "Paddle's alone": lambda x: paddle.logcumsumexp(x.astype("float32"), axis=3),
    "random numbers": lambda x: x * paddle.rand([24], x.dtype),
    "dropout": lambda x: F.dropout(x, 0.4),
    "zeros": lambda x: paddle.concat([paddle.zeros_like(x), x], axis=1) * 2,
    "broadcast": lambda x: x.mean([0, 1, 2]).expand([4, 24]) + 1,
    "written in place": lambda x: paddle.zeros([24], x.dtype).fill_(2.0) * x,
    "detached": lambda x: x * x.detach(),
    "index": lambda x: paddle.gather(x, x.argmax(axis=3)[0, 0] % 12, axis=2),
    "another format": lambda x: x.astype("float64").square(),
}


@pytest.mark.parametrize(("mode", "dtype"), FORMATS[:2])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_between_layers_are_played_with_their_gradients(function, mode, dtype):
    replayed, layers = both(lambda: Function(FUNCTIONS[function]), mode, dtype)
    assert_same_steps(replayed, layers, map(images, range(RECORDED + 3)))
    assert replayed.is_recorded()


def test_reader_that_is_alone_in_another_model_is_one_of_several():
    for function in (F.relu, FUNCTIONS["branches"]):
        replayed, layers = both(lambda function=function: Function(function))
        assert_same_steps(replayed, layers, map(images, range(RECORDED + 1)))
        assert replayed.is_recorded()


def unseen(x):
    """Compute by a kernel of one's own with means that nobody watches."""

    def kernel(original, args, kwargs):
        out = new_tensor(args[0].dtype, args[0].shape)
        paddle_names.assign_out_(paddle_names.scale(args[0], 3.0, 0.0, True), out)
        return out

    return x * half_cpu.composite(kernel)(lambda x: x * 3)(x.detach())


READS = {
    "bool": lambda x: x * 2 if x.mean() > 0 else x * 3,
    "item": lambda x: x * x.mean().item(),
    "numpy": lambda x: x + paddle.to_tensor(x.detach().astype("float32").numpy()).astype(x.dtype),
    "slice": lambda x: x[:1, : (x.mean() > 0).astype("int32") + 1] * 2,
    "mask": lambda x: x[x > 0] * 2,
    "number of results": lambda x: x * (2 if paddle.nonzero(x.astype("float32") > 20).shape[0] else 3),
    "random numbers of Python": lambda x: x * (1 + random.random()),
    "random numbers of NumPy": lambda x: x * (1 + np.random.rand()),
    "written unseen": unseen,
    "outside": lambda x: x + paddle.to_tensor(np.full([24], 0.5, "float32")).astype(x.dtype),
}


@pytest.mark.parametrize("read", READS)
def test_step_that_depends_on_more_is_left_to_the_layers(read, caplog):
    replayed, layers = both(lambda: Function(READS[read]))
    with caplog.at_level(logging.INFO):
        for number, factor in enumerate([1, 1, 1, 1, -1, 1, 100, -100]):
            found = []
            for one in (replayed, layers):
                random.seed(number), np.random.seed(number), paddle.seed(number)
                found.append(one.step(factor * images(0)))
            assert found[0] == found[1]
    assert not replayed.is_recorded()
    refused = [record for record in caplog.records if "are trained one by one: " in record.getMessage()]
    assert len(refused) == 1 and "Function" in refused[0].getMessage()


def test_recording_leaves_no_trace_in_statistics_and_random_numbers():
    replayed, layers = both(Net)
    for one in (replayed, layers):
        paddle.seed(7), random.seed(7), np.random.seed(7)
        one.trace = [one.step(images(seed)) for seed in range(RECORDED)]
        one.trace += [random.random(), np.random.rand(), float(paddle.rand([1]))]
    assert replayed.trace == layers.trace and replayed.is_recorded()


def test_model_that_fails_as_it_is_recorded_is_what_it_was():
    calls = []

    class Failing(Net):
        def forward(self, images):
            result = super().forward(images)
            calls.append(1)
            if len(calls) == RECORDED:
                raise ZeroDivisionError
            return result

    replayed, _ = both(Failing)
    for seed in range(RECORDED - 1):
        replayed.step(images(seed))
    before = bits([replayed.model.norm._mean, replayed.model.norm._variance])
    with pytest.raises(ZeroDivisionError):
        replayed.step(images(0))
    assert active.recorder is None and active.scope is None
    assert bits([replayed.model.norm._mean, replayed.model.norm._variance]) == before


def recorded(make=Net, **options):
    """Return (a model that has been recorded, its layers)."""
    replayed, layers = both(make, **options)
    assert_same_steps(replayed, layers, map(images, range(RECORDED)))
    assert replayed.is_recorded()
    return replayed, layers


def test_results_are_the_callers():
    replayed, _ = recorded()
    paddle.seed(0)
    result = replayed.result(images(0))
    result["logits"].square().sum().backward()
    kept = paddle.utils.flatten(result)
    before = bits(kept)
    for weight in replayed.model.parameters():
        weight.clear_gradient(set_to_zero=False)
    replayed.step(images(1))
    assert bits(kept) == before


def test_results_that_other_results_lie_in_are_the_callers():
    class Parts(nn.Layer):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(12, 24)

        def forward(self, images):
            x = self.fc(images)
            return x, x[:1], F.relu(x[1:])

    replayed, _ = recorded(Parts)
    result = replayed.result(images(0))
    before = bits(result)
    sum(one.sum() for one in result).backward()
    replayed.step(images(1))
    assert bits(result) == before


def test_gradients_of_two_batches_add_up():
    replayed, layers = recorded()
    for one in (replayed, layers):
        paddle.seed(3)
        with half_cpu.rounded_once(one.model):
            for seed in range(2):
                one.result(images(seed))["logits"].square().sum().backward()
    for found, expected in zip(replayed.model.parameters(), layers.model.parameters(), strict=True):
        assert (found.grad is None) == (expected.grad is None)
        assert found.grad is None or bits(found.grad) == bits(expected.grad)


def test_result_that_waits_for_its_backward_pass_keeps_it():
    """As of two views of the images that one loss compares."""
    replayed, layers = recorded()
    for one in (replayed, layers):
        paddle.seed(3)
        first, second = one.result(images(1))["logits"], one.result(images(2))["logits"]
        (first * second).sum().backward()
    for found, expected in zip(replayed.model.parameters(), layers.model.parameters(), strict=True):
        assert found.grad is None or bits(found.grad) == bits(expected.grad)


def test_result_without_a_backward_pass_is_no_reason_to_wait():
    replayed, layers = recorded()
    replayed.result(images(1))
    gc.collect()
    runs, forward = [], replayed.model.fc.forward
    replayed.model.fc.forward = lambda x: runs.append(1) or forward(x)
    replayed.result(images(2))
    assert not runs


def test_second_backward_pass_of_one_result_is_refused():
    """Paddle 3.3.1 itself ends such a process, whatever layer it is: so not by way of its engine."""
    replayed, _ = recorded()
    (known,) = replayed.known
    token = known.begin()
    known.end(token)
    with pytest.raises(RuntimeError, match="one backward pass for each call"):
        known.end(token)


def test_weights_written_before_the_backward_pass_are_refused():
    replayed, _ = recorded()
    loss = replayed.result(images(1))["logits"].sum()
    with paddle.no_grad():
        replayed.model.fc.weight.add_(paddle.ones([1]))
    with pytest.raises(Exception, match="written in place since"):
        loss.backward()


def frozen(model):
    model.conv.weight.stop_gradient = True


def moved(model):
    model.fc.weight = model.create_parameter([32, 16], default_initializer=nn.initializer.Constant(0.5))


def statistics_kept(model):
    model.norm.eval()


def without_dropped_paths(model):
    model.path.eval()


@pytest.mark.parametrize("change", [frozen, moved, statistics_kept, without_dropped_paths])
def test_model_that_changed_is_recorded_anew(change):
    replayed, layers = recorded()
    for one in (replayed, layers):
        change(one.model)
    assert_same_steps(replayed, layers, map(images, range(2 * RECORDED + 2)))
    assert sum(isinstance(known, Training) for known in replayed.known) == 2


def test_weights_may_get_other_numbers():
    replayed, layers = recorded()
    for one in (replayed, layers):
        one.model.set_state_dict({name: value * 1.5 for name, value in one.model.state_dict().items()})
    assert_same_steps(replayed, layers, map(images, range(2)))
    assert replayed.is_recorded() and len(replayed.known) == 1


def test_hooks_of_gradients_are_called_once_a_step_with_its_gradient():
    replayed, layers = both(Net)
    for one in (replayed, layers):
        one.seen = []
        one.model.fc.weight.register_hook(lambda gradient, seen=one.seen: seen.append(bits(gradient)))
    assert_same_steps(replayed, layers, map(images, range(RECORDED + 2)))
    assert replayed.seen == layers.seen and len(replayed.seen) == RECORDED + 2 and replayed.is_recorded()


def test_hooks_on_layers_are_called():
    replayed, layers = recorded()
    called = []
    replayed.model.conv.register_forward_post_hook(lambda layer, inputs, result: called.append(1))
    assert_same_steps(replayed, layers, map(images, range(3 * RECORDED)))
    assert len(called) == 3 * RECORDED


def test_without_gradients_or_a_dispatch_or_for_the_gradient_of_images_the_layers_run():
    replayed, layers = recorded()
    given, runs, forward = images(0), [], replayed.model.fc.forward
    replayed.model.fc.forward = lambda x: runs.append(1) or forward(x)
    with paddle.no_grad():
        replayed.result(given)
    replayed.forward(given)
    given.stop_gradient = False
    paddle.seed(0)
    replayed.step(given)
    found = bits(given.grad)
    given.clear_gradient(set_to_zero=False)
    paddle.seed(0)
    layers.step(given)
    assert len(runs) == 3 and found == bits(given.grad)


def test_shapes_that_come_by_turns_have_passes_of_their_own():
    replayed, layers = both(Net)
    batches = [images(seed, batch=2 + seed % 2) for seed in range(6 * RECORDED)]
    assert_same_steps(replayed, layers, batches)
    assert all(isinstance(known, Training) for known in replayed.known) and len(replayed.known) == 2
    for side in range(4, 4 + KEPT + 2):
        assert_same_steps(replayed, layers, [images(0, side=side)])
    assert len(replayed.known) == KEPT


def test_last_batch_of_an_epoch_keeps_the_passes_of_the_others():
    replayed, layers = recorded()
    for seed in range(4):
        assert_same_steps(replayed, layers, [images(seed, batch=1), images(seed)])
    assert sum(isinstance(known, Training) for known in replayed.known) == 1


def test_other_thread_has_passes_of_its_own():
    replayed, layers = recorded()
    thread = threading.Thread(target=lambda: assert_same_steps(replayed, layers, [images(0)]))
    thread.start()
    thread.join()
    assert [isinstance(known, Training) for known in replayed.known] == [True, False]
    assert_same_steps(replayed, layers, [images(1)])


def test_index_out_of_range_is_an_error():
    replayed = Trained(nn.Embedding(40, 1024))
    tokens = paddle.arange(64).reshape([2, 32]) % 40
    for _ in range(RECORDED + 1):
        replayed.step(tokens)
    assert replayed.is_recorded()
    with pytest.raises(Exception, match="less than 40|expected >= 0 and < 40|Variable value|no place"):
        replayed.step(tokens + 30)


def test_two_inputs_are_both_read_anew():
    class Two(nn.Layer):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(12, 24)

        def forward(self, one, other):
            return self.fc(one) * self.fc(other).detach()

    replayed, layers = both(Two)
    assert_same_steps(replayed, layers, ((images(seed), images(seed + 50)) for seed in range(RECORDED + 2)))
    assert replayed.is_recorded()


def test_statistics_that_a_played_pass_writes_count_as_written():
    replayed, _ = recorded()
    before = [one.inplace_version for one in (replayed.model.norm._mean, replayed.model.norm._variance)]
    replayed.result(images(1))
    after = [one.inplace_version for one in (replayed.model.norm._mean, replayed.model.norm._variance)]
    assert all(one > other for one, other in zip(after, before, strict=True))


class Shift(paddle.autograd.PyLayer):
    """Adds a row, whose gradient, zero, is written by means that nobody watches."""

    @staticmethod
    def forward(ctx, x, row):
        return x + row

    @staticmethod
    def backward(ctx, gradient):
        row = new_tensor(gradient.dtype, gradient.shape[-1:])
        paddle_names.assign_out_(paddle_names.full(row.shape, 0.0, row.dtype, paddle.CPUPlace()), row)
        return gradient, row


def test_gradient_that_is_written_unseen_is_left_to_the_layers(monkeypatch):
    """Memory that a process gets from the system holds zeros."""
    monkeypatch.setattr(recording, "new_tensor", lambda dtype, shape: paddle.zeros(shape, dtype))

    class Shifted(nn.Layer):
        def __init__(self):
            super().__init__()
            self.fc, self.row = nn.Linear(12, 24), self.create_parameter([24])

        def forward(self, images):
            return Shift.apply(self.fc(images), self.row)

    replayed, layers = both(Shifted)
    assert_same_steps(replayed, layers, map(images, range(RECORDED + 2)))
    assert not replayed.is_recorded()


def test_shapes_that_change_are_recorded_seldom(caplog):
    """With each time that something is recorded the next one has to come twice as often."""
    replayed, layers = both(Net)
    with caplog.at_level(logging.INFO):
        for number in range(8):
            assert_same_steps(replayed, layers, [images(0, side=4 + number)] * 2 * RECORDED)
    assert len([record for record in caplog.records if "without its layers" in record.getMessage()]) == 2


def test_weights_that_several_layers_read_get_the_sum_of_their_gradients():
    class Shared(nn.Layer):
        def __init__(self):
            super().__init__()
            self.fc, self.norm = nn.Linear(24, 24), nn.LayerNorm(24)

        def forward(self, images):
            x = images.reshape([2, 18, 24])
            return self.norm(self.fc(self.norm(self.fc(x))))

    replayed, layers = both(Shared)
    assert_same_steps(replayed, layers, map(images, range(RECORDED + 2)))
    assert replayed.is_recorded() and not hasattr(replayed.model.fc.weight, "rest_of_branches")


def test_intermediate_results_share_memory():
    """Each of 30 layers' results is 96 KiB, of which training keeps one for each layer and no more."""
    replayed, _ = both(lambda: Function(lambda x: _thirty(x)))
    for _ in range(RECORDED):
        replayed.step(images(0, batch=32, side=12))
    (known,) = replayed.known
    one = 32 * 3 * 12 * 24 * 4
    assert 30 * one <= known.played.bytes <= 36 * one


def _thirty(x):
    for _ in range(30):
        x = F.gelu(x)
    return x
