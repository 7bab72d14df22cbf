"""The unpickler: what pickles hold comes back, and no file makes it slow, large or obedient."""

import argparse
import collections
import io
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

from image_classification.files.unpickle import load_pickle
from image_classification.runtime import UserError
from tests.fuzz.run import results
from tests.helpers.hostile_pickles import PROTO, array, as_value, dtype, entry, hostile_pickles, memo, numbers


def load(content, **options):
    return load_pickle(io.BytesIO(content), "file", **options)


def test_hostile_pickles_are_refused_soon_and_within_little_memory(tmp_path):
    files = hostile_pickles()
    paths = {}
    for index, (title, content) in enumerate(files.items()):
        paths[title] = tmp_path / str(index)
        paths[title].write_bytes(content)
    outcomes = {line["case"]: line for line in results("files", *paths.values())}
    for title, path in paths.items():
        line = outcomes[str(path)]
        assert line["outcome"] == "refused", f"{title}: {line}"
        assert line["text"].startswith(f"{path}: "), title


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_values_come_back_as_they_were(protocol):
    shared = [1, 2]
    state = {
        "numbers": (0, -1, 255, 65536, 2**70, -(2**70), 1.5, float("inf")),
        "texts": ["", "ä", "\U0001f600" * 100, "x" * 70_000],
        b"bytes": [b"", b"\x00\xff", bytes(70_000)],
        3: {"none": None, "flags": (True, False)},
        "shared": [shared, shared],
        "ordered": collections.OrderedDict(a=1),
        "default": collections.defaultdict(list, a=[1]),
        "counter": collections.Counter("aab"),
    }
    assert load(pickle.dumps(state, protocol)).tree == state


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("kind", ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?"])
def test_arrays_come_back_bit_equal(protocol, kind):
    values = (np.arange(24) % 7).reshape(2, 3, 4).astype(kind)
    for value in (values, values[:0], values[0, 0, 0], np.asfortranarray(values), values[:, ::2].copy()):
        found = load(pickle.dumps([value, np.array(value)], protocol)).tree
        for each in found:
            assert each.dtype == value.dtype and each.shape == value.shape and np.array_equal(each, value)


def test_array_that_is_remembered_before_it_has_content_is_whole_everywhere():
    value = np.arange(3.0)
    first, second = load(pickle.dumps([value, value], 2)).tree
    assert first is second and first.tolist() == [0, 1, 2]
    put, get = memo(0)
    content = array(pickle.BINBYTES + struct.pack("<I", 4) + b"abcd", dtype("f4"), numbers(1))
    early = content[: content.index(b"R") + 1]  # the array is fetched again before it is built
    hostile = PROTO + b"](" + early + put + get + b"e."
    with pytest.raises(UserError, match="EmptyArray"):
        load(hostile)


def test_text_of_python_2_becomes_latin1_or_bytes():
    content = PROTO + b"}U\x04dataU\x02\xe4\xff" + b"s."
    assert load(content).tree == {"data": "äÿ"}
    assert load(content, encoding="bytes").tree == {b"data": b"\xe4\xff"}


def test_harmless_objects_of_training_scripts_are_left_out_and_named():
    state = {"args": argparse.Namespace(lr=0.1, output=Path("out"), devices={0, 1}), "epoch": 3}
    found = load(pickle.dumps(state, 2))
    assert found.tree["epoch"] == 3 and found.left_out == ["argparse.Namespace"]
    assert load(pickle.dumps({"path": Path("x"), "set": {1}}, 4)).left_out == ["builtins.set", "pathlib.PosixPath"]


def test_whole_model_is_refused_with_the_way_to_convert_it():
    content = as_value(b"ctorchvision.models.resnet\nResNet\n)\x81}" + entry("training", b"\x88") + b"b")
    with pytest.raises(UserError, match=r"torchvision.models.resnet.ResNet.*torch.load\(.*only=False") as caught:
        load(content)
    assert "torch.save(model.state_dict(), " in str(caught.value)
    with pytest.raises(UserError, match="refused: it holds an object of subprocess.Popen") as caught:
        load(as_value(b"csubprocess\nPopen\n)\x81"))
    assert "torch.load" not in str(caught.value)


def test_many_small_tensors_are_within_the_budget():
    """Three moments each of 2000 parameters: as many tensors as the largest published training state has."""
    tensors = {f"blocks.{index}.weight/moment": np.zeros(2, np.float32) for index in range(6000)}
    assert len(load(pickle.dumps(tensors, 2)).tree) == 6000
