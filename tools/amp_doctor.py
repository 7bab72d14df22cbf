"""Find the layers of a model that leave a half format's range, and what to write into the configuration against it.

    python tools/amp_doctor.py -cfg=vit_tiny_digits -amp_mode=O2 -amp_dtype=float16 -steps=20 -report=output/doctor
    python tools/amp_doctor.py -cfg=resnet50 -data_path=/dataset/imagenet -amp -steps=50 -pretrained=resnet50.pdparams

Takes every option of the training commands. Two short runs from the same weights: one in the mode that is asked for,
to see where the first inf or NaN appears and where the loss scale goes, and one in float32, to see the values that half
formats cannot hold. Each layer's output and its gradient, and each parameter's gradient, is measured in every step.
Where float32 itself comes to inf or NaN, no format is to blame: that is said, and only the steps before it count.

-report, a new folder, gets doctor.json, doctor.png (largest activations and vanishing gradients, layers x steps),
histograms for VisualDL and advice.yaml, which can stand in the BASE of a model's YAML.
"""

import dataclasses
import json
import math
import sys
from pathlib import Path

if not __package__:  # run by its path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from image_classification.config import load_config, make_parser, preview_config, refuse_run_options
from image_classification.config.schema import Amp
from image_classification.runtime import (
    Parser,
    atomic_write,
    command,
    prepare_process,
    progress_bar,
    refuse_existing,
    setup_logger,
    whole_folder,
)
from image_classification.tools.parts.benchmark_worker import endless


@dataclasses.dataclass
class Run:
    """What one short run showed."""

    precision: object
    records: list  # of each step
    order: list
    first_non_finite: tuple | None
    losses: list
    skipped: int


@command
def main(arguments):
    """Print the tables and the advice, write the report and return the exit code."""
    parser = Parser(
        description=__doc__,
        epilog="every other option is one of the training commands: python main_single_gpu.py -h",
    )
    parser.add_argument("-cfg", required=True, help="model, recipe, YAML file or run's folder")
    parser.add_argument("-steps", type="count", default=20, help="steps of each run (default: 20)")
    parser.add_argument("-rows", type="count", default=15, help="rows of each table (default: 15)")
    parser.add_argument("-report", type="new_folder", default="output/doctor",
                        help="folder of the report (default: %(default)s)")  # fmt: skip
    parser.pass_on(make_parser())
    options = parser.parse_args(arguments)
    words = options.words
    config = preview_config([f"-cfg={options.cfg}", *words])
    refuse_run_options(config, "two short trainings are examined; -pretrained says with which weights they start, "
                       "-report where the report goes")  # fmt: skip
    refuse_existing(options.report, "-report")
    prepare_process()
    from image_classification.zoo import find_config

    path, build_model = find_config(options.cfg)
    examine(load_config([f"-cfg={path}", *words], build_model), build_model, options)
    return 0


def examine(config, build_model, options):
    """Make both runs, print and write what they showed."""
    from image_classification.amp.diagnosis import diagnose
    from image_classification.amp.observer import FORMATS
    from image_classification.tools.parts import amp_doctor_report as doctor

    setup_logger()
    asked = None if config.AMP.MODE == "fp32" else short_run(config, build_model, options.steps)
    plain = short_run(dataclasses.replace(config, AMP=Amp()), build_model, options.steps)
    # Without a mode the question is what mode auto would meet.
    dtype = asked.precision.dtype if asked and asked.precision.dtype in FORMATS else "float16"
    scaler = asked.precision.scalers[0] if asked and asked.precision.scalers else None
    scale, dynamic = (scaler.scale, scaler.dynamic) if scaler else (2.0**16, True)
    broken = first_words(plain)
    sound = dataclasses.replace(plain, records=plain.records[: broken["step"] if broken else None])
    found = diagnose(sound.records, sound.order, dtype, scale, dynamic)
    layers, parameters = doctor.layer_rows(sound, scale), doctor.parameter_rows(sound, scale)
    facts = {
        "model": config.MODEL.NAME,
        "precision": (asked or plain).precision.describe(),
        "steps": options.steps,
        "skipped_steps": asked.skipped if asked else 0,
        "loss_scale": scale,
        "first_non_finite": first_words(asked),
        "first_non_finite_float32": broken,
        "losses": {"asked": asked and json_numbers(asked.losses), "float32": json_numbers(plain.losses)},
        "diagnosis": dataclasses.asdict(found),
        "layers": layers,
        "parameters": parameters,
    }
    advice = doctor.advice_yaml(config.AMP.MODE, found)
    with whole_folder(options.report) as folder:
        write(folder / "doctor.json", json.dumps(facts, indent=1).encode())
        write(folder / "advice.yaml", advice.encode())
        doctor.draw(folder / "doctor.png", plain, dtype, scale)
        doctor.write_histograms(folder, plain)
    doctor.show(facts, found, advice, options)


def short_run(config, build_model, steps):
    """Return the Run of a few training steps in the configuration's precision."""
    from image_classification.amp.observer import Observer
    from image_classification.build import build_parts, build_trainer
    from image_classification.parallel.single import SingleProcess
    from image_classification.reading import MicroBatches

    parts = build_parts(config, build_model, SingleProcess())
    trainer = build_trainer(parts)
    model, precision, optimizer = parts.model, parts.precision, trainer.optimizer
    observer = Observer(model)
    model.train()
    run = Run(precision, [], observer.order, None, [], 0)
    batches = endless(parts.train_loader)
    bar = progress_bar(steps, precision.mode, "step")
    for _ in range(steps):
        optimizer.set_lr(trainer.schedule(len(run.losses) - run.skipped))
        window = trainer.forward_backward(MicroBatches(batches, config.TRAIN.ACCUM_ITER))
        losses = [loss.item() for loss, _, _ in window]
        run.records.append(observer.collect(precision.named_params(optimizer)))
        run.skipped += not precision.step(optimizer).applied
        run.losses.append(sum(losses) / len(losses))
        bar.update()
    bar.close()
    batches.close()
    parts.train_loader.close()
    observer.remove()
    run.first_non_finite = observer.first_non_finite
    return run


def first_words(run):
    """Return {"step", "kind", "name"} of the first inf or NaN of a run, None when there was none."""
    if run is None or run.first_non_finite is None:
        return None
    return dict(zip(("step", "kind", "name"), run.first_non_finite, strict=True))


def json_numbers(values):
    """Return the values with None for inf and NaN, which JSON does not have."""
    return [value if math.isfinite(value) else None for value in values]


def write(path, content):
    with atomic_write(path) as file:
        file.write(content)


if __name__ == "__main__":
    sys.exit(main())
