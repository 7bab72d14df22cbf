"""Loaders: order, sharding, workers, errors."""

import os
import resource
import signal
import subprocess
import sys
import threading
import time

import cv2
import numpy as np
import pytest

from image_classification.config import build_config
from image_classification.data import build_eval_loader, build_train_loader
from image_classification.data.datasets import ArrayDataset, FileDataset
from image_classification.data.loader import Loader
from image_classification.data.normalize import Normalize
from image_classification.data.sampler import sample_rng, train_order
from image_classification.data.samples import SampleMaker
from image_classification.data.transforms import EvalTransform, TrainTransform
from image_classification.data.workers import WorkerPool
from image_classification.runtime import UserError
from tests.helpers.data_samples import encoded, photo
from tests.helpers.model_zoo import ROOT


def make_config(model=None, seed=0, **data):
    layers = {"DATA": data, "MODEL": {"NUM_CLASSES": 10, **(model or {})}, "SEED": seed}
    return build_config([("test", layers)])


def digits_config(**data):
    defaults = {"DATASET": "digits", "IMAGE_SIZE": 32, "BATCH_SIZE": 64, "NUM_WORKERS": 0}
    return make_config(**{**defaults, **data})


@pytest.fixture(scope="module")
def jpeg_folder(tmp_path_factory):
    """Class folders train/ (3 x 7) and val/ (3 x 5) of small JPEGs of different sizes."""
    root = tmp_path_factory.mktemp("images")
    generator = np.random.default_rng(0)
    for split, count in (("train", 7), ("val", 5)):
        for name in ("ant", "bee", "cat"):
            folder = root / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                height, width = generator.integers(40, 80, 2)
                image = cv2.resize(generator.integers(0, 256, (6, 6, 3), dtype=np.uint8), (int(width), int(height)))
                cv2.imwrite(str(folder / f"{number}.JPEG"), image)
    return root


def folder_config(root, **data):
    defaults = {"DATASET": "imagenet2012", "IMAGE_SIZE": 32, "BATCH_SIZE": 4, "BATCH_SIZE_EVAL": 4, "NUM_WORKERS": 0}
    return make_config({"NUM_CLASSES": 3}, **{**defaults, "DATA_PATH": str(root), **data})


def batches_of(loader, epoch=0, start=0):
    loader.set_epoch(epoch)
    batches = list(loader.iterate(start))
    loader.close()
    return batches


def assert_same(left, right):
    assert len(left) == len(right)
    for (images, labels), (other_images, other_labels) in zip(left, right, strict=True):
        np.testing.assert_array_equal(images, other_images)
        np.testing.assert_array_equal(labels, other_labels)


def test_digits_split_is_stratified_fixed_and_complete():
    train = build_train_loader(digits_config()).dataset
    val = build_eval_loader(digits_config()).dataset
    assert (len(train), len(val), train.num_classes) == (1437, 360, 10)
    share = np.bincount(val.labels) / (np.bincount(val.labels) + np.bincount(train.labels))
    assert np.all(np.abs(share - 0.2) < 0.005)
    assert val.images.shape == (360, 32, 32, 3) and val.images.dtype == np.uint8
    # Written down once: a changed split would make results of different versions incomparable.
    assert val.labels[:8].tolist() == [3, 7, 3, 9, 0, 8, 7, 0]
    assert int(val.images.astype(np.int64).sum()) == 86595039


def test_batch_contract_float32_nchw_int64():
    images, labels = next(iter(build_train_loader(digits_config())))
    assert images.dtype == np.float32 and images.shape == (64, 3, 32, 32)
    assert labels.dtype == np.int64 and labels.shape == (64,)


def test_normalize_equals_definition():
    pixels = np.random.default_rng(0).integers(0, 256, (2, 3, 5, 5), dtype=np.uint8)
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    shape = (1, 3, 1, 1)
    expected = (pixels / 255.0 - np.reshape(mean, shape)) / np.reshape(std, shape)
    # float32: values up to 2.7, two roundings
    np.testing.assert_allclose(Normalize(mean, std)(pixels), expected, atol=5e-7)


@pytest.mark.parametrize("num_workers", [1, 3, 8])
def test_batches_with_workers_equal_those_without(jpeg_folder, num_workers):
    alone = build_train_loader(folder_config(jpeg_folder))
    helped = build_train_loader(folder_config(jpeg_folder, NUM_WORKERS=num_workers))
    assert_same(batches_of(alone, epoch=3), batches_of(helped, epoch=3))
    assert_same(
        batches_of(build_eval_loader(folder_config(jpeg_folder))),
        batches_of(build_eval_loader(folder_config(jpeg_folder, NUM_WORKERS=num_workers))),
    )


@pytest.mark.parametrize("megabytes", [0, 1])  # less than a batch takes; less than the images of the digits
def test_limit_of_file_sizes_below_the_memory_of_workers_is_one_line(megabytes):
    loader = build_train_loader(digits_config(NUM_WORKERS=2, BATCH_SIZE=8))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (megabytes << 20, before[1]))
    try:
        with pytest.raises(UserError, match="^ulimit -f: .*DATA.NUM_WORKERS=0 needs none"):
            next(iter(loader))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        loader.close()


def test_epochs_and_seeds_give_different_batches(jpeg_folder):
    first = batches_of(build_train_loader(folder_config(jpeg_folder)), epoch=0)
    second = batches_of(build_train_loader(folder_config(jpeg_folder)), epoch=1)
    assert not np.array_equal(first[0][0], second[0][0])
    layers = {"DATA": {"DATASET": "digits", "IMAGE_SIZE": 32, "BATCH_SIZE": 64}, "MODEL": {"NUM_CLASSES": 10}}
    orders = [
        next(iter(build_train_loader(build_config([("test", {**layers, "SEED": seed})]))))[1].tolist()
        for seed in (0, 1)
    ]
    assert orders[0] != orders[1]


def test_epochs_and_seeds_augment_an_image_differently():
    """One image that is the whole data set: all that can differ is its crop."""
    image = photo(90, 90)
    maker = SampleMaker(ArrayDataset("one", image[None], np.zeros(1, int), ["0"]), TrainTransform(16), 1, seed=0)
    made = {}
    for seed, epoch, repeat in [(0, 0, 0), (0, 1, 0), (1, 0, 0), (0, 0, 1), (0, 0, 0)]:
        maker.seed, out = seed, np.empty((3, 16, 16), np.uint8)
        maker.make(epoch, 0, repeat, out, None)
        made.setdefault(out.tobytes(), []).append((seed, epoch, repeat))
    assert sorted(map(len, made.values())) == [1, 1, 1, 2]  # the same three numbers give the same pixels


@pytest.mark.parametrize("num_workers", [0, 2])
def test_start_batch_continues_the_epoch_without_reading_what_is_before(jpeg_folder, num_workers, monkeypatch):
    whole = batches_of(build_train_loader(folder_config(jpeg_folder)), epoch=2)
    loader = build_train_loader(folder_config(jpeg_folder, NUM_WORKERS=num_workers))
    read = []
    original = loader.dataset.read
    if num_workers == 0:
        monkeypatch.setattr(loader.dataset, "read", lambda index: read.append(index) or original(index))
    assert_same(whole[3:], batches_of(loader, epoch=2, start=3))
    if num_workers == 0:
        assert len(read) == 4 * (len(whole) - 3)


def test_training_ranks_share_the_global_batches_exactly(jpeg_folder):
    alone = batches_of(build_train_loader(folder_config(jpeg_folder, BATCH_SIZE=4)))
    ranks = [batches_of(build_train_loader(folder_config(jpeg_folder, BATCH_SIZE=2), r, 2)) for r in range(2)]
    assert len(alone) == len(ranks[0]) == len(ranks[1]) == 5  # 21 images: the last one is dropped
    for number, (images, labels) in enumerate(alone):
        parts = [rank[number] for rank in ranks]
        np.testing.assert_array_equal(images, np.stack([p[0] for p in parts], 1).reshape(images.shape))
        np.testing.assert_array_equal(labels, np.stack([p[1] for p in parts], 1).reshape(-1))


@pytest.mark.parametrize("world_size", [1, 2, 4, 16])
def test_evaluation_visits_each_image_once_over_all_ranks(jpeg_folder, world_size):
    expected = batches_of(build_eval_loader(folder_config(jpeg_folder)))
    expected = np.concatenate([images for images, _ in expected])
    got = np.zeros_like(expected)
    visits = 0
    for rank in range(world_size):
        loader = build_eval_loader(folder_config(jpeg_folder), rank, world_size)
        images = [images for images, _ in batches_of(loader)]
        assert len(images) == len(loader)
        count = sum(map(len, images))
        assert count == loader.num_images
        if count:
            got[rank::world_size] = np.concatenate(images)
        visits += count
    assert visits == 15
    np.testing.assert_array_equal(got, expected)


def test_abandoned_iteration_does_not_disturb_the_next(jpeg_folder):
    expected = batches_of(build_train_loader(folder_config(jpeg_folder)), epoch=1)
    loader = build_train_loader(folder_config(jpeg_folder, NUM_WORKERS=2))
    for _ in range(3):
        next(iter(loader))
    assert_same(expected, batches_of(loader, epoch=1))


def test_second_iteration_of_a_loader_ends_the_first(jpeg_folder):
    loader = build_train_loader(folder_config(jpeg_folder, NUM_WORKERS=1))
    first, second = iter(loader), iter(loader)
    next(first)
    next(second)
    with pytest.raises(RuntimeError, match="another iteration"):
        next(first)
    loader.close()


def test_arrays_given_out_stay_as_they_were(jpeg_folder):
    loader = build_train_loader(folder_config(jpeg_folder, NUM_WORKERS=1, PREFETCH=1))
    kept, copies = [], []
    for images, labels in loader:
        kept.append((images, labels))
        copies.append((images.copy(), labels.copy()))
    loader.close()
    assert_same(kept, copies)


def test_list_files_give_the_same_images_as_folders(jpeg_folder, tmp_path):
    for split in ("train", "val"):
        (tmp_path / split).symlink_to(jpeg_folder / split)
        names = sorted((jpeg_folder / split).glob("*/*"))
        lines = [f"{split}/{p.parent.name}/{p.name} {['ant', 'bee', 'cat'].index(p.parent.name)}" for p in names]
        (tmp_path / f"{split}_list.txt").write_text("\n".join(lines) + "\n")
    assert_same(
        batches_of(build_train_loader(folder_config(jpeg_folder))),
        batches_of(build_train_loader(folder_config(tmp_path))),
    )


def test_workers_do_not_import_paddle(jpeg_folder):
    code = "import sys, image_classification.data; sys.exit('paddle' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


# ---- what users get wrong


def error_of(function, *arguments):
    with pytest.raises(UserError) as caught:
        function(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_missing_data_path_is_named(tmp_path):
    assert str(tmp_path / "none") in error_of(build_train_loader, folder_config(tmp_path / "none"))
    assert "neither train_list.txt nor a folder train/" in error_of(build_train_loader, folder_config(tmp_path))


@pytest.mark.parametrize("data_set", ["imagenet2012", "folder"])
@pytest.mark.parametrize(("train", "val"), [
    ("train", "validation"), ("train", "valid"), ("train", "test"), ("training", "val"), ("Training", "Val"),
])  # fmt: skip
def test_split_folder_of_another_name_is_found_and_named(jpeg_folder, tmp_path, data_set, train, val):
    (tmp_path / train).symlink_to(jpeg_folder / "train")
    (tmp_path / val).symlink_to(jpeg_folder / "val")
    config = make_config(DATASET=data_set, DATA_PATH=str(tmp_path), BATCH_SIZE=2)
    for split, name, build in (("train", train, build_train_loader), ("val", val, build_eval_loader)):
        if name == split:
            build(config).close()
        else:
            assert f"is it {name}/? rename it, or link it as {split}" in error_of(build, config)


def test_validation_folder_comes_before_one_for_tests(jpeg_folder, tmp_path):
    for name in ("test", "valid", "train"):
        (tmp_path / name).symlink_to(jpeg_folder / "train")
    assert "is it valid/?" in error_of(build_eval_loader, folder_config(tmp_path))


def test_empty_class_folder_is_named(tmp_path):
    (tmp_path / "train" / "empty").mkdir(parents=True)
    assert "empty: class folder has no images" in error_of(build_train_loader, folder_config(tmp_path))
    (tmp_path / "val").mkdir()
    assert "has no class folders, such as" in error_of(build_eval_loader, folder_config(tmp_path))


def test_training_folders_number_the_classes_of_an_evaluation_set_with_fewer(jpeg_folder, tmp_path):
    (tmp_path / "train").symlink_to(jpeg_folder / "train")
    (tmp_path / "val").mkdir()
    (tmp_path / "val" / "cat").symlink_to(jpeg_folder / "val" / "cat")
    assert build_eval_loader(folder_config(tmp_path)).dataset.labels.tolist() == [2] * 5


def test_class_unknown_to_the_training_set_is_an_error(jpeg_folder, tmp_path):
    (tmp_path / "train").symlink_to(jpeg_folder / "train")
    (tmp_path / "val" / "dog").mkdir(parents=True)
    assert "val/dog" in error_of(build_eval_loader, folder_config(tmp_path))


def test_more_classes_than_the_model_has_are_named(jpeg_folder):
    config = make_config({"NUM_CLASSES": 2}, DATASET="imagenet2012", DATA_PATH=str(jpeg_folder), BATCH_SIZE=2)
    assert "NUM_CLASSES: 2, but imagenet2012" in error_of(build_train_loader, config)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [("a.jpg", "not 'path label'"), ("a.jpg x", "not 'path label'"), ("a.jpg 3", "outside 0..2"), ("a -1", "outside")],
)
def test_bad_line_of_a_list_file_is_named(tmp_path, line, complaint):
    (tmp_path / "train_list.txt").write_text(f"ok.jpg 0\n\nwith space.jpg\t1\n{line}\n")
    message = error_of(build_train_loader, folder_config(tmp_path))
    assert f"{tmp_path}/train_list.txt:4: " in message and complaint in message


def test_batch_larger_than_the_data_set_is_an_error():
    message = error_of(lambda: build_train_loader(digits_config(BATCH_SIZE=500), 0, 3))
    assert "500 images x 3 processes" in message


def test_mean_of_the_wrong_length_is_an_error():
    assert "IMAGENET_MEAN: has 3 values" in error_of(build_train_loader, digits_config(IMAGE_CHANNELS=1))


@pytest.fixture
def broken_folder(jpeg_folder, tmp_path):
    """val/ with one cut JPEG and one text file that says it is a JPEG, among 15 images; train/ likewise."""
    for path in sorted(jpeg_folder.glob("*/*/*")):
        copy = tmp_path / path.relative_to(jpeg_folder)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    for split in ("train", "val"):
        cut = tmp_path / split / "bee" / "2.JPEG"
        cut.write_bytes(cut.read_bytes()[:-200])
        (tmp_path / split / "cat" / "0.JPEG").write_text("not an image")
    return tmp_path


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("library", ["cv2", "pil"])
def test_corrupt_image_is_named(broken_folder, num_workers, library):
    config = folder_config(broken_folder, NUM_WORKERS=num_workers, RESIZE_LIBRARY=library)
    message = error_of(batches_of, build_eval_loader(config))
    assert "bee/2.JPEG: corrupt image" in message or "cat/0.JPEG: corrupt image" in message
    assert "DATA.SKIP_CORRUPT" in message


@pytest.mark.parametrize("num_workers", [0, 2])
def test_corrupt_images_are_skipped_and_counted_when_asked(broken_folder, jpeg_folder, num_workers):
    config = folder_config(broken_folder, NUM_WORKERS=num_workers, SKIP_CORRUPT=True)
    loader = build_eval_loader(config)
    labels = np.concatenate([labels for _, labels in batches_of(loader)])
    assert labels.tolist() == [0] * 5 + [1] * 4 + [2] * 4
    assert loader.skipped_images == 2
    loader = build_train_loader(config)
    assert [len(labels) for _, labels in batches_of(loader)] == [4] * 5  # replaced, so that batches stay full
    assert loader.skipped_images in (1, 2)  # one of the 21 images is dropped


@pytest.mark.parametrize("kind", ["link", "fifo"])
@pytest.mark.parametrize("count", [5, 200])
def test_image_without_a_file_is_named_before_any_is_read_or_skipped_and_counted(jpeg_folder, tmp_path, kind, count):
    for name in ("ant", "cat", "dog"):
        (tmp_path / "train" / name).mkdir(parents=True)
        for number in range(count):
            (tmp_path / "train" / name / f"{number}.jpg").symlink_to(jpeg_folder / "train" / "cat" / "0.JPEG")
    broken = tmp_path / "train" / "dog" / "2.jpg"
    broken.unlink()
    os.mkfifo(broken) if kind == "fifo" else broken.symlink_to("gone.jpg")
    (tmp_path / "val").symlink_to("train")
    options = {"NUM_WORKERS": 0, "DATASET": "folder"}
    message = error_of(build_train_loader, folder_config(tmp_path, **options))
    assert f"train: 1 of its {3 * count} images are broken links or no files, the first is {broken};" in message
    assert "DATA.SKIP_CORRUPT=True" in message and "\n" not in message
    loader = build_eval_loader(folder_config(tmp_path, SKIP_CORRUPT=True, **options))
    assert sum(len(labels) for _, labels in batches_of(loader)) == 3 * count - 1
    assert loader.skipped_images == 1


class SabotagedDataset:
    """Reads pixels; at image 5 the worker kills itself, hangs, or raises; or each image takes 0.1 s."""

    in_memory, num_classes, class_names, labels = True, 1, ["x"], None

    def __init__(self, how):
        self.how = how

    def __len__(self):
        return 16

    def read(self, index):
        if index == 5:
            if self.how == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.how == "hangs":
                time.sleep(60)
            if self.how == "raises":
                raise KeyError("a bug")
        if self.how == "is slow":
            time.sleep(0.1)
        return np.zeros((4, 4, 3), np.uint8), 0

    def describe(self, index):
        return f"file {index}"


def keep(content, rng):
    return content


@pytest.mark.parametrize(
    ("how", "kind", "text"),
    [
        ("dies", UserError, "killed by signal 9; perhaps the machine ran out of memory; last file: file 5"),
        ("hangs", UserError, r"no progress for 2 s \(DATA.WORKER_TIMEOUT\); last file: file 5"),
        ("raises", RuntimeError, "failed at file 5"),
    ],
)
def test_worker_in_trouble_is_reported_with_its_last_file(how, kind, text):
    order = np.stack([np.arange(16), np.zeros(16, int)], 1)
    maker = SampleMaker(SabotagedDataset(how), keep, 1, 0)
    seconds = 2 if how == "hangs" else 60
    loader = Loader(
        maker, lambda epoch: order, 4, Normalize([0], [1]), (3, 4, 4), num_workers=2, timeout_seconds=seconds
    )
    start = time.monotonic()
    with pytest.raises(kind, match=text):
        list(loader)
    assert time.monotonic() - start < 100
    loader.close()


def test_workers_that_cannot_be_started_are_one_line(monkeypatch):
    """At a limit of open files, processes or memory."""
    order = np.stack([np.arange(16), np.zeros(16, int)], 1)
    maker = SampleMaker(SabotagedDataset("is sound"), keep, 1, 0)
    loader = Loader(maker, lambda epoch: order, 4, Normalize([0], [1]), (3, 4, 4), num_workers=2)
    start, started = subprocess.Popen, []

    def first_alone(*args, **kwargs):
        if started:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        started.append(start(*args, **kwargs))
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", first_alone)
    with pytest.raises(UserError, match="^DATA.NUM_WORKERS: 2: not all can be started: Resource temporarily unavail"):
        next(iter(loader))
    started[0].wait(10)  # which does not wait for batches that nobody will ask for


def test_interrupt_does_not_wait_for_a_worker_that_hangs():
    order = np.stack([np.arange(16), np.zeros(16, int)], 1)
    maker = SampleMaker(SabotagedDataset("hangs"), keep, 1, 0)
    loader = Loader(maker, lambda epoch: order, 4, Normalize([0], [1]), (3, 4, 4), num_workers=1, timeout_seconds=50)
    batches = iter(loader)
    next(batches)
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        list(batches)
    assert time.monotonic() - start < 30  # two seconds on an idle machine


@pytest.mark.parametrize("moment", ["before", "asked", "not asked"])
def test_run_that_is_to_stop_does_not_wait_long_for_a_worker_that_hangs(moment, monkeypatch):
    """A scheduler kills what does not end, and a run that waits has not saved yet."""
    monkeypatch.setattr("image_classification.data.workers.STOP_SECONDS", 1.0)
    order = np.stack([np.arange(16), np.zeros(16, int)], 1)
    maker = SampleMaker(SabotagedDataset("hangs"), keep, 1, 0)
    loader = Loader(maker, lambda epoch: order, 4, Normalize([0], [1]), (3, 4, 4), num_workers=1, timeout_seconds=100)
    batches = iter(loader)
    if moment == "before":
        loader.hurry()
    next(batches)
    start = time.monotonic()
    if moment == "not asked":  # for the batch that hangs
        batches.close()
    else:
        if moment == "asked":
            threading.Timer(0.2, loader.hurry).start()
        with pytest.raises(UserError, match=r"^data worker 0 made no progress for 1 s \(the run is to stop\)"):
            list(batches)
    assert time.monotonic() - start < 30  # four to eight seconds on an idle machine


@pytest.mark.parametrize("moment", ["starts", "works"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_worker_hears_no_signal_that_reaches_the_whole_group(number, moment, monkeypatch, capfd):
    """The training process decides: it ends after the running step, for which it needs the worker."""
    order = np.stack([np.arange(16), np.zeros(16, int)], 1)
    maker = SampleMaker(SabotagedDataset("is sound"), keep, 1, 0)
    loader = Loader(maker, lambda epoch: order, 4, Normalize([0], [1]), (3, 4, 4), num_workers=1)
    start = WorkerPool._start

    def start_and_send(pool, *arguments):
        start(pool, *arguments)
        pool._processes[0].send_signal(number)

    if moment == "starts":
        monkeypatch.setattr(WorkerPool, "_start", start_and_send)
    batches = iter(loader)
    next(batches)
    loader._pool._processes[0].send_signal(number)
    assert len(list(batches)) == 3
    loader.close()
    assert "Traceback" not in capfd.readouterr().err


def test_abandoned_work_is_dropped_not_finished():
    order = np.stack([np.arange(16), np.zeros(16, int)], 1)
    maker = SampleMaker(SabotagedDataset("is slow"), keep, 1, 0)
    loader = Loader(maker, lambda epoch: order, 4, Normalize([0], [1]), (3, 4, 4), num_workers=1, prefetch=3)
    next(iter(loader))  # all four batches were queued, the second one is waited for
    loader._pool.new_generation()
    assert loader._pool.memory.status[:, 0].sum() < 12
    loader.close()


def test_workers_end_when_the_training_process_is_killed(jpeg_folder):
    code = (
        f"import sys, time; sys.path.insert(0, {str(ROOT)!r})\n"
        "from tests.data.test_loader import folder_config, build_train_loader\n"
        f"loader = build_train_loader(folder_config({str(jpeg_folder)!r}, NUM_WORKERS=2)); next(iter(loader))\n"
        "print(*[p.pid for p in loader._pool._processes], flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        workers = [int(number) for number in process.stdout.readline().split()]
        process.kill()
    assert len(workers) == 2
    deadline = time.monotonic() + 60
    while any(_runs(pid) for pid in workers):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _runs(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("channels", [2, 4])
def test_pictures_of_two_or_four_channels_are_refused_and_synthetic_ones_are_not(channels):
    values = [0.5] * channels
    data = {"IMAGE_CHANNELS": channels, "IMAGENET_MEAN": values, "IMAGENET_STD": values, "NUM_WORKERS": 0}
    for build in (build_train_loader, build_eval_loader):
        with pytest.raises(UserError, match=f"DATA.IMAGE_CHANNELS: expected 1 .grey. or 3 .RGB., .*, found {channels}"):
            build(make_config(DATASET="digits", IMAGE_SIZE=32, BATCH_SIZE=4, **data))
        images, _ = next(iter(build(make_config(DATASET="synthetic", IMAGE_SIZE=8, BATCH_SIZE=4, **data))))
        assert images.shape == (4, channels, 8, 8)


def test_evaluation_of_no_image_is_refused():
    nothing = ArrayDataset("nothing", np.zeros((0, 8, 8, 3), np.uint8), [], ["a", "b"])
    with pytest.raises(UserError, match="DATA.DATA_PATH: list at /lists has no image for the evaluation"):
        build_eval_loader(make_config(DATASET="list", DATA_PATH="/lists"), dataset=nothing)


@pytest.mark.parametrize("num_images", [12, 17, 23])
def test_all_ranks_have_the_same_number_of_full_batches_whatever_is_left_over(num_images):
    """A rank with one batch more would wait for the others in its collective."""
    for epoch in range(2):
        shares = [train_order(num_images, 5, epoch, 2, rank, 3) for rank in range(3)]
        assert [len(share) for share in shares] == [num_images // 6 * 2] * 3
        assert len({image for share in shares for image, _ in share.tolist()}) == num_images // 6 * 6


def test_order_of_an_epoch_has_a_generator_of_its_own():
    """Not that of its first image, whose crop would follow from where the images stand."""
    assert not np.array_equal(train_order(50, 5, 0, 1)[:, 0], sample_rng(5, 0, 0).permutation(50))


def test_corrupt_images_at_the_end_are_replaced_by_the_first_and_each_is_named(tmp_path):
    (tmp_path / "one.png").write_bytes(encoded(photo(8, 8), "PNG"))
    for name in ("two.png", "three.png"):
        (tmp_path / name).write_bytes(b"no image")
    dataset, skipped = FileDataset(tmp_path, ["one.png", "two.png", "three.png"], [3, 4, 4], range(5)), []
    maker = SampleMaker(dataset, EvalTransform(8, 3, 1.0), 5, 0, skip_corrupt=True, replace_corrupt=True)
    assert maker.make(0, 1, 0, np.empty((3, 8, 8), np.uint8), lambda index, reason: skipped.append(index)) == 3
    assert skipped == [1, 2]


def test_evaluation_has_its_own_batch_size():
    data = {"DATASET": "digits", "BATCH_SIZE": 16, "BATCH_SIZE_EVAL": 100, "IMAGE_CHANNELS": 1, "IMAGE_SIZE": 8}
    data |= {"IMAGENET_MEAN": [0.5], "IMAGENET_STD": [0.5]}
    loader = build_eval_loader(build_config([("test", {"DATA": data, "MODEL": {"NUM_CLASSES": 10}})]))
    assert [len(labels) for _, labels in loader] == [100, 100, 100, 60]


def test_workers_are_shared_among_the_processes_of_this_host_not_of_all(monkeypatch):
    """A thousand processes on a thousand hosts have the cores of a host each, on one host together."""
    config, cores = digits_config(NUM_WORKERS=None, IMAGE_SIZE=96), len(os.sched_getaffinity(0))
    found = []
    for local_size in ("1", "1000"):
        monkeypatch.setenv("PADDLE_LOCAL_SIZE", local_size)
        found.append(build_eval_loader(config, world_size=1000).num_workers)
    monkeypatch.delenv("PADDLE_LOCAL_SIZE")  # nobody says how many are here: all of them
    found += [build_eval_loader(config, world_size=world_size).num_workers for world_size in (1, 1000)]
    assert found == [min(8, cores), 1, min(8, cores), 1]
