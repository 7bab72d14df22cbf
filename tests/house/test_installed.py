"""The project as a library: installed by pip into an environment of its own, used from a folder that is none of its."""

import os
import shutil
import subprocess
import sys
import sysconfig

import pytest

from tests.helpers.model_zoo import CONFIGS, ROOT

SCRIPT = """
import sys
import image_classification as zoo
assert "paddle" not in sys.modules
assert zoo.list_models("vit_tiny_dig*") == ["vit_tiny_digits"]
import numpy, paddle
from image_classification import amp
paddle.seed(0)
model = zoo.create_model("vit_tiny_digits", num_classes=3, depth=2)
optimizer = paddle.optimizer.AdamW(1e-2, parameters=model.parameters())
model, optimizer = amp.initialize(model, optimizer, opt_level="auto")
prepare = zoo.create_transform("vit_tiny_digits")
rng = numpy.random.default_rng(0)
images = numpy.stack([prepare(rng.integers(0, 256, (40, 50), numpy.uint8)) for _ in range(3)])
losses = []
for _ in range(5):
    loss = paddle.nn.functional.cross_entropy(model(paddle.to_tensor(images)), paddle.to_tensor([0, 1, 2]))
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    assert optimizer.step().applied
    optimizer.clear_grad()
    losses.append(loss.item())
assert losses[-1] < losses[0]
print(zoo.__file__)
"""
SMALL = ["-batch_size=128", "-num_epochs=1", "-opts", "MODEL.DEPTH=1", "MODEL.EMBED_DIM=32", "MODEL.NUM_HEADS=2"]


def install(folder, *options):
    """Return the folder `bin` of a new environment with the project; what the project needs is this environment's."""
    environment = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    own = sysconfig.get_path("purelib", vars={"base": environment})
    with open(os.path.join(own, "needed.pth"), "w") as file:
        file.write(sysconfig.get_path("purelib"))
    source = folder / "source"
    source.mkdir()
    for name in ("image_classification", "configs", "tools"):
        leave_out = shutil.ignore_patterns("output", "__pycache__")
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=leave_out)
    for name in ("pyproject.toml", "README.md", "LICENSE", "requirements-common.txt"):
        shutil.copy(ROOT / name, source)
    words = ["install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check"]
    run(environment / "bin" / "python", "-m", "pip", *words, *options, source, cwd=folder)
    return environment / "bin"


def run(*words, cwd):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(list(map(str, words)), cwd=cwd, env=environment | {"OMP_NUM_THREADS": "1"},
                          capture_output=True, text=True, timeout=300)  # fmt: skip
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("installed")
    programs = install(folder)
    shutil.rmtree(folder / "source")  # nothing of the checkout is left to fall back on
    return programs


def test_installed_package_builds_models_and_takes_steps_in_mixed_precision(programs, tmp_path):
    place = run(programs / "python", "-c", SCRIPT, cwd=tmp_path)
    assert place.startswith(str(programs.parent))


def test_installed_command_trains_by_name_and_its_tools_use_what_it_left(programs, tmp_path):
    program = programs / "image-classification"
    run(program, "train", "--cfg=vit_tiny_digits", "-amp", "-output=run", *SMALL, "DATA.NUM_WORKERS=1", cwd=tmp_path)
    said = run(program, "convert-weights", "-cfg", "run/config.yaml", "run/best", "model.safetensors", cwd=tmp_path)
    assert said.startswith("model.safetensors: 20 tensors") and (tmp_path / "model.safetensors").exists()
    assert "Classify images." in run(programs / "python", "-m", "image_classification", "-h", cwd=tmp_path)


def test_installed_package_has_every_variant_and_what_their_recipes_name(programs, tmp_path):
    """One of each family is read with all that it names; BASE is a name everywhere (tests/config/test_catalogue.py)."""
    script = ("from image_classification.config import preview_config, variants\n"
              "from image_classification.config.catalogue import shared\n"
              "firsts = {path.parents[1]: name for name, path in variants().items() if not name.endswith('_digits')}\n"
              "for name in (*firsts.values(), 'finetune'): preview_config(['-cfg', name])\n"
              "print(*variants(), *shared())\n")  # fmt: skip
    names = {path.stem for path in (*CONFIGS, *(ROOT / "configs").glob("*/*.yaml"))}
    found = run(programs / "python", "-c", script, cwd=tmp_path).split()
    assert len(found) == len(set(found)) and set(found) == names  # a name means one file


@pytest.mark.slow
def test_editable_installation_is_the_checkout(tmp_path):
    programs = install(tmp_path, "--editable")
    (tmp_path / "elsewhere").mkdir()
    place = run(programs / "python", "-c", SCRIPT, cwd=tmp_path / "elsewhere")
    assert place.startswith(str(tmp_path / "source"))
    assert "Classify images." in run(programs / "image-classification", "-h", cwd=tmp_path / "elsewhere")
