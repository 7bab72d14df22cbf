"""Measure one precision mode in this process; tools/benchmark.py starts one such process per mode and round.

    python tools/parts/benchmark_worker.py '{"cfg": "vit_base_patch16_224", "mode": "auto", ...}'

Prints one line of JSON: seconds of each iteration by phase, all threads' processor time of it ("cpu") and by phase
("cpu_phases", of training steps), memory of the idle process and at its peak, in bytes.
"""

import contextlib
import itertools
import json
import os
import sys
import time
from pathlib import Path

if not __package__:  # run by its path
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from image_classification.runtime import command, peak_memory_bytes, prepare_process

WARMUP_ITERATIONS = 8  # a dispatch asks for huge pages when it is entered for the 8th time
MOST_WARMUP_ITERATIONS = 40  # while steps are skipped: float16 begins at a loss scale that its gradients do not bear
PHASES = ("data", "forward", "backward", "optimizer", "scaler")


@command
def main(arguments):
    """Print the measurement and return the exit code."""
    task = json.loads(arguments[0])
    if task["stock"]:
        import paddle  # noqa: F401  as a user imports it: no settings of ours
    else:
        prepare_process()
    print(json.dumps(measure_products(task) if task["products"] else measure(task)))


def measure(task):
    """Return the measurement of a task as plain values."""
    from image_classification.build import build_parts, build_trainer
    from image_classification.config import load_config
    from image_classification.parallel.single import SingleProcess
    from image_classification.zoo import find_config

    path, build_model = find_config(task["cfg"])
    config = load_config([f"-cfg={path}", *command_line(task)], build_model)
    idle_memory = resident_bytes()
    parts = build_parts(config, build_model, SingleProcess())
    batches = repeat_batches(parts, config, task["data"])
    # Stock Paddle computes float32 with its own operators; our float32 has faster ones.
    if task["stock"]:
        parts.precision.forward_context = contextlib.nullcontext
    if task["evaluation"]:
        iterations = measure_evaluation(parts, batches, task["iterations"], task["layers"])
    else:
        iterations = measure_training(build_trainer(parts), batches, task["iterations"], task["layers"])
    return {
        "iterations": iterations,
        "dtype": parts.precision.dtype,
        "backend": "paddle" if task["stock"] else parts.precision.backend,
        "batch_size": config.DATA.BATCH_SIZE,
        "image_size": config.DATA.IMAGE_SIZE,
        "threads": int(os.environ.get("OMP_NUM_THREADS", "1")),
        "idle_memory_bytes": idle_memory if parts.device == "cpu" else 0,
        "peak_memory_bytes": peak_memory_bytes(parts.device),
    }


def measure_products(task):
    """Return {"float32": operations a second, ...} of one large matrix product in each number format.

    It bounds what a mode can gain over float32 where products take most of the time: [1576, 768] x [768, 3072] is the
    first linear layer of ViT-B's MLP for 8 images. Best of ten, after two that warm up.
    """
    import paddle

    from image_classification.amp import build_precision
    from image_classification.runtime import select_device

    device = select_device(task["device"])
    speed = {}
    for dtype in ("float32", *task["dtypes"]):
        left, right = paddle.rand([1576, 768]).astype(dtype), paddle.rand([768, 3072]).astype(dtype)
        seconds = []
        with paddle.no_grad(), build_precision("fp32", device=device).cpu_kernels():
            for _ in range(WARMUP_ITERATIONS + 10):
                watch = Stopwatch(device)
                watch.run("forward", paddle.matmul, left, right)
                seconds.append(watch.seconds["forward"])
        speed[dtype] = 2 * 1576 * 768 * 3072 / min(seconds[WARMUP_ITERATIONS:])
    return speed


def command_line(task):
    """Return the words that a user would type for this task."""
    words = [f"-amp_mode={task['mode']}"]
    if task["dtype"] is not None:
        words.append(f"-amp_dtype={task['dtype']}")
    if task["batch_size"] is not None:
        words.append(f"-batch_size={task['batch_size']}")
    if task["image_size"] is not None:
        words.append(f"-image_size={task['image_size']}")
    if task["data"] == "synthetic":
        words += ["-dataset=synthetic", "-opts", "DATA.NUM_WORKERS=0"]
    else:
        words.append("-opts")
    return [*words, f"DEVICE={task['device']}", *task["opts"]]


def resident_bytes():
    """Return the resident set of this process."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def repeat_batches(parts, config, kind):
    """Yield (images, labels) for ever: one batch of noise, or the epochs of the configuration's data set."""
    import numpy as np

    if kind == "synthetic":
        generator = np.random.default_rng(0)
        size, channels = config.DATA.IMAGE_SIZE, config.DATA.IMAGE_CHANNELS
        images = generator.standard_normal((config.DATA.BATCH_SIZE, channels, size, size)).astype("float32")
        labels = generator.integers(0, config.MODEL.NUM_CLASSES, config.DATA.BATCH_SIZE)
        while True:
            yield images, labels
    yield from endless(parts.train_loader)


def endless(loader):
    """Yield batches of one epoch after the other."""
    for epoch in itertools.count():
        loader.set_epoch(epoch)
        yield from loader


class Stopwatch:
    """Seconds and processor seconds of the phases of one iteration; a phase inside another one is taken out of it."""

    def __init__(self, device):
        from image_classification.runtime import device_of

        self.device = device_of(device)  # off a CPU operators return before they are computed
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.cpu_seconds = dict.fromkeys(PHASES, 0.0)

    def run(self, phase, function, *arguments, inside=None):
        """Call a function and add the time it takes to a phase."""
        self.device.synchronize()
        start, cpu_start = time.perf_counter(), time.process_time()
        result = function(*arguments)
        self.device.synchronize()
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
        for phases, taken in ((self.seconds, seconds), (self.cpu_seconds, cpu_seconds)):
            phases[phase] += taken
            if inside is not None:
                phases[inside] -= taken
        return result


def measure_training(trainer, batches, count, layers=False):
    """Return [{phase: seconds}] of training steps, as a run makes them or layer by layer; scaler is all that precision
    adds to backward and optimizer: the finite check, unscaling, the masters' gradients, the half weights' update, the
    scale. `skipped`: whether a step had no optimizer, because a gradient was not finite."""
    from image_classification.reading import MicroBatches

    precision, optimizer, watch = trainer.precision, trainer.optimizer, Stopwatch(trainer.precision.device)

    def timed(phase, function, inside=None):
        return lambda *arguments: watch.run(phase, function, *arguments, inside=inside)

    trainer.model.train()
    trainer.forward = timed("forward", trainer.model if layers else trainer.forward)
    trainer.criterion = timed("forward", trainer.criterion)
    precision.backward = timed("backward", precision.backward)
    precision.collect = timed("scaler", precision.collect, inside="backward")
    # Not `optimizer.step`: an optimizer with a step of its own is not taken to write the weights last.
    precision.apply = timed("optimizer", precision.apply, inside="scaler")

    def step():
        nonlocal watch
        watch, cpu_start, start = Stopwatch(precision.device), time.process_time(), time.perf_counter()
        for _ in trainer.forward_backward(MicroBatches(batches, 1)):
            pass
        applied = watch.run("scaler", precision.step, optimizer).applied
        # What is left is the batch's way to the device, and a count of correct images.
        watch.seconds["data"] = time.perf_counter() - start - sum(watch.seconds.values())
        cpu = {"cpu": time.process_time() - cpu_start, "cpu_phases": watch.cpu_seconds}
        return watch.seconds | cpu | {"skipped": not applied}

    warm = [step() for _ in range(WARMUP_ITERATIONS)]
    while warm[-1]["skipped"] and len(warm) < MOST_WARMUP_ITERATIONS:
        warm.append(step())
    return [step() for _ in range(count)]


def measure_evaluation(parts, batches, count, layers):
    """Return [{phase: seconds}] of forward passes without gradients, as an evaluation makes them or layer by layer."""
    import paddle

    from image_classification import half_cpu

    def forward(images):
        with paddle.no_grad(), parts.precision.forward_context():
            return parts.model(images) if layers else parts.parallel.predict(parts.model, images)

    parts.model.eval()
    iterations = []
    with half_cpu.frozen(parts.model):  # as an evaluation has it
        for _ in range(WARMUP_ITERATIONS + count):
            watch, cpu_start = Stopwatch(parts.device), time.process_time()
            images = watch.run("data", lambda: paddle.to_tensor(next(batches)[0]))
            watch.run("forward", forward, images)
            iterations.append(watch.seconds | {"cpu": time.process_time() - cpu_start})
    return iterations[WARMUP_ITERATIONS:]


if __name__ == "__main__":
    sys.exit(main())
