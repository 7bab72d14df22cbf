"""Precision answers how a model is stored, run, differentiated and updated; this base class is plain float32."""

import contextlib
import logging
import math
from dataclasses import dataclass

import paddle

from .. import half_cpu
from . import private
from .gradients import count_zeros, first_non_finite, multiply, squared_norm

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StepResult:
    """What one call of `Precision.step` did.

    loss_scale: the scale that the losses of this step were multiplied by.
    grad_norm: global L2 norm of the unscaled gradients before clipping; None for a skipped step.
    num_zeros: gradient elements that are exactly 0; None unless asked for, and for a skipped step.
    first_bad: name of the first parameter of this process with a non-finite gradient; None when there is none.
    """

    applied: bool
    loss_scale: float
    grad_norm: float | None = None
    num_zeros: int | None = None
    first_bad: str | None = None


class Reduction:
    """The collectives inside a step; this base class is one process alone.

    Every method gets the optimizer's parameters as (name, tensor) pairs in the same order on every process;
    `tensor.grad` may be None. Until `num_zeros` the gradients are still multiplied by the loss scale.
    """

    def found_inf(self, flag):
        """Return True on every process when `flag` is True on any process that shares this step."""
        return flag

    def average_gradients(self, named_params):
        """Replace each gradient by its mean over the data ranks; divide before summing, so that finite stays finite."""

    def norm_squared(self, named_params):
        """Return the sum of squares over all gradients of the model, each parameter counted once, as a float."""
        return squared_norm(gradients_of(named_params))

    def num_zeros(self, named_params):
        """Return the number of zeros over all gradients of the model, each parameter counted once."""
        return count_zeros(gradients_of(named_params))


class Precision:
    """Plain float32, and the order of a step for every mode.

    Args:
        dtype: name of the 16-bit format of the mode, "float32" for none.
        device: "cpu" or "gpu".
        scalers: one LossScaler per loss; none means no scaling.
        clip_grad_norm: largest global L2 norm of the unscaled gradients; None or 0 for no clipping.
        reduction: collectives of a distributed run.
        log_num_zeros_in_grad: fill StepResult.num_zeros.
        verbose: log every skipped step and every change of the scale.
    """

    mode = "fp32"

    def __init__(
        self,
        dtype="float32",
        device="cpu",
        scalers=(),
        clip_grad_norm=None,
        reduction=None,
        log_num_zeros_in_grad=False,
        verbose=False,
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
        self._names = {}

    @property
    def backend(self):
        """Name of the arithmetic that really runs, such as "paddle" or "onednn avx512_bf16"."""
        return half_cpu.backend_name(self.dtype) if self.device == "cpu" else "paddle"

    @property
    def loss_scale(self):
        """The number that `backward` multiplies the next loss by."""
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
        """Return one line for the log: mode, format, device and what really runs."""
        return f"{self.mode}/{self.dtype} on {self.device} ({self.backend})"

    def convert_model(self, model):
        """Return the model as this mode stores it; call once, before the optimizer and before any parallel wrapper."""
        self._remember_names(model)
        return model

    def master_params(self, model):
        """Return [(name, tensor)] of what the optimizer is to update, under the model's structured names."""
        return [(name, param) for name, param in model.named_parameters() if not param.stop_gradient]

    def master(self, param):
        """Return the tensor that the optimizer updates in place of a parameter of the model."""
        return param

    def forward_context(self):
        """Return the context in which the model and the criterion run, in training and in evaluation."""
        return self.cpu_kernels()

    def cpu_kernels(self):
        """Return the context in which a CPU has its fast kernels and can compute half tensors; nothing on a GPU."""
        return half_cpu.dispatch() if self.device == "cpu" else contextlib.nullcontext()

    def disable_casts(self):
        """Return a context inside the forward context that leaves operators as their inputs come; re-entrant."""
        return contextlib.nullcontext()

    def backward(self, loss):
        """Add the gradients of the scaled loss to those of earlier calls since the last step."""
        self.scaled(loss).backward()
        self.collect()

    def collect(self):
        """Move the gradients of a backward pass to the tensors that the optimizer updates."""

    def backward_from(self, output, gradient):
        """Go on with a backward that a later pipeline stage began; `gradient` is the scaled loss's by `output`."""
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
        """Apply the gradients, or skip the step when any of them is not finite; clear them either way.

        A skipped step changes no weight, no master and no state of the optimizer.
        """
        scale = self.loss_scale
        named_params = self.named_params(optimizer)
        found_inf, first_bad, squares = self.check(named_params)
        result = StepResult(False, scale, first_bad=first_bad)
        if not found_inf:
            norm = self.average(named_params, squares) / scale
            # Unscaling and clipping share one pass over memory.
            multiply(gradients_of(named_params), clip_factor(norm, self.clip_grad_norm) / scale)
            num_zeros = self.reduction.num_zeros(named_params) if self.log_num_zeros_in_grad else None
            self.apply(optimizer)
            result = StepResult(True, scale, norm, num_zeros)
        self.update_scale(0, found_inf, first_bad)
        optimizer.clear_grad(set_to_zero=False)
        return result

    def check(self, named_params):
        """Return (found_inf on any process, first bad parameter of this one, sum of squares of its gradients)."""
        squares = squared_norm(gradients_of(named_params))
        first_bad = None if math.isfinite(squares) else first_non_finite(named_params)
        return self.reduction.found_inf(first_bad is not None), first_bad, squares

    def average(self, named_params, squares):
        """Average the gradients over the data ranks and return their global L2 norm; `squares` comes from `check`."""
        self.reduction.average_gradients(named_params)
        # A process alone has just read every gradient; the others have new ones, and parts of the model elsewhere.
        alone = type(self.reduction) is Reduction
        return math.sqrt(squares if alone else self.reduction.norm_squared(named_params))

    def apply(self, optimizer):
        """Run the optimizer on unscaled finite gradients and bring the model's weights up to date."""
        optimizer.step()

    def named_params(self, optimizer):
        """Return (name, tensor) of everything the optimizer updates, under the model's structured names."""
        params = private.optimizer_parameters(optimizer)
        return [(self._names.get(id(param), param.name), param) for param in params if not param.stop_gradient]

    def model_state_dict(self, model):
        """Return the weights in float32 under the plain model's keys, whatever the mode."""
        return model.state_dict()

    def load_model_state_dict(self, model, state):
        """Set the weights, and the masters with them, from tensors or arrays of any floating dtype.

        Returns:
            (missing, unexpected): keys without a value of the same shape, and keys that the model does not have.
        """
        missing, unexpected = [], dict.fromkeys(state)
        for key, tensor in model.state_dict().items():
            unexpected.pop(key, None)
            if key not in state or list(state[key].shape) != tensor.shape:
                missing.append(key)
                continue
            value = state[key] if isinstance(state[key], paddle.Tensor) else paddle.to_tensor(state[key])
            with paddle.no_grad():
                master = self.master(tensor)
                master.set_value(value.astype(master.dtype))
                if master is not tensor:
                    tensor.set_value(value.astype(tensor.dtype))
        return missing, list(unexpected)

    def state_dict(self):
        """Return the mode and the complete state of every scaler as plain numbers and strings."""
        state = {"mode": self.mode, "dtype": self.dtype}
        return state | {f"loss_scaler{i}": scaler.state_dict() for i, scaler in enumerate(self.scalers)}

    def load_state_dict(self, state):
        """Restore the scalers; what another mode saved is used as far as it fits, and each difference is logged.

        Raises:
            ValueError: an entry is not the state of a loss scaler.
        """
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


def gradients_of(named_params):
    """Return the gradients that exist, in order."""
    return [param.grad for _, param in named_params if param.grad is not None]
