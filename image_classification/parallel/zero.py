"""ZeRO stage 1 (Rajbhandari et al. 2020) by fleet: each process keeps and updates the optimizer state of its share.

Gradients are averaged on every process before, as without it, so the finite check and the clipping do not change.
"""

from typing import Any

from paddle.distributed.fleet.meta_optimizers.dygraph_optimizer import DygraphShardingOptimizer

from image_classification.runtime import UserError


class _ShardingOptimizer(DygraphShardingOptimizer):
    """Fleet's, whose own collectives are watched."""

    group: Any = None

    def step(self):
        with self.group.waiting("the optimizer's step"):
            super().step()


def shard_optimizer(optimizer, fleet_groups, named_params, group):
    """Return fleet's wrapper, which updates this process's share of the parameters and broadcasts each share.

    Raises:
        UserError: the weight decay is part of the gradient (SGD, Momentum, Adam, RMSProp), which fleet refuses.
    """
    if any(getattr(param, "regularizer", None) is not None for _, param in named_params):
        raise UserError("PARALLEL.SHARDING: fleet's ZeRO refuses a weight decay that is part of the gradient; "
                        "use another TRAIN.OPTIMIZER.NAME or TRAIN.WEIGHT_DECAY=0")
    sharded = _ShardingOptimizer(optimizer, fleet_groups)
    sharded.group = group
    # Whoever asks which parameters there are must hear of all, as without ZeRO, not of this process's share.
    sharded._param_groups = sharded._parameter_list
    return sharded


def owned(optimizer, named_params, index):
    """Return those (name, parameter) that the process at `index` of the sharding group updates."""
    return [(name, param) for name, param in named_params if optimizer._param2rank.get(param.name) == index]
