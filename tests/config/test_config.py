"""Configuration: precedence, types, errors that name file, key and the nearest key, PaddleViT's flags."""

import dataclasses
import operator
import re

import pytest
import yaml

from image_classification.config import build_config, invocation_yaml, load_config, to_yaml
from image_classification.config.command_line import FLAGS, make_parser
from image_classification.config.dialect import nested
from image_classification.config.meant import OF_OTHERS
from image_classification.config.merge import keys_of
from image_classification.config.schema import DATASETS, Config
from image_classification.config.unread import READ_WITH
from image_classification.config.values import name_of
from image_classification.config.yaml_text import load_yaml
from image_classification.data.sources import DATASETS as SOURCES
from image_classification.runtime import UserError


def build_model(num_classes: int = 10, embed_dim: int = 64, drop_rate: float = 0.0, epsilon: float = 1e-6,
                stem: str = "patch", **_):  # fmt: skip
    """A builder whose signature is a MODEL schema."""


def write(folder, name, text):
    path = folder / name
    path.write_text(text)
    return str(path)


def load(folder, text, *argv):
    return load_config([f"-cfg={write(folder, 'model.yaml', text or 'SEED: 0')}", *argv], build_model)


def test_precedence_default_base_yaml_command_line_last_wins(tmp_path):
    write(tmp_path, "root.yaml", "TRAIN: {BASE_LR: 0.1, NUM_EPOCHS: 7, END_LR: 0.01}\nSEED: 5")
    write(tmp_path, "middle.yaml", "BASE: root.yaml\nTRAIN: {NUM_EPOCHS: 8}")
    write(tmp_path, "first.yaml", "TRAIN: {BASE_LR: 0.4, END_LR: 0.02}\nSEED: 4")  # the last one of a list wins
    text = "BASE: [first.yaml, middle.yaml]\nTRAIN: {BASE_LR: 0.2, WARMUP_EPOCHS: 3}"
    argv = ["-num_epochs=9", "-batch_size=2", "-opts", "TRAIN.WARMUP_EPOCHS=4", "DATA.BATCH_SIZE=6"]
    config = load(tmp_path, text, *argv)
    assert (config.TRAIN.END_LR, config.TRAIN.BASE_LR, config.TRAIN.NUM_EPOCHS) == (0.01, 0.2, 9)
    assert (config.TRAIN.WARMUP_EPOCHS, config.DATA.BATCH_SIZE) == (4, 6)  # -opts come last
    assert config.SEED == 5
    assert config.TRAIN.ACCUM_ITER == 1  # the default


@pytest.mark.parametrize("text", ["20260101_12", "0123", "1:30", "-017", "1_000.5", "1.50", "0x10", "+5", "1.0e+3",
                                  "1.", "0b11", "-0", ".5", ".inf", "9" * 20, "1.5", "7"])  # fmt: skip
def test_text_that_yaml_takes_for_a_number_stays_as_typed(tmp_path, text):
    configs = [load(tmp_path, f"SAVE: {text}\nTRAIN: {{HOOKS: [{text}, a]}}"),
               load(tmp_path, "", "-opts", f"SAVE={text}", f"TRAIN.HOOKS=[{text}, a]")]  # fmt: skip
    assert [(config.SAVE, config.TRAIN.HOOKS) for config in configs] == 2 * [(text, (text, "a"))]
    again = load(tmp_path, to_yaml(configs[0]))
    assert (text, (text, "a")) == (again.SAVE, again.TRAIN.HOOKS)


@pytest.mark.parametrize("text", ["a #b", "#b", "runs/c# 1"])
def test_text_of_opts_is_cut_by_no_comment(tmp_path, text):
    config = load(tmp_path, "", "-opts", f"SAVE={text}")
    assert text == config.SAVE


def test_number_with_leading_zeros_or_thousands_is_decimal(tmp_path):
    config = load(tmp_path, "DATA: {BATCH_SIZE: 010}\nTRAIN: {NUM_EPOCHS: 1_0}")
    assert (config.DATA.BATCH_SIZE, config.TRAIN.NUM_EPOCHS) == (10, 10)


def test_number_however_it_is_written_is_one_where_one_is_expected(tmp_path):
    text = ("DATA: {BATCH_SIZE: 0x10, IMAGENET_MEAN: [0.50, 5.0e-1, .5]}\nTRAIN: {BASE_LR: 1.50e-3}\n"
            "AMP: {MODE: auto, init_scale: 0x100, some: {deep: [1.50, a]}}\nMODEL: {ANY: [0x10, 1.50]}")  # fmt: skip
    config = build_config([("text", load_yaml(text, "text"))], lambda any=None: None)
    assert (config.DATA.BATCH_SIZE, config.DATA.IMAGENET_MEAN, config.TRAIN.BASE_LR) == (16, (0.5, 0.5, 0.5), 1.5e-3)
    assert dict(config.AMP.OPTIONS) == {"init_scale": 256, "some": {"deep": [1.5, "a"]}}
    assert config.MODEL.ARGUMENTS["any"] == [16, 1.5]


def test_numbers_written_as_yaml_1_1_strings_become_numbers(tmp_path):
    config = load(tmp_path, "TRAIN: {BASE_LR: 3e-3, WARMUP_EPOCHS: 2, OPTIMIZER: {BETAS: '(0.9, 0.95)'}}")
    assert config.TRAIN.BASE_LR == 3e-3
    assert config.TRAIN.WARMUP_EPOCHS == 2.0 and isinstance(config.TRAIN.WARMUP_EPOCHS, float)
    assert config.TRAIN.OPTIMIZER.BETAS == (0.9, 0.95)


def test_config_after_loading_is_frozen(tmp_path):
    config = load(tmp_path, "SEED: 1")
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.SEED = 2
    with pytest.raises(TypeError):
        config.MODEL.ARGUMENTS["embed_dim"] = 3


def test_model_section_takes_the_builders_arguments(tmp_path):
    config = load(tmp_path, "MODEL: {NAME: x, EMBED_DIM: 32, DROP_RATE: 1}", "-opts", "MODEL.STEM=conv")
    assert dict(config.MODEL.ARGUMENTS) == {"embed_dim": 32, "drop_rate": 1.0, "stem": "conv"}


def test_amp_section_other_keys_are_options_of_the_mode(tmp_path):
    config = load(tmp_path, "AMP: {MODE: naive, HYSTERESIS: 3}", "--loss-scale", "128.0")
    assert config.AMP.MODE == "naive"
    assert dict(config.AMP.OPTIONS) == {"hysteresis": 3, "loss_scale": 128.0}


def test_amp_option_when_a_text_is_a_number_is_that_number(tmp_path):
    """1e3 without a point is a text in YAML 1.1, and a number to everybody who writes it."""
    options = "init_scale: 1e3, hysteresis: '2', scaler: torch, OPTIONS: {min_scale: 1e-2}"
    config = load(tmp_path, f"AMP: {{MODE: naive, {options}}}")
    assert dict(config.AMP.OPTIONS) == {"init_scale": 1000.0, "hysteresis": 2, "scaler": "torch", "min_scale": 0.01}
    assert load(tmp_path, "AMP: {MODE: O2, loss_scale: inf}").AMP.OPTIONS["loss_scale"] == "inf"  # for amp to refuse


@pytest.mark.parametrize(
    ("text", "argv", "mode"),
    [
        ("", (), "fp32"),
        ("", ("-amp",), "auto"),
        ("AMP: True", (), "auto"),
        ("AMP: {MODE: O2}", ("-amp",), "O2"),
        ("AMP: {MODE: O2}", ("-amp_mode", "fp32"), "fp32"),
        ("", ("-amp", "--opt-level", "O1"), "O1"),
        ("AMP: False", (), "fp32"),
    ],
)
def test_amp_switch_and_mode_combine(tmp_path, text, argv, mode):
    assert mode == load(tmp_path, text, *argv).AMP.MODE


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("TRAIN: {BASE_LRR: 1}", ["model.yaml", "TRAIN.BASE_LRR", "TRAIN.BASE_LR"]),
        ("BASE_LR: 1", ["model.yaml", "BASE_LR", "TRAIN.BASE_LR"]),
        ("BETAS: [0.9, 0.99]", ["BETAS is not a key; did you mean TRAIN.OPTIMIZER.BETAS?"]),
        ("MODEL: {EMBED_DIMM: 1}", ["MODEL.EMBED_DIMM", "MODEL.EMBED_DIM"]),
        ("MODEL: {EMBED_DIM: big}", ["MODEL.EMBED_DIM", "an integer", "'big'"]),
        ("MODEL: {EPSILON: 0.3}", ["MODEL.EPSILON", "at most 0.001", "0.3"]),
        ("MODEL: {DROP_RATE: 1e9}", ["MODEL.DROP_RATE", "at most 1048576", "1e9"]),
        ("TRAIN: {WARMUP_EPOCHS: 1e308}", ["TRAIN.WARMUP_EPOCHS", "at most 1000000", "1e308"]),
        ("TRAIN: {LR_SCHEDULER: {DECAY_RATE: 10}}", ["TRAIN.LR_SCHEDULER.DECAY_RATE", "at most 1", "10"]),
        ("TRAIN: {NUM_EPOCHS: 1.5}", ["TRAIN.NUM_EPOCHS", "an integer", "1.5"]),
        ("TRAIN: {BASE_LR: fast}", ["TRAIN.BASE_LR", "a number", "'fast'"]),
        ("TRAIN: {ACCUM_ITER: 0}", ["TRAIN.ACCUM_ITER", "at least 1"]),
        ("TRAIN: {SMOOTHING: 1}", ["TRAIN.SMOOTHING", "less than 1"]),
        ("TRAIN: {CLASS_WEIGHTS: [1, 0]}", ["TRAIN.CLASS_WEIGHTS", "more than 0"]),
        ("TRAIN: {COLOR_JITTER: [-0.1]}", ["TRAIN.COLOR_JITTER", "at least 0"]),
        ("TRAIN: 3", ["TRAIN", "section"]),
        ("DATA: {IMAGENET_MEAN: [0.5]}", ["DATA.IMAGENET_MEAN", "IMAGE_CHANNELS 3"]),
        ("AMP: {MODE: '01'}", ["AMP.MODE", "did you mean O1"]),
        ("AMP: {mode: O2}", ["AMP.mode is not a key", "did you mean AMP.MODE"]),
        ("AMP: {MODE: O2, loss_scale: 5, LOSS_SCALE: 6}", ["AMP: loss_scale stands there twice"]),
        ("EVAL: maybe", ["EVAL", "true or false"]),
        ("- a\n- b", ["model.yaml", "mapping"]),
        ("# nothing", ["model.yaml", "is empty"]),
        ("TRAIN: [", ["model.yaml", "line", "not YAML"]),
        ("BASE: nowhere.yaml", ["nowhere.yaml", "BASE of"]),
        ("BASE: model.yaml", ["circle"]),
        ("TRAIN: {OPTIMIZER: {NAME: Adamax}}", ["TRAIN.OPTIMIZER.NAME", "AdamW, Adam,", "mean Adam?", "'Adamax'"]),
        ("TRAIN: {LR_SCHEDULER: {NAME: cosin}}", ["TRAIN.LR_SCHEDULER.NAME", "did you mean cosine?"]),
        ("DATA: {CROP_SCALE: [1.0, 0.1]}", ["DATA.CROP_SCALE", "the smaller one first"]),
        ("DATA: {CROP_SCALE: [0.1, 2]}", ["DATA.CROP_SCALE", "at most 1"]),
        ("DATA: {CROP_RATIO: [0, 1]}", ["DATA.CROP_RATIO", "more than 0"]),
        ("TRAIN.NUM_EPOCHS: 3\nTRAIN: {NUM_EPOCHS: 4}", ["TRAIN.NUM_EPOCHS", "stands there twice"]),
        ("DATA: {IMAGENET_STD: [1, 0, 1]}", ["DATA.IMAGENET_STD", "more than 0"]),
        ("DATA: {IMAGENET_MEAN: [123.7, 116.3, 103.5]}", ["DATA.IMAGENET_MEAN", "at most 1"]),  # as of bytes
        ("DATA: {IMAGENET_STD: [58.4, 57.1, 57.4]}", ["DATA.IMAGENET_STD", "at most 1"]),
        ("DATA: {DATASET: digit}", ["DATA.DATASET", "imagenet2012", "did you mean digits?"]),
        ("SEED: 1\nTRAIN: {}\nSEED: 2", ["model.yaml, line 3", "SEED a second time"]),
        ("DATA:\n  BATCH_SIZE: 1\n  BATCH_SIZE: 1", ["model.yaml, line 3", "BATCH_SIZE a second time"]),
    ],
)
def test_wrong_yaml_is_one_line_that_names_file_key_and_what_is_allowed(tmp_path, text, expected):
    with pytest.raises(UserError) as caught:
        load(tmp_path, text)
    message = str(caught.value)
    assert "\n" not in message
    for part in expected:
        assert part in message


def test_base_that_cannot_be_read_is_said_to_be_that_of_the_file_that_names_it(tmp_path):
    (tmp_path / "cut.yaml").write_bytes(b"\xff")
    write(tmp_path, "middle.yaml", "BASE: cut.yaml")
    with pytest.raises(UserError, match=r"cut.yaml: .* \(BASE of .*middle.yaml\)"):
        load(tmp_path, "BASE: middle.yaml")


def test_key_like_no_other_lists_those_of_its_section_alone(tmp_path):
    with pytest.raises(UserError, match="; MODEL has NAME, ") as caught:
        load(tmp_path, "MODEL: {XXXXXXXXXXXXXXXXXXXX: 1}")
    listed = str(caught.value).rpartition(" has ")[2].split(", ")
    assert {"PRETRAINED", "EMBED_DIM"} <= set(listed) and not {"SEED", "BASE_LR", "BATCH_SIZE"} & set(listed)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["-batchsize=3"], "did you mean -batch_size?"),
        (["--weight-decay", "0.05"], "unknown argument '--weight-decay'; did you mean -opts TRAIN.WEIGHT_DECAY=VALUE?"),
        (["--min-lr=1e-5"], "unknown argument '--min-lr=1e-5'; did you mean -opts TRAIN.END_LR=VALUE?"),
        (["-batch_size=three"], "command line -batch_size: DATA.BATCH_SIZE: expected an integer"),
        (["-opts", "TRAIN.BASE_LR"], "KEY=VALUE"),
        (["-opts", "TRAIN.LR=1"], "TRAIN.LR is not a key; did you mean TRAIN.END_LR or TRAIN.BASE_LR?"),
        (["-opts", "BATCH_SIZE=1"], "BATCH_SIZE is not a key; did you mean DATA.BATCH_SIZE?"),
        (["-batch_size"], "expected one argument"),
        (["-pretrained="], "-pretrained: is empty"),
        (["-output", ""], "-output: is empty"),
        (["-amp=True"], "argument -amp: is a switch, which takes no value: found 'True'"),
        (["-amp", "O2"], "unknown argument 'O2'; did you mean -amp_mode=O2? A folder is -data_path=O2"),
        (["-amp", "bfloat16", "-eval"], "did you mean -amp_dtype=bfloat16?"),
        (["-amp", "fp16"], "unknown argument 'fp16'; did you mean -amp_dtype=float16?"),
        (["-amp", "Half"], "unknown argument 'Half'; did you mean -amp_dtype=float16?"),
        (["modell.yaml"], "unknown argument 'modell.yaml'; a path with blanks needs quotes"),
        (["-data_path=my", "own", "photos"], "unknown argument 'photos'; a path with blanks needs quotes"),
        (["-amp_mode=fp16"], "(did you mean AMP.DTYPE?), found 'fp16'"),
        (["-amp_mode=bfloat16"], "(did you mean AMP.DTYPE?), found 'bfloat16'"),
        (["-amp_dtype=half"], "(did you mean float16?), found 'half'"),
        (["-amp_dtype=BF16"], "(did you mean bfloat16?), found 'BF16'"),
    ],
)
def test_wrong_command_line_is_one_line(tmp_path, argv, expected):
    with pytest.raises(UserError, match="(?s)") as caught:
        load(tmp_path, "", *argv)
    assert expected in str(caught.value) and "\n" not in str(caught.value)


def test_option_of_other_programs_leads_to_one_that_there_is(tmp_path):
    keys, flags = {*keys_of(), "MODEL.DROP_PATH"}, make_parser()._option_string_actions
    assert all(option in flags or option.removeprefix("-opts ").removesuffix("=VALUE") in keys
               for option in OF_OTHERS.values())  # fmt: skip
    assert load(tmp_path, "DATA: {DATASET: folder}", "data").DATA.DATA_PATH == "data"  # not --data


def test_missing_configuration_file_is_named():
    with pytest.raises(UserError, match="nowhere.yaml"):
        load_config(["-cfg", "nowhere.yaml"])
    with pytest.raises(UserError, match="-cfg"):
        load_config([])


@pytest.mark.parametrize("flag", [flag for group in FLAGS.values() for flag in group])
def test_flag_with_equals_sign_or_blank_means_the_same(tmp_path, flag):
    words = {"amp_mode": "O2", "opt-level": "O2", "amp_dtype": "float16", "keep-batchnorm-fp32": "True"}
    value = (words | {"launcher": "slurm", "dataset": "cifar10"}).get(flag, "1")
    # fp32 has no half format, none no teacher, one process no host of rank 0
    text = "AMP: {MODE: auto}\nTRAIN: {DISTILLATION_TYPE: soft}\nPARALLEL: {WORLD_SIZE: 2}"
    with_equals = load(tmp_path, text, f"-{flag}={value}")
    assert with_equals == load(tmp_path, text, f"-{flag}", value)
    assert with_equals != load(tmp_path, "DATA: {BATCH_SIZE: 17}\nSEED: 99")


def test_flag_sets_the_key_of_its_name():
    other = {"teacher_model_path": "TEACHER", "lr": "BASE_LR", "prof": "PROFILE_STEP", "amp_mode": "MODE",
             "opt-level": "MODE", "amp_dtype": "DTYPE"}  # fmt: skip
    for flag, (key, _) in [item for group in FLAGS.values() for item in group.items()]:
        assert key.rpartition(".")[2].lower() == other.get(flag, flag).replace("-", "_").lower(), flag


def test_help_names_every_flag_with_its_default():
    text = make_parser().format_help()
    for flag in [flag for group in FLAGS.values() for flag in group] + ["amp", "eval", "dry_run", "opts", "cfg"]:
        assert f"-{flag}" in text
    assert "(TRAIN.NUM_EPOCHS; default: 300)" in " ".join(text.split())


def test_effective_configuration_loads_to_itself(tmp_path):
    config = load(tmp_path, "MODEL: {NUM_CLASSES: 7, EMBED_DIM: 32}\nAMP: {MODE: naive, HYSTERESIS: 3}", "-seed=5")
    again = build_config([("again", yaml.safe_load(to_yaml(config)))], build_model)
    assert again == config


def test_opts_given_twice_add_up(tmp_path):
    config = load(tmp_path, "", "-opts", "SEED=3", "-opts", "TRAIN.BASE_LR=1e-2", "KEEP=7")
    assert (config.SEED, config.TRAIN.BASE_LR, config.KEEP) == (3, 0.01, 7)


@pytest.mark.parametrize(("argv", "seed", "note"), [
    (["-seed=1", "-seed=2"], 2, "SEED is given twice: 2 of -seed holds, 1 of -seed does not"),
    (["-opts", "SEED=1", "-opts", "SEED=2"], 2, "SEED is given twice: 2 of -opts holds, 1 of -opts does not"),
    (["-opts", "SEED=1", "-seed=2"], 1, "SEED is given twice: 1 of -opts holds, 2 of -seed does not"),
    (["-seed=2", "-seed=2", "-opts", "SEED=3"], 3, "SEED is given twice: 3 of -opts holds, 2 of -seed does not"),
    (["-seed=2", "-seed=2"], 2, None),
])  # fmt: skip
def test_key_given_twice_has_its_last_value_and_the_log_says_so(tmp_path, argv, seed, note):
    config = load(tmp_path, "DATA: {DATASET: digits}", *argv)
    assert (config.SEED, *config.NOTES) == ((seed, note) if note else (seed,))


def test_what_belongs_to_one_invocation_is_not_in_the_recipe(tmp_path):
    words = ["-eval", "-resume=a", "-output=b", "-dry_run", "-device=cpu", "-ngpus=2", "-rank=1", "-world_size=2"]
    words += ["-host=h", "-port=7", "-launcher=slurm", "-last_epoch=3", "-opts", "EVAL_FP32=True"]
    text = "MODEL: {NUM_CLASSES: 7, EMBED_DIM: 32}\nAMP: {MODE: auto}"
    assert to_yaml(load(tmp_path, text, "-prof=4")) == to_yaml(load(tmp_path, text))
    assert to_yaml(load(tmp_path, text, *words)) == to_yaml(load(tmp_path, text))
    config = load(tmp_path, text, *words)
    whole = build_config([("recipe", yaml.safe_load(to_yaml(config))),
                          ("invocation", yaml.safe_load(invocation_yaml(config)))], build_model)  # fmt: skip
    assert whole == config


@pytest.mark.parametrize(
    ("text", "argv", "weights"),
    [
        ("MODEL: {RESUME: old}", ["-pretrained=new"], ("new", None)),
        ("MODEL: {PRETRAINED: old}", ["-resume=new"], ("old", "new")),  # whose normalisation a training keeps
        ("MODEL: {PRETRAINED: old}", ["-opts", "MODEL.RESUME=new"], ("old", "new")),
        ("MODEL: {PRETRAINED: old}", ["-eval", "-resume=new"], (None, "new")),
        ("MODEL: {PRETRAINED: old}", [], ("old", None)),
        ("MODEL: {PRETRAINED: old}", ["-pretrained=none"], (None, None)),
    ],
)
def test_weights_of_the_command_line_replace_those_of_the_file(tmp_path, text, argv, weights):
    model = load(tmp_path, text, *argv).MODEL
    assert weights == (model.PRETRAINED, model.RESUME)


@pytest.mark.parametrize(
    ("text", "argv"),
    [("", ["-pretrained=one", "-resume=two"]), ("MODEL: {PRETRAINED: one, RESUME: two}", [])],
)
def test_two_sources_of_weights_in_one_place_are_an_error(tmp_path, text, argv):
    with pytest.raises(UserError, match="one.*two.*two sources of weights"):
        load(tmp_path, text, *argv)


@pytest.mark.parametrize(
    ("text", "argv", "expected"),
    [
        ("", ["-amp", "-amp_mode=fp32"], "-amp and AMP.MODE fp32 contradict"),
        ("", ["-amp_dtype=float16"], "-amp_dtype=float16: AMP.MODE fp32 computes in float32: add -amp"),
        ("", ["--opt-level=O0", "-opts", "AMP.DTYPE=bfloat16"], "-amp_dtype=bfloat16: AMP.MODE O0 computes in float32"),
        ("", ["-amp", "-amp_dtype=bfloat16", "-amp_mode=O0"], "computes in float32: give -amp_mode with one of auto"),
        ("", ["-amp", "-amp_mode=O0", "-eval", "-opts", "EVAL_FP32=True"], "float32: give -amp_mode with one of"),
        ("", ["-output=a", "-opts", "SAVE=b"], "SAVE=b: -output=a is the folder of this run"),
        ("DATA: {DATASET: digits}", ["-data_path=/photos"], "-data_path=/photos: DATA.DATASET digits reads no folder"),
        ("DATA: {DATASET: digits}", ["-amp", "True"], "-data_path=True: DATA.DATASET digits reads no folder"),
        ("", ["-teacher_model_path=x"], "-teacher_model_path=x: TRAIN.DISTILLATION_TYPE is none"),
        ("", ["-eval", "-prof=1"], "-prof=1: steps of a training are profiled, and -eval makes none"),
        ("", ["-last_epoch=3", "-num_epochs=3"], "-last_epoch=3: TRAIN.NUM_EPOCHS is 3: nothing to train"),
        ("", ["-eval", "-opts", "EVAL_FP32=True"], "EVAL_FP32=True: AMP.MODE fp32 computes in float32: add -amp"),
        ("", ["-last_epoch=2", "-resume=run"], "-last_epoch=2: the checkpoint of -resume knows how many"),
        ("", ["-amp", "-opts", "EVAL_FP32=True"], "EVAL_FP32=True: compares evaluations: add -eval"),
        ("TRAIN: {CLASS_WEIGHTS: even}", [], "CLASS_WEIGHTS: 'even': allowed are a list of numbers and balanced"),
        ("TRAIN: {CLASS_WEIGHTS: balanced}", ["-opts", "DATA.BALANCED=True"], "balanced: DATA.BALANCED draws each"),
        ("TRAIN: {CLASS_WEIGHTS: balanced}", ["-dataset=imagenet_tfrecord"], "balanced: .* weights as numbers$"),
        ("DATA: {BALANCED: True}", ["-dataset=imagenet_tfrecord"], "BALANCED: imagenet_tfrecord has its labels in the"),
    ],
)
def test_switch_that_would_do_nothing_is_an_error(tmp_path, text, argv, expected):
    with pytest.raises(UserError, match=expected):
        load(tmp_path, text, *argv)


def test_run_with_balanced_classes_is_evaluated_on_records_that_do_not_tell_theirs(tmp_path):
    assert load(tmp_path, "DATA: {BALANCED: True}", "-dataset=imagenet_tfrecord", "-eval").EVAL


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [
        ("", "TRAIN.OPTIMIZER.NAME=SGD TRAIN.OPTIMIZER.MOMENTUM=0.9", "OPTIMIZER.MOMENTUM: .*Momentum or .* is SGD"),
        ("TRAIN: {OPTIMIZER: {NAME: sgd, NESTEROV: True}}", "", "OPTIMIZER.NESTEROV: nothing reads it .* is sgd"),
        ("", "TRAIN.RAND_AUGMENT_LAYERS=3", "RAND_AUGMENT_LAYERS: nothing reads it without .*False"),
        ("TRAIN: {LR_SCHEDULER: {NAME: step}}", "TRAIN.END_LR=0.1", "TRAIN.END_LR: .* cosine or .* is step"),
        ("", "TRAIN.MIXUP_PROB=0.5", "MIXUP_PROB: nothing reads it without TRAIN.MIXUP_ALPHA or .*CUTMIX_ALPHA or"),
        ("TRAIN: {CUTMIX_ALPHA: 1}", "TRAIN.MIXUP_SWITCH_PROB=0.1", "MIXUP_SWITCH_PROB: .*MIXUP_ALPHA, which is 0"),
        ("", "DATA.SYNTHETIC_IMAGES=64", "DATA.SYNTHETIC_IMAGES: .*DATASET synthetic, which is imagenet2012"),
        ("", "MODEL.TEACHER_CFG=resnet18", "MODEL.TEACHER_CFG: .*DISTILLATION_TYPE soft or hard, which is none"),
        ("DATA: {TRAIN_CROP: pad}", "DATA.CROP_SCALE=[0.5,1]", "DATA.CROP_SCALE: .*random_resized, which is pad"),
        ("", "PARALLEL.HOST=10.0.0.1", "PARALLEL.HOST: nothing reads it without PARALLEL.WORLD_SIZE"),
        ("", "PARALLEL.PORT=29501", "PARALLEL.PORT: nothing reads it without PARALLEL.WORLD_SIZE"),
    ],
)
def test_key_that_nothing_reads_is_an_error_where_it_is_said_beside_the_reason(tmp_path, text, words, expected):
    with pytest.raises(UserError, match=expected):
        load(tmp_path, text, *(["-opts", *words.split()] if words else []))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("BASE: momentum.yaml\nTRAIN: {OPTIMIZER: {NAME: SGD}}", ""),  # inherited
        ("BASE: momentum.yaml", "TRAIN.OPTIMIZER.NAME=SGD"),
        ("TRAIN: {OPTIMIZER: {NAME: momentum, NESTEROV: True}}", "TRAIN.OPTIMIZER.MOMENTUM=0.8"),
        ("TRAIN: {RAND_AUGMENT: False, RAND_AUGMENT_LAYERS: 3}", ""),
        ("", "TRAIN.RANDOM_ERASE_PROB=0.5 TRAIN.RANDOM_ERASE_MODE=mean"),
        ("TRAIN: {CUTMIX_MINMAX: [0.2, 0.8]}", "TRAIN.MIXUP_PROB=0.5"),
        (to_yaml(build_config([])), ""),  # every key, as a run leaves them
    ],
)
def test_key_that_lies_idle_for_another_reason_stays(tmp_path, text, words):
    write(tmp_path, "momentum.yaml", "TRAIN: {OPTIMIZER: {NAME: Momentum, MOMENTUM: 0.8}}")
    load(tmp_path, text, *(["-opts", *words.split()] if words else []))


def test_keys_kept_from_the_weights_in_a_run_stay_kept_in_the_next(tmp_path):
    first = load(tmp_path, "", "-opts", "DATA.CROP_PCT=0.8")
    assert first.DATA.PREPROCESSING_KEPT == ("CROP_PCT",)
    again = load(tmp_path, to_yaml(first), "-opts", "DATA.INTERPOLATION=bilinear", "DATA.CROP_PCT=0.9")
    assert again.DATA.PREPROCESSING_KEPT == ("CROP_PCT", "INTERPOLATION")
    assert load(tmp_path, to_yaml(again)).DATA.PREPROCESSING_KEPT == ("CROP_PCT", "INTERPOLATION")


def test_key_kept_from_the_weights_that_there_is_not_is_an_error(tmp_path):
    with pytest.raises(UserError, match="PREPROCESSING_KEPT: 'crop_pct' is no key of DATA"):
        load(tmp_path, "DATA: {PREPROCESSING_KEPT: [IMAGE_SIZE, crop_pct]}")


def test_keys_that_others_decide_about_are_keys_and_their_values_choices():
    for key, (decides, values) in READ_WITH.items():
        for name, value in ((key, None), *((decides, value) for value in values)):
            if value is None:
                operator.attrgetter(name)(Config())
            else:
                assert operator.attrgetter(name)(build_config([("test", nested({name: value}))])) == value


def test_half_format_of_a_file_waits_for_its_mode(tmp_path):
    text = "AMP: {MODE: auto, DTYPE: float16}"
    assert load(tmp_path, text, "-amp_mode=fp32").AMP.MODE == "fp32"
    assert load(tmp_path, "AMP: {DTYPE: float16}").AMP.MODE == "fp32"


@pytest.mark.parametrize(
    ("text", "argv", "given"),
    [
        ("BASE: data.yaml", [], True),
        ("BASE: data.yaml", ["-data_path=/photos"], False),
        ("BASE: data.yaml", ["-opts", "DATA.DATASET=folder"], False),
        ("BASE: data.yaml", ["-data_path=/photos", "-num_classes=4"], True),
        ("BASE: data.yaml\nDATA: {DATA_PATH: /photos}", [], False),
        ("BASE: data.yaml\nDATA: {DATA_PATH: /photos}\nMODEL: {NUM_CLASSES: 4}", [], True),
        ("MODEL: {NUM_CLASSES: 4}", [], True),
        ("SEED: 1", [], False),
    ],
)
def test_number_of_classes_holds_for_the_data_it_was_set_with(tmp_path, text, argv, given):
    write(tmp_path, "data.yaml", "DATA: {DATASET: imagenet2012}\nMODEL: {NUM_CLASSES: 1000}")
    assert load(tmp_path, text, *argv).MODEL.CLASSES_GIVEN is given


@pytest.mark.parametrize(
    ("text", "argv", "number", "names"),
    [
        ("BASE: run.yaml", [], 2, ("cat", "dog")),
        ("BASE: run.yaml", ["-data_path=/other", "-num_classes=3"], 3, ()),
        ("BASE: run.yaml", ["-data_path=/other", "-opts", "MODEL.CLASS_NAMES=[a, b, c]"], 3, ("a", "b", "c")),
        ("BASE: run.yaml\nDATA: {DATA_PATH: /other}\nMODEL: {CLASS_NAMES: [a, b, c]}", [], 3, ("a", "b", "c")),
        ("BASE: run.yaml", ["-data_path=/other", "-eval"], 2, ("cat", "dog")),
        ("BASE: run.yaml", ["-data_path=/other", "-resume=run"], 2, ("cat", "dog")),
    ],
)
def test_names_of_classes_hold_for_the_data_they_were_set_with(tmp_path, text, argv, number, names):
    write(tmp_path, "run.yaml", "DATA: {DATASET: list}\nMODEL: {NUM_CLASSES: 2, CLASS_NAMES: [cat, dog]}")
    config = load(tmp_path, text, *argv)
    assert number == config.MODEL.NUM_CLASSES
    assert names == config.MODEL.CLASS_NAMES


def test_derived_keys_cannot_be_set(tmp_path):
    with pytest.raises(UserError, match="MODEL.CLASSES_GIVEN is not a key"):
        load(tmp_path, "MODEL: {CLASSES_GIVEN: True}")


@pytest.mark.parametrize(
    ("key", "values", "beyond"),
    [("DATA.BATCH_SIZE", [1], [0]), ("DATA.HFLIP", [0, 1], [-0.1, 1.1]), ("DATA.CROP_PCT", [0.1, 1.15], [0, 2.1]),
     ("TRAIN.OPTIMIZER.MOMENTUM", [0, 0.9], [-0.1, 1.0]), ("TRAIN.OPTIMIZER.BETAS", [(0.9, 0)], [(0.9, 1.0)])],
)  # fmt: skip
def test_value_at_its_limit_is_taken_and_one_beyond_it_is_not(key, values, beyond):
    """BATCH_SIZE is at least 1, HFLIP 0 to 1, CROP_PCT more than 0 and at most 2, what decays is below 1."""
    for value in values:
        config = build_config([("test", nested({key: value}))])
        assert operator.attrgetter(key)(config) == value
    for value in beyond:
        words = rf"test: {key}: expected (at least|more than|at most|less than) \d, found {re.escape(str(value))}"
        with pytest.raises(UserError, match=words):
            build_config([("test", nested({key: value}))])


@pytest.mark.parametrize(("key", "typed", "meant"), [("AMP.MODE", "o2", "O2"), ("DATA.DATASET", "CIFAR10", "cifar10")])
def test_choice_is_found_however_it_is_written(key, typed, meant):
    assert operator.attrgetter(key)(build_config([("test", nested({key: typed}))])) == meant


def test_data_sets_are_those_of_the_schema():
    assert set(DATASETS) == set(SOURCES)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["-eval", "-batch_size=7"], 7),
        (["-eval", "-opts", "DATA.BATCH_SIZE=7"], 7),
        (["-eval", "-batch_size=7", "-batch_size_eval=3"], 3),
        (["-eval"], 180),
        (["-batch_size=7"], 180),
    ],
)
def test_batch_size_of_the_command_line_beside_eval_is_that_of_the_evaluation(tmp_path, words, expected):
    """Whatever the file has for the evaluations of a training."""
    found = load(tmp_path, "DATA: {BATCH_SIZE: 64, BATCH_SIZE_EVAL: 180}", *words)
    assert expected == found.DATA.BATCH_SIZE_EVAL


@pytest.mark.parametrize(("kind", "name"), [
    (tuple[str, ...], "a list of texts"), (tuple[int, ...], "a list of integers"),
    (tuple[float, float, float], "a list of 3 numbers"), (tuple[float, ...] | None, "a list of numbers or none"),
])  # fmt: skip
def test_kind_of_a_list_is_named_as_people_say_it(kind, name):
    assert name_of(kind) == name
