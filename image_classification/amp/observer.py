"""What a model's activations and gradients look like: sizes, and how much of them a half format could not hold.

    observer = Observer(model)
    ...one training step...
    records = observer.collect(named_params)     # after backward, before the gradients are cleared
"""

from dataclasses import dataclass

import numpy as np

from .structures import floating_tensors

LOWEST, HIGHEST = -150, 128  # exponents of float32, subnormals included
ACTIVATION, INPUT = "activation", "input"
GRADIENT, INPUT_GRADIENT, PARAMETER = "gradient", "input gradient", "parameter"


@dataclass(frozen=True)
class Format:
    """The range of a number format: values of at least `overflow` round to inf, those up to `flush` to 0."""

    overflow: float
    flush: float


FORMATS = {
    "float16": Format(65520.0, 2.0**-25),
    "bfloat16": Format((2.0 - 2.0**-8) * 2.0**127, 2.0**-134),
}


@dataclass
class Record:
    """One kind of values of one layer (of one parameter) over one or more steps.

    exponents: how many finite non-zero values have each floor(log2(|value|)), from LOWEST to HIGHEST.
    largest: largest finite absolute value.
    non_finite: how many values are inf or NaN.
    """

    name: str
    kind: str
    exponents: np.ndarray
    largest: float = 0.0
    count: int = 0
    non_finite: int = 0

    @classmethod
    def of(cls, name, kind, values):
        """Return the record of an array."""
        values = np.abs(np.asarray(values, "float32")).ravel()
        finite = values[np.isfinite(values)]
        nonzero = finite[finite > 0]
        # frexp gives values in [0.5, 1) times a power of two
        exponents = np.bincount(np.frexp(nonzero)[1] - 1 - LOWEST, minlength=HIGHEST - LOWEST + 1)
        largest = float(finite.max(initial=0.0))
        return cls(name, kind, exponents, largest, values.size, values.size - finite.size)

    def merged(self, other):
        """Return the record of both."""
        largest = max(self.largest, other.largest)
        count, non_finite = self.count + other.count, self.non_finite + other.non_finite
        return Record(self.name, self.kind, self.exponents + other.exponents, largest, count, non_finite)

    def overflow_share(self, number_format, scale=1.0):
        """Return the share of all values that become inf in a format after multiplication by scale."""
        if not self.count:
            return 0.0
        first = int(np.ceil(np.log2(number_format.overflow / scale)))
        beyond = int(self.exponents[max(0, first - LOWEST) :].sum())
        if beyond == 0 and self.largest * scale >= number_format.overflow:
            beyond = 1  # between the limit and the next power of two
        return (beyond + self.non_finite) / self.count

    def flush_share(self, number_format, scale=1.0):
        """Return the share of the non-zero values that become 0 in a format after multiplication by scale."""
        total = int(self.exponents.sum())
        first_kept = int(np.floor(np.log2(number_format.flush / scale)))
        return int(self.exponents[: max(0, first_kept - LOWEST)].sum()) / total if total else 0.0


class Observer:
    """Watches all layers of a model through hooks; call `collect` after each backward pass, `remove` at the end."""

    def __init__(self, model):
        self.order = []  # names in the order in which layers finish their first forward pass
        self.first_non_finite = None  # (step, kind, name) of the first one, in the order of execution
        self.step = 0
        self._now = {}
        self._hooks = []
        for name, layer in model.named_sublayers():
            self._hooks.append(layer.register_forward_post_hook(self._watch(name)))

    def collect(self, named_params):
        """Return the records of this step, those of the parameters' gradients included, and begin the next step."""
        for name, param in named_params:
            if param.grad is not None:
                self._add(name, PARAMETER, param.grad)
        records, self._now = list(self._now.values()), {}
        self.step += 1
        return records

    def remove(self):
        """Take the hooks off the model."""
        for hook in self._hooks:
            hook.remove()

    def _watch(self, name):
        def after(layer, inputs, outputs):
            if name not in self.order:
                self.order.append(name)
            for kind, gradient, values in ((INPUT, INPUT_GRADIENT, inputs), (ACTIVATION, GRADIENT, outputs)):
                for tensor in floating_tensors(values):
                    self._add(name, kind, tensor)
                    if not tensor.stop_gradient:
                        tensor.register_hook(lambda value, gradient=gradient: self._add(name, gradient, value))

        return after

    def _add(self, name, kind, tensor):
        record = Record.of(name, kind, tensor.detach().astype("float32").numpy())
        if record.non_finite and self.first_non_finite is None:
            self.first_non_finite = (self.step, kind, name)
        known = self._now.get((name, kind))
        self._now[name, kind] = record if known is None else known.merged(record)
