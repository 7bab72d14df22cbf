"""A whole training state without a training."""

import dataclasses

import numpy as np
import paddle

from image_classification import amp, checkpoint
from image_classification.progress import Progress
from image_classification.runtime import rng_state


def make_state(value=1.0):
    """Return a whole training state of one small parameter, as two processes of a run would have saved it."""
    return {
        "format": checkpoint.FORMAT,
        "model": {"weight": np.full([3, 2], value, "float32"), "steps": np.array(7)},
        "optimizer": {"weight/moment1": paddle.full([3, 2], value), "weight/beta1_pow": paddle.full([1], 0.9)},
        "precision": {
            "mode": "naive",
            "dtype": "float16",
            "state": {"mode": "naive", "dtype": "float16", "loss_scaler0": amp.LossScaler("naive").state_dict()},
        },
        "ema": {"weight": np.full([3, 2], value, "float32"), "steps": np.array(7)},
        "progress": dataclasses.asdict(Progress(epoch=1, batch=4, best_top1=0.5)) | {"sums": [1.5, 3.0, 8.0]},
        "rng": [rng_state(), rng_state() | {"tensor_parallel": rng_state()}],
        "topology": "1 process",
        "units": {"images_per_batch": 4, "images_per_step": 8, "steps_per_epoch": 3},
        "config": "SEED: 0",
    }
