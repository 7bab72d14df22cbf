"""What each number format does to each model: difference of the logits, range, advice, time and memory of a step.

    python tools/format_table.py                                        # every family's digits-sized variant
    python tools/format_table.py resnet18 vit_tiny_patch16_224 -data=synthetic -json formats.json -plot formats.png
    python tools/format_table.py vit_tiny_digits -pretrained=output/{}/best_weights.safetensors

Two tables. The first has one line for each model and mode: the largest difference of the logits from float32's over the
largest logit, and the seconds and the memory above the idle process of a training step over float32's, medians over
-iterations steps, the modes of a model one after the other, -rounds times. The second has one line for each model: what
float16 would do to the values of a float32 training step at auto's first loss scale (shares of all values), and what
amp_doctor advises. Weights are random, from the configuration's seed, or those of -pretrained.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

if not __package__:  # run by its path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from image_classification.config import variants
from image_classification.config.catalogue import model_folders
from image_classification.runtime import Parser, UserError, atomic_write, command, progress_bar, refuse_existing

WORKER = Path(__file__).resolve().parent / "parts" / "format_worker.py"
PICTURES = (".png", ".svg")
MODES = (
    ("fp32", None), ("auto", "bfloat16"), ("auto", "float16"), ("O2", "bfloat16"), ("O2", "float16"),
    ("naive", "float16"),
)  # fmt: skip


@command
def main(arguments):
    """Print the tables and return the exit code."""
    options = parse(arguments)
    rows, ranges = [], []
    with progress_bar(len(options.variants) * len(MODES) * options.rounds, "formats", "run") as bar:
        for name in options.variants:
            measured = compare(name, options, bar)
            rows += measured[0]
            ranges.append(measured[1])
    print(table(rows), "", range_table(ranges), sep="\n")
    if options.json:
        with atomic_write(options.json) as file:
            file.write(json.dumps({"rows": rows, "ranges": ranges}, indent=1).encode())
    if options.plot:
        plot(rows, options.plot)
    return 0


def parse(words):
    """Return the options; the variants exist."""
    parser = Parser(description=__doc__)
    add = parser.add_argument
    add("variants", nargs="*", metavar="VARIANT", help="models (default: the digits-sized one of each family)")
    add("-data", choices=("real", "synthetic"), default="real",
        help="the configuration's images, or noise (default: %(default)s)")  # fmt: skip
    add("-pretrained", metavar="FILE", help="weights; {} stands for the variant (default: random weights)")
    add("-batch_size", type="count", default=32, help="images of a step (default: %(default)s)")
    add("-iterations", type="count", default=5, help="measured steps of a round (default: %(default)s)")
    add("-rounds", type="count", default=3, help="processes of each mode (default: %(default)s)")
    add("-json", type="new_file", metavar="FILE", help="write the figures as JSON")
    add("-plot", type="new_file", metavar="FILE", help="write the difference of the logits as a picture, PNG or SVG")
    options = parser.parse_args(words)
    known = variants()
    digits = [name for name, path in known.items() if name.endswith("_digits")]
    options.variants = options.variants or [
        next(name for name in digits if known[name].parents[1] == folder)
        for folder in model_folders().values()
        if any(known[name].parents[1] == folder for name in digits)
    ]
    unknown = [name for name in options.variants if name not in known]
    if unknown:
        parser.error(f"{unknown[0]}: no such variant; tools/list_models.py lists them")
    for name in options.variants if options.pretrained else ():
        if not Path(weights_of(options, name)).is_file():
            parser.error(f"-pretrained: {weights_of(options, name)}: no such file")
    if options.plot and options.plot.suffix.lower() not in PICTURES:
        parser.error(f"-plot: {options.plot}: ends in none of {', '.join(PICTURES)}")
    for flag in ("json", "plot"):
        if getattr(options, flag):
            refuse_existing(getattr(options, flag), f"-{flag}")
    options.variants = list(dict.fromkeys(options.variants))
    return options


def weights_of(options, name):
    """Return the file of a variant's weights, None where they are random."""
    return options.pretrained and options.pretrained.replace("{}", name)


def compare(name, options, bar):
    """Return ([row of each mode], the row of the ranges) of one variant."""
    import numpy as np

    with tempfile.TemporaryDirectory() as scratch:
        results = {mode: [] for mode in MODES}
        for _ in range(options.rounds):
            for mode in MODES:
                results[mode].append(measure(name, mode, options, Path(scratch) / f"{MODES.index(mode)}.npy"))
                bar.update()
        logits = [np.load(Path(scratch) / f"{number}.npy") for number in range(len(MODES))]
    rows, plain = [], results[MODES[0]]
    for (mode, dtype), mine in zip(MODES, logits, strict=True):
        done = results[mode, dtype]
        ratios = {
            key: sorted(one[key] / two[key] for one, two in zip(done, plain, strict=True))
            for key in ("seconds", "bytes")
        }
        difference = float(np.abs(mine - logits[0]).max() / np.abs(logits[0]).max())
        rows.append({
            "variant": name, "mode": mode, "dtype": dtype or "float32", "backend": done[0]["backend"],
            "difference": difference if np.isfinite(mine).all() else None,
            "time": statistics.median(ratios["seconds"]), "time_spread": ratios["seconds"][-1] - ratios["seconds"][0],
            "memory": statistics.median(ratios["bytes"]),
        })  # fmt: skip
    facts = {key: value for key, value in plain[0].items() if key not in ("seconds", "bytes", "backend")}
    return rows, {"variant": name} | facts


def measure(name, mode, options, path):
    """Return what one process measured; its logits are in the file."""
    task = {
        "cfg": name, "mode": mode[0], "dtype": mode[1], "data": options.data, "batch_size": options.batch_size,
        "iterations": options.iterations, "logits": str(path), "image_size": None, "device": "cpu", "opts": [],
        "weights": weights_of(options, name),
    }  # fmt: skip
    done = subprocess.run([sys.executable, str(WORKER), json.dumps(task)], capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise UserError(f"{name}, {mode[0]}: {reason.removeprefix('error: ')}")
    return json.loads(done.stdout.splitlines()[-1])


def table(rows):
    """Return one line for each model and mode."""
    lines = [
        "| model | mode | format | difference of logits | step time | spread | memory |",
        "| --- " * 3 + "| --: " * 4 + "|",
    ]
    for row in rows:
        difference = "not finite" if row["difference"] is None else f"{row['difference']:.1e}"
        lines.append(
            f"| {row['variant']} | {row['mode']} | {row['dtype']} | {difference} | {row['time']:.2f} "
            f"| {row['time_spread']:.2f} | {row['memory']:.2f} |"
        )
    return "\n".join(lines)


def range_table(ranges):
    """Return one line for each model: what float16 would do to float32's values."""
    lines = [
        "| model | largest activation | activations to inf | to 0 | gradients to inf | to 0 | keep in float32 |",
        "| --- " + "| --: " * 5 + "| --- |",
    ]
    for row in ranges:
        shares = [f"{100 * row[f'{kind}_{what}']:.2g} %" for kind in ("activation", "gradient")
                  for what in ("overflow", "flush")]  # fmt: skip
        keep = ", ".join(f"`{name}`" for name in row["keep_float32"]) or "nothing"
        lines.append(f"| {row['variant']} | {row['largest_activation']:.3g} | {' | '.join(shares)} | {keep} |")
    return "\n".join(lines)


def plot(rows, path):
    """Write a picture: one group of bars for each model, the difference of its logits in each mode."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(row["variant"] for row in rows))
    figure = Figure(figsize=(10, 1.2 + 0.5 * len(names)))
    axis = figure.subplots()
    height = 0.8 / (len(MODES) - 1)
    for place, (mode, dtype) in enumerate(MODES[1:]):
        values = {row["variant"]: row["difference"] for row in rows if (row["mode"], row["dtype"]) == (mode, dtype)}
        widths = [values[name] or float("nan") for name in names]
        positions = [index + (place - (len(MODES) - 2) / 2) * height for index in range(len(names))]
        axis.barh(positions, widths, height, label=f"{mode} {dtype}")
    axis.set(xscale="log", yticks=range(len(names)), yticklabels=names, xlabel="largest difference of the logits from "
             "float32 / largest logit")  # fmt: skip
    for rounding in (2.0**-8, 2.0**-11):  # at most, of one number in bfloat16, in float16
        axis.axvline(rounding, color="grey", linewidth=0.8)
    axis.margins(y=0.01)
    axis.invert_yaxis()
    axis.legend(fontsize="small")
    figure.tight_layout()
    with atomic_write(path) as file:
        figure.savefig(file, format=path.suffix.lstrip("."), dpi=120)


if __name__ == "__main__":
    sys.exit(main())
