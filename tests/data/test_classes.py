"""The model has an output for each class of the data, or the run does not start."""

import dataclasses

import pytest

from image_classification.config import preview_config
from image_classification.data import build_dataset, build_train_loader, settle_classes
from image_classification.data.classes import describe_classes
from image_classification.data.folders import list_images
from image_classification.runtime import UserError
from tests.data.test_tfrecord import make_records
from tests.helpers.data_samples import encoded, make_config, photo, tar_bytes, write_class_folders


def not_given(config):
    return dataclasses.replace(config, MODEL=dataclasses.replace(config.MODEL, CLASSES_GIVEN=False))


@pytest.fixture
def photos(tmp_path):
    for split in ("train", "val"):
        write_class_folders(tmp_path / split, {"cat": 2, "dog": 2, "owl": 1})
    return tmp_path


def test_class_folders_say_how_many_outputs_the_model_gets(photos):
    config = not_given(make_config(1000, DATASET="imagenet2012", DATA_PATH=photos))
    settled = settle_classes(config, build_dataset(config, "train"))
    assert (settled.MODEL.NUM_CLASSES, settled.MODEL.CLASSES_GIVEN) == (3, True)


@pytest.mark.parametrize("number", [2, 5])
def test_number_that_was_set_and_is_wrong_is_one_line_with_what_was_found(photos, number):
    config = make_config(number, DATASET="folder", DATA_PATH=photos)
    with pytest.raises(UserError, match=f"^MODEL.NUM_CLASSES: {number}, but .* has 3 classes: cat, dog, owl$"):
        settle_classes(config, build_dataset(config, "train"))


@pytest.mark.parametrize("number", [3, 12])
def test_names_that_were_set_and_are_not_as_many_as_the_classes_are_named_with_both_numbers(number):
    config = preview_config(["-cfg=vit_tiny_digits", "-opts", f"MODEL.CLASS_NAMES={list('abcdefghijkl'[:number])}"])
    with pytest.raises(UserError, match=f"^MODEL.CLASS_NAMES: {number} names, but digits has 10 classes: 0, 1, 2, "):
        settle_classes(config, build_dataset(config, "train"))


@pytest.mark.parametrize("number", [3, 12])
def test_data_that_read_no_folder_are_named_without_one(number):
    config = make_config(number, DATASET="digits")
    with pytest.raises(UserError, match=f"MODEL.NUM_CLASSES: {number}, but digits has 10 classes"):
        settle_classes(config, build_dataset(config, "train"))


def test_one_class_is_an_error(tmp_path):
    write_class_folders(tmp_path, {"cat": 9})
    config = not_given(make_config(DATASET="folder", DATA_PATH=tmp_path))
    with pytest.raises(UserError, match="has one class, cat: nothing to tell apart"):
        settle_classes(config, build_dataset(config, "train"))


@pytest.mark.parametrize("outer", [["photos"], ["2019", "2020"]])
def test_class_folders_one_level_too_deep_are_shown(tmp_path, outer):
    for name in outer:
        write_class_folders(tmp_path / name, {"cat": 5, "dog": 5})
    with pytest.raises(UserError, match=rf"folders \({outer[0]}.*\({outer[0]}/cat, .*one level too deep"):
        build_dataset(make_config(DATASET="folder", DATA_PATH=tmp_path), "train")


def test_images_in_one_folder_of_each_class_are_a_layout(tmp_path):
    for name in ("n01", "n02"):
        write_class_folders(tmp_path / name, {"images": 5})
    assert build_dataset(make_config(DATASET="folder", DATA_PATH=tmp_path), "train").class_names == ["n01", "n02"]


@pytest.mark.parametrize(("split", "missing"), [("train", "val"), ("val", "train")])
def test_split_that_is_missing_is_named_with_the_ways_out(tmp_path, split, missing):
    write_class_folders(tmp_path / split, {"cat": 2, "dog": 2})
    with pytest.raises(UserError, match=f"has {split}/ and no {missing}/: give both, or class folders alone"):
        build_dataset(make_config(DATASET="folder", DATA_PATH=tmp_path), missing)


def write_list(root, split, labels):
    (root / f"{split}_list.txt").write_text("".join(f"{split}/{n}.jpg {label}\n" for n, label in enumerate(labels)))
    (root / split).mkdir()
    for n in range(len(labels)):
        (root / split / f"{n}.jpg").touch()


def test_lists_count_their_classes_in_training_and_the_models_in_evaluation(tmp_path):
    for split, labels in (("train", [0, 1, 3]), ("val", [0, 1])):
        write_list(tmp_path, split, labels)
    config = not_given(make_config(1000, DATASET="list", DATA_PATH=tmp_path))
    train = build_dataset(config, "train")
    assert describe_classes(train) == "3 of 4 classes"
    config = settle_classes(config, train)
    assert build_dataset(config, "val").num_classes == 4
    config = dataclasses.replace(not_given(config), EVAL=True)
    assert build_dataset(config, "val").num_classes == 4


def test_labels_that_start_at_one_are_recognised(tmp_path):
    write_list(tmp_path, "train", [1, 2, 3])
    config = make_config(3, DATASET="list", DATA_PATH=tmp_path)
    with pytest.raises(UserError, match=r"train_list.txt:3: label 3 is outside 0..2 .*; labels start at 0"):
        build_dataset(config, "train")
    with pytest.raises(UserError, match="the smallest label is 1: labels start at 0; -num_classes=. keeps classes"):
        build_dataset(not_given(config), "train")


def test_names_of_the_classes_go_with_the_model_and_must_fit_it(photos, tmp_path_factory):
    config = not_given(make_config(DATASET="folder", DATA_PATH=photos))
    settled = settle_classes(config, build_dataset(config, "train"))
    assert settled.MODEL.CLASS_NAMES == ("cat", "dog", "owl")
    other = tmp_path_factory.mktemp("other")
    write_class_folders(other / "val", {"ant": 1, "bee": 1, "cow": 1})
    trained = dataclasses.replace(settled, EVAL=True, DATA=dataclasses.replace(settled.DATA, DATA_PATH=str(other)))
    with pytest.raises(UserError, match="ant: the training set has no class of this name"):
        build_dataset(trained, "val")
    training = not_given(dataclasses.replace(trained, EVAL=False))
    with pytest.raises(UserError, match="CLASS_NAMES: cat, dog, owl, but the classes of .* are ant, bee, cow"):
        settle_classes(settled, build_dataset(training, "val"))
    assert settle_classes(training, build_dataset(training, "val")).MODEL.CLASS_NAMES == ("ant", "bee", "cow")


def test_names_that_a_file_inherits_are_not_those_of_data_without_names(tmp_path):
    """A list's classes are numbers: a fresh training on them keeps no names of the data that its YAML was made for."""
    write_list(tmp_path, "train", [0, 1, 2])
    config = make_config(3, DATASET="list", DATA_PATH=tmp_path)
    named = dataclasses.replace(config, MODEL=dataclasses.replace(config.MODEL, CLASS_NAMES=("cat", "dog", "owl")))
    fresh = not_given(named)
    dataset = build_dataset(fresh, "train")
    assert settle_classes(fresh, dataset).MODEL.CLASS_NAMES == ()
    resumed = dataclasses.replace(fresh, MODEL=dataclasses.replace(fresh.MODEL, RESUME="output/run"))
    for trained in (dataclasses.replace(fresh, EVAL=True), resumed, named):
        assert settle_classes(trained, dataset).MODEL.CLASS_NAMES == ("cat", "dog", "owl")


def test_names_that_are_not_as_many_as_the_classes_are_one_line(tmp_path):
    """The tables of the last epoch would be the first to notice."""
    write_list(tmp_path, "train", [0, 1, 2])
    config = make_config(3, DATASET="list", DATA_PATH=tmp_path)
    named = dataclasses.replace(config, MODEL=dataclasses.replace(config.MODEL, CLASS_NAMES=("cat", "dog")))
    with pytest.raises(UserError, match="^MODEL.CLASS_NAMES: 2 names, but list at .* has 3 classes$"):
        settle_classes(named, build_dataset(named, "train"))


@pytest.mark.parametrize(("names", "given"), [("abc", "MODEL.CLASS_NAMES: 3 names"), ("", "MODEL.NUM_CLASSES: 3")])
@pytest.mark.parametrize("kind", ["list", "tar_shards", "imagenet_tfrecord"])
def test_label_beyond_the_classes_is_one_line_with_the_key_that_counts_them(tmp_path, kind, names, given):
    if kind == "list":
        write_list(tmp_path, "train", [0, 3])
    elif kind == "tar_shards":
        (tmp_path / "train-0.tar").write_bytes(tar_bytes({"0.jpg": encoded(photo(20, 20)), "0.cls": b"3"}))
    else:
        make_records(tmp_path, [3])
    config = make_config(3, DATASET=kind, DATA_PATH=tmp_path, BATCH_SIZE=1)
    config = dataclasses.replace(config, MODEL=dataclasses.replace(config.MODEL, CLASS_NAMES=tuple(names)))
    with pytest.raises(UserError, match=f"^[^\n]*label 3 is outside 0..2 \\({given}[^\n]*$"):
        list(build_train_loader(config))


def test_photographs_with_capital_endings_are_images(tmp_path):
    """As cameras write them."""
    for name in ("cat", "dog"):
        write_class_folders(tmp_path / name, {name: 1})
        (tmp_path / name / name / "image_0001.jpg").rename(tmp_path / name / "IMG_0001.JPG")
        (tmp_path / name / name).rmdir()
    assert list_images(tmp_path) == (["cat/IMG_0001.JPG", "dog/IMG_0001.JPG"], [])


def test_images_of_a_linked_folder_are_found_once_and_a_circle_ends(tmp_path):
    """As those of a class folder that is a link itself, and as torchvision finds them."""
    write_class_folders(tmp_path / "elsewhere", {"more": 2})
    write_class_folders(tmp_path / "photos", {"cat": 1, "dog": 1})
    (tmp_path / "photos" / "cat" / "linked").symlink_to(tmp_path / "elsewhere" / "more")
    (tmp_path / "photos" / "cat" / "circle").symlink_to(tmp_path / "photos")
    (tmp_path / "elsewhere" / "more" / "again").symlink_to(tmp_path / "elsewhere" / "more")
    (tmp_path / "photos" / "cat" / "twice").symlink_to(tmp_path / "elsewhere" / "more")
    found, others = list_images(tmp_path / "photos" / "cat")
    assert found == ["image_0001.jpg", "linked/image_0001.jpg", "linked/image_0002.jpg"] and not others


def test_files_that_are_no_images_by_their_names_are_counted(photos, caplog):
    build_dataset(make_config(3, DATASET="folder", DATA_PATH=photos), "train")
    assert not caplog.text
    for name in ("a.heic", "notes.txt", ".hidden"):
        (photos / "train" / "dog" / name).write_text("")
    build_dataset(make_config(3, DATASET="folder", DATA_PATH=photos), "train")
    assert "2 files are no images by their names: " in caplog.text


def test_evaluation_folders_without_every_class_keep_the_models_numbers(photos, tmp_path_factory):
    config = not_given(make_config(DATASET="folder", DATA_PATH=photos))
    settled = settle_classes(config, build_dataset(config, "train"))
    other = tmp_path_factory.mktemp("other")
    write_class_folders(other / "val", {"cat": 1, "owl": 2})
    trained = dataclasses.replace(settled, EVAL=True, DATA=dataclasses.replace(settled.DATA, DATA_PATH=str(other)))
    assert build_dataset(not_given(trained), "val").labels.tolist() == [0, 2, 2]
