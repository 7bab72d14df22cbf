"""Casts around single operators: `paddle.amp.auto_cast` on a GPU, `half_cpu.dispatch` with the same lists on a CPU."""

import functools
import importlib
import logging
from contextlib import ExitStack, contextmanager

import paddle

from .. import half_cpu
from . import lists, private
from .functions import FunctionCasts
from .policy import ApexPolicy, ListPolicy

logger = logging.getLogger(__name__)


class _SwitchedOff(FunctionCasts):
    """`paddle.amp.auto_cast(enable=False)` inside of casts on a CPU, where Paddle's own does nothing; it is active with
    the context that switches them off."""

    def __init__(self):
        super().__init__()
        self._register(private.AUTO_CAST_MODULE, private.AUTO_CAST, None)

    def _wrapper(self, function, kind):
        @functools.wraps(function)
        def auto_cast(enable=True, *args, **kwargs):
            off = self._stack()[-1] if self._stack() else None
            return function(enable, *args, **kwargs) if enable or off is None else off()

        return auto_cast


_SWITCHED_OFF = _SwitchedOff()  # one for all casts: threads may leave theirs in any order


class OperatorCasts:
    """The casts of one precision, to be switched on and off.

    Args:
        dtype: "float16" or "bfloat16".
        device: "cpu", "gpu" or another kind of Paddle's.
        policy: what `half_cpu.dispatch` asks before each operator.
        white, black: the lists of that policy; a GPU's `auto_cast` gets them.
        functions: FunctionCasts objects that are active together with the operators' casts.
    """

    def __init__(self, dtype, device, policy, white, black, functions):
        self.dtype = dtype
        self.device = device
        self.policy = policy
        self.white = lists.listed_names(white)
        self.black = lists.listed_names(black)
        self.functions = functions

    @contextmanager
    def on(self):
        """Cast operators until the context ends."""
        with ExitStack() as stack:
            if self.device == "cpu":
                stack.enter_context(half_cpu.dispatch(policy=self.policy))
                stack.enter_context(_SWITCHED_OFF.active(self.off))
            else:
                arguments = {"custom_white_list": self.white, "custom_black_list": self.black}
                stack.enter_context(paddle.amp.auto_cast(level="O1", dtype=self.dtype, **arguments))
            for functions in self.functions:
                stack.enter_context(functions.active(self.dtype))
            yield

    @contextmanager
    def off(self):
        """Leave operators as their inputs come until the context ends; half tensors still work on a CPU."""
        with ExitStack() as stack:
            if self.device == "cpu":
                stack.enter_context(half_cpu.dispatch())
            else:
                stack.enter_context(paddle.amp.auto_cast(enable=False, dtype=self.dtype))
            for functions in self.functions:
                stack.enter_context(functions.active(None))
            yield


class LoggingPolicy:
    """A policy that logs each cast it asks for."""

    def __init__(self, policy):
        self.policy = policy

    def cast(self, op_name, tensors):
        dtype = self.policy.cast(op_name, tensors)
        if isinstance(dtype, str) and any(str(tensor.dtype) != f"paddle.{dtype}" for tensor in tensors):
            logger.info("%s: inputs cast to %s", op_name, dtype)
        return dtype


def paddle_casts(dtype, device, white_list=(), black_list=(), complete=True, functions=None):
    """Return the casts of Paddle's level O1."""
    white, black = lists.paddle_lists(dtype, white_list, black_list, complete)
    user = () if functions is None else (functions,)
    return OperatorCasts(dtype, device, ListPolicy(dtype, white, black), white, black, user)


def apex_casts(dtype, device, white_list=(), black_list=(), functions=None):
    """Return the casts of Apex's O1.

    On a GPU a few operators more run in float32, such as mean and square: auto_cast cannot take them off Paddle's list.
    """
    half, float32 = lists.apex_lists(white_list, black_list)
    own = FunctionCasts()
    for module_name, names in lists.APEX_FLOAT_FUNCTIONS.items():
        for name in sorted(names):
            own.register_float_function(importlib.import_module(module_name), name)
    own.register_float_function(paddle.nn.MSELoss, "forward")  # the one loss layer that does not call its function
    user = () if functions is None else (functions,)
    return OperatorCasts(dtype, device, ApexPolicy(dtype, half, float32), half, float32, (own, *user))
