"""Write the API reference as HTML pages, from the docstrings.

    python tools/make_api_reference.py
    python tools/make_api_reference.py -output=/tmp/api

Shows what a package offers in its `__all__`, of a module without one what does not begin with an underscore. A public
function, class or method without a docstring is an error.
"""

import importlib
import sys
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if not __package__:  # run by its path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from image_classification.runtime import Parser, UserError, command, prepare_process, refuse_existing

PACKAGES = ("amp", "half_cpu", "data", "weights", "parallel", "parallel.protocol", "layers", "zoo")


@command
def main(arguments):
    """Write the pages and return the exit code."""
    parser = Parser(description=__doc__)
    parser.add_argument("-output", type="new_folder", help="a new or an empty folder (default: build/docs, anew)")
    options = parser.parse_args(arguments)
    if options.output is None:
        options.output = ROOT / "build" / "docs"
    else:
        refuse_existing(options.output, "-output")
    prepare_process()  # pdoc lets nothing start a process while it imports a module, and Paddle does
    import pdoc
    import pdoc.render

    names = [f"image_classification.{name}" for name in PACKAGES]
    for name in names:
        undocumented = without_docstring(importlib.import_module(name))
        if undocumented:
            raise UserError(f"{name}: no docstring: {', '.join(undocumented)}")
    pdoc.render.configure(docformat="google", show_source=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:  # each package by what it offers, without the pages of its modules
            pdoc.pdoc(*(spec for name in names for spec in (name, f"!{name}.")), output_directory=options.output)
        except UserWarning as warning:
            raise UserError(str(warning)) from None
    print(f"API reference: {options.output / 'index.html'}")
    return 0


def without_docstring(module):
    """Return the public functions, classes and methods of a module that say nothing about themselves."""
    import pdoc.doc

    members = pdoc.doc.Module(module).own_members
    methods = [method for member in members if member.kind == "class" for method in member.own_members]
    return [
        member.qualname for member in (*members, *methods)
        if member.kind in ("class", "function") and not member.name.startswith("_") and not member.docstring
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
