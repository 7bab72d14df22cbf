"""Losses of the first steps of two small models in every mode, and how far another CPU may be from them.

    python -m tests.helpers.golden              # writes tests/house/golden_losses.json anew
    python -m tests.helpers.golden -check fp32,auto         # compares this machine with the file in these modes

A CPU with other instructions adds float32 numbers in another order, and computes a half format by other kernels, which
round single values once more or once less. What a training makes of that depends on the training, so it is measured:
the same run from weights each of which is off by up to one rounding of the format (2^-11 for float16, 2^-8 for
bfloat16; for float32 eight of 2^-24, what sums of some hundred numbers in another order differ by), with eight draws.
The tolerance of a run is twice the largest difference that this made in any step. Where the sign of a ReLU's input
turns, a loss jumps, by 1e-4 or more in the ResNet and never in the ViT: hence their different tolerances.
"""

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from image_classification.runtime import prepare_process

prepare_process()

import numpy as np
import paddle

from image_classification.build import build_parts, build_trainer
from image_classification.config import load_config
from image_classification.hooks import Hook
from image_classification.parallel.single import SingleProcess
from image_classification.runtime import get_logger
from tests.helpers.model_zoo import PACKAGE, builder
from tests.helpers.small_runs import MODES

FILE = ROOT / "tests" / "house" / "golden_losses.json"
STEPS = 20
DRAWS = 8
ONE_ROUNDING = {"float32": 8 * 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
FAMILIES = {
    "ViT": ("vit_tiny_digits", "MODEL.EMBED_DIM=32", "MODEL.DEPTH=2", "MODEL.NUM_HEADS=2",
            "DATA.BATCH_SIZE=16", "TRAIN.WARMUP_EPOCHS=0.1"),
    # At its recipe's rate, 0.1, one turned sign of a ReLU's input makes a difference of 0.02 within the golden steps.
    "ResNet": ("resnet_tiny_digits", "MODEL.BASE_WIDTH=8", "TRAIN.BASE_LR=0.005"),
}  # fmt: skip
RUNS = [(family, mode, dtype or "float32") for family in FAMILIES for mode, dtype in MODES]


class Stop(Hook):
    """Notes the loss of each step and ends the run after the last."""

    def __init__(self):
        self.losses = []

    def before_step(self, trainer):
        if len(self.losses) == STEPS - 1:
            trainer.request_stop("the last golden step")

    def after_step(self, trainer):
        trainer.mean.flush()
        self.losses.append(trainer.mean.last_loss)


def losses_of(family, mode, dtype, draw=None):
    """Return (the losses of the first steps, how many of them were skipped).

    Args:
        draw: seed of another rounding of the first weights; None for the weights as they are.
    """
    name, *changes = FAMILIES[family]
    words = [f"-cfg={PACKAGE / family / 'configs' / name}.yaml", f"-amp_mode={mode}"]
    if mode != "fp32":
        words.append(f"-amp_dtype={dtype}")
        # a scale that does not overflow in the first steps: a skipped one would only be a step less to compare
        changes.append("AMP.loss_scale=1024" if mode.startswith("O") else "AMP.init_scale=1024")
    build_model = builder(PACKAGE / family)
    config = load_config([*words, "-device=cpu", "-opts", "DATA.NUM_WORKERS=0", *changes], build_model)
    parts = build_parts(config, build_model, SingleProcess())
    if draw is not None:
        round_differently(parts, np.random.default_rng(draw), ONE_ROUNDING[dtype])
    trainer, hook = build_trainer(parts), Stop()
    trainer.add_hooks([hook])
    trainer.fit()
    return hook.losses, trainer.progress.skipped_steps


def round_differently(parts, rng, unit):
    """Multiply every weight by 1 + e, e drawn evenly from -unit to unit."""
    state = {name: value.numpy() for name, value in parts.precision.model_state_dict(parts.model).items()}
    for name, value in state.items():
        state[name] = (value * (1 + rng.uniform(-unit, unit, value.shape))).astype(value.dtype)
    parts.precision.load_model_state_dict(parts.model, state)


def measure(family, mode, dtype):
    """Return the entry of a run: losses, tolerance, skipped steps."""
    losses, skipped = losses_of(family, mode, dtype)
    differences = [np.abs(np.array(losses_of(family, mode, dtype, draw)[0]) - losses).max() for draw in range(DRAWS)]
    return {"tolerance": float(f"{2 * max(differences):.2g}"), "skipped": skipped, "losses": losses}


def key_of(family, mode, dtype):
    return f"{family} {mode} {dtype}"


def read():
    """Return {key of a run: its entry}."""
    return json.loads(FILE.read_text())


def deviation(entry, losses):
    """Return the largest difference to the golden losses, in tolerances: above 1 is wrong."""
    assert len(losses) == len(entry["losses"])
    return float((np.abs(np.array(losses) - entry["losses"]) / entry["tolerance"]).max())


def check(modes):
    """Return {key of a run: (deviation in tolerances, skipped steps more than in the file)} on this machine."""
    golden, found = read(), {}
    for run in (run for run in RUNS if run[1] in modes):
        losses, skipped = losses_of(*run)
        entry = golden[key_of(*run)]
        found[key_of(*run)] = (deviation(entry, losses), skipped - entry["skipped"])
    return found


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-check", metavar="MODES", help="compare in these modes, write nothing")
    options = parser.parse_args(arguments)
    get_logger().setLevel("WARNING")
    if options.check:
        print(json.dumps(check(options.check.split(",")), indent=1))
        return
    entries = {}
    for run in RUNS:
        entries[key_of(*run)] = measure(*run)
        print(key_of(*run), entries[key_of(*run)]["tolerance"], flush=True)
    lines = [f"{json.dumps(key)}: {json.dumps(entry)}" for key, entry in entries.items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    paddle.set_device("cpu")
    main()
