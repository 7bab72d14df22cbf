"""A forward pass that is played again gives the bits of the layers, or the layers run."""

import collections
import itertools
import logging
import random
import re
from pathlib import Path

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn
from paddle.utils.dlpack import from_dlpack, to_dlpack

from image_classification import amp, half_cpu
from image_classification.half_cpu import arena, onednn, paddle_names
from image_classification.half_cpu.onednn_primitives import new_tensor
from image_classification.half_cpu.replay import KEPT, RECORDED
from image_classification.half_cpu.scope import active
from tests.helpers.onednn_runs import in_threads
from tests.helpers.replays import FORMATS, bits, images, passes

pytestmark = pytest.mark.skipif(not onednn.available(), reason="needs a CPU with AVX2 and a wheel with oneDNN")


class Net(nn.Layer):
    """Convolution, norm, lists that grow after they were read, operators of Paddle's alone, a product; four results."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv2D(3, 32, 3, padding=1), nn.BatchNorm2D(32), nn.Linear(64, 16)

    def forward(self, images):
        features = [F.relu(self.norm(self.conv(images)))]
        both = paddle.concat([*features, features[0] * 2], axis=1)
        for _ in range(2):
            features.append(paddle.add_n(features))
        x = (both + paddle.concat(features[-2:], axis=1)).mean([2, 3])
        places = [x.argmax(axis=1)]
        places.append(paddle.concat(places))
        further = [paddle.cumprod(x.astype("float32"), dim=1), x.logsumexp(1), paddle.concat(places)]
        return {"logits": self.fc(x), "further": further}


@pytest.mark.parametrize(("mode", "dtype"), FORMATS)
def test_replayed_pass_gives_the_bits_of_the_layers_on_other_images(mode, dtype, inside):
    paddle.seed(0)
    model = inside(Net(), mode, dtype)
    for seed in range(6):
        assert bits(half_cpu.replay(model, images(seed))) == bits(model(images(seed)))
    (recorded,) = passes()
    assert callable(recorded)


def test_pass_is_recorded_by_the_third_call_of_a_shape_only(inside):
    model = inside(Net())
    for _ in range(RECORDED):
        assert not any(map(callable, passes()))
        half_cpu.replay(model, images(0))
    assert callable(passes()[0])
    half_cpu.replay(model, images(0, batch=1))  # the last batch of an evaluation
    found = passes()
    assert not callable(found[1]) and callable(found[0])


def test_layers_of_a_replayed_pass_do_not_run(inside):
    model, runs = inside(Net()), []
    forward = model.norm.forward
    model.norm.forward = lambda x: runs.append(1) or forward(x)
    for seed in range(RECORDED + 4):
        half_cpu.replay(model, images(seed))
    assert len(runs) == RECORDED + 1  # and once to record


def test_result_of_a_replayed_pass_is_the_callers(inside):
    model = inside(Net())
    result = [half_cpu.replay(model, images(0)) for _ in range(RECORDED + 1)][-1]
    expected = bits(result)
    result["logits"].zero_()
    again = half_cpu.replay(model, images(0))
    half_cpu.replay(model, images(1))
    assert bits(again) == expected


def test_model_that_writes_its_images_is_left_to_the_layers(inside):
    class InPlace(Net):
        def forward(self, images):
            return super().forward(images.clip_(0.0, 0.5))  # a second time, it changes nothing

    model = inside(InPlace())
    for seed in range(RECORDED + 1):
        given = images(seed)
        half_cpu.replay(model, given)
        assert bits(given) == bits(images(seed).clip(0.0, 0.5))


def test_memory_that_is_written_unseen_is_left_to_the_layers(inside):
    """A kernel of one's own writes by other means; what it wrote for the recorded images is still there."""

    def kernel(original, args, kwargs):
        out = new_tensor(args[0].dtype, args[0].shape)
        paddle_names.assign_out_(args[0] * 3, out)
        return out

    thrice = half_cpu.composite(kernel)(lambda x: x * 3)
    model = inside(Reader(lambda x: paddle.cumprod(thrice(x).astype("float32"), dim=1)), "fp32", None)
    for seed in range(RECORDED + 2):
        assert bits(half_cpu.replay(model, images(seed))) == bits(model(images(seed)))
    assert not callable(passes()[0])


def test_zeros_that_are_written_unseen_are_left_to_the_layers(inside, monkeypatch):
    """Memory that a process gets from the system holds zeros."""

    def kernel(original, args, kwargs):
        out = new_tensor(args[0].dtype, args[0].shape)
        paddle_names.assign_out_(paddle_names.full(out.shape, 0.0, out.dtype, paddle.CPUPlace()), out)
        return out

    monkeypatch.setattr(arena, "new_tensor", lambda dtype, shape: paddle.zeros(shape, dtype))
    nothing = half_cpu.composite(kernel)(lambda x: (x * 0).abs())
    model = inside(Reader(lambda x: [paddle.cumprod(nothing(x), dim=1), x]), "fp32", None)
    for seed in range(RECORDED + 1):
        half_cpu.replay(model, images(seed))
    assert not callable(passes()[0])


def test_model_that_writes_its_buffers_is_left_to_the_layers(inside):
    class Counter(Net):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", paddle.zeros([4]))

        def forward(self, images):
            self.calls.clip_(0.0, 1.0)  # as often as one likes, it changes nothing
            return super().forward(images)

    model = inside(Counter())
    for seed in range(RECORDED + 1):
        assert bits(half_cpu.replay(model, images(seed))) == bits(model(images(seed)))
    assert not callable(passes()[0])


def test_model_that_replaces_a_buffer_is_left_to_the_layers(inside, caplog):
    class Stateful(nn.Layer):
        def __init__(self):
            super().__init__()
            self.register_buffer("state", paddle.zeros([1]))

        def forward(self, images):
            self.state = self.state * 0.5 + images.mean()
            return images * self.state

    caplog.set_level(logging.INFO)
    model, other = inside(Stateful(), "fp32", None), Stateful()
    for seed in range(RECORDED + 2):
        assert bits(half_cpu.replay(model, images(seed))) == bits(other(images(seed)))
    assert passes() == [0] and caplog.messages == [
        "half_cpu: the layers of Stateful run one by one: it writes its inputs, weights or buffers"
    ]


def test_statistics_that_move_are_moved_once_by_each_call(inside):
    """A norm that was left in training mode: the passes of the recording leave no trace."""
    models = [inside(nn.Sequential(nn.Conv2D(3, 8, 1), nn.BatchNorm2D(8)), "fp32", None) for _ in range(2)]
    models[1].set_state_dict(models[0].state_dict())
    for model in models:
        model[1].train()
    with half_cpu.frozen(models[0]):
        for seed in range(RECORDED + 2):
            assert bits(half_cpu.replay(models[0], images(seed))) == bits(models[1](images(seed)))
            assert bits([*models[0].state_dict().values()]) == bits([*models[1].state_dict().values()])


def test_without_frozen_weights_or_with_gradients_the_layers_run():
    precision = amp.build_precision("fp32")
    model = precision.convert_model(Net())
    model.eval()
    with precision.forward_context():
        for _ in range(RECORDED + 1):
            assert not half_cpu.replay(model, images(0))["logits"].stop_gradient
            with paddle.no_grad():
                half_cpu.replay(model, images(0))
        with half_cpu.frozen(model):
            for _ in range(RECORDED + 1):
                half_cpu.replay(model, images(0))
            assert not passes()
    with paddle.no_grad(), half_cpu.frozen(model):
        half_cpu.replay(model, images(0))
        assert not passes()


class Reader(nn.Layer):
    """A model whose path, or what it shows of a tensor, depends on its data."""

    def __init__(self, read):
        super().__init__()
        self.fc, self.read = nn.Linear(12, 24), read

    def forward(self, images):
        return self.read(self.fc(images))


def copied_place(x):
    """Write, by a method that is no operator, into memory that an operator fills in each pass."""
    place = paddle.zeros([x.shape[0]], "int64")
    place.copy_((x.astype("float32").mean([1, 2, 3]) > 20).astype("int64"), True)
    return F.one_hot(place, 2)


def inner_tensor(x):
    mean = x.astype("float32").mean()
    return x * float(np.array(mean.get_tensor()))  # which does not keep its memory


to_numpy = paddle.Tensor.numpy
READS = {
    "copy": copied_place,
    "bool": lambda x: x * 2 if x.mean() > 0 else x * 3,
    "float": lambda x: x * float(x.mean()),
    "int": lambda x: x[:, : 1 + int(x.mean() > 0)],
    "item": lambda x: x * x.mean().item(),
    "numpy": lambda x: x + paddle.to_tensor(x.astype("float32").numpy()).astype(x.dtype),
    "array": lambda x: x + paddle.to_tensor(np.asarray(x.astype("float32")).max()).astype(x.dtype),
    "tolist": lambda x: x * x.astype("float32").mean([0, 1, 2]).tolist()[0],
    "slice": lambda x: x[:1, : (x.mean() > 0).astype("int32") + 1] * 2,
    "slice operator": lambda x: paddle.slice(x, [1], [0], [(x.mean() > 0).astype("int32") + 1]) * 2,
    "mask": lambda x: x[x > 0] * 2,
    "dlpack": lambda x: x + from_dlpack(to_dlpack(x.astype("float32"))).mean().astype(x.dtype),
    "map": lambda x: x * float([*map(paddle.Tensor.numpy, [x.astype("float32").mean()])][0]),
    "inner tensor": inner_tensor,
    "name bound before": lambda x: x * float(to_numpy(x.astype("float32").mean())),
    "nothing found": lambda x: x * (2 if paddle.nonzero(x.astype("float32") > 20).shape[0] else 3),
    "sparse": lambda x: x * (F.relu(x.astype("float32") - 20).to_sparse_coo(4).nnz() + 1),
    "random": lambda x: F.dropout(x, 0.5, training=True),
    "random numbers of Python": lambda x: x * (2 if random.random() < 2 else 3),
    "random numbers of NumPy": lambda x: x * (2 if np.random.rand() < 2 else 3),
    "outside": lambda x: x + paddle.to_tensor(np.full([24], 0.5, "float32")).astype(x.dtype),
}  # fmt: skip


@pytest.mark.parametrize("read", READS)
def test_pass_that_depends_on_data_is_left_to_the_layers(read, inside, caplog):
    paddle.seed(0)
    model = inside(Reader(READS[read]))
    factors = [1, 1, 1, -1, 1, 100, -100]  # the path changes after it was recorded
    with caplog.at_level(logging.INFO):
        for factor in factors:
            found, expected = half_cpu.replay(model, factor * images(0)), model(factor * images(0))
            assert read == "random" or bits(found) == bits(expected)
    refused = [record for record in caplog.records if "run one by one: " in record.getMessage()]
    assert len(refused) == 1 and "Reader" in refused[0].getMessage()
    assert not callable(passes()[0])


def test_shape_that_changes_with_the_data_is_left_to_the_layers(inside, caplog):
    model = inside(Reader(lambda x: paddle.nonzero(x > 0).astype("float32") * 2))
    for seed in range(RECORDED + 3):
        given = images(seed)
        assert bits(half_cpu.replay(model, given)) == bits(model(given))


def test_hooks_on_layers_are_called(inside):
    model, called = inside(Net()), []
    model.conv.register_forward_post_hook(lambda layer, inputs, result: called.append(1))
    for seed in range(RECORDED + 2):
        half_cpu.replay(model, images(seed))
    assert len(called) == RECORDED + 2


def test_hook_that_comes_after_the_recording_is_called(inside):
    model, called = inside(Net()), []
    for seed in range(RECORDED + 2):
        half_cpu.replay(model, images(seed))
    model.conv.register_forward_post_hook(lambda layer, inputs, result: called.append(1))
    half_cpu.replay(model, images(0))
    assert called


def test_model_in_training_again_is_not_replayed(inside):
    model = inside(Net())
    for seed in range(RECORDED + 1):
        half_cpu.replay(model, images(seed))
    model.train()
    before = model.norm._mean.numpy()
    half_cpu.replay(model, images(0))
    assert (model.norm._mean.numpy() != before).any()


def test_other_policy_is_recorded_for_itself(inside):
    model = inside(Net())
    for seed in range(RECORDED + 1):
        half_cpu.replay(model, images(seed))
    with amp.build_precision("fp32").forward_context():
        found = half_cpu.replay(model, images(0))
        assert found["logits"].dtype == paddle.float32 and bits(found) == bits(model(images(0)))


def test_other_format_of_new_tensors_is_recorded_for_itself(inside):
    model = inside(Reader(lambda x: x + paddle.full([24], 0.1)))
    for seed in range(RECORDED + 1):
        half_cpu.replay(model, images(seed))
    paddle.set_default_dtype("float64")
    try:
        found, expected = half_cpu.replay(model, images(0)), model(images(0))
    finally:
        paddle.set_default_dtype("float32")
    assert found.dtype == expected.dtype and bits(found) == bits(expected)


@pytest.mark.parametrize("other", [lambda x: x.astype("bfloat16"), lambda x: x.transpose([0, 1, 3, 2])])
def test_images_of_another_format_or_order_are_recorded_for_themselves(other, inside):
    model = inside(Reader(lambda x: x * 2))
    for seed in range(2 * RECORDED + 2):
        given = images(seed) if seed < RECORDED or seed % 2 else other(images(seed))
        assert bits(half_cpu.replay(model, given)) == bits(model(given))
    assert len(passes()) == 2 and any(map(callable, passes()))


def test_passes_of_many_shapes_are_the_last_ones(inside):
    model = inside(Net())
    for side in range(4, 4 + KEPT + 4):
        for _ in range(RECORDED):
            half_cpu.replay(model, images(0, side=side))
        assert bits(half_cpu.replay(model, images(1, side=side))) == bits(model(images(1, side=side)))
    assert len(passes()) == KEPT


def test_exception_of_the_recorded_pass_leaves_the_layers_to_run_and_no_recorder(inside):
    def fail(x):
        if active.recorder is not None:
            raise ZeroDivisionError
        return x * 2

    model = inside(Reader(fail))
    for seed in range(RECORDED + 1):
        assert bits(half_cpu.replay(model, images(seed))) == bits(model(images(seed)))
    assert active.recorder is None and not any(map(callable, passes()))


@pytest.mark.parametrize("draw", [lambda x: F.dropout(x, 0.5, training=True), lambda x: x * random.random()])
def test_model_that_draws_finds_the_generators_as_the_layers_do(draw, inside):
    found = []
    for call in (half_cpu.replay, lambda model, x: model(x)):
        paddle.seed(0), random.seed(0)
        model = inside(Reader(draw))
        found.append([bits(call(model, images(seed))) for seed in range(RECORDED + 3)])
        found[-1].append((float(paddle.rand([1])), random.random()))
    assert found[0] == found[1]


def test_part_that_replays_is_recorded_with_the_whole(inside):
    class Whole(nn.Layer):
        def __init__(self):
            super().__init__()
            self.part = Net()

        def forward(self, images):
            return half_cpu.replay(self.part, images)["logits"] * 2

    model = inside(Whole())
    for seed in range(2 * RECORDED + 2):
        assert bits(half_cpu.replay(model, images(seed))) == bits(model(images(seed)))
    assert any(map(callable, passes()))


def test_index_out_of_range_is_paddles_error(inside):
    model = inside(nn.Embedding(40, 1024))
    tokens = paddle.arange(64).reshape([2, 32]) % 40
    for _ in range(RECORDED + 1):
        half_cpu.replay(model, tokens)
    assert callable(passes()[0])
    with pytest.raises(ValueError, match="less than 40|expected >= 0 and < 40|Variable value"):
        half_cpu.replay(model, tokens + 30)
    assert bits(half_cpu.replay(model, tokens)) == bits(model(tokens))


def test_pointers_in_arrays_are_told_from_numbers():
    """A recorded pass moves what is a pointer; only an optimizer's kernel may hide them among other numbers."""
    for module in sorted(Path(half_cpu.__file__).parent.glob("*.py")):
        hidden = re.findall(r"numbers\([^\n]*data_ptr\(\) for", module.read_text())
        assert not hidden or module.name == "compiled_optimizer.py", module.name


@pytest.mark.parametrize(("mode", "dtype"), FORMATS[:2])
def test_recurrent_network_gives_the_bits_of_its_layers(mode, dtype, inside):
    """Paddle's operator gets tensors without memory."""

    class Recurrent(nn.Layer):
        def __init__(self):
            super().__init__()
            self.lstm, self.fc = nn.LSTM(12, 16, direction="bidirect"), nn.Linear(32, 8)

        def forward(self, images):
            return self.fc(self.lstm(images[:, 0])[0])

    model = inside(Recurrent(), mode, dtype)
    for seed in range(RECORDED + 2):
        assert bits(half_cpu.replay(model, images(seed))) == bits(model(images(seed)))


def test_model_that_is_not_frozen_is_left_to_the_layers(inside, caplog):
    inside(Net())
    other = Reader(lambda x: x * 2)
    with caplog.at_level(logging.INFO):
        for seed in range(RECORDED + 1):
            half_cpu.replay(other, images(seed))
        other.fc.weight = other.create_parameter([12, 24])
        assert bits(half_cpu.replay(other, images(0))) == bits(other(images(0)))
    assert "not frozen" in caplog.text


Pair = collections.namedtuple("Pair", "first second")


class Titled(dict):
    def __init__(self, title, **values):
        super().__init__(values)


STRUCTURES = {
    "named tuple": lambda x, y: Pair(x, [y, (x, {})]),
    "ordered": lambda x, y: collections.OrderedDict(z=x, a=y),
    "keys of two types": lambda x, y: {"z": x, 1: y},
    "class of its own": lambda x, y: Titled("", z=x, a=y),
    "nothing in it": lambda x, y: (x, None),
}


@pytest.mark.parametrize("turned", [lambda x: x, lambda x: x.transpose([0, 3, 2, 1]), lambda x: x.flatten(2).mT])
def test_result_that_lies_in_another_order_is_recorded_with_its_bits(turned, inside):
    class Turned(nn.Conv2D):
        def forward(self, images):
            return turned(super().forward(images))

    model = inside(Turned(3, 32, 3))
    for seed in range(RECORDED + 2):
        assert bits(half_cpu.replay(model, images(seed))) == bits(model(images(seed)))
    assert callable(passes()[0])


@pytest.mark.parametrize("structure", STRUCTURES)
def test_result_has_the_structure_that_the_model_gives_it(structure, inside):
    model = inside(Reader(lambda x: STRUCTURES[structure](x * 2, x * 3)))
    for seed in range(RECORDED + 2):
        found, expected = half_cpu.replay(model, images(seed)), model(images(seed))
        assert type(found) is type(expected) and str(found) == str(expected)
    assert callable(passes()[0]) == (structure not in ("class of its own", "nothing in it"))


def test_result_that_a_model_returns_twice_is_one_tensor(inside):
    model = inside(Reader(lambda x: {"logits": (twice := x * 2), "features": [twice, x * 3]}))
    for seed in range(RECORDED + 2):
        found = half_cpu.replay(model, images(seed))
        assert found["features"][0] is found["logits"] is not found["features"][1]
    assert callable(passes()[0])


def test_list_that_a_model_fills_again_is_the_callers_after_a_replayed_pass(inside):
    features = []

    def fill(x):
        features[:] = [x * 2, (x * 3) * x]
        return features

    model = inside(Reader(fill))
    for seed in range(RECORDED + 2):
        found = half_cpu.replay(model, images(seed))
        assert bits(list(found)) == bits(model(images(seed)))
        if seed == RECORDED - 1:
            third = found
    assert callable(passes()[0])
    assert bits(third) == bits(model(images(RECORDED - 1)))


def test_no_tokens_before_the_others_are_replayed(inside):
    model = inside(Reader(lambda x: paddle.concat([x[:, :0], x, paddle.zeros([2, 0, 12, 24], x.dtype)], axis=1) * 2))
    for seed in range(RECORDED + 2):
        assert bits(half_cpu.replay(model, images(seed))) == bits(model(images(seed)))
    assert callable(passes()[0])


def test_results_of_another_number_are_left_to_the_layers(inside):
    counter = itertools.count(1)
    model = inside(Reader(lambda x: [x * 2] * next(counter)))
    assert [len(half_cpu.replay(model, images(0))) for _ in range(RECORDED + 2)] == [1, 2, 3, 5, 6]  # 4: recorded


def test_model_that_asks_whether_two_inputs_are_one_is_answered_as_without_a_recording(inside):
    class Attention(nn.Layer):
        def forward(self, queries, keys):
            return queries * 2 if queries is keys else queries + keys

    model = inside(Attention())
    for seed in range(4 * RECORDED):
        queries = images(seed)
        keys = queries if seed % 2 else images(seed + 1)
        assert bits(half_cpu.replay(model, queries, keys)) == bits(queries * 2 if seed % 2 else queries + keys)
    assert len(passes()) == 2 and all(map(callable, passes()))


@pytest.mark.parametrize("given", [None, 2, [2.0], {"scale": 2.0}])
def test_inputs_that_are_no_tensors_go_to_the_layers(given, inside):
    class Scaled(nn.Layer):
        def forward(self, images, other):
            return images * (2 if other == given else 3)

    model = inside(Scaled())
    for seed in range(RECORDED + 1):
        assert bits(half_cpu.replay(model, images(seed), given)) == bits(images(seed) * 2)
    assert not passes()


def test_operator_that_fails_on_memory_written_unseen_is_left_to_the_layers(inside):
    """Full of NaN it holds negative integers; Paddle's error about them is not the caller's."""

    def kernel(original, args, kwargs):
        out = new_tensor(paddle.int64, [64])
        paddle_names.assign_out_(args[0].astype("float32").argmax(3).flatten()[:64], out)
        return out

    indices = half_cpu.composite(kernel)(lambda x: x.argmax(3).flatten()[:64])
    model = inside(Reader(lambda x: paddle.bincount(indices(x), minlength=24)))
    for seed in range(RECORDED + 2):
        assert bits(half_cpu.replay(model, images(seed))) == bits(model(images(seed)))
    assert not callable(passes()[0])


def test_empty_batch_gives_what_the_layers_give(inside):
    model = inside(Reader(lambda x: x * 2))
    for _ in range(RECORDED + 2):
        assert half_cpu.replay(model, images(0, batch=0)).shape == [0, 3, 12, 24]


def test_threads_that_record_at_once_get_their_own_results():
    paddle.seed(0)
    precision = amp.build_precision("fp32")
    model = precision.convert_model(Net())
    model.eval()
    results: list[list] = [[], []]

    def work(number):
        for _ in range(5):
            with paddle.no_grad(), half_cpu.frozen(model), precision.forward_context():
                for seed in range(number, number + RECORDED + 2):
                    given = images(seed)
                    results[number].append(bits(half_cpu.replay(model, given)) == bits(model(given)))
                results[number].append(callable(passes()[0]))

    in_threads(work, range(2))
    assert results == [[True] * 5 * (RECORDED + 3)] * 2


def test_poisoned_pass_holds_nothing_and_gives_the_bits_of_the_layers(inside):
    model = inside(Net())
    for seed in range(RECORDED):
        half_cpu.replay(model, images(seed))
    (recorded,) = passes()
    with recorded.played.poisoned():
        assert all((arena.numpy() == 255).all() for arena in recorded.played.arenas)
        assert bits(half_cpu.replay(model, images(9))) == bits(model(images(9)))
