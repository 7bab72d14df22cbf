"""PaddleViT's files as they are, and what its own code writes: YAMLs, weights, training checkpoints, run_*.sh lines."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import paddle
import pytest
import yaml
from PIL import Image

from image_classification import checkpoint, foreign
from image_classification.build import build_parts, build_trainer
from image_classification.config import load_config
from image_classification.config.dialect import family_of_file
from image_classification.foreign import is_foreign
from image_classification.launch import resume
from image_classification.optim import optimizer_state
from image_classification.parallel.single import SingleProcess
from image_classification.weights import load_pretrained, write_weights
from image_classification.zoo import make_model
from tests.helpers.model_zoo import PACKAGE, builder

pytestmark = pytest.mark.peers

JOB = Path(__file__).with_name("paddlevit_job.py")
FAMILIES = {  # its folder: (ours, its module and builder)
    "ViT": ("ViT", "vit", "build_vit"),
    "DeiT": ("DeiT", "deit", "build_deit"),
    "SwinTransformer": ("Swin", "swin", "build_swin"),
    "ConvNeXt": ("ConvNeXt", "convnext", "build_convnext"),
    "MLP-Mixer": ("Mixer", "mlp_mixer", "build_mlp_mixer"),
    "BEiT": ("BEiT", "beit", "build_beit"),
    "XCiT": ("XCiT", "xcit", "build_xcit"),
    "CaiT": ("CaiT", "cait", "build_cait"),
    "ResMLP": ("ResMLP", "resmlp", "build_resmlp"),
    "gMLP": ("GMLP", "gmlp", "build_gmlp"),
    "ConvMixer": ("ConvMixer", "convmixer", "build_convmixer"),
    "PoolFormer": ("MetaFormer", "poolformer", "build_poolformer"),
    "PVTv2": ("PVTv2", "pvtv2", "build_pvtv2"),
    "MobileViT": ("MobileViT", "mobilevit", "build_mobilevit"),
    "CrossViT": ("CrossViT", "crossvit", "build_crossvit"),
    "VOLO": ("VOLO", "volo", "build_volo"),
}
TEACHER = "DeiT/configs/regnety_160.yaml"  # DeiT's, a model of one size
MISPRINTED = {("VOLO", "TRAIN.END_LR")}  # a rate of 53-4
# BEiT's program needs PaddleNLP, VOLO's gives its loss a tuple
TRAINED = [name for name in FAMILIES if name not in ("BEiT", "VOLO")]
SMALL = {  # the MODEL section of a small one of each
    "ViT": {"TYPE": "vit", "EMBED_DIM": 32, "DEPTH": 2, "NUM_HEADS": 2, "PATCH_SIZE": 16},
    "DeiT": {"TYPE": "deit", "EMBED_DIM": 32, "DEPTH": 2, "NUM_HEADS": 2, "PATCH_SIZE": 16, "QKV_BIAS": True},
    "SwinTransformer": {"TYPE": "swin", "EMBED_DIM": 16, "STAGE_DEPTHS": [2, 2], "NUM_HEADS": [1, 2],
                        "WINDOW_SIZE": 4, "PATCH_SIZE": 4},
    "ConvNeXt": {"TYPE": "convnext", "DEPTHS": [1, 1, 2, 1], "DIMS": [8, 16, 16, 32], "DROPPATH": 0.1},
    "MLP-Mixer": {"TYPE": "Mixer", "MIXER": {"PATCH_SIZE": 16, "EMBED_DIM": 32, "DEPTH": 2}},
    "BEiT": {"TYPE": "BEiT", "EMBED_DIM": 32, "DEPTH": 2, "NUM_HEADS": 2, "PATCH_SIZE": 16, "INIT_VALUES": 0.1},
    "CaiT": {"TYPE": "cait", "EMBED_DIM": 32, "DEPTH": 2, "NUM_HEADS": 2, "PATCH_SIZE": 16, "INIT_VALUES": 0.1},
    "PoolFormer": {"TYPE": "poolformer", "LAYERS": [1, 1, 2, 1], "EMBED_DIMS": [8, 16, 16, 32]},
    "PVTv2": {"TYPE": "PVTv2", "EMBED_DIM": [8, 16, 16, 32], "STAGE_DEPTH": [1, 1, 2, 1], "NUM_HEADS": [1, 2, 2, 4],
              "SR_RATIO": [4, 2, 1, 1], "MLP_RATIO": [2, 2, 2, 2], "LINEAR": True},
    "MobileViT": {"TYPE": "MobileViT", "DIMS": [8, 8, 16, 16, 16, 16, 24, 32, 64], "HIDDEN_DIMS": [16, 24, 32]},
    "CrossViT": {"TYPE": "CrossViT", "EMBED_DIM": [32, 64], "DEPTH": [[1, 2, 0], [1, 1, 0]], "NUM_HEADS": [2, 2]},
    "VOLO": {"TYPE": "volo", "STEM_HIDDEN_DIM": 8, "TRANS": {
        "LAYERS": [1, 1], "EMBED_DIMS": [16, 32], "MLP_RATIOS": [3, 3], "NUM_HEADS": [2, 4]}},
    "XCiT": {"TYPE": "xcit", "EMBED_DIM": 32, "DEPTH": 2, "NUM_HEADS": 2, "PATCH_SIZE": 16, "TOKENS_NORM": True},
    "ResMLP": {"TYPE": "ResMLP", "MIXER": {"PATCH_SIZE": 16, "EMBED_DIM": 32, "DEPTH": 2}},
    "gMLP": {"TYPE": "GatedMLP", "MIXER": {"PATCH_SIZE": 16, "EMBED_DIM": 32, "DEPTH": 2}},
    "ConvMixer": {"TYPE": "convmixer", "CNN": {"PATCH_SIZE": 7, "DIM": 32, "DEPTH": 2, "KERNEL_SIZE": 5}},
}


def small_yaml(folder, family, **train):
    """Return the path of a YAML of PaddleViT for a small model for 64 pixels."""
    train = {"NUM_EPOCHS": 2, "WARMUP_EPOCHS": 1, "BASE_LR": 0.001} | train
    model = SMALL[family] | {"NUM_CLASSES": 1000}
    text = {"DATA": {"IMAGE_SIZE": 64, "NUM_WORKERS": 0}, "MODEL": model, "TRAIN": train}
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(text | {"SAVE_FREQ": 1, "REPORT_FREQ": 1}))
    return path


def paddlevits(job, folder, *arguments):
    """Run a job of PaddleViT's own code to its end."""
    command = [sys.executable, JOB, job, folder, *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=environment, timeout=600)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Return a folder in PaddleViT's form of ImageNet: 16 and 8 images of 8 classes."""
    folder, rng = tmp_path_factory.mktemp("imagenet"), np.random.default_rng(0)
    for split, count in (("train", 16), ("val", 8)):
        (folder / split).mkdir()
        names = [f"{split}/{index}.png" for index in range(count)]
        for name in names:
            Image.fromarray(rng.integers(0, 256, (64, 72, 3), dtype=np.uint8)).save(folder / name)
        (folder / f"{split}_list.txt").write_text("".join(f"{name} {i % 8}\n" for i, name in enumerate(names)))
    return folder


# ---- its YAMLs


def test_every_yaml_of_the_shared_families_loads(paddlevit):
    count = 0
    for folder, (ours, *_) in FAMILIES.items():
        for path in sorted((paddlevit / folder / "configs").glob("*.yaml")):
            theirs, family = yaml.safe_load(path.read_text()), family_of_file(path)
            assert family == ("RegNet" if path == paddlevit / TEACHER else ours)
            config = load_config([f"-cfg={path}"], builder(PACKAGE / family))
            assert theirs["DATA"]["IMAGE_SIZE"] == config.DATA.IMAGE_SIZE and len(config.NOTES) == 1
            with paddle.LazyGuard():
                make_model(config, builder(PACKAGE / family))
            count += 1
    assert count == 129


@pytest.mark.parametrize("family", FAMILIES)
def test_defaults_are_those_of_its_config_py(paddlevit, family):
    """What the facts of a family say is compared with the file that they were read from."""
    source = (paddlevit / family / "config.py").read_text()
    theirs = dict(re.findall(r"^_C\.([A-Z_.]+) *= *([^#\n]+?) *(?:#.*)?$", source, re.MULTILINE))
    theirs = {key: yaml.safe_load(value) for key, value in theirs.items() if "CN()" not in value}
    path = PACKAGE / FAMILIES[family][0] / "paddlevit.yaml"
    known = {}
    for file in (path.parent / yaml.safe_load(path.read_text())["BASE"], path):
        sections = yaml.safe_load(file.read_text())
        known |= sections.get("FIXED", {})
        for section in ("DATA", "MODEL", "TRAIN"):
            known |= {f"{section}.{key}": value for key, value in sections.get(section, {}).items()}
    renamed = {"MODEL.DROP_PATH": "MODEL.DROPPATH", "MODEL.TEACHER": "TRAIN.TEACHER_MODEL"}
    compared = 0
    for key, value in known.items():
        key = renamed.get(key, key)
        if key in theirs and not isinstance(value, dict) and (family, key) not in MISPRINTED:
            found = None if theirs[key] == "None" else theirs[key]
            assert value == (float(found) if isinstance(value, float) else found), key
            compared += 1
    assert compared > 12


# ---- its weights


@pytest.mark.parametrize("family", [*FAMILIES, "RegNet"])
def test_logits_equal_those_of_its_own_model(paddlevit, family, tmp_path):
    if family == "RegNet":
        family, (ours, module, build), path = "DeiT", ("RegNet", "regnet", "build_regnet"), paddlevit / TEACHER
    else:
        (ours, module, build), path = FAMILIES[family], small_yaml(tmp_path, family)
    images = np.random.default_rng(2).standard_normal((2, 3, 64, 64)).astype("float32")
    np.save(tmp_path / "images.npy", images)
    files = [tmp_path / name for name in ("images.npy", "theirs.pdparams", "logits.npy")]
    paddlevits("logits", paddlevit / family, module, build, path, *files)
    model = make_model(load_config([f"-cfg={path}"], builder(PACKAGE / ours)), builder(PACKAGE / ours))
    load_pretrained(model, str(files[1]))
    model.eval()
    expected, found = np.load(files[2]), model(paddle.to_tensor(images)).numpy()
    assert abs(found - expected).max() <= 1e-5 * abs(expected).max()


# ---- its training checkpoints


def values(arrays):
    """Return all numbers of some arrays in order: one of theirs may be several of ours."""
    return np.sort(np.concatenate([array.ravel() for array in arrays]))


@pytest.mark.parametrize("family", TRAINED)
def test_checkpoint_of_its_own_training_resumes(paddlevit, family, data, tmp_path, monkeypatch):
    ours = FAMILIES[family][0]
    two_programs = (paddlevit / family / "main_multi_gpu_no_distill.py").exists()
    none = {"DISTILLATION_TYPE": "none"} if two_programs else {}
    path = small_yaml(tmp_path, family, **none)
    program = "main_multi_gpu_no_distill" if two_programs else "main_multi_gpu"
    flags = [f"-cfg={path}", "-dataset=imagenet2012", "-batch_size=8", f"-data_path={data}"]
    paddlevits("main", paddlevit / family, program, *flags, f"-output={tmp_path}")
    saved = next(tmp_path.rglob("Epoch-1-*.pdparams"))
    words = [*flags, f"-resume={saved}", "-device=cpu", "-num_workers=0", "-num_classes=1000"]
    config = load_config(words, builder(PACKAGE / ours))
    lines = []
    monkeypatch.setattr(foreign.get_logger(), "info", lambda text, *_: lines.append(text))
    trainer = build_trainer(build_parts(config, builder(PACKAGE / ours), SingleProcess()))
    resume(trainer, *foreign.read_resumed(trainer.config))
    assert "; data order and random numbers, best top-1" in "".join(lines)
    assert not any("the optimizer, whose" in line for line in lines)
    assert (trainer.progress.epoch, trainer.progress.step) == (1, 2)
    tree = checkpoint.read(saved)
    assert is_foreign(tree)
    moments = {name: value for name, (_, value) in foreign.parameters(tree, "optimizer").items()}
    of_theirs = values([value for name, value in moments.items() if "_moment1_" in name])
    of_ours = optimizer_state(trainer.optimizer, trainer.precision.master_params(trainer.model))
    np.testing.assert_array_equal(
        values([value.numpy() for name, value in of_ours.items() if name.endswith("/moment1")]), of_theirs
    )
    trained = [parameter for parameter in trainer.model.parameters() if not parameter.stop_gradient]
    assert len(of_theirs) == sum(map(int, map(paddle.numel, trained))) and of_theirs.any()
    powers = [float(value[0]) for name, value in of_ours.items() if name.endswith("beta1_pow_acc")]
    np.testing.assert_allclose(powers, 0.9**3, rtol=1e-6)  # after two steps
    average = tree.get("model_ema")
    assert bool(average) == bool(trainer.ema.state_dict()) == config.TRAIN.MODEL_EMA
    trainer.train_epoch(0.0)
    assert trainer.progress.epoch == 2 and trainer.last_result.applied


# ---- its run_*.sh


def lines_of(path):
    """Return [(environment, words)] of the commands of a shell script."""
    text = re.sub(r"^#.*\n", "", path.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    found = []
    for line in filter(str.strip, text.splitlines()):
        words = shlex.split(line)
        names = [word for word in words if re.match(r"[A-Z_]+=", word)]
        found.append((dict(name.split("=", 1) for name in names), [word for word in words if word not in names]))
    return found


def test_every_line_of_its_run_scripts_is_understood(paddlevit, monkeypatch):
    count = 0
    for folder, (ours, *_) in FAMILIES.items():
        monkeypatch.chdir(paddlevit / folder)
        for path in sorted((paddlevit / folder).glob("run_*.sh")):
            if "$" in path.read_text():  # a program of the shell that asks for arguments
                continue
            for _, (python, program, *flags) in lines_of(path):
                assert python == "python" and (PACKAGE / ours / program).is_file(), program
                config = load_config(flags, builder(PACKAGE / ours))
                assert ("-eval" in flags) == config.EVAL and config.AMP.MODE == "auto"
                assert config.DATA.DATA_PATH == "/dataset/imagenet" and config.DATA.DATASET == "imagenet2012"
                count += 1
    assert count == 40


@pytest.mark.parametrize(("family", "script"), [("ViT", "run_eval_multi.sh"), ("SwinTransformer", "run_test_train.sh")])
def test_line_of_a_run_script_runs_as_it_is_written(paddlevit, family, script, data, tmp_path):
    """From a folder with its configurations and weights; of a training, one step."""
    ours = PACKAGE / FAMILIES[family][0]
    ((environment, (_, program, *flags)),) = lines_of(paddlevit / family / script)
    (tmp_path / "configs").symlink_to(paddlevit / family / "configs")
    cfg = next(flag for flag in flags if flag.startswith("-cfg=")).removeprefix("-cfg=")
    for flag in flags:
        if flag.startswith("-pretrained="):
            config = load_config([f"-cfg={tmp_path / cfg}"], builder(ours))
            write_weights(tmp_path / flag.removeprefix("-pretrained="), make_model(config, builder(ours)).state_dict())
    flags = [flag.replace("/dataset/imagenet", str(data)) for flag in flags]
    flags += [] if "-eval" in flags else ["-dry_run"]
    flags += ["-device=cpu", "-num_classes=1000"]
    result = subprocess.run([sys.executable, ours / program, *flags], capture_output=True, text=True, cwd=tmp_path,
                            env={**os.environ, **environment, "OMP_NUM_THREADS": "1"}, timeout=600)  # fmt: skip
    assert result.returncode == 0, result.stdout[-1000:] + result.stderr[-1000:]
    assert ("images evaluated  8" in result.stdout) if "-eval" in flags else ("one step of" in result.stdout)
