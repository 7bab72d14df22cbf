"""A whole training run on image files with worker processes: killed and resumed, it ends like one that was not."""

import signal
import time

from image_classification import checkpoint
from tests.helpers.data_samples import write_class_folders
from tests.helpers.entry import SMALL_VIT, run_well, start

PATIENCE_SECONDS = 100


def wait_for_a_checkpoint(process, path, known):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not path.exists() or path.stat().st_mtime_ns == known:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "no checkpoint was written"
        time.sleep(0.02)


def test_run_with_workers_killed_in_mid_epoch_ends_with_the_same_bits(tmp_path):
    for split, count in (("train", 40), ("val", 8)):
        write_class_folders(tmp_path / "images" / split, {"ant": count, "bee": count})
    settings = [
        *SMALL_VIT,
        "DATA.DATASET=folder",
        f"DATA.DATA_PATH={tmp_path / 'images'}",
        "DATA.BATCH_SIZE=4",
        "DATA.NUM_WORKERS=2",
        "MODEL.NUM_CLASSES=2",
        "MODEL.DROPOUT=0.1",
        "TRAIN.RAND_AUGMENT=True",
        "SAVE_STEPS=3",
        "TRAIN.NUM_EPOCHS=2",
        "-deterministic",
    ]
    run_well(*settings, "-output", tmp_path / "straight")
    broken = tmp_path / "broken"
    latest = broken / "latest.pdparams"
    process = start(*settings, "-output", broken)
    wait_for_a_checkpoint(process, latest, None)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    progress = checkpoint.load(latest)["progress"]
    assert progress["epoch"] < 2, "it was over before the kill"
    out = run_well(*settings, "-output", broken, "-resume", latest)
    assert "resumed from" in out and "2 workers" in out
    straight, resumed = (checkpoint.load(tmp_path / name / "latest.pdparams") for name in ("straight", "broken"))
    for part in ("model", "optimizer", "ema"):
        assert straight[part].keys() == resumed[part].keys()
        for name, value in straight[part].items():
            assert (value == resumed[part][name]).all(), name
