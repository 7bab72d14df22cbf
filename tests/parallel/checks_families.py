"""Every family's digits-sized variants in stages and shares, against the same model whole in one process."""

import functools

import numpy
import paddle

from image_classification import amp
from image_classification.config import load_config
from image_classification.model import TensorParallel
from image_classification.optim import build_optimizer
from image_classification.parallel.single import SingleProcess
from image_classification.runtime import UserError
from tests.helpers.model_zoo import CONFIGS, build, builder

from .checks_parity import context_of, forward_backward

BATCH, MICRO_BATCHES = 4, 2


def family(topology, name):
    """Return the largest differences of the loss, of each gradient and of the factors of the rates.

    A gradient's is relative to its largest number, at least a hundredth of the largest of the model: what is zero by
    construction, such as that of a bias before a norm, is the rounding of terms of that size. A family of which no
    layer can be shared gives {"refused": the error's text}.
    """
    context = context_of(topology)
    if context.tensor.size > 1 and not _can_be_shared(_model(name)):
        try:
            context.shard_model(_model(name))
        except UserError as error:
            return {"refused": str(error)}
    loss, gradients, factors = _step(context, name)
    if not context.is_main:
        return None
    expected_loss, expected, expected_factors = _alone(name)
    assert gradients.keys() == expected.keys()
    least = 1e-2 * max(abs(gradient).max() for gradient in expected.values())
    return {
        "loss": abs(loss - expected_loss) / abs(expected_loss),
        "gradients": max(
            float(abs(gradients[name] - expected[name]).max() / max(abs(expected[name]).max(), least))
            for name in expected
        ),
        "factors": max(abs(factor - expected_factors[name]) for name, factor in factors.items()),
    }


def _can_be_shared(model):
    return any(isinstance(layer, TensorParallel) and layer.tensor_parallel_plan() for layer in model.sublayers())


def _path(name):
    return next(path for path in CONFIGS if path.stem == name)


def _model(name):
    """Return the model with random weights; none that starts at 0 hides what goes wrong behind it."""
    paddle.seed(11)
    model = build(_path(name))
    for parameter in model.parameters():
        if not parameter.stop_gradient:
            parameter.set_value(parameter + paddle.randn(parameter.shape) * 0.05)
    return model


@functools.cache
def _alone(name):
    return _step(SingleProcess(), name)


def _step(parallel, name):
    """Return (loss, {name: whole gradient}, {name: factor of the rate}) of one window in float32, dropout off."""
    path = _path(name)
    words = [f"-cfg={path}", "-opts", "TRAIN.OPTIMIZER.LAYER_DECAY=0.5"]
    config = load_config(words, builder(path.parents[1]))
    model = parallel.shard_model(_model(name))
    precision = amp.build_precision("fp32", reduction=parallel.reduction)
    model = precision.convert_model(model)
    named = precision.master_params(model)
    build_optimizer(named, config.TRAIN, model.no_weight_decay(), parallel.holders_of, model.layer_groups())
    model.eval()
    random = numpy.random.default_rng(3)
    side = config.DATA.IMAGE_SIZE
    images = random.standard_normal((BATCH, config.DATA.IMAGE_CHANNELS, side, side), dtype="float32")
    labels = random.integers(0, config.MODEL.NUM_CLASSES, BATCH)
    batches = list(zip(numpy.split(images, MICRO_BATCHES), numpy.split(labels, MICRO_BATCHES), strict=True))
    done = forward_backward(parallel, model, precision, batches)
    loss = sum(float(loss) for loss, _, _ in done) / MICRO_BATCHES
    gradients = parallel.merge({name: param.grad for name, param in named})
    factors = {name: param.optimize_attr["learning_rate"] for name, param in named}
    return loss, {name: numpy.asarray(value) for name, value in gradients.items()}, factors
