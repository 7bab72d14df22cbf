"""Which operator is given a tensor that lies on the host: Paddle copies it to the device, unasked, and waits."""

import contextlib

import paddle
from paddle import _C_ops

ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "lt", "le", "gt", "ge", "eq", "ne",
              "radd", "rsub", "rmul", "rtruediv", "rpow")  # fmt: skip
# Adam keeps its two powers of beta on the host: the kernel reads them there.
ON_THE_HOST = {"adamw_: [1] float32 of the host"}


@contextlib.contextmanager
def host_operands():
    """Collect "operator: shape dtype of the host" of every call of an operator in this context."""
    places = [(_C_ops, name) for name in dir(_C_ops) if name[0] != "_" and callable(getattr(_C_ops, name))]
    places += [(paddle.Tensor, f"__{name}__") for name in ARITHMETIC]
    originals = [(owner, name, getattr(owner, name)) for owner, name in places]
    found = set()

    def watched(name, original):
        def call(*args, **kwargs):
            for argument in [*args, *kwargs.values()]:
                for tensor in argument if isinstance(argument, (list, tuple)) else [argument]:
                    if isinstance(tensor, paddle.Tensor) and tensor._is_initialized() and tensor.place.is_cpu_place():
                        dtype = str(tensor.dtype).rpartition(".")[-1]
                        found.add(f"{name}: {list(tensor.shape)} {dtype} of the host")
            return original(*args, **kwargs)

        return call

    for owner, name, original in originals:
        setattr(owner, name, watched(name, original))
    try:
        yield found
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)
