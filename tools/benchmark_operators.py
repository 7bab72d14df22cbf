"""Measure single operators, in evaluation and in training, beside stock Paddle's float32 in the same process.

    python tools/benchmark_operators.py --operators linear,conv --formats float32,float16,bfloat16 --threads 2

The formats and stock Paddle take turns, round by round. Each figure is the median over the rounds in milliseconds, with
one thread of processor time, which depends less on what else the machine does, otherwise of time; `spread` is the
distance between the quartiles, relative to the median. `stock` is Paddle's own float32 operator on as many threads,
without this project's kernels; `ratio` is our time over stock's, so below 1 is faster. `limit` is the time in which the
inputs and results would pass a plain copy of memory, which no kernel can beat unless they stay in the cache. `kept` is
the memory, in MB, that is in use between the passes and was not before: the result and what the backward pass needs.
Images lie in memory as [B, H, W, C] in our formats, as the operator before leaves them, and as [B, C, H, W] in stock
Paddle.

Inputs other than parameters are no leaves, as in a model, and images of three channels get no gradient. A backward pass
ends when all gradients lie dense in memory, as the operator before reads them: stock Paddle returns that of a
transposition or a split as a view of other strides, and copies it where it is read. As in training, memory is not
touched for the first time: a page fault costs more than what is computed in the page.

`evaluation` is the forward pass under `paddle.no_grad()`, `training` the forward pass that autograd records and the
backward pass, together: neither of them runs without the other, and what one of them leaves undone the other does. Each
call follows three of the same operator on the same tensors, ours in the same dispatch: a model enters it once a step,
and results lie where they stay after some calls.
"""

import contextlib
import itertools
import math
import os
import signal
import statistics
import sys
import time
from pathlib import Path

if not __package__:  # run by its path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from image_classification.config import chosen
from image_classification.runtime import Parser, UserError, close_names, command, prepare_process
from image_classification.tools.parts.benchmark_operator_cases import cases

FORMATS = ("float32", "float16", "bfloat16")
STOCK = "stock"


@command
def main(arguments):
    """Print the table and return the exit code."""
    options = parse(arguments)
    if options.threads:
        os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(options.threads)))
    prepare_process()
    from image_classification import half_cpu

    found = cases(options.batch_size)
    for word in options.operators:
        if not any(word.lower() in name.lower() for name in found):
            near = close_names(word, [*found, *" ".join(found).split()])
            hint = f"did you mean {' or '.join(near)}?" if near else "without -operators the table has them all"
            raise UserError(f"-operators: {word!r} is part of no operator's name; {hint}")
    bandwidth = copy_bandwidth()
    by = ", ".join(f"{dtype}: {half_cpu.backend_name(dtype)}" for dtype in options.formats)
    print(f"{by}; {os.environ['OMP_NUM_THREADS']} threads; a copy moves {bandwidth / 1e9:.1f} GB/s; milliseconds")
    print("| operator | use | format | ours | spread | stock | ratio | limit | kept |")
    print("| --- " * 3 + "| --: " * 6 + "|")
    for name, (function, shapes) in found.items():
        if options.operators and not any(word.lower() in name.lower() for word in options.operators):
            continue
        if not in_child(print_rows, name, function, shapes, bandwidth, options):
            return 1
    return 0


def print_rows(name, function, shapes, bandwidth, options):
    """Measure one operator and print its rows."""
    rows = measure(function, shapes, options)
    for index, use in enumerate(("evaluation", "training")):
        stock = statistics.median(rows[STOCK]["seconds"][index])
        if stock == math.inf:  # no gradient
            continue
        for dtype in options.formats:
            seconds = sorted(rows[dtype]["seconds"][index])
            middle, quarter = statistics.median(seconds), len(seconds) // 4
            print(
                f"| {name} | {use} | {dtype} | {1e3 * middle:.2f} "
                f"| {100 * (seconds[-1 - quarter] - seconds[quarter]) / middle:.0f} % | {1e3 * stock:.2f} "
                f"| {middle / stock:.2f} | {1e3 * rows[dtype]['bytes'][index] / bandwidth:.2f} "
                f"| {rows[dtype]['kept'] / 1e6:.1f} |",
                flush=True,
            )


def parse(words):
    parser = Parser(description=__doc__)
    add = parser.add_argument
    add("-operators", type="names", default=(), help="those whose names contain one of these words (default: all)")
    add("-formats", type="names", default=",".join(FORMATS), help="number formats (default: %(default)s)")
    add("-batch_size", type="count", default=8, help="images of a batch (default: %(default)s)")
    add("-rounds", type="count", default=9,
        help="measurements of a figure, after a first that warms up (default: %(default)s)")  # fmt: skip
    add("-threads", type="threads", help="compute threads (default: all cores)")
    options = parser.parse_args(words)
    options.formats = chosen(options.formats, FORMATS, "-formats")
    return options


def measure(function, shapes, options):
    """Return {format or "stock": {"seconds": [evaluation, training], "bytes": the same, "kept": bytes}}."""
    import paddle

    from image_classification import half_cpu

    clock = time.thread_time if os.environ["OMP_NUM_THREADS"] == "1" else time.perf_counter
    inputs, rows = {}, {}
    paddle.ones([1 << 27])  # half a GB; before 2.38 glibc gives an aligned block that was freed to none of its size
    for name in (STOCK, *options.formats):
        inputs[name] = [leaf(shape, name, options.batch_size) for shape in shapes]
        rows[name] = {"seconds": ([], []), "bytes": [0, 0], "kept": 0}
    # Each turn runs three times and counts the fastest: the first finds the caches as others left them.
    for turn, name in itertools.product(range(options.rounds + 1), inputs):
        tensors, fastest = inputs[name], [math.inf, math.inf]
        for _ in range(3):
            for tensor in tensors:
                tensor.clear_gradient(False)
            arguments = [
                argument(tensor, shape, name, options.batch_size) for tensor, shape in zip(tensors, shapes, strict=True)
            ]
            with contextlib.nullcontext() if name == STOCK else half_cpu.dispatch():
                with paddle.no_grad():
                    for _ in range(3):  # to enter a dispatch, as a model does once a step, cools the cache
                        function(*arguments)
                    start = clock()
                    result = function(*arguments)
                    evaluation = clock() - start
                    del result
                before = paddle.base.core.host_memory_stat_current_value("Allocated", 0)
                start = clock()
                result = function(*arguments)
                training = clock() - start
                rows[name]["kept"] = paddle.base.core.host_memory_stat_current_value("Allocated", 0) - before
            if result.stop_gradient:
                training = math.nan
            else:
                end_of_graph = ends_with(result)
                start = clock()
                end_of_graph.backward()
                for tensor in tensors:
                    if not tensor.stop_gradient:
                        tensor.grad.contiguous()
                training += clock() - start
                del end_of_graph
            fastest = [min(fastest[0], evaluation), min(fastest[1], training)]
            moved = sum(tensor.size * tensor.element_size() for tensor in (*tensors, result))
            rows[name]["bytes"] = [moved, 3 * moved]  # backward reads inputs and gradient and writes their gradients
            del result, arguments
        if turn:
            for seconds, value in zip(rows[name]["seconds"], fastest, strict=True):
                seconds.append(value)
    return rows


def ends_with(result):
    """Return a number whose backward pass starts at `result`, with a gradient in its memory order.

    A gradient that is handed to Paddle's engine from outside would be copied element by element first.
    """
    import paddle
    from paddle.autograd import PyLayer

    gradient = result.detach()

    class End(PyLayer):
        @staticmethod
        def forward(ctx, result):
            return paddle.ones([])

        @staticmethod
        def backward(ctx, one):
            return gradient

    return End.apply(result)


def leaf(shape, name, batch):
    """Return a dense random tensor; image batches as [B, H, W, C] but for stock Paddle. All but images of three colours
    require a gradient."""
    import paddle

    images = is_images(shape, batch)
    is_data = images and shape[1] == 3
    if name != STOCK and images:
        shape = [shape[axis] for axis in (0, 2, 3, 1)]
    tensor = paddle.randn(shape).astype("float32" if name == STOCK else name)
    tensor.stop_gradient = is_data
    return tensor


def is_images(shape, batch):
    """Return whether a shape of a case is an image batch: all of them are square."""
    return len(shape) == 4 and shape[0] == batch and shape[2] == shape[3]


def argument(tensor, shape, name, batch):
    """Return what the operator gets: a parameter itself, of another leaf a view, as a model hands on results; of images
    a view [B, C, H, W]."""
    if is_images(shape, batch) and name != STOCK:
        return tensor.transpose([0, 3, 1, 2])
    return tensor.transpose(range(len(shape))) if len(shape) == 3 or shape[0] == batch else tensor


def copy_bandwidth():
    """Return the bytes a second that a copy of 128 MB reads and writes, best of five."""
    import paddle

    source = paddle.ones([1 << 25])
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        source.clone()
        seconds.append(time.perf_counter() - start)
    return 2 * 4 * (1 << 25) / min(seconds)


def in_child(function, *arguments):
    """Return whether a call in a forked process, whose memory ends with it, went well."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        try:
            return os.waitpid(child, 0)[1] == 0
        except BaseException:  # Ctrl-C
            os.kill(child, signal.SIGKILL)
            raise
    status = 1
    try:
        function(*arguments)
        sys.stdout.flush()
        status = 0
    finally:
        os._exit(status)


if __name__ == "__main__":
    sys.exit(main())
