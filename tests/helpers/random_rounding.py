"""What one rounding per operator makes of a training: Monte Carlo arithmetic (D. S. Parker, UCLA CSD-970002, 1997).

Two devices that compute each operator in float32 and round once agree but for the order of sums: where two sums lie on
different sides of a boundary the results round apart, by one unit at most. A training whose every result is moved by up
to one rounding at random is therefore at least as far from the undisturbed one.
"""

import numpy as np
import paddle

# half a unit in the last place, relative to the value
ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24}


def round_at_random(model, size, seed):
    """Change what each layer returns, its gradient on the way back and each weight's gradient by up to `size` of it.

    Also what layers made of layers return: they stand for the operators of their own, a residual sum or an attention.
    """
    random = np.random.default_rng(seed)

    def disturb(tensor):
        factors = 1 + size * random.uniform(-1, 1, tensor.shape)
        return (tensor.astype("float32") * paddle.to_tensor(factors.astype("float32"))).astype(tensor.dtype)

    for layer in model.sublayers():
        layer.register_forward_post_hook(lambda layer, given, result: disturb(result))
    for param in model.parameters():
        if not param.stop_gradient:
            param.register_hook(disturb)


def bound(reference, disturbed):
    """Return how far each loss may be from the reference: as far as any disturbed training's was by then."""
    return np.maximum.accumulate(np.max(np.abs(np.subtract(disturbed, reference)), axis=0))
