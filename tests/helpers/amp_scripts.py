"""A script with the lines of Apex's interface, for the tests of `amp`."""

import paddle
from paddle.nn import functional as F

from image_classification import amp
from tests.helpers.amp_models import batch, network

LEVELS = ["O0", "O1", "O2", "O3"]


def adamw(model, rate=0.01):
    return paddle.optimizer.AdamW(rate, parameters=model.parameters())


def start(level, optimizer=adamw, **arguments):
    model = network()
    return amp.initialize(model, optimizer(model), opt_level=level, verbosity=0, **arguments)


def iterate(model, optimizer, steps=3, accumulate=1, **arguments):
    """Return the losses of Apex's three lines, repeated; `accumulate` backward passes make one step."""
    losses = []
    for _ in range(steps):
        for micro in range(accumulate):
            loss = F.cross_entropy(model(batch()[0]), batch()[1]) / accumulate
            delay = {"delay_unscale": micro < accumulate - 1} if arguments.get("delay") else {}
            with amp.scale_loss(loss, optimizer, **delay) as scaled_loss:
                scaled_loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        losses.append(loss.item() * accumulate)
    return losses


def loss_of(model):
    return F.cross_entropy(model(batch()[0]), batch()[1])


def trained(optimizer):
    """Return the tensors that an optimizer moves: running statistics are parameters too, for Paddle."""
    return [param for param in amp.master_params(optimizer) if not param.stop_gradient]
