"""One process alone: every collective is the identity."""

import paddle

from .. import half_cpu
from ..amp import Reduction
from ..runtime import rng_state, set_rng_state
from .protocol import Parallel, count_parameters


class SingleProcess(Parallel):
    """There are no other processes."""

    rank = 0
    world_size = 1
    data_rank = 0
    data_size = 1
    is_main = True
    pipeline_schedule = None

    def __init__(self):
        self.reduction = Reduction()

    def any(self, flag):
        return bool(flag)

    def any_in_pass(self, flag):
        return bool(flag)

    def sum(self, values):
        return list(values)

    def gather(self, value):
        return [value]

    def describe(self):
        return "1 process"

    def check_model(self, model):
        pass

    def shard_model(self, model, sync_batch_norm=False):
        return model

    def holders_of(self, name):
        return None

    def num_parameters(self, model):
        return count_parameters(model)

    def seed_dropout(self, seed):
        paddle.seed(seed)

    def shard_optimizer(self, optimizer, named_params):
        return optimizer

    def owned(self, named_params):
        return named_params

    def rng_state(self):
        return rng_state()

    def set_rng_state(self, state):
        set_rng_state(state)

    def trained(self, model):
        return half_cpu.Replayed(model)

    def predict(self, model, images):
        return half_cpu.replay_images(model, images)

    def average(self, tensors):
        pass

    def merge(self, state):
        return state

    def cut(self, state, owned=None):
        return state
