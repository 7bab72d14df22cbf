"""One start of N real processes serves many tests.

    @pytest.mark.check("checks_parity:parity:{topology}")    # braces: the test's own parameters
    def test_parity(results, size, topology):                # results: what the check returned, by rank

The checks of all tests that were collected for a number of processes run in one start, as soon as the first one asks;
`size`, that number, is a parameter of the test or an argument of the mark.
"""

from pathlib import Path

import pytest

from .harness import ROOT, once_per_session, run_ranks

WORKER = ROOT / "tests" / "parallel" / "worker.py"
TIMEOUT = 600  # seconds for all checks of a start
CHECKS = pytest.StashKey()  # {number of processes: names of the checks}


def pytest_configure(config):
    config.addinivalue_line("markers", "check(name, size): what processes compute for this test; see `results`")


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the marks
def pytest_collection_modifyitems(items):
    # One of pytest-xdist's workers runs them all: two starts at once would only wait for each other's processors.
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.xdist_group("distributed"))


def pytest_collection_finish(session):
    checks = session.config.stash.setdefault(CHECKS, {})
    for item in session.items:
        if item.get_closest_marker("check"):
            size, name = check_of(item)
            checks.setdefault(size, {})[name] = None


def check_of(item):
    """Return (number of processes, name of the check) of a test."""
    mark, parameters = item.get_closest_marker("check"), item.callspec.params if hasattr(item, "callspec") else {}
    return mark.kwargs.get("size") or parameters["size"], mark.args[0].format(**parameters)


@pytest.fixture
def results(request, tmp_path_factory):
    """Return what this test's check returned, one value for each rank."""
    size, name = check_of(request.node)
    names = ",".join(request.config.stash[CHECKS][size])
    ranks = once_per_session(
        tmp_path_factory, f"ranks_{size}", lambda folder: run_ranks(WORKER, size, folder, names, timeout=TIMEOUT)
    )
    return [answers[name] for answers in ranks]
