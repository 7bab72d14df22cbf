"""Processes that were not started for the same run are told so before any of them works."""

import pytest

from image_classification.files.pickle_file import checksum_of
from image_classification.parallel.agreement import check_agreement, check_same_file
from image_classification.parallel.single import SingleProcess
from image_classification.runtime import UserError
from tests.helpers.small_runs import config_of


class First(SingleProcess):
    """Rank 0 beside others, each (configuration, images)."""

    def __init__(self, *others):
        super().__init__()
        self.others = others
        self.own = None

    def gather(self, value):
        self.own = value
        return [value, *(said_by(*other) for other in self.others)]


def said_by(config, images):
    process = First()
    check_agreement(process, config, {"training images": images})
    return process.own


@pytest.mark.parametrize(("other", "images", "words"), [
    ({"train": {"BASE_LR": 0.1}}, 20, "TRAIN.BASE_LR is 0.1 there and 0.01 on rank 0"),
    ({"EVAL": True}, 20, "EVAL is True there and False on rank 0"),
    ({"MODEL": {"NUM_CLASSES": 4, "RESUME": "a/latest"}}, 20, "MODEL.RESUME is latest there and None on rank 0"),
    ({"amp": {"MODE": "O2", "LOSS_SCALE": 8}}, 20, "AMP.LOSS_SCALE is 8 there and not set on rank 0"),
    ({}, 19, "training images is 19 there and 20 on rank 0"),
])  # fmt: skip
def test_process_of_another_run_is_an_error_that_names_rank_and_key(other, images, words):
    processes = First((config_of(), 20), (config_of(**other), images))
    with pytest.raises(UserError, match=f"rank 2 was started for another run: .*{words}"):
        check_agreement(processes, config_of(), {"training images": 20})


def test_paths_of_each_host_are_no_difference():
    elsewhere = {"DATA_PATH": "/mnt/data", "NUM_WORKERS": 7}
    there, here = ({"NUM_CLASSES": 4, "RESUME": f"{folder}/latest"} for folder in ("/mnt/run", "run"))
    processes = First((config_of(elsewhere, MODEL=there, OUTPUT="/mnt/out"), 20))
    check_agreement(processes, config_of(MODEL=here), {"training images": 20})


class Two(SingleProcess):
    """Rank 0 of two, and what rank 1 says."""

    world_size = 2

    def __init__(self, other):
        super().__init__()
        self.other = other

    def gather(self, value):
        return [value, (value[0] if self.other is None else checksum_of(self.other), "/mnt/latest")]


def test_file_of_other_bytes_on_another_rank_is_an_error_that_names_both(tmp_path):
    (tmp_path / "own").write_bytes(b"weights")
    (tmp_path / "other").write_bytes(b"weighty")
    check_same_file(Two(None), "-resume", tmp_path / "own")
    with pytest.raises(UserError, match=r"-resume: rank 1 has another file at /mnt/latest than rank 0 at .*/own$"):
        check_same_file(Two(tmp_path / "other"), "-resume", tmp_path / "own")
