"""TFRecord files against the format's description, protocol buffers by Google, and files of the tfrecord package."""

import base64
import contextlib
import io
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from image_classification.data import build_dataset, build_eval_loader, build_train_loader
from image_classification.data.tfrecord import (
    BadRecord,
    frame,
    index_text,
    parse_example,
    read_index,
    scan_records,
    serialize_example,
    unframe,
)
from image_classification.runtime import UserError
from tests.helpers.data_samples import encoded, make_config, photo, write_class_folders
from tools import make_tfrecord

ROOT = Path(__file__).resolve().parents[2]

# Written by tfrecord 1.14.6 (TFRecordWriter): two Examples with bytes, a float and an integer each; its index file says
# "0 126" and "126 135".
FOREIGN = base64.b64decode(
    "bgAAAAAAAADEvzNkCmwKFwoLaW1hZ2Uvc2NvcmUSCBIGCgQAAAA/ChQKCmltYWdlL25hbWUSBgoECgJuMAoaChFpbWFnZS9jbGFzcy9sYWJlbBIF"
    "GgMKAQEKHwoNaW1hZ2UvZW5jb2RlZBIOCgwKCgD/AP8A/wD/AP9kuK1edwAAAAAAAADmtKbDCnUKFwoLaW1hZ2Uvc2NvcmUSCBIGCgQAAAA/ChQK"
    "CmltYWdlL25hbWUSBgoECgJuMQobChFpbWFnZS9jbGFzcy9sYWJlbBIGGgQKAq0CCicKDWltYWdlL2VuY29kZWQSFgoUChJzZWNvbmQgaW1hZ2Ug"
    "Ynl0ZXO5qqMJ"
)


def crc32c_by_definition(data):
    """CRC-32C bit by bit: reflected polynomial 0x82F63B78 (RFC 3720, appendix B.4)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked_by_definition(data):
    crc = crc32c_by_definition(data)
    return ((crc >> 15) | (crc << 17 & 0xFFFFFFFF)) + 0xA282EAD8 & 0xFFFFFFFF


@pytest.fixture(scope="module")
def example_class():
    """tf.train.Example, from a descriptor that says what TensorFlow's example.proto and feature.proto say."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="t", syntax="proto3")
    field = descriptor_pb2.FieldDescriptorProto
    for name, kind in (
        ("BytesList", field.TYPE_BYTES),
        ("FloatList", field.TYPE_FLOAT),
        ("Int64List", field.TYPE_INT64),
    ):
        file.message_type.add(name=name).field.add(name="value", number=1, label=field.LABEL_REPEATED, type=kind)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, name in enumerate(("BytesList", "FloatList", "Int64List"), start=1):
        lower = {"BytesList": "bytes_list", "FloatList": "float_list", "Int64List": "int64_list"}[name]
        feature.field.add(
            name=lower, number=number, label=field.LABEL_OPTIONAL, type=field.TYPE_MESSAGE, type_name=f".t.{name}",
            oneof_index=0,
        )  # fmt: skip
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=field.LABEL_OPTIONAL, type=field.TYPE_STRING)
    entry.field.add(name="value", number=2, label=field.LABEL_OPTIONAL, type=field.TYPE_MESSAGE, type_name=".t.Feature")
    features.field.add(
        name="feature", number=1, label=field.LABEL_REPEATED, type=field.TYPE_MESSAGE,
        type_name=".t.Features.FeatureEntry",
    )  # fmt: skip
    example = file.message_type.add(name="Example")
    example.field.add(
        name="features", number=1, label=field.LABEL_OPTIONAL, type=field.TYPE_MESSAGE, type_name=".t.Features"
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Example"))


@pytest.mark.parametrize("data", [b"", b"123456789", bytes(range(256)) * 3])
def test_frame_follows_the_format(data):
    length = struct.pack("<Q", len(data))
    expected = length + struct.pack("<I", masked_by_definition(length)) + data
    expected += struct.pack("<I", masked_by_definition(data))
    assert frame(data) == expected
    assert bytes(unframe(expected)) == data


@pytest.mark.parametrize("position", [0, 9, 12, 20, -1])
def test_a_changed_byte_anywhere_is_noticed(position):
    record = bytearray(frame(b"some data"))
    record[position] ^= 1
    with pytest.raises(BadRecord):
        unframe(record)
    with pytest.raises(BadRecord):
        unframe(frame(b"x")[:-1])


def test_foreign_file_is_read(tmp_path):
    path = tmp_path / "foreign"
    path.write_bytes(FOREIGN)
    positions = scan_records(path)
    assert index_text(positions.tolist()) == "0 126\n126 135\n"
    examples = [parse_example(unframe(FOREIGN[start : start + length])) for start, length in positions]
    assert [example["image/class/label"] for example in examples] == [[1], [301]]
    assert bytes(examples[0]["image/encoded"][0]) == b"\x00\xff" * 5
    assert bytes(examples[1]["image/encoded"][0]) == b"second image bytes"


def test_example_is_read_by_protocol_buffers_and_back(example_class):
    features = {"image/encoded": bytes(range(256)) * 40, "image/class/label": 1000, "negative": -5, "text": "nü"}
    message = example_class.FromString(serialize_example(features))
    entries = message.features.feature
    assert entries["image/encoded"].bytes_list.value[0] == features["image/encoded"]
    assert list(entries["image/class/label"].int64_list.value) == [1000]
    assert list(entries["negative"].int64_list.value) == [-5]
    assert entries["text"].bytes_list.value[0].decode() == "nü"
    entries["scores"].float_list.value.extend([1.0, 2.0])
    entries["several"].int64_list.value.extend([1, -1, 2**62])
    entries["empty"].int64_list.SetInParent()
    parsed = parse_example(message.SerializeToString())
    assert parsed["several"] == [1, -1, 2**62] and parsed["empty"] == [] and parsed["negative"] == [-5]
    assert bytes(parsed["image/encoded"][0]) == features["image/encoded"]


def test_chosen_features_are_the_same_wherever_they_stand(example_class):
    features = {"a": 1, "image/encoded": bytes(300), "image/class/label": 7, "x" * 200: 3, "z": b"last"}
    for names in (("image/encoded", "image/class/label"), ("z", "a"), ("x" * 200,), ("z", "missing")):
        message = example_class.FromString(serialize_example(features))
        for data in (serialize_example(features), message.SerializeToString()):  # sorted, and in protobuf's order
            chosen = parse_example(data, [name.encode() for name in names])
            assert chosen == {name: parse_example(data)[name] for name in names if name != "missing"}
    value = b"\x1a\x03\x0a\x01\x07"  # Int64List of 7
    entry = b"\x12\x05" + value + b"\x0a\x01l"  # the value, then the name
    data = b"\x0a" + bytes([2 + len(entry)]) + b"\x0a" + bytes([len(entry)]) + entry
    assert example_class.FromString(data).features.feature["l"].int64_list.value == [7]
    assert parse_example(data) == parse_example(data, [b"l"]) == {"l": [7]}


@pytest.mark.parametrize("data", [b"\xff", b"\x0a\x05ab", b"\x0b", b"\x80" * 12])
def test_bytes_that_are_no_example_are_refused(data):
    with pytest.raises(BadRecord):
        parse_example(data)


def make_records(root, labels, folder="train", index=True, first_label=1, name="train-00000-of-00001"):
    contents = [encoded(photo(20, 24, seed=number)) for number in range(len(labels))]
    records = [
        frame(serialize_example({"image/encoded": content, "image/class/label": label + first_label}))
        for content, label in zip(contents, labels, strict=True)
    ]
    (root / folder).mkdir(parents=True, exist_ok=True)
    path = root / folder / name
    path.write_bytes(b"".join(records))
    if index:
        (root / "idx_files" / folder).mkdir(parents=True, exist_ok=True)
        (root / "idx_files" / folder / name).write_text(index_text(scan_records(path).tolist()))
    return path, contents


@pytest.mark.parametrize("index", [True, False])
def test_tfrecord_data_set_gives_images_and_labels_from_zero(tmp_path, index):
    _, contents = make_records(tmp_path, [0, 2, 1], index=index)
    dataset = build_dataset(make_config(3, DATASET="imagenet_tfrecord", DATA_PATH=tmp_path), "train")
    assert [dataset.read(number) for number in range(3)] == list(zip(contents, [0, 2, 1], strict=True))


def test_tfrecord_first_label_is_configurable(tmp_path):
    make_records(tmp_path, [0, 2], folder="validation", first_label=0, name="validation-00000-of-00001")
    config = make_config(3, DATASET="imagenet_tfrecord", DATA_PATH=tmp_path, TFRECORD_FIRST_LABEL=0)
    assert np.concatenate([labels for _, labels in build_eval_loader(config)]).tolist() == [0, 2]
    with pytest.raises(UserError, match=r"at offset 0: label -1 is outside 0\.\.2 .*TFRECORD_FIRST_LABEL is 1"):
        list(build_eval_loader(make_config(3, DATASET="imagenet_tfrecord", DATA_PATH=tmp_path)))


def test_index_of_another_file_is_refused(tmp_path):
    path, _ = make_records(tmp_path, [0, 1])
    index = tmp_path / "idx_files" / "train" / path.name
    for text in ("0 5\n", "", "a b\n", index.read_text() + "1 2\n"):
        index.write_text(text)
        with pytest.raises(UserError, match="train-00000-of-00001: "):
            read_index(index, path)


def test_wrong_checksum_names_file_and_offset_and_can_be_skipped(tmp_path):
    path, contents = make_records(tmp_path, [0, 1, 2, 0, 1])
    offset, length = scan_records(path)[2].tolist()
    content = bytearray(path.read_bytes())
    content[offset + length // 2] ^= 4
    path.write_bytes(content)
    (tmp_path / "validation").symlink_to("train")
    options = {"DATASET": "imagenet_tfrecord", "DATA_PATH": tmp_path}
    with pytest.raises(UserError, match=f"{path.name} at offset {offset}: corrupt image .wrong checksum of the data"):
        list(build_eval_loader(make_config(3, **options)))
    loader = build_eval_loader(make_config(3, SKIP_CORRUPT=True, **options))
    assert np.concatenate([labels for _, labels in loader]).tolist() == [0, 1, 0, 1]
    assert loader.skipped_images == 1


def test_cut_file_names_the_offset(tmp_path):
    path, _ = make_records(tmp_path, [0, 1], index=False)
    offset = scan_records(path)[1, 0]
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(UserError, match=f"at offset {offset}: the file ends inside a record"):
        scan_records(path)


def run_tool(*arguments):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = make_tfrecord.main([*map(str, arguments)])
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def test_make_tfrecord_writes_what_the_folders_hold_and_resumes(tmp_path):
    written = write_class_folders(tmp_path / "images" / "train", {"a": 7, "b": 5})
    first = min((tmp_path / "images" / "train" / "a").iterdir())
    first.rename(os.fsdecode(os.fsencode(first.parent) + b"/\xe4 b" + os.fsencode(first.suffix)))  # of a Latin-1 system
    write_class_folders(tmp_path / "images" / "val", {"a": 2, "b": 2})
    output = tmp_path / "records"
    result = run_tool(tmp_path / "images", output, "--shards", 3, "--shards-val", 1, "--workers", 2)
    assert result.returncode == 0, result.stderr
    assert sorted(path.name for path in (output / "train").iterdir()) == [
        f"train-0000{number}-of-00003" for number in range(3)
    ]
    config = make_config(2, DATASET="imagenet_tfrecord", DATA_PATH=output)
    dataset = build_dataset(config, "train")
    got = sorted((bytes(content), label) for content, label in map(dataset.read, range(len(dataset))))
    assert got == sorted((content, "ab".index(name[0])) for name, content in written.items())
    assert len(build_train_loader(config)) == 3
    # a shard that is damaged is made again, one that is whole is kept
    kept, damaged = output / "train" / "train-00000-of-00003", output / "train" / "train-00001-of-00003"
    stamp, content = kept.stat().st_mtime_ns, damaged.read_bytes()
    damaged.write_bytes(content[:-1] + b"\x00")
    result = run_tool(tmp_path / "images", output, "--shards", 3, "--shards-val", 1, "--workers", 1)
    assert result.returncode == 0, result.stderr
    assert kept.stat().st_mtime_ns == stamp and damaged.read_bytes() == content
    # an index that is gone is made again, beside its shard
    index = output / "idx_files" / "train" / kept.name
    text = index.read_text()
    index.unlink()
    result = run_tool(tmp_path / "images", output, "--shards", 3, "--shards-val", 1, "--workers", 1)
    assert "train: 12 images in 3 shards, 1 of them written now" in result.stdout, result.stderr
    assert kept.stat().st_mtime_ns == stamp and index.read_text() == text


@pytest.mark.parametrize("target", ["itself", "its group"])
@pytest.mark.parametrize(("number", "end"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")])
def test_make_tfrecord_ends_by_a_signal_in_one_line_without_writing_the_rest(tmp_path, number, end, target):
    folder = tmp_path / "source/train/a"
    folder.mkdir(parents=True)
    for index in range(3000):
        (folder / f"{index}.jpg").write_bytes(encoded(photo(8, 8)))
    words = [sys.executable, ROOT / "tools/make_tfrecord.py", tmp_path / "source", tmp_path / "out", "-shards=3000"]
    with subprocess.Popen(
        [*words, "-workers=2"], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:  # fmt: skip
        while not list((tmp_path / "out").glob("train/train-*")) and process.poll() is None:
            time.sleep(0.01)
        (os.killpg if target == "its group" else os.kill)(process.pid, number)
        _, said = process.communicate(timeout=60)  # while a worker lives it has the pipe
    assert (process.returncode, said) == (128 + number, f"error: {end}\n")
    written = [path.name for path in (tmp_path / "out").rglob("*") if path.is_file() and "idx" not in str(path)]
    assert 0 < len(written) < 3000 and not [name for name in written if not name.startswith("train-")]


def test_make_tfrecord_numbers_the_classes_of_an_evaluation_set_with_fewer_as_the_training_folders_do(tmp_path):
    write_class_folders(tmp_path / "images" / "train", {"a": 2, "b": 2, "c": 2})
    write_class_folders(tmp_path / "images" / "val", {"b": 1, "c": 1})
    result = run_tool(tmp_path / "images", tmp_path / "records", "--shards", 1, "--shards-val", 1)
    assert result.returncode == 0, result.stderr
    dataset = build_dataset(make_config(3, DATASET="imagenet_tfrecord", DATA_PATH=tmp_path / "records"), "val")
    assert sorted(label for _, label in map(dataset.read, range(len(dataset)))) == [1, 2]
    write_class_folders(tmp_path / "images" / "val", {"d": 1})
    result = run_tool(tmp_path / "images", tmp_path / "more", "--shards", 1, "--shards-val", 1)
    assert result.returncode == 2 and "d: the training set has no class of this name" in result.stderr


@pytest.mark.parametrize("change", ["other images", "other labels", "another seed", "another tool"])
def test_make_tfrecord_writes_over_no_sound_shard_of_something_else(tmp_path, change):
    write_class_folders(tmp_path / "images" / "train", {"a": 3, "b": 3})
    words = [tmp_path / "images", tmp_path / "records", "--shards", 1, "--workers", 1]
    written = run_tool(*words)
    assert written.returncode == 0
    assert f"val: {words[0]} has neither val_list.txt nor a folder val/: nothing is written" in written.stdout
    if change == "other images":  # of the same sizes
        for path in list((tmp_path / "images").rglob("*.*")):
            path.rename(path.with_stem(f"x{path.stem}"))
    if change == "another tool":
        make_records(tmp_path / "records", [1, 2], name="train-00000-of-00001", index=False)
    before = {path: path.read_bytes() for path in (tmp_path / "records").rglob("*") if path.is_file()}
    refused = run_tool(*words, *{"other labels": ["--first-label", 0], "another seed": ["--seed", 1]}.get(change, []))
    assert refused.returncode == 2 and refused.stderr.splitlines()[-1].startswith("error: "), refused.stderr
    assert "is a sound shard of other images, labels or -seed" in refused.stderr
    assert {path: path.read_bytes() for path in (tmp_path / "records").rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("output", [".", "train/records", "val"])
def test_make_tfrecord_writes_nothing_among_the_images(tmp_path, output):
    write_class_folders(tmp_path / "train", {"a": 2, "b": 2})
    refused = run_tool(tmp_path, tmp_path / output, "--shards", 1)
    assert refused.returncode == 2 and "lies among the images" in refused.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"train"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--shards", 3, "--shards-val", 3], "-shards_val: 3 shards for 2 images of val"),
        (["--shards", 9, "--shards-val", 1], "-shards: 9 shards for 4 images of train"),
        (["--shards", 3, "--shards-val", 1, "--first-label", -1],
         "-first_label: expected an integer of at least 0, found -1"),
        (["--shards", 3, "--shards-val", 1, "--seed", -1], "-seed: expected an integer from 0 to 2^32 - 1, found -1"),
        (["--shards", 3, "--shards-val", 1, "--seed", 1 << 32],
         "-seed: expected an integer from 0 to 2^32 - 1, found 4294967296"),
    ],
)
def test_make_tfrecord_when_a_number_cannot_be_refuses_before_it_writes(tmp_path, words, message):
    write_class_folders(tmp_path / "images" / "train", {"a": 2, "b": 2})
    write_class_folders(tmp_path / "images" / "val", {"a": 1, "b": 1})
    result = run_tool(tmp_path / "images", tmp_path / "records", *words)
    assert (result.returncode, result.stderr) == (2, f"error: {message}\n")
    assert not (tmp_path / "records").exists()


def test_shards_of_two_sets_in_one_folder_are_refused_when_read_and_when_written(tmp_path):
    """Each alone is whole, and both would be read, every image twice."""
    write_class_folders(tmp_path / "images" / "train", {"a": 3, "b": 3})
    output = tmp_path / "records"
    assert run_tool(tmp_path / "images", output, "--shards", 3, "--workers", 1).returncode == 0
    before = {path: path.read_bytes() for path in output.rglob("*") if path.is_file()}
    refused = run_tool(tmp_path / "images", output, "--shards", 2, "--workers", 1)
    assert refused.returncode == 2 and "shards of 2 and of 3 lie in one folder" in refused.stderr
    assert {path: path.read_bytes() for path in output.rglob("*") if path.is_file()} == before
    make_records(output, [1, 2], name="train-00000-of-00001")
    with pytest.raises(UserError, match=r"train-\*: shards of 1 and of 3 lie in one folder"):
        build_dataset(make_config(2, DATASET="imagenet_tfrecord", DATA_PATH=output), "train")


def test_shards_that_are_missing_are_counted_in_the_log(tmp_path, caplog):
    caplog.set_level("INFO")
    make_records(tmp_path, [1, 2], name="train-00001-of-00004")
    assert len(build_dataset(make_config(2, DATASET="imagenet_tfrecord", DATA_PATH=tmp_path), "train")) == 2
    assert "1 of 4 shards are there" in caplog.text


def test_make_tfrecord_reports_a_missing_folder_in_one_line(tmp_path):
    result = run_tool(tmp_path / "none", tmp_path / "records")
    assert result.returncode == 2 and result.stderr.startswith("error: ") and result.stderr.count("\n") == 1


def test_tfrecord_package_reads_our_files(tmp_path):
    reader = pytest.importorskip("tfrecord", reason="the package tfrecord (PyPI) is not installed").reader
    path, contents = make_records(tmp_path, [0, 2, 1, 1])
    index = tmp_path / "idx_files" / "train" / path.name
    kinds = {"image/encoded": "byte", "image/class/label": "int"}
    for index_path in (None, str(index)):  # with an index it starts at a random record and goes round
        rows = list(reader.tfrecord_loader(str(path), index_path, kinds))
        got = sorted((bytes(row["image/encoded"]), int(row["image/class/label"][0])) for row in rows)
        assert got == sorted(zip(contents, [1, 3, 2, 2], strict=True))


def test_empty_record_file_without_an_index_is_refused(tmp_path):
    (tmp_path / "train-00000").touch()
    with pytest.raises(UserError, match="train-00000: an empty file"):
        scan_records(tmp_path / "train-00000")
