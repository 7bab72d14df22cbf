"""Plant faults in a copy of the project, one at a time, and see that the tests find each of them.

    python tools/mutate.py                                  # every mutation of tests/mutations.yaml
    python tools/mutate.py -k resume -j 2                   # those with "resume" in their names, two at a time
    python tools/mutate.py -table docs/mutations.md         # all of them, with the table as a page
    python tools/mutate.py -k resume -table docs/mutations.md     # those of the page with "resume" anew

A mutation is a text of one file that is replaced by another, and the test that must fail then. The same tests must pass
in a copy without a fault. A fault that its test does not find survives, and the exit code is 1; a mutation that does
not fit the tree, or breaks it so that no test runs, is an error, and the exit code is 2.
"""

import concurrent.futures
import dataclasses
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
if not __package__:  # run by its path
    sys.path.insert(0, str(ROOT))

from image_classification.runtime import Parser, UserError, atomic_write, command
from image_classification.tools.parts.mutation_page import (
    BROKEN,
    HEAD,
    KILLED,
    SKIPPED,
    SURVIVED,
    count,
    page,
    row,
    rows_of_page,
)

LIST = "tests/mutations.yaml"
TIMEOUT = 600  # seconds for the tests of one mutation
# A test that fails with one of these met a fault that any run would meet, and says nothing of what it checks.
WORTHLESS = ("NameError", "SyntaxError", "IndentationError", "ImportError", "ModuleNotFoundError", "UnboundLocalError")


@dataclasses.dataclass(frozen=True)
class Mutation:
    """`old`, which occurs once in `file`, becomes `new`; `test`, a node id of pytest, must fail then."""

    name: str
    file: str
    old: str
    new: str
    why: str
    test: str


@dataclasses.dataclass(frozen=True)
class Result:
    """What became of a mutation: KILLED by a case of its test, SURVIVED, SKIPPED where this machine cannot run
    that test, or BROKEN for the reason in `text`."""

    mutation: Mutation
    state: str
    text: str
    seconds: float


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One call of pytest: its exit code (None after a timeout), {test: (passed, failed or skipped, first line of the
    reason)}, and the end of its output."""

    code: int | None
    cases: dict
    text: str


@command
def main(arguments):
    """Run the mutations, print the table and return the exit code."""
    parser = Parser(description=__doc__)
    parser.add_argument("-k", default="", metavar="TEXT",
                        help="only those with one of these texts, a,b, in the name (default: all)")  # fmt: skip
    parser.add_argument("-j", type="count", default=1, metavar="N", help="mutations at the same time (default: 1)")
    parser.add_argument("-table", type=Path, metavar="FILE", help="write the table there, as a page in Markdown")
    parser.add_argument("-root", type=Path, default=ROOT, help="tree to work on, a git work tree (default: this one)")
    options = parser.parse_args(arguments)
    mutations = read_list(options.root)
    chosen = [mutation for mutation in mutations if any(text in mutation.name for text in options.k.split(","))]
    if not chosen:
        raise UserError(f"-k: {options.k}: no mutation of {LIST} has this in its name")
    rows = rows_of_page(options.table) if options.table is not None else {}
    absent = [mutation.name for mutation in mutations if mutation not in chosen and mutation.name not in rows]
    if options.table is not None and absent:
        raise UserError(f"-table: {options.table} has no result of {absent[0]} yet, so -k must not leave it out")
    results = run(options.root, chosen, options.j)
    new = {result.mutation.name: row(result) for result in results}
    print("", *HEAD, *new.values(), "", count(new.values()), sep="\n")
    if options.table is not None:
        with atomic_write(options.table) as file:
            kept = {result.mutation.name for result in results if result.state == SKIPPED} & rows.keys()
            file.write(page(mutations, rows | {name: new[name] for name in new.keys() - kept}).encode())
    states = {result.state for result in results}
    return 2 if BROKEN in states else 1 if SURVIVED in states else 0


def read_list(root):
    """Return the mutations of a tree's list.

    Raises:
        UserError: the list is not what it should be, or a mutation does not fit the tree; all of them are named.
    """
    path = root / LIST
    try:
        mutations = [Mutation(**entry) for entry in yaml.safe_load(path.read_text(encoding="utf-8"))]
    except (OSError, yaml.YAMLError, TypeError) as error:
        raise UserError(f"{path}: {' '.join(str(error).split())}") from None
    errors = [f"{mutation.name}: {error}" for mutation in mutations if (error := misfit(root, mutation))]
    names = [mutation.name for mutation in mutations]
    errors += [f"{name}: two mutations have this name" for name in sorted({n for n in names if names.count(n) > 1})]
    if errors:
        raise UserError("; ".join(errors))
    return mutations


def misfit(root, mutation):
    """Return why a mutation does not fit the tree, None where it does."""
    path = root / mutation.file
    if not path.is_file():
        return f"there is no file {mutation.file}"
    times = path.read_text(encoding="utf-8").count(mutation.old)
    if times != 1:
        return f"its old text occurs {times} times in {mutation.file}"
    if mutation.old == mutation.new:
        return "it changes nothing"
    if path.suffix == ".py":
        try:
            compile(mutated(root, mutation), mutation.file, "exec")
        except SyntaxError as error:
            return f"what it leaves is no Python: {error.msg} in line {error.lineno}"
    file, _, function = mutation.test.partition("::")
    pattern = rf"^def {re.escape(function.partition('[')[0])}\("
    found = (root / file).is_file() and re.search(pattern, (root / file).read_text(encoding="utf-8"), re.MULTILINE)
    return None if found else f"there is no test {mutation.test}"


def mutated(root, mutation):
    """Return the text of the mutation's file with the fault."""
    return (root / mutation.file).read_text(encoding="utf-8").replace(mutation.old, mutation.new)


def run(root, mutations, jobs):
    """Return the results of the mutations, in their order, and say how each one ended meanwhile."""
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        copies = queue.SimpleQueue()
        for number in range(jobs):
            copies.put(copy_tree(root, Path(folder) / str(number)))
        failing, skipped = check_unmutated(copies, mutations)
        start, lock, done = time.monotonic(), threading.Lock(), []

        def attempt(mutation):
            if mutation.test in failing:
                result = Result(mutation, BROKEN, f"its test fails without it: {failing[mutation.test]}", 0.0)
            elif mutation.test in skipped:
                result = Result(mutation, SKIPPED, f"so is its test: {skipped[mutation.test]}", 0.0)
            else:
                copy = copies.get()
                try:
                    result = try_mutation(copy, mutation)
                finally:
                    copies.put(copy)
            with lock:
                done.append(result)
                left = (time.monotonic() - start) / len(done) * (len(mutations) - len(done))
                print(f"[{len(done)}/{len(mutations)}] {result.state} {mutation.name}: {result.text} "
                      f"({result.seconds:.1f} s, eta {left / 60:.0f} min)", flush=True)  # fmt: skip
            return result

        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            waiting = [pool.submit(attempt, mutation) for mutation in mutations]
            try:
                return [future.result() for future in waiting]
            except BaseException:  # Ctrl-C ends with the tests that are under way
                pool.shutdown(cancel_futures=True)
                raise


def copy_tree(root, folder):
    """Copy every file of a git work tree, as it is now, that git does not ignore; return the copy's folder."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True)
    if listed.returncode:
        raise UserError(f"{root}: {listed.stderr.strip()}")
    for name in set(filter(None, listed.stdout.split("\0"))):
        if os.path.lexists(root / name):  # not one that was removed since the last commit
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, folder / name, follow_symlinks=False)  # the package has configs/ by a link
    return folder


def check_unmutated(copies, mutations):
    """Run all tests of the mutations in a copy without a fault.

    Returns:
        {test: error} of those that fail, and {test: reason} of those of which every case is skipped.
    """
    copy = copies.get()
    tests = list(dict.fromkeys(mutation.test for mutation in mutations))
    print(f"{len(tests)} tests without a fault ...", flush=True)
    start = time.monotonic()
    outcome = run_tests(copy, tests, len(tests) * TIMEOUT, "--maxfail=1000")
    copies.put(copy)
    if outcome.code not in (0, 1):
        print(outcome.text)
        raise UserError("the tests do not run without a fault")
    print(f"{len(tests)} tests without a fault: {time.monotonic() - start:.1f} s", flush=True)
    failing, skipped = {}, {}
    for test in tests:
        ends = [end for case, end in outcome.cases.items() if test in (case, case.partition("[")[0])]
        for state, text in ends:
            if state == "failed":
                failing[test] = text
        if ends and all(state == "skipped" for state, _ in ends):
            skipped[test] = ends[0][1]
    return failing, skipped


def try_mutation(copy, mutation):
    """Return the result of one mutation; the copy is as before then."""
    start = time.monotonic()
    path = copy / mutation.file
    original = path.read_bytes()
    path.write_text(mutated(copy, mutation), encoding="utf-8")
    try:
        outcome = run_tests(copy, [mutation.test], TIMEOUT, "-x")
    finally:
        path.write_bytes(original)
    return Result(mutation, *verdict(outcome), time.monotonic() - start)


def verdict(outcome):
    """Return (state, text) for what pytest said of the tests that must fail."""
    if outcome.code is None:
        return SURVIVED, f"its test does not end within {TIMEOUT} s"
    if outcome.code == 0:
        return SURVIVED, "its test passes"
    failures = {case: text for case, (state, text) in outcome.cases.items() if state == "failed"}
    if outcome.code != 1 or not failures:  # 2: a test file could not be imported, 4: no such test, ...
        said = re.findall(r"^E +(.*)", outcome.text, re.MULTILINE) or outcome.text.split("\n")[-4:]
        return BROKEN, f"pytest ends with {outcome.code}: {' '.join(' '.join(said).split())[:300]}"
    case, error = next(iter(failures.items()))
    if re.search(rf"\b({'|'.join(WORTHLESS)})\b", error.partition(":")[0]):
        return BROKEN, f"{case} fails by itself: {error}"
    return KILLED, f"{case}: {error}"


def run_tests(folder, tests, timeout, *flags):
    """Return the Outcome of the tests in the tree at `folder`."""
    report = folder / "mutations-report.xml"
    report.unlink(missing_ok=True)
    # No byte code: a file that was changed twice in a second would be taken for the one before.
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": "", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *flags, *tests]
    with tempfile.TemporaryFile("w+") as output:  # a file: a process that a test left behind would keep a pipe open
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        output.seek(0)
        text = output.read()[-2000:]
    return Outcome(code, ends(report) if code in (0, 1) else {}, text)


def ends(report):
    """Return {node id: (passed, failed or skipped, first line of the reason)} of a report in JUnit's XML."""
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        reason = next((entry for entry in case if entry.tag in ("failure", "error", "skipped")), None)
        state = "passed" if reason is None else "skipped" if reason.tag == "skipped" else "failed"
        text = "" if reason is None else (reason.get("message") or "").strip().partition("\n")[0][:160]
        found[f"{case.get('classname').replace('.', '/')}.py::{case.get('name')}"] = state, text
    return found


if __name__ == "__main__":
    sys.exit(main())
