"""Pickles that nobody wrote with a pickler: small files that ask for much memory, much time, or a crash."""

import pickle
import struct

import numpy as np

PROTO = b"\x80\x02"
LARGE = 3_000_000


def text(content):
    """Return the opcode that pushes a text."""
    data = content.encode("utf-8", "surrogatepass")
    return pickle.BINUNICODE + struct.pack("<I", len(data)) + data


def name(module, attribute):
    """Return the opcode that pushes what a name stands for."""
    return pickle.GLOBAL + f"{module}\n{attribute}\n".encode()


def memo(index):
    """Return the opcodes that remember the top of the stack, and that push it again."""
    return pickle.LONG_BINPUT + struct.pack("<I", index), pickle.LONG_BINGET + struct.pack("<I", index)


def number(value):
    return pickle.LONG1 + b"\x09" + value.to_bytes(9, "little", signed=True)


def numbers(*values):
    """Return the opcodes that push a tuple of integers."""
    return pickle.MARK + b"".join(map(number, values)) + pickle.TUPLE


def dtype(code):
    flags = b"K\x00K\x01"
    state = pickle.MARK + b"K\x03" + text("<") + b"NNN" + number(-1) + number(-1) + b"K\x00" + pickle.TUPLE
    return name("numpy", "dtype") + pickle.MARK + text(code) + flags + pickle.TUPLE + pickle.REDUCE + state + b"b"


def array(content, code, shape):
    """Return the opcodes of a NumPy array: `content`, `code` and `shape` are opcodes, too."""
    empty = name("numpy.core.multiarray", "_reconstruct") + name("numpy", "ndarray") + b"K\x00\x85U\x01b\x87R"
    return empty + pickle.MARK + b"K\x01" + shape + code + pickle.NEWFALSE + content + pickle.TUPLE + pickle.BUILD


def tensor(storage_size, shape, stride, offset=0, key="0", kind="FloatStorage", rebuild="_rebuild_tensor_v2"):
    """Return the opcodes of a torch tensor."""
    reference = pickle.MARK + text("storage") + name("torch", kind) + text(key) + text("cpu") + number(storage_size)
    arguments = pickle.MARK + reference + pickle.TUPLE + pickle.BINPERSID + number(offset) + numbers(*shape)
    arguments += numbers(*stride) + pickle.NEWFALSE + pickle.EMPTY_DICT + pickle.TUPLE
    return name("torch._utils", rebuild) + arguments + pickle.REDUCE


def entry(key, value):
    return text(key) + value + pickle.SETITEM


def as_value(value):
    """Return a whole pickle: {"w": value}."""
    return PROTO + pickle.EMPTY_DICT + entry("w", value) + pickle.STOP


def _memoised(value, times, use, index=0):
    """Push a list of a remembered value and `times` results of `use` on it."""
    put, get = memo(index)
    return pickle.EMPTY_LIST + pickle.MARK + value + put + use(get) * times + pickle.APPENDS


def _doubled_tuples(levels):
    """Push a tuple of 2^levels parts: each level holds the one below it twice."""
    result = pickle.EMPTY_TUPLE
    for level in range(levels):
        put, get = memo(level)
        result += put + get + pickle.TUPLE2
    return result


def _doubled_lists(levels):
    """Push a list of such lists, the last one of 2^levels parts."""
    result = pickle.EMPTY_LIST + pickle.MARK + pickle.EMPTY_LIST
    for level in range(levels):
        put, get = memo(level)
        result += put + pickle.EMPTY_LIST + pickle.MARK + get + get + pickle.APPENDS
    return result + pickle.APPENDS


def _self_holding(levels):
    """Return {"model": {"model": ...}} that holds itself in each of several wrappers."""
    put, get = memo(0)
    return PROTO + pickle.EMPTY_DICT + put + b"".join(entry(key, get) for key in levels) + pickle.STOP


def hostile_pickles():
    """Return {name: bytes}; each is to be refused, soon and within little memory."""
    float4 = dtype("f4")
    four = pickle.BINBYTES + struct.pack("<I", 4) + b"abcd"
    one_array = array(four, float4, numbers(1))
    megabyte = text("x" * (1 << 20))
    long_list = pickle.EMPTY_LIST + pickle.MARK + b"N" * 100_000 + pickle.APPENDS
    long_pairs = pickle.EMPTY_LIST + pickle.MARK + b"".join(
        b"\x8a\x04" + struct.pack("<I", index) + b"N\x86" for index in range(50_000)) + pickle.APPENDS
    encode, to_tuple = name("_codecs", "encode"), name("builtins", "tuple")
    nested_tuples = PROTO + b")" + pickle.TUPLE1 * LARGE
    return {
        "nested tuple as a key": PROTO + b"}" + _doubled_tuples(30) + b"Ns.",
        "deep tuple as a key": PROTO + b"}" + nested_tuples[2:] + b"Ns.",
        "deep tuple": nested_tuples + b".",
        "deep list": PROTO + b"]" * LARGE + b"a" * (LARGE - 1) + b".",
        "deep dict": PROTO + (b"}" + b"K\x00") * 400_000 + b"N" + b"s" * 400_000 + b".",
        "nested frozenset as a key": PROTO + b"}" + b"(" * 1000 + b"N" + b"\x91" * 1000 + b"Ns.",
        "doubled tuples": as_value(_doubled_tuples(60)),
        "doubled lists": as_value(_doubled_lists(60)),
        "keys of one hash": PROTO + b"}(" + b"".join(
            b"\x8a\x20" + (index * (2**61 - 1)).to_bytes(32, "little") + b"N" for index in range(1, 30_000)) + b"u.",
        "one name twice": PROTO + b"}(" + text("w") + b"K\x01" + text("w") + b"K\x02u.",
        "one text encoded often": as_value(
            _memoised(megabyte, 5000, lambda get: encode + b"(" + get + text("latin1") + b"tR")),
        "one list made a tuple often": as_value(_memoised(long_list, 5000, lambda get: to_tuple + get + b"\x85R")),
        "one list made a dict often": as_value(
            _memoised(long_pairs, 5000, lambda get: name("collections", "OrderedDict") + get + b"\x85R")),
        "one list as arguments often": as_value(
            _memoised(b"(" + b"N" * 100_000 + b"t", 5000, lambda get: name("torch", "Size") + get + b"R")),
        "buffer of a number": as_value(
            name("numpy.core.numeric", "_frombuffer") + b"(" + number(1 << 40) + float4 + numbers(1) + b"U\x01CtR"),
        "memo index": PROTO + b"]}r" + struct.pack("<I", (1 << 28) - 1) + b"a.",
        "largest memo index": PROTO + b"]}r\xff\xff\xff\xffa.",
        "long number": PROTO + pickle.LONG4 + struct.pack("<i", 50_000_000) + bytes(49_999_999) + b"\x01.",
        "many long numbers": PROTO + b"](" + (pickle.LONG1 + b"\xff" + b"\x7f" * 255) * 50_000 + b"e.",
        "negative length": PROTO + pickle.LONG4 + struct.pack("<i", -1) + b".",
        "claimed bytes": PROTO + pickle.BINBYTES8 + struct.pack("<Q", 1 << 62) + b"x.",
        "claimed text": PROTO + pickle.BINUNICODE + struct.pack("<I", 0xFFFFFFFF) + b"x.",
        "claimed bytearray": PROTO + pickle.BYTEARRAY8 + struct.pack("<Q", 1 << 40) + b"x.",
        "claimed frame": b"\x80\x04\x95" + struct.pack("<Q", 1 << 63) + b"N.",
        "many small objects": PROTO + b"](" + b"}" * LARGE + b"e.",
        "many remembered objects": b"\x80\x04](" + b"]\x94" * LARGE + b"e.",
        "many marks": PROTO + b"(" * LARGE + b".",
        "wide text": as_value(b"](" + text("\U0001f600" + "x" * 20_000) * 300 + b"e"),
        "shape that infers": as_value(array(four, float4, numbers(-1))),
        "huge shape": as_value(array(four, float4, numbers(1 << 40, 1 << 40))),
        "huge shape of nothing": as_value(array(text(""), float4, numbers(0, 1 << 62, 1 << 62))),
        "shape of other content": as_value(array(four, float4, numbers(2))),
        "shape of many axes": as_value(array(four, float4, numbers(*[1] * 5000))),
        "shape of texts": as_value(array(four, float4, text("1") + b"\x85")),
        "array of objects": as_value(array(pickle.EMPTY_LIST, dtype("O8"), numbers(1))),
        "array of wide texts": as_value(array(text(""), dtype("U100000000"), numbers(0))),
        "array of subarrays": as_value(array(four, dtype("(100000000,)f4"), numbers(1))),
        "array without content": as_value(
            name("numpy.core.multiarray", "_reconstruct") + name("numpy", "ndarray") + b"\x85R"),
        "huge stride": as_value(tensor(1, (1,), (1 << 62,))),
        "huge tensor": as_value(tensor(1 << 62, (1 << 62,), (0,))),
        "huge offset": as_value(tensor(4, (2,), (1,), offset=1 << 60)),
        "negative stride": as_value(tensor(4, (2,), (-1,), offset=3)),
        "huge tensor of nothing": as_value(tensor(0, (0, 1 << 62), (1 << 62, 1))),
        "refused text in a message": as_value(name("numpy", "dtype") + b"(" + text("f" * 30_000_000) + b"tR"),
        "refused name in a message": as_value(name("x" * 1_000_000, "y")),
        "control characters in a message": as_value(name("numpy", "dtype") + b"(" + text("\x1b[2J\n\r\u202e") + b"tR"),
        "control characters in a name": PROTO + b"}" + entry("\x1b]0;title\x07\n", one_array) + b".",
        "half a character in a name": PROTO + b"}" + entry("\ud800", one_array) + b".",
        "number as a name": PROTO + b"}" + b"K\x01" + one_array + b"s.",
        "holds itself in wrappers": _self_holding(["model", "state_dict", "model_ema", "state_dict_ema"]),
        "list that holds itself": PROTO + b"}" + text("w") + b"]q\x00h\x00as.",
        "extension registry": PROTO + b"\x82\x01.",
        "buffer beside the file": b"\x80\x05\x97.",
        "duplicate of the top": PROTO + b"](" + b"N" + b"2" * 1000 + b"e.",
        "two values": PROTO + b"}}.",
        "open mark": PROTO + b"}(.",
        "nothing on the stack": PROTO + b".",
        "entries of nothing": PROTO + b"u.",
        "no end": PROTO + b"}",
        "bytes behind the end": pickle.dumps({"w": np.zeros(2, np.float32)}, 4) + b"more",
        "divided arrays of nothing": PROTO + b"}" + entry("UnpackBigParamInfor@@", b"}" + entry("w", b"K\x01")) + b".",
    }  # fmt: skip
