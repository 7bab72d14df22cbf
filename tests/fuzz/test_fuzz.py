"""A fixed number of cases for every format, always the same ones; `make test-fuzz SECONDS=3600` goes on from there."""

from .run import fuzz, results

CASES = 2800  # 100 of each format; 13 seconds


def test_changed_files_are_read_or_refused_within_time_and_memory(tmp_path):
    report = fuzz(tmp_path / "cases", first=0, cases=CASES)
    print(report.table())
    assert not report.failures, report.failures
    assert report.total == CASES
    for name, counts in report.counts.items():
        assert counts["refused"] or name == "index of a shard", name  # a damaged index is made anew


def test_unchanged_files_are_read(tmp_path):
    """Otherwise the fuzzer would see nothing but its own mistakes."""
    lines = list(results("seeds", tmp_path / "cases"))
    assert len(lines) > 25 and all(line["outcome"] == "read" for line in lines), lines
