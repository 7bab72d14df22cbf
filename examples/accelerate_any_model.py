"""Train and evaluate models that nobody here wrote in float32, bfloat16 and float16, beside stock Paddle.

    python examples/accelerate_any_model.py mobilenet_v3_small densenet121 unet crnn
    python examples/accelerate_any_model.py --all --batch-size 4 --rounds 5
    python examples/accelerate_any_model.py ppcls.arch.backbone:ResNet50_vd --path PaddleClas

What a model needs is all in `Accelerated`: build a precision, let it convert the model, run the model in its context,
let it make the backward pass and step the optimizer; `half_cpu.Replayed` in place of the model, and to evaluate,
`half_cpu.replay`. A name is one of
paddle.vision.models, of other_models.py beside this file (unet, deeplabv3, fpn, crnn, gpt, bert), or MODULE:FUNCTION of
anything that takes images.

Stock Paddle runs in the same process on as many threads without this project's kernels. The formats take turns, round
by round. A figure is the median over the rounds of (stock's time / the format's time) with the range, so above 1 is
faster than stock Paddle; with one thread it is processor time. "off by" is the largest difference of an output from
stock Paddle's, relative to the largest output.

With -peers torchvision's model of the same name runs in PyTorch too, in a process of its own each round, with autocast
to bfloat16; its column is (PyTorch's time / our bfloat16's), so above 1 is faster than PyTorch.
"""

import contextlib
import importlib
import inspect
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from image_classification.config import chosen
from image_classification.runtime import Parser, UserError, close_names, command, prepare_process, progress_bar

STOCK = "stock"
FORMATS = ("float32", "bfloat16", "float16")
PEERS = {"eager": "PyTorch eager", "compiled": "PyTorch compiled"}
PEER_WORKER = Path(__file__).resolve().parents[1] / "tools/parts/benchmark_torch.py"
LEARNING_RATE = 1e-6  # random models stay what they are: one that diverges is timed with inf and NaN, which take longer


@command
def main(arguments):
    """Print the table and return the exit code."""
    options = parse(arguments)
    if options.threads:
        os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(options.threads)))
    prepare_process()
    import paddle

    from examples.other_models import MODELS, images
    from image_classification import half_cpu

    if options.path:
        if not Path(options.path).is_dir():
            raise UserError(f"-path {options.path}: not a folder")
        sys.path.insert(0, options.path)
    builders = {
        name: find_model(name, MODELS, images(options.image_size)) for name in options.models or all_names(MODELS)
    }
    options.peerless = without_peers(builders, options)
    by = ", ".join(f"{dtype}: {half_cpu.backend_name(dtype)}" for dtype in options.formats)
    print(f"Paddle {paddle.__version__}, {os.environ['OMP_NUM_THREADS']} threads, batch {options.batch_size}; {by}")
    columns = [*options.formats, *(PEERS[engine] for engine in options.peers)]
    print(f"| model | pass | stock, ms | {' | '.join(columns)} | off by |")
    print("| --- | --- | --: |" + " --: |" * len(columns) + " --- |", flush=True)
    with progress_bar(len(builders) * (options.rounds + 1), "models", "round") as bar:
        for name, build in builders.items():
            for line in measure(name, build, options, bar):
                print(line, flush=True)
    return 0


def parse(words):
    parser = Parser(description=__doc__)
    add = parser.add_argument
    add("models", nargs="*", help="names, see above")
    add("-all", action="store_true", help="all of paddle.vision.models and of other_models.py")
    add("-path", metavar="FOLDER", help="where MODULE:FUNCTION is looked for, such as a checkout of PaddleClas")
    add("-formats", type="names", default=",".join(FORMATS), help="number formats (default: %(default)s)")
    add("-image_size", type="count", default=224, help="side of the images of classifiers (default: %(default)s)")
    add("-batch_size", type="count", default=4, help="images of a step (default: %(default)s)")
    add("-rounds", type="count", default=3, help="measurements, after one that warms up (default: %(default)s)")
    add("-threads", type="threads", help="compute threads (default: all cores)")
    add("-peers", type="names", default=(), metavar="ENGINES", help=f"PyTorch beside it: {', '.join(PEERS)}")
    add("-peer_python", default=sys.executable, metavar="PATH", help="Python with torchvision (default: this one)")
    options = parser.parse_args(words)
    options.formats = chosen(options.formats, FORMATS, "-formats")
    options.peers = chosen(options.peers, tuple(PEERS), "-peers")
    if options.peers and "bfloat16" not in options.formats:
        parser.error("-peers: PyTorch runs in bfloat16, which is not among -formats")
    if bool(options.models) == options.all:
        parser.error("name models, or give -all, not both")
    return options


def all_names(others):
    import paddle

    return [name for name in paddle.vision.models.__all__ if name.islower()] + list(others)


def find_model(name, others, images):
    """Return a function that returns (a model, a function of the batch size that returns its inputs)."""
    import paddle

    if name in others:
        return others[name]
    module, _, function = name.rpartition(":")
    if not module and name not in paddle.vision.models.__all__:  # it has the modules of the models, too
        near = close_names(name, [*paddle.vision.models.__all__, *others])
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(all_names(others))}, or MODULE:FUNCTION"
        raise UserError(f"{name}: there is no such model; {hint}")
    try:
        build = getattr(importlib.import_module(module or "paddle.vision.models"), function)
    except (ImportError, TypeError, AttributeError) as error:  # TypeError: a module that begins with a dot
        raise UserError(f"{name}: {error}") from None
    try:
        with contextlib.suppress(ValueError):  # a function in C need not say what it takes
            inspect.signature(build).bind()
    except TypeError as error:
        raise UserError(f"{name}: called without arguments: {error}") from None

    def model_and_images():
        try:
            model = build()
        except TypeError as error:
            raise UserError(f"{name}: called without arguments: {error}") from None
        if not isinstance(model, paddle.nn.Layer):
            raise UserError(f"{name}: returns {type(model).__name__}, not a paddle.nn.Layer")
        return model, images

    return model_and_images


class Accelerated:
    """A model in one number format of this project."""

    def __init__(self, model, dtype):
        import paddle

        from image_classification import amp, half_cpu

        self.precision = amp.build_precision("fp32") if dtype == "float32" else amp.build_precision("auto", dtype)
        self.model = self.precision.convert_model(model)
        self.trained = half_cpu.Replayed(self.model)
        parameters = [parameter for _, parameter in self.precision.master_params(self.model)]
        self.optimizer = paddle.optimizer.Momentum(LEARNING_RATE, parameters=parameters)

    def train(self, inputs):
        with self.precision.forward_context():
            loss = loss_of(self.trained(*inputs))
        self.precision.backward(loss)
        self.precision.step(self.optimizer)

    def evaluate(self, inputs):
        from image_classification import half_cpu

        with self.precision.forward_context():
            return half_cpu.replay(self.model, *inputs)


class Stock:
    """The same with nothing but Paddle."""

    def __init__(self, model):
        import paddle

        self.model = model
        self.optimizer = paddle.optimizer.Momentum(LEARNING_RATE, parameters=model.parameters())

    def train(self, inputs):
        loss_of(self.model(*inputs)).backward()
        self.optimizer.step()
        self.optimizer.clear_grad()

    def evaluate(self, inputs):
        return self.model(*inputs)


def flat(outputs):
    return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]


def loss_of(outputs):
    """Return the mean of the squares: a loss for whatever a model returns."""
    return sum(output.astype("float32").square().mean() for output in flat(outputs))


def measure(name, build, options, bar):
    """Yield the model's lines of the table: training, evaluation."""
    import paddle

    from image_classification import half_cpu

    clock = time.process_time if os.environ["OMP_NUM_THREADS"] == "1" else time.perf_counter
    contestants, seconds, outputs = {}, {}, {}
    for dtype in (STOCK, *options.formats):
        paddle.seed(0)
        model, make_inputs = build()
        inputs = make_inputs(options.batch_size)
        contestants[dtype] = Stock(model) if dtype == STOCK else Accelerated(model, dtype)
        seconds[dtype] = [], []
        model.eval()
        with paddle.no_grad():
            try:
                found = contestants[dtype].evaluate(inputs)
            except ValueError as error:  # Paddle's for shapes that an operator cannot compute
                if dtype != STOCK:
                    raise
                reason = next((line for line in str(error).splitlines() if "InvalidArgument" in line), error)
                shapes = ", ".join(str(each.shape) for each in inputs)
                raise UserError(f"{name}: stock Paddle cannot evaluate it with inputs {shapes}: {reason}") from None
            outputs[dtype] = [output.astype("float32") for output in flat(found)]
    for turn in range(options.rounds + 1):
        for dtype, contestant in contestants.items():
            contestant.model.train()
            for _ in range(1 if turn else 4):  # the fourth one is recorded, and the next are without layers
                contestant.train(inputs)  # the measured one finds the caches as it leaves them itself
            start = clock()
            contestant.train(inputs)
            middle = clock()
            contestant.model.eval()
            with paddle.no_grad(), half_cpu.frozen(contestant.model):
                for _ in range(3):  # the third one is recorded, and the next is without layers
                    contestant.evaluate(inputs)
                begin = clock()
                contestant.evaluate(inputs)
                end = clock()
            if turn:
                seconds[dtype][0].append(middle - start)
                seconds[dtype][1].append(end - begin)
        if turn:
            for engine in options.peers:
                seconds.setdefault(engine, ([], []))
                for index, own in enumerate(seconds[engine]):
                    own.append(peer_seconds(name, engine, index == 1, options))
        bar.update()
    for index, work in enumerate(("training", "evaluation")):
        stock = seconds[STOCK][index]
        cells = []
        for dtype in options.formats:
            cells.append(in_words(stock, seconds[dtype][index]))
        for engine in options.peers:
            cells.append(in_words(seconds[engine][index], seconds["bfloat16"][index]))
        differences = ", ".join(f"{difference(outputs[dtype], outputs[STOCK]):.1e}" for dtype in options.formats)
        cells.append(differences if work == "evaluation" else "")
        yield f"| {name} | {work} | {1e3 * statistics.median(stock):.0f} | {' | '.join(cells)} |"


def in_words(theirs, ours):
    """Return the median of the ratios, round by round, with their range."""
    ratios = sorted(one / other for one, other in zip(theirs, ours, strict=True))
    return f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"


def run_peer(python, *words):
    """Return what PyTorch's process printed.

    Raises:
        UserError: it did not run.
    """
    try:
        done = subprocess.run([python, str(PEER_WORKER), *words], capture_output=True, text=True)
    except OSError as error:
        raise UserError(f"-peer_python {python}: {error.strerror}") from None
    if done.returncode:
        reason = done.stderr.strip().rpartition("\n")[2] or f"ends with exit code {done.returncode}"
        raise UserError(f"-peer_python {python}: {reason}")
    return done.stdout


def without_peers(names, options):
    """Return those of the models that torchvision does not have, and say it once.

    Raises:
        UserError: it has none of them, or -peer_python does not run it.
    """
    if not options.peers:
        return []
    known = run_peer(options.peer_python, "models").split()
    missing = [name for name in names if name not in known]
    if len(missing) == len(names):
        raise UserError(f"-peers: torchvision has none of the models {', '.join(missing)}; leave -peers out")
    if missing:
        print(f"PyTorch is not measured with {', '.join(missing)}: torchvision has no such model", file=sys.stderr)
    return missing


def peer_seconds(name, engine, evaluates, options):
    """Return the seconds of a step of torchvision's model of this name in PyTorch, NaN where it does not run."""
    if name in options.peerless:
        return float("nan")
    task = {"model": f"torchvision/{name}", "engine": engine, "dtype": "bfloat16", "evaluation": evaluates,
            "batch_size": options.batch_size, "image_size": options.image_size, "num_classes": 1000,
            "optimizer": "Momentum", "iterations": 2}  # fmt: skip
    try:
        steps = json.loads(run_peer(options.peer_python, json.dumps(task)))["iterations"]
    except UserError as error:
        print(f"{name}: {PEERS[engine]} is not measured: {error}", file=sys.stderr)
        return float("nan")
    if os.environ["OMP_NUM_THREADS"] == "1":
        return statistics.median(step["cpu"] for step in steps)
    return statistics.median(sum(step.values()) - step["cpu"] for step in steps)


def difference(found, expected):
    """Return the largest difference, relative to the largest of the expected numbers."""
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(found, expected, strict=True))


if __name__ == "__main__":
    sys.exit(main())
