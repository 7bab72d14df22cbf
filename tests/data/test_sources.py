"""Data sets in their official layouts."""

import dataclasses
import hashlib
import io
import os
import pickle
import zipfile

import numpy as np
import pytest

from image_classification.data import build_dataset, build_eval_loader, build_train_loader, caltech101, records
from image_classification.data.splits import stratified_split
from image_classification.files.unpickle import load_pickle
from image_classification.runtime import UserError
from tests.helpers.data_samples import (
    cifar10_members,
    encoded,
    make_config,
    photo,
    publish_cifar10,
    python2_pickle,
    tar_bytes,
    write_class_folders,
)


def error_of(config, split="train"):
    with pytest.raises(UserError) as caught:
        build_dataset(config, split)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def write_members(root, members):
    for name, content in members.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)


# ---- CIFAR


@pytest.mark.parametrize("form", ["archive", "extracted", "inside"])
def test_cifar10_official_layout_loads(tmp_path, monkeypatch, form):
    members, truth = cifar10_members()
    if form == "archive":
        content = tar_bytes(members, "w:gz")
        publish_cifar10(monkeypatch, content)
        (tmp_path / "cifar-10-python.tar.gz").write_bytes(content)
    else:
        write_members(tmp_path, members)
    root = tmp_path / "cifar-10-batches-py" if form == "inside" else tmp_path
    for split, (images, labels) in truth.items():
        dataset = build_dataset(make_config(DATASET="cifar10", DATA_PATH=root), split)
        np.testing.assert_array_equal(dataset.images, images)
        assert dataset.labels.tolist() == labels
        assert dataset.class_names[3] == "class3"


def test_cifar100_uses_the_fine_labels(tmp_path):
    data = np.arange(2 * 3072, dtype=np.uint64).astype(np.uint8).reshape(2, 3072)
    split = {b"data": data, b"fine_labels": [99, 3], b"coarse_labels": [1, 2]}
    members = {
        "cifar-100-python/meta": python2_pickle({b"fine_label_names": [str(n).encode() for n in range(100)]}),
        "cifar-100-python/train": python2_pickle(split),
        "cifar-100-python/test": python2_pickle(split),
    }
    write_members(tmp_path, members)
    config = make_config(100, DATASET="cifar100", DATA_PATH=tmp_path)
    assert build_dataset(config, "val").labels.tolist() == [99, 3]
    # Red plane first, row by row
    assert build_dataset(config, "train").images[1, 0, 1].tolist() == [data[1, 1], data[1, 1025], data[1, 2049]]


def test_cifar10_archive_that_is_cut_or_missing_is_refused(tmp_path, monkeypatch):
    config = make_config(DATASET="cifar10", DATA_PATH=tmp_path)
    assert "DATA.DOWNLOAD=True" in error_of(config)
    members, _ = cifar10_members()
    archive = tmp_path / "cifar-10-python.tar.gz"
    archive.write_bytes(tar_bytes(members, "w:gz"))
    assert f"{archive}: has md5:" in error_of(config)  # not the one that is published
    for content, message in (
        (tar_bytes(members, "w:gz")[:-5000], "is cut"),
        (tar_bytes(members, "w:gz")[:-8] + bytes(8), "CRC check failed"),
        (tar_bytes(members), "cifar-10"),
        (tar_bytes(dict(list(members.items())[:4]), "w:gz"), "lacks data_batch_4"),
    ):
        archive.write_bytes(content)
        publish_cifar10(monkeypatch, content)
        if message != "cifar-10":  # a plain tar file is as good
            assert message in error_of(config) and str(archive) in error_of(config)
        else:
            assert len(build_dataset(config, "train")) == 40


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"data", np.zeros((8, 3071), np.uint8)), (b"data", np.zeros((8, 3072), np.int64)), (b"data", [[0] * 3072]),
        (b"labels", [0] * 7), (b"labels", ["0"] * 8), (b"labels", [True] * 8), (b"labels", [2**70] * 8), (b"labels", 3),
        (b"labels", [0.5] * 8), (b"labels", [-1] * 8),
    ],
)  # fmt: skip
def test_cifar10_file_of_other_content_is_refused(tmp_path, key, value):
    members, _ = cifar10_members()
    batch = {b"data": np.zeros((8, 3072), np.uint8), b"labels": [0] * 8} | {key: value}
    members["cifar-10-batches-py/test_batch"] = python2_pickle(batch)
    write_members(tmp_path, members)
    message = error_of(make_config(DATASET="cifar10", DATA_PATH=tmp_path), "val")
    assert str(tmp_path) in message or "label -1 is outside 0..9" in message


class Evil:
    def __reduce__(self):
        return os.system, ("touch evil-was-here",)


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps({b"data": Evil()}, protocol=2),
        pickle.dumps(np.array([1, "text"], dtype=object), protocol=2),
        pickle.dumps(np.zeros(2, [("a", "f4")]), protocol=2),
        b"cnumpy\nndarray\n(lp0\nR.",
        b"cbuiltins\neval\n(Vprint(1)\ntR.",
        pickle.dumps([1, 2])[:-3],
        b"",
    ],
)
def test_unsafe_or_cut_pickle_is_refused(content, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError):
        load_pickle(io.BytesIO(content), "file", encoding="bytes")
    assert not list(tmp_path.iterdir())


def test_unsafe_pickle_in_a_data_set_names_the_file(tmp_path):
    members, _ = cifar10_members()
    members["cifar-10-batches-py/test_batch"] = pickle.dumps({b"data": Evil()}, protocol=2)
    write_members(tmp_path, members)
    message = error_of(make_config(DATASET="cifar10", DATA_PATH=tmp_path), "val")
    assert "test_batch: refused: " in message and "system" in message


# ---- Caltech-101


@pytest.mark.parametrize("form", ["folder", "itself", "tar", "zip"])
def test_caltech101_official_layouts_load_without_background(tmp_path, monkeypatch, form):
    source = tmp_path / "source" / "101_ObjectCategories"
    written = write_class_folders(source, {"BACKGROUND_Google": 3, "Faces": 10, "ant": 5})
    root = tmp_path / "root"
    root.mkdir()
    if form == "folder":
        source.rename(root / "101_ObjectCategories")
    elif form == "itself":
        root = source
    else:
        inner = tar_bytes({f"101_ObjectCategories/{name}": content for name, content in written.items()}, "w:gz")
        if form == "tar":
            (root / "101_ObjectCategories.tar.gz").write_bytes(inner)
        else:
            with zipfile.ZipFile(root / "caltech-101.zip", "w") as zipped:
                zipped.writestr("caltech-101/101_ObjectCategories.tar.gz", inner)
                zipped.writestr("__MACOSX/x", b"")
            config = make_config(2, DATASET="caltech101", DATA_PATH=root)
            assert "caltech-101.zip: has md5:" in error_of(config)  # not the one that is published
            digest = f"md5:{hashlib.md5((root / 'caltech-101.zip').read_bytes()).hexdigest()}"
            monkeypatch.setattr(caltech101, "SOURCE", dataclasses.replace(caltech101.SOURCE, digest=digest))
    config = make_config(2, DATASET="caltech101", DATA_PATH=root)
    splits = [build_dataset(config, split) for split in ("train", "val")]
    assert splits[0].class_names == ["Faces", "ant"]
    assert [np.bincount(dataset.labels).tolist() for dataset in splits] == [[8, 4], [2, 1]]
    contents = {content for dataset in splits for content, _ in map(dataset.read, range(len(dataset)))}
    assert contents == {content for name, content in written.items() if not name.startswith("BACKGROUND")}
    with_background = make_config(3, DATASET="caltech101", DATA_PATH=root, CALTECH_BACKGROUND=True)
    assert build_dataset(with_background, "train").num_classes == 3


def test_caltech101_missing_is_named(tmp_path):
    assert "caltech-101.zip" in error_of(make_config(DATASET="caltech101", DATA_PATH=tmp_path))
    write_class_folders(tmp_path / "101_ObjectCategories", {"BACKGROUND_Google": 3})
    assert "has no class folders" in error_of(make_config(DATASET="caltech101", DATA_PATH=tmp_path))


# ---- folders and lists


def test_path_that_is_no_folder_says_below_which_one_it_was_looked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert error_of(make_config(DATASET="folder", DATA_PATH="photos")).endswith(f"photos is not a folder of {tmp_path}")
    assert error_of(make_config(DATASET="folder", DATA_PATH=tmp_path / "a")).endswith("a is not a folder")


def test_folder_without_splits_is_split_by_a_fixed_fifth(tmp_path):
    written = write_class_folders(tmp_path, {"a": 10, "b": 5})
    config = make_config(2, DATASET="folder", DATA_PATH=tmp_path)
    train, val = build_dataset(config, "train"), build_dataset(config, "val")
    assert (np.bincount(train.labels).tolist(), np.bincount(val.labels).tolist()) == ([8, 4], [2, 1])
    names = [dataset.describe(index) for dataset in (train, val) for index in range(len(dataset))]
    assert sorted(names) == sorted(str(tmp_path / name) for name in written)
    assert ["ab".index(os.path.basename(os.path.dirname(name))) for name in names] == [*train.labels, *val.labels]


def test_stratified_split_takes_the_largest_remainders():
    labels = np.repeat([0, 1, 2], [7, 6, 9])  # a fifth: 1.4, 1.2, 1.8, together 4.4 -> 5
    held_out = stratified_split(labels, "val")
    assert np.bincount(labels[held_out]).tolist() == [2, 1, 2]
    assert held_out.tolist() == [2, 6, 8, 19, 20]  # for ever: else a model would be evaluated on what it has learnt
    assert sorted([*held_out, *stratified_split(labels, "train")]) == list(range(22))


def test_stratified_split_leaves_a_class_its_only_image_to_learn_from():
    labels = [0, *[1] * 10, *[3] * 10]  # a class 2 without images
    assert 0 in stratified_split(labels, "train") and len(stratified_split(labels, "val")) == 4


@pytest.mark.parametrize("name", ["folder", "imagenet2012"])
def test_evaluation_folder_without_some_classes_has_the_labels_of_the_training_folders(tmp_path, name):
    for folder in ("train/a", "train/b", "train/c", "val/a", "val/c"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "one.jpg").write_bytes(encoded(photo(20, 24)))
    dataset = build_dataset(make_config(DATASET=name, DATA_PATH=tmp_path), "val")
    assert (dataset.labels.tolist(), dataset.class_names) == ([0, 2], ["a", "b", "c"])


def test_shard_that_was_written_anew_at_the_same_size_is_indexed_anew_and_folders_keep_samples_apart(tmp_path):
    shard, config = tmp_path / "train-0.tar", make_config(DATASET="tar_shards", DATA_PATH=tmp_path)
    for number, labels in enumerate(([0, 1], [2, 1])):
        members = {f"{place}/one.jpg": encoded(photo(20, 24)) for place in "ab"}
        members |= {f"{place}/one.cls": b"%d" % label for place, label in zip("ab", labels, strict=True)}
        shard.write_bytes(tar_bytes(members))
        os.utime(shard, (number, number))
        assert build_dataset(config, "train").labels.tolist() == labels


def test_list_data_set_needs_its_list(tmp_path):
    assert "no train_list.txt" in error_of(make_config(DATASET="list", DATA_PATH=tmp_path))


# ---- tar files


def shard_members(count, first=0):
    members = {}
    for number in range(first, first + count):
        members[f"part/{number:05d}.jpg"] = encoded(photo(20, 24, seed=number))
        members[f"part/{number:05d}.cls"] = b"%d\n" % (number % 3)
    members[f"part/{first:05d}.seg.txt"] = b"something else"
    return members


def test_tar_shards_give_each_sample_once_with_its_label(tmp_path):
    (tmp_path / "train-000.tar").write_bytes(tar_bytes(shard_members(4)))
    (tmp_path / "train-001.tar").write_bytes(tar_bytes(shard_members(3, first=4)))
    config = make_config(3, DATASET="tar_shards", DATA_PATH=tmp_path)
    for _ in range(2):  # the second time from the index files
        dataset = build_dataset(config, "train")
        assert dataset.labels.tolist() == [0, 1, 2, 0, 1, 2, 0]
        for index in range(7):
            assert dataset.read(index) == (encoded(photo(20, 24, seed=index)), index % 3)
    assert (tmp_path / "train-000.tar.index.npy").exists()


def test_tar_shard_index_is_made_anew_when_the_shard_changes(tmp_path):
    shard = tmp_path / "train-000.tar"
    config = make_config(3, DATASET="tar_shards", DATA_PATH=tmp_path)
    for count in (2, 5):
        shard.write_bytes(tar_bytes(shard_members(count)))
        assert len(build_dataset(config, "train")) == count


def test_tar_shard_that_is_cut_or_incomplete_is_named(tmp_path):
    shard = tmp_path / "train-000.tar"
    config = make_config(3, DATASET="tar_shards", DATA_PATH=tmp_path)
    assert "train*.tar" in error_of(config)
    whole = tar_bytes(shard_members(4))
    shard.write_bytes(whole[:3000])
    assert str(shard) in error_of(config)
    shard.write_bytes(tar_bytes({"1.jpg": b"x"}))
    assert "sample 1 has no label" in error_of(config)
    shard.write_bytes(tar_bytes({"1.jpg": b"x", "1.json": b'{"label": "cat"}'}))
    assert "1.json: holds no label" in error_of(config)


def test_hidden_members_of_a_tar_shard_are_no_samples(tmp_path):
    """A Mac packs such a file beside each of its own; class folders leave them out, too."""
    members = {f"part/._{number:05d}.{ending}": b"Mac OS X" for number in range(2) for ending in ("jpg", "cls")}
    (tmp_path / "train-000.tar").write_bytes(tar_bytes({".DS_Store": b"", **members, **shard_members(3)}))
    dataset = build_dataset(make_config(3, DATASET="tar_shards", DATA_PATH=tmp_path), "train")
    assert dataset.labels.tolist() == [0, 1, 2]


def test_tar_shards_of_two_sets_in_one_folder_are_refused(tmp_path):
    for name in ("train-00000-of-00001.tar", "train-00001-of-00002.tar"):
        (tmp_path / name).write_bytes(tar_bytes(shard_members(3)))
    config = make_config(3, DATASET="tar_shards", DATA_PATH=tmp_path)
    assert "shards of 1 and of 2 lie in one folder, their images would count twice" in error_of(config)


def test_more_shards_than_a_process_may_open_are_read_in_any_order(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "MAX_OPEN_FILES", 2)
    for number in range(4):
        (tmp_path / f"train-{number}.tar").write_bytes(tar_bytes(shard_members(1, first=number)))
    dataset = build_dataset(make_config(4, DATASET="tar_shards", DATA_PATH=tmp_path), "train")
    before = len(os.listdir("/proc/self/fd"))
    for index in (0, 1, 2, 1, 3, 1, 0):
        assert dataset.read(index)[0] == encoded(photo(20, 24, seed=index))
        assert len(os.listdir("/proc/self/fd")) <= before + 2


def test_tar_shard_with_two_images_or_labels_of_one_name_is_named(tmp_path):
    """One of the two would be left out: names that a script gave in each class anew, or a shard packed twice."""
    members = [*shard_members(2).items(), *shard_members(1).items()]
    (tmp_path / "train-000.tar").write_bytes(tar_bytes(members))
    config = make_config(3, DATASET="tar_shards", DATA_PATH=tmp_path)
    assert "sample part/00000 has a second image, part/00000.jpg" in error_of(config)


def test_tar_shard_with_text_and_json_takes_the_text_for_the_label(tmp_path):
    """JSON beside a label describes the image, in most sets that were made with img2dataset or by timm."""
    image = encoded(photo(20, 24))
    members = {"1.cls": b"0", "1.jpg": image, "1.json": b'{"width": 24}', "2.jpg": image, "2.json": b'{"label": 1}'}
    (tmp_path / "train-000.tar").write_bytes(tar_bytes(members))
    dataset = build_dataset(make_config(2, DATASET="tar_shards", DATA_PATH=tmp_path), "train")
    assert dataset.labels.tolist() == [0, 1]


def test_tar_shards_say_how_many_outputs_the_model_gets(tmp_path):
    for split in ("train", "val"):
        (tmp_path / f"{split}-000.tar").write_bytes(tar_bytes(shard_members(4)))
    config = make_config(10, DATASET="tar_shards", DATA_PATH=tmp_path)
    config = dataclasses.replace(config, MODEL=dataclasses.replace(config.MODEL, CLASSES_GIVEN=False))
    assert build_dataset(config, "train").num_classes == 3
    assert build_dataset(dataclasses.replace(config, EVAL=True), "val").num_classes == 10


def test_tar_shards_without_a_sample_are_one_line(tmp_path):
    (tmp_path / "train-000.tar").write_bytes(tar_bytes({}))
    assert "train-000.tar: no shard of train has a sample" in error_of(
        make_config(3, DATASET="tar_shards", DATA_PATH=tmp_path)
    )


def test_loader_reads_tar_shards_with_workers(tmp_path):
    (tmp_path / "train-000.tar").write_bytes(tar_bytes(shard_members(9)))
    batches = [
        list(build_train_loader(make_config(3, DATASET="tar_shards", DATA_PATH=tmp_path, NUM_WORKERS=workers)))
        for workers in (0, 1)
    ]
    for (images, labels), (other_images, other_labels) in zip(*batches, strict=True):
        np.testing.assert_array_equal(images, other_images)
        np.testing.assert_array_equal(labels, other_labels)


def imagenet_val_tar(root, count=5):
    names = [f"ILSVRC2012_val_{number:08d}.JPEG" for number in range(1, count + 1)]
    contents = [encoded(photo(20, 24, seed=number)) for number in range(count)]
    # members in another order than their names
    (root / "ILSVRC2012_img_val.tar").write_bytes(tar_bytes(dict(reversed(list(zip(names, contents, strict=True))))))
    return names, contents


def test_imagenet_val_tar_with_the_development_kit(tmp_path):
    from scipy.io import savemat

    _, contents = imagenet_val_tar(tmp_path)
    kind = [("ILSVRC2012_ID", float), ("WNID", object), ("num_children", float)]
    synsets = np.array([(1, "n03", 0), (2, "n01", 0), (3, "n02", 0), (4, "n00", 3)], dtype=kind)
    savemat(tmp_path / "meta.mat", {"synsets": synsets})
    (tmp_path / "ILSVRC2012_validation_ground_truth.txt").write_text("1\n2\n3\n3\n2\n")
    dataset = build_dataset(make_config(1000, DATASET="imagenet2012", DATA_PATH=tmp_path), "val")
    assert dataset.labels.tolist() == [2, 0, 1, 1, 0]
    assert dataset.class_names == ["n01", "n02", "n03"]
    assert [dataset.read(index)[0] for index in range(5)] == contents


def test_imagenet_val_tar_with_a_list(tmp_path):
    names, _ = imagenet_val_tar(tmp_path)
    config = make_config(1000, DATASET="imagenet2012", DATA_PATH=tmp_path)
    assert "val.txt" in error_of(config, "val")
    (tmp_path / "val.txt").write_text("".join(f"{name} {number}\n" for number, name in enumerate(names[:4])))
    assert names[4] in error_of(config, "val")
    (tmp_path / "val.txt").write_text("".join(f"{name} {number * 200}\n" for number, name in enumerate(names)))
    labels = np.concatenate([labels for _, labels in build_eval_loader(config)])
    assert labels.tolist() == [0, 200, 400, 600, 800]


# ---- synthetic


def test_synthetic_has_the_asked_length_and_all_labels():
    config = make_config(7, DATASET="synthetic", SYNTHETIC_IMAGES=20)
    loader = build_train_loader(config)
    assert len(loader) == 5
    assert {int(label) for _, labels in loader for label in labels} == set(range(7))
