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

    def __init__(self, tensor, pipeline, sharding):
        self.tensor = tensor
        self.pipeline = pipeline
        self.sharding = sharding
        self.cuts = {}
        self.whole_names: frozenset[str] = frozenset()
        self.local_shapes = {}

    @property
    def is_whole(self):
        """Whether this process alone holds everything."""
        return self.tensor.size * self.pipeline.size * self.sharding.size == 1

    def merge(self, state):
        """Return the whole state, NumPy arrays, for this process's part; every process must call it with its part.

        Only rank 0 of the world may rely on the result.
        """
        arrays = {key: _array(value) for key, value in state.items()}
        for key in sorted(arrays):
            cut = self._cut(key, arrays[key].shape)
            if cut is not None:
                pieces = self.tensor.all_gather(paddle.to_tensor(arrays[key]))
                arrays[key] = cut.join([piece.numpy() for piece in pieces])
        for group in (self.sharding, self.pipeline):
            self._complete(arrays, group)
        return arrays

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
        # Beside the moments an optimizer has scalars, which are the same everywhere.
        name = _parameter(key)
        return self.cuts.get(name) if tuple(shape) == tuple(self.local_shapes.get(name, ())) else None

    @staticmethod
    def _complete(arrays, group):
        """Add to `arrays` what other members of the group have, one array at a time."""
        if group.size == 1:
            return
        known = set()
        listings = group.all_gather_object({key: (array.shape, str(array.dtype)) for key, array in arrays.items()})
        everywhere = set.intersection(*map(set, listings))
        for index, listing in enumerate(listings):
            for key, (shape, dtype) in listing.items():
                if key in everywhere or key in known:
                    continue
                known.add(key)
                value = paddle.to_tensor(arrays[key]) if index == group.index else paddle.empty(shape, dtype=dtype)
                array = group.broadcast(value, index).numpy()
                arrays[key] = array.reshape(shape)


def _parameter(key):
    return key.split("/")[0]


def _array(value):
    return value.numpy() if isinstance(value, paddle.Tensor) else numpy.asarray(value)
