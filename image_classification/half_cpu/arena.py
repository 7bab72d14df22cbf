"""The memory of a forward pass, and where it goes when the pass is played again."""

import paddle

from .onednn_primitives import new_tensor

_ALIGNMENT = 64  # bytes, a line of the cache
_UINT8 = paddle.uint8


class Block:
    """Memory of a pass: where it begins and ends, the tensors that hold it, whether its content comes from outside of
    the pass, whether it has to stay where it is, the step before which it is had, the first and the last step that uses
    it, the block in whose place it is made, and where it goes."""

    __slots__ = ("start", "end", "tensors", "given", "stays", "had", "first", "last", "below", "place")

    def __init__(self, tensor, given, had=0):
        reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.strides, strict=True)) + 1
        self.start = tensor.data_ptr()
        self.end = self.start + max(reach, 1) * tensor.element_size()
        self.tensors = [tensor]
        self.given = self.stays = given
        self.had = had
        self.first = self.last = self.below = self.place = None

    def merge(self, other):
        """Add a block that begins inside of this one."""
        self.end = max(self.end, other.end)
        self.tensors += other.tensors
        self.given |= other.given
        self.had = min(self.had, other.had)
        self.stays = True

    def take_place(self, other):
        """Go where another block of the same size is, which is not used any more when this one is made."""
        self.below = other = other.below or other
        other.last = self.last


def merged(blocks):
    """Return the blocks by their beginnings, those that overlap as one."""
    apart: list[Block] = []
    for block in sorted(blocks, key=lambda block: block.start):
        if apart and block.start < apart[-1].end:
            apart[-1].merge(block)
        else:
            apart.append(block)
    return apart


def arena(blocks):
    """Return a tensor in which each block gets a place, the same one only those that no two steps use at a time."""
    placed: list[tuple[int, int, Block]] = []
    total = 0
    own = [block for block in blocks if block.below is None]
    for block in sorted(own, key=lambda block: block.start - block.end):  # the largest first
        size, offset = -(-(block.end - block.start) // _ALIGNMENT) * _ALIGNMENT, 0
        for begin, end, other in sorted(placed, key=lambda one: one[0]):
            if other.last < block.first or block.last < other.first:
                continue
            if offset + size <= begin:
                break
            offset = max(offset, end)
        placed.append((offset, offset + size, block))
        total = max(total, offset + size)
    holder = new_tensor(_UINT8, [total + _ALIGNMENT])
    base = -(-holder.data_ptr() // _ALIGNMENT) * _ALIGNMENT
    for offset, _, block in placed:
        block.place = base + offset
    for block in blocks:
        if block.below is not None:
            block.place = block.below.place
    return holder
