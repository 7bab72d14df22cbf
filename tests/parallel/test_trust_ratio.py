"""LAMB and LARS, whose trust ratios need whole tensors, where processes hold parts of them or share the state."""

import numpy
import pytest

from image_classification import amp
from image_classification.config import build_config
from image_classification.optim import build_optimizer
from image_classification.parallel.single import SingleProcess

from .checks_parity import context_of, forward_backward, fresh_model, share

STEPS = 5
# LAMB's usual epsilon would magnify the rounding of gradients near 0, which is not what is measured here.
OPTIMIZERS = {"LAMB": {"EPS": 1e-2, "TRUST_CLIP": 3.0}, "LARS": {"TRUST_COEFFICIENT": 0.02}}


def run(name, parallel):
    """Return the whole weights before and after some steps; biases, of which some are cut, are adapted, too."""
    options = {"NAME": name, "ALWAYS_ADAPT": True, **OPTIMIZERS[name]}
    config = build_config([("test", {"TRAIN": {"BASE_LR": 0.02, "WEIGHT_DECAY": 0.1, "OPTIMIZER": options}})])
    model = parallel.shard_model(fresh_model())
    precision = amp.build_precision("fp32", reduction=parallel.reduction)
    model = precision.convert_model(model)
    named = precision.master_params(model)
    optimizer = build_optimizer(named, config.TRAIN, model.no_weight_decay(), parallel.holders_of)
    optimizer = parallel.shard_optimizer(optimizer, named)

    def weights():
        merged = parallel.merge(precision.model_state_dict(model))
        return {key: numpy.array(value) for key, value in merged.items()}

    before = weights()
    for step in range(STEPS):
        for _ in forward_backward(parallel, model, precision, share(parallel, step, 4)):
            pass
        assert precision.step(optimizer).applied
    return before, weights()


def parity(topology, name):
    """Return (largest difference of a weight from one process's, largest change of a weight in the training)."""
    context = context_of(topology)
    before, weights = run(name, context)
    if not context.is_main:
        return None
    _, expected = run(name, SingleProcess())
    assert weights.keys() == expected.keys()
    return [max(float(abs(weights[key] - other[key]).max()) for key in other) for other in (expected, before)]


@pytest.mark.check("test_trust_ratio:parity:{topology}:{name}")
@pytest.mark.parametrize(("size", "topology"), [
    (2, "tp2"), (2, "sh2"), pytest.param(4, "tp2pp2", marks=pytest.mark.slow),
])  # fmt: skip
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_lamb_and_lars_give_the_weights_of_one_process(results, size, topology, name):
    difference, change = results[0]
    assert difference <= 1e-6  # a few units in the last place of float32 weights below 1
    assert change > 0.01
