"""The collectives inside one optimizer step: one finite check for all, averaged gradients, one global norm."""

import math
from dataclasses import dataclass

import paddle

from image_classification.amp import Reduction

from .group import Group
from .tensor import Cut

BUCKET_ELEMENTS = 2**23  # 32 MiB of float32: large enough to hide latency, small beside a model


@dataclass(eq=False)
class ParallelReduction(Reduction):
    """Reduction over the groups of a run.

    The order inside `Precision.step` is what keeps processes together: `found_inf` comes before every other collective,
    over the whole world, because data gradients are not averaged yet and shards of other processes are not seen here.
    Either all of them go on to the next collective or none does.

    Args:
        world: all processes.
        data: processes that hold the same parameters and see other images.
        model: processes that hold the parts of one replica; shards of ZeRO count as replicas.
        cuts: {parameter name: Cut} of the parameters that tensor parallelism divides.
        counts_whole: whether this process counts the parameters that each process of its tensor group holds whole.
        counts: whether this process's parameters are counted at all; False on all but one replica of a ZeRO group.
    """

    world: Group
    data: Group
    model: Group
    cuts: dict[str, Cut]
    counts_whole: bool
    counts: bool
    bucket_elements: int = BUCKET_ELEMENTS

    def found_inf(self, flag):
        return bool(self.world.vote([int(flag)])[0])

    def first_bad(self, name):
        names = self.world.all_gather_object(name)
        return next((f"{name} on rank {rank}" for rank, name in enumerate(names) if name is not None), None)

    def average_gradients(self, named_params, squares):
        """Replace each gradient by its mean over the data ranks, added in float32 whatever its dtype.

        A parameter that got a gradient on some ranks only counts as zero on the others, and gets one on all; a
        parameter without a gradient anywhere keeps none.
        """
        with self.world.waiting("gradients"):
            if self.data.size > 1:
                self._average_in_buckets(named_params)
            return self.norm_squared(named_params)

    def _average_in_buckets(self, named_params):
        bucket, elements = [], 0
        with paddle.no_grad():
            for _, param in named_params:
                bucket.append(param)
                elements += math.prod(param.shape)
                if elements >= self.bucket_elements:
                    self._average(bucket)
                    bucket, elements = [], 0
            if bucket:
                self._average(bucket)

    def _average(self, params):
        present = paddle.to_tensor([float(param.grad is not None) for param in params])
        pieces = [_flat_gradient(param) for param in params]
        flat = paddle.concat([*pieces, present])
        flat.scale_(1.0 / self.data.size)  # before the sum, which could overflow
        self.data.all_reduce(flat)
        *pieces, present = paddle.split(flat, [piece.shape[0] for piece in pieces] + [len(params)])
        for param, piece, exists in zip(params, pieces, present.numpy(), strict=True):
            if exists == 0:
                continue
            piece = piece.reshape(param.shape).astype(param.dtype)
            if param.grad is None:
                param.grad = piece
            else:
                paddle.assign(piece, param.grad)

    def norm_squared(self, named_params):
        return self._sum_once(named_params, super().norm_squared)

    def num_zeros(self, named_params):
        return int(self._sum_once(named_params, super().num_zeros))

    def _sum_once(self, named_params, measure):
        counted = [
            (name, param) for name, param in named_params if self.counts and (self.counts_whole or name in self.cuts)
        ]
        local = measure(counted) if counted else 0.0
        return self.model.all_reduce(paddle.to_tensor([local], dtype="float64")).item()


def _flat_gradient(param):
    if param.grad is None:
        return paddle.zeros([math.prod(param.shape)])
    return param.grad.astype("float32").reshape([-1])
