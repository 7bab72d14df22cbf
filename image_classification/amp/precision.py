"""What a training loop asks of a number format: the protocol that every mode fulfils, and what a step answers."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import paddle

from .gradients import Named, count_zeros, gradients_of, squared_norm


@dataclass(frozen=True)
class StepResult:
    """What one call of `Precision.step` did.

    loss_scale: the scale that the losses of this step were multiplied by.
    grad_norm: global L2 norm of the unscaled gradients before clipping; None for a skipped step.
    num_zeros: gradient elements that are exactly 0; None unless asked for, and for a skipped step.
    first_bad: name of the first parameter with a non-finite gradient, and of its process; None when there is none.
    """

    applied: bool
    loss_scale: float
    grad_norm: float | None = None
    num_zeros: int | None = None
    first_bad: str | None = None


class Precision(Protocol):
    """Answers how a model is stored, run, differentiated and updated.

    Attributes:
        mode: name of the mode, as in AMP.MODE.
        dtype: name of the mode's 16-bit format, "float32" for none.
        device: "cpu", "gpu" or another kind of Paddle's.
        backend: name of the arithmetic that really runs, such as "paddle" or "onednn avx512_bf16".
        loss_scale: the number that `backward` multiplies the next loss by.
        is_plain: whether nothing is half and nothing is cast: plain float32.
        wire_dtype: dtype in which an activation goes to another process without losing anything, because the layers
            there cast their inputs to it anyway; None for the one it has.
    """

    mode: str
    dtype: str
    device: str
    reduction: "Reduction"

    @property
    def backend(self) -> str: ...

    @property
    def loss_scale(self) -> float: ...

    @property
    def is_plain(self) -> bool: ...

    @property
    def wire_dtype(self) -> str | None: ...

    def describe(self) -> str:
        """Return one line for the log: mode, format, device and what really runs."""
        ...

    def check_model(self, model: paddle.nn.Layer) -> None:
        """Raise ValueError where an option names a layer that the model has not; shapes are enough."""
        ...

    def convert_model(self, model: paddle.nn.Layer) -> paddle.nn.Layer:
        """Return the model as this mode stores it; call once, before the optimizer and before any parallel wrapper."""
        ...

    def master_params(self, model: paddle.nn.Layer) -> Named:
        """Return [(name, tensor)] of what the optimizer is to update, under the model's structured names."""
        ...

    def forward_context(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which the model and the criterion run, in training and in evaluation."""
        ...

    def backward(self, loss: paddle.Tensor) -> None:
        """Add the gradients of the scaled loss to those of earlier calls since the last step."""
        ...

    def backward_from(self, output: paddle.Tensor, gradient: paddle.Tensor) -> None:
        """Go on with a backward that a later pipeline stage began; `gradient` is the scaled loss's by `output`."""
        ...

    def step(self, optimizer: Any) -> StepResult:
        """Apply the gradients, or skip the step when any of them is not finite; clear them either way.

        A skipped step changes no weight, no master and no state of the optimizer. All weights that a loss trains are
        in this optimizer, since the scale moves with the step; several optimizers of one loss share :func:`scale_loss`.
        """
        ...

    def model_state_dict(self, model: paddle.nn.Layer) -> dict[str, paddle.Tensor]:
        """Return the weights in float32 under the plain model's keys, whatever the mode."""
        ...

    def load_model_state_dict(self, model: paddle.nn.Layer, state: Mapping[str, Any]) -> tuple[list[str], list[str]]:
        """Set the weights, and the masters with them, from tensors or arrays of any floating dtype.

        Returns:
            (missing, unexpected): keys without a value of the same shape, and keys that the model does not have.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the mode and the complete state of every scaler as plain numbers and strings."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the scalers; what another mode saved is used as far as it fits, and each difference is logged.

        Raises:
            ValueError: an entry is not the state of a loss scaler.
        """
        ...


class Reduction:
    """The collectives inside a step; this base class is one process alone.

    Every method gets the optimizer's parameters as (name, tensor) pairs in the same order on every process;
    `tensor.grad` may be None. Until `num_zeros` the gradients are still multiplied by the loss scale.
    """

    def found_inf(self, flag: bool) -> bool:
        """Return True on every process when `flag` is True on any process that shares this step."""
        return flag

    def first_bad(self, name: str | None) -> str | None:
        """Return on every process which parameter, of which process, is not finite; called after `found_inf` is True.

        `name` is that of this process's first one, None where its own gradients are finite.
        """
        return name

    def average_gradients(self, named_params: Named, squares: float) -> float:
        """Replace each gradient by its mean over the data ranks; return their sum of squares over the whole model.

        Divides before summing, so that finite stays finite. `squares` is that sum over this process's gradients before.
        """
        return squares

    def norm_squared(self, named_params: Named) -> float:
        """Return the sum of squares over all gradients of the model, each parameter counted once, as a float."""
        return squared_norm(gradients_of(named_params))

    def num_zeros(self, named_params: Named) -> int:
        """Return the number of zeros over all gradients of the model, each parameter counted once."""
        return count_zeros(gradients_of(named_params))
