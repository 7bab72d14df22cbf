"""A training killed between any two of its system calls, resumed, leaves what an undisturbed one leaves."""

import random
import time

import pytest

from .contents import left_behind, scalars


def assert_survives(server, folder, undisturbed, *faults):
    for fault in faults:
        assert server.resume(folder, fault=[*fault, "EIO"])["code"] in (0, -9), fault
    answer = server.resume(folder)
    assert answer["code"] == 0, (faults, answer["text"])
    assert left_behind(folder) == undisturbed[0], faults
    assert scalars(folder) == undisturbed[1], faults


def commits(calls):
    """Return points inside the last commit, one of the last of each kind of call and file, and torn records."""
    wanted = [("write", "metrics.jsonl"), ("write", ".latest"), ("rename", "latest"), ("link", ".epoch_"),
              ("rename", "epoch_"), ("rename", "best"), ("unlink", "epoch_"), ("rename", "report")]  # fmt: skip
    points = []
    for what, name in wanted:
        number = max(int(number) for number, call, path in calls if call == what and name in path.rsplit("/", 1)[1])
        points.append(("TEAR" if what == "write" else "KILL_BEFORE", number))
    return points


def test_training_killed_inside_a_commit_ends_as_an_undisturbed_one(server, undisturbed, tmp_path):
    for number, fault in enumerate(commits(undisturbed[2])):
        assert_survives(server, tmp_path / str(number), undisturbed, fault)


@pytest.mark.slow
def test_training_killed_at_any_point_ends_as_an_undisturbed_one(server, undisturbed, tmp_path):
    """Before and after every call that changes a file, inside every write; and again while it is resumed."""
    calls = undisturbed[2]
    faults = [[("KILL_BEFORE", int(number))] for number, _, _ in calls]
    faults += [[("KILL_AFTER", int(number))] for number, what, _ in calls if what not in ("write", "open")]
    faults += [[("TEAR", int(number))] for number, what, _ in calls if what == "write"]
    chance = random.Random(0)
    faults += [[(chance.choice(("KILL_BEFORE", "TEAR")), chance.randint(1, len(calls))) for _ in range(3)]
               for _ in range(20)]  # fmt: skip
    for number, chain in enumerate(faults):
        assert_survives(server, tmp_path / str(number), undisturbed, *chain)
    print(f"{len(faults)} crash points")
    assert len(faults) >= 300


@pytest.mark.slow
@pytest.mark.parametrize("precision", [(), ("AMP.MODE=auto",), ("AMP.MODE=auto", "AMP.DTYPE=float16")],
                         ids=["float32", "bfloat16", "float16"])  # fmt: skip
def test_chains_of_random_kills_change_no_bit(server, tmp_path, precision):
    chance = random.Random(0)
    kills = number = 0
    while kills < 67:  # in the three formats together more than 200
        straight, folder = tmp_path / f"{number}-straight", tmp_path / str(number)
        start = time.monotonic()
        assert server.run(straight, *precision)["code"] == 0
        seconds = time.monotonic() - start  # each time anew: how fast a run is depends on what else the machine does
        for _ in range(6):
            kills += server.resume(folder, *precision, seconds=chance.uniform(0.1, 1.0) * seconds)["code"] == -9
        assert server.resume(folder, *precision)["code"] == 0
        assert left_behind(folder) == left_behind(straight)
        number += 1
    print(f"{kills} kills in {number} chains")
