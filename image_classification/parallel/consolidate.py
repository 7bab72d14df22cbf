"""Between the parts that processes hold and the whole state of the plain model.

A checkpoint is always the plain model's: it is joined when saved and cut when loaded, so that it does not know how many
processes wrote it. Keys are "<parameter>" (weights, buffers, averages) or "<parameter>/<slot>" (optimizer).
"""

import numpy
import paddle


class Layout:
    """Which part of each parameter is on this process.

    Attributes:
        cuts: {parameter name: Cut} of the parameters that the tensor group divides.
        whole_names: names of the whole model's state; empty: every process has all of them.
        local_shapes: {name: shape} of this process's state.
    """

    def __init__(self, tensor, pipeline, sharding, model):
        self.tensor = tensor
        self.pipeline = pipeline
        self.sharding = sharding
        self.model = model
        self.cuts = {}
        self.whole_names: frozenset[str] = frozenset()
        self.local_shapes = {}

    @property
    def is_whole(self):
        """Whether this process alone holds everything."""
        return self.tensor.size * self.pipeline.size * self.sharding.size == 1

    def merge(self, state):
        """Return the whole state, NumPy arrays, on rank 0 of the world, {} elsewhere; every process must call it.

        It is joined one tensor at a time, and only rank 0 keeps what was joined. Replicas of its part take no part.
        """
        if not (self._holds_rank_0(self.model) or self._holds_rank_0(self.sharding)):
            return {}
        joined = ((key, self._join(key, state[key])) for key in sorted(state))
        if self.tensor.index > 0:
            for _ in joined:  # its pieces go to the first of its group
                pass
            return {}
        group = self.pipeline if self.pipeline.size > 1 else self.sharding
        listings = group.all_gather_object({key: self._joined_shape(key, value) for key, value in state.items()})
        everywhere = set.intersection(*map(set, listings))
        arrays = dict(joined) if group.index == 0 else {}
        for index, listing in enumerate(listings[1:], start=1):
            for key in sorted(listing):
                array = next(joined)[1] if index == group.index else None
                if key in everywhere or any(key in earlier for earlier in listings[:index]):
                    continue
                shape, dtype = listing[key]
                value = paddle.empty(shape, dtype=dtype) if array is None else paddle.to_tensor(array)
                group.broadcast(value, index)
                if group.index == 0:
                    arrays[key] = value.numpy().reshape(shape)
        return arrays

    def _holds_rank_0(self, group):
        return group.size > 1 and 0 in group.ranks

    def _join(self, key, value):
        """Return the whole array of a tensor of which the tensor group has pieces; the group's first keeps it."""
        array = _array(value)
        cut = self._cut(key, array.shape)
        if cut is None:
            return array
        pieces = self.tensor.all_gather(paddle.to_tensor(array))
        return cut.join([piece.numpy() for piece in pieces]) if self.tensor.index == 0 else None

    def _joined_shape(self, key, value):
        """Return (shape, dtype) of what :meth:`_join` returns on the first of the group."""
        shape, cut = list(value.shape), self._cut(key, value.shape)
        if cut is not None:
            shape[cut.axis] *= self.tensor.size
        return shape, str(_array(value).dtype)

    def cut(self, state):
        """Return this process's part of a whole state, NumPy arrays; keys that the model does not know stay."""
        part = {}
        for key, value in state.items():
            name = _parameter(key)
            if name in self.whole_names and name not in self.local_shapes:
                continue  # another pipeline stage's
            cut = self.cuts.get(name)
            array = _array(value)
            if cut is not None and array.ndim > cut.axis and array.size > 1:
                array = cut.take(array, self.tensor.index, self.tensor.size)
            part[key] = array
        return part

    def _cut(self, key, shape):
        # Beside the moments an optimizer has scalars, which are the same everywhere: the powers of the betas, of the
        # shape of a piece where that is one number.
        name, _, slot = key.partition("/")
        is_piece = tuple(shape) == tuple(self.local_shapes.get(name, ())) and "_pow" not in slot
        return self.cuts.get(name) if is_piece else None


def _parameter(key):
    return key.split("/")[0]


def _array(value):
    return value.numpy() if isinstance(value, paddle.Tensor) else numpy.asarray(value)
