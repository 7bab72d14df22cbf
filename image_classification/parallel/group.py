"""A set of processes that talk to each other, and what they said, counted.

A group of one process does nothing at no cost, so that no caller asks how many there are.
"""

import collections
import contextlib
import math
from typing import Any

import paddle
import paddle.distributed as dist

from . import gloo, watch

_OPS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}


class Group:
    """Collectives among `ranks` (global), in place on contiguous tensors; `index` is this process's place in it."""

    def __init__(self, name, ranks, rank, process_group=None):
        self.name = name
        self.ranks = list(ranks)
        self.rank = rank
        self.index = self.ranks.index(rank)
        self.size = len(self.ranks)
        # (operation, "calls" or "bytes") -> number
        self.traffic: collections.Counter[tuple[str, str]] = collections.Counter()
        self._group = process_group
        self._gloo = gloo.active()
        self._watch: Any = watch.this_process() if self.size > 1 else None

    def all_reduce(self, tensor, op="sum"):
        """Replace `tensor` by the sum or maximum over the group and return it; half sums are added in float32 on gloo.

        Every member gets the same bits.
        """
        if self.size == 1:
            return tensor
        self._count("all_reduce", tensor)
        if self._gloo and op == "sum" and gloo.sums_float16_wrongly(tensor.dtype):
            total = tensor.astype("float32")
            self._wait("all_reduce", dist.all_reduce, total, op=_OPS[op], group=self._group)
            paddle.assign(total.astype(tensor.dtype), tensor)
        else:
            self._wait("all_reduce", dist.all_reduce, tensor, op=_OPS[op], group=self._group)
        return tensor

    def vote(self, numbers):
        """Return the element-wise maximum of small integers over the group.

        An int32 maximum, never one of floats: gloo loses a NaN depending on the rank.
        """
        if self.size == 1:
            return numbers
        with self.waiting("vote"):
            return self.all_reduce(paddle.to_tensor(numbers, dtype="int32"), op="max").tolist()

    def all_gather(self, tensor):
        """Return the members' tensors (equal shapes) in the order of the group."""
        if self.size == 1:
            return [tensor]
        self._count("all_gather", tensor)
        pieces: list[paddle.Tensor] = []
        self._wait("all_gather", dist.all_gather, pieces, tensor.contiguous(), group=self._group)
        return pieces

    def all_gather_object(self, value):
        """Return the members' picklable values in the order of the group."""
        if self.size == 1:
            return [value]
        values: list[Any] = []
        self._wait("all_gather_object", dist.all_gather_object, values, value, group=self._group)
        return values

    def broadcast(self, tensor, index=0):
        """Replace `tensor` by that of the member at `index` and return it."""
        if self.size > 1:
            self._count("broadcast", tensor)
            self._wait("broadcast", dist.broadcast, tensor, src=self.ranks[index], group=self._group)
        return tensor

    def send(self, tensor, index):
        """Return when the member at `index` has taken the tensor; on gloo a group of two only."""
        self._count("send", tensor)
        self._wait("send", dist.send, tensor.contiguous(), dst=self.ranks[index], group=self._group)

    def receive(self, shape, dtype, index):
        """Return the tensor that the member at `index` sends."""
        tensor = paddle.empty(shape, dtype=dtype)
        self._wait("receive", dist.recv, tensor, src=self.ranks[index], group=self._group)
        return tensor

    def waiting(self, operation):
        """Return a context in which this process waits for the group: whoever stalls there is named to all.

        Over NCCL that is where a result is read, not where a collective is begun.
        """
        if self._watch is None:
            return contextlib.nullcontext()
        return self._watch.waiting(f"{operation} of the {self.name} group")

    def _count(self, operation, tensor):
        self.traffic[operation, "calls"] += 1
        self.traffic[operation, "bytes"] += math.prod(tensor.shape) * tensor.element_size()

    def _wait(self, operation, function, *args, **kwargs):
        with self.waiting(operation):
            if self._gloo:  # which gives up after 30 s, whatever keeps the others
                self._watch.gate(self.ranks)
            function(*args, **kwargs)
