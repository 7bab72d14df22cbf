"""Weight files: each format reads back bit for bit, and a hostile or broken one runs nothing and says why."""

import argparse
import collections
import io
import os
import pickle
import re
import struct
import zipfile
from pathlib import Path

import numpy as np
import paddle
import pytest

from image_classification.files.unpickle import load_pickle
from image_classification.runtime import UserError
from image_classification.weights import read_weights, write_weights
from tests.helpers.weight_files import legacy_torch_file, safetensors_file, torch_zip

FORMATS = ("safetensors", "pth", "pdparams")


@pytest.fixture
def tensors():
    rng = np.random.default_rng(0)
    return {
        "fc.weight": rng.standard_normal((3, 4)).astype(np.float32),
        "fc.bias": rng.standard_normal(3).astype(np.float16),
        "bn.num": np.array(7, np.int64),
        "empty": np.zeros((0, 2), np.float32),
    }


def equal(found, expected):
    return found.keys() == expected.keys() and all(
        found[name].dtype == value.dtype and found[name].shape == value.shape and np.array_equal(found[name], value)
        for name, value in expected.items()
    )


@pytest.mark.parametrize("ending", FORMATS)
def test_written_file_reads_back_bit_equal(tmp_path, tensors, ending):
    path = tmp_path / f"w.{ending}"
    write_weights(path, tensors)
    assert equal(read_weights(path).tensors, tensors)


@pytest.mark.parametrize("ending", FORMATS)
def test_format_is_recognised_by_content_not_by_name(tmp_path, tensors, ending):
    write_weights(tmp_path / f"w.{ending}", tensors)
    (tmp_path / f"w.{ending}").rename(tmp_path / "weights")
    assert equal(read_weights(tmp_path / "weights").tensors, tensors)


def test_safetensors_file_equals_the_reference_library(tmp_path, tensors):
    numpy = pytest.importorskip("safetensors.numpy")
    write_weights(tmp_path / "ours.safetensors", tensors)
    assert equal(numpy.load_file(tmp_path / "ours.safetensors"), tensors)
    numpy.save_file(tensors, tmp_path / "theirs.safetensors")
    assert equal(read_weights(tmp_path / "theirs.safetensors").tensors, tensors)


def test_bfloat16_reads_as_the_same_values_in_float32(tmp_path):
    values = np.array([1.0, -0.5, 3.140625, np.inf], np.float32)  # exact in bfloat16
    header = b'{"x":{"dtype":"BF16","shape":[2,2],"data_offsets":[0,8]}}'
    halves = (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + halves)
    np.testing.assert_array_equal(read_weights(path).tensors["x"], values.reshape(2, 2))


def test_file_of_paddle_save_reads_bit_equal_and_the_other_way_round(tmp_path):
    layer = paddle.nn.Sequential(paddle.nn.Linear(3, 2), paddle.nn.BatchNorm2D(2))
    expected = {name: value.numpy() for name, value in layer.state_dict().items()}
    paddle.save(layer.state_dict(), str(tmp_path / "plain.pdparams"))
    paddle.save({"model": layer.state_dict(), "epoch": 3}, str(tmp_path / "nested.pdparams"))
    assert equal(read_weights(tmp_path / "plain.pdparams").tensors, expected)
    assert equal(read_weights(tmp_path / "nested.pdparams").tensors, expected)
    write_weights(tmp_path / "ours.pdparams", expected)
    assert equal(paddle.load(str(tmp_path / "ours.pdparams"), return_numpy=True), expected)


def test_arrays_that_paddle_save_divides_are_joined_as_paddle_joins_them(tmp_path, tensors):
    """As protocols 2 and 3 have arrays of 2^30 bytes and more, here of two numbers."""
    weight = tensors.pop("fc.weight")
    pieces = {f"fc.weight@@.{number}": piece for number, piece in enumerate(np.split(weight.ravel(), 6))}
    info = {"fc.weight": {"OriginShape": weight.shape, "slices": list(pieces)}}
    path = tmp_path / "divided.pdparams"
    path.write_bytes(pickle.dumps(tensors | pieces | {"UnpackBigParamInfor@@": info}, protocol=2))
    expected = tensors | {"fc.weight": weight}
    assert equal(paddle.load(str(path), return_numpy=True), expected)
    assert equal(read_weights(path).tensors, expected)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_pickle_protocol_of_numpy_arrays_is_read(tmp_path, tensors, protocol):
    path = tmp_path / "w"
    path.write_bytes(pickle.dumps(collections.OrderedDict(tensors), protocol=protocol))
    assert equal(read_weights(path).tensors, tensors)


def test_legacy_torch_file_with_strides_is_read(tmp_path):
    path = tmp_path / "old.pth"
    path.write_bytes(legacy_torch_file([1, 2, 3, 4]))
    np.testing.assert_array_equal(read_weights(path).tensors["w"], [[1, 3], [2, 4]])


class Command:
    """A pickle of this object is a program that makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def hostile_files(folder, victim):
    """Yield files of each format that try to run `os.mkdir(victim)`, in each way that a pickle knows."""
    program = pickle.dumps({"w": Command(victim)}, protocol=2)
    (folder / "reduce.pdparams").write_bytes(program)
    (folder / "reduce5.pdparams").write_bytes(pickle.dumps({"w": Command(victim)}, protocol=5))
    torch_zip(folder / "reduce.pth", program)
    magic = b"".join(pickle.dumps(v, protocol=2) for v in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}))
    (folder / "reduce_legacy.pth").write_bytes(magic + program)
    name = str(victim).encode()
    inst = b"\x80\x02(X" + struct.pack("<I", len(name)) + name + b"ios\nmkdir\n."
    (folder / "inst.pdparams").write_bytes(inst)
    obj = b"\x80\x02(cos\nmkdir\nX" + struct.pack("<I", len(name)) + name + b"o."
    (folder / "obj.pdparams").write_bytes(obj)
    # setting the class of an allowed stand-in, or its slots, must not work either
    (folder / "build.pdparams").write_bytes(b"\x80\x02ccollections\nOrderedDict\n}U\x05buildcos\nmkdir\nsb.")
    (folder / "build2.pdparams").write_bytes(b"\x80\x02ccollections\nOrderedDict\nN}U\x05buildK\x01s\x86b.")
    return sorted(folder.iterdir())


def test_hostile_pickle_in_any_format_runs_nothing(tmp_path):
    folder, victim = tmp_path / "files", tmp_path / "victim"
    folder.mkdir()
    files = hostile_files(folder, victim)
    assert len(files) == 8
    for path in files:
        with pytest.raises(UserError, match=path.name) as caught:
            read_weights(path)
        assert "\n" not in str(caught.value)
        assert not victim.exists(), path.name
    pickle.loads((folder / "reduce.pdparams").read_bytes())  # the same bytes are a working program
    assert victim.exists()


@pytest.mark.parametrize("ending", FORMATS)
def test_file_cut_anywhere_is_one_clear_error(tmp_path, tensors, ending):
    whole = tmp_path / f"w.{ending}"
    write_weights(whole, tensors)
    content = whole.read_bytes()
    for size in range(0, len(content), max(1, len(content) // 40)):
        path = tmp_path / "cut"
        path.write_bytes(content[:size])
        with pytest.raises(UserError, match="cut") as caught:
            read_weights(path)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("ending", ["pth", "pdparams"])
def test_no_changed_byte_of_a_format_with_checksums_goes_unnoticed(tmp_path, tensors, ending):
    whole = tmp_path / f"w.{ending}"
    write_weights(whole, tensors)
    content = whole.read_bytes()
    path = tmp_path / "changed"
    for index in range(len(content)):
        path.write_bytes(content[:index] + bytes([content[index] ^ 1 << index % 8]) + content[index + 1 :])
        try:
            assert equal(read_weights(path).tensors, tensors), f"byte {index} of {len(content)}"
        except UserError as error:
            assert "\n" not in str(error)


def test_corrupt_bytes_never_raise_anything_but_a_user_error(tmp_path, tensors):
    rng = np.random.default_rng(0)
    for ending in FORMATS:
        whole = tmp_path / f"w.{ending}"
        write_weights(whole, tensors)
        content = np.frombuffer(whole.read_bytes(), np.uint8)
        for _ in range(150):
            broken = content.copy()
            broken[rng.integers(0, len(broken), 3)] = rng.integers(0, 256, 3)
            path = tmp_path / "broken"
            path.write_bytes(broken.tobytes())
            try:
                read_weights(path)
            except UserError as error:
                assert "\n" not in str(error)


def peak_megabytes_of(call):
    import tracemalloc

    tracemalloc.start()
    try:
        with pytest.raises(UserError) as caught:
            call()
        return tracemalloc.get_traced_memory()[1] / 1e6, str(caught.value)
    finally:
        tracemalloc.stop()


def test_zip_bomb_is_refused_within_bounded_memory(tmp_path):
    path = tmp_path / "bomb.pth"
    torch_zip(path, b"\x80\x02}.", zipfile.ZIP_DEFLATED, [("0", bytes(200 << 20))])
    megabytes, message = peak_megabytes_of(lambda: read_weights(path))
    assert "compressed" in message and megabytes < 5


def test_memo_index_of_a_pickle_reserves_no_memory(tmp_path):
    path = tmp_path / "memo.pdparams"
    path.write_bytes(b"\x80\x02}r\xff\xff\xff\x7f.")  # the C interpreter would reserve 34 GB here
    megabytes, message = peak_megabytes_of(lambda: read_weights(path))
    assert "holds no tensors" in message and megabytes < 5


def test_tensors_that_share_a_storage_cannot_unfold_without_bound(tmp_path):
    count = 4 << 20
    pid = b"(U\x07storagectorch\nBFloat16Storage\nU\x010U\x03cpuJ" + struct.pack("<i", count) + b"tQ"
    shape = b"(J" + struct.pack("<i", count) + b"t(K\x01t"
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n(" + pid + b"K\x00" + shape + b"\x89}tR"
    entries = b"".join(b"U\x03%03d" % index + tensor + b"s" for index in range(500))
    path = tmp_path / "shared.pth"
    torch_zip(path, b"\x80\x02}" + entries + b".", storages=[("0", bytes(2 * count))])
    megabytes, message = peak_megabytes_of(lambda: read_weights(path))  # 500 tensors of 16 MB in a file of 8 MB
    assert "overlap" in message and megabytes < 120


def test_tensor_larger_than_its_storage_is_refused(tmp_path):
    pid = b"(U\x07storagectorch\nFloatStorage\nU\x010U\x03cpuK\x01tQ"
    huge = struct.pack("<i", 2**31 - 1)
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n(" + pid + b"K\x00(J" + huge + b"t(K\x00t\x89}tR"
    path = tmp_path / "stride0.pth"
    torch_zip(path, b"\x80\x02}U\x01w" + tensor + b"s.", storages=[("0", bytes(4))])
    with pytest.raises(UserError, match="2147483647 elements in a storage of 1"):
        read_weights(path)


def tensor_entry(begin, end, shape=None, dtype="F32"):
    return {"dtype": dtype, "shape": [(end - begin) // 4] if shape is None else shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"a": tensor_entry(0, 8), "b": tensor_entry(4, 8)}, "tensor b: tensors overlap"),
        ({"a": tensor_entry(0, 8), "b": tensor_entry(0, 8)}, "tensor b: tensors overlap"),
        ({"a": tensor_entry(4, 8)}, "tensor a: tensors overlap, or leave bytes"),
        ({"a": tensor_entry(0, 4)}, "have 4 bytes, 8 follow"),
        ({"a": tensor_entry(0, 12)}, "have 12 bytes, 8 follow"),
        ({"a": tensor_entry(0, 8, [1])}, "tensor a: its shape"),
        ({"a": tensor_entry(0, 8, [-1, -2])}, "tensor a: its shape"),
        ({"a": tensor_entry(0, 8, [2.0])}, "tensor a: its shape"),
        ({"a": tensor_entry(0, 8, [True, 2])}, "tensor a: its shape"),
        ({"a": tensor_entry(0, 8, "2")}, "tensor a: its shape"),
        ({"a": tensor_entry(0, 8, [1] * 100 + [2])}, "tensor a: its shape"),
        ({"a": tensor_entry(0, 8), "b": tensor_entry(8, 8, [0, 1 << 62])}, "tensor b: its shape"),
        ({"a": tensor_entry(0, 8, dtype="F4_E2M1")}, "tensor a: the type 'F4_E2M1' is not read"),
        ({"a": tensor_entry(0, 8, dtype=["F32"])}, "tensor a: the type a list is not read"),
        ({"a": {"dtype": "F32"}}, "tensor a: its shape"),
        ({"a": 7}, "tensor a: the type None is not read"),
        ({"a\x1b[2J": tensor_entry(0, 8)}, "control characters"),
        (b'{"a":1,"a":2}', "twice"),
        (b'{"a":' + b"[" * 100_000, "no JSON"),
        (b'{"a":' + b"9" * 5000 + b"}", "no JSON"),
        (b'{"\xff":1}', "no JSON"),
        (b"{" + b'"a": [],' * (9 << 17), "header claims"),
    ],
)
def test_malformed_safetensors_header_is_refused(tmp_path, header, message):
    path = tmp_path / "w.safetensors"
    path.write_bytes(safetensors_file(header))
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        read_weights(path)
    assert str(caught.value).isprintable()


def test_zip_with_two_entries_of_one_name_is_refused(tmp_path):
    path = tmp_path / "w.pth"
    with pytest.warns(UserWarning, match="Duplicate name"):
        torch_zip(path, b"\x80\x02}.", storages=[("0", b"ab"), ("0", b"cd")])
    with pytest.raises(UserError, match="same name"):
        read_weights(path)


def test_zip_of_many_entries_is_refused_before_it_is_listed(tmp_path):
    path = tmp_path / "w.pth"
    torch_zip(path, b"\x80\x02}.", storages=[("0", b"ab")])
    path.write_bytes(path.read_bytes() + b"PK\x01\x02" * 100_001)
    with pytest.raises(UserError, match="more than 100000 entries"):
        read_weights(path)


def test_training_state_of_timm_gives_its_weights_and_names_what_it_leaves_out(tmp_path, tensors, caplog):
    """{"epoch": ..., "args": argparse.Namespace, "state_dict": {...}}, as its train.py saves it."""
    arguments = pickle.dumps(argparse.Namespace(lr=0.1, output=Path("out"), mean=(0.5, 0.5)), protocol=2)[2:-1]
    write_weights(tmp_path / "plain.pth", tensors)
    with zipfile.ZipFile(tmp_path / "plain.pth") as archive:
        weights = archive.read("archive/data.pkl")[2:-1]
        storages = [(str(index), archive.read(f"archive/data/{index}")) for index in range(len(tensors))]
    state = b"\x80\x02}(X\x05\x00\x00\x00epochK\x07X\x04\x00\x00\x00args" + arguments
    state += b"X\x0a\x00\x00\x00state_dict" + weights + b"u."
    torch_zip(tmp_path / "state.pth", state, storages=storages)
    with caplog.at_level("INFO", "image_classification"):
        assert equal(read_weights(tmp_path / "state.pth").tensors, tensors)
    assert "left out what is no weights: argparse.Namespace" in caplog.text


@pytest.mark.parametrize("kind", ["fifo", "folder", "device", "missing", "long name", "NUL in the name"])
def test_what_is_no_plain_file_is_one_line_at_once(tmp_path, kind):
    path = tmp_path / "w.pth"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    path = {"device": "/dev/zero", "long name": tmp_path / ("n" * 300), "NUL in the name": "a\0b"}.get(kind, path)
    with pytest.raises(UserError, match="cannot be read") as caught:
        read_weights(path)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no weight file"),
        (b"<!DOCTYPE html><html>not found</html>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "no weight file: .*; it is a pointer: git lfs pull"),
        (struct.pack("<Q", 1 << 60) + b"{}", "header claims"),
        (struct.pack("<Q", 2) + b"{}", "no tensors"),
        (pickle.dumps([1, 2]), "no tensors"),
        (pickle.dumps({"net": {"w": 1}, 3: "x"}), "no tensors by name, but 'net', 3: weights are what it has, or has "),
    ],
)
def test_what_is_no_weight_file_is_named(tmp_path, content, message):
    path = tmp_path / "x.pth"
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"x.pth.*{message}"):
        read_weights(path)


def test_plain_values_of_a_training_state_survive(tmp_path):
    state = {"epoch": 3, "rng": [b"\x00\xff", (1, 2)], "x": 1.5, "name": "ä", "none": None, "big": 2**70}
    found = load_pickle(io.BytesIO(pickle.dumps(state, protocol=4)), "state")
    assert found.tree == state


@pytest.mark.parametrize(("average", "expected"), [({"w": np.full(2, 5.0, "f4")}, 5.0), ({}, 1.0)])
def test_training_state_gives_the_average_that_was_evaluated_where_there_is_one(
    tmp_path, average, expected, caplog
):
    with open(tmp_path / "best.pdparams", "wb") as file:
        pickle.dump({"model": {"w": np.ones(2, "f4")}, "optimizer": {}, "ema": average}, file, protocol=4)
    with caplog.at_level("INFO"):
        assert read_weights(tmp_path / "best.pdparams").tensors["w"].tolist() == [expected, expected]
    assert ("averaged weights are taken: ema" in caplog.text) == bool(average)


@pytest.mark.parametrize("key", ["model", "state_dict", "model_state_dict", "ema", "model_ema", "state_dict_ema"])
def test_weights_are_found_under_each_key_that_training_states_have_them_under(tmp_path, key):
    (tmp_path / "w.pdparams").write_bytes(pickle.dumps({"epoch": 1, key: {"w": np.ones(2, "f4")}}))
    assert list(read_weights(tmp_path / "w.pdparams").tensors) == ["w"]


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."])
@pytest.mark.parametrize("ending", FORMATS)
def test_names_lose_what_pytorchs_parallel_and_compiled_modules_put_before_them(tmp_path, prefix, ending):
    values = {f"{prefix}fc.weight": np.ones((2, 2), "f4"), f"{prefix}blocks.module.bias": np.ones(2, "f4")}
    write_weights(tmp_path / f"w.{ending}", values)
    assert sorted(read_weights(tmp_path / f"w.{ending}").tensors) == ["blocks.module.bias", "fc.weight"]
