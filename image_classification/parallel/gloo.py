"""Adapters that make Paddle's gloo backend (CPU processes) fit for many groups. Nothing here is active on a GPU.

What is wrong in Paddle 3.3.1, and what is done about it:

* Every gloo group writes its addresses under the same store keys, so that groups created one after the other, or
  disjoint groups created at once, read each other's addresses and die with "Connection refused".
  `install` gives each group a store of its own.
* SUM of float16 returns inf for every non-zero value: `sums_float16_wrongly` tells `Group` to add in float32.
* A collective gives up after 30 s, whatever timeout is asked for: `Group` lets nobody begin one before all are there.
* A send is matched with a receive by a counter of the whole group, right in groups of two only: the pipeline makes a
  group for each pair of neighbours.

This is the only module that replaces functions of Paddle for a whole run. It depends on private names, so it refuses a
Paddle that lacks them, says when a version is untested, and `self_test` proves the result in each run before training
starts.
"""

import contextlib
import os
import socket
import time

import numpy
import paddle
import paddle.distributed as dist
from paddle.base import core
from paddle.distributed import collective

from image_classification.runtime import UserError, get_logger

TESTED_VERSIONS = ("3.3.1",)
STORE_TIMEOUT_SECONDS = 300


def active():
    """Return whether processes of this run talk through gloo."""
    return os.environ.get("PADDLE_DISTRI_BACKEND") == "gloo"


def install():
    """Give every process group that is created from now on a store of its own; calling it twice changes nothing.

    Raises:
        UserError: this Paddle lacks a name that the adapter replaces.
    """
    # paddle.distributed.parallel is shadowed by nothing, but it imported the function under its own name.
    parallel = dist.parallel
    if isinstance(getattr(getattr(collective, "_new_process_group_impl", None), "__self__", None), _PrivateStores):
        return
    for owner, name in ((collective, "_new_process_group_impl"), (parallel, "_new_process_group_impl"),
                        (collective, "new_group"), (core, "TCPStore"), (core, "ProcessGroupGloo")):
        if not hasattr(owner, name):
            raise UserError(f"Paddle {paddle.__version__} has no {owner.__name__}.{name}: several processes on a CPU "
                            f"are tested with Paddle {', '.join(TESTED_VERSIONS)}")
    if paddle.__version__ not in TESTED_VERSIONS:
        get_logger().warning("gloo adapters: Paddle %s is untested (tested: %s)", paddle.__version__,
                             ", ".join(TESTED_VERSIONS))
    stores = _PrivateStores(collective.new_group)
    collective._new_process_group_impl = parallel._new_process_group_impl = stores.create_process_group
    collective.new_group = dist.new_group = stores.new_group


class _PrivateStores:
    """Replaces the creation of process groups by one that passes each group its own store."""

    def __init__(self, new_group):
        self._new_group = new_group
        self._ranks = None  # global ranks of the group under construction; None: the default group
        self._alive = []  # a store must live as long as its group

    def new_group(self, ranks=None, *args, **kwargs):
        self._ranks = sorted(ranks) if ranks is not None else None
        try:
            return self._new_group(ranks, *args, **kwargs)
        finally:
            self._ranks = None

    def create_process_group(self, backend, store, rank, world_size, group_name, pg_options, group_id=0, *_, **__):
        if backend != "gloo":
            raise UserError(f"backend {backend!r} in a run on CPU processes: only gloo works there")
        # Disjoint groups made by one call share the id, hence the ranks in the key.
        members = "all" if self._ranks is None else "-".join(map(str, self._ranks))
        private = _open_store(store, f"zoo/group/{group_id}/{members}", rank)
        self._alive.append(private)
        return core.ProcessGroupGloo.create(private, rank, world_size, group_id)


def _open_store(default_store, key, rank):
    if rank != 0:
        host, _, port = default_store.get(key).decode().rpartition(":")
        return core.TCPStore(host, int(port), False, 0, STORE_TIMEOUT_SECONDS)
    host = os.environ["PADDLE_CURRENT_ENDPOINT"].rpartition(":")[0]
    # A port in use is not an exception but the end of the process, so the port stays reserved until the store listens.
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("", 0))
        port = reserved.getsockname()[1]
        store = core.TCPStore(host, port, True, 0, STORE_TIMEOUT_SECONDS)
    default_store.set(key, f"{host}:{port}")
    # The first departure that a store's thread sees asks Paddle's log whether to tell (3.3.1). If that is a member's,
    # while this process ends and its log is gone already, the thread aborts it: here is one that comes and goes.
    socket.create_connection((host, port), STORE_TIMEOUT_SECONDS).close()
    return store


def wait_for_master(master):
    """Return once somebody listens at "host:port"; Paddle's client that comes too early sleeps three seconds.

    Raises:
        UserError: nobody listened in time.
    """
    host, _, port = master.rpartition(":")
    deadline = time.monotonic() + STORE_TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=5):
            return
        time.sleep(0.05)
    raise UserError(f"rank 0 did not open {master} within {STORE_TIMEOUT_SECONDS} s: was it started, is the port open?")


def sums_float16_wrongly(dtype):
    """Return whether gloo's SUM of this dtype must be done in float32; bfloat16 is right but rounds at each hop."""
    return dtype in (paddle.float16, paddle.bfloat16)


def self_test(groups):
    """Check each group with known answers: a sum that names its members, a float16 sum, a maximum.

    Raises:
        UserError: a group mixes up its members, or sums wrongly: the adapters do not fit this Paddle.
    """
    for group in groups:
        expected = sum(4.0**rank for rank in group.ranks)
        got = group.all_reduce(paddle.to_tensor([4.0**group.rank], dtype="float64")).item()
        half = group.all_reduce(paddle.to_tensor(numpy.array([group.index + 1], "float16"))).astype("float32").item()
        largest = group.all_reduce(paddle.to_tensor([group.index], dtype="int32"), op="max").item()
        if (got, half, largest) != (expected, group.size * (group.size + 1) / 2, group.size - 1):
            raise UserError(f"self-test of the {group.name} group {group.ranks} failed with Paddle "
                            f"{paddle.__version__}: sum {got}, expected {expected}; float16 sum {half}; max {largest}")
