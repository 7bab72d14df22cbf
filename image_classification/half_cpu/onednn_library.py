"""ctypes binding to the oneDNN that ships with Paddle: status checks, memory descriptors, attributes, primitives.

The C API of oneDNN 3 works on opaque handles, so calling it needs neither a compiler nor a header. Only what the
kernels of this package use is bound. The numbers below are oneDNN's own (``dnnl_types.h``); :func:`load` asks the
library for the names of the ones that could drift and refuses a library that disagrees.

oneDNN in Paddle's wheel is built for OpenMP and shares libiomp5 and its thread pool with Paddle, so
``OMP_NUM_THREADS`` rules both, and with that runtime ``dnnl_primitive_execute`` returns when the result is written.
"""

import ctypes
import functools
import math
import os
import threading
from collections.abc import Callable
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_int64, c_size_t, c_uint, c_void_p
from typing import TYPE_CHECKING

from .onednn_scratch import Scratch

FLOAT16, BFLOAT16, FLOAT32 = 1, 2, 3
ELEMENT_SIZE = {FLOAT16: 2, BFLOAT16: 2, FLOAT32: 4}
AVX2, AVX512, AVX512_BF16, AMX_BF16 = 0x7, 0x27, 0xE7, 0xFEF  # bits of instruction sets
FORWARD_TRAINING, FORWARD_INFERENCE, BACKWARD, BACKWARD_DATA = 0x40, 0x60, 0x80, 0xA0

CONVOLUTION_DIRECT = 0x1
RELU, LINEAR, GELU_TANH, SWISH, CLIP, GELU_ERF, HARDSWISH = 0x20, 0x26, 0x2B, 0x2C, 0x2F, 0x31, 0x34
RELU_USE_DST = 0x100
POOL_MAX, POOL_AVG_INCLUDE_PADDING, POOL_AVG_EXCLUDE_PADDING = 0x1FF, 0x2FF, 0x3FF
BINARY_ADD, BINARY_MUL = 0x1FFF0, 0x1FFF1
SOFTMAX = 0x30000
USE_GLOBAL_STATS, USE_SCALE, USE_SHIFT = 1, 2, 4

SRC, SRC_1, DST = 1, 2, 17
WEIGHTS, BIAS, MEAN, VARIANCE, SCALE, SHIFT, WORKSPACE, SCRATCHPAD = 33, 41, 49, 50, 51, 52, 64, 80
DIFF_SRC, DIFF_DST, DIFF_WEIGHTS, DIFF_SCALE, DIFF_SHIFT = 129, 145, 161, 255, 256
POST_OP = 1 << 15  # times the post operation's number from 1, plus SRC_1: the second operand of a binary one

QUERY_IMPLEMENTATION, QUERY_EXEC_ARGUMENT = 8, 255
QUERY_STRIDES, QUERY_NUMBER_OF_AXES, QUERY_DATA_TYPE, QUERY_PADDED_SHAPE, QUERY_FORMAT = 14, 256, 258, 260, 262
QUERY_NUMBER_OF_BLOCKS, QUERY_BLOCKS, QUERY_BLOCKED_AXES = 263, 264, 265
BLOCKED = 2
MAX_DIMENSIONS = 12

_EXPECTED_NAMES = (
    ("dnnl_dt2str", {FLOAT16: b"f16", BFLOAT16: b"bf16", FLOAT32: b"f32"}),
    ("dnnl_prop_kind2str", {FORWARD_TRAINING: b"forward_training", BACKWARD_DATA: b"backward_data"}),
    (
        "dnnl_alg_kind2str",
        {
            CONVOLUTION_DIRECT: b"convolution_direct",
            RELU: b"eltwise_relu",
            RELU_USE_DST: b"eltwise_relu_use_dst_for_bwd",
            SWISH: b"eltwise_swish",
            CLIP: b"eltwise_clip_v2",
            HARDSWISH: b"eltwise_hardswish",
            LINEAR: b"eltwise_linear",
            GELU_TANH: b"eltwise_gelu_tanh",
            GELU_ERF: b"eltwise_gelu_erf",
            POOL_MAX: b"pooling_max",
            BINARY_ADD: b"binary_add",
            BINARY_MUL: b"binary_mul",
            SOFTMAX: b"softmax_accurate",
        },
    ),
)

_Dimensions = c_int64 * MAX_DIMENSIONS
_NUMBERS = POINTER(c_int64)


class OneDNNError(RuntimeError):
    """oneDNN refused a call: usually a shape, layout or data type for which it has no implementation."""


class _Version(ctypes.Structure):
    _fields_ = [("major", c_int), ("minor", c_int)]  # and more behind them


class _Argument(ctypes.Structure):
    _fields_ = [("index", c_int), ("memory", c_void_p)]


_STATUS = ("success", "out of memory", "invalid arguments", "not implemented", "last implementation", "runtime error")

_HANDLE = POINTER(c_void_p)
_SIGNATURES = {
    "dnnl_engine_create": (_HANDLE, c_int, c_size_t),
    "dnnl_stream_create": (_HANDLE, c_void_p, c_uint),
    "dnnl_memory_desc_create_with_strides": (_HANDLE, c_int, POINTER(c_int64), c_int, POINTER(c_int64)),
    "dnnl_memory_desc_create_with_tag": (_HANDLE, c_int, POINTER(c_int64), c_int, c_int),
    "dnnl_memory_desc_query": (c_void_p, c_int, c_void_p),
    "dnnl_memory_desc_destroy": (c_void_p,),
    "dnnl_memory_create": (_HANDLE, c_void_p, c_void_p, c_void_p),
    "dnnl_memory_set_data_handle": (c_void_p, c_void_p),
    "dnnl_memory_destroy": (c_void_p,),
    "dnnl_primitive_create": (_HANDLE, c_void_p),
    "dnnl_primitive_execute": (c_void_p, c_void_p, c_int, POINTER(_Argument)),
    "dnnl_primitive_destroy": (c_void_p,),
    "dnnl_primitive_desc_destroy": (c_void_p,),
    "dnnl_primitive_desc_query": (c_void_p, c_int, c_int, c_void_p),
    "dnnl_primitive_attr_create": (_HANDLE,),
    "dnnl_primitive_attr_destroy": (c_void_p,),
    "dnnl_primitive_attr_set_post_ops": (c_void_p, c_void_p),
    "dnnl_primitive_attr_set_scratchpad_mode": (c_void_p, c_int),
    "dnnl_post_ops_create": (_HANDLE,),
    "dnnl_post_ops_destroy": (c_void_p,),
    "dnnl_post_ops_append_eltwise": (c_void_p, c_int, c_float, c_float),
    "dnnl_post_ops_append_sum": (c_void_p, c_float, c_int, c_int),
    "dnnl_post_ops_append_binary": (c_void_p, c_int, c_void_p),
}

_P, _I, _F, _U, _D = c_void_p, c_int, c_float, c_uint, POINTER(c_int64)
# After (primitive descriptor, engine); every one ends with the attributes.
_DESCRIPTIONS = {
    "matmul": (_P, _P, _P, _P),  # source, weights, bias, destination
    "binary": (_I, _P, _P, _P),
    "eltwise_forward": (_I, _I, _P, _P, _F, _F),
    "eltwise_backward": (_I, _P, _P, _P, _F, _F, _P),
    "softmax_forward": (_I, _I, _P, _P, _I),
    "softmax_backward": (_I, _P, _P, _P, _I, _P),
    "layer_normalization_forward": (_I, _P, _P, _P, _I, _F, _U),
    "layer_normalization_backward": (_I, _P, _P, _P, _P, _I, _I, _F, _U, _P),
    "batch_normalization_forward": (_I, _P, _P, _F, _U),
    "batch_normalization_backward": (_I, _P, _P, _P, _F, _U, _P),
    "convolution_forward": (_I, _I, _P, _P, _P, _P, _D, _D, _D, _D),
    "convolution_backward_data": (_I, _P, _P, _P, _D, _D, _D, _D, _P),
    "convolution_backward_weights": (_I, _P, _P, _P, _P, _D, _D, _D, _D, _P),
    "pooling_forward": (_I, _I, _P, _P, _D, _D, _D, _D, _D),
    "pooling_backward": (_I, _P, _P, _D, _D, _D, _D, _D, _P),
}


class Library:
    """The loaded library with one CPU engine and one stream. Not created directly: see :func:`load`."""

    if TYPE_CHECKING:  # the functions of _SIGNATURES are set by name

        def __getattr__(self, name: str) -> Callable[..., int]: ...

    def __init__(self, path):
        self._dll = ctypes.CDLL(path)
        # Paddle loads it first, so it has the threads; the one that the library is linked to, GNU's, starts none.
        self._openmp = ctypes.CDLL(os.path.join(os.path.dirname(path), "libiomp5.so"))
        version = self._bind_version().contents
        if version.major != 3:
            raise OneDNNError(f"oneDNN {version.major}.{version.minor} found, the binding is for oneDNN 3")
        self._check_names()
        for name, argument_types in _SIGNATURES.items():
            function = getattr(self._dll, name)
            function.argtypes, function.restype = argument_types, c_int
            setattr(self, name[len("dnnl_") :], function)
        self.memory_desc_get_size = self._dll.dnnl_memory_desc_get_size
        self.memory_desc_get_size.argtypes, self.memory_desc_get_size.restype = (c_void_p,), c_size_t
        self.query_md = self._dll.dnnl_primitive_desc_query_md
        self.query_md.argtypes, self.query_md.restype = (c_void_p, c_int, c_int), c_void_p
        self._descriptions = {}
        for name, argument_types in _DESCRIPTIONS.items():
            version = "_v2" if name.startswith("layer_normalization") else ""
            function = getattr(self._dll, f"dnnl_{name}_primitive_desc_create{version}")
            function.argtypes, function.restype = (_HANDLE, c_void_p, *argument_types, c_void_p), c_int
            self._descriptions[name] = function
        self._reorder = self._dll.dnnl_reorder_primitive_desc_create
        self._reorder.argtypes, self._reorder.restype = (_HANDLE, _P, _P, _P, _P, _P), c_int
        self.engine = self.new("oneDNN engine", self.engine_create, 1, 0)
        self.stream = self.new("oneDNN stream", self.stream_create, self.engine, 1)
        self._attributes, self._scratch = self.new_attributes(), Scratch()  # without post operations
        # A cached primitive's memory objects are set before each call, and ctypes lets other threads run meanwhile.
        self.lock = lock = threading.Lock()
        # A process that is forked meanwhile has no thread that would give the lock back.
        os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)

    def _bind_version(self):
        function = self._dll.dnnl_version
        function.argtypes, function.restype = (), POINTER(_Version)
        return function()

    def _check_names(self):
        for name, expected in _EXPECTED_NAMES:
            function = getattr(self._dll, name)
            function.argtypes, function.restype = (c_int,), c_char_p
            for number, text in expected.items():
                if function(number) != text:
                    raise OneDNNError(f"{name}({number}) is {function(number)!r}, the binding expects {text!r}")

    def isa(self):
        """Return oneDNN's bit mask of the instruction sets it will use on this machine."""
        function = self._dll.dnnl_get_effective_cpu_isa
        function.argtypes, function.restype = (), c_uint
        return function()

    def has(self, instructions):
        """Return whether oneDNN will use all instruction sets of a bit mask on this machine."""
        return self.isa() & instructions == instructions

    def threads(self):
        """Return how many threads a primitive may use."""
        return self._openmp.omp_get_max_threads()

    def address(self, name):
        """Return where a function of the library begins."""
        return ctypes.cast(getattr(self._dll, f"dnnl_{name}"), c_void_p).value

    @staticmethod
    def check(status, what):
        """Raise :class:`OneDNNError` unless the status is success."""
        if status:
            raise OneDNNError(f"{what}: {_STATUS[status] if status < len(_STATUS) else status}")

    def new(self, what, create, *arguments):
        """Return the handle that a creating function writes to its first argument."""
        handle = c_void_p()
        self.check(create(byref(handle), *arguments), what)
        return handle.value

    def new_attributes(self):
        """Return attributes that say that the scratchpad is an argument. One of oneDNN's own belongs, in some
        implementations, to the thread that made the primitive: another one would write to its own, or to none."""
        attributes = self.new("attributes", self.primitive_attr_create)
        self.check(self.primitive_attr_set_scratchpad_mode(attributes, 1), "scratchpad")
        return attributes

    def description(self, name, *arguments):
        """Return a primitive descriptor: oneDNN's choice of an implementation for these memory descriptors."""
        *operands, attributes = arguments
        attributes = attributes or self._attributes
        if name == "reorder":
            source, destination = operands
            return self.new(name, self._reorder, source, self.engine, destination, self.engine, attributes)
        return self.new(name, self._descriptions[name], self.engine, *operands, attributes)

    def scratchpad(self, description):
        """Return a memory object for what a primitive needs while it runs, or 0 for nothing."""
        md = self.query_md(description, QUERY_EXEC_ARGUMENT, SCRATCHPAD)
        size = self.memory_desc_get_size(md)
        return size and self.new("scratchpad", self.memory_create, md, self.engine, self._scratch.address(size))

    def execute(self, primitive, arguments, pointers):
        """Run a primitive on the data that the pointers point to, one for each of the first arguments, and return the
        status."""
        for argument, pointer in zip(arguments, pointers, strict=False):
            self.memory_set_data_handle(argument.memory, pointer)
        return self.primitive_execute(primitive, self.stream, len(arguments), arguments)

    def implementation(self, description):
        """Return the name of the implementation that oneDNN chose, such as ``brg_matmul:avx512_core_bf16``."""
        text = c_char_p()
        self.check(self.primitive_desc_query(description, QUERY_IMPLEMENTATION, 0, byref(text)), "query")
        return (text.value or b"").decode()

    def blocking(self, md):
        """Return (padded shape, strides, sizes of the inner blocks, their axes) of a memory descriptor, or None for one
        that is more than blocks. Blocks are named from the slowest to the fastest; strides count elements, between the
        outermost blocks."""

        def number(what):
            value = c_int()
            self.check(self.memory_desc_query(md, what, byref(value)), "query")
            return value.value

        def numbers(what, count):
            values = _NUMBERS()
            self.check(self.memory_desc_query(md, what, byref(values)), "query")
            return tuple(values[:count])

        if number(QUERY_FORMAT) != BLOCKED:
            return None
        rank, blocks = number(QUERY_NUMBER_OF_AXES), number(QUERY_NUMBER_OF_BLOCKS)
        padded, strides = numbers(QUERY_PADDED_SHAPE, rank), numbers(QUERY_STRIDES, rank)
        element = ELEMENT_SIZE.get(number(QUERY_DATA_TYPE), 0)
        if math.prod(padded) * element != self.memory_desc_get_size(md):
            return None
        return padded, strides, numbers(QUERY_BLOCKS, blocks), numbers(QUERY_BLOCKED_AXES, blocks)


def dimensions(values):
    """Return the numbers as the fixed-size array that oneDNN reads dimensions from."""
    return _Dimensions(*values)


def argument_array(pairs):
    """Return the array of (argument number, memory handle) that executing a primitive takes."""
    return (_Argument * len(pairs))(*(_Argument(index, memory) for index, memory in pairs))


def pointer_array(count):
    """Return an array of pointers to the data of so many arguments."""
    return (c_void_p * count)()


def library_path():
    """Return where Paddle's wheel keeps oneDNN; the file need not exist."""
    import paddle

    return os.path.join(os.path.dirname(paddle.__file__), "libs", "libdnnl.so.3")


@functools.cache
def load():
    """Return the :class:`Library`, or None where the wheel has no usable oneDNN."""
    path = library_path()
    if not os.path.exists(path):
        return None
    try:
        return Library(path)
    except (OSError, AttributeError, OneDNNError):
        return None
