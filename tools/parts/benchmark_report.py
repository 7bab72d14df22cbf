"""From the measurements of tools/benchmark.py to its table, its chart and what they were measured on."""

import os
import platform
import statistics
from pathlib import Path

from image_classification.runtime import atomic_write, cores
from image_classification.runtime.versions import installed_paddles
from image_classification.tools.parts.benchmark_worker import PHASES


def summary(entry, rounds):
    """Return a row: means over all iterations, and the mean seconds of an iteration in each round."""
    iterations = [iteration for measured in rounds for iteration in measured["iterations"]]
    of_rounds = [
        statistics.mean(sum(one[phase] for phase in PHASES) for one in measured["iterations"]) for measured in rounds
    ]
    seconds = statistics.mean(of_rounds)
    first = rounds[0]
    return {
        "name": entry["name"],
        "mode": entry["mode"],
        "dtype": first["dtype"],
        "backend": first["backend"],
        "threads": first["threads"],
        "batch_size": first["batch_size"],
        "image_size": first["image_size"],
        "images_per_second": first["batch_size"] / seconds,
        "iterations_per_second": 1 / seconds,
        "seconds_per_iteration": seconds,
        "seconds_of_rounds": of_rounds,
        "cpu_seconds_per_iteration": statistics.mean(one["cpu"] for one in iterations),
        "spread": statistics.stdev(of_rounds) / seconds if len(of_rounds) > 1 else 0.0,
        "peak_memory_bytes": max(measured["peak_memory_bytes"] for measured in rounds),
        "memory_above_idle_bytes": max(one["peak_memory_bytes"] - one["idle_memory_bytes"] for one in rounds),
        "phases": {phase: statistics.mean(one[phase] for one in iterations) for phase in PHASES},
        "steps": len(iterations),
        "skipped_steps": sum(one.get("skipped", False) for one in iterations),
    }


def add_speedups(rows):
    """Add to each row the median, least and greatest ratio of the first row's seconds to its own, round by round."""
    first = rows[0]["seconds_of_rounds"]
    for row in rows:
        ratios = [one / other for one, other in zip(first, row["seconds_of_rounds"], strict=False)]
        row["speedup"] = statistics.median(ratios)
        row["speedup_range"] = [min(ratios), max(ratios)]


def add_shares(rows, products, operations):
    """Add to each row the share of the machine's product speed, {number format: that of each round}, that it reaches
    with so many operations an image: the best round's of both."""
    for row in rows:
        wanted = operations * row["batch_size"] / max(products.get(row["dtype"], [float("inf")]))
        row["share_of_products"] = wanted / min(row["seconds_of_rounds"])


def add_machinery(rows, measurements):
    """Add to each row of a training step of ours what its precision costs, of the median iteration: processor seconds
    of the scaler, of the optimizer beyond float32's own, and the share of the step that both are."""
    plain = None
    for row, (_, rounds) in zip(rows, measurements, strict=True):
        iterations = [one for measured in rounds for one in measured["iterations"] if "cpu_phases" in one]
        if not iterations:
            continue
        scaler, optimizer = (
            statistics.median(one["cpu_phases"][phase] for one in iterations) for phase in ("scaler", "optimizer")
        )
        if plain is None:
            if row["mode"] != "fp32":
                continue
            plain = optimizer
        cpu = statistics.median(one["cpu"] for one in iterations)
        beyond = optimizer - plain if optimizer else 0.0  # none in a run that skips its steps
        share = (scaler + beyond) / cpu
        row["machinery"] = {"scaler": scaler, "optimizer": optimizer, "beyond": beyond, "share": share}


def machinery_table(rows):
    """Return what the precision costs in the rows that say so, as a Markdown table; nothing where there are none."""
    if not any("machinery" in row for row in rows):
        return ""
    lines = [
        "| processor time of a step, ms | check, scaler, masters | optimizer | beyond float32's | share of the step |",
        "| --- | --: | --: | --: | --: |",
    ]
    for row in rows:
        if "machinery" in row:
            parts = (row["machinery"][part] * 1e3 for part in ("scaler", "optimizer", "beyond"))
            times = " | ".join(f"{part:.1f}" for part in parts)
            lines.append(f"| {row['name']} | {times} | {row['machinery']['share']:.1%} |")
    return "\n".join(lines)


def table(rows, options):
    """Return the rows as a Markdown table."""
    what = "evaluation" if options.evaluation else "training"
    lines = [
        f"{options.cfg}, {what}, batch {rows[0]['batch_size']}, {rows[0]['image_size']} pixels, "
        f"{rows[0]['threads']} threads, {options.rounds} rounds of {options.iterations} iterations",
        "",
        "| mode | runs on | memory above idle | it/s | images/s | s/it | spread | CPU s/it | of products "
        "| speed-up (rounds) | data / forward / backward / optimizer / scaler, ms |",
        "| --- | --- " + "| --: " * 9 + "|",
    ]
    for row in rows:
        least, greatest = row["speedup_range"]
        phases = " / ".join(f"{row['phases'][phase] * 1e3:.0f}" for phase in PHASES)
        lines.append(
            f"| {row['name']} | {row['backend']} | {row['memory_above_idle_bytes'] / 2**20:.0f} MiB "
            f"| {row['iterations_per_second']:.3f} | {row['images_per_second']:.2f} "
            f"| {row['seconds_per_iteration']:.3f} | {row['spread']:.1%} | {row['cpu_seconds_per_iteration']:.3f} "
            f"| {row['share_of_products']:.2f} | {row['speedup']:.2f} ({least:.2f}-{greatest:.2f}) | {phases} |"
        )
    return "\n".join(lines)


def rounds_table(rows):
    """Return the table of PaddleViT's AMP page: seconds for 100 iterations in each round, average and speed-up."""
    numbers = [str(number + 1) for number in range(len(rows[0]["seconds_of_rounds"]))]
    lines = [
        f"| s for 100 iterations | {' | '.join(numbers)} | average | speed-up |",
        f"| --- |{' --: |' * len(numbers)} --: | --: |",
    ]
    for row in rows:
        seconds = [f"{100 * one:.2f}" for one in row["seconds_of_rounds"]]
        seconds += [""] * (len(numbers) - len(seconds))  # of a row that failed in a round
        lines.append(
            f"| {row['name']} | {' | '.join(seconds)} | {100 * row['seconds_per_iteration']:.2f} "
            f"| {row['speedup']:.3f} |"
        )
    return "\n".join(lines)


def describe_skipped(rows):
    """Return a line for each row some of whose steps were skipped, and took no optimizer's time."""
    lines = []
    for row in rows:
        if row["skipped_steps"]:
            of = f"{row['name']}: {row['skipped_steps']} of {row['steps']}"
            lines.append(f"{of} steps were skipped, without the time of an optimizer: a gradient was not finite")
    return "\n".join(lines)


def describe_products(products):
    """Return one line: how fast products alone are, which bounds the speed-up of everything that consists of them."""
    slowest = max(products["float32"])
    words = [
        f"{name} {max(speeds) / 1e9:.0f} GFLOP/s ({max(speeds) / slowest:.2f}x; rounds from {min(speeds) / 1e9:.0f})"
        for name, speeds in products.items()
    ]
    return f"matrix products alone, [1576, 768] x [768, 3072]: {', '.join(words)}"


def machine():
    """Return what the figures were measured on."""
    name = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").is_file():
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), name)
    return {
        "processor": name,
        "cores": cores(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(),
        "paddle": ", ".join(installed_paddles().values()),
        "python": platform.python_version(),
    }


def plot(rows, options):
    """Write a bar chart of images/s and memory."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 0.45 * len(rows) + 1.6))
    axes = figure.subplots(1, 2, sharey=True)
    names = [row["name"] for row in rows]
    for axis, key, unit, label in (
        (axes[0], "images_per_second", 1, "images/s"),
        (axes[1], "memory_above_idle_bytes", 2**20, "peak memory above idle, MiB"),
    ):
        bars = axis.barh(names, [row[key] / unit for row in rows], color="tab:blue")
        axis.bar_label(bars, fmt="%.4g", padding=3)
        axis.set_xlabel(label)
        axis.margins(x=0.15)
    axes[0].invert_yaxis()
    figure.suptitle(f"{options.cfg}, batch {rows[0]['batch_size']}, {machine()['processor']}")
    figure.tight_layout()
    with atomic_write(options.plot) as file:
        figure.savefig(file, format=options.plot.suffix.lstrip("."), dpi=120)
