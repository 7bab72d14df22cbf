"""The backend that computes with the oneDNN of Paddle's wheel: bfloat16 on CPUs with AVX512-BF16 or AMX, and float32.

Each kernel serves the calls it has a fast implementation for and passes the others on to the reference. Results differ
from the reference by at most one rounding of the result; subnormal bfloat16 numbers count as zero, as the CPU's
instructions define it.
"""

import functools
import platform

from . import (
    channels_last,
    compiled,
    compiled_activations,
    compiled_axes,
    compiled_broadcast,
    compiled_columns,
    compiled_concat,
    compiled_covariance,
    compiled_dropout,
    compiled_grid,
    compiled_losses,
    compiled_masks,
    compiled_norms,
    compiled_optimizer,
    compiled_pairs,
    compiled_places,
    compiled_reduce,
    compiled_repeats,
    compiled_resample,
    compiled_residual,
    compiled_residual_norm,
    compiled_roll,
    compiled_rotary,
    compiled_shuffles,
    compiled_views,
    compiled_windows,
    kernels,
    left_to_paddle,
    onednn_attention,
    onednn_batch_norm,
    onednn_batched_matmul,
    onednn_binary,
    onednn_convolution,
    onednn_dot_product_attention,
    onednn_einsum,
    onednn_elementwise,
    onednn_matmul,
    onednn_memory,
    onednn_normalization,
    onednn_pooling,
)
from . import onednn_library as library
from .compiled_library import CompiledError
from .onednn_primitives import Declined

NAME = "onednn"

KERNELS = {
    "cast": onednn_memory.cast,
    "write": onednn_memory.write,
    "linear": onednn_matmul.linear,
    "linear_gelu": onednn_matmul.linear_gelu,
    "matmul": onednn_batched_matmul.matmul,
    "bmm": onednn_batched_matmul.bmm,
    "einsum": onednn_einsum.einsum,
    "gelu": onednn_elementwise.gelu,
    "relu": onednn_elementwise.relu,
    "add": onednn_binary.add,
    "multiply": onednn_binary.multiply,
    "rearrange": onednn_memory.rearrange,
    "attention": onednn_attention.attention,
    "conv_norm": onednn_batch_norm.conv_norm,
    "norm_activation": onednn_batch_norm.norm_activation,
    "dot_product_attention": onednn_dot_product_attention.dot_product_attention,
    "batch_norm": onednn_batch_norm.batch_norm,
    "batch_norm_": onednn_batch_norm.batch_norm,
    "conv2d": onednn_convolution.conv2d,
    "conv2d_transpose": onednn_convolution.conv2d_transpose,
    "depthwise_conv2d": onednn_convolution.depthwise_conv2d,
    "depthwise_conv2d_transpose": onednn_convolution.conv2d_transpose,
    "pool2d": onednn_pooling.pool2d,
    "softmax": onednn_normalization.softmax,
    "squeeze": onednn_memory.squeeze,
    "unsqueeze": onednn_memory.unsqueeze,
    "layer_norm": onednn_normalization.layer_norm,
    "product_norm": onednn_normalization.product_norm,
}

# Those that round float32 weights to the format of the images themselves, in fewer calls than a cast of their own.
ROUNDING = {
    "linear": functools.partial(onednn_matmul.linear, rounds=True),
    "matmul": functools.partial(onednn_batched_matmul.matmul, rounds=True),
    "conv2d": functools.partial(onednn_convolution.conv2d, rounds=True),
    "depthwise_conv2d": functools.partial(onednn_convolution.depthwise_conv2d, rounds=True),
    "conv_norm": functools.partial(onednn_batch_norm.conv_norm, rounds=True),
}

_COMPILED = (
    compiled_activations, compiled_broadcast, compiled_concat, compiled_covariance, compiled_dropout, compiled_norms,
    compiled_optimizer, compiled_columns, compiled_grid, compiled_axes, compiled_losses, compiled_masks, compiled_pairs,
    compiled_places, compiled_repeats, compiled_reduce, compiled_resample, compiled_roll, compiled_rotary,
    compiled_residual, compiled_residual_norm, compiled_shuffles, compiled_views, compiled_windows,
)  # fmt: skip
# Where the compiled library is; what both have, oneDNN is asked for first.
COMPILED_KERNELS = {name: kernel for module in _COMPILED for name, kernel in module.KERNELS.items()}


def available():
    """Return True where oneDNN has fast float32 kernels: AVX2 or better, and a wheel with the library."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    return library.load() is not None and library.load().has(library.AVX2)


def instruction_set():
    """Return "amx" or "avx512_bf16", what oneDNN multiplies bfloat16 matrices with here, or None where it does not."""
    if not available() or library.BFLOAT16 in compiled.formats() or not library.load().has(library.AVX512_BF16):
        return None
    return "amx" if library.load().has(library.AMX_BF16) else "avx512_bf16"


def _guarded(kernel):
    """Return the kernel that leaves to others what it declines, or this oneDNN has no implementation for."""

    @functools.wraps(kernel)
    def guarded(original, args, kwargs):
        try:
            return kernel(original, args, kwargs)
        except (library.OneDNNError, CompiledError, Declined):
            return NotImplemented

    return guarded


def _all_guarded(table):
    """Return a table of kernels that decline by themselves, those of images in either format."""
    return {
        operator: _guarded(channels_last.of_rows(kernel) if operator in channels_last.OPERATORS else kernel)
        for operator, kernel in table.items()
    }


def _first_of(first, second):
    """Return the kernel that asks the second one where the first declines."""

    def kernel(original, args, kwargs):
        result = first(original, args, kwargs)
        return second(original, args, kwargs) if result is NotImplemented else result

    return kernel


def _backend():
    """Return this backend where the machine and Paddle's wheel can run it.

    All of its kernels serve float32 too, but the cast: Paddle's own use one thread or an MKL of 2019. Where oneDNN's
    products take no signals and no compiler made others, float32 is Paddle's.
    """
    if not available():
        return None
    table, mixed, widening = _all_guarded(KERNELS), frozenset[str](), {}
    if compiled.formats():
        for kernels_of in (COMPILED_KERNELS, compiled_residual.MIXED_KERNELS):
            for name, kernel in _all_guarded(kernels_of).items():
                table[name] = _first_of(table[name], kernel) if name in table else kernel
        widening = _all_guarded(compiled_reduce.WIDENING)
        mixed = frozenset(
            (*compiled_residual.KERNELS, *compiled_residual_norm.KERNELS, *compiled_residual.MIXED_KERNELS)
        )
    names = {number: dtype for dtype, number in (("float16", library.FLOAT16), ("bfloat16", library.BFLOAT16))}
    descriptions = {names[number]: compiled.description() for number in compiled.formats()}
    if instruction_set():
        descriptions["bfloat16"] = f"{NAME} {instruction_set()}{'' if compiled.formats() else ' alone'}"
    serves = onednn_matmul.takes_signals() or bool(compiled.formats())
    in_float32 = frozenset(table) - {"cast"} if serves else frozenset[str]()
    left = {**left_to_paddle.rules(library.load().threads()), **compiled_optimizer.left()}
    how = onednn_memory.compact, onednn_binary.fork, mixed, _all_guarded(ROUNDING), widening, left
    return kernels.Backend(NAME, descriptions, table, in_float32, *how)


def register():
    """Add this backend to the table of fast kernels."""
    kernels.register(NAME, _backend)
