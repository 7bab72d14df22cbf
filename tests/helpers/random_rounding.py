"""What one rounding per operator makes of a training: Monte Carlo arithmetic (D. S. Parker, UCLA CSD-970002, 1997).

Two devices that compute each operator in float32 and round once agree but for the order of sums: where two sums lie on
different sides of a boundary the results round apart, by one unit at most. A training whose every result is moved by up
to one rounding at random is therefore at least as far from the undisturbed one.
"""

import numpy as np
import paddle

# half a unit in the last place, relative to the value
ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24}


def round_at_random(model, seed, num_terms=1):
    """Make each layer's result, and the gradient on its way back, differ at random by up to a rounding of its format.

    A sum of float32 values in another order differs by up to a rounding per term: `num_terms`, of the longest sum.
    """
    random = np.random.default_rng(seed)

    def disturb(layer, given, result):
        dtype = str(result.dtype).rpartition(".")[-1]
        size = ROUNDING[dtype] * (num_terms if dtype == "float32" else 1)
        factors = 1 + size * random.uniform(-1, 1, result.shape)
        return (result.astype("float32") * paddle.to_tensor(factors.astype("float32"))).astype(result.dtype)

    for layer in model.sublayers():
        if not list(layer.children()):
            layer.register_forward_post_hook(disturb)


def bound(reference, disturbed):
    """Return how far each loss may be from the reference: as far as any disturbed training's was by then."""
    return np.maximum.accumulate(np.max(np.abs(np.subtract(disturbed, reference)), axis=0))
