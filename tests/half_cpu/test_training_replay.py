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
from image_classification.half_cpu import onednn
from image_classification.half_cpu.scope import active
from image_classification.half_cpu.training_replay import KEPT, RECORDED, Training
from tests.helpers.policies import Policy
from tests.helpers.replays import FORMATS, bits, images
from tests.helpers.trainings import Function, Net, Trained, assert_same_steps, both, recorded

pytestmark = pytest.mark.skipif(not onednn.available(), reason="needs a CPU with AVX2 and a wheel with oneDNN")


@pytest.fixture
def runs(monkeypatch):
    """A list that grows with each call of a linear layer."""
    runs, forward = [], nn.Linear.forward
    monkeypatch.setattr(nn.Linear, "forward", lambda layer, x: runs.append(layer) or forward(layer, x))
    return runs


@pytest.mark.parametrize(("mode", "dtype"), FORMATS)
def test_played_steps_give_the_bits_of_the_layers_on_other_images(mode, dtype):
    replayed, layers = both(Net, mode, dtype)
    assert_same_steps(replayed, layers, map(images, range(RECORDED + 3)))
    assert replayed.is_recorded()


@pytest.mark.parametrize(("mode", "dtype"), FORMATS)
def test_layers_of_a_played_step_do_not_run(mode, dtype, runs):
    replayed, _ = both(Net, mode, dtype)
    for seed in range(RECORDED + 5):
        replayed.step(images(seed))
    assert len(runs) == RECORDED - 1 + 2  # what is recorded is compared with the layers


def test_recording_leaves_no_trace_in_statistics_and_random_numbers():
    replayed, layers = both(Net)
    for one in (replayed, layers):
        paddle.seed(7), random.seed(7), np.random.seed(7)
        one.trace = [one.step(images(seed)) for seed in range(RECORDED)]
        one.trace += [random.random(), np.random.rand(), float(paddle.rand([1]))]
    assert replayed.trace == layers.trace and replayed.is_recorded()


def test_model_that_fails_as_it_is_recorded_is_what_it_was_and_its_layers_run():
    calls = []

    class Failing(Net):
        def forward(self, images):
            result = super().forward(images)
            calls.append(1)
            if len(calls) == RECORDED:
                raise ZeroDivisionError
            return result

    (replayed, _), (_, layers) = both(Failing), both(Net)
    for seed in range(RECORDED - 1):
        replayed.step(images(seed))
    paddle.seed(1)
    found = replayed.step(images(0))
    paddle.seed(1)
    for seed in range(RECORDED - 1):
        layers.step(images(seed))
    paddle.seed(1)
    assert found == layers.step(images(0)) and not replayed.is_recorded()
    assert active.recorder is None and active.scope is None


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


def test_weights_that_are_rounded_once_are_those_of_each_window():
    replayed, layers = both(Net, mode="auto", dtype="bfloat16")
    for window in range(RECORDED):
        for one in (replayed, layers):
            paddle.seed(window)
            with half_cpu.rounded_once(one.model):
                one.found = [one.step(images(2 * window + number)) for number in range(2)]
            with paddle.no_grad():
                one.model.fc.weight.add_(paddle.full([32, 16], 0.5))
        assert replayed.found == layers.found
    assert replayed.is_recorded()


def test_result_that_waits_for_its_backward_pass_keeps_it():
    """As of two views of the images that one loss compares."""
    replayed, layers = recorded()
    for one in (replayed, layers):
        paddle.seed(3)
        first, second = one.result(images(1))["logits"], one.result(images(2))["logits"]
        (first * second).sum().backward()
    for found, expected in zip(replayed.model.parameters(), layers.model.parameters(), strict=True):
        assert found.grad is None or bits(found.grad) == bits(expected.grad)


def test_result_without_a_backward_pass_is_no_reason_to_wait(runs):
    replayed, layers = recorded()
    replayed.result(images(1))
    gc.collect()
    runs.clear()
    replayed.result(images(2))
    assert not runs


def test_second_backward_pass_of_one_result_is_refused():
    """Paddle 3.3.1 itself ends such a process, whatever layer it is: so not by way of its engine."""
    replayed, _ = recorded()
    (known,) = replayed.known
    token = known.begin()
    with known.ending(token):
        pass
    with pytest.raises(RuntimeError, match="one backward pass for each call"), known.ending(token):
        pass


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


def test_without_gradients_or_a_dispatch_or_for_the_gradient_of_images_the_layers_run(runs):
    replayed, layers = recorded()
    given = images(0)
    runs.clear()
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
    assert runs == 3 * [replayed.model.fc] + [layers.model.fc] and found == bits(given.grad)


def test_log_says_once_that_the_dispatch_is_inside_the_model_and_the_layers_run(runs, caplog):
    """As in what `amp.initialize` returns: all that is around its forward pass sees layers."""
    caplog.set_level(logging.INFO)
    model = half_cpu.Replayed(amp.initialize(nn.Linear(4, 3), opt_level="O1"))
    for _ in range(RECORDED + 2):
        model(paddle.ones([2, 4])).sum().backward()
    assert len(runs) == RECORDED + 2
    assert [line for line in caplog.messages if "one by one" in line] == [
        "half_cpu: the layers of AmpModel are trained one by one: no dispatch, as of a precision's forward_context, is "
        "open around the call"
    ]


def test_shapes_that_come_by_turns_have_passes_of_their_own():
    replayed, layers = both(Net)
    batches = [images(seed, batch=2 + seed % 2) for seed in range(6 * RECORDED)]
    assert_same_steps(replayed, layers, batches)
    assert all(isinstance(known, Training) for known in replayed.known) and len(replayed.known) == 2
    for side in range(4, 4 + KEPT + 2):
        assert_same_steps(replayed, layers, [images(0, side=side)])
    assert len(replayed.known) == KEPT


def test_policies_that_come_by_turns_have_passes_of_their_own():
    replayed, layers = both(Net)
    policies = Policy(), Policy("bfloat16")
    for number in range(4 * RECORDED + 2):  # the second time it takes twice as many calls
        found = []
        for one in (replayed, layers):
            paddle.seed(number)
            with half_cpu.dispatch(policies[number % 2]):
                result = one.forward(images(number))
            sum(each.astype("float32").sum() for each in paddle.utils.flatten(result)).backward()
            found.append(bits(result))
        assert found[0] == found[1]
    assert sum(isinstance(known, Training) for known in replayed.known) == 2


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


class Rows(nn.Layer):
    """Some rows of a weight, by a kernel where they are recorded."""

    def __init__(self):
        super().__init__()
        self.weight = self.create_parameter([40, 1024])

    def forward(self, rows):
        return paddle.gather(self.weight, rows.flatten())


@pytest.mark.parametrize("model", [lambda: nn.Embedding(40, 1024), Rows], ids=["Paddle's", "kernel's"])
def test_index_out_of_range_is_paddles_error(model):
    replayed = Trained(model())
    tokens = paddle.arange(64).reshape([2, 32]) % 40
    for _ in range(RECORDED + 1):
        replayed.step(tokens)
    assert replayed.is_recorded()
    with pytest.raises(Exception, match="less than 40|expected >= 0 and < 40|Variable value|less than the size"):
        replayed.step(tokens + 30)


def test_options_and_what_is_no_tensor_go_to_the_layers():
    class Any(nn.Layer):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(12, 24)

        def forward(self, images, factor=1.0):
            return self.fc(images) * factor

    replayed, layers = both(Any)
    for seed in range(RECORDED + 2):
        for given in ((images(seed), 2.0), (images(seed),)):
            assert bits(replayed.result(*given)) == bits(layers.result(*given))
    assert bits(replayed.forward(images(0), factor=3.0)) == bits(layers.forward(images(0), factor=3.0))


class Given(paddle.autograd.PyLayer):
    """Something of a tensor whose gradient is another one, such as a view."""

    @staticmethod
    def forward(ctx, x, gradient):
        ctx.gradient = gradient
        return x.sum()

    @staticmethod
    def backward(ctx, _):
        return ctx.gradient, None


def test_gradient_of_another_format_or_order_is_read_as_what_it_is():
    replayed, layers = recorded(lambda: Function(lambda x: x * 2), mode="auto", dtype="bfloat16")
    draw = np.random.default_rng(0).standard_normal([24, 12, 3, 2]).astype("float32")
    for one in (replayed, layers):
        Given.apply(one.result(images(1)), paddle.to_tensor(draw).transpose([3, 2, 1, 0])).backward()
    for found, expected in zip(replayed.model.parameters(), layers.model.parameters(), strict=True):
        assert bits(found.grad) == bits(expected.grad)


class Maps(nn.Layer):
    """Two maps of images, as a network for segmentation or detection returns them; one is an operator's of Paddle's."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Conv2D(3, 32, 3, padding=1), nn.Conv2D(32, 19, 1)

    def forward(self, images):
        x = F.relu(self.stem(images))
        return self.head(x), x.flip([2])


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [0, 2, 3, 1], [3, 1, 0, 2]], ids=["images", "rows", "neither"])
@pytest.mark.parametrize(("mode", "dtype"), FORMATS)
def test_images_that_are_results_may_lie_as_rows_and_their_gradients_in_any_order(mode, dtype, order):
    replayed, layers = recorded(Maps, mode=mode, dtype=dtype)
    assert not replayed.result(images(1))[0].is_contiguous()
    draw = np.random.default_rng(0)
    for seed in range(2):
        given = [draw.standard_normal([(2, many, 12, 12)[axis] for axis in order]) for many in (19, 32)]
        for one in (replayed, layers):
            results, turned = one.result(images(seed)), np.argsort(order).tolist()
            views = [paddle.to_tensor(numbers.astype("float32")).transpose(turned) for numbers in given]
            sum(map(Given.apply, results, views)).backward()
        for found, expected in zip(replayed.model.parameters(), layers.model.parameters(), strict=True):
            assert bits(found.grad) == bits(expected.grad)


def test_images_in_another_order_are_those_of_the_layers():
    replayed, layers = recorded()
    assert_same_steps(replayed, layers, (images(seed).transpose([0, 1, 3, 2]) for seed in range(3)))


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
