"""Every name that `amp` uses and Paddle does not document; a test fails when one of them vanishes."""

import copy
import functools
import sys
import weakref
from typing import Any

import paddle
from paddle.amp import amp_lists as _amp_lists
from paddle.base.framework import EagerParamBase

_GRAD: Any = EagerParamBase.grad

# what every spelling of `paddle.amp.auto_cast` calls
AUTO_CAST_MODULE, AUTO_CAST = sys.modules["paddle.amp.auto_cast"], "amp_guard"


def squared_l2_norm(tensor):
    """Return the sum of squares of a float32 tensor, shape [] or [1]: the kernel of paddle.nn.ClipGradByGlobalNorm."""
    return paddle._C_ops.squared_l2_norm(tensor)


def optimizer_parameters(optimizer):
    """Return the tensors that an optimizer updates, the parameter groups flattened."""
    parameters: list[paddle.Tensor] = []
    for entry in optimizer._param_groups:
        parameters.extend(entry["params"] if isinstance(entry, dict) else [entry])
    return parameters


def add_param_group(optimizer, group):
    """Add a parameter group to an optimizer that was built with groups.

    Raises:
        ValueError: the optimizer was built with a plain list of parameters.
    """
    if not isinstance(optimizer._param_groups[0], dict):
        raise ValueError("the optimizer was built with a plain list; build it with groups, [{'params': ...}]")
    # Momentum and others replace the defaults that the constructor gave the first groups.
    defaults = {"weight_decay": optimizer.regularization, "grad_clip": optimizer._grad_clip, **optimizer._default_dict}
    optimizer._add_param_group({**defaults, **group})


def amp_lists(dtype):
    """Return Paddle's (white, black) lists of level O1, in the operator names of Paddle 1."""
    return _amp_lists.white_list()[dtype]["O1"], _amp_lists.black_list()[dtype]["O1"]


@functools.cache
def operator_names():
    """Return the names of all operators."""
    return frozenset(name for name in dir(paddle._C_ops) if not name.startswith("_"))


class HalfParameter(EagerParamBase):
    """A half weight that knows its float32 master. A copy (`copy.deepcopy`) has a copy of the master.

    Attributes:
        master: the float32 parameter that the optimizer updates.
        registry: {id of a master: half weight} of the storage that the weight belongs to, as its copies do.
        frozen: whether it was frozen when it was made, and was not trained since.
    """

    master: EagerParamBase
    registry: weakref.WeakValueDictionary
    frozen: bool
    _writes = 0  # by methods that autograd does not count
    _known: Any = None

    @classmethod
    def of(cls, master, dtype, registry):
        """Return the half twin of a float32 parameter, with its name and attributes."""
        twin = cls.from_tensor(master.detach().astype(dtype), name=master.name, trainable=not master.stop_gradient)
        twin.__dict__.update(master.__dict__)
        return twin._belongs(master, registry, master.stop_gradient)

    def _belongs(self, master, registry, frozen):
        self.master, self.registry, self.frozen = master, registry, frozen
        registry[id(master)] = self
        self.note()
        return self

    def note(self):
        """Take what the weight is now for what its master says."""
        self._known = self._state()

    def was_written(self):
        """Return whether anybody may have written the weight since it was noted."""
        return self._known != self._state()

    def _state(self):
        return self.inplace_version, self.data_ptr(), self._writes

    def set_value(self, value):
        super().set_value(value)
        self._writes += 1

    def copy_(self, *args):
        super().copy_(*args)
        self._writes += 1

    def clear_gradient(self, set_to_zero=True):
        """Clear its gradient, also where the master has it already: ``Layer.clear_gradients`` knows no masters."""
        self.master.clear_gradient(False)
        super().clear_gradient(set_to_zero)

    def drop_gradient(self):
        """Clear its own gradient alone."""
        super().clear_gradient(False)

    def __deepcopy__(self, memo):
        attributes = {name: value for name, value in vars(self).items() if name not in ("master", "registry", "_known")}
        name = self.name + paddle.utils.unique_name.generate("_deepcopy")  # as Paddle names it
        twin = HalfParameter.from_tensor(self.detach().clone(), **copy.deepcopy(attributes, memo), name=name)
        memo[id(self)] = twin
        return twin._belongs(copy.deepcopy(self.master, memo), self.registry, self.frozen)


class AskedParameter(EagerParamBase):
    """A parameter that is asked before its gradient is read, replaced, cleared, copied or watched; subclasses answer by
    `widen()`, `drop()` and `for_optimizer()`.

    Attributes:
        is_watched: whether functions are to be called when a gradient comes.
    """

    is_watched = False

    @property
    def grad(self):
        self.widen()
        return _GRAD.__get__(self)

    @grad.setter
    def grad(self, value):
        self.drop()
        _GRAD.__set__(self, value)

    def clear_gradient(self, set_to_zero=True):
        if set_to_zero:
            self.widen()
        self.drop()
        super().clear_gradient(set_to_zero)

    def _grad_ivar(self):  # how optimizers read it
        if (gradient := self.for_optimizer()) is not None:
            return gradient
        self.widen()
        return super()._grad_ivar()

    def _register_grad_hook(self, hook):
        self._watch()
        return super()._register_grad_hook(hook)  # type: ignore[misc]  # Paddle's annotations leave it out

    def _register_backward_hook(self, hook):
        self._watch()
        return super()._register_backward_hook(hook)  # type: ignore[misc]  # as above

    def _watch(self):
        self.widen()
        self.is_watched = True

    def __deepcopy__(self, memo):
        self.widen()  # Paddle copies all attributes
        return super().__deepcopy__(memo)

    def widen(self):
        """Let the gradient be what `grad` returns."""
        raise NotImplementedError

    def drop(self):
        """Forget what is not yet what `grad` returns."""
        raise NotImplementedError

    def for_optimizer(self):
        """Return a gradient that an optimizer may read instead, or None."""
        raise NotImplementedError


def is_plain_parameter(tensor):
    """Return whether a tensor is a parameter as Paddle makes it, of no class of its own."""
    return type(tensor) is EagerParamBase


def has_gradient_hooks(tensor):
    """Return whether functions are to be called when a gradient of a tensor comes, as far as Paddle tells."""
    hook = tensor._register_grad_hook(lambda gradient: None)
    tensor._remove_grad_hook(hook)
    return hook > 0


def moved(tensor):
    """Return another tensor of the same numbers in the same memory, which stays when the first one lets go of it."""
    other = paddle.empty([0], tensor.dtype)
    other.get_tensor()._share_data_with(tensor.get_tensor())
    return other


def cast_in_place(tensor, dtype):
    """Change the dtype of a parameter or buffer, rounding its values; the tensor object stays the same.

    This is what `paddle.nn.Layer.to` does to each tensor of a layer.
    """
    rounded = tensor.detach().astype(dtype)  # a name, because get_tensor() does not keep its tensor alive
    tensor.value().get_tensor()._share_data_with(rounded.value().get_tensor())
