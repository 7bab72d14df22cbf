"""An exponential moving average of a model's weights and buffers, kept in float32."""

import contextlib

import paddle

from .runtime import UserError, get_logger

MOST_LEFT = 0.1  # share of the first weights in the last average; more, and it is not of this training


def build_ema(train_config, tensors, steps):
    """Return the average that ``TRAIN.MODEL_EMA`` and ``TRAIN.MODEL_EMA_DECAY`` ask for, started at ``tensors``.

    Says that it is what is evaluated, and warns where the whole run of so many ``steps`` is too short for it.
    """
    if not train_config.MODEL_EMA:
        return NoEMA()
    decay = train_config.MODEL_EMA_DECAY
    average, left = EMA(decay, tensors), decay**steps
    get_logger().info("average of the weights: decay %g; it is what is evaluated, and what is the best", decay)
    if left > MOST_LEFT:
        get_logger().warning(
            "TRAIN.MODEL_EMA_DECAY %g: after the %d steps of this run the average is still %.0f %% the first weights; "
            "%.5g would leave 1 %%", decay, steps, 100 * left, 0.01 ** (1 / steps),
        )  # fmt: skip
    return average


class NoEMA:
    """No average: evaluation sees the model's own weights."""

    def update(self, tensors):
        """Do nothing."""

    def applied(self, model):
        """Return a context in which the model keeps its own weights."""
        return contextlib.nullcontext(model)

    def state_dict(self):
        """Return an empty state."""
        return {}

    def load_state_dict(self, state, resumed):
        """Leave a saved average alone, and say so."""
        if state:
            get_logger().warning("the checkpoint's averaged weights are not used: TRAIN.MODEL_EMA is False")


class EMA:
    """The average ``decay * average + (1 - decay) * value`` of named tensors (Polyak & Juditsky 1992).

    Parameters and floating-point buffers are averaged in float32, whatever the model is stored in: half precision would
    round an update of ``1 - decay`` away. What does not change keeps its bits. Integer buffers are copied. The caller
    calls :meth:`update` after real steps only, never after a skipped one.

    Args:
        decay: at least 0 and below 1.
        tensors: {name: tensor} to start from.

    Raises:
        UserError: ``decay`` out of range.
    """

    def __init__(self, decay, tensors):
        if not 0 <= decay < 1:
            raise UserError(f"TRAIN.MODEL_EMA_DECAY: {decay} is not at least 0 and below 1")
        self.decay = decay
        self._start(tensors)

    @paddle.no_grad()
    def update(self, tensors):
        """Move the average towards ``tensors``: {name: tensor} or [(name, tensor)], always the same names."""
        tensors = dict(tensors)
        self._check_names(tensors)
        for name, value in tensors.items():
            average = self._average[name]
            if average.is_floating_point():
                # a step towards the value, not a sum of two parts, whose rounding moves what is frozen
                average.add_((value.detach().astype("float32") - average).scale_(1 - self.decay))
            else:
                paddle.assign(value.detach(), average)

    @contextlib.contextmanager
    def applied(self, model):
        """Give ``model`` the averaged weights while the context lasts, in the dtypes that it stores.

        Afterwards the model has its own weights back, bit for bit, also after an exception.
        """
        own = model.state_dict()
        self._check_names(own)
        kept = {name: tensor.clone().detach() for name, tensor in own.items()}
        try:
            for name, tensor in own.items():
                tensor.set_value(self._average[name].astype(tensor.dtype))
            yield model
        finally:
            for name, tensor in own.items():
                tensor.set_value(kept[name])

    def state_dict(self):
        """Return {name: tensor}, the average itself, loadable into the plain model."""
        return dict(self._average)

    def load_state_dict(self, state, resumed):
        """Replace the average by a copy of ``state``: {name: tensor or array}; empty: by the ``resumed`` weights.

        Raises:
            UserError: names or shapes differ.
        """
        if not state:
            get_logger().warning("the checkpoint has no averaged weights: the average starts from the resumed weights")
            self._start(resumed)
            return
        self._check_names(state)
        for name, value in state.items():
            if list(value.shape) != list(self._average[name].shape):
                raise UserError(
                    f"averaged weights: {name!r} is {list(value.shape)}, expected {list(self._average[name].shape)}"
                )
        self._start({name: paddle.to_tensor(value) for name, value in state.items()})

    def _start(self, tensors):
        self._average = {}
        for name, value in dict(tensors).items():
            value = value.detach()
            self._average[name] = value.astype("float32") if value.is_floating_point() else value
            if self._average[name].data_ptr() == value.data_ptr():
                self._average[name] = value.clone()

    def _check_names(self, tensors):
        missing = [name for name in self._average if name not in tensors]
        unknown = [name for name in tensors if name not in self._average]
        if missing or unknown:
            raise UserError(
                f"averaged weights do not fit the model: {len(missing)} missing, {len(unknown)} unknown,"
                f" first {(missing + unknown)[0]!r}"
            )
