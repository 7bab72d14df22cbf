"""Primitives on tensors: each is built once per (operation, shapes, strides, data types) and kept in a bounded cache.

A :class:`Layout` says how oneDNN sees one tensor. ``cache.get`` looks a primitive up or builds it, and calling the
primitive with data pointers runs it to the end. The pointers must belong to tensors that live until the call returns.
"""

import collections
import contextlib
import functools
import threading
from math import prod
from typing import Any, NamedTuple

import paddle

from . import compiled
from . import onednn_library as onednn
from .arguments import CPU
from .compiled_library import CompiledError
from .onednn_builder import Builder
from .paddle_names import empty
from .scope import active

DATA_TYPES = {paddle.float16: onednn.FLOAT16, paddle.bfloat16: onednn.BFLOAT16, paddle.float32: onednn.FLOAT32}
# The same by identity: Paddle hands out one object per dtype, and to hash it takes longer than all else of a look-up.
_NUMBERS = {id(dtype): number for dtype, number in DATA_TYPES.items()}
ELEMENT_SIZE = onednn.ELEMENT_SIZE
CACHE_SIZE = 1024  # primitives; a ViT-B training step uses about 70, a ResNet-50 step about 220

_UINT8 = paddle.uint8


class Declined(Exception):
    """A call that a kernel passes on."""


def bound(args, kwargs, names, defaults):
    """Return the values of a call's parameters in the order of `names`.

    `defaults` belong to the last names. A `name` or `out` of None, which Paddle passes along, is no argument.

    Raises:
        Declined: the call has another one, or lacks one.
    """
    missing = len(names) - len(args)
    if not kwargs and 0 <= missing <= len(defaults):  # the usual call, a microsecond instead of ten
        return [*args, *defaults[len(defaults) - missing :]]
    values = list(args)
    while len(values) > len(names) and values[-1] is None:
        values.pop()
    kwargs = {name: value for name, value in kwargs.items() if value is not None or name not in ("name", "out")}
    if len(values) > len(names) or not kwargs.keys() <= set(names[len(values) :]):
        raise Declined
    found = dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
    found |= dict(zip(names, values, strict=False)) | kwargs
    if len(found) < len(names):
        raise Declined
    return [found[name] for name in names]


class Layout(NamedTuple):
    """A tensor as oneDNN sees it: its number format, shape, and strides in elements (None: oneDNN chooses)."""

    data_type: int
    shape: tuple
    strides: tuple | Any  # Any for None, so that users of a view, whose strides are known, need not ask


def dense_strides(shape):
    """Return the strides of a dense row-major tensor, in elements."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def is_known(dtype):
    """Return whether oneDNN has a number for a Paddle dtype."""
    return id(dtype) in _NUMBERS


def data_type(tensor):
    """Return oneDNN's number of a tensor's format."""
    return _NUMBERS[id(tensor.dtype)]


def layout(tensor):
    """Return the layout of a tensor as it lies in memory."""
    return _layout(_NUMBERS[id(tensor.dtype)], tuple(tensor.shape), tuple(tensor.strides))


_layout = functools.lru_cache(maxsize=4 * CACHE_SIZE)(Layout)


def dense(dtype, *shape):
    """Return the layout of a dense row-major tensor of a Paddle dtype."""
    return _dense(_NUMBERS[id(dtype)], *shape)


@functools.lru_cache(maxsize=4 * CACHE_SIZE)
def _dense(number, *shape):
    return Layout(number, shape, dense_strides(shape))


def numel(tensor):
    """Return the number of elements; Tensor.size goes through NumPy and takes ten times as long."""
    return prod(tensor.shape)


@functools.cache
def _served_types():
    """Return the identities of the dtypes that are computed on this machine."""
    known = {onednn.FLOAT32, *compiled.formats()}
    if onednn.load() is not None and onednn.load().has(onednn.AVX512_BF16):
        known.add(onednn.BFLOAT16)
    return frozenset(identity for identity, number in _NUMBERS.items() if number in known)


def operand_numbers(post_ops):
    """Return the argument numbers of the second operands of binary post operations."""
    return [
        number * onednn.POST_OP + onednn.SRC_1 for number, (kind, *_) in enumerate(post_ops, 1) if kind == "binary"
    ]


def servable(tensor, *others):
    """Return True for dense tensors that are not empty and share a number format that is computed here."""
    dtype = tensor.dtype
    if id(dtype) not in _served_types() or 0 in tensor.shape or not tensor.is_dense():
        return False
    for other in others:  # noqa: SIM110, a generator takes as long as all else
        if other.dtype is not dtype or 0 in other.shape or not other.is_dense():
            return False
    return True


def new_tensor(dtype, shape):
    """Return a dense CPU tensor with arbitrary content."""
    tensor = empty(shape, dtype, CPU)
    if active.recorder is not None:
        active.recorder.allocated(tensor)
    return tensor


def pointers(*tensors):
    """Return where each tensor begins, None for None."""
    return [None if tensor is None else tensor.data_ptr() for tensor in tensors]


class _Scratch(threading.local):
    tensor: Any = None


_scratch = _Scratch()


def scratch(size):
    """Return a tensor of so many bytes or more, which are this thread's until it asks again."""
    tensor = _scratch.tensor
    if tensor is None or tensor.shape[0] < size or active.recorder is not None:  # each time anew in what is recorded
        tensor = _scratch.tensor = new_tensor(_UINT8, [size])
    return tensor


class Primitive:
    """A built primitive with one memory object per argument; call it with as many data pointers, in that order.

    `replaced`: the places of the result among them and of an operand that may lie in the same memory, if there is one.
    """

    __slots__ = (
        "_library", "_handle", "_description", "_memories", "_scratchpad", "_pointers", "_run", "implementation",
        "sizes", "replaced",
    )  # fmt: skip

    def __init__(self, library, description, argument_numbers, replaced=()):
        self._library = library
        self._handle = self._memories = self._scratchpad = None
        self._description = description
        self.implementation = library.implementation(description)
        self.replaced = replaced
        self._handle = library.new("primitive", library.primitive_create, description)
        self._memories = []
        self.sizes = []
        for number in argument_numbers:
            md = library.query_md(description, onednn.QUERY_EXEC_ARGUMENT, number)
            self.sizes.append(library.memory_desc_get_size(md))
            self._memories.append(library.new("memory", library.memory_create, md, library.engine, None))
        arguments = list(zip(argument_numbers, self._memories, strict=True))
        self._scratchpad = library.scratchpad(description)
        if self._scratchpad:
            arguments.append((onednn.SCRATCHPAD, self._scratchpad))
        arguments = onednn.argument_array(arguments)
        self._pointers = onednn.pointer_array(len(self._memories))
        self._run = compiled.execution(library, self._handle, arguments, self._pointers) or functools.partial(
            library.execute, self._handle, arguments, self._pointers
        )

    def __call__(self, *pointers):
        library = self._library
        with library.lock:
            self._pointers[:] = pointers
            status = self._run()
        self.errcheck(status)
        if active.recorder is not None:
            active.recorder.called(self, pointers, range(len(pointers)))

    def errcheck(self, status, *_):
        """Raise what a status of oneDNN's says, as a function of ctypes does."""
        self._library.check(status, self.implementation)

    @property
    def lock(self):
        """What whoever makes a call of `execution` holds."""
        return self._library.lock

    def execution(self, pointers):
        """Return the compiled function that is this call with an array of pointers, and its arguments."""
        return self._run.func, *self._run.args[:-1], pointers

    def __del__(self):
        library = self._library
        for memory in filter(None, (*(self._memories or ()), self._scratchpad)):
            library.memory_destroy(memory)
        if self._handle:
            library.primitive_destroy(self._handle)
        library.primitive_desc_destroy(self._description)


class Cache:
    """The most recently used primitives. A key that oneDNN refused is remembered too: asking again costs nothing."""

    def __init__(self, size=CACHE_SIZE):
        self.size = size
        self._entries = collections.OrderedDict()

    def __len__(self):
        return len(self._entries)

    def get(self, build, *key):
        """Return the primitive that ``build(library, builder, *key)`` makes: a compiled one, or (description, argument
        numbers) of oneDNN's.

        Raises:
            OneDNNError, CompiledError: there is no implementation for it.
        """
        entries = self._entries
        entry = entries.get((build, key))
        if entry is None:
            entry = entries[build, key] = self._build(build, key)
            if len(entries) > self.size:
                entries.popitem(last=False)
        elif 2 * len(entries) > self.size:  # in a smaller one nothing goes before others were used
            with contextlib.suppress(KeyError):  # another thread may just have dropped it
                entries.move_to_end((build, key))
        if isinstance(entry, Exception):
            raise entry
        return entry

    @staticmethod
    def _build(build, key):
        library = onednn.load()
        try:
            if any(isinstance(part, Layout) and part.data_type in compiled.formats() for part in key):
                return build.compiled(*key)
            if compiled.formats() and hasattr(build, "preferred") and build.preferred(*key):
                return build.compiled(*key)
            with Builder(library) as builder:
                made = build(library, builder, *key)
                if isinstance(made, compiled.Primitive):
                    return made
                primitive = Primitive(library, *made)
            if is_sgemm(primitive.implementation) and any(map(_is_float32, key)):
                raise onednn.OneDNNError(f"{primitive.implementation} has its stack in the heap")
            return primitive
        except (onednn.OneDNNError, CompiledError) as error:
            return error


def is_sgemm(implementation):
    """Return whether an implementation, in float32, is made of the products of oneDNN's `sgemm`.

    Until March 2026 (uxlfoundation/oneDNN, commit d090db10) their code points the stack into the heap. A signal that is
    handled meanwhile, of Ctrl-C or of a scheduler, writes some KiB over what lies below.
    """
    return "gemm:jit" in implementation


def _is_float32(part):
    return isinstance(part, Layout) and part.data_type == onednn.FLOAT32


cache = Cache()
