"""What tools/format_table.py starts once for each variant and mode: numbers against which it compares.

    python tools/parts/format_worker.py '{"cfg": "vit_tiny_digits", "mode": "auto", "dtype": "float16", ...}'

Prints one line of JSON; the logits go into the file that the task names.
"""

import json
import statistics
import sys
from pathlib import Path

import numpy as np

if not __package__:  # run by its path
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from image_classification.runtime import command, peak_memory_bytes, prepare_process
from image_classification.tools.parts import benchmark_worker

OBSERVED_STEPS = 2


@command
def main(arguments):
    """Print the measurement and return the exit code."""
    prepare_process()
    print(json.dumps(measure(json.loads(arguments[0]))))


def measure(task):
    """Return the measurement of a task as plain values.

    Weights, images and their order are the same in every mode: drawn from the configuration's seed, or read.
    """
    from image_classification.build import build_parts, build_trainer
    from image_classification.config import load_config
    from image_classification.parallel.single import SingleProcess
    from image_classification.zoo import find_config

    path, build_model = find_config(task["cfg"])
    words = [f"-cfg={path}", *benchmark_worker.command_line(task)]
    config = load_config(words + ([f"MODEL.PRETRAINED={task['weights']}"] if task["weights"] else []), build_model)
    idle = benchmark_worker.resident_bytes()
    parts = build_parts(config, build_model, SingleProcess())
    images, labels = next(benchmark_worker.repeat_batches(parts, config, task["data"]))
    np.save(task["logits"], evaluate(parts, images))
    trainer = build_trainer(parts)
    batches = iter(lambda: (images, labels), None)  # the same batch for ever
    seconds = [sum(step[phase] for phase in benchmark_worker.PHASES)
               for step in benchmark_worker.measure_training(trainer, batches, task["iterations"])]  # fmt: skip
    result = {"seconds": statistics.median(seconds), "bytes": peak_memory_bytes(parts.device) - idle,
              "backend": parts.precision.backend}  # fmt: skip
    return result | (observe(config, build_model, batches) if task["mode"] == "fp32" else {})


def evaluate(parts, images):
    """Return the logits, float32."""
    import paddle

    parts.model.eval()
    with paddle.no_grad(), parts.precision.forward_context():
        logits = parts.model(paddle.to_tensor(images))
    return logits.astype("float32").numpy()


def observe(config, build_model, batches):
    """Return what float16 would do to the values of float32 training steps, and what the doctor says of them."""
    from image_classification.amp import build_precision
    from image_classification.amp.diagnosis import diagnose
    from image_classification.amp.observer import ACTIVATION, FORMATS, GRADIENT, PARAMETER, Observer
    from image_classification.build import build_parts, build_trainer
    from image_classification.parallel.single import SingleProcess
    from image_classification.reading import MicroBatches

    parts = build_parts(config, build_model, SingleProcess())
    trainer, observer, steps = build_trainer(parts), Observer(parts.model), []
    parts.model.train()
    for _ in range(OBSERVED_STEPS):
        list(trainer.forward_backward(MicroBatches(batches, 1)))
        steps.append(observer.collect(parts.precision.named_params(trainer.optimizer)))
        parts.precision.step(trainer.optimizer)
    observer.remove()
    half, scale = FORMATS["float16"], build_precision("auto", dtype="float16", device="cpu").loss_scale
    records = [record for step in steps for record in step]
    activations = [record for record in records if record.kind == ACTIVATION]
    gradients = [record for record in records if record.kind in (GRADIENT, PARAMETER)]
    found = diagnose(steps, observer.order, "float16", scale, dynamic=True)
    return {
        "scale": scale,
        "largest_activation": max(record.largest for record in activations),
        "activation_overflow": share(activations, lambda record: record.overflow_share(half) * record.count),
        "activation_flush": share(activations, lambda record: record.flush_share(half) * record.exponents.sum()),
        "gradient_overflow": share(gradients, lambda record: record.overflow_share(half, scale) * record.count),
        "gradient_flush": share(gradients, lambda record: record.flush_share(half, scale) * record.exponents.sum()),
        "keep_float32": found.keep_float32,
    }


def share(records, affected):
    """Return the share of all values of some records that are affected."""
    return float(sum(map(affected, records)) / max(1, sum(record.count for record in records)))


if __name__ == "__main__":
    sys.exit(main())
