"""The recipes: their commands are accepted, their rates are the published ones, their small versions run."""

import re
import shlex

import numpy as np
import pytest

from image_classification import checkpoint
from image_classification.build import build_parts, build_trainer
from image_classification.config import load_config, to_yaml
from image_classification.data.tfrecord import frame, index_text, serialize_example
from image_classification.hooks import Hook
from image_classification.optim import build_schedule
from image_classification.parallel.single import SingleProcess
from image_classification.runtime import UserError
from tests.helpers.data_samples import cifar10_members, encoded, photo, write_class_folders
from tests.helpers.entry import report_of, run_here, run_well
from tests.helpers.model_zoo import PACKAGE, ROOT, builder

LARGE_BATCH = "vit_base_patch32_32k"


def commands(path):
    """Return [(model folder, argv)] of the commands that a recipe begins with."""
    text = path.read_text()
    folder = re.search(r"^# In image_classification/(\w+)", text)
    lines = re.findall(r"^#   (python main_\w+\.py -.*)$", text, re.MULTILINE) if folder else []
    return [(PACKAGE / folder[1], shlex.split(line)[2:]) for line in lines]


# the other files of the folder are parts that YAMLs name in BASE
FILES = sorted((ROOT / "configs/recipes").glob("*.yaml"))
RECIPES = {path.stem: path for path in FILES if commands(path)}


def load(name, *argv):
    """Return the configuration of a recipe with further arguments, and its builder."""
    folder, first = commands(RECIPES[name])[0]
    processes = [word for word in first if word.startswith("-ngpus")]
    return load_config([f"-cfg={RECIPES[name]}", *processes, *argv], builder(folder)), builder(folder)


def test_data_page_names_every_recipe_and_no_other():
    table = re.search(r"\| file \| what \|\n(.*?)\n\n", (ROOT / "docs/data.md").read_text(), re.DOTALL)[1]
    named = [name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(named) == sorted(RECIPES)


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_begins_with_commands_hardware_and_result(name, monkeypatch):
    head = "\n".join(line for line in RECIPES[name].read_text().splitlines() if line.startswith("#"))
    assert "Hardware: " in head and "Expected: " in head
    assert commands(RECIPES[name])
    for folder, argv in commands(RECIPES[name]):
        monkeypatch.chdir(folder)  # the command's path to the recipe holds from there
        config = load_config(argv, builder(folder))
        assert any(f"{name}.yaml" in word for word in argv)
        assert not config.RUNTIME.SMOKE


@pytest.mark.parametrize(
    ("name", "batch_size", "accum_iter", "processes", "first_rates", "after_warmup"),
    [
        # LinearWarmupLR: total 300, warm-up 50 and total 2, warm-up 1
        ("vit_base_patch16_caltech101", 128, 1, 1, (1e-2 * 0.019608, 1e-2 * 0.039216), (1e-2, 1e-2 * 0.996)),
        ("vit_base_patch16_cifar10", 128, 1, 1, (0.5e-2, 1e-2), (1e-2, 0.0)),
        ("resnet34_cifar10", 128, 1, 1, (0.1, 0.1 * 0.5 * (1 + np.cos(np.pi / 200))), None),
        ("resnet50_apex", 224, 1, 2, (0.175 * 2 / 5, 0.175 * 3 / 5), (0.175, 0.175)),
        # total 300, warm-up 150: 0.006623, 0.013245, then 1.0, 0.993333
        (LARGE_BATCH, 256, 32, 4, (1.8e-2 * 0.006623, 1.8e-2 * 0.013245), (1.8e-2, 1.8e-2 * 0.993333)),
    ],
)
def test_rates_are_the_published_ones(name, batch_size, accum_iter, processes, first_rates, after_warmup):
    config, _ = load(name, "-amp_mode=fp32", f"-batch_size={batch_size}")
    assert accum_iter == config.TRAIN.ACCUM_ITER
    schedule = build_schedule(config.TRAIN, 1, batch_size * accum_iter * processes)
    # the published factors have six digits, the first rate of a recipe three
    assert [schedule(0), schedule(1)] == pytest.approx(first_rates, rel=2e-3)
    if after_warmup:
        warm = round(config.TRAIN.WARMUP_EPOCHS)
        assert [schedule(warm), schedule(warm + 1)] == pytest.approx(after_warmup, rel=1e-5, abs=1e-12)


@pytest.mark.parametrize(
    ("variant", "published"),
    [  # epochs, warm-up, rate, batch, decay, clipping, drop path: the files of the authors that the recipes name
        ("DeiT/deit_small_patch16_224", (300, 5, 1e-3, 1024, 0.05, None, 0.1)),
        ("Swin/swin_tiny_patch4_window7_224", (300, 20, 1e-3, 1024, 0.05, 5.0, 0.2)),
        ("MetaFormer/poolformer_m48", (300, 5, 1e-3, 1024, 0.05, None, 0.4)),
        ("MetaFormer/poolformerv2_s36", (300, 5, 4e-3, 4096, 0.05, None, 0.2)),
        ("MetaFormer/convformer_s18", (300, 20, 4e-3, 4096, 0.05, None, 0.2)),
        ("MetaFormer/caformer_s18", (300, 20, 8e-3, 4096, 0.05, 1.0, 0.15)),
        ("MobileViT/mobilevitv2_100", (300, 16, 7.5e-3, 1024, 0.013, 10.0, None)),
        ("ConvMixer/convmixer_768_32", (300, 120, 1e-2, 640, 2e-5, 1.0, None)),
        ("CrossViT/crossvit_15_240", (300, 30, 4e-3, 4096, 0.05, None, 0.1)),
        ("VOLO/volo_d5_224", (300, 20, 8e-4, 1024, 0.05, None, 0.75)),
        ("RepVGG/repvgg_b3", (200, 5, 0.1, 256, 1e-4, None, None)),
        ("ConvNeXt/convnext_base", (300, 20, 4e-3, 4096, 0.05, None, 0.5)),
        ("CaiT/cait_s24_224", (400, 5, 1e-3, 1024, 0.05, None, 0.1)),
        # trained on from other weights
        ("DeiT/deit_base_patch16_384", (30, 5, 5e-6, 512, 1e-8, None, 0.1)),
        ("ViT/deit3_large_patch16_384", (20, 5, 1e-5, 512, 0.1, None, 0.4)),
        ("ViT/vit_base_patch16_384", (8, 0.2, 1e-2, 512, 0.0, 1.0, None)),
        ("Swin/swinv2_large_window12to24_192to384", (30, 5, 2e-5, 512, 1e-8, 5.0, 0.2)),
        ("VOLO/volo_d2_384", (30, 5, 8e-6, 384, 1e-8, None, 0.2)),
        ("MaxViT/maxvit_tiny_tf_384", (30, 0, 5e-5, 512, 1e-8, 1.0, 0.2)),
        ("BEiT/beit_large_patch16_512", (30, 5, 2e-5, 512, 1e-8, None, 0.4)),
        ("BEiT/beitv2_large_patch16_224", (20, 5, 7e-5, 1024, 0.05, None, 0.25)),
        ("EVA02/eva02_large_patch14_448", (20, 2, 2e-5, 512, 0.05, None, 0.15)),
        ("EVA02/eva_giant_patch14_336", (10, 2, 3e-5, 512, 0.05, None, 0.4)),
        ("ConvNeXt/convnextv2_tiny", (300, 40, 8e-4, 256, 0.05, None, 0.2)),
    ],
)
def test_variant_trains_as_its_authors_did(variant, published):
    folder, name = variant.split("/")
    config = load_config([f"-cfg={PACKAGE / folder / 'configs' / name}.yaml"], builder(PACKAGE / folder))
    train = config.TRAIN
    rates = (train.NUM_EPOCHS, train.WARMUP_EPOCHS, train.BASE_LR, train.LINEAR_SCALED_LR)
    assert (*rates, train.WEIGHT_DECAY, train.GRAD_CLIP, config.MODEL.ARGUMENTS.get("drop_path")) == published


@pytest.mark.parametrize("name", ["vit_base_patch32_32k", "vit_base_patch16_32k", "vit_large_patch32_32k"])
def test_large_batch_recipe_is_the_one_of_the_readme(name):
    config, _ = load(name)
    assert config.DATA.BATCH_SIZE * config.TRAIN.ACCUM_ITER * config.NGPUS == 32768
    assert (config.TRAIN.OPTIMIZER.NAME, config.TRAIN.WEIGHT_DECAY, config.TRAIN.GRAD_CLIP) == ("LAMB", 0.1, 1.0)
    assert (config.TRAIN.WARMUP_EPOCHS, config.TRAIN.NUM_EPOCHS, config.TRAIN.MIXUP_ALPHA) == (150, 300, 0.2)
    assert (config.AMP.MODE, config.AMP.DTYPE) == ("auto", "float16")
    large = "large" in name
    assert config.MODEL.ARGUMENTS["embed_dim"] == (1024 if large else 768)
    assert config.MODEL.ARGUMENTS["patch_size"] == (16 if "patch16" in name else 32)


@pytest.fixture(scope="module")
def data_paths(tmp_path_factory):
    """Return {data set: folder}, each with a few images in the official layout."""
    root = tmp_path_factory.mktemp("data")
    write_class_folders(root / "caltech101/101_ObjectCategories", {"accordion": 20, "airplanes": 20})
    for split, count in (("train", 20), ("val", 5)):
        write_class_folders(root / f"imagenet2012/{split}", {"n01440764": count, "n01443537": count})
    write_class_folders(root / "folder", {"cat": 20, "dog": 20})
    members, _ = cifar10_members()
    for name, content in members.items():
        path = root / "cifar10" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    for split, count in (("train", 64), ("validation", 8)):
        write_tfrecord(root / "imagenet_tfrecord", split, count)
    return {path.name: path for path in root.iterdir()}


def write_tfrecord(root, split, count):
    (root / split).mkdir(parents=True)
    (root / "idx_files" / split).mkdir(parents=True)
    file, positions, offset = bytearray(), [], 0
    for number in range(count):
        # two classes that differ in brightness: something to learn
        image = photo(40, 40, seed=number) // 2 + (number % 2) * 127
        record = frame(serialize_example({"image/encoded": encoded(image), "image/class/label": number % 2 + 1}))
        positions.append((offset, len(record)))
        file += record
        offset += len(record)
    (root / split / "shard-00000").write_bytes(bytes(file))
    (root / "idx_files" / split / "shard-00000.idx").write_text(index_text(positions))


def smoke_trainer(name, data_paths, *argv, opts=()):
    words = ["-device=cpu", *argv, "-opts", "RUNTIME.SMOKE=True", *opts]
    config, _ = load(name, *words)
    config, build_model = load(name, f"-data_path={data_paths[config.DATA.DATASET]}", *words)
    return build_trainer(build_parts(config, build_model, SingleProcess()))


class StopAfterTwoEpochs(Hook):
    """Asks for a stop, as a signal would."""

    def after_evaluation(self, trainer):
        trainer.stop_requested = trainer.progress.epoch == 2


class Losses(Hook):
    """Keeps the mean training loss of each epoch and the rate of each step."""

    def __init__(self):
        self.losses, self.rates = [], []

    def after_update(self, trainer):
        self.rates.append(trainer.optimizer.get_lr())

    def after_epoch(self, trainer):
        self.losses.append(trainer.mean.loss)


def fit(trainer):
    watch = Losses()
    trainer.hooks.append(watch)
    trainer.fit()
    return watch


@pytest.mark.parametrize("name", RECIPES)
def test_small_version_trains(name, data_paths):
    trainer = smoke_trainer(name, data_paths)
    watch = fit(trainer)
    assert trainer.progress.step > 0
    assert np.isfinite(watch.losses).all()
    assert trainer.evaluation["images"] > 0


@pytest.mark.parametrize("mode", ["fp32", "auto", "O1", "naive"])
def test_small_caltech_recipe_trains_in_the_four_modes(mode, data_paths):
    trainer = smoke_trainer("vit_base_patch16_caltech101", data_paths, f"-amp_mode={mode}")
    assert trainer.precision.mode == mode
    watch = fit(trainer)
    assert trainer.progress.step > 0
    assert watch.losses[-1] < watch.losses[0]


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_small_apex_recipe_trains_at_every_level(level, data_paths):
    trainer = smoke_trainer("resnet50_apex", data_paths, "--opt-level", level, opts=["TRAIN.NUM_EPOCHS=1"])
    assert trainer.precision.mode == level
    fit(trainer)
    assert trainer.progress.step > 0
    assert trainer.progress.step + trainer.progress.skipped_steps == 5  # 40 images, batches of 8


def test_small_large_batch_recipe_lowers_the_loss_at_the_scheduled_rates(data_paths):
    trainer = smoke_trainer(LARGE_BATCH, data_paths)
    watch = fit(trainer)
    # 64 images, 4 x 4 accumulated: 4 steps an epoch, 2 of 4 epochs warm-up from a third of the rate
    assert trainer.steps_per_epoch == 4
    ramp = [6e-3 + (1.8e-2 - 6e-3) * step / 8 for step in range(8)]
    fall = [1.8e-2 * (1 - step / 8) for step in range(8)]
    assert watch.rates == pytest.approx(ramp + fall, rel=1e-6)
    assert watch.losses[-1] < watch.losses[0] - 0.5


def test_accumulation_of_the_same_global_batch_gives_the_same_weights(data_paths):
    weights = []
    for batch_size, accum_iter in ((4, 8), (8, 4), (32, 1)):
        trainer = smoke_trainer(
            LARGE_BATCH,
            data_paths,
            "-amp_mode=fp32",
            f"-batch_size={batch_size}",
            f"-accum_iter={accum_iter}",
            opts=["AMP.DTYPE=none", "MODEL.DROPOUT=0.0", "TRAIN.MIXUP_ALPHA=0.0", "TRAIN.NUM_EPOCHS=2"],
        )
        fit(trainer)
        assert trainer.progress.step == 4
        weights.append({name: value.numpy() for name, value in trainer.model.state_dict().items()})
    for other in weights[1:]:
        for name, value in weights[0].items():
            np.testing.assert_allclose(other[name], value, rtol=0, atol=1e-6, err_msg=name)


def test_two_processes_of_the_same_global_batch_give_the_same_weights(data_paths, tmp_path):
    command = [
        f"-cfg={RECIPES[LARGE_BATCH]}",
        f"-data_path={data_paths['imagenet_tfrecord']}",
        "-device=cpu",
        "-amp_mode=fp32",
        *["-opts", "RUNTIME.SMOKE=True", "AMP.DTYPE=none", "MODEL.DROPOUT=0.0", "TRAIN.MIXUP_ALPHA=0.0"],
        "TRAIN.NUM_EPOCHS=2",
    ]
    one, two = tmp_path / "one", tmp_path / "two"
    run_well(*command[:4], "-batch_size=32", "-accum_iter=1", f"-output={one}", *command[4:], run=run_here)
    split = ["-ngpus=2", "-batch_size=4", "-accum_iter=4", f"-output={two}"]
    run_well(*command[:4], *split, *command[4:], script="main_multi_gpu.py")
    assert report_of(two)["world_size"] == 2
    assert report_of(two)["steps"] == report_of(one)["steps"] == 4
    expected, weights = (checkpoint.load(folder / "latest.pdparams")["model"] for folder in (one, two))
    for name, value in expected.items():
        np.testing.assert_allclose(weights[name], value, rtol=0, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("mode", ["auto", "naive"])
def test_resumed_large_batch_run_ends_with_the_same_weights(mode, data_paths, tmp_path):
    def start():
        # from its default of 2**32 naive float16 would skip the whole run
        scale = ["AMP.INITIAL_SCALE=1024"] if mode == "naive" else []
        opts = ["AMP.DTYPE=none", "TRAIN.MODEL_EMA=True", "TRAIN.MODEL_EMA_DECAY=0.9", *scale]
        return smoke_trainer(LARGE_BATCH, data_paths, f"-amp_mode={mode}", opts=opts)

    straight = start()
    straight.fit()
    first = start()
    first.hooks.append(StopAfterTwoEpochs())
    first.fit()
    assert 0 < first.progress.step < straight.progress.step
    path = checkpoint.Store(tmp_path, keep=1).save(first.state(), "half")
    second = start()
    second.load_state(checkpoint.load(path), path)
    second.fit()
    assert second.progress.step == straight.progress.step
    for name, value in straight.model.state_dict().items():
        np.testing.assert_array_equal(second.model.state_dict()[name].numpy(), value.numpy(), err_msg=name)
    for name, value in straight.ema.state_dict().items():
        np.testing.assert_array_equal(second.ema.state_dict()[name].numpy(), value.numpy(), err_msg=name)


def test_smoke_lies_between_the_yaml_and_the_command_line(tmp_path):
    path = tmp_path / "recipe.yaml"
    (tmp_path / "base.yaml").write_text("SMOKE: {SEED: 5, DATA: {BATCH_SIZE: 2}}\n")  # below the file's own
    path.write_text("BASE: base.yaml\nDATA: {BATCH_SIZE: 64, IMAGE_SIZE: 96}\n"
                    "SMOKE:\n  DATA: {BATCH_SIZE: 4, IMAGE_SIZE: 32}\n")  # fmt: skip
    assert load_config([f"-cfg={path}"]).DATA.BATCH_SIZE == 64
    config = load_config([f"-cfg={path}", "-image_size=48", "-opts", "RUNTIME.SMOKE=True"])
    assert (config.DATA.BATCH_SIZE, config.DATA.IMAGE_SIZE, config.SEED) == (4, 48, 5)


def test_effective_configuration_of_a_smoke_run_loads_to_the_same(tmp_path):
    config, build_model = load(LARGE_BATCH, "-opts", "RUNTIME.SMOKE=True")
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(config))
    assert to_yaml(load_config([f"-cfg={path}"], build_model)) == to_yaml(config)


def test_smoke_without_a_small_version_is_an_error(tmp_path):
    path = tmp_path / "plain.yaml"
    path.write_text("DATA: {BATCH_SIZE: 64}\n")
    with pytest.raises(UserError, match=r"RUNTIME\.SMOKE: .*plain\.yaml has no SMOKE section"):
        load_config([f"-cfg={path}", "-opts", "RUNTIME.SMOKE=True"])
    path.write_text("SMOKE: 3\n")
    with pytest.raises(UserError, match=r"plain\.yaml: SMOKE: expected a section of keys, found 3"):
        load_config([f"-cfg={path}"])


def test_wrong_key_in_a_smoke_section_names_the_section(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("SMOKE: {DATA: {BATCHSIZE: 4}}\n")
    with pytest.raises(UserError, match=r"recipe\.yaml, SMOKE: DATA\.BATCHSIZE is not a key.*DATA\.BATCH_SIZE"):
        load_config([f"-cfg={path}", "-opts", "RUNTIME.SMOKE=True"])


APEX_COMMANDS = """
main_single_gpu.py -a resnet50 --b 128 --workers 4 --opt-level O0 ./
main_single_gpu.py -a resnet50 --b 224 --workers 4 --opt-level O3 ./
main_single_gpu.py -a resnet50 --b 224 --workers 4 --opt-level O3 --keep-batchnorm-fp32 True ./
main_single_gpu.py -a resnet50 --b 224 --workers 4 --opt-level O1 ./
main_single_gpu.py -a resnet50 --b 224 --workers 4 --opt-level O1 --loss-scale 128.0 ./
main_multi_gpu.py --local_rank=1 -a resnet50 --b 224 --workers 4 --opt-level O1 ./
main_single_gpu.py -a resnet50 --b 224 --workers 4 --opt-level O2 ./
main_single_gpu.py -a resnet50 --b 224 --workers 4 --opt-level O2 --loss-scale 128.0 ./
main_multi_gpu.py --local_rank=1 -a resnet50 --b 224 --workers 4 --opt-level O2 ./
"""


@pytest.mark.parametrize("line", APEX_COMMANDS.strip().splitlines())
def test_commands_of_apexs_readme_are_accepted_as_they_are_written(line, monkeypatch):
    """NVIDIA/apex, examples/imagenet/README.md, with our program's name; ./ is the folder with train/ and val/."""
    monkeypatch.chdir(PACKAGE / "ResNet")
    words = line.split()[1:]
    config = load_config(words, builder(PACKAGE / "ResNet"))
    assert config.MODEL.NAME == "resnet50" and config.DATA.DATA_PATH == "./" and config.DATA.NUM_WORKERS == 4
    assert str(config.DATA.BATCH_SIZE) == words[words.index("--b") + 1]
    assert words[words.index("--opt-level") + 1] == config.AMP.MODE
    assert config.TRAIN.LINEAR_SCALED_LR == 256 and config.TRAIN.LR_SCHEDULER.NAME == "apexstep"
    assert (1 if "--local_rank=1" in words else None) == config.PARALLEL.LOCAL_RANK
    assert dict(config.AMP.OPTIONS).get("loss_scale") == (128.0 if "--loss-scale" in words else None)


def test_other_flags_of_apex_mean_the_same_and_a_typing_mistake_is_none_of_them(tmp_path, monkeypatch):
    monkeypatch.chdir(PACKAGE / "ResNet")
    words = ["--arch=resnet50", "-b", "32", "-j", "2", "--epochs", "3", "--lr", "0.2", "-e", str(tmp_path)]
    config = load_config(words, builder(PACKAGE / "ResNet"))
    assert (config.DATA.BATCH_SIZE, config.DATA.NUM_WORKERS, config.TRAIN.NUM_EPOCHS) == (32, 2, 3)
    assert (0.2, True, str(tmp_path)) == (config.TRAIN.BASE_LR, config.EVAL, config.DATA.DATA_PATH)
    for wrong, message in (
        ("-batchsize=3", "did you mean -batch_size"),
        ("-ammp", "did you mean -amp"),
        ("-cfg=x", "resnet50 and -cfg=x"),
        ("-data_path=x", "-data_path=x: give one"),
    ):
        with pytest.raises(UserError, match=message):
            load_config([*words, wrong], builder(PACKAGE / "ResNet"))
