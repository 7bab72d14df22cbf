"""A training image that cannot be read costs no step, and a resume on repaired data has the bits of a whole run."""

import numpy as np
import pytest
from PIL import Image

from image_classification import checkpoint
from image_classification.data.sampler import train_order
from image_classification.hooks import CheckpointHook, Hook
from image_classification.run_folder import RunFolder
from image_classification.runtime import UserError
from tests.helpers.small_runs import config_of, trainer_of
from tests.house.test_resume import bits

SEED, IMAGES, BATCH, WINDOW = 3, 20, 2, 3  # 10 micro-batches an epoch: steps of 3, 3, 3 and 1


def write_images(folder):
    rng = np.random.default_rng(0)
    for split in ("train", "val"):
        lines = []
        for index in range(IMAGES):
            (folder / split).mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)).save(folder / split / f"{index:02d}.png")
            lines.append(f"{split}/{index:02d}.png {index % 4}\n")
        (folder / f"{split}_list.txt").write_text("".join(lines))


def image_of(folder, epoch, batch, place=0):
    """Return the path of an image of a micro-batch."""
    return folder / "train" / f"{train_order(IMAGES, SEED, epoch, BATCH)[batch * BATCH + place, 0]:02d}.png"


class Break(Hook):
    """Cuts a file off where an epoch begins, which has been read in the epochs before."""

    def __init__(self, path, epoch):
        self.path, self.epoch = path, epoch

    def before_epoch(self, trainer):
        if trainer.progress.epoch == self.epoch:
            self.path.write_bytes(self.path.read_bytes()[:50])


def make(data, window, folder=None, workers=0, mode="fp32"):
    data = {"DATASET": "list", "DATA_PATH": str(data), "BATCH_SIZE": BATCH, "NUM_WORKERS": workers, "PREFETCH": 3}
    train = {"NUM_EPOCHS": 2, "ACCUM_ITER": window, "MODEL_EMA": True, "MODEL_EMA_DECAY": 0.5, "MIXUP_ALPHA": 0.4}
    amp = {"MODE": mode} | ({} if mode == "fp32" else {"DTYPE": "float16", "init_scale": 2.0**10})
    config = config_of(data=data, train=train, amp=amp, SAVE_FREQ=2)
    return trainer_of(config, hooks=[CheckpointHook(RunFolder(folder))] if folder else [])


@pytest.mark.parametrize(("window", "epoch", "batch", "saved"), [
    (1, 0, 0, (0, 0)), (1, 0, 4, (0, 4)), (1, 1, 0, (1, 0)), (1, 1, 9, (1, 9)),
    (WINDOW, 0, 0, (0, 0)), (WINDOW, 0, 2, (0, 0)), (WINDOW, 1, 3, (1, 3)), (WINDOW, 1, 5, (1, 3)),
])  # fmt: skip
@pytest.mark.parametrize("mode", ["fp32", "auto"])
def test_image_that_cannot_be_read_costs_no_step_and_a_resume_has_the_bits(
    tmp_path, window, epoch, batch, saved, mode
):
    data, run = tmp_path / "data", tmp_path / "run"
    run.mkdir()
    write_images(data)
    whole = make(data, window, mode=mode)
    whole.fit()
    broken = image_of(data, epoch, batch)
    content = broken.read_bytes()
    first = make(data, window, run, mode=mode)
    first.add_hooks([Break(broken, epoch)])
    with pytest.raises(UserError, match=f"{broken.name}: corrupt image"):
        first.fit()
    path = run / "latest.pdparams"
    state = checkpoint.check(checkpoint.read(path), path)
    assert (state["progress"]["epoch"], state["progress"]["batch"]) == saved
    broken.write_bytes(content)
    second = make(data, window, mode=mode)
    second.load_state(state, path)
    second.fit()
    got, expected = bits(second.state()), bits(whole.state())
    assert [name for name, value in got.items() if value != expected[name]] == []


def test_workers_end_the_run_where_it_ends_without_them(tmp_path):
    data, run = tmp_path / "data", tmp_path / "run"
    run.mkdir()
    write_images(data)
    broken = image_of(data, 0, 5)
    broken.write_bytes(broken.read_bytes()[:50])
    # one of two workers is busy with the third batch while the other one meets the image
    Image.fromarray(np.zeros((4000, 4000, 3), np.uint8)).save(image_of(data, 0, 2, place=1))
    with pytest.raises(UserError, match=f"{broken.name}: corrupt image"):
        make(data, 1, run, workers=2).fit()
    assert checkpoint.load(run / "latest.pdparams")["progress"]["batch"] == 5  # not where a worker met it
