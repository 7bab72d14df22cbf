"""Plain float32, and the phases of an optimizer step, which every mode shares."""

import contextlib
import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import paddle

from .. import half_cpu
from . import private
from .gradients import Named, as_it_waits, first_non_finite, gradients_of, multiply, squared_norm
from .precision import Precision, Reduction, StepResult
from .scaler import LossScaler

logger = logging.getLogger(__name__)


class Check(NamedTuple):
    """What the gradients of one optimizer are: finite on all processes, and of what size on this one.

    first_bad: name of this process's first parameter with a non-finite gradient; None when there is none.
    squares: sum of squares of this process's gradients, still multiplied by the loss scale.
    """

    found_inf: bool
    first_bad: str | None
    squares: float


class PlainPrecision(Precision):
    """Plain float32, and the order of a step for every mode; what each method promises says :class:`Precision`.

    Args:
        dtype: name of the 16-bit format of the mode, "float32" for none.
        device: "cpu", "gpu" or another kind of Paddle's.
        scalers: one LossScaler per loss; none means no scaling.
        clip_grad_norm: largest global L2 norm of the unscaled gradients; None or 0 for no clipping.
        reduction: collectives of a distributed run.
        log_num_zeros_in_grad: fill StepResult.num_zeros.
        verbose: log every skipped step and every change of the scale.
    """

    mode = "fp32"
    is_plain = True
    wire_dtype: str | None = None

    def __init__(
        self,
        dtype: str = "float32",
        device: str = "cpu",
        scalers: Sequence[LossScaler] = (),
        clip_grad_norm: float | None = None,
        reduction: Reduction | None = None,
        log_num_zeros_in_grad: bool = False,
        verbose: bool = False,
    ):
        if clip_grad_norm is not None and not (math.isfinite(clip_grad_norm) and clip_grad_norm >= 0):
            raise ValueError(f"clip_grad_norm must be a finite number, 0 or more, not {clip_grad_norm}")
        self.dtype = dtype
        self.device = device
        self.scalers = list(scalers)
        self.clip_grad_norm = clip_grad_norm or None
        self.reduction = reduction or Reduction()
        self.log_num_zeros_in_grad = log_num_zeros_in_grad
        self.verbose = verbose
        self._names: dict[int, str] = {}

    def __deepcopy__(self, memo):
        return self  # the copy of a model is run as the model is; a loss scale belongs to the training

    @property
    def backend(self):
        return half_cpu.backend_name(self.dtype) if self.device == "cpu" else "paddle"

    @property
    def loss_scale(self):
        return self.scale_of(0)

    @property
    def is_active(self):
        """Whether a forward context is open."""
        return False

    @property
    def casts_operators(self):
        """Whether the forward context casts the inputs of single operators."""
        return False

    def describe(self):
        return f"{self.mode}/{self.dtype} on {self.device} ({self.backend})"

    def check_model(self, model):
        pass

    def convert_model(self, model):
        self._remember_names(model)
        return model

    def master_params(self, model):
        return [(name, param) for name, param in model.named_parameters() if not param.stop_gradient]

    def master(self, param):
        """Return the tensor that the optimizer updates in place of a parameter of the model."""
        return param

    def forward_context(self):
        return self.cpu_kernels()

    def cpu_kernels(self):
        """Return the context in which a CPU has its fast kernels and can compute half tensors; nothing on a GPU."""
        return half_cpu.dispatch() if self.device == "cpu" else contextlib.nullcontext()

    def disable_casts(self):
        """Return a context inside the forward context that leaves operators as their inputs come; re-entrant."""
        return contextlib.nullcontext()

    def backward(self, loss):
        self.scaled(loss).backward()
        self.collect()

    def collect(self):
        """Move the gradients of a backward pass to the tensors that the optimizer updates."""

    def backward_from(self, output, gradient):
        output.backward(gradient)
        self.collect()

    def scale_of(self, loss_id):
        """Return the number that loss `loss_id` is multiplied by.

        Raises:
            ValueError: the precision was made for fewer losses.
        """
        if not self.scalers:
            return 1.0
        if not 0 <= loss_id < len(self.scalers):
            raise ValueError(f"loss_id {loss_id} is out of range: num_losses is {len(self.scalers)}")
        return self.scalers[loss_id].scale

    def scaled(self, loss, loss_id=0):
        """Return the loss as it is to be differentiated, float32 and multiplied by the loss scale."""
        scale = self.scale_of(loss_id)
        return loss if scale == 1 else loss.astype("float32") * scale

    def step(self, optimizer):
        named_params = self.named_params(optimizer)
        with self.cpu_kernels():
            (result,) = self.examine([(named_params, self.loss_scale)])
            factor = 1.0
            if result.applied:
                factor = clip_factor(result.grad_norm, self.clip_grad_norm) / result.loss_scale
            result = self.update(optimizer, named_params, result, factor)
        optimizer.clear_grad(set_to_zero=False)
        return result

    def examine(self, scaled: Sequence[tuple[Named, float]], loss_id=0) -> list[StepResult]:
        """Decide on a step of every optimizer that learns from one loss, and move its scale.

        Check, average over the data ranks, move the scale: the first half of every step. When a gradient of any of the
        optimizers is not finite, none of their gradients is touched.

        Args:
            scaled: for each optimizer its parameters and what their gradients are multiplied by.
            loss_id: which loss the gradients belong to.

        Returns:
            What `update` is to do with each optimizer. The gradients are still multiplied.
        """
        checks = [self.check(named_params) for named_params, _ in scaled]
        found_inf = any(check.found_inf for check in checks)
        first_bad = next((check.first_bad for check in checks if check.first_bad is not None), None)
        if found_inf:
            results = [StepResult(False, scale, first_bad=first_bad) for _, scale in scaled]
        else:
            results = []
            for (named_params, scale), check in zip(scaled, checks, strict=True):
                norm = math.sqrt(self.reduction.average_gradients(named_params, check.squares)) / scale
                results.append(StepResult(True, scale, norm))
        self.update_scale(loss_id, found_inf, first_bad)
        return results

    def update(self, optimizer, named_params: Named, result: StepResult, factor: float = 1.0) -> StepResult:
        """Apply gradients times a factor that unscales and clips them, or change nothing after a failed check: the
        second half of every step. What the gradients are afterwards is undefined, where the factor is not 1."""
        if not result.applied:
            return result
        with self.cpu_kernels():
            if factor != 1 and (self.log_num_zeros_in_grad or not half_cpu.multiplies_gradients(optimizer)):
                multiply(gradients_of(named_params), factor)
                factor = 1.0
            num_zeros = self.reduction.num_zeros(named_params) if self.log_num_zeros_in_grad else None
            self.apply(optimizer, factor)
        return replace(result, num_zeros=num_zeros)

    def check(self, named_params: Named) -> Check:
        """Return whether gradients are finite, which all processes agree on before any other collective."""
        with self.cpu_kernels():
            squares = squared_norm(gradients_of(named_params, as_it_waits))
        first_bad = None if math.isfinite(squares) else first_non_finite(named_params)
        found_inf = self.reduction.found_inf(first_bad is not None)
        return Check(found_inf, self.reduction.first_bad(first_bad) if found_inf else None, squares)

    def clip(self, named_params: Named, norm: float, max_norm: float | None, scale: float = 1.0) -> float:
        """Unscale and clip in one pass over memory; return the factor of the clipping, 1 for none."""
        factor = clip_factor(norm, max_norm)
        with self.cpu_kernels():
            multiply(gradients_of(named_params), factor / scale)
        return factor

    def apply(self, optimizer, factor):
        """Run the optimizer on finite gradients times a factor, and bring the model's weights up to date."""
        half_of = self.half if half_cpu.writes_weights_last(optimizer) else lambda master: None
        with half_cpu.update(factor, half_of, half_cpu.multiplies_gradients(optimizer)) as written:
            optimizer.step()
        self.publish(private.optimizer_parameters(optimizer), written)

    def half(self, master):
        """Return the half weights that follow a tensor which the optimizer updates, None for none."""
        return None

    def publish(self, masters, written):
        """Bring the half weights of masters up to date, but those whose ids are among the written ones."""

    def named_params(self, optimizer):
        """Return (name, tensor) of everything the optimizer updates, under the model's structured names.

        Raises:
            ValueError: it holds the model's half weights, whose gradients are their masters': it would train nothing.
        """
        params = private.optimizer_parameters(optimizer)
        if any(isinstance(param, private.HalfParameter) for param in params):
            raise ValueError("the optimizer holds half weights of the model: give it precision.master_params(model)")
        return [(self._names.get(id(param)) or param.name, param) for param in params if not param.stop_gradient]

    def model_state_dict(self, model):
        return model.state_dict()

    def load_model_state_dict(self, model, state):
        missing, unexpected = [], dict.fromkeys(state)
        for key, tensor in model.state_dict().items():
            unexpected.pop(key, None)
            if key not in state or list(state[key].shape) != tensor.shape:
                missing.append(key)
                continue
            value = state[key] if isinstance(state[key], paddle.Tensor) else paddle.to_tensor(state[key])
            with paddle.no_grad(), self.cpu_kernels():
                master = self.master(tensor)
                master.set_value(value.astype(master.dtype))
                if master is not tensor:
                    tensor.set_value(value.astype(tensor.dtype))
        return missing, list(unexpected)

    def state_dict(self):
        state = {"mode": self.mode, "dtype": self.dtype}
        return state | {f"loss_scaler{i}": scaler.state_dict() for i, scaler in enumerate(self.scalers)}

    def load_state_dict(self, state):
        saved = sorted(key for key in state if key.startswith("loss_scaler"))
        unknown = sorted(set(state) - set(saved) - {"mode", "dtype"})
        if unknown:
            raise ValueError(f"not the state of a precision: unexpected key {unknown[0]!r}")
        if saved and self.scalers and len(saved) != len(self.scalers):
            logger.warning("the saved state has %d loss scalers, this run has %d", len(saved), len(self.scalers))
        for i, scaler in enumerate(self.scalers):
            if f"loss_scaler{i}" in state:
                scaler.load_state_dict(state[f"loss_scaler{i}"])

    def update_scale(self, loss_id, found_inf, first_bad):
        """Move the scale of one loss and log it where asked to."""
        if not self.scalers:
            return
        scaler = self.scalers[loss_id]
        before = scaler.scale
        scaler.update(found_inf)
        if self.verbose and found_inf:
            where = first_bad or "a parameter of another process"
            logger.info("step skipped, gradient of %s not finite; loss scale %g -> %g", where, before, scaler.scale)
        elif self.verbose and scaler.scale != before:
            logger.info("loss scale %g -> %g", before, scaler.scale)

    def _remember_names(self, model):
        for name, param in model.named_parameters():
            self._names.setdefault(id(param), name)


def clip_factor(norm, max_norm):
    """Return what to multiply gradients of this L2 norm by so that it becomes max_norm at most; None never clips."""
    return min(1.0, max_norm / (norm + 1e-6)) if max_norm else 1.0
