"""What `initialize` and `convert_to_amp` return: a model and an optimizer that carry their precision with them."""

import inspect
import math
import weakref
from collections.abc import Callable, Sequence

import paddle

from . import private
from .gradients import gradients_of, multiply
from .plain import PlainPrecision
from .precision import StepResult
from .structures import cast_floating


class _Bound:
    """A method of which ``paddle.jit``, which asks for its name first, is told what to do instead."""

    def __init__(self, function: Callable, model: "AmpModel"):
        self._function, self._model = function, model

    def __call__(self, *args, **kwargs):
        return self._function(self._model, *args, **kwargs)

    @property
    def __signature__(self):
        """That of the model's own; ``paddle.Model`` takes the names of its inputs from it."""
        return inspect.signature(type(self._model.model).forward)

    @property
    def __name__(self) -> str:
        raise AttributeError(
            "paddle.jit takes no model that was through amp: build the plain model, give it this one's weights by "
            "set_state_dict(model.state_dict()), and save that"
        )


class _NotForJit:
    """Decorator of such a method; no property, which ``paddle.jit.save`` would leave out without a word."""

    def __init__(self, function: Callable):
        self._function = function

    def __get__(self, model, owner=None):
        return self if model is None else _Bound(self._function, model)


class AmpModel(paddle.nn.Layer):
    """A model that opens its precision's forward context itself; attributes of the model are found and set through it.

    Called outside of a forward context it returns float32, because operators out there do not expect half tensors.
    """

    def __init__(self, model: paddle.nn.Layer, precision: PlainPrecision):
        super().__init__()
        self.model = precision.convert_model(model)
        self.precision = precision

    @_NotForJit
    def forward(self, *args, **kwargs):
        outermost = not self.precision.is_active
        with self.precision.forward_context():
            outputs = self.model(*args, **kwargs)
            return cast_floating(outputs, "float32") if outermost and self.precision.casts_operators else outputs

    def state_dict(self, *args, **kwargs):
        """Return the weights in float32 under the plain model's keys."""
        return self.precision.model_state_dict(self.model)

    def set_state_dict(self, state_dict, *args, **kwargs):
        """Set weights and masters; return (missing, unexpected) keys."""
        return self.precision.load_model_state_dict(self.model, state_dict)

    set_dict = load_dict = set_state_dict

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("model"), name)

    def __setattr__(self, name, value):
        # `precision` is set last: before, all is this layer's own
        own = "precision" not in vars(self) or name in vars(self) or name == "model" or hasattr(type(self), name)
        if own:
            super().__setattr__(name, value)
        else:
            setattr(self.model, name, value)

    def named_parameters(self, *args, **kwargs):
        """Return the parameters under the plain model's names, as `state_dict` has them."""
        return self.model.named_parameters(*args, **kwargs)

    def named_buffers(self, *args, **kwargs):
        """Return the buffers under the plain model's names."""
        return self.model.named_buffers(*args, **kwargs)


def _own(wrapper, name):
    """Return an attribute of its own, which a copy that is being made has not yet: then an AttributeError."""
    return object.__getattribute__(wrapper, name)


class AmpCriterion:
    """A loss function that runs inside its precision's forward context and returns float32."""

    def __init__(self, criterion: Callable, precision: PlainPrecision):
        self.criterion = criterion
        self.precision = precision

    def __call__(self, *args, **kwargs):
        with self.precision.forward_context():
            return cast_floating(self.criterion(*args, **kwargs), "float32")

    def __getattr__(self, name):
        return getattr(_own(self, "criterion"), name)


class AmpOptimizer:
    """An optimizer that unscales and checks gradients before it applies them; other attributes are those of the
    optimizer, to read and to set.

    Gradients may arrive by `scale_loss`, by `backward` or by a plain `loss.backward()`: `step` never applies any that
    is not finite, and after it the model's half weights follow their masters.
    """

    def __init__(self, optimizer: paddle.optimizer.Optimizer, precision: PlainPrecision):
        self.optimizer = optimizer
        self.precision = precision
        self._scale = 1.0  # what the gradients are multiplied by now
        self._loss_id = 0
        self._checked = False
        self._norm = 0.0  # of the unscaled gradients now; those of a step to be skipped are dropped
        self._result: StepResult | None = None  # of the checks since the last step; a failed one stays
        self._watched: set[int] = set()  # ids of parameters whose gradients say that they come
        self._is_built = True

    _is_built = False

    def __getattr__(self, name):
        return getattr(_own(self, "optimizer"), name)

    def __setattr__(self, name, value):
        own = not self._is_built or name in vars(self) or hasattr(type(self), name)
        object.__setattr__(self if own else self.optimizer, name, value)

    def add_param_group(self, group):
        """Add a parameter group; half weights of a converted model are replaced by their masters.

        Raises:
            ValueError: the optimizer was built with a plain list of parameters.
        """
        params = group["params"]
        params = [params] if isinstance(params, paddle.Tensor) else list(params)
        private.add_param_group(self.optimizer, {**group, "params": [self.precision.master(param) for param in params]})

    def backward(self, loss, loss_id=0):
        """Add the gradients of the scaled loss; `step` unscales them."""
        self.prepare(loss_id)
        self.precision.scaled(loss, loss_id).backward()
        self.collect()

    def prepare(self, loss_id):
        """Bring the gradients that are there already to the scale of this loss, so that new ones can be added."""
        scale = self.precision.scale_of(loss_id)
        self.collect()  # those of a plain backward pass
        if scale != self._scale:
            multiply(gradients_of(self._named_params()), scale / self._scale)
        self._scale, self._loss_id = scale, loss_id

    def collect(self):
        """Move new gradients from half weights to their masters; from now on they wait for a check."""
        self.precision.collect()
        self._checked = False

    def clip_grad_norm(self, max_norm):
        """Clip the unscaled gradients to a global L2 norm; return the norm before, None for a step to be skipped."""
        if not self._check().applied:
            return None
        named_params = self._named_params()
        norm = math.sqrt(self.precision.reduction.norm_squared(named_params))
        self._norm = norm * self.precision.clip(named_params, norm, max_norm)
        return norm

    def step(self):
        """Apply the gradients, or skip the step when any of them was not finite; return a StepResult."""
        result = self._check()
        self._result, self._checked = None, False
        if not result.applied:
            self.clear_grad()
            return result
        named_params = self._named_params()
        self.precision.clip(named_params, self._norm, self.precision.clip_grad_norm)
        return self.precision.update(self.optimizer, named_params, result)

    def minimize(self, loss, startup_program=None, parameters=None, no_grad_set=None):
        """Apply the gradients that a backward pass of the loss left, as `step` does.

        Raises:
            ValueError: some parameters are to be left out.
        """
        if parameters is not None or no_grad_set is not None:
            raise ValueError("minimize of some parameters would leave the others' gradients scaled: set stop_gradient")
        return self.step()

    def clear_grad(self, set_to_zero=False):
        """Drop the gradients, those of half weights included."""
        self.precision.collect()
        self.optimizer.clear_grad(set_to_zero=set_to_zero)
        self._scale, self._checked = 1.0, False

    zero_grad = clear_gradients = clear_grad

    def _named_params(self):
        return self.precision.named_params(self.optimizer)

    def _check(self) -> StepResult:
        self.precision.collect()  # what a plain backward pass left since the last check
        if not self._checked:
            unscale([self])
        assert self._result is not None  # every check records one
        return self._result

    def _record(self, result: StepResult) -> None:
        if not result.applied:
            self.optimizer.clear_grad(set_to_zero=False)
        self._scale, self._checked, self._norm = 1.0, True, result.grad_norm or 0.0
        if self._result is None or self._result.applied:
            self._result = result
        self._watch()

    def _watch(self) -> None:
        """Have each gradient that comes from now on, by whatever backward pass, wait for another check."""
        this = weakref.ref(self)

        def uncheck(gradient):
            if (optimizer := this()) is not None:
                optimizer._checked = False

        for _, param in self._named_params():
            if id(param) not in self._watched:
                param.register_hook(uncheck)
                self._watched.add(id(param))


def unscale(optimizers: Sequence[AmpOptimizer]) -> None:
    """Check and unscale what one backward pass left, and move the scale of its loss.

    When any gradient of any of the optimizers is not finite, all of them drop theirs and skip their next step. Where no
    process has a gradient, nothing was checked, and the scale stays.
    """
    scaled = [(optimizer._named_params(), optimizer._scale) for optimizer in optimizers]
    precision = optimizers[0].precision
    if precision.reduction.found_inf(any(gradients_of(named_params) for named_params, _ in scaled)):  # a vote
        results = precision.examine(scaled, optimizers[0]._loss_id)
    else:
        results = [StepResult(True, scale, 0.0) for _, scale in scaled]
    for optimizer, (named_params, scale), result in zip(optimizers, scaled, results, strict=True):
        if result.applied:
            precision.clip(named_params, 0.0, None, scale)
        optimizer._record(result)
