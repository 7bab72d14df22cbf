"""What an evaluation leaves besides its figures: each class's accuracy, the confusion matrix, the calibration."""

import csv
import io
import json

import numpy as np

from .fonts import drawable, families_for
from .runtime import atomic_write

NUM_WORST = 10
LARGEST_LABELLED = 40  # classes; beyond it names would overlap in the picture
LONGEST_NAME = 16  # letters
MOST_DIGITS = 60  # in a row of cells; beyond it numbers would overlap


def write_class_files(folder, report, class_names):
    """Write `per_class.csv`, `confusion.csv`, `confusion.png` into a run folder and return the lines to log.

    Args:
        folder: the RunFolder.
        report: the ClassReport over all images.
        class_names: one name a class.
    """
    folder.write_text("per_class.csv", _per_class(report, class_names))
    folder.write_text("confusion.csv", _confusion(report, class_names))
    with atomic_write(folder.path / "confusion.png") as file:
        draw_confusion(report.confusion, class_names, file)
    lines = [f"expected calibration error: {report.expected_calibration_error():.4f}"]
    for index, accuracy, images in report.worst_classes(NUM_WORST):
        if accuracy < 1:
            lines.append(f"worst classes: {class_names[index]}: {accuracy:.4f} of {images} images")
    return lines


def summary(report, class_names):
    """Return the figures of a ClassReport as plain values, for JSON."""
    return {
        "expected_calibration_error": report.expected_calibration_error(),
        "worst_classes": [
            {"class": class_names[index], "accuracy": accuracy, "images": images}
            for index, accuracy, images in report.worst_classes(NUM_WORST)
        ],
    }


def write_summary(folder, values):
    """Write `evaluation.json`."""
    folder.write_text("evaluation.json", json.dumps(values, indent=1, ensure_ascii=False) + "\n")


def draw_confusion(confusion, class_names, file):
    """Write the confusion matrix as a picture: rows are labels, columns predictions, colours shares of the label."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shares = confusion / np.maximum(confusion.sum(axis=1, keepdims=True), 1)
    count = len(confusion)
    figure = Figure(figsize=(8, 7), dpi=120)
    axes = figure.add_subplot()
    axes.set(xlabel="prediction", ylabel="label")
    room = 0.4  # inches of an axis's ticks and their numbers
    if count <= LARGEST_LABELLED:
        names = [_shortened(name) for name in drawable(map(str, class_names))]
        style = {"parse_math": False, "fontfamily": families_for(names)}  # a $ in a name begins no formula
        axes.set_xticks(range(count), names, rotation=90, **style)
        axes.set_yticks(range(count), names, **style)
        renderer = FigureCanvasAgg(figure).get_renderer()
        room = 0.1 + max(label.get_window_extent(renderer).width for label in axes.get_yticklabels()) / figure.dpi
    figure.subplots_adjust(left=(room + 0.4) / 8, right=0.99, bottom=(room + 0.4) / 7, top=0.98)
    figure.colorbar(axes.imshow(shares, cmap="viridis", vmin=0, vmax=1, interpolation="nearest"), ax=axes)
    if count * len(str(confusion.max())) <= MOST_DIGITS:
        for label, prediction in np.ndindex(confusion.shape):
            colour = "black" if shares[label, prediction] > 0.6 else "white"  # viridis ends bright
            axes.text(prediction, label, str(confusion[label, prediction]), color=colour, ha="center", va="center")
    figure.savefig(file, format="png")


def _shortened(name):
    """Return a name with its middle left out where it is long: what tells names apart is at their ends as often."""
    return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME // 2]}…{name[1 - LONGEST_NAME // 2 :]}"


def _per_class(report, class_names):
    rows = [("class", "name", "images", "accuracy", "most confused with", "times")]
    accuracy = report.per_class_accuracy()
    for index, row in enumerate(report.confusion):
        others = row.copy()
        others[index] = 0
        worst = int(others.argmax())
        confused = (class_names[worst], int(others[worst])) if others[worst] else ("", 0)
        share = "" if np.isnan(accuracy[index]) else f"{accuracy[index]:.6f}"
        rows.append((index, class_names[index], int(row.sum()), share, *confused))
    return _to_csv(rows)


def _confusion(report, class_names):
    header = ("label \\ prediction", *class_names)
    return _to_csv([header, *((name, *row.tolist()) for name, row in zip(class_names, report.confusion, strict=True))])


def _to_csv(rows):
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
