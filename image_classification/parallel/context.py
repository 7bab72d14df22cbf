"""The place of this process in a run, and everything it shares with the others.

Axes of the topology, outermost first, so that the processes that talk most are neighbours on one host:
data > pipeline > sharding > tensor.
"""

import contextlib
import faulthandler
import io
import itertools
import logging
import os
import warnings

import paddle
import paddle.distributed as dist
from paddle.distributed import fleet

from .. import half_cpu
from ..runtime import rank, rng_state, set_rng_state, world_size
from . import gloo, tensor, watch, zero
from .consolidate import Layout
from .group import Group
from .pipeline import Pipeline, Stage, split_chain
from .protocol import Parallel, count_parameters
from .reduction import ParallelReduction
from .sync_batch_norm import convert_sync_batch_norm

# our name of each axis: fleet's name
AXES = {"data": "data", "pipeline": "pipe", "sharding": "sharding", "sep": "sep", "tensor": "model"}
FLEET_DEGREES = {"data": "dp", "pipeline": "pp", "sharding": "sharding", "tensor": "mp"}


def init_processes(degrees):
    """Connect the processes of the run that `env.prepare` found, more than one, and start fleet with these degrees."""
    this_process = watch.this_process()
    logging.getLogger("paddle.distributed.fleet.utils.log_util").setLevel(logging.WARNING)
    strategy = fleet.DistributedStrategy()
    of_fleet = {f"{name}_degree": degrees[axis] for axis, name in FLEET_DEGREES.items()}
    strategy.hybrid_configs = of_fleet  # type: ignore[assignment]  # to Paddle a TypedDict, which cannot be put together
    warnings.filterwarnings("ignore", message="Current global rank .* is not in group")
    with this_process.waiting("the start of the process groups"):
        this_process.gate(range(world_size()))
        # While Paddle waits for its store it keeps the interpreter, and with it the watch, from running: until all are
        # here nobody begins, and in what is left, some tens of milliseconds, a thread of C does the watching.
        faulthandler.dump_traceback_later(this_process.limit + 5, exit=True)
        try:
            if gloo.active():
                gloo.install()
                if rank() != 0:
                    gloo.wait_for_master(os.environ["PADDLE_MASTER"])
            with contextlib.redirect_stderr(io.StringIO()):  # fleet prints flags that nobody set
                fleet.init(is_collective=True, strategy=strategy, log_level="WARNING")
        finally:
            faulthandler.cancel_dump_traceback_later()


def _fleet_topology(degrees, fleet_groups):
    topology = fleet.CommunicateTopology(list(AXES.values()), [degrees[axis] for axis in AXES])
    return topology, fleet_groups or fleet.HybridCommunicateGroup(topology)


class Context(Parallel):
    """Groups of this process, one of several, and what is done over them.

    Attributes:
        world, data, pipeline, tensor, sharding: groups of processes; `data` spans the sharding ranks too, because
            ZeRO's processes see different images.
        degrees: number of processes by axis.
        layout: which part of each parameter is here, once `shard_model` was called.
    """

    def __init__(self, degrees, fleet_groups=None):
        self.rank = rank()
        self.world_size = world_size()
        self.is_main = self.rank == 0
        self.pipeline_schedule = None  # until `shard_model` has cut the model
        self._syncs_batch_norm = False
        self.degrees = degrees
        self._topology, self._fleet_groups = _fleet_topology(degrees, fleet_groups)
        self.world = Group("world", range(self.world_size), self.rank)
        self._make_groups()
        self.data_rank, self.data_size = self.data.index, self.data.size
        self.layout = Layout(self.tensor, self.pipeline, self.sharding, self.model)
        self.reduction = ParallelReduction(
            self.world, self.data, self.model, self.layout.cuts,
            counts_whole=self.tensor.index == 0, counts=self.sharding.index == 0,
        )  # fmt: skip
        # One process of each replica speaks for it when results are added up.
        self._speaks = self.tensor.index == 0 and self.pipeline.index == 0

    def _make_groups(self):
        fleet_groups = self._fleet_groups
        self.pipeline = self._group("pipeline", fleet_groups.get_pipe_parallel_group())
        self.sharding = self._group("sharding", fleet_groups.get_sharding_parallel_group())
        self.tensor = self._group("tensor", fleet_groups.get_model_parallel_group())
        self.model = self._group("model", fleet_groups.get_check_parallel_group())
        if self.degrees["sharding"] == 1:
            self.data = self._group("data", fleet_groups.get_data_parallel_group())
        elif self.degrees["data"] == 1:
            self.data = Group("data", self.sharding.ranks, self.rank, fleet_groups.get_sharding_parallel_group())
        else:
            self.data = self._group("data", fleet_groups.create_fuse_group(["data", "sharding"])[1])
        # Point-to-point messages need groups of two on gloo, made by all processes in the same order.
        before = after = None
        for ranks in self._topology.get_comm_list("pipe"):
            for first, second in itertools.pairwise(ranks):
                group = dist.new_group([first, second])
                if self.rank == second:
                    before = Group("stage before", [first, second], self.rank, group)
                elif self.rank == first:
                    after = Group("stage after", [first, second], self.rank, group)
        self._neighbours = (before, after)
        if gloo.active():
            gloo.self_test(self.groups)

    def _group(self, name, group):
        return Group(name, group.ranks, self.rank, group)

    @property
    def groups(self):
        """Every group of this process with more than one member, each set of processes once."""
        named = (self.world, self.data, self.pipeline, self.sharding, self.tensor, self.model, *self._neighbours)
        return [group for group in named if group is not None and group.size > 1]

    def traffic(self):
        """Return {(group, operation, "calls" | "bytes"): number} of everything this process sent since the start."""
        return {(group.name, *key): count for group in self.groups for key, count in group.traffic.items()}

    def describe(self):
        degrees = ", ".join(f"{axis} {self.degrees[axis]}" for axis in AXES if axis != "sep")
        return f"{self.world_size} processes over {os.environ['PADDLE_DISTRI_BACKEND']} ({degrees})"

    def check_model(self, model):
        if self.tensor.size > 1:
            tensor.shares_of(model, self.tensor.size)
        if self.pipeline.size > 1:
            split_chain(model, self.pipeline.size)

    def shard_model(self, model, sync_batch_norm=False):
        # parameters and buffers are those of rank 0; parameter names stay the plain model's
        self.broadcast(model.state_dict().values())
        self._syncs_batch_norm = sync_batch_norm and convert_sync_batch_norm(model, self.data)
        self.layout.whole_names = frozenset(model.state_dict())
        self._num_parameters = count_parameters(model)
        self.layout.cuts.clear()  # those of a model before, whose names may be the same
        self.layout.cuts.update(tensor.shard_model(model, self.tensor))
        if self.pipeline.size > 1:
            model = Stage(model, self.pipeline)
            self._pipeline = Pipeline(self.pipeline, *self._neighbours)
            self.pipeline_schedule = self._pipeline.forward_backward
        self.layout.local_shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
        return model

    def holders_of(self, name):
        return self.tensor if name in self.layout.cuts else None

    def num_parameters(self, model):
        return self._num_parameters

    def trained(self, model):
        return model if self.model.size > 1 or self._syncs_batch_norm else half_cpu.Replayed(model)

    def predict(self, model, images):
        if self.pipeline.size > 1:
            return self._pipeline.predict(model, images)
        # Messages cannot be recorded, and each process must send and wait as often as the others.
        return model(images) if self.tensor.size > 1 else half_cpu.replay_images(model, images)

    def merge(self, state):
        return state if self.layout.is_whole else self.layout.merge(state)

    def cut(self, state, owned=None):
        part = self.layout.cut(state)
        if owned is None or self.sharding.size == 1:
            return part
        names = {name for name, _ in owned}
        return {key: value for key, value in part.items() if key.split("/")[0] in names}

    def shard_optimizer(self, optimizer, named_params):
        if self.sharding.size == 1:
            return optimizer
        self._sharded_optimizer = zero.shard_optimizer(optimizer, self._fleet_groups, named_params, self.sharding)
        return self._sharded_optimizer

    def owned(self, named_params):
        if self.sharding.size == 1:
            return named_params
        return zero.owned(self._sharded_optimizer, named_params, self.sharding.index)

    def rng_state(self):
        with tensor.dropout_stream():
            shared = rng_state()
        return rng_state() | {"tensor_parallel": shared}

    def set_rng_state(self, state):
        with tensor.dropout_stream():
            set_rng_state(state["tensor_parallel"])
        set_rng_state(state)

    def broadcast(self, tensors):
        """Replace each tensor by that of rank 0."""
        for value in tensors:
            self.world.broadcast(value)

    def seed_dropout(self, seed):
        """Seed this process's random draws after the model was built from the common seed.

        Replicas and pipeline stages draw differently. Processes of a tensor group draw alike where each holds the whole
        tensor, and differently inside the layers that they share out.
        """
        num_places = self.data.size * self.pipeline.size
        place = self.data.index * self.pipeline.size + self.pipeline.index
        paddle.seed(seed + 1 + place)
        tensor.seed_dropout(seed + 1 + num_places + place * self.tensor.size + self.tensor.index)

    @paddle.no_grad()
    def average(self, tensors):
        if self.data.size == 1 or not tensors:
            return
        # float64: thirds of float32 numbers that are the same everywhere add up to that number again
        flat = paddle.concat([own.astype("float64").flatten() for own in tensors]) / self.data.size
        means = paddle.split(self.data.all_reduce(flat), [own.size for own in tensors])
        for own, mean in zip(tensors, means, strict=True):
            paddle.assign(mean.reshape(own.shape).astype(own.dtype), own)

    def any(self, flag):
        return bool(self.world.vote([int(flag)])[0])

    def any_in_pass(self, flag):
        if self.tensor.size * self.pipeline.size == 1:  # replicas, of which each may have another number of passes
            return bool(flag)
        return bool(self.model.vote([int(flag)])[0])

    def sum(self, values):
        own = [float(value) if self._speaks else 0.0 for value in values]
        return self.world.all_reduce(paddle.to_tensor(own, dtype="float64")).tolist()

    def gather(self, value):
        return self.world.all_gather_object(value)
