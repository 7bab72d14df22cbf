"""What a training loop asks of the other processes of its run, whether there are any or none."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import paddle

from ..amp.gradients import Named
from ..amp.precision import Reduction
from ..amp.storage import BATCH_NORMS, STATISTICS


class Parallel(Protocol):
    """The other processes; `single.SingleProcess` when there are none, `context.Context` when there are some.

    Attributes:
        rank, world_size: this process among all of the run.
        data_rank, data_size: which share of the images this process reads, of how many.
        is_main: whether this process writes files and talks.
        reduction: the collectives of an optimizer step.
        pipeline_schedule: what takes the place of `trainer.forward_backward` where the model is spread over a pipeline
            of processes, with its arguments; None everywhere else.
    """

    rank: int
    world_size: int
    data_rank: int
    data_size: int
    is_main: bool
    reduction: Reduction
    pipeline_schedule: Callable[..., Iterable[tuple[paddle.Tensor, Any, int]]] | None

    def any(self, flag: bool) -> bool:
        """Return on every process whether any process has the flag set."""
        ...

    def any_in_pass(self, flag: bool) -> bool:
        """Return whether any process that makes each pass of the model together with this one has the flag set."""
        ...

    def sum(self, values: Iterable[float]) -> list[float]:
        """Return the element-wise sums over the data-parallel processes, on every process."""
        ...

    def gather(self, value: Any) -> list[Any]:
        """Return the picklable values of all processes in the order of their ranks."""
        ...

    def describe(self) -> str:
        """Return one line for the log: how the processes share the work."""
        ...

    def check_model(self, model: paddle.nn.Layer) -> None:
        """Raise UserError where a whole model, of which shapes are enough, cannot be shared by these processes."""
        ...

    def shard_model(self, model: paddle.nn.Layer, sync_batch_norm: bool = False) -> paddle.nn.Layer:
        """Return this process's part of a whole model, the same weights everywhere.

        Call it after pretrained weights are loaded and before the precision converts the model.
        """
        ...

    def holders_of(self, name: str) -> Any:
        """Return the group of processes that hold the parts of a parameter, None where each has the whole."""
        ...

    def num_parameters(self, model: paddle.nn.Layer) -> int:
        """Return the number of trainable parameters of the whole model."""
        ...

    def seed_dropout(self, seed: int) -> None:
        """Seed the draws of training, after the model was built from the common seed."""
        ...

    def shard_optimizer(self, optimizer: Any, named_params: Named) -> Any:
        """Return the optimizer that updates this process's share of the parameters and spreads the result."""
        ...

    def owned(self, named_params: Named) -> Named:
        """Return those (name, parameter) whose optimizer state is on this process."""
        ...

    def rng_state(self) -> dict[str, Any]:
        """Return the state of every random generator of this process."""
        ...

    def set_rng_state(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`rng_state` returned on a process at the same place of the same topology."""
        ...

    def trained(self, model: paddle.nn.Layer) -> Callable[[paddle.Tensor], Any]:
        """Return what a training step calls in place of the model: where its layers need no other process, passes that
        are recorded and played again (`half_cpu.Replayed`)."""
        ...

    def predict(self, model: paddle.nn.Layer, images: paddle.Tensor) -> paddle.Tensor:
        """Return the logits of the whole model, on every process."""
        ...

    def average(self, tensors: Sequence[paddle.Tensor]) -> None:
        """Replace floating-point tensors by their mean over the processes that saw other images.

        In place; those that are the same everywhere keep their bits.
        """
        ...

    def merge(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the whole state, {name: value}, where `is_main`, for the parts that the processes hold."""
        ...

    def cut(self, state: Mapping[str, Any], owned: Sequence[tuple[str, Any]] | None = None) -> Mapping[str, Any]:
        """Return this process's part of a whole state; of an optimizer's, the part of the ``owned`` parameters."""
        ...


def count_parameters(model: paddle.nn.Layer) -> int:
    """Return the number of trainable parameters of a model."""
    return sum(param.size for param in model.parameters() if not param.stop_gradient)


def running_statistics(model: paddle.nn.Layer) -> dict[str, paddle.Tensor]:
    """Return what passes of training may write into a model, of its state: BatchNorm's statistics, floating buffers."""
    norms = (layer for layer in model.sublayers(include_self=True) if isinstance(layer, BATCH_NORMS))
    # to Paddle the statistics are parameters, as frozen weights are; a stage of a pipeline has those of its own norms
    statistics = (tensor for norm in norms for name, tensor in norm.named_parameters() if name in STATISTICS)
    written = set(map(id, itertools.chain(statistics, model.buffers())))
    state = model.state_dict().items()
    return {name: tensor for name, tensor in state if id(tensor) in written and tensor.is_floating_point()}


def average_statistics(parallel: Parallel, model: paddle.nn.Layer, average: Mapping[str, paddle.Tensor]) -> None:
    """Give all replicas the mean of their running statistics: the model's, and those of its moving average.

    In place, so that what is evaluated is what is saved, and a run goes on from the numbers of its checkpoint.
    """
    own = running_statistics(model)
    parallel.average([*own.values(), *(average[name] for name in own if name in average)])
