"""What a device offers: one class for CPUs, NVIDIA's GPUs, Kunlun's XPUs, and all that come to Paddle as plug-ins.

Everyone else knows a device by its kind ("cpu", "gpu", "xpu" or the plug-in's name, such as "npu") and asks here.
"""

import functools
import importlib.metadata
import importlib.util
import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

from .cuda import driver_version, refuse_missing_architecture, refuse_old_driver
from .errors import UserError
from .process import world_size


class Cpu:
    """The CPU of this machine, one device whatever its number of cores.

    Attributes:
        backend: Paddle's name of the collectives between processes on such devices.
        profiler_target: name of what paddle.profiler.ProfilerTarget calls it.
    """

    backend = "gloo"
    profiler_target = "CPU"

    def __init__(self, kind: str = "cpu") -> None:
        self.kind = kind

    def count(self) -> int:
        """Return how many devices this process sees."""
        return 1

    def refuse_unusable(self) -> None:
        """Raise a UserError where the selected device does not run this Paddle."""

    def synchronize(self) -> None:
        """Wait until everything that was asked for is computed; operators of a CPU have returned when they are."""

    def peak_memory_bytes(self) -> int:
        """Return the peak resident set of this process; on other devices the peak of their allocated memory."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


class Plugin(Cpu):
    """A device that a plug-in brings; Paddle's general functions serve every kind."""

    backend = "xccl"
    profiler_target = "CUSTOM_DEVICE"

    def count(self) -> int:
        import paddle

        return sum(name.partition(":")[0] == self.kind for name in paddle.device.get_available_custom_device() or [])

    def synchronize(self) -> None:
        import paddle

        paddle.device.synchronize()

    def peak_memory_bytes(self) -> int:
        import paddle

        return paddle.device.max_memory_allocated(paddle.get_device())


class Gpu(Plugin):
    """An NVIDIA GPU; the functions are those of every Paddle since 2.6."""

    backend = "nccl"
    profiler_target = "GPU"

    def count(self) -> int:
        import paddle

        if not paddle.is_compiled_with_cuda():
            return 0
        refuse_old_driver(paddle.version.cuda(), driver_version())
        return paddle.device.cuda.device_count()

    def refuse_unusable(self) -> None:
        refuse_missing_architecture()

    def peak_memory_bytes(self) -> int:
        import paddle

        return paddle.device.cuda.max_memory_allocated()


class Xpu(Plugin):
    """A Kunlun XPU."""

    backend = "bkcl"
    profiler_target = "XPU"

    def count(self) -> int:
        import paddle

        return paddle.device.xpu.device_count() if paddle.is_compiled_with_xpu() else 0

    def peak_memory_bytes(self) -> int:
        import paddle

        return paddle.device.xpu.max_memory_allocated()


BUILT_IN: dict[str, type[Cpu]] = {"cpu": Cpu, "gpu": Gpu, "xpu": Xpu}


def device_of(kind: str) -> Cpu:
    """Return what is known of a kind of device; every name that is not built in is a plug-in's."""
    return BUILT_IN.get(kind, Plugin)(kind)


def visible(kind: str) -> int:
    """Return how many devices of a kind Paddle would see; importing Paddle here would fix its number of threads."""
    if kind == "cpu":
        return 1
    return _visible_gpus() if kind == "gpu" else _seen_by_paddle().get(kind, 0)


def expected_kind(name: str) -> str:
    """Return the kind that :func:`select_device` will select, before Paddle is imported."""
    kind = name.partition(":")[0]
    if kind != "auto":
        return kind
    return "gpu" if _visible_gpus() else next((kind for kind, count in _seen_by_paddle().items() if count), "cpu")


def _visible_gpus() -> int:
    try:
        importlib.metadata.distribution("paddlepaddle-gpu")
    except importlib.metadata.PackageNotFoundError:
        return 0
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None and chosen != "all":
        return len([index for index in chosen.split(",") if index.strip() not in ("", "-1")])
    return len([path for path in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name)])


_COUNT = """
import json, paddle
counts = {"xpu": paddle.device.xpu.device_count() if paddle.is_compiled_with_xpu() else 0}
for name in paddle.device.get_available_custom_device() or []:
    counts[name.split(":")[0]] = counts.get(name.split(":")[0], 0) + 1
print(json.dumps(counts))
"""


@functools.cache
def _seen_by_paddle() -> dict[str, int]:
    """Return {kind: number} of XPUs and plug-ins' devices, from a process of its own where there may be any."""
    folders = [os.environ.get("CUSTOM_DEVICE_ROOT")]
    spec = importlib.util.find_spec("paddle_custom_device")
    folders += spec.submodule_search_locations or [] if spec else []
    has_plugin = any(folder and any(Path(folder).glob("*.so")) for folder in folders)
    has_xpu = any(found.metadata["Name"] == "paddlepaddle-xpu" for found in importlib.metadata.distributions())
    if not (has_plugin or has_xpu):
        return {}
    asked = subprocess.run([sys.executable, "-c", _COUNT], capture_output=True, text=True, check=False)
    return json.loads(asked.stdout.splitlines()[-1]) if asked.returncode == 0 else {}


def cards_variable(kind: str) -> str:
    """Return the name of the environment variable with the numbers of the devices that this process may use."""
    return f"FLAGS_selected_{kind}s"


def select_device(name: str) -> str:
    """Select a device for Paddle and return its kind.

    Args:
        name: ``auto``, ``cpu``, or ``gpu``, ``xpu`` and the name of a plug-in's device, each with ``:N`` or without.
            ``auto`` is the first kind that this Paddle sees, the CPU last.

    Raises:
        UserError: no such device here, or one that does not run this Paddle.
    """
    import paddle

    plugins = paddle.device.get_all_custom_device_type() or []
    if name == "auto":
        name = next((kind for kind in ("gpu", "xpu", *plugins) if device_of(kind).count()), "cpu")
    kind, colon, index = name.partition(":")
    if kind not in {*BUILT_IN, *plugins} or (colon and (kind == "cpu" or not index.isdigit())):
        allowed = ", ".join(["auto", "cpu", *(f"{other}, {other}:N" for other in ("gpu", "xpu", *plugins))])
        raise UserError(f"DEVICE: {name!r} is not one of {allowed}")
    count = device_of(kind).count()
    if count == 0:
        raise UserError(f"DEVICE: {name!r} was asked for, but this Paddle sees no {kind.upper()}; use -device=cpu, or "
                        "-opts DEVICE=cpu")  # fmt: skip
    if colon and int(index) >= count:
        raise UserError(f"DEVICE: {name!r} was asked for, but this Paddle sees {kind}:0 to {kind}:{count - 1}")
    if kind == "cpu":
        paddle.set_device("cpu")
        return kind
    if not colon:
        index = os.environ.get(cards_variable(kind), "0").split(",")[0] if world_size() > 1 else "0"
    paddle.set_device(f"{kind}:{index}")
    device_of(kind).refuse_unusable()
    return kind


def failure_of(error: BaseException) -> str | None:
    """Return in one line what Paddle said of a device that failed or has no memory left; None for any other error."""
    text = str(error)
    kinds = ("(External)", "(ResourceExhausted)", "ExternalError", "ResourceExhaustedError", "CustomDevice error")
    if not any(kind in text for kind in kinds):
        return None
    lines = [line.strip() for line in text.splitlines() if line.strip(" -")]
    return next(line for line in lines if any(kind in line for kind in kinds)).split(" (at /")[0]


def peak_memory_bytes(kind: str = "cpu") -> int:
    """Return the peak resident set of this process on a CPU, the peak allocated memory of another device, in bytes."""
    return device_of(kind).peak_memory_bytes()


def set_deterministic() -> None:
    """Ask Paddle for results that two runs repeat bit for bit."""
    import paddle

    if paddle.is_compiled_with_cuda():
        paddle.set_flags({"FLAGS_cudnn_deterministic": True, "FLAGS_embedding_deterministic": 1})
