"""DALI behind the loader's interface; all but the refusals need nvidia-dali-cuda120 (its CPU pipeline, no GPU)."""

import numpy as np
import pytest

from image_classification.data import build_eval_loader, build_train_loader
from image_classification.data.tfrecord import frame, index_text, scan_records, serialize_example
from image_classification.runtime import UserError
from tests.helpers.data_samples import encoded, make_config, photo, write_class_folders


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("images")
    for split in ("train", "val"):
        write_class_folders(root / split, {"a": 6, "b": 5}, size=60)
    (root / "val" / "b" / "image_0005.jpg").write_bytes(encoded(photo(50, 70), "PNG"))
    return root


def batches_of(loader, epoch=0, start=0):
    loader.set_epoch(epoch)
    batches = [(np.array(images), labels) for images, labels in loader.iterate(start)]
    loader.close()
    return batches


def config_of(folder, **data):
    return make_config(2, DATASET="folder", DATA_PATH=folder, SCALED_DECODE=False, **data)


def both(builder, folder, epoch=0, **data):
    return [batches_of(builder(config_of(folder, LOADER=name, **data)), epoch) for name in ("workers", "dali")]


def test_dali_gives_the_images_of_the_workers(folder):
    pytest.importorskip("nvidia.dali")
    for builder in (build_train_loader, build_eval_loader):
        ours, dali = both(builder, folder, epoch=1)
        assert len(ours) == len(dali)
        for (images, labels), (other_images, other_labels) in zip(ours, dali, strict=True):
            np.testing.assert_array_equal(labels, other_labels)
            assert other_images.dtype == np.float32 and other_images.shape == images.shape
            # one grey level is 0.008; decoders and resizes round differently, a crop shifted by a pixel gives 0.1
            assert np.abs(images - other_images).mean() < 0.02


def test_dali_is_deterministic_and_resumes_in_mid_epoch(folder):
    pytest.importorskip("nvidia.dali")
    loader = build_train_loader(config_of(folder, LOADER="dali", BATCH_SIZE=3))
    whole = batches_of(loader, epoch=2)
    next(iter(loader))  # abandoned
    for (images, labels), (other_images, other_labels) in zip(whole[1:], batches_of(loader, 2, 1), strict=True):
        np.testing.assert_array_equal(images, other_images)
        np.testing.assert_array_equal(labels, other_labels)
    assert not np.array_equal(whole[0][0], batches_of(loader, epoch=3)[0][0])


def test_dali_batch_survives_those_after_it(folder):
    pytest.importorskip("nvidia.dali")
    loader = build_train_loader(config_of(folder, LOADER="dali", BATCH_SIZE=3))
    kept = [images for images, _ in loader]  # the pipeline has one buffer and has used it again
    for images, (copied, _) in zip(kept, batches_of(loader), strict=True):
        assert isinstance(images, np.ndarray) and images.flags.writeable  # Mixup works in place
        np.testing.assert_array_equal(images, copied)


def test_dali_hands_over_to_paddle_the_same_pixels(folder, monkeypatch):
    """The form for a GPU, on the CPU's tensors: it shows the calls, not that a GPU computes them."""
    pytest.importorskip("nvidia.dali")
    import paddle

    from image_classification.data import dali

    loader = build_train_loader(config_of(folder, LOADER="dali", BATCH_SIZE=3))
    usual = batches_of(loader)
    copy = dali._copy_by_dlpack
    monkeypatch.setattr(dali, "_copy_by_dlpack", lambda tensor, on_gpu: copy(tensor, True))
    monkeypatch.setattr(paddle.device, "synchronize", lambda: None)
    kept = [images for images, _ in loader]
    for images, (expected, _) in zip(kept, usual, strict=True):
        assert isinstance(images, paddle.Tensor)
        np.testing.assert_array_equal(images.numpy(), expected)


def test_dali_shares_the_evaluation_exactly(folder):
    pytest.importorskip("nvidia.dali")
    counts = [sum(len(labels) for _, labels in batches_of(build_eval_loader(config_of(folder, LOADER="dali"), rank, 2)))
              for rank in range(2)]  # fmt: skip
    assert counts == [6, 5]


def test_dali_decodes_tfrecords_too(folder, tmp_path):
    pytest.importorskip("nvidia.dali")
    contents = [encoded(photo(50, 60, seed=number)) for number in range(5)]
    (tmp_path / "train").mkdir()
    examples = [{"image/encoded": content, "image/class/label": 1 + n % 2} for n, content in enumerate(contents)]
    records = b"".join(frame(serialize_example(example)) for example in examples)
    (tmp_path / "train" / "train-00000-of-00001").write_bytes(records)
    data = {"DATASET": "imagenet_tfrecord", "DATA_PATH": tmp_path, "SCALED_DECODE": False}
    (ours,), (dali,) = [
        batches_of(build_train_loader(make_config(2, LOADER=name, **data))) for name in ("workers", "dali")
    ]
    np.testing.assert_array_equal(ours[1], dali[1])
    assert np.abs(ours[0] - dali[0]).mean() < 0.02


def test_dali_names_a_corrupt_image(tmp_path):
    pytest.importorskip("nvidia.dali")
    write_class_folders(tmp_path / "train", {"a": 4, "b": 4})
    path = tmp_path / "train" / "a" / "image_0002.jpg"
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(UserError, match="a/image_0002.jpg: corrupt image"):
        batches_of(build_train_loader(config_of(tmp_path, LOADER="dali")))


def test_dali_reads_our_record_files_by_itself(tmp_path):
    pytest.importorskip("nvidia.dali")
    from nvidia.dali import fn, pipeline_def, tfrecord, types

    contents = [encoded(photo(20, 24, seed=number)) for number in range(5)]
    path, index = tmp_path / "records", tmp_path / "records.idx"
    examples = [{"image/encoded": content, "image/class/label": 300 * n} for n, content in enumerate(contents)]
    path.write_bytes(b"".join(frame(serialize_example(example)) for example in examples))
    index.write_text(index_text(scan_records(path).tolist()))

    @pipeline_def(batch_size=5, num_threads=1, device_id=None)
    def graph():
        features = {
            "image/encoded": tfrecord.FixedLenFeature((), tfrecord.string, ""),
            "image/class/label": tfrecord.FixedLenFeature([1], tfrecord.int64, -1),
        }
        read = fn.readers.tfrecord(path=[str(path)], index_path=[str(index)], features=features)
        return fn.decoders.image(read["image/encoded"], output_type=types.RGB), read["image/class/label"]

    pipeline = graph()
    pipeline.build()
    images, labels = pipeline.run()
    assert labels.as_array().ravel().tolist() == [0, 300, 600, 900, 1200]
    assert images.at(4).shape == (20, 24, 3)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"DATASET": "digits"}, "pixels in memory"),
        ({"SKIP_CORRUPT": True}, "SKIP_CORRUPT needs workers"),
        ({"TRAIN_CROP": "pad"}, "no DATA.TRAIN_CROP=pad"),
        ({"EXIF_ORIENTATION": True}, "EXIF_ORIENTATION needs workers"),
    ],
)
def test_what_dali_cannot_do_is_an_error(folder, options, complaint, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "nvidia.dali", object())
    monkeypatch.setitem(__import__("sys").modules, "nvidia", object())
    data = {"DATASET": "folder", "DATA_PATH": folder, "LOADER": "dali", **options}
    with pytest.raises(UserError, match=complaint):
        build_train_loader(make_config(10, **data))


def test_missing_dali_is_named(folder, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "nvidia.dali", None)
    with pytest.raises(UserError, match="nvidia-dali-cuda120, which is not installed"):
        build_train_loader(config_of(folder, LOADER="dali"))
