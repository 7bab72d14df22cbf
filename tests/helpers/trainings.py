"""What tests of recorded training steps share: a network, a step and what it leaves."""

import paddle
import paddle.nn.functional as F
from paddle import nn

from image_classification import amp, half_cpu
from image_classification.half_cpu.training_replay import RECORDED, Training
from image_classification.layers import DropPath, residual

from .replays import bits, images


class Net(nn.Layer):
    """Convolution, norm with statistics, dropped paths and numbers, branches, operators of Paddle's alone."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv2D(3, 32, 3, padding=1), nn.BatchNorm2D(32), nn.Linear(32, 16)
        self.path, self.unused = DropPath(0.5), self.create_parameter([4])

    def forward(self, images):
        x = F.relu(self.norm(self.conv(images)))
        x = residual(x, x * F.hardsigmoid(F.adaptive_avg_pool2d(x, 1)), None, self.path)
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


def recorded(make=Net, **options):
    """Return (a model that has been recorded, its layers)."""
    replayed, layers = both(make, **options)
    assert_same_steps(replayed, layers, map(images, range(RECORDED)))
    assert replayed.is_recorded()
    return replayed, layers
