"""Many processes: data, tensor and pipeline parallel training over Paddle's fleet.

`env` finds this process's place and knows no Paddle. `protocol.Parallel` is what the trainer asks of the other
processes; `context.Context` answers it, and `single.SingleProcess` does when there are none.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the protocol names Paddle, which is not to be imported before the threads are set
    from ..config import Config
    from .protocol import Parallel

from image_classification.runtime import UserError, world_size


def connect(config: "Config") -> "Parallel":
    """Return what the trainer asks of the other processes: a Context, or a SingleProcess when there are none.

    `entry.prepare_processes` must have given this process its rank.

    Raises:
        UserError: the degrees do not fit the number of processes, or the precision does not run under them.
    """
    from ..amp import check_supported
    from .topology import resolve_degrees

    kinds = config.PARALLEL
    degrees = resolve_degrees(world_size(), kinds.DATA, kinds.TENSOR, kinds.PIPELINE, kinds.SHARDING)
    for axis in ("data", "tensor", "pipeline", "sharding"):
        try:
            check_supported(config.AMP.MODE, **{axis: degrees[axis]})
        except ValueError as error:
            raise UserError(f"PARALLEL.{axis.upper()}: {degrees[axis]}: {error}") from None
    if world_size() == 1:
        from .single import SingleProcess

        return SingleProcess()
    from paddle.distributed import fleet

    from . import watch
    from .context import Context, init_processes

    this_process = watch.this_process()
    this_process.limit = _limit(config)
    with watch.signals_later(), this_process.waiting("the start of the process groups"):  # Paddle's store breaks by one
        init_processes(degrees)
        return Context(degrees, fleet.get_hybrid_communicate_group())


def _limit(config: "Config") -> float:
    """Return how many seconds a process may keep the others waiting, more than its data may keep itself."""
    timeout, worker_timeout = config.PARALLEL.TIMEOUT, config.DATA.WORKER_TIMEOUT
    if timeout is None:
        return max(300.0, worker_timeout + 180)
    if timeout <= worker_timeout:
        raise UserError(f"PARALLEL.TIMEOUT: {timeout:g} must be larger than DATA.WORKER_TIMEOUT, {worker_timeout:g}: a "
                        "process that waits for its data would count as one that stalls")
    return timeout
