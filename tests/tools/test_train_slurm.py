"""tools/train_slurm.sh as one task of a job, with `echo` for the interpreter: which words the program gets."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "train_slurm.sh"


def words_of(*arguments):
    """Return the words behind `main_multi_gpu.py -launcher=slurm`."""
    environment = os.environ | {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "PYTHON": "echo"}
    done = subprocess.run([SCRIPT, "ViT", *arguments], env=environment, capture_output=True, text=True, check=True)
    program, launcher, *words = done.stdout.split()
    assert (program, launcher) == ("main_multi_gpu.py", "-launcher=slurm")
    return words


@pytest.mark.parametrize("dashes", ["-", "--"])
@pytest.mark.parametrize("between", ["=", " "])
def test_requeued_job_goes_on_with_its_own_weights_however_the_options_are_written(tmp_path, dashes, between):
    """The value of an option may be a word of its own: such a job found no checkpoint, and was refused its folder."""
    given = [f"{dashes}output{between}{tmp_path}", f"{dashes}pretrained{between}w.safetensors"]
    words = [word for option in given for word in option.split()]
    assert words_of(*words, "-amp")[-1] == "-amp" and not any("resume" in word for word in words_of(*words))
    (tmp_path / "latest.pdparams").touch()
    again = words_of(*words, "-amp")
    assert f"-resume={tmp_path}/latest.pdparams" in again and "-amp" in again
    assert not any("pretrained" in word or "w.safetensors" in word for word in again)
    other = [f"{dashes}resume", "elsewhere"] if between == " " else [f"{dashes}resume=elsewhere"]
    assert not any("latest.pdparams" in word for word in words_of(*words, *other))


def test_option_without_its_value_is_left_to_the_program():
    assert words_of("-amp", "-output") == ["-amp", "-output"]
