"""What makes tensors past the operators: it is not made again when a recorded pass is played."""

import numpy as np
import paddle
import pytest
from paddle import nn

from image_classification import half_cpu
from image_classification.half_cpu import onednn
from image_classification.half_cpu.past_operators import Watcher
from image_classification.half_cpu.training_replay import RECORDED
from tests.helpers.replays import bits, passes
from tests.helpers.trainings import assert_same_steps, both

pytestmark = pytest.mark.skipif(not onednn.available(), reason="needs a CPU with AVX2 and a wheel with oneDNN")

MAKERS = {
    "array": lambda x: paddle.to_tensor(np.full(x.shape, 0.5, "float32")),
    "list": lambda x: paddle.to_tensor([0.5] * x.shape[0]),
    "Tensor": lambda x: paddle.Tensor(np.full(x.shape, 0.5, "float32")),
    "clone": lambda x: x.clone(),
    "contiguous": lambda x: x.expand([4, 8]).t().contiguous()[:, 0],
    "_copy_to": lambda x: x._copy_to(paddle.CPUPlace(), True),
}


class Chosen(nn.Layer):
    """Returns numbers, or where they are large, others that are made past the operators where freed memory was."""

    def __init__(self, make):
        super().__init__()
        self.a, self.b, self.make = nn.Linear(8, 8), nn.Linear(8, 8), make

    def forward(self, x):
        hidden = self.a(x)
        parts = [(hidden.detach() * number).mean(0) for number in range(6)]
        total = sum(parts)
        del parts
        other = self.make(total)
        result = (self.b(hidden) + total).astype("float32")
        return paddle.where(result > 1e3, other.astype("float32"), result)


def given(number, records):
    numbers = np.random.default_rng(number).standard_normal((4, 8)).astype("float32")
    return paddle.to_tensor(numbers * (1 if number < records else 1e5))


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize(("mode", "dtype"), [("fp32", None), ("auto", "bfloat16")])
def test_tensor_made_past_the_operators_is_that_of_the_layers_in_training(maker, mode, dtype):
    replayed, layers = both(lambda: Chosen(MAKERS[maker]), mode, dtype)
    assert_same_steps(replayed, layers, [given(number, RECORDED) for number in range(RECORDED + 3)])
    assert not replayed.is_recorded()


@pytest.mark.parametrize("maker", MAKERS)
def test_tensor_made_past_the_operators_is_that_of_the_layers_in_evaluation(maker, inside):
    model = inside(Chosen(MAKERS[maker]), "fp32", None)
    for number in range(6):
        assert bits(half_cpu.replay(model, given(number, 3))) == bits(model(given(number, 3)))
    assert passes() == [0]


class Outer(nn.Layer):
    """A model with a part that is replayed by itself."""

    def __init__(self):
        super().__init__()
        self.part, self.head = nn.Linear(8, 8), nn.Linear(8, 8)
        self.replayed = half_cpu.Replayed(self.part)

    def forward(self, x):
        return self.head(self.replayed(x))


def test_part_that_is_replayed_is_recorded_with_the_whole():
    replayed, layers = both(Outer)
    assert_same_steps(replayed, layers, [given(number, 9) for number in range(RECORDED + 3)])
    assert replayed.is_recorded()


class Dense(Outer):
    """Asks for the dense form of what is dense."""

    def forward(self, x):
        return self.head(self.part(x).contiguous())


def test_model_that_asks_for_the_dense_form_of_what_is_dense_is_recorded():
    replayed, layers = both(Dense)
    assert_same_steps(replayed, layers, [given(number, 9) for number in range(RECORDED + 3)])
    assert replayed.is_recorded()


def test_what_happens_behind_a_part_that_is_watched_by_itself_is_seen():
    outer, inner = Watcher(), Watcher()
    with outer.watching():
        with inner.watching():
            pass
        paddle.ones([2]).numpy()
    assert outer.reason and not inner.reason


class Hooked(nn.Layer):
    """Notes the gradients of a result of its own, as what explains an image does."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        hidden = self.a(x)
        hidden.register_hook(lambda gradient: seen.append(bits(gradient)))
        return self.b(hidden)


seen: list = []


def test_hook_that_a_forward_pass_puts_on_a_result_sees_each_gradient_once():
    traces = []
    for one in both(Hooked):
        seen.clear()
        for number in range(RECORDED + 3):
            one.step(given(number, 9))
        traces.append([*seen])
    assert len(traces[0]) == RECORDED + 3 and traces[0] == traces[1]
