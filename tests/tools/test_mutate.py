"""The tool that plants faults: its list fits this tree, and it tells a found fault from one that survives."""

import subprocess
from pathlib import Path

import pytest
import yaml

from image_classification.runtime import UserError
from tests.helpers.model_zoo import ROOT
from tools import mutate

SOURCE = "def double(x):\n    return 2 * x\n\n\ndef half(x):\n    return x / 2\n"
TESTS = """
import pytest
from code_of_ours import double, half

@pytest.fixture
def six():
    assert double(3) == 6
    return 6

def test_double():
    assert double(2) == 4

def test_half_of_nothing():
    assert half(0) == 0

def test_of_the_fixture(six):
    assert six

def test_that_always_fails():
    assert False

@pytest.mark.skipif(True, reason="needs what is not here")
def test_elsewhere():
    assert double(2) == 4
"""


@pytest.fixture
def tree(tmp_path):
    """Return a git work tree with one module and its tests."""
    (tmp_path / "code_of_ours.py").write_text(SOURCE)
    (tmp_path / "conftest.py").write_text("import sys\nsys.path.insert(0, __file__.rpartition('/')[0])\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_code.py").write_text(TESTS)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    return tmp_path


def entry(name="one", old="2 * x", new="3 * x", test="test_double", **changes):
    found = {"name": name, "file": "code_of_ours.py", "old": old, "new": new, "why": "Twice is thrice.",
             "test": f"tests/test_code.py::{test}"}  # fmt: skip
    return found | changes


def write(tree, *entries):
    (tree / "tests" / "mutations.yaml").write_text(yaml.safe_dump(list(entries)))


def run(tree, capsys, *entries):
    """Return (exit code, what was printed, what was complained of)."""
    write(tree, *entries)
    code = mutate.main(["-root", str(tree), "-table", str(tree / "page.md")])
    assert (tree / "code_of_ours.py").read_text() == SOURCE  # never the work tree
    return code, *capsys.readouterr()


def test_mutations_list_applies_to_this_tree():
    """Every old text occurs exactly once, what it becomes is Python, and the test that must fail exists."""
    assert len(mutate.read_list(ROOT)) >= 60


def test_page_of_the_results_is_of_this_list_and_has_no_survivor():
    text = (ROOT / "docs" / "mutations.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == [mutation.name for mutation in mutate.read_list(ROOT)]
    assert f"{len(rows)} mutations: {len(rows)} killed, 0 survived." in text
    assert not any(f"**{state}**" in text for state in ("SURVIVED", "SKIPPED", "BROKEN"))


def test_fault_that_its_test_finds_is_killed_and_the_page_names_both(tree, capsys):
    code, out, _ = run(tree, capsys, entry(), entry("in the fixture", test="test_of_the_fixture"))
    assert code == 0
    assert "2 mutations: 2 killed, 0 survived" in out
    assert "| `one` | `tests/test_code.py::test_double` |" in (tree / "page.md").read_text()


def test_page_is_brought_up_to_date_by_some_mutations_once_it_has_all(tree, capsys):
    first, second = entry(), entry("two", "x / 2", "x / 3", "test_half_of_nothing")
    write(tree, first, second)
    words = ["-root", str(tree), "-table", str(tree / "page.md"), "-k", "three,two"]
    assert mutate.main(words) == 2
    assert "has no result of one yet" in capsys.readouterr().err
    assert run(tree, capsys, first)[0] == 0
    write(tree, second, first)
    assert mutate.main(words) == 1
    page = (tree / "page.md").read_text()
    assert "2 mutations: 1 killed, 1 survived." in page
    assert page.index("| `two` | **SURVIVED**") < page.index("| `one` | `tests/test_code.py::test_double`")


def test_fault_that_its_test_does_not_see_survives_and_fails_the_command(tree, capsys):
    code, out, _ = run(tree, capsys, entry(), entry("two", "x / 2", "x / 3", "test_half_of_nothing"))
    assert code == 1
    assert "SURVIVED two: its test passes" in out and "killed one" in out


def test_fault_whose_test_cannot_run_here_is_skipped_and_keeps_what_the_page_says(tree, capsys):
    code, out, _ = run(tree, capsys, entry(), entry("two", test="test_elsewhere"))
    assert code == 0
    assert "SKIPPED two: so is its test: needs what is not here" in out and "1 killed, 0 survived, 1 skipped" in out
    page = tree / "page.md"
    page.write_text(page.read_text().replace("| `two` | **SKIPPED**", "| `two` | `of another machine`"))
    assert run(tree, capsys, entry(), entry("two", test="test_elsewhere"))[0] == 0
    assert "| `two` | `of another machine`" in page.read_text() and "2 killed" in page.read_text()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"new": "3 * y"}, "NameError"),  # any test that comes along fails then
        ({"old": "def half(x):", "new": "def third(x):"}, "ImportError"),
        ({"test": "test_that_always_fails"}, "its test fails without it"),
    ],
)
def test_failure_that_says_nothing_of_the_fault_is_no_kill(tree, capsys, changes, message):
    code, out, _ = run(tree, capsys, entry(**changes))
    assert code == 2
    assert "BROKEN one: " in out and message in out


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"old": "x):"}, "its old text occurs 2 times in code_of_ours.py"),
        ({"old": "4 * x"}, "its old text occurs 0 times in code_of_ours.py"),
        ({"new": "2 * x"}, "it changes nothing"),
        ({"new": "2 *"}, "what it leaves is no Python: invalid syntax in line 2"),
        ({"file": "gone.py"}, "there is no file gone.py"),
        ({"test": "test_gone[1]"}, "there is no test tests/test_code.py::test_gone[1]"),
    ],
)
def test_mutation_that_does_not_fit_is_named_before_anything_runs(tree, changes, message):
    write(tree, entry(**changes))
    with pytest.raises(UserError) as caught:
        mutate.read_list(tree)
    assert str(caught.value) == f"one: {message}"


def test_list_that_is_none_is_one_line(tree):
    write(tree, {"name": "one"})
    with pytest.raises(UserError, match="missing .* required"):
        mutate.read_list(tree)
    write(tree, entry(), entry())
    with pytest.raises(UserError, match="one: two mutations have this name"):
        mutate.read_list(tree)


def test_copy_has_what_git_would_have_and_no_file_that_it_ignores(tree, tmp_path):
    (tree / ".gitignore").write_text("output/\n")
    (tree / "output").mkdir()
    (tree / "output" / "weights").write_text("large")
    (tree / "new.py").write_text("")
    copy = mutate.copy_tree(tree, tmp_path / "copy")
    assert {str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file()} == {
        ".gitignore", "code_of_ours.py", "conftest.py", "new.py", str(Path("tests") / "test_code.py"),
    }  # fmt: skip
