"""A disk that is full or read-only, for one call or from one on: one line, the last checkpoint whole, or it goes on."""

import pytest

from image_classification import checkpoint

from .contents import left_behind


def assert_documented(server, folder, fault, undisturbed):
    answer = server.run(folder, fault=fault)
    text = answer["text"]
    assert "Traceback" not in text and "Logging error" not in text, (fault, text)
    complaints = [line for line in text.splitlines() if line.startswith("error: ")]
    assert answer["code"] == (2 if complaints else 0), (fault, text)
    assert len(complaints) <= 1 and all(str(folder) in line for line in complaints), (fault, complaints)
    for name in ("latest", "best"):
        path = folder / f"{name}.pdparams"
        if path.exists():
            checkpoint.load(path)
    if answer["code"]:
        assert server.resume(folder)["code"] == 0, fault
    assert left_behind(folder) == undisturbed[0], fault
    return answer


def spread(calls, count):
    """Return some of the calls, every kind of call and file among them."""
    kinds = {}
    for number, what, path in calls:
        kinds[what, path.rsplit("/", 1)[1].split(".")[0 if not path.rsplit("/", 1)[1].startswith(".") else 1]] = number
    chosen = sorted(int(number) for number in kinds.values())
    return chosen[:: max(1, len(chosen) // count)]


def test_disk_that_is_full_ends_the_run_with_one_line_or_it_goes_on(server, undisturbed, tmp_path):
    codes = {
        assert_documented(server, tmp_path / str(number), ["FAIL_ONCE", number, "ENOSPC"], undisturbed)["code"]
        for number in spread(undisturbed[2], 4)
    }
    assert codes <= {0, 2}


@pytest.mark.slow
@pytest.mark.parametrize("error", ["ENOSPC", "EROFS"])
def test_every_single_failure_of_the_disk_is_survived(server, undisturbed, tmp_path, error):
    codes = [
        assert_documented(server, tmp_path / number, ["FAIL_ONCE", int(number), error], undisturbed)["code"]
        for number, _, _ in undisturbed[2]
    ]
    print(f"{error} once: {len(codes)} calls, {codes.count(0)} runs went on")


@pytest.mark.slow
@pytest.mark.parametrize("error", ["ENOSPC", "EROFS"])
def test_disk_that_stays_full_ends_the_run_with_one_line(server, undisturbed, tmp_path, error):
    codes = [
        assert_documented(server, tmp_path / number, ["FAIL_FROM", int(number), error], undisturbed)["code"]
        for number, _, _ in undisturbed[2][::2]
    ]
    print(f"{error} from one call on: {len(codes)} calls, {codes.count(0)} runs went on")
