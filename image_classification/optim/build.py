"""From ``TRAIN`` to an optimizer."""

import paddle

from ..runtime import UserError, get_logger, has_kernel
from .groups import parameter_settings
from .rules import Lamb, Lars, Lion

L2_KINDS = ("adam", "sgd", "momentum", "rmsprop")  # weight decay is part of their gradient


def build_optimizer(named_params, train_config, no_weight_decay=frozenset(), holders_of=None, layer_groups=()):
    """Return a ``paddle.optimizer.Optimizer`` over the trainable tensors of ``named_params``.

    The learning rate is whatever ``optimizer.set_lr(value)`` said last. Gradients are clipped by the precision's step,
    never in here. Weight decay is decoupled in AdamW, LAMB and Lion and part of the gradient in the others.

    Args:
        named_params: [(structured name, float32 tensor)] as ``Precision.master_params`` hands them out.
        no_weight_decay: names that the model exempts from weight decay.
        holders_of: name -> the group of processes that hold the parts of this tensor, None where it is whole.
        layer_groups: the model's layers, for layer-wise decay.

    Raises:
        UserError: Paddle's optimizer has no kernel for the parameters; the text names the key.
    """
    named_params = list(named_params)
    options = train_config.OPTIMIZER
    settings = parameter_settings(
        named_params, train_config.WEIGHT_DECAY, no_weight_decay, options.DECAY_ALL, options.LAYER_DECAY, holders_of,
        layer_groups,
    )  # fmt: skip
    for setting in settings:
        # Paddle reads these two from the tensor; masters are plain tensors and have neither.
        setting.tensor.optimize_attr = {"learning_rate": setting.lr_scale}
        setting.tensor.regularizer = None
    get_logger().info(
        "optimizer: %s, weight decay %g on %d of %d tensors",
        options.NAME,
        train_config.WEIGHT_DECAY,
        sum(setting.weight_decay != 0 for setting in settings),
        len(settings),
    )
    _check_kernel(options.NAME, [setting.tensor for setting in settings])
    return build_rule(train_config, settings)


def build_rule(train_config, settings):
    """Return the optimizer over tensors whose settings are known."""
    options = train_config.OPTIMIZER
    decayed = {setting.tensor.name for setting in settings if setting.weight_decay}
    tensors = [setting.tensor for setting in settings]
    lr = float(train_config.BASE_LR)
    kind = options.NAME.lower()
    if kind == "adamw":
        return paddle.optimizer.AdamW(
            lr,
            *options.BETAS,
            options.EPS,
            tensors,
            weight_decay=train_config.WEIGHT_DECAY,
            apply_decay_param_fun=decayed.__contains__,
        )
    if kind in L2_KINDS:
        for setting in settings:
            if setting.weight_decay:
                setting.tensor.regularizer = paddle.regularizer.L2Decay(setting.weight_decay)
    if kind == "adam":
        return paddle.optimizer.Adam(lr, *options.BETAS, options.EPS, tensors)
    if kind == "sgd":
        return paddle.optimizer.SGD(lr, tensors)
    if kind == "momentum":
        return paddle.optimizer.Momentum(lr, options.MOMENTUM, tensors, use_nesterov=options.NESTEROV)
    if kind == "rmsprop":
        return paddle.optimizer.RMSProp(lr, options.RHO, options.EPS, options.MOMENTUM, parameters=tensors)
    if kind == "lamb":
        return Lamb(
            lr,
            settings,
            options.BETAS,
            options.EPS,
            options.BIAS_CORRECTION,
            options.TRUST_CLIP,
            options.ALWAYS_ADAPT,
        )
    if kind == "lars":
        return Lars(lr, settings, options.MOMENTUM, options.TRUST_COEFFICIENT, options.ALWAYS_ADAPT)
    return Lion(lr, settings, options.BETAS)


def _check_kernel(name, tensors):
    """Refuse a format in which Paddle's optimizer has no kernel here: Paddle 2.6 has no bfloat16 Momentum on a GPU."""
    device = paddle.get_device().partition(":")[0]
    if device == "cpu" or name.lower() not in ("adamw", "sgd", "momentum"):  # the other rules are ours
        return
    for dtype in sorted({str(tensor.dtype).removeprefix("paddle.") for tensor in tensors} - {"float32"}):
        if not has_kernel(name.lower(), device, dtype):
            raise UserError(
                f"TRAIN.OPTIMIZER: {name} has no {dtype} kernel on {device} in Paddle {paddle.__version__}; take a "
                "mode with float32 masters, such as O2"
            )
