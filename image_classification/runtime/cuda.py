"""What an NVIDIA driver, a GPU and a build of Paddle need of each other, in plain calls of the driver and of Paddle."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from .errors import UserError

WAYS_OUT = "install the Paddle for this machine's CUDA (see Start in the README), or use -device cpu"


def refuse_old_driver(built_for: str, driver: int | None) -> None:
    """Refuse a driver that cannot run what Paddle was compiled for, which Paddle would say inside its first call.

    A driver runs programs of its own CUDA, of older ones, and of newer ones with the same first number (NVIDIA, "CUDA
    Compatibility", minor version compatibility).

    Args:
        built_for: the CUDA of this Paddle, ``paddle.version.cuda()``, such as "12.6"; "False" for other makers' GPUs.
        driver: what :func:`driver_version` returned.

    Raises:
        UserError: the driver is too old.
    """
    major = built_for.partition(".")[0]
    if driver is not None and major.isdigit() and driver // 1000 < int(major):
        newest = f"{driver // 1000}.{driver % 1000 // 10}"
        raise UserError(
            f"DEVICE: the NVIDIA driver of this machine runs CUDA up to {newest}, this Paddle is built for CUDA "
            f"{built_for}: update the driver, {WAYS_OUT}"
        )


def driver_version() -> int | None:
    """Return the newest CUDA that the driver runs, 1000 x major + 10 x minor; None where there is no driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    version = ctypes.c_int()
    return version.value if driver.cuDriverGetVersion(ctypes.byref(version)) == 0 else None


def has_code_for(capability: tuple[int, int], architectures: Sequence[int]) -> bool:
    """Return whether a build has machine code that a GPU runs: that of its major capability, of no later a minor one.

    Args:
        capability: (major, minor) of the GPU, ``paddle.device.cuda.get_device_capability()``.
        architectures: for which Paddle was compiled, ``paddle.version.cuda_archs()``, such as [80, 86, 90].
    """
    major, minor = capability
    return any(architecture // 10 == major and architecture % 10 <= minor for architecture in architectures)


def refuse_missing_architecture() -> None:
    """Refuse a GPU that Paddle has no code for, which its first kernel would say as "no kernel image".

    A build of one's own may bring code that the driver compiles for new GPUs and that the list does not name, so an
    operator is tried first.

    Raises:
        UserError: the GPU that Paddle has selected does not run this build.
    """
    import paddle

    capability, architectures = paddle.device.cuda.get_device_capability(), paddle.version.cuda_archs()
    if has_code_for(capability, architectures):
        return
    try:
        float(paddle.ones([1]) + 1)
    except (OSError, RuntimeError):
        raise UserError(
            f"DEVICE: this GPU ({paddle.device.cuda.get_device_name()}) has compute capability {capability[0]}."
            f"{capability[1]}, this Paddle is built for {', '.join(map(str, architectures))}: {WAYS_OUT}"
        ) from None
