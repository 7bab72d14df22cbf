"""What a training step that is recorded may be made of, and what it must not depend on."""

import logging
import random

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn

from image_classification import half_cpu
from image_classification.half_cpu import onednn, paddle_names, recorded_pass
from image_classification.half_cpu.onednn_primitives import new_tensor
from image_classification.half_cpu.scope import active
from image_classification.half_cpu.training_replay import RECORDED
from tests.helpers.replays import FORMATS, images
from tests.helpers.trainings import Function, Trained, assert_same_steps, both

pytestmark = pytest.mark.skipif(not onednn.available(), reason="needs a CPU with AVX2 and a wheel with oneDNN")


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
    "images that others read": lambda x: gated(x.transpose([0, 3, 1, 2])),
    "einsum": lambda x: paddle.einsum("bhwc,bijc->bhwij", x, x * 2) * 0.1,
    "einsum by a kernel": lambda x: paddle.einsum("bhqc,bhkc->bhqk", x.detach(), x) + x.mean(3, keepdim=True),
    "largest of images": lambda x: x * F.adaptive_max_pool2d(x.transpose([0, 3, 1, 2]), 1).transpose([0, 2, 3, 1]),
    "stack": lambda x: stacked(x.tile([20, 1, 1, 1])),
    "slopes": lambda x: sloped(x.tile([20, 1, 1, 1]), x.mean([0, 2, 3])),
}


def gated(images):
    return images * F.relu6(images + 3)


def stacked(x):
    return paddle.stack([x, x.detach()], 1).mean(1) * x


def sloped(x, slopes):
    return F.prelu(x, slopes) * slopes.reshape([3, 1, 1])


@pytest.mark.parametrize(("mode", "dtype"), FORMATS[:2])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_between_layers_are_played_with_their_gradients(function, mode, dtype):
    replayed, layers = both(lambda: Function(FUNCTIONS[function]), mode, dtype)
    assert_same_steps(replayed, layers, map(images, range(RECORDED + 3)))
    assert replayed.is_recorded()


class Recurrent(nn.Layer):
    """A layer whose operator returns its states as a list beside another result; one of its weights may be frozen."""

    def __init__(self, kind, depth, is_frozen):
        super().__init__()
        self.rnn, self.head = kind(144, 8, num_layers=depth, dropout=0.3), nn.Linear(8, 5)
        self.rnn.parameters()[0].stop_gradient = is_frozen

    def forward(self, images):
        outputs, states = self.rnn(images.flatten(2))
        return self.head(outputs), states


@pytest.mark.parametrize(("depth", "is_frozen"), [(1, False), (2, True)])
@pytest.mark.parametrize("kind", [nn.SimpleRNN, nn.GRU, nn.LSTM])
def test_recurrent_layers_are_played_with_their_states(kind, depth, is_frozen):
    replayed, layers = both(lambda: Recurrent(kind, depth, is_frozen))
    assert_same_steps(replayed, layers, map(images, range(RECORDED + 2)))
    assert replayed.is_recorded()
    found, expected = (paddle.utils.flatten(one.result(images(0))) for one in (replayed, layers))
    assert [one.shape for one in found] == [one.shape for one in expected]


def test_step_of_large_results_of_paddles_operators_is_left_to_its_layers(caplog):
    """They would be copied, which takes longer than the layers do."""
    replayed, layers = both(lambda: Function(lambda x: paddle.logcumsumexp(x.tile([300, 1, 1, 1]), axis=3)))
    with caplog.at_level(logging.INFO):
        assert_same_steps(replayed, layers, map(images, range(RECORDED + 1)))
    assert not replayed.is_recorded()
    assert "one by one: operators of Paddle's compute most of it, whose results would be copied" in caplog.text


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


def test_operator_that_fails_on_memory_written_unseen_is_left_to_the_layers(caplog):
    """Full of NaN it holds negative integers; Paddle's error about them is not the caller's."""

    def kernel(original, args, kwargs):
        out = new_tensor(paddle.int64, [64])
        paddle_names.assign_out_(paddle_names.full([64], 1, paddle.int64, paddle.CPUPlace()), out)
        return out

    def counted(x):
        return x * paddle.bincount(indices(x.detach()), minlength=24).astype(x.dtype)

    indices = half_cpu.composite(kernel)(lambda x: paddle.ones([64], "int64"))
    replayed, layers = both(lambda: Function(counted))
    with caplog.at_level(logging.INFO):
        assert_same_steps(replayed, layers, map(images, range(RECORDED + 2)))
    assert not replayed.is_recorded() and "played again, they fail" in caplog.text


def test_gradient_that_is_written_unseen_is_left_to_the_layers(monkeypatch):
    """Memory that a process gets from the system holds zeros."""
    monkeypatch.setattr(recorded_pass, "new_tensor", lambda dtype, shape: paddle.zeros(shape, dtype))

    class Shifted(nn.Layer):
        def __init__(self):
            super().__init__()
            self.fc, self.row = nn.Linear(12, 24), self.create_parameter([24])

        def forward(self, images):
            return Shift.apply(self.fc(images), self.row)

    replayed, layers = both(Shifted)
    assert_same_steps(replayed, layers, map(images, range(RECORDED + 2)))
    assert not replayed.is_recorded()


class Once(paddle.autograd.PyLayer):
    """Does nothing; while it is recorded its backward pass fails."""

    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        if active.recorder is not None:
            raise ZeroDivisionError("no division\nby 0")
        return gradient * 1


class Rows(nn.Layer):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(8, 4, sparse=True)

    def forward(self, images):
        return self.words((images > 0).astype("int64"))


FAILURES = {
    "ZeroDivisionError: no division": lambda: Function(Once.apply),
    "the gradient of embedding is not dense": Rows,
}


@pytest.mark.parametrize("failure", FAILURES)
def test_failure_of_a_recording_is_told_in_one_line(failure, caplog):
    trained = Trained(FAILURES[failure]())
    with caplog.at_level(logging.INFO):
        for seed in range(RECORDED + 2):
            trained.result(images(seed)).sum().backward()
    assert not trained.is_recorded()
    (line,) = [record.getMessage() for record in caplog.records if "recorded, it fails" in record.getMessage()]
    assert line.endswith(failure)
