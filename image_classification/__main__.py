"""Training and the tools from anywhere: the command `image-classification`, or `python -m image_classification`."""

import ast
import difflib
import importlib
import sys
from pathlib import Path

from image_classification.files.plain import read_text
from image_classification.runtime import UserError, command

PROGRAM = "image-classification"
TOOLS = (
    "predict",
    "export",
    "list_models",
    "convert_weights",
    "prepare_dataset",
    "make_tfrecord",
    "show_batch",
    "amp_doctor",
    "compare_precision",
    "benchmark",
)
TRAINING = {"train": "Train, or evaluate with -eval: main_multi_gpu.py of the family that -cfg is of."}


@command
def main(arguments):
    """Run what the first word names with the words behind it, and return its exit code."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return 0 if arguments else 2
    name, words = arguments[0].replace("-", "_"), list(arguments[1:])
    if name not in (*TRAINING, *TOOLS):
        near = difflib.get_close_matches(name, (*TRAINING, *TOOLS), n=1)
        raise UserError(f"{arguments[0]!r} is no command; {f'did you mean {near[0]}?' if near else '-h lists them'}")
    sys.argv = [f"{PROGRAM} {name}", *words]
    if name in TRAINING:
        return train(words)
    return importlib.import_module(f"image_classification.tools.{name}").main(words)


def train(words):
    """Train or evaluate as a family's own program does, and end this process."""
    from image_classification.parallel.entry import prepare_processes

    prepare_processes()
    from image_classification.config.command_line import make_parser
    from image_classification.launch import main
    from image_classification.zoo import find_config

    main(find_config(make_parser().parse_args(words).cfg)[1])


def usage():
    """Return the help text: each command with the first line of what it says of itself."""
    folder = Path(__file__).parent / "tools"
    lines = TRAINING | {
        name: ast.get_docstring(ast.parse(read_text(folder / f"{name}.py"))).partition("\n")[0]
        for name in TOOLS
    }
    width = max(map(len, lines))
    return "\n".join([f"usage: {PROGRAM} COMMAND ...; each explains itself with -h", ""]
                     + [f"  {name:{width}}  {line}" for name, line in lines.items()])  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
