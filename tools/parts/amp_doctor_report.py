"""What tools/amp_doctor.py shows of its runs: tables, advice, heat maps and histograms."""

import json

import numpy as np

from image_classification.amp.diagnosis import total
from image_classification.amp.observer import ACTIVATION, FORMATS, GRADIENT, LOWEST, PARAMETER
from image_classification.runtime import atomic_write, temporary_home

HISTOGRAM_SAMPLES = 1000  # VisualDL takes values, not counts


def layer_rows(run, scale):
    """Return one row for each layer, the most endangered first."""
    merged = total(run.records)
    rows = []
    for place, name in enumerate(run.order):
        activation, gradient = merged.get((name, ACTIVATION)), merged.get((name, GRADIENT))
        if activation is None:
            continue
        row = {"layer": name, "place": place, "largest_activation": activation.largest}
        row["largest_gradient"] = gradient.largest * scale if gradient else None
        for key, number_format in FORMATS.items():
            row[f"{key}_activation_overflow"] = activation.overflow_share(number_format)
            row[f"{key}_activation_flush"] = activation.flush_share(number_format)
            row[f"{key}_gradient_overflow"] = gradient.overflow_share(number_format, scale) if gradient else 0.0
            row[f"{key}_gradient_flush"] = gradient.flush_share(number_format, scale) if gradient else 0.0
        rows.append(row)
    danger = [f"float16_{what}" for what in ("activation_overflow", "gradient_overflow", "gradient_flush")]
    return sorted(rows, key=lambda row: [row[key] for key in (*danger, "largest_activation")], reverse=True)


def parameter_rows(run, scale):
    """Return one row for each parameter, the one that loses most of its gradient first."""
    rows = []
    for (name, kind), record in total(run.records).items():
        if kind == PARAMETER:
            row = {"parameter": name, "largest_gradient": record.largest * scale}
            for key, number_format in FORMATS.items():
                row[f"{key}_overflow"] = record.overflow_share(number_format, scale)
                row[f"{key}_flush"] = record.flush_share(number_format, scale)
            rows.append(row)
    return sorted(rows, key=lambda row: (row["float16_overflow"], row["float16_flush"]), reverse=True)


def advice_yaml(mode, found):
    """Return an AMP section that the configuration accepts as it is, with the reasons as comments."""
    lines = ["AMP:", f"  MODE: {'auto' if mode == 'fp32' else mode}", f"  DTYPE: {found.dtype}"]
    if mode == "O0":
        lines.pop()  # float32 has no half format
    if found.loss_scale is not None:
        what = "most gradients of some layers become 0" if found.loss_scale > found.scale else "gradients overflow"
        lines.append(f"  loss_scale: {found.loss_scale}  # at {found.scale:g} {what}")
    if found.keep_float32:
        lines.append("  keep_float32:")
        lines += [f"    - {json.dumps(name)}{_why(name, found)}" for name in found.keep_float32]
    return "\n".join(lines) + "\n"


def _why(name, found):
    if name in found.overflow:
        return "  # its activations overflow"
    return "  # most of its gradients become 0" if name in found.underflow else "  # what it is given overflows"


def show(facts, found, advice, options):
    """Print the tables, the findings and the advice."""
    print(f"\n{facts['model']}, {facts['precision']}: {facts['steps']} steps, {facts['skipped_steps']} skipped, loss "
          f"scale {facts['loss_scale']:g}; gradients below are multiplied by it\n")
    columns = ("activation_overflow", "activation_flush", "gradient_overflow", "gradient_flush")
    table = [("layer", "largest act.", "largest grad.", *(f"{fmt} {c.replace('_', ' ')}" for fmt in ("fp16", "bf16")
                                                         for c in ("act. inf", "act. 0", "grad. inf", "grad. 0")))]
    for row in facts["layers"][: options.rows]:
        gradient = "-" if row["largest_gradient"] is None else f"{row['largest_gradient']:.2e}"
        shares = [percent(row[f"{key}_{column}"]) for key in FORMATS for column in columns]
        table.append((row["layer"], f"{row['largest_activation']:.2e}", gradient, *shares))
    print_table(table)
    table = [("parameter", "largest grad.", "fp16 inf", "fp16 0", "bf16 inf", "bf16 0")]
    for row in facts["parameters"][: options.rows]:
        shares = [percent(row[f"{key}_{column}"]) for key in FORMATS for column in ("overflow", "flush")]
        table.append((row["parameter"], f"{row['largest_gradient']:.2e}", *shares))
    print_table(table)
    for run, key in (("", "first_non_finite"), ("float32 itself: ", "first_non_finite_float32")):
        first = facts[key]
        if first:
            kind = GRADIENT if first["kind"] == PARAMETER else first["kind"]  # weights are not looked at
            print(f"{run}first inf or NaN in step {first['step']}: {kind} of {first['name']}")
    if facts["first_non_finite_float32"]:
        print("the tables and what follows are of the steps before; look at the learning rate, the data, the weights")
    print(f"overflow in {found.dtype} of activations: {', '.join(found.overflow) or 'none'}")
    beyond = ", ".join(row["parameter"] for row in facts["parameters"] if row[f"{found.dtype}_overflow"]) or "none"
    print(f"overflow in {found.dtype} at loss scale {found.scale:g} of gradients of parameters: {beyond}")
    print(f"underflow in {found.dtype} at loss scale {found.scale:g}: {', '.join(found.underflow) or 'none'}")
    print(f"\nadvice, also in {options.report / 'advice.yaml'}:\n{advice}")


def percent(share):
    """Return a share as text; a small one is not rounded to nothing."""
    return "-" if share == 0 else f"{100 * share:.2f}%" if share >= 5e-5 else "<0.01%"


def print_table(rows):
    """Print rows of text in columns, the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        print("  ".join([row[0].ljust(widths[0]), *cells]).rstrip())
    print()


def draw(path, run, dtype, scale):
    """Write the heat maps: largest activation, and share of the gradient that becomes 0, layers x steps."""
    from matplotlib import ticker
    from matplotlib.figure import Figure

    largest = np.full((len(run.order), len(run.records)), np.nan)
    vanishing = largest.copy()
    place = {name: row for row, name in enumerate(run.order)}
    for step, records in enumerate(run.records):
        for record in records:
            if record.kind == ACTIVATION and record.largest:
                largest[place[record.name], step] = np.log2(record.largest)
            elif record.kind == GRADIENT:
                vanishing[place[record.name], step] = record.flush_share(FORMATS[dtype], scale)
    height = max(3.0, 0.16 * len(run.order) + 1.5)
    figure = Figure(figsize=(12, height), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    # float16 holds values below 2^16: white is 1, dark red the end
    panels = (
        (largest, "largest activation, log2", {"cmap": "coolwarm", "vmin": -16, "vmax": 16}),
        (vanishing, f"share of the gradient that becomes 0 in {dtype}", {"cmap": "magma_r", "vmin": 0, "vmax": 1}),
    )
    for axis, (values, title, colours) in zip(axes, panels, strict=True):
        image = axis.imshow(values, aspect="auto", interpolation="nearest", **colours)
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("step")
        axis.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
        figure.colorbar(image, ax=axis)
    axes[0].set_yticks(range(len(run.order)), run.order, fontsize=6)
    with atomic_write(path) as file:
        figure.savefig(file, format="png", dpi=110)


def write_histograms(folder, run):
    """Write the distribution of log2 |value| of each layer and step for VisualDL."""
    with temporary_home():
        from visualdl import LogWriter

    with LogWriter(logdir=str(folder)) as writer:
        for step, records in enumerate(run.records):
            for record in records:
                count = record.exponents.sum()
                if count and record.kind in (ACTIVATION, GRADIENT, PARAMETER):
                    samples = np.round(record.exponents * min(1.0, HISTOGRAM_SAMPLES / count)).astype(int)
                    values = np.repeat(np.arange(len(samples)) + LOWEST, np.maximum(samples, record.exponents > 0))
                    tag = f"log2 {record.kind}/{record.name}"
                    writer.add_histogram(tag, values.astype("float32"), step, buckets=40)
