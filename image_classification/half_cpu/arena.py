"""The memory of a recorded pass, and where it goes when the pass is played again."""

from bisect import bisect_left, bisect_right, insort

import paddle

from .onednn_primitives import new_tensor
from .paddle_names import as_strided, separate, view_dtype

_ALIGNMENT = 64  # bytes, a line of the cache
_PIECE = 1 << 23  # bytes
_UINT8 = paddle.uint8


class Block:
    """Memory of a pass: where it begins and ends while that is recorded, whether its content comes from outside of the
    pass, whether it is no part of the arena, the first and the last step that uses it, the block in whose place it is
    made, and where it is when the pass is played."""

    __slots__ = ("start", "end", "given", "apart", "first", "last", "below", "place", "arena")

    def __init__(self, tensor, given=False):
        reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.strides, strict=True)) + 1
        self.start = self.place = tensor.data_ptr()
        self.end = self.start + max(reach, 1) * tensor.element_size()
        self.given = self.apart = given
        self.first = self.last = self.below = None

    @property
    def bytes(self):
        return self.end - self.start

    def use(self, number):
        """Note a step that reads or writes it."""
        self.first = number if self.first is None else self.first
        self.last = number

    def take_place(self, other):
        """Go where another block of the same size is, which is not used any more when this one is made."""
        self.below = other = other.below or other
        other.last = self.last

    def put(self, arena, place):
        """Be a part of an arena from now on."""
        self.arena, self.place = arena, place

    def tensor(self, offset, shape, strides, dtype):
        """Return a tensor of its memory in the arena."""
        offset += self.place - self.arena.data_ptr()
        view = as_strided(view_dtype(self.arena, dtype), shape, strides, offset)
        return separate(view)


class Memory:
    """Which block an address belongs to: of those that had it, the latest, because the others are free since."""

    def __init__(self):
        self._starts: list[int] = []
        self._blocks: list[Block] = []

    def add(self, block):
        """Put a block where others may have been. What overlaps given memory, which stays, is part of it."""
        first, end = bisect_right(self._starts, block.start), bisect_left(self._starts, block.end)
        first -= first > 0 and self._blocks[first - 1].end > block.start
        given = [other for other in self._blocks[first:end] if other.given]
        if given:
            block.start = min(block.start, *(other.start for other in given))
            block.end = max(block.end, *(other.end for other in given))
            block.given = block.apart = True
            block.place = block.start
        self._starts[first:end] = [block.start]
        self._blocks[first:end] = [block]

    def find(self, pointer):
        """Return the block that an address belongs to, or None."""
        block = self._blocks[bisect_right(self._starts, pointer) - 1] if self._blocks else None
        return block if block is not None and block.start <= pointer < block.end else None


def arenas(blocks):
    """Return tensors in which each block gets a place, the same one only those that no two steps use at a time.

    They are several, because free memory between what stays is."""
    placed: list[tuple[int, int, Block]] = []
    own = [block for block in blocks if block.below is None]
    piece = max([_PIECE, *(_rounded(block.bytes) for block in own)])
    for block in sorted(own, key=lambda block: -block.bytes):  # the largest first
        size, offset = _rounded(block.bytes), 0
        for begin, end, other in placed:
            if other.last < block.first or block.last < other.first:
                continue
            offset = _in_one(offset, size, piece)
            if offset + size <= begin:
                break
            offset = max(offset, end)
        offset = _in_one(offset, size, piece)
        insort(placed, (offset, offset + size, block), key=lambda one: one[0])
    sizes: dict[int, int] = {}
    for offset, end, _ in placed:
        sizes[offset // piece] = max(sizes.get(offset // piece, 0), end - offset // piece * piece)
    holders = {number: new_tensor(_UINT8, [size + _ALIGNMENT]) for number, size in sizes.items()}
    for offset, _, block in placed:
        holder = holders[offset // piece]
        block.put(holder, _rounded(holder.data_ptr()) + offset % piece)
    for block in blocks:
        if block.below is not None:
            block.put(block.below.arena, block.below.place)
    return list(holders.values())


def _rounded(size):
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _in_one(offset, size, piece):
    """Return the first place from an offset on that lies in one piece."""
    return offset if offset % piece + size <= piece else -(-offset // piece) * piece
