"""BatchNorm whose statistics are those of the whole batch, over all processes of a group.

Paddle's own has no CPU kernel, and on a GPU it always spans the whole world, which is wrong beside a pipeline.
"""

import paddle
from paddle import nn
from paddle.autograd import PyLayer
from paddle.nn import functional as F


class SyncBatchNorm(nn.BatchNorm2D):
    """Takes over parameters, running statistics and settings of a plain BatchNorm; any number of spatial axes.

    Every process may have another number of images. The gradients of weight and bias are the local sums, as data
    parallelism expects. Statistics are computed in float32, the output has the dtype of the input.
    """

    def __init__(self, plain, group):
        super().__init__(plain._num_features, plain._momentum, plain._epsilon)
        self.weight, self.bias = plain.weight, plain.bias
        self._mean, self._variance = plain._mean, plain._variance
        self.group = group

    def forward(self, x):
        if not self.training:
            return F.batch_norm(x, self._mean, self._variance, self.weight, self.bias, epsilon=self._epsilon)
        out, mean, variance = _Normalize.apply(x, self.weight, self.bias, self._epsilon, self.group)
        with paddle.no_grad():
            # Paddle's running variance is the biased one, as in F.batch_norm.
            for running, batch in ((self._mean, mean), (self._variance, variance)):
                moved = running.astype("float32") * self._momentum + batch * (1.0 - self._momentum)
                paddle.assign(moved.astype(running.dtype), running)
        return out


def convert_sync_batch_norm(model, group):
    """Replace every BatchNorm below `model` in place by one that spans `group`; parameter names do not change."""
    for parent in model.sublayers(include_self=True):
        for name, layer in list(parent.named_children()):
            if type(layer) in (nn.BatchNorm1D, nn.BatchNorm2D, nn.BatchNorm3D):
                setattr(parent, name, SyncBatchNorm(layer, group))


class _Normalize(PyLayer):
    @staticmethod
    def forward(ctx, x, weight, bias, epsilon, group):
        shape = [1, -1] + [1] * (x.ndim - 2)
        wide = x.astype("float32")
        mean, variance, count = _statistics(wide, shape, group)
        scale = paddle.rsqrt(variance + epsilon)
        normalized = (wide - mean.reshape(shape)) * scale.reshape(shape)
        out = normalized * weight.astype("float32").reshape(shape) + bias.astype("float32").reshape(shape)
        ctx.save_for_backward(normalized, weight, bias, scale)
        ctx.shape, ctx.count, ctx.group, ctx.dtype = shape, count, group, x.dtype
        return out.astype(x.dtype), mean, variance

    @staticmethod
    def backward(ctx, d_out, d_mean, d_variance):
        normalized, weight, bias, scale = ctx.saved_tensor()
        shape = ctx.shape
        d_out = d_out.astype("float32")
        d_bias = _channel_sums(d_out)
        d_weight = _channel_sums(d_out * normalized)
        totals = ctx.group.all_reduce(paddle.concat([d_bias, d_weight]))
        mean_d, mean_dn = (part.reshape(shape) / ctx.count for part in paddle.split(totals, 2))
        d_x = (d_out - mean_d - normalized * mean_dn) * (weight.astype("float32") * scale).reshape(shape)
        return d_x.astype(ctx.dtype), d_weight.astype(weight.dtype), d_bias.astype(bias.dtype)


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
