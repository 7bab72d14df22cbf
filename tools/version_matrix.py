"""Run a fast part of the tests with every Python and Paddle that the README names, and print the table.

    python tools/version_matrix.py
    python tools/version_matrix.py --pythons 3.11 --paddles 3.3.1

Each pair has an environment of its own below --cache, made once with the ordinary package index. A pair that the
project supports must pass the tests; every other one must be refused by a training command, in one line and with exit
code 2. The tests are those of what depends on a version: private names and operators of Paddle, pickles and annotations
of Python, processes. To try a Paddle that is refused, widen PADDLES in image_classification/runtime/versions.py first.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if not __package__:  # run by its path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from image_classification.runtime import Parser, UserError, command, progress_bar
from image_classification.runtime.versions import PADDLES, PYTHONS, is_within, numbers

ENTRY_POINT = ROOT / "image_classification" / "ViT" / "main_single_gpu.py"
TESTS = [
    "tests/half_cpu/test_dispatch.py",  # Paddle's operator tables, methods and types
    "tests/half_cpu/test_dispatch_calls.py",
    "tests/half_cpu/test_reference.py",  # every operator's arguments and results
    "tests/half_cpu/test_inplace.py",  # autograd's versions, optimizers
    "tests/amp/test_private.py",
    "tests/amp/test_operator_casts.py",  # the operators that the lists name
    "tests/amp/test_precision.py",
    "tests/amp/test_storage.py",  # hooks of layers, state dictionaries
    "tests/config",  # annotations at run time
    "tests/runtime",
    "tests/weights/test_read.py",  # pickles and archives
    "tests/test_checkpoint.py",
    "tests/test_trainer.py",
    "tests/parallel/test_parallel.py",  # processes, gloo, fleet
]
VERSIONS = ["2.6.2", "3.0.0", "3.1.1", "3.2.2", "3.3.0", "3.3.1"]  # of Paddle


@command
def main(arguments):
    """Print the table and return the exit code: 0 when every pair is as the README says."""
    pythons = [f"{PYTHONS[0][0]}.{minor}" for minor in range(PYTHONS[0][1], PYTHONS[1][1])]
    parser = Parser(description=__doc__)
    parser.add_argument("-pythons", nargs="+", default=pythons, help="Python versions (default: %(default)s)")
    parser.add_argument("-paddles", nargs="+", default=VERSIONS, help="Paddle versions (default: %(default)s)")
    parser.add_argument(
        "-cache", type="new_folder", default=ROOT / ".venv-matrix", help="folder (default: .venv-matrix)"
    )
    options = parser.parse_args(arguments)
    for flag, given, form, example in (("-pythons", options.pythons, r"\d+\.\d+", "3.11"),
                                       ("-paddles", options.paddles, r"\d+(\.\d+){2}", "3.3.1")):  # fmt: skip
        for version in given:
            if not re.fullmatch(form, version):
                raise UserError(f"{flag}: {version!r}: expected a version such as {example}")
    cells = {}
    with progress_bar(len(options.pythons) * len(options.paddles), "versions", "pair") as bar:
        for paddle in options.paddles:
            for python in options.pythons:
                cells[paddle, python] = check(python, paddle, options.cache)
                bar.update()
    print(f"| Paddle | {' | '.join(f'Python {python}' for python in options.pythons)} |")
    print("| --- |" + " --- |" * len(options.pythons))
    for paddle in options.paddles:
        print(f"| {paddle} | {' | '.join(cells[paddle, python][1] for python in options.pythons)} |")
    return 0 if all(as_expected for as_expected, _ in cells.values()) else 1


def check(python, paddle, cache):
    """Return (whether the pair does what the README says, what it does)."""
    is_supported = is_within(numbers(paddle), PADDLES)
    folder = environment(python, paddle, cache, is_supported)
    interpreter = folder / "bin" / "python"
    if not is_supported:
        done = subprocess.run([interpreter, ENTRY_POINT, "-h"], capture_output=True, text=True)
        line = f"error: paddlepaddle {paddle} is not supported; "
        refused = done.returncode == 2 and done.stderr.startswith(line) and done.stderr.count("\n") == 1
        return refused, "refused" if refused else f"not refused, exit code {done.returncode}"
    command = [interpreter, "-m", "pytest", "-n", "2", "--dist", "loadgroup", "-q", "-m", "not slow", *TESTS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    (folder / "tests.txt").write_text(done.stdout + done.stderr)
    counts = re.findall(r"\d+ (?:passed|failed|errors?|skipped)", done.stdout.rpartition("\n=")[2])
    words = ", ".join(counts) or f"exit code {done.returncode}"
    return done.returncode == 0, words if done.returncode == 0 else f"{words}: see {folder / 'tests.txt'}"


def environment(python, paddle, cache, is_supported):
    """Return the folder of the pair's virtual environment, made where it is not there yet.

    Raises:
        UserError: there is no such Python here, or the package index has no such Paddle for it.
    """
    folder = cache.resolve() / f"python{python}-paddle{paddle}"
    if (folder / "ready").exists():
        return folder
    base = shutil.which(f"python{python}")
    if base is None:
        raise UserError(f"--pythons: python{python} is not on the PATH")
    # A refused Paddle is never imported, so it needs none of its dependencies.
    wanted = ["-r", ROOT / "requirements-common.txt", "pytest", "pytest-xdist"] if is_supported else ["--no-deps"]
    for words in (
        [base, "-m", "venv", "--clear", folder],
        [folder / "bin" / "python", "-m", "pip", "install", "--quiet", f"paddlepaddle=={paddle}", *wanted],
    ):
        done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "PIP_NO_INPUT": "1"})
        if done.returncode:
            raise UserError(f"{folder.name}: {(done.stderr.strip() or 'no message').splitlines()[-1]}")
    (folder / "ready").touch()
    return folder


if __name__ == "__main__":
    sys.exit(main())
