"""The course of a run as one picture, from the lines of its `metrics.jsonl`."""

from collections import defaultdict


def draw_curves(records, path):
    """Write a picture of loss, top-1, learning rate, and loss scale with skipped steps, over the steps taken.

    Args:
        records: the lines of `metrics.jsonl` as dictionaries, in their order.
        path: of the picture.
    """
    figure_of(records).savefig(path, dpi=120)


def read_series(records):
    """Return {"kind/name": ([steps taken, applied or skipped], [values])}; text such as "inf" becomes a number."""
    series, skipped = defaultdict(lambda: ([], [])), 0
    for record in records:
        skipped = record.get("skipped_steps", skipped)
        for name in record.keys() - {"kind", "epoch", "batch", "step"}:
            steps, values = series[f"{record['kind']}/{name}"]
            steps.append(record["step"] + skipped)
            values.append(float(record[name]))
    return dict(series)


def figure_of(records):
    """Return the matplotlib Figure of :func:`draw_curves`."""
    from matplotlib.figure import Figure

    series = read_series(records)
    figure = Figure(figsize=(11, 7), layout="constrained")
    axes = figure.subplots(2, 2).ravel()
    for axis, name in zip(axes, ("loss", "top1", "lr", "loss_scale"), strict=True):
        for kind, marker in (("train", ""), ("eval", "o")):
            if f"{kind}/{name}" in series:
                axis.plot(*series[f"{kind}/{name}"], marker=marker, markersize=3, label=kind)
        axis.set(xlabel="step", ylabel=name)
        axis.grid(alpha=0.3)
    for axis in axes[:2]:
        if axis.get_lines():
            axis.legend()
    axes[3].set_yscale("log", base=2)
    if "train/skipped_steps" in series:
        skipped = axes[3].twinx()
        skipped.step(*series["train/skipped_steps"], where="post", color="tab:red")
        skipped.set_ylabel("skipped steps", color="tab:red")
    return figure
