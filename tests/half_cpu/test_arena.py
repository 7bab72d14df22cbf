"""Where the results of a recorded pass lie: apart while both are needed, one in the place of another it is added to.
And whose memory its images are read from."""

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn

from image_classification import half_cpu, layers
from image_classification.half_cpu import arena, onednn, recording
from image_classification.half_cpu.arena import Block, arenas
from image_classification.half_cpu.recorded_calls import Kernel
from image_classification.half_cpu.replay import RECORDED
from tests.helpers.replays import FORMATS, bits, images, passes

pytestmark = pytest.mark.skipif(not onednn.available(), reason="needs a CPU with AVX2 and a wheel with oneDNN")


def test_memory_that_a_later_result_got_is_of_unknown_origin():
    place = paddle.zeros([4])
    recorder = recording.Recorder([], [])
    recorder.called(print, (place.data_ptr(),), [0])  # of a copy that nobody noted, which is gone
    recorder.allocated(place)
    with pytest.raises(recording.Refused, match="unknown origin"):
        recorder.returns([place])


def test_address_belongs_to_the_block_that_had_it_last_or_to_none():
    holder, memory = paddle.zeros([400], "uint8"), arena.Memory()
    first, second, over = (Block(holder[start : start + 100]) for start in (0, 200, 50))
    memory.add(first)
    memory.add(second)
    places = [memory.find(holder.data_ptr() + offset) for offset in (0, 99, 100, 199, 200, 299, 300)]
    assert places == [first, first, None, None, second, second, None]
    memory.add(over)
    assert [memory.find(holder.data_ptr() + offset) for offset in (0, 50, 149, 150)] == [None, over, over, None]


@pytest.mark.parametrize("piece", [1 << 25, 1 << 13])
def test_blocks_in_use_at_a_time_have_places_apart(piece, monkeypatch):
    monkeypatch.setattr(arena, "_PIECE", piece)
    rng = np.random.default_rng(0)
    holder = paddle.zeros([1 << 20], "uint8")
    for _ in range(30):
        blocks, start = [], 0
        for size in rng.integers(1, 3000, 40):
            block = Block(holder[start : start + int(size)], False)
            block.first, block.last = sorted(rng.integers(0, 60, 2).tolist())
            start += int(size) + 64
            blocks.append(block)
        holders = arenas(blocks)
        ends = [(holder.data_ptr(), holder.data_ptr() + holder.shape[0]) for holder in holders]
        for block in blocks:
            assert any(begin <= block.place and block.place + block.bytes <= end for begin, end in ends)
        assert (len(holders) > 2) == (piece < 1 << 20)
        for one in blocks:
            for other in blocks:
                if one is not other and one.first <= other.last and other.first <= one.last:
                    size, distance = one.end - one.start, other.place - one.place
                    assert distance >= size or -distance >= other.end - other.start
        # No less than what is in use at the fullest moment, and not much more.
        fullest = max(sum(b.end - b.start for b in blocks if b.first <= time <= b.last) for time in range(60))
        size = sum(holder.shape[0] for holder in holders)
        assert fullest <= size <= 1.5 * fullest + 64 * (41 + 2 * len(holders))


def test_block_that_takes_anothers_place_keeps_it_from_the_rest():
    holder = paddle.zeros([3 * 128], "uint8")
    read, made, other = (Block(holder[start : start + 128], False) for start in (0, 128, 256))
    read.first, read.last, made.first, made.last, other.first, other.last = 0, 1, 1, 3, 2, 2
    made.take_place(read)
    (found,) = arenas([read, made, other])
    assert made.place == read.place and abs(other.place - made.place) >= 128 and found.shape[0] <= 256 + 64


class Residuals(nn.Layer):
    """Convolutions to which their input, another map or a part of a larger one is added."""

    def __init__(self):
        super().__init__()
        self.convs = nn.LayerList([nn.Conv2D(160, 160, 1) for _ in range(4)])
        self.norms = nn.LayerList([nn.BatchNorm2D(160) for _ in range(4)])

    def forward(self, x):
        def block(number, x, residual=None):
            return layers.conv_norm(x, self.convs[number], self.norms[number], F.relu, residual)

        x = block(0, x)
        x = block(1, x, x)
        x = block(2, block(3, x), x)
        return x.mean(axis=[2, 3])


def test_kernel_that_is_called_without_a_residual_replaces_none():
    def convolution(out, residual):
        pass

    convolution.replaced = (0, 1)
    with_it, without = (
        Kernel(convolution, (64, residual), (0, 1), lambda pointer, name: (pointer, 0)) for residual in (128, None)
    )
    assert with_it.replaced == [(64, 0, 0), (128, 0, 1)] and not without.replaced


@pytest.mark.parametrize(("mode", "dtype"), FORMATS)
def test_residuals_that_results_replace_give_the_bits_of_the_layers(mode, dtype, inside):
    paddle.seed(0)
    model = inside(Residuals(), mode, dtype)
    for seed in range(6):
        x = paddle.to_tensor(np.random.default_rng(seed).standard_normal((2, 160, 12, 11)).astype("float32"))
        assert bits(half_cpu.replay(model, x)) == bits(model(x))
    (recorded,) = passes()
    assert callable(recorded)


@pytest.mark.parametrize(("mode", "dtype"), FORMATS[:3])
def test_images_that_one_kernel_joins_and_parts_get_new_places(mode, dtype, inside):
    """Its pointers lie in an array. Large enough for kernels in float32, too."""

    class Joined(nn.Layer):
        def __init__(self):
            super().__init__()
            self.convs = nn.LayerList([nn.Conv2D(3, 16, 1) for _ in range(3)])

        def forward(self, images):
            parts = paddle.concat([conv(images) for conv in self.convs], axis=1).split([8, 40], axis=1)
            return F.relu(parts[0]), F.relu(parts[1])

    model = inside(Joined(), mode, dtype)
    for seed in range(RECORDED + 2):
        assert bits(half_cpu.replay(model, images(seed, side=64))) == bits(model(images(seed, side=64)))
    assert callable(passes()[0])


# How a pass has its images: a kernel reads all of them or a part, an array of pointers has them, an operator of
# Paddle's, or the result itself. Only what kernels read needs no copy.
HOLDERS = {
    "kernel": (lambda x: F.gelu(x), True),
    "part": (lambda x: F.gelu(x[1:]) * F.gelu(x[:1]), True),
    "twice": (lambda x: F.gelu(x) + F.silu(x), True),
    "array": (lambda x: F.gelu(paddle.concat([x, x * 2], axis=1)), False),
    "operator": (lambda x: F.gelu(x) + paddle.logcumsumexp(x, axis=1), False),
    "result": (lambda x: [F.gelu(x), x], False),
    "part of the result": (lambda x: [F.gelu(x), x[1:]], False),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_images_are_copied_only_where_something_else_than_kernels_has_them(holder, inside):
    class Held(nn.Layer):
        def forward(self, images):
            return function(images)

    function, reads_in_place = HOLDERS[holder]
    model, dtype = inside(Held()), "float32" if holder == "operator" else "bfloat16"
    for seed in range(RECORDED + 3):
        given = images(seed).astype(dtype)
        before = bits(given)
        assert bits(half_cpu.replay(model, given)) == bits(model(given))
        assert bits(given) == before
    (recorded,) = passes()
    assert [slot.users is not None for slot in recorded.played.inputs] == [reads_in_place]
