"""Print the registry's entries of timm's weights, as YAML; run it in the environment of `make test-peers`.

    .venv-peers/bin/python tools/registry_from_timm.py -results=results-imagenet.csv 'convnextv2_*'

Ids, licences and preprocessing come from the installed timm, top-1 on ImageNet-1k and the image size that it belongs to
from the results that its repository publishes (results/results-imagenet.csv), and multiply-adds from the tables of its
inference benchmarks (-benchmarks, results/benchmark-infer-*.csv) where the variant is in one of them at its own size.
What is printed goes into image_classification/weights/registry/<Family>.yaml; nothing is written.
"""

import csv
import fnmatch
import re
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parent / "parts")]  # torch_peers

from image_classification.files.plain import read_text
from image_classification.runtime import Parser, UserError, command

LARGEST_TABLE = 16 << 20  # bytes; timm's have less than 1 MB
RESULTS = {"model": False, "img_size": True, "top1": True, "crop_pct": True, "interpolation": False}
BENCHMARKS = {"model": False, "infer_img_size": True, "infer_gmacs": False}


@command
def main(arguments):
    """Print one section a variant and return the exit code."""
    parser = Parser(description=__doc__)
    parser.add_argument("patterns", nargs="+", help="shell patterns of timm's architectures")
    parser.add_argument("-results", required=True, help="results-imagenet.csv of timm's repository")
    parser.add_argument("-benchmarks", nargs="*", default=[], help="its benchmark-infer-*.csv")
    parser.add_argument(
        "-as", dest="names", action="append", default=[], metavar="TIMM=OURS", help="another name of a variant"
    )
    options = parser.parse_args(arguments)
    renamed = dict(word.split("=", 1) for word in options.names if re.fullmatch(r"[^=]+=[^=]+", word))
    if len(renamed) < len(options.names):
        raise UserError(f"-as: {' '.join(options.names)}: expected TIMM=OURS, each of another model of timm")
    results = {row["model"]: row for row in rows("-results", options.results, RESULTS)}
    gmacs = {}
    for path in options.benchmarks:
        for row in rows("-benchmarks", path, BENCHMARKS):
            if row["infer_gmacs"]:
                gmacs[row["model"].split(".")[0], int(float(row["infer_img_size"]))] = row["infer_gmacs"]
    try:
        from torch_peers import timm
    except ImportError as error:
        raise UserError(f"{error}: run this in the environment of `make test-peers`") from None

    known = timm.list_models()
    for word in [*options.patterns, *renamed]:
        if not fnmatch.filter(known, word):
            raise UserError(f"{word}: timm has no such architecture")
    for architecture in known:
        if any(fnmatch.fnmatch(architecture, pattern) for pattern in options.patterns):
            print(section(architecture, renamed.get(architecture, architecture), results, gmacs))
    return 0


def rows(flag, path, columns):
    """Return the rows of a CSV file as dictionaries.

    Args:
        columns: {name: whether each row must have a number there}, of those that are read.

    Raises:
        UserError: it has other columns, or a row lacks a number.
    """
    found = list(csv.DictReader(read_text(path, LARGEST_TABLE).splitlines()))
    for line, row in enumerate(found, 2):
        for name, is_number in columns.items():
            if row.get(name) is None or (is_number and not re.fullmatch(r"\d+(\.\d*)?", row[name])):
                what = "a number" if is_number else "a name"
                raise UserError(f"{flag}: {path}:{line}: expected {what} in column {name}, found {row.get(name)!r}")
    return found


def section(architecture, variant, results, gmacs):
    """Return the YAML of one variant with all its weights."""
    from torch_peers import timm

    tags = [name for name in timm.list_pretrained(f"{architecture}.*") if name.split(".")[0] == architecture]
    model = timm.create_model(architecture, num_classes=1000)
    lines = [f"{variant}:", f"  parameters: {sum(value.numel() for value in model.parameters())}"]
    weights = [weight(name, results) for name in tags]
    classifiers = [name for name in tags if name in results and timm.get_pretrained_cfg(name).num_classes == 1000]
    size = measured_size(classifiers[0] if classifiers else architecture, results)
    if (architecture, size) in gmacs:
        lines.append(f"  gmacs: {float(gmacs[architecture, size]):g}")
        classes = timm.get_pretrained_cfg(architecture).num_classes  # of the model that the benchmark builds
        if classes != 1000:
            lines.append(f"  gmacs_classes: {classes}")
    if classifiers:
        lines.append(f"  default: timm/{classifiers[0]}")
    lines.append("  weights:" if weights else "  weights: {}")
    lines += [line for _, text in weights for line in text]
    return "\n".join(lines) + "\n"


def measured_size(name, results):
    """Return the image size of a published top-1, else of the weights' training."""
    from torch_peers import timm

    return int(results[name]["img_size"]) if name in results else timm.get_pretrained_cfg(name).input_size[-1]


def weight(name, results):
    """Return (id, lines) of one set of weights of timm."""
    from torch_peers import timm

    config = timm.get_pretrained_cfg(name).to_dict()
    row = results.get(name)
    size = measured_size(name, results)
    is_test_size = size == (config.get("test_input_size") or config["input_size"])[-1]
    crop = row["crop_pct"] if row else (config.get("test_crop_pct") if is_test_size else None) or config["crop_pct"]
    words = {
        "crop_pct": f"{float(crop):g}" if float(crop) != 1 else "1.0",
        "image_size": size,
        "interpolation": row["interpolation"] if row else config["interpolation"],
        "library": "pil",
        "mean": list(config["mean"]),
        "std": list(config["std"]),
    }
    if config.get("crop_mode") == "squash":
        words["keep_aspect"] = "false"
    identifier = f"timm/{name}"
    licence = config.get("license") or "unknown"
    lines = [f"    {identifier}:", f"      hub: {config['hf_hub_id']}", f"      licence: {licence}"]
    if config["num_classes"] != 1000:
        lines.append(f"      classes: {config['num_classes']}")
    lines.append(f"      top1: {float(row['top1']):g}" if row and config["num_classes"] == 1000 else "      top1: null")
    lines.append("      preprocessing: {" + ", ".join(f"{key}: {value}" for key, value in words.items()) + "}")
    return identifier, lines


if __name__ == "__main__":
    sys.exit(main())
