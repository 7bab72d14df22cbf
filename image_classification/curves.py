"""The course of a run as one picture, from the lines of its `metrics.jsonl`."""

from collections import defaultdict

from .runtime import atomic_write

KINDS = ("train", "eval")


def draw_curves(records, path):
    """Write a picture of loss, top-1, learning rate, and loss scale with skipped steps, over the steps taken.

    Args:
        records: the lines of `metrics.jsonl` as dictionaries, in their order.
        path: of the picture.
    """
    figure = figure_of(records)
    with atomic_write(path) as file:
        figure.savefig(file, format="png", dpi=120)


def read_series(records):
    """Return {"kind/name": ([steps taken, applied or skipped], [values])}; text such as "inf" becomes a number."""
    series, skipped = defaultdict(lambda: ([], [])), 0
    for record in records:
        if record["kind"] not in KINDS:  # a hook of the user's own may write others
            continue
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
    figure = Figure(figsize=(11, 7))
    figure.subplots_adjust(left=0.09, right=0.93, bottom=0.07, top=0.96, wspace=0.22, hspace=0.12)
    axes = figure.subplots(2, 2, sharex=True).ravel()  # a loss that is no number any more ends before the others
    for axis, name in zip(axes, ("loss", "top1", "lr", "loss_scale"), strict=True):
        for kind in KINDS:
            if f"{kind}/{name}" in series:
                steps, values = series[f"{kind}/{name}"]
                marker = "o" if kind == "eval" or len(steps) == 1 else ""
                axis.plot(steps, values, marker=marker, markersize=3, label=kind)
        axis.set_ylabel(name)
        axis.grid(alpha=0.3)
    for axis in axes[:2]:
        if axis.get_lines():
            axis.legend()
    for axis in axes[2:]:
        axis.set_xlabel("step")
    axes[0].locator_params(axis="x", integer=True, min_n_ticks=1)
    axes[3].set_yscale("log", base=2)
    if "train/skipped_steps" in series:
        skipped = axes[3].twinx()
        skipped.step(*series["train/skipped_steps"], where="post", color="tab:red")
        skipped.set_ylabel("skipped steps", color="tab:red")
        skipped.locator_params(axis="y", integer=True, min_n_ticks=1)
    return figure
