"""Dropout: numbers of a published generator, the same elements in every format, streams that Paddle's state decides."""

import contextlib

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

from image_classification import half_cpu
from tests.helpers.onednn_runs import ALL, FLOAT32, Calls, needs_onednn, run, tensors

pytestmark = needs_onednn

ROUNDING = {"float32": 0, "float16": 2**-11, "bfloat16": 2**-8}  # half a unit in the last place


def philox(counters, key):
    """Return the four numbers [4, n] of each counter [4, n], all of 32 bits, by ten rounds of Philox 4 x 32."""
    c, key = [np.asarray(each, "uint64") for each in counters], [int(each) for each in key]
    low = np.uint64(0xFFFFFFFF)
    for _ in range(10):
        first, second = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(second >> 32) ^ c[1] ^ np.uint64(key[0]), second & low,
             (first >> 32) ^ c[3] ^ np.uint64(key[1]), first & low]  # fmt: skip
        key = [(key[0] + 0x9E3779B9) % (1 << 32), (key[1] + 0xBB67AE85) % (1 << 32)]
    return np.stack(c)


def numbers(count, key):
    """Return the numbers of so many elements: of a block of 64, counter i has those of i, 16 + i, 32 + i and 48 + i."""
    blocks = -(-count // 64)
    counter, zero = np.arange(16 * blocks, dtype="uint64"), np.zeros(16 * blocks, "uint64")
    drawn = philox([counter & np.uint64(0xFFFFFFFF), counter >> np.uint64(32), zero, zero], key)
    return drawn.reshape(4, blocks, 16).transpose(1, 0, 2).reshape(-1)[:count]


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ([0] * 4, [0] * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ([0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], [0xA4093822, 0x299F31D0],
         "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)  # fmt: skip
def test_reference_generator_has_the_published_answers(counter, key, expected):
    """The known answers that the authors' Random123 ships for philox4x32-10."""
    assert " ".join(f"{int(each):08x}" for each in philox(counter, key)) == expected


@pytest.mark.parametrize("p", [0.1, 0.5, 0.999])
@pytest.mark.parametrize("shape", [(1,), (63,), (64,), (3, 5, 333), (2, 40000)], ids=str)
@pytest.mark.parametrize("dtype", ALL)
def test_dropout_leaves_out_the_elements_whose_numbers_are_small(dtype, shape, p, monkeypatch):
    calls = Calls(monkeypatch, "dropout")
    inputs = tensors([shape], dtype)
    paddle.seed(1)
    key = paddle.randint(-(1 << 31), (1 << 31) - 1, [2], "int32").numpy().view("uint32")
    paddle.seed(1)
    actual, (gradient,) = run(lambda x: F.dropout(x, p), inputs, "counted")
    assert calls.served == 1
    stays = numbers(int(np.prod(shape)), key).reshape(shape) >= p * 2**32
    seed = paddle.to_tensor(np.random.default_rng(1).standard_normal(shape).astype("float32")).astype(dtype)  # run's
    for found, whole in ((actual, inputs[0]), (gradient, seed)):
        expected = to_numpy(whole) * stays / (1 - p)
        # one rounding, and that of the float32 product before it; half of the smallest float16 number
        np.testing.assert_allclose(to_numpy(found), expected, rtol=ROUNDING[dtype] + 2**-22, atol=2**-25)


def to_numpy(tensor):
    return tensor.astype(FLOAT32).numpy().astype("float64")


def test_dropout_leaves_out_the_same_elements_in_every_format():
    left_out = []
    for dtype in ALL:
        paddle.seed(3)
        with half_cpu.dispatch():
            left_out.append((F.dropout(paddle.ones([5, 1001]).astype(dtype), 0.3).astype(FLOAT32) == 0).numpy())
    assert (left_out[0] == left_out[1]).all() and (left_out[0] == left_out[2]).all()


def test_dropout_goes_on_from_the_state_of_paddles_generator():
    with half_cpu.dispatch():
        paddle.seed(7)
        F.dropout(paddle.ones([100]), 0.5)
        state = paddle.get_rng_state()
        first, second = (F.dropout(paddle.ones([100]), 0.5).numpy() for _ in range(2))
        paddle.set_rng_state(state)
        again = F.dropout(paddle.ones([100]), 0.5).numpy()
    assert (first == again).all() and (first != second).any()


@pytest.mark.parametrize("p", [1e-12, 1 - 1e-12])
def test_dropout_at_the_ends_of_the_range_drops_nothing_or_all(p):
    with half_cpu.dispatch():
        kept = (F.dropout(paddle.ones([10000]), p) != 0).astype(FLOAT32).mean()
    assert float(kept) == round(1 - p)


@pytest.mark.parametrize("dtype", ALL)
def test_dropped_elements_are_zero_whatever_they_were(dtype):
    x = paddle.full([3000], float("nan")).astype(dtype)
    paddle.seed(0)
    with half_cpu.dispatch():
        found = F.dropout(x, 0.5).astype(FLOAT32).numpy()
    assert 1300 < (found == 0).sum() < 1700 and np.isnan(found[found != 0]).all()  # seven standard deviations


def test_shares_of_dropped_elements_are_those_of_independent_draws():
    """Of 400 tensors of 1000 elements the share that is dropped has the mean p and the variance p (1 - p) / 1000;
    neighbours, elements 16 apart and tensors drawn one after the other are uncorrelated: four standard errors."""
    paddle.seed(11)
    p, count, size = 0.2, 400, 1000
    with half_cpu.dispatch():
        dropped = np.stack([F.dropout(paddle.ones([size]), p).numpy() == 0 for _ in range(count)]) - p
    variance = p * (1 - p)
    assert abs(dropped.mean()) < 4 * np.sqrt(variance / dropped.size)
    assert abs(dropped.mean(1).var() / (variance / size) - 1) < 4 * np.sqrt(2 / count)
    apart = [(dropped[:, 1:], dropped[:, :-1]), (dropped[:, 16:], dropped[:, :-16]), (dropped[1:], dropped[:-1])]
    for left, right in apart:
        assert abs((left * right).mean() / variance) < 4 / np.sqrt(left.size)


@pytest.mark.parametrize(("mode", "seed", "fixed"), [("downgrade_in_infer", 0, False), ("upscale_in_train", 5, True)])
def test_dropout_of_another_kind_or_with_a_seed_of_its_own_is_paddles(mode, seed, fixed):
    x, found = paddle.randn([40, 25]), []
    for context in (contextlib.nullcontext, half_cpu.dispatch):
        paddle.seed(2)
        with context():
            found.append(paddle._C_ops.dropout(x, None, 0.4, False, mode, seed, fixed).numpy())
    np.testing.assert_array_equal(*found)
