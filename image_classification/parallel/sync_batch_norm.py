"""BatchNorm whose statistics are those of the whole batch, over all processes of a group.

Paddle's own has no CPU kernel, and on a GPU it always spans the whole world, which is wrong beside a pipeline.
"""

import paddle
from paddle import nn
from paddle.autograd import PyLayer
from paddle.nn import functional as F

from ..amp.storage import BATCH_NORMS
from ..half_cpu import data_format
from ..runtime import UserError, get_logger
from .group import Group


class SyncBatchNorm(nn.BatchNorm2D):
    """What a plain BatchNorm becomes (`convert_sync_batch_norm`); any number of spatial axes, channels first.

    Every process may have another number of images. The gradients of weight and bias are the local sums, as data
    parallelism expects. Statistics are computed in float32, the output has the dtype of the input. A layer whose
    statistics are frozen normalises with them in training, too.
    """

    group: Group

    def forward(self, x):
        if self._use_global_stats or not self.training:
            return F.batch_norm(
                x, self._mean, self._variance, self.weight, self.bias, self.training, epsilon=self._epsilon,
                use_global_stats=self._use_global_stats,
            )  # fmt: skip
        weight = paddle.ones_like(self._mean) if self.weight is None else self.weight
        bias = paddle.zeros_like(self._mean) if self.bias is None else self.bias
        out, mean, variance = _Normalize.apply(x, weight, bias, self._epsilon, self.group)
        with paddle.no_grad():
            # Paddle's running variance is the biased one, as in F.batch_norm.
            for running, batch in ((self._mean, mean), (self._variance, variance)):
                moved = running.astype("float32") * self._momentum + batch * (1.0 - self._momentum)
                paddle.assign(moved.astype(running.dtype), running)
        return out


def convert_sync_batch_norm(model, group):
    """Make every BatchNorm of `model` one that spans `group`; names do not change. Return whether it has any.

    The layers become another class and stay the same objects: parameters, settings, hooks, whatever they hold remain.

    Raises:
        UserError: a kind of BatchNorm, or an order of axes, that has no statistics over processes.
    """
    layers = [(name, layer) for name, layer in model.named_sublayers(include_self=True)
              if isinstance(layer, BATCH_NORMS)]  # fmt: skip
    for name, layer in layers:
        if type(layer) not in (nn.BatchNorm1D, nn.BatchNorm2D, nn.BatchNorm3D):
            allowed, found = "BatchNorm1D, BatchNorm2D or BatchNorm3D", type(layer).__name__
        elif not data_format(layer).startswith("NC"):
            allowed, found = "channels first", data_format(layer)
        else:
            layer.__class__, layer.group = SyncBatchNorm, group
            continue
        raise UserError(f"PARALLEL.SYNC_BN: {name or 'the model'} is {found}, which is not {allowed}")
    if not layers:
        get_logger().warning("PARALLEL.SYNC_BN: the model has no BatchNorm, so there is no effect of it")
    return bool(layers)


class _Normalize(PyLayer):
    @staticmethod
    def forward(ctx, x, weight, bias, epsilon, group):
        shape = [1, -1] + [1] * (x.ndim - 2)
        wide = x.astype("float32")
        mean, variance, count = _statistics(wide, shape, group)
        scale = paddle.rsqrt(variance + epsilon)
        normalized = (wide - mean.reshape(shape)) * scale.reshape(shape)
        out = normalized * weight.astype("float32").reshape(shape) + bias.astype("float32").reshape(shape)
        ctx.save_for_backward(normalized, weight, scale)
        ctx.shape, ctx.count, ctx.group = shape, count, group
        ctx.inputs = [(tensor.dtype, tensor.stop_gradient) for tensor in (x, weight, bias)]
        return out.astype(x.dtype), mean, variance

    @staticmethod
    def backward(ctx, d_out, d_mean, d_variance):
        normalized, weight, scale = ctx.saved_tensor()
        shape = ctx.shape
        d_out = d_out.astype("float32")
        d_bias = _channel_sums(d_out)
        d_weight = _channel_sums(d_out * normalized)
        totals = ctx.group.all_reduce(paddle.concat([d_bias, d_weight]))
        mean_d, mean_dn = (part.reshape(shape) / ctx.count for part in paddle.split(totals, 2))
        d_x = (d_out - mean_d - normalized * mean_dn) * (weight.astype("float32") * scale).reshape(shape)
        wide = zip((d_x, d_weight, d_bias), ctx.inputs, strict=True)
        return tuple(None if frozen else gradient.astype(dtype) for gradient, (dtype, frozen) in wide)


def _statistics(x, shape, group):
    """Return mean, biased variance and count per channel over the group, from one all-gather.

    Each process's mean and sum of squared deviations are combined (Chan, Golub and LeVeque 1979); E[x^2] - E[x]^2 would
    cancel. A process without images takes part with count 0.
    """
    local_count = float(x.shape[0] * x[0, 0].size if x.shape[0] else 0)
    channels = x.shape[1]
    if local_count:
        local_mean = _channel_sums(x) / local_count
        deviation = _channel_sums((x - local_mean.reshape(shape)) ** 2)
    else:
        local_mean = deviation = paddle.zeros([channels])
    parts = group.all_gather(paddle.concat([paddle.to_tensor([local_count]), local_mean, deviation]))
    counts, means, deviations = zip(*(paddle.split(part, [1, channels, channels]) for part in parts), strict=True)
    count = sum(counts)
    mean = sum(n * m for n, m in zip(counts, means, strict=True)) / count
    total = sum(d + n * (m - mean) ** 2 for n, m, d in zip(counts, means, deviations, strict=True))
    return mean, total / count, count


def _channel_sums(x):
    """Return the sums over every axis but the second, [C], one axis after the other, the innermost first.

    Over several axes at once Paddle's CPU kernel adds one number after the other, at a third of the speed and with up
    to 60 times the error.
    """
    for axis in reversed(range(2, x.ndim)):
        x = x.sum(axis=axis)
    return x.sum(axis=0)
