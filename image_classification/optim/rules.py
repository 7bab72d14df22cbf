"""Update rules that Paddle has not, or has in another form: LAMB, LARS and Lion.

They are Paddle optimizers: ``set_lr``, ``step``, ``clear_grad`` and the state work as for the others. Arithmetic and
state are float32, also where the weights are not, on the tensor's own device and without a transfer to the host.
"""

import paddle

from image_classification.half_cpu import composite


class Rule(paddle.optimizer.Optimizer):
    """Base of the rules here: per-tensor weight decay and accumulators, one call of :meth:`update` per tensor.

    Args:
        learning_rate: until ``set_lr`` is called.
        settings: the tensors to optimize, as :func:`~.groups.parameter_settings` returns them.
    """

    slots = ()  # names of the accumulators with the tensor's shape, which start at 0
    powers = ()  # names of the scalars that start at 1; float64, because 1 - 0.999 has three digits less in float32

    def __init__(self, learning_rate, settings):
        super().__init__(learning_rate, [setting.tensor for setting in settings])
        self._settings = {setting.tensor.name: setting for setting in settings}

    def update(self, param, grad, lr, setting, state):
        """Change ``param`` and the tensors of ``state`` {slot: tensor} in place; ``lr`` is a scalar tensor."""
        raise NotImplementedError

    def _create_accumulators(self, block, parameters):
        for param in parameters:
            for slot in self.slots:
                self._add_accumulator(slot, param, dtype="float32")
            for slot in self.powers:
                self._add_accumulator(slot, param, dtype="float64", fill_value=1.0, shape=[1])

    def _append_optimize_op(self, block, param_and_grad):
        param, grad = param_and_grad
        state = {slot: self._get_accumulator(slot, param) for slot in self.slots + self.powers}
        # the weights themselves, or a copy where a mode without master weights stores them in half precision
        weights = param.astype("float32") if param.dtype != paddle.float32 else param
        lr = self._create_param_lr(param_and_grad)
        self.update(weights, grad.astype("float32"), lr, self._settings[param.name], state)
        if weights is not param:
            paddle.assign(weights.astype(param.dtype), param)


class Lamb(Rule):
    """LAMB (You et al. 2020): Adam's direction, scaled per tensor to the norm of the weights.

    With ``bias_correction=False``, ``always_adapt=True`` and weight decay on all tensors this is the rule of
    ColossalAI's large-batch recipe.

    Args:
        betas: decay of the averages of the gradient and of its square.
        epsilon: added to the root of the second average.
        bias_correction: divide both averages by what they lack for having started at 0.
        trust_clip: largest trust ratio, None for no limit.
        always_adapt: use the trust ratio also for tensors without weight decay (biases, norms).
    """

    slots = ("moment1", "moment2")
    powers = ("beta1_pow", "beta2_pow")

    def __init__(
        self,
        learning_rate,
        settings,
        betas=(0.9, 0.999),
        epsilon=1e-6,
        bias_correction=True,
        trust_clip=None,
        always_adapt=False,
    ):
        super().__init__(learning_rate, settings)
        self._betas = betas
        self._epsilon = epsilon
        self._bias_correction = bias_correction
        self._trust_clip = trust_clip
        self._always_adapt = always_adapt

    def update(self, param, grad, lr, setting, state):
        """Change ``param`` and ``state`` in place."""
        adapts = bool(setting.weight_decay or self._always_adapt)
        direction, squares = lamb_direction(
            param, grad, *(state[slot] for slot in self.slots + self.powers), self._betas, self._epsilon,
            self._bias_correction, setting.weight_decay, adapts
        )  # fmt: skip
        if adapts and setting.holders is not None:
            setting.holders.all_reduce(squares)
        lamb_descend(param, lr, direction, squares, self._trust_clip)


class Lars(Rule):
    """LARS (You et al. 2017): momentum whose rate is scaled per tensor by norm of weights / norm of gradient.

    The learning rate enters the velocity, as in the paper, so a change of it does not rescale what has built up.

    Args:
        momentum: decay of the velocity.
        trust_coefficient: factor of the ratio; the ratio itself is 1 for tensors without weight decay.
        always_adapt: use the trust ratio also for tensors without weight decay (biases, norms).
    """

    slots = ("velocity_with_rate",)  # Momentum's velocity is another thing, and no run takes one for the other

    def __init__(self, learning_rate, settings, momentum, trust_coefficient, always_adapt):
        super().__init__(learning_rate, settings)
        self._momentum = momentum
        self._trust_coefficient = trust_coefficient
        self._always_adapt = always_adapt

    def update(self, param, grad, lr, setting, state):
        """Change ``param`` and ``state`` in place."""
        weight_decay = setting.weight_decay
        if weight_decay or self._always_adapt:
            weight_norm, grad_norm = norms(param, grad, setting.holders)
            lr = lr * _ratio(self._trust_coefficient * weight_norm, grad_norm + weight_decay * weight_norm)
        if weight_decay:
            grad = grad + weight_decay * param
        param.subtract_(state["velocity_with_rate"].scale_(self._momentum).add_(lr * grad))


class Lion(Rule):
    """Lion (Chen et al. 2023): the sign of an average of the gradient; weight decay is decoupled.

    Args:
        betas: share of the average in the update, and decay of the average itself; the paper uses (0.9, 0.99).
    """

    slots = ("moment1",)

    def __init__(self, learning_rate, settings, betas):
        super().__init__(learning_rate, settings)
        self._betas = betas

    def update(self, param, grad, lr, setting, state):
        """Change ``param`` and ``state`` in place."""
        beta1, beta2 = self._betas
        moment1 = state["moment1"]
        direction = paddle.sign(beta1 * moment1 + (1 - beta1) * grad)
        if setting.weight_decay:
            direction = direction + setting.weight_decay * param
        param.subtract_(lr * direction)
        moment1.scale_(beta2).add_((1 - beta2) * grad)


@composite("lamb_direction")
def lamb_direction(weights, grad, average, square, power1, power2, betas, epsilon, corrects, weight_decay, adapts):
    """Return Adam's direction with decoupled weight decay and, where the rate adapts to them, the sums of squares of
    weights and direction, [2], otherwise None.

    The averages, of the gradient and of its square, and the powers of their betas change in place; where the bias is
    to be corrected each average is divided by what it lacks for having started at 0.
    """
    lacks = [1 - power.scale_(beta) for power, beta in zip((power1, power2), betas, strict=True)]
    lacks = [lack.astype("float32") if corrects else paddle.ones([1]) for lack in lacks]
    average.scale_(betas[0]).add_(grad * (1 - betas[0]))
    square.scale_(betas[1]).add_(grad * grad * (1 - betas[1]))
    direction = (average / lacks[0]) / ((square / lacks[1]).sqrt() + epsilon)
    direction = direction + weight_decay * weights if weight_decay else direction
    return direction, square_sums([weights, direction]) if adapts else None


@composite("lamb_descend")
def lamb_descend(weights, rate, direction, squares, trust_clip):
    """Subtract the direction times the rate, a scalar tensor, from the weights in place. Where there are `squares`,
    those of `lamb_direction`, the rate is multiplied by the trust ratio, at most `trust_clip` unless that is None."""
    if squares is not None:
        trust = _ratio(*squares.sqrt().unbind())
        rate = rate * (trust if trust_clip is None else trust.clip(max=trust_clip))
    weights.subtract_(rate * direction)


@composite("square_sums")
def square_sums(tensors):
    """Return the sum of the squares of all numbers of each tensor, [n]."""
    return paddle.stack([paddle.square(tensor).sum() for tensor in tensors])


def norms(param, update, holders=None):
    """Return the L2 norms of a parameter and of its update as scalar tensors.

    Where ``holders`` have a part of the tensor each, squares are added over them: the norms are those of the whole.

    On a CPU ``paddle.linalg.norm`` adds one number after the other in float32: 0.1 % off for 3 million normal numbers,
    10 % for 40 million equal ones. ``sum`` is right to 1e-6 and 30 times as fast.
    """
    squares = square_sums([param, update])
    if holders is not None:
        holders.all_reduce(squares)
    return squares.sqrt().unbind()


def _ratio(above, below):
    """Return above / below as a scalar tensor, 1 where either of these norms is 0."""
    return paddle.where((above > 0) & (below > 0), above / below, paddle.ones_like(above))
