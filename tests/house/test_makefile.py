"""What `make` would install where: one Paddle at a time, from the page of the CUDA that was asked for."""

import os
import re
import subprocess

import pytest

from tests.helpers.model_zoo import ROOT

CUDAS = re.findall(r"`(cu\d+)`", (ROOT / "README.md").read_text())
PAGE = re.search(r"https://\S+/stable/", (ROOT / "README.md").read_text())[0]


def would_run(folder, *words):
    """Return (exit code, lines) of `make -n` in a virtual environment that exists."""
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "bin" / "python").touch()
    command = ["make", "-n", f"VENV={folder}", *words]
    environment = {"PATH": os.environ["PATH"]}  # not what a make around this test hands on
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, (done.stdout + done.stderr).replace("\\\n", " ").splitlines()


@pytest.mark.parametrize("cuda", CUDAS)
@pytest.mark.parametrize("before", ["", ".installed", ".installed-cu999"])
def test_gpu_gets_the_paddle_of_its_cuda_and_no_other(tmp_path, cuda, before):
    (tmp_path / before).touch()
    code, lines = would_run(tmp_path, "demo", "DEVICE=gpu", f"CUDA={cuda}")
    assert code == 0
    (install,) = [line for line in lines if "install --quiet" in line and "paddlepaddle-gpu==" in line]
    assert install.endswith(f"-i {PAGE}{cuda}/")
    (removed,) = [index for index, line in enumerate(lines) if "uninstall" in line and "paddlepaddle-gpu;" in line]
    assert removed < lines.index(install)
    assert "-device=gpu" in lines[-1]


def test_what_was_installed_for_a_gpu_stays_until_the_cpu_is_asked_for(tmp_path):
    assert not any("uninstall" in line for line in would_run(tmp_path, "demo")[1])
    (tmp_path / ".installed-cu126").touch()
    assert not any("pip" in line for line in would_run(tmp_path, "demo", "-o", tmp_path / ".installed-cu126")[1])
    assert any("uninstall" in line for line in would_run(tmp_path, "demo", "DEVICE=cpu")[1])


def test_cuda_that_paddle_has_no_page_for_is_one_line(tmp_path):
    code, (line,) = would_run(tmp_path, "demo", "DEVICE=gpu", "CUDA=cu125")
    assert code == 2
    assert line.endswith(f"CUDA=cu125: expected one of {' '.join(CUDAS)}.  Stop.")
