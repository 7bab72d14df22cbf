"""Changes to bytes and to texts, each a function of (generator, content, other seeds)."""

import pickle
import struct

NUMBERS = (0, 1, 2, 3, 7, 8, 64, 127, 128, 255, 256, 1000, 65535, 65536, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**40,
           2**62, 2**63 - 1, 2**63, 2**64 - 1)  # fmt: skip
MOST = 1 << 20  # bytes of a mutated file


def _place(rng, content):
    """Return (begin, end) of a piece, most are short."""
    begin = rng.randrange(len(content) + 1)
    return begin, min(len(content), begin + int(2 ** rng.uniform(0, 1 + max(1, len(content)).bit_length())))


def _flip(rng, content, others):
    if content:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)


def _byte(rng, content, others):
    if content:
        content[rng.randrange(len(content))] = rng.choice((0, 0x7F, 0x80, 0xFF, rng.randrange(256)))


def _number(rng, content, others):
    size = rng.choice((1, 2, 4, 8))
    begin = rng.randrange(max(1, len(content) - size + 1))
    value = rng.choice(NUMBERS) if rng.random() < 0.7 else rng.getrandbits(64)
    content[begin : begin + size] = (value % (1 << 8 * size)).to_bytes(size, rng.choice(("little", "big")))


def _delete(rng, content, others):
    begin, end = _place(rng, content)
    del content[begin:end]


def _duplicate(rng, content, others):
    begin, end = _place(rng, content)
    content[begin:begin] = content[begin:end] * rng.choice((1, 1, 2, 10))


def _repeat(rng, content, others):
    begin = rng.randrange(len(content) + 1)
    piece = bytes(content[begin : begin + rng.choice((1, 1, 2, 4, 16))]) or b"\0"
    content[begin:begin] = piece * int(2 ** rng.uniform(0, 18))


def _insert(rng, content, others):
    begin = rng.randrange(len(content) + 1)
    content[begin:begin] = rng.randbytes(int(2 ** rng.uniform(0, 10)))


def _move(rng, content, others):
    begin, end = _place(rng, content)
    piece = content[begin:end]
    del content[begin:end]
    place = rng.randrange(len(content) + 1)
    content[place:place] = piece


def _splice(rng, content, others):
    other = rng.choice(others)
    begin, end = _place(rng, other)
    place = _place(rng, content)
    content[place[0] : place[1] if rng.random() < 0.5 else place[0]] = other[begin:end]


def _cut(rng, content, others):
    del content[rng.randrange(len(content) + 1) :]


_BYTES = (_flip, _flip, _flip, _byte, _number, _number, _delete, _duplicate, _repeat, _insert, _move, _splice, _cut)


def _apply(rng, content, others, changes):
    content = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        rng.choice(changes)(rng, content, others)
    return bytes(content[:MOST])


def change_bytes(rng, content, others):
    """Return other bytes, a few steps away."""
    return _apply(rng, content, others, _BYTES)


# ---- pickles

_NAMES = (
    b"cnumpy\ndtype\n", b"cnumpy\nndarray\n", b"cnumpy.core.multiarray\n_reconstruct\n",
    b"cnumpy.core.multiarray\nscalar\n", b"cnumpy.core.numeric\n_frombuffer\n", b"c_codecs\nencode\n",
    b"cbuiltins\ntuple\n", b"ccollections\nOrderedDict\n",
    b"ctorch._utils\n_rebuild_tensor_v2\n", b"ctorch\nFloatStorage\n", b"ctorch\nSize\n", b"cargparse\nNamespace\n",
    b"cos\nsystem\n", b"ctorch.nn\nLinear\n", b"ccollections\ndefaultdict\n", b"cbuiltins\nset\n",
)  # fmt: skip
_LETTERS = b"()]}.NKMJGIFVU0123456789abcdefghijklopqrstuXBCPQRST"
_OPCODES = [bytes([code]) for code in (*_LETTERS, *range(0x80, 0x83), *range(0x85, 0x99))]


def _opcode(rng, content, others):
    place = rng.randrange(len(content) + 1)
    pieces = []
    for _ in range(rng.choice((1, 2, 4, 8))):
        pieces.append(rng.choice((
            rng.choice(_OPCODES),
            rng.choice(_NAMES),
            rng.choice((b"h", b"q", b"K")) + bytes([rng.randrange(8)]),
            pickle.LONG1 + b"\x09" + rng.choice(NUMBERS).to_bytes(9, "little"),
            pickle.BININT + struct.pack("<i", rng.randrange(-3, 2000)),
            b"X\x06\x00\x00\x00latin1", b"U\x02f4", b"tR", b"\x85R", b"\x86R", b"\x87R", b"tb", b")R", b")\x81", b"u",
        )))  # fmt: skip
    content[place:place] = b"".join(pieces) * rng.choice((1, 1, 1, 50, 5000))


def change_pickle(rng, content, others):
    """Return another pickle: opcodes and names besides the changes to bytes."""
    return _apply(rng, content, others, (*_BYTES, *[_opcode] * 8))


# ---- texts

_TOKENS = [
    *(bytes([char]) for char in b"{}[]:,-|>'\"#%@`\n\t\r\0\xff ()=e."), b": ", b"- ", b"--", b"\n  ", b"&a ", b"*a",
    b"<<: ", b"!!int ", b"!!set ", b"!!python/none ", b"null", b"true", b"~", b"NaN", b".inf", b"-.inf", b"1e999",
    b"0x", b"0o7", b"1:30", b"2024-13-45", b"\\u0000", b"../", b"/dev/zero", b"BASE: ", b"DATA", b"MODEL",
    b"\x1b[2J", *(char.encode("utf-8", "surrogatepass") for char in "\ud800\u202e\u00b2\u0663"),
]  # fmt: skip


def _token(rng, content, others):
    place = rng.randrange(len(content) + 1)
    content[place:place] = rng.choice(_TOKENS) * rng.choice((1, 1, 1, 2, 100, 20_000))


def _digits(rng, content, others):
    place = rng.randrange(len(content) + 1)
    number = b"%d" % rng.choice((*NUMBERS, -1, -5, 10**30, rng.getrandbits(20)))
    content[place:place] = rng.choice((number, number * 300, b"." + number, b" " + number + b" ", b"-" + number))


def change_text(rng, content, others):
    """Return another text: tokens and numbers besides the changes to bytes."""
    return _apply(rng, content, others, (*_BYTES, *[_token] * 6, *[_digits] * 6))
