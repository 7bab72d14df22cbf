"""Where the arithmetic runs: selection, determinism and peak memory of a device."""

import os
import resource
import sys

from .errors import UserError
from .process import world_size


def select_device(name: str) -> str:
    """Select ``auto``, ``cpu``, ``gpu`` or ``gpu:N`` for Paddle and return ``"cpu"`` or ``"gpu"``."""
    import paddle

    has_gpu = paddle.is_compiled_with_cuda() and paddle.device.cuda.device_count() > 0
    if name == "auto":
        name = "gpu" if has_gpu else "cpu"
    if name != "cpu" and name.split(":")[0] != "gpu":
        raise UserError(f"DEVICE: {name!r} is not one of auto, cpu, gpu, gpu:N")
    if name.startswith("gpu") and not has_gpu:
        raise UserError(f"DEVICE: {name!r} was asked for, but this Paddle sees no GPU; use -opts DEVICE=cpu")
    if name == "gpu" and world_size() > 1:
        name = f"gpu:{os.environ.get('FLAGS_selected_gpus', '0').split(',')[0]}"
    paddle.set_device(name)
    return name.split(":")[0]


def set_deterministic() -> None:
    """Ask Paddle for results that two runs repeat bit for bit."""
    import paddle

    if paddle.is_compiled_with_cuda():
        paddle.set_flags({"FLAGS_cudnn_deterministic": True, "FLAGS_embedding_deterministic": 1})


def peak_memory_bytes(device: str = "cpu") -> int:
    """Return the peak resident set of this process on a CPU, the peak allocated memory on a GPU, in bytes."""
    if device == "gpu":
        import paddle

        return paddle.device.cuda.max_memory_allocated()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
