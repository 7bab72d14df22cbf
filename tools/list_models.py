"""List the models and their published weights.

    python tools/list_models.py                       # every variant
    python tools/list_models.py "resnet*" -sort top1  # by pattern, best first
    python tools/list_models.py "vit_base*" -weights  # every set of weights: id, top-1, licence, preprocessing
    python tools/list_models.py -where "parameters<30M" "top1>80" family=ViT "licence=apache*"
    python tools/list_models.py -families             # every family

Parameters, multiply-adds (GMACs) and top-1 are as published, see the registry. The tests count the parameters and the
multiply-adds of every variant, too; where none are published the count is printed. Multiply-adds are timm's: the
products of convolutions, linear layers and attention, and for a normalised value 2 (BatchNorm) or 5 (LayerNorm) more;
without these, which are up to 0.7 %, the figures are torchvision's.
"""

import fnmatch
import json
import math
import operator
import re
import sys
from pathlib import Path

if not __package__:  # run by its path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from image_classification.config import load_config, model_folders, variants
from image_classification.config.catalogue import family_of
from image_classification.runtime import Parser, UserError, command, prepare_process

CONDITION = re.compile(r"\s*([\w ]+?)\s*(<=|>=|=|<|>)\s*([^<=>\s].*?)\s*")
SORTABLE = ("name", "parameters", "gmacs", "top1")
NUMBER = re.compile(r"(\d+\.?\d*)([kMG]?)")
FORMATS = Path(__file__).resolve().parent / "formats.json"  # written by compare_precision.py, see docs/formats.md
AS_FLOAT32 = 0.02  # 7 of the 360 images of the digits, 3 standard deviations of one run (docs/benchmarks.md)
UNITS = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9}
COMPARISONS = {"=": operator.eq, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


@command
def main(arguments):
    """Print the table and return the exit code."""
    parser = Parser(description=__doc__)
    parser.add_argument("pattern", nargs="?", default="*", help="shell pattern of variants (default: *)")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("-weights", action="store_true", help="one line a set of weights instead of one a variant")
    what.add_argument("-families", action="store_true", help="one line a family; the pattern is one of families")
    parser.add_argument("-sort", choices=SORTABLE, default="name", help="default: name")
    parser.add_argument("-where", nargs="+", default=[], metavar="CONDITION",
                        help="rows whose columns satisfy all of them only: top1>80, 'licence=cc-by*'")  # fmt: skip
    parser.add_argument("-json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(arguments)
    sortable = ("name", "top1") if options.weights else ("name",) if options.families else SORTABLE
    if options.sort not in sortable:
        raise UserError(f"-sort={options.sort}: this list is sorted by {' or '.join(sortable)}")
    prepare_process()
    list_rows = list_weights if options.weights else list_families if options.families else list_variants
    # a condition that is none is refused at the first row: to count the multiply-adds of all takes a minute
    rows = [(row, all(satisfies(row, each) for each in options.where)) for row in list_rows(options.pattern)]
    if not rows:
        kind = "family" if options.families else "variant"
        hint = f"; did you mean '{options.pattern}*'?" if any(list_rows(f"{options.pattern}*")) else ""
        raise UserError(f"no {kind} matches {options.pattern!r}{hint}")
    rows = [row for row, is_kept in rows if is_kept]
    if not rows:
        raise UserError(f"-where: nothing is left by {' '.join(options.where)}")
    if options.sort != "name":
        rows.sort(key=lambda row: -(row[options.sort] or 0))
    print(json.dumps(rows, indent=1) if options.json else table(rows))
    return 0


def list_variants(pattern):
    """Yield one dictionary a variant whose name matches."""
    from image_classification.weights import read_registry, read_variants
    from image_classification.zoo import find_config

    published = {name: entry for family in read_variants().values() for name, entry in family.items()}
    entries, trained = read_registry(), trained_formats()
    for name in fnmatch.filter(variants(), pattern.lower()):
        path, build_model = find_config(name)
        known = published.get(name, {})
        default = known.get("default")
        yield {
            "variant": name,
            "family": path.parents[1].name,
            "image_size": load_config([f"-cfg={path}"], build_model).DATA.IMAGE_SIZE,
            "parameters": known.get("parameters") or count_parameters(path, build_model),
            "gmacs": known.get("gmacs") or count_gmacs(path, build_model),
            "top1": entries[default].top1 if default else None,
            "pretrained": default,
            "licence": entries[default].licence if default else None,
            "trains in": trained.get(path.parents[1].name),
        }


def list_families(pattern):
    """Yield one dictionary a family whose name matches, from its README, its YAMLs and its registry file."""
    from image_classification.weights import read_variants

    published, trained = read_variants(), trained_formats()
    for name, folder in model_folders().items():
        if not fnmatch.fnmatch(name.lower(), pattern.lower()):
            continue
        entries = published.get(name, {}).values()
        sizes = sorted(entry["parameters"] for entry in entries)
        sizes = dict.fromkeys(f"{size / 1e6:.0f}M" for size in sizes[:1] + sizes[-1:])
        publishers = {weights.partition("/")[0] for entry in entries for weights in entry["weights"]}
        yield {
            "family": name,
            "paper": re.search(r"^\*(.+?)\*", (folder / "README.md").read_text(encoding="utf-8"), re.MULTILINE)[1],
            "variants": len(list((folder / "configs").glob("*.yaml"))),
            "parameters": " - ".join(sizes) or None,
            "weights from": ", ".join(sorted(publishers)) or None,
            "trains in": trained.get(name),
        }


def list_weights(pattern):
    """Return one dictionary a set of weights whose variant matches."""
    from image_classification.weights import read_registry

    return [
        {
            "pretrained": entry.id,
            "variant": entry.variant,
            "top1": entry.top1,
            "licence": entry.licence,
            "resize": int(entry.preprocessing["image_size"] / entry.preprocessing["crop_pct"]),
            "interpolation": f"{entry.preprocessing['interpolation']} ({entry.preprocessing['library']})",
            "hash": entry.digest,
        }
        for entry in read_registry().values()
        if fnmatch.fnmatch(entry.variant, pattern.lower())
    ]


def trained_formats():
    """Return {family: the modes and formats in which its small model learns the digits as well as in float32}."""
    by_family = {}
    for variant, top1 in json.loads(FORMATS.read_text(encoding="utf-8")).items():
        names = [name for name in top1 if name != "fp32" and top1[name] >= top1["fp32"] - AS_FLOAT32]
        by_family[family_of(variant)] = " ".join(names)
    return by_family


def satisfies(row, condition):
    """Return whether a row satisfies a condition of `-where`: a column, =, <, <=, > or >=, and a number or a pattern.

    What a row does not say satisfies nothing.

    Raises:
        UserError: the condition is none, or of a column that there is not.
    """
    match = CONDITION.fullmatch(condition)
    if match is None or match[1] not in row:
        raise UserError(f"-where: {condition}: expected a column, =, <, <=, > or >=, and a value; columns are "
                        f"{', '.join(row)}")  # fmt: skip
    value, text, number = row[match[1]], match[3], NUMBER.fullmatch(match[3])
    if value is None:
        return False
    if match[2] == "=" and not (number and isinstance(value, int | float)):
        return fnmatch.fnmatch(str(value).lower(), text.lower())
    if number is None or not isinstance(value, int | float):
        raise UserError(f"-where: {condition}: {match[1]} is compared with a number, such as 30M, by this")
    return COMPARISONS[match[2]](value, float(number[1]) * UNITS[number[2]])


def count_parameters(path, build_model):
    """Return the number of trainable values, from shapes only."""
    import paddle

    from image_classification.zoo import make_model

    with paddle.LazyGuard():
        model = make_model(load_config([f"-cfg={path}"], build_model), build_model)
    return sum(math.prod(parameter.shape) for parameter in model.parameters() if not parameter.stop_gradient)


def count_gmacs(path, build_model):
    """Return the billions of multiply-adds for one image, normalisation included, to four digits."""
    from image_classification.multiply_adds import count_multiply_adds
    from image_classification.zoo import make_model

    config = load_config([f"-cfg={path}"], build_model)
    counted = count_multiply_adds(
        lambda: make_model(config, build_model), config.DATA.IMAGE_SIZE, config.DATA.IMAGE_CHANNELS
    )
    return round(counted.total_with_norms / 1e9, 4)


def table(rows):
    """Return the rows as aligned text, numbers to the right."""
    cells = [[_text(name, value) for name, value in row.items()] for row in rows]
    columns = list(zip(*[list(rows[0]), *cells], strict=True))
    widths = [max(map(len, column)) for column in columns]
    right = [all(isinstance(row[name], int | float | None) for row in rows) for name in rows[0]]
    lines = []
    for line in [list(rows[0]), *cells]:
        aligned = (
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        )
        lines.append("  ".join(aligned).rstrip())
    return "\n".join(lines)


def _text(name, value):
    if value is None:
        return "-"
    return f"{value / 1e6:.2f}M" if name == "parameters" and isinstance(value, int) else str(value)


if __name__ == "__main__":
    sys.exit(main())
