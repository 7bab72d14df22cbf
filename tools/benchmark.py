"""Measure speed and memory of the precision modes on this machine, side by side, and print the table.

    python tools/benchmark.py -cfg vit_base_patch16_224 --modes fp32,auto,naive --batch-size 8
    python tools/benchmark.py -cfg resnet50 --modes fp32,auto --peers --json resnet50.json --plot resnet50.png
    python tools/benchmark.py --support-matrix

Each mode runs in a fresh process, and the modes take turns, round by round, so that whatever else the machine does
hits all of them alike. The speed-up is the median over the rounds of (seconds of the first row / seconds of the mode),
both of the same round. CPU s/it is the processor time of all threads; with --threads 1 it hardly depends on what else
the machine does. "Of products" is the time that the model's products would take at the speed that a large product
reaches in the best round (last line) over the time of the fastest round: the rest is everything else. Memory is the
peak above the idle process: Python with Paddle imported, no model. Beside mode fp32, a table says what a precision
costs: the check of the gradients, the scaler and the masters, and what the optimizer takes beyond that of fp32.
"""

import json
import operator
import os
import subprocess
import sys
from pathlib import Path

if not __package__:  # run by its path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from image_classification.config import chosen, preview_config, refuse_run_options
from image_classification.config.schema import FLOAT32_MODES, HALF_DTYPES, HALF_NAMES, PRECISION_MODES
from image_classification.runtime import (
    Parser,
    UserError,
    atomic_write,
    command,
    cores,
    prepare_process,
    progress_bar,
    refuse_existing,
)
from image_classification.tools.parts.benchmark_report import (
    add_machinery,
    add_shares,
    add_speedups,
    describe_products,
    describe_skipped,
    machine,
    machinery_table,
    plot,
    rounds_table,
    summary,
    table,
)
from image_classification.tools.parts.benchmark_worker import command_line

# Engines of PyTorch's worker: (name, whether it has bfloat16 on a CPU, whether it trains).
PEERS = {
    "eager": ("PyTorch", True, True), "compiled": ("PyTorch compiled", True, True),
    "onnxruntime": ("ONNX Runtime", False, False), "openvino": ("OpenVINO", True, False),
}  # fmt: skip
PARTS = Path(__file__).resolve().parent / "parts"
WORKER, TORCH_WORKER = PARTS / "benchmark_worker.py", PARTS / "benchmark_torch.py"
PICTURES = (".png", ".svg")
# What our entry points set and a stock Paddle does not have.
OUR_SETTINGS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_DEBUG_CPU_TYPE", "MKL_CBWR")


@command
def main(arguments):
    """Print the table and return the exit code."""
    options = parse(arguments)
    if options.support_matrix:
        prepare_process()
        from image_classification.amp.support import support_table

        print(support_table())
        return 0
    entries = contestants(options)
    *measurements, (_, of_products) = run_rounds(options, [*entries, large_product(options, entries[0])])
    products = {dtype: [one[dtype] for one in of_products] for dtype in of_products[0]}
    rows = [summary(contestant, rounds) for contestant, rounds in measurements]
    add_speedups(rows)
    add_shares(rows, products, products_of(options))
    add_machinery(rows, measurements)
    tables = [table(rows, options), describe_skipped(rows), rounds_table(rows), machinery_table(rows)]
    tables.append(describe_products(products))
    print("\n\n".join(filter(None, tables)))
    result = {
        "machine": machine() | {"products_per_second": products},
        "command": " ".join(["tools/benchmark.py", *arguments]),
        "rows": rows,
    }
    if options.json:
        with atomic_write(options.json) as file:
            file.write(json.dumps(result, indent=1).encode())
    if options.plot:
        plot(rows, options)
    return 0


def parse(words):
    parser = Parser(description=__doc__)
    add = parser.add_argument
    add("-cfg", default="vit_base_patch16_224", help="model, recipe, YAML file or run's folder (default: %(default)s)")
    add("-modes", type="names", default="fp32,auto,O1,O2,O3,naive",
        help=f"of {', '.join(PRECISION_MODES)} (default: %(default)s)")  # fmt: skip
    add("-dtypes", type="names", default="bfloat16", help=f"of {', '.join(HALF_DTYPES)} (default: %(default)s)")
    add("-batch_size", type="count", default=8, help="images of a step (default: %(default)s)")
    add("-image_size", type="count", help="side of the images in pixels (default: the configuration's)")
    add("-rounds", type="count", default=3, help="processes of each mode (default: %(default)s)")
    add("-iterations", type="count", default=5, help="measured steps of a round (default: %(default)s)")
    add("-threads", type="threads", help="compute threads (default: all cores)")
    add("-device", default="auto", help="as DEVICE of a configuration (default: %(default)s)")
    add("-data", choices=("synthetic", "real"), default="synthetic",
        help="noise, or the configuration's data set (default: %(default)s)")  # fmt: skip
    add("-evaluation", action="store_true", help="measure forward passes without gradients instead of training steps")
    add("-layers", action="store_true", help="measure the layers one by one as well, without replay")
    add("-opts", nargs="+", default=[], metavar="KEY=VALUE", help="further keys of the configuration; an option of the "
        "precision, such as AMP.INIT_SCALE=65536, goes to the modes that have it")  # fmt: skip
    add("-json", type="new_file", metavar="FILE", help="write the rows as JSON")
    add("-plot", type="new_file", metavar="FILE", help="write a bar chart, PNG or SVG")
    add("-peers", type="names", nargs="?", const="eager", default=(), metavar="ENGINES", help="measure timm's "
        f"model as well, where PyTorch is installed: {', '.join(PEERS)} (default of -peers: eager); and, beside a mode "
        "in float32, stock Paddle")  # fmt: skip
    add("-peer_python", metavar="PATH", help="Python with torch and timm (default: this one)")
    add("-support_matrix", action="store_true", help="print which mode works with which kind of run, and stop")
    options = parser.parse_args(words)
    options.modes = chosen(options.modes, PRECISION_MODES, "-modes", dict.fromkeys(HALF_NAMES, "-dtypes"))
    options.dtypes = chosen(options.dtypes, HALF_DTYPES, "-dtypes", HALF_NAMES)
    options.peers = chosen(options.peers, tuple(PEERS), "-peers")
    for engine in options.peers:
        if not PEERS[engine][2] and not options.evaluation:
            parser.error(f"-peers: {engine} does not train: add -evaluation")
    options.amp_opts = [(word[4:].partition("=")[0], word) for word in options.opts if word.startswith("AMP.")]
    options.amp_opts = [(option, word) for option, word in options.amp_opts if option not in ("MODE", "DTYPE")]
    options.opts = [word for word in options.opts if word not in dict(options.amp_opts).values()]
    if options.plot and options.plot.suffix.lower() not in PICTURES:
        parser.error(f"-plot: {options.plot}: ends in none of {', '.join(PICTURES)}")
    for flag in ("json", "plot"):
        if getattr(options, flag):
            refuse_existing(getattr(options, flag), f"-{flag}")
    return options


def contestants(options):
    """Return what is measured, in the order of the table: [{"name", "mode", "program", "environment"}]."""
    task = {
        "cfg": options.cfg, "batch_size": options.batch_size, "image_size": options.image_size, "data": options.data,
        "iterations": options.iterations, "device": options.device, "evaluation": options.evaluation,
        "opts": options.opts, "stock": False, "products": False, "layers": False,
    }  # fmt: skip
    environment = dict(os.environ)  # before this process sets what it needs: each contestant has its own settings
    if options.threads:
        environment |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(options.threads))
    check_row(task | {"mode": options.modes[0], "dtype": None})  # a mistake is answered before Paddle is imported
    prepare_process()
    from image_classification.amp.options import has_option, validate_options

    for option, word in options.amp_opts:
        if not any(has_option(mode, option) for mode in options.modes):
            try:
                validate_options(options.modes[-1], {option: None})
            except ValueError as error:
                raise UserError(f"-opts: {word}: {error}") from None
    result = []
    for mode in options.modes:
        of_mode = [word for option, word in options.amp_opts if has_option(mode, option)]
        for dtype in (None,) if mode in FLOAT32_MODES else options.dtypes:
            own = task | {"mode": mode, "dtype": dtype, "opts": [*options.opts, *of_mode]}
            check_row(own)
            program = [sys.executable, WORKER, json.dumps(own)]
            name = mode if dtype is None else f"{mode} {dtype}"
            result.append({"name": name, "mode": mode, "program": program, "environment": environment})
            if options.layers:
                program = [*program[:-1], json.dumps(own | {"layers": True})]
                result.append(result[-1] | {"name": f"{name}, layers", "program": program})
    if options.peers:
        in_float32 = any(mode in FLOAT32_MODES for mode in options.modes)
        result += stock_paddle(task, environment) if in_float32 else []
        result += torch_peers(task, environment, options, in_float32)
    return result


def check_row(task):
    """Refuse keys of -opts that would make another row of it than its name says, or ask for what is not done.

    Raises:
        UserError: names the key, and the option that says it.
    """
    config = preview_config([f"-cfg={task['cfg']}", *command_line(task)])
    refuse_run_options(config, "steps are measured, and nothing is kept")
    for key, option, wanted in (
        ("AMP.MODE", "-modes", task["mode"]), ("AMP.DTYPE", "-dtypes", task["dtype"]),
        ("DEVICE", "-device", task["device"]),
        ("DATA.BATCH_SIZE", "-batch_size", task["batch_size"]), ("DATA.IMAGE_SIZE", "-image_size", task["image_size"]),
        ("DATA.DATASET", "-data", "synthetic" if task["data"] == "synthetic" else None),
    ):  # fmt: skip
        found = operator.attrgetter(key)(config)
        if wanted not in (None, found):
            raise UserError(f"-opts: {key}: {option} says it: {wanted}, found {found}; leave it out")


def large_product(options, first):
    """Return what measures {number format: operations a second} of a large product, which is in no table."""
    task = {"products": True, "stock": False, "device": options.device, "dtypes": options.dtypes}
    return first | {"name": "a large product", "program": [sys.executable, WORKER, json.dumps(task)]}


def stock_paddle(task, environment):
    """Return stock Paddle as installed and, given all threads, the same model without any setting of ours."""
    bare = {name: value for name, value in environment.items() if name not in OUR_SETTINGS}
    program = [sys.executable, WORKER, json.dumps(task | {"mode": "fp32", "dtype": None, "stock": True})]
    threads = threads_of(environment)
    given = bare | {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    return [
        {"name": "stock Paddle, as installed", "mode": "fp32", "program": program, "environment": bare},
        {"name": f"stock Paddle, {threads} threads", "mode": "fp32", "program": program, "environment": given},
    ]


def products_of(options):
    """Return the operations of all products for one image, two for each multiply-add: forward, and when training both
    gradients as well. 0 for a model whose products are not counted."""
    from image_classification.config import load_config
    from image_classification.multiply_adds import count_multiply_adds
    from image_classification.zoo import find_config, make_model

    path, build_model = find_config(options.cfg)
    words = [f"DATA.IMAGE_SIZE={options.image_size}"] if options.image_size else []
    config = load_config([f"-cfg={path}", "-opts", *words, "DATA.NUM_WORKERS=0", *options.opts], build_model)
    images = config.DATA.IMAGE_SIZE, config.DATA.IMAGE_CHANNELS
    try:
        counted = count_multiply_adds(lambda: make_model(config, build_model), *images)
    except NotImplementedError:
        return 0
    return 2 * counted.total * (1 if options.evaluation else 3)


def torch_peers(task, environment, options, in_float32):
    """Return PyTorch + timm with autocast, and in float32 if asked for, or nothing where this Python has none.

    Raises:
        UserError: the Python of -peer_python does not run them.
    """
    python = options.peer_python or sys.executable
    try:
        found = subprocess.run([python, TORCH_WORKER], capture_output=True, text=True)
        ending = f"ends with exit code {found.returncode}"
        reason = found.returncode and (found.stderr.strip().rpartition("\n")[2] or ending)
    except OSError as error:
        reason = error.strerror
    if reason and options.peer_python:
        raise UserError(f"-peer_python: {python}: does not run PyTorch + timm: {reason}")
    if reason:
        print(f"PyTorch + timm: not measured, {python} does not run them ({reason})", file=sys.stderr)
        return []
    config = preview_config([f"-cfg={options.cfg}", "-opts", "DATA.NUM_WORKERS=0", *options.opts])
    own = {"model": config.MODEL.NAME, "optimizer": config.TRAIN.OPTIMIZER.NAME}
    own["num_classes"] = config.MODEL.NUM_CLASSES
    own["image_size"] = options.image_size or config.DATA.IMAGE_SIZE
    environment = environment | {"OMP_NUM_THREADS": threads_of(environment)}
    result = []
    for engine in options.peers:
        name, has_bfloat16, _ = PEERS[engine]
        modes = {"float32": "fp32"} if in_float32 or not has_bfloat16 else {}
        for dtype, mode in (modes | ({"bfloat16": "auto"} if has_bfloat16 else {})).items():
            program = [python, TORCH_WORKER, json.dumps(task | own | {"dtype": dtype, "engine": engine})]
            entry = {"name": f"{name} {dtype}", "mode": mode, "program": program, "environment": environment}
            result.append(entry | {"is_peer": True})
    return result


def threads_of(environment):
    """Return how many threads our own modes get, as a word."""
    return environment.get("OMP_NUM_THREADS") or str(cores())


def run_rounds(options, entries):
    """Return [(contestant, [measurement of each round])]; all of round 1 runs before any of round 2.

    Raises:
        UserError: a contestant of ours failed; a peer that fails is left out with a line on stderr.
    """
    measurements = [(entry, []) for entry in entries]
    failed = set()
    with progress_bar(options.rounds * len(entries), "benchmark", "run") as bar:
        for _ in range(options.rounds):
            for entry, rounds in measurements:
                if entry["name"] not in failed:
                    done = subprocess.run(
                        list(map(str, entry["program"])), env=entry["environment"], capture_output=True, text=True
                    )
                    if done.returncode == 0:
                        rounds.append(json.loads(done.stdout.splitlines()[-1]))
                    else:
                        reason = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
                        if "is_peer" not in entry:
                            raise UserError(f"{entry['name']}: {reason.removeprefix('error: ')}")
                        print(f"{entry['name']}: failed, not measured: {reason}", file=sys.stderr)
                        failed.add(entry["name"])
                bar.update()
    return [(entry, rounds) for entry, rounds in measurements if rounds]


if __name__ == "__main__":
    sys.exit(main())
