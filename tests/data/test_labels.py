"""Lists, indices and labels by strangers: one line that names the file, and the line in it."""

import io
import os

import numpy as np
import pytest
from scipy.io import savemat

from image_classification.data import build_dataset
from image_classification.data.datasets import FileDataset
from image_classification.data.decode import CorruptImage
from image_classification.data.folders import read_list_file
from image_classification.data.labels import json_label, text_label
from image_classification.data.matlab import read_structs
from image_classification.data.tar_shards import read_tar_shards
from image_classification.data.tfrecord import (
    BadRecord,
    frame,
    index_text,
    parse_example,
    read_index,
    scan_records,
    serialize_example,
)
from image_classification.runtime import UserError
from tests.helpers.data_samples import encoded, make_config, photo, tar_bytes

NO_LABELS = [
    "", "x", "1.5", "1e3", "--1", "+1", "0x1", "1_000", "²", "٣", "9" * 5000, "1000000", "nan", "None", "\x1b1",
]  # fmt: skip


def assert_one_line(caught, start):
    text = str(caught.value)
    assert text.startswith(str(start)) and text.isprintable() and len(text) < 1000


@pytest.mark.parametrize("text", NO_LABELS)
def test_text_that_is_no_number_is_no_label(text):
    with pytest.raises(UserError, match="is no label") as caught:
        text_label(text, "val.txt:3")
    assert_one_line(caught, "val.txt:3: ")
    assert text_label(" 12\n", "") == 12 and text_label("-3", "") == -3


@pytest.mark.parametrize(
    "text",
    [
        '{"label": "3"}', '{"label": 3.0}', '{"label": true}', '{"label": [3]}', '{"label": 1e9}', '"label"', "\0", "",
        '{"label": 1000000}', '{"label": ' + "9" * 5000 + "}", "[" * 100_000, "[]", "3", '{"Label": 3}', "{}",
        '{"label": null}',
    ],
)  # fmt: skip
def test_json_without_an_integer_is_no_label(text):
    with pytest.raises(UserError, match="holds no label") as caught:
        json_label(text, "a.tar: 1.json")
    assert_one_line(caught, "a.tar: 1.json: ")
    assert json_label('{"label": 12, "x": [1.5]}', "") == 12


@pytest.mark.parametrize("label", [*(text for text in NO_LABELS if text), "5", "-1"])
def test_line_of_a_list_without_a_label_names_file_and_line(tmp_path, label):
    path = tmp_path / "train_list.txt"
    path.write_text(f"a.jpg 0\nb.jpg {label}\n")
    with pytest.raises(UserError) as caught:
        read_list_file(path, tmp_path, 5)
    assert_one_line(caught, f"{path}:2: ")


@pytest.mark.parametrize("line", [b"a.jpg", b" 3", b"a\0b.jpg 3", b"x" * 20_000 + b" 3", b"\xff" * 30_000])
def test_line_of_a_list_without_a_path_names_file_and_line(tmp_path, line):
    path = tmp_path / "train_list.txt"
    path.write_bytes(b"\n a.jpg\t0\n" + line + b"\n")
    with pytest.raises(UserError) as caught:
        read_list_file(path, tmp_path, 5)
    assert_one_line(caught, f"{path}:3: ")


def test_list_with_a_byte_order_mark_names_the_same_image(tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"")
    (tmp_path / "list.txt").write_bytes(b"\xef\xbb\xbfa.jpg 0\r\na.jpg 1\r\n")
    dataset = read_list_file(tmp_path / "list.txt", tmp_path, 2)
    assert [dataset.describe(index) for index in range(2)] == [str(tmp_path / "a.jpg")] * 2


def test_list_of_any_bytes_keeps_its_paths(tmp_path):
    (tmp_path / "list.txt").write_bytes(b"folder/\xff b.jpg 3\r\n\r\n  c.jpg\t4")
    (tmp_path / "folder").mkdir()
    for name in (b"folder/\xff b.jpg", b"c.jpg"):
        (tmp_path / os.fsdecode(name)).touch()
    dataset = read_list_file(tmp_path / "list.txt", tmp_path, 5)
    assert os.fsencode(dataset.describe(0)).endswith(b"folder/\xff b.jpg") and dataset.labels.tolist() == [3, 4]


@pytest.mark.parametrize("kind", ["fifo", "folder", "long name", "loop"])
def test_image_of_a_list_that_is_no_plain_file_is_one_line_before_any_is_read(tmp_path, kind):
    name = "n" * 300 + ".jpg" if kind == "long name" else "a.jpg"
    path = tmp_path / name
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to("a.jpg")
    (tmp_path / "train_list.txt").write_text(f"{name} 0\n")
    with pytest.raises(UserError, match=r"1 of its 1 images are not there or no files, the first is .*\.jpg"):
        build_dataset(make_config(5, DATASET="list", DATA_PATH=tmp_path), "train")
    with pytest.raises(CorruptImage, match="^cannot be read"):  # it was a file when the list was read
        FileDataset(tmp_path, [name], [0], ["a"]).read(0)


@pytest.mark.parametrize("count", [3, 300])
def test_images_of_a_list_that_are_not_there_are_one_line_before_any_is_read(tmp_path, count):
    names = [f"folder/{index}.jpg" for index in range(count)]
    (tmp_path / "folder" / "1.jpg").mkdir(parents=True)
    (tmp_path / "folder" / "0.jpg").symlink_to("gone.jpg")
    for name in names[2:]:
        (tmp_path / name).touch()
    (tmp_path / "train_list.txt").write_text("".join(f"{name} 0\n" for name in [*names, "elsewhere/a.jpg"]))
    expected = f"train_list.txt: 3 of its {count + 1} images are not there or no files, the first is .*/0.jpg"
    with pytest.raises(UserError, match=expected):
        build_dataset(make_config(5, DATASET="list", DATA_PATH=tmp_path), "train")


@pytest.mark.parametrize("name", ["سگ\u200cها", "\u200bcat", "chien\xa0loup", "犬\u3000猫", "👨\u200d👩\u200d👧"])
def test_class_folder_of_any_script_keeps_its_name(tmp_path, name):
    for each in (name, "other"):
        (tmp_path / each).mkdir()
        for index in range(5):
            (tmp_path / each / f"{index}.jpg").touch()
    dataset = build_dataset(make_config(2, DATASET="folder", DATA_PATH=tmp_path), "train")
    assert set(dataset.class_names) == {name, "other"}


@pytest.mark.parametrize("name", [b"a\x1b[2J", "chat \xe9t\xe9".encode("latin-1"), "a\u2028b".encode()])
def test_class_folder_with_control_characters_in_its_name_or_not_in_utf8_is_refused(tmp_path, name):
    os.mkdir(os.path.join(os.fsencode(tmp_path), name))
    with pytest.raises(UserError, match="a class has control characters, or is not in UTF-8") as caught:
        build_dataset(make_config(1, DATASET="folder", DATA_PATH=tmp_path), "train")
    assert_one_line(caught, tmp_path)


# ---- TFRecord


def records(tmp_path, count=4):
    path = tmp_path / "train-0"
    path.write_bytes(b"".join(frame(bytes([number]) * 50 * (number + 1)) for number in range(count)))
    return path, index_text(scan_records(path).tolist())


def test_shortened_index_is_refused_at_either_end(tmp_path):
    path, text = records(tmp_path)
    lines = text.splitlines(keepends=True)
    index = tmp_path / "index"
    index.write_text(text)
    assert len(read_index(index, path)) == 4
    for part in (lines[1:], lines[:-1], lines[1:-1], lines[:1] + lines[2:], lines[::-1], []):
        index.write_text("".join(part))
        with pytest.raises(UserError, match=f"does not fit {path}"):
            read_index(index, path)


@pytest.mark.parametrize(
    "text",
    ["-1 5\n", "0 -5\n", "0 1e3\n", "0 99999999999999999999999\n", "0 9223372036854775807\n9223372036854775807 5\n",
     "0x0 5\n", "0\n", "0 66 66\n", "\u00b2 3\n", "0 66\n66 0\n", "9" * 5000, "0 16 " * 100_000, "a b", "\x00"],
)  # fmt: skip
def test_index_of_other_numbers_is_refused(tmp_path, text):
    path, _ = records(tmp_path, 1)
    (tmp_path / "index").write_text(text)
    with pytest.raises(UserError) as caught:
        read_index(tmp_path / "index", path)
    assert_one_line(caught, tmp_path / "index")


@pytest.mark.parametrize(
    "data",
    [b"\x0a" + b"\x80" * 1_000_000, b"\x0a\x80\x80\x04" + b"\x0a\x00" * 65536 * 3, b"\x80" * 100],
    ids=["a length of a million digits", "many features", "a tag without end"],
)
def test_example_that_asks_for_much_work_is_refused(data):
    with pytest.raises(BadRecord):
        parse_example(data)


def test_label_or_image_of_another_type_is_a_corrupt_image(tmp_path):
    (tmp_path / "train").mkdir()
    wrong = [
        serialize_example({"image/encoded": 5, "image/class/label": 3}),
        serialize_example({"image/encoded": b"x", "image/class/label": b"three"}),
        b"\x0a\x07\x0a\x05label",
    ]
    (tmp_path / "train" / "a").write_bytes(b"".join(map(frame, wrong)))
    dataset = build_dataset(make_config(5, DATASET="imagenet_tfrecord", DATA_PATH=tmp_path), "train")
    for index in range(3):
        with pytest.raises(CorruptImage):
            dataset.read(index)


# ---- tar shards


def shard(tmp_path, count=3):
    path = tmp_path / "train-0.tar"
    members = {}
    for number in range(count):
        members |= {f"{number}.jpg": encoded(photo(20, 20, number)), f"{number}.cls": b"%d" % number}
    path.write_bytes(tar_bytes(members))
    return path


def read_shards(tmp_path):
    dataset = read_tar_shards(tmp_path, "train", 5)
    return [(dataset.read(index)[0], int(dataset.labels[index])) for index in range(len(dataset))]


def test_damaged_index_of_a_shard_is_made_anew(tmp_path):
    index = tmp_path / f"{shard(tmp_path).name}.index.npy"
    expected = read_shards(tmp_path)
    whole = index.read_bytes()
    assert np.load(index).shape == (5, 3)
    for position in range(0, len(whole), 5):
        index.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        assert read_shards(tmp_path) == expected
        assert index.read_bytes() == whole
    for content in (b"", whole[:-1], whole + b"x", whole * 1000, whole[:128]):
        index.write_bytes(content)
        assert read_shards(tmp_path) == expected


def test_index_that_is_a_fifo_does_not_block(tmp_path):
    index = tmp_path / f"{shard(tmp_path).name}.index.npy"
    os.mkfifo(index)
    assert len(read_shards(tmp_path)) == 3


def test_whole_index_is_used(tmp_path):
    path = shard(tmp_path)
    read_shards(tmp_path)
    stamp = path.stat()
    content = path.read_bytes()
    path.write_bytes(content.replace(b"1.cls", b"1.xyz"))  # unreadable without the index: wrong header checksum
    os.utime(path, ns=(stamp.st_mtime_ns, stamp.st_mtime_ns))
    assert len(read_shards(tmp_path)) == 3
    os.utime(path)
    with pytest.raises(UserError, match="checksum"):
        read_shards(tmp_path)


def test_label_of_a_shard_that_is_far_too_long_is_not_read(tmp_path):
    (tmp_path / "train-0.tar").write_bytes(tar_bytes({"1.jpg": b"x", "1.json": b" " * (2 << 20)}))
    with pytest.raises(UserError, match="1.json: holds no label: it has 2097152 bytes"):
        read_shards(tmp_path)


# ---- ImageNet's validation archive


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("val.txt", b"a.jpg one\n", "val.txt:1: 'one' is no label"),
        ("val.txt", b"a.jpg\n", "val.txt:1: 'a.jpg' is no label"),
        ("val.txt", b"\xff\xfe\n", "is no text in UTF-8"),
        ("meta.mat", b"", "is not the development kit's"),
        ("meta.mat", bytes(2000), "is not the development kit's"),
        ("meta.mat", bytes(5 << 20), "at most 4194304 are allowed"),
    ],
)
def test_ground_truth_of_other_content_is_one_line(tmp_path, name, content, message):
    (tmp_path / "ILSVRC2012_img_val.tar").write_bytes(tar_bytes({"a.jpg": b"x"}))
    (tmp_path / "ILSVRC2012_validation_ground_truth.txt").write_text("1\n")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError) as caught:
        build_dataset(make_config(1000, DATASET="imagenet2012", DATA_PATH=tmp_path), "val")
    assert message in str(caught.value) and str(caught.value).isprintable()


@pytest.mark.parametrize("packed", [False, True])
def test_struct_array_is_that_which_scipy_wrote(packed):
    kind = [("ILSVRC2012_ID", float), ("WNID", object), ("num_children", np.uint8), ("children", object)]
    rows = [(1.0, "n02119789", 0, np.zeros(0)), (1000.0, "n03710637, ä", 3, np.arange(3)), (-2.5, "", 1, [[1], ["x"]])]
    file = io.BytesIO()
    savemat(file, {"other": 3, "synsets": np.array(rows, dtype=kind)}, do_compression=packed)
    expected = [dict(zip(("ILSVRC2012_ID", "WNID", "num_children", "children"), row, strict=True)) for row in rows]
    found = read_structs(file.getvalue(), "synsets")
    for row, own in zip(found, expected, strict=True):
        assert row.keys() == own.keys()
        assert all(row[name] in (own[name], own[name] or None) for name in own if name != "children")
