"""PaddleViT's YAML dialect: keys, values and defaults of files as its users have them, what is not computed here."""

import pytest

from image_classification.config import load_config, to_yaml
from image_classification.runtime import UserError
from image_classification.zoo import find_config
from tests.helpers.model_zoo import FOLDERS, PACKAGE, builder

# As in a YAML of PaddleViT for this family, with keys that it renames, fixes or leaves out.
TEXTS = {
    "ViT": """
MODEL: {TYPE: vit, NAME: vit_base_patch16_224, PATCH_SIZE: 16, MLP_RATIO: 4.0, QKV_BIAS: true, EMBED_DIM: 64, DEPTH: 2,
        NUM_HEADS: 2, DROPOUT: 0.1, ATTENTION_DROPOUT: 0.1, DROPPATH: 0.2, ATTN_HEAD_SIZE: null}
TRAIN: {NUM_EPOCHS: 300, BASE_LR: 3e-3, GRAD_CLIP: 1.0, OPTIMIZER: {NAME: AdamW, BETAS: '(0.9, 0.999)'}}
""",
    "DeiT": """
MODEL: {TYPE: deit, NAME: deit_tiny_patch16_224, PATCH_SIZE: 16, QKV_BIAS: true, EMBED_DIM: 64, DEPTH: 2, NUM_HEADS: 2}
TRAIN: {LINEAR_SCALED_LR: 512, DISTILLATION_TYPE: 'hard', MODEL_EMA_FORCE_CPU: True, TEACHER_MODEL: ./teacher.pdparams}
""",
    "Swin": """
BASE: ['']
MODEL: {TYPE: swin, NAME: swin_large_patch4_window7_224, DROPPATH: 0.3, EMBED_DIM: 24, STAGE_DEPTHS: [2, 2],
        NUM_HEADS: [1, 2], WINDOW_SIZE: 7, PATCH_SIZE: 4, APE: False, QK_SCALE: null}
""",
    "ConvNeXt": """
DATA: {BATCH_SIZE: 128}
MODEL: {TYPE: convnext, NAME: convnext_tiny, DEPTHS: [1, 1], DIMS: [8, 16], DROPPATH: 0.5, CONV_MLP: False}
TRAIN: {ACCUM_ITER: 4, RANDOM_ERASE_MODE: rand, RANDOM_ERASE_COUNT: 1, MIXUP_MODE: batch}
""",
    "Mixer": """
MODEL: {TYPE: Mixer, NAME: mixer_base_patch16_224, MIXER: {PATCH_SIZE: 16, EMBED_DIM: 32, DEPTH: 2}}
""",
    "RegNet": """
DATA: {IMAGE_SIZE: 224, CROP_PCT: 0.875}
MODEL: {TYPE: RegNet, NAME: regnety_160}
""",
    "BEiT": """
MODEL: {TYPE: BEiT, NAME: beit_base_patch16_224_finetune, EMBED_DIM: 64, DEPTH: 2, NUM_HEADS: 2, USE_ABS_POS_EMB: False,
        USE_REL_POS_BIAS: True, INIT_VALUES: 1e-5, QKV_BIAS: True}
TRAIN: {BASE_LR: 4e-3, LAYER_DECAY: 0.65, OPTIMIZER: {NAME: AdamWDL}}
""",
    "CaiT": """
MODEL: {TYPE: cait, NAME: cait_xxs24_224, PATCH_SIZE: 16, EMBED_DIM: 32, DEPTH: 2, NUM_HEADS: 2, QKV_BIAS: True,
        INIT_VALUES: 1e-5, DEPTH_TOKEN_ONLY: 2, DROPPATH: 0.05}
""",
    "MetaFormer": """
MODEL: {TYPE: poolformer, NAME: poolformer_m48, LAYERS: [1, 1, 1, 1], EMBED_DIMS: [8, 16, 16, 32],
        LAYER_SCALE_INIT_VALUE: 1e-6}
""",
    "PVTv2": """
MODEL: {TYPE: PVTv2, NAME: pvtv2_b2_linear, PATCH_SIZE: 4, EMBED_DIM: [8, 16, 16, 32], STAGE_DEPTH: [1, 1, 1, 1],
        NUM_HEADS: [1, 2, 2, 4], MLP_RATIO: [8, 8, 4, 4], SR_RATIO: [8, 4, 2, 1], LINEAR: True, QKV_BIAS: True}
TRAIN: {GRAD_CLIP: None}
""",
    "MobileViT": """
MODEL: {TYPE: MobileViT, NAME: mobilevit_xxs, DIMS: [8, 8, 16, 16, 16, 16, 24, 32, 64], HIDDEN_DIMS: [16, 24, 32]}
TRAIN: {CUTMIX_MINMAX: None, LINEAR_SCALED_LR: None}
""",
    "CrossViT": """
MODEL: {TYPE: CrossViT, NAME: crossvit_vit_9_dagger_224, IMG_SIZE: [240, 224], PATCH_SIZE: [12, 16],
        EMBED_DIM: [16, 32], DEPTH: [[1, 3, 0], [1, 3, 0]], NUM_HEADS: [4, 4], MLP_RATIO: [3, 3, 1], QKV_BIAS: True,
        MULTI_CONV: True}
""",
    "VOLO": """
MODEL: {TYPE: volo, NAME: volo_d1_224, STEM_HIDDEN_DIM: 16, TRANS: {LAYERS: [1, 1, 1, 1], EMBED_DIMS: [16, 32, 32, 32],
        NUM_HEADS: [2, 2, 2, 2], MLP_RATIOS: [3, 3, 3, 3], DOWNSAMPLES: [True, False, False, False],
        OUTLOOK_ATTENTION: [True, False, False, False]}}
""",
    "XCiT": """
MODEL: {TYPE: xcit, NAME: xcit_nano_12_p8_224, PATCH_SIZE: 8, EMBED_DIM: 32, DEPTH: 2, NUM_HEADS: 2, ETA: 1.0,
        TOKENS_NORM: False}
""",
    "ResMLP": """
MODEL: {TYPE: ResMLP, NAME: resmlp_12_224, MIXER: {PATCH_SIZE: 16, EMBED_DIM: 32}}
""",
    "GMLP": """
MODEL: {TYPE: GatedMLP, NAME: gmlp_s16_224, MIXER: {PATCH_SIZE: 16, EMBED_DIM: 32, DEPTH: 2}}
""",
    "ConvMixer": """
MODEL: {TYPE: convmixer, NAME: convmixer_768_32,
        CNN: {DIM: 32, DEPTH: 2, KERNEL_SIZE: 7, PATCH_SIZE: 7, ACTIVATION: ReLU}}
TRAIN: {AUTO_AUGMENT: True, OPTIMIZER: {EPS: 1e-3}}
""",
}


def load(folder, family, text=None, *argv):
    path = folder / "theirs.yaml"
    path.write_text(TEXTS[family] if text is None else text)
    return load_config([f"-cfg={path}", *argv], builder(PACKAGE / family))


def test_every_family_with_facts_has_a_text_here():
    assert {folder.name for folder in FOLDERS if (folder / "paddlevit.yaml").exists()} == set(TEXTS)


@pytest.mark.parametrize("family", TEXTS)
def test_file_loads_with_its_keys_in_ours_and_one_line_that_says_so(tmp_path, family):
    config = load(tmp_path, family)
    (note,) = config.NOTES
    assert "is PaddleViT's" in note and "MODEL.TYPE: names the family" in note and "\n" not in note
    arguments = dict(config.MODEL.ARGUMENTS)
    expected = {
        "ViT": {"drop_path": 0.2, "qkv_bias": True},
        "DeiT": {"distilled": True, "embed_dim": 64},
        "Swin": {"depths": (2, 2), "drop_path": 0.3},
        "ConvNeXt": {"dims": (8, 16), "drop_path": 0.5},
        "Mixer": {"embed_dim": 32, "depth": 2, "patch_size": 16, "drop_path": 0.1},
        "RegNet": {},  # always the same model
        "BEiT": {"position_embedding": False, "relative_position": True, "layer_scale": 1e-5, "drop_path": 0.1},
        "CaiT": {"layer_scale": 1e-5, "depth_token_only": 2, "drop_path": 0.05},
        "MetaFormer": {"version": 1, "norm_first": True, "dims": (8, 16, 16, 32), "layer_scale": 1e-6},
        "PVTv2": {"linear_attention": True, "embed_epsilon": 1e-6, "dims": (8, 16, 16, 32), "drop_path": 0.1},
        "MobileViT": {"num_heads": 8, "embed_norm": True, "norm_epsilon": 1e-6, "hidden_dims": (16, 24, 32)},
        "CrossViT": {"branch_sizes": (240, 224), "depths": ((1, 3, 0), (1, 3, 0)), "multi_conv": True},
        "VOLO": {"depths": (1, 1, 1, 1), "stem_width": 16, "mlp_ratios": (3.0, 3.0, 3.0, 3.0)},
        "XCiT": {"tokens_norm": False, "layer_scale": 1.0, "num_heads": 2},
        "ResMLP": {"embed_dim": 32, "depth": 12, "layer_scale": 1e-5, "drop_path": 0.1},
        "GMLP": {"embed_dim": 32, "depth": 2, "mlp_ratio": 6.0, "drop_path": 0.1},
        "ConvMixer": {"embed_dim": 32, "kernel_size": 7, "patch_size": 7, "activation": "relu"},
    }[family]
    assert arguments.items() >= expected.items()
    assert load_config([f"-cfg={written(tmp_path, to_yaml(config))}"], builder(PACKAGE / family)).NOTES == ()


def written(folder, text):
    path = folder / "config.yaml"
    path.write_text(text)
    return path


def test_where_a_file_is_silent_paddlevits_defaults_hold_and_the_command_line_comes_last(tmp_path):
    config = load(tmp_path, "Swin", None, "-lr=0.5")
    train = config.TRAIN
    assert (train.WARMUP_EPOCHS, train.END_LR, train.GRAD_CLIP, train.SMOOTHING) == (20, 5e-6, 5.0, 0.1)
    assert (train.MIXUP_ALPHA, train.CUTMIX_ALPHA, train.RANDOM_ERASE_PROB, train.BASE_LR) == (0.8, 1.0, 0.25, 0.5)
    assert config.DATA.CROP_PCT == 0.9 and config.DATA.INTERPOLATION == "bicubic" and config.SAVE_FREQ == 10
    vit = load(tmp_path, "ViT")
    assert vit.TRAIN.OPTIMIZER.DECAY_ALL and vit.TRAIN.MIXUP_ALPHA == 0 and vit.DATA.IMAGENET_MEAN == (0.5, 0.5, 0.5)
    assert vit.TRAIN.LINEAR_SCALED_LR is None and not vit.TRAIN.RAND_AUGMENT


@pytest.mark.parametrize("family", ["Swin", "BEiT"])  # BEiT's own facts know another name of a rule
def test_sgd_of_paddlevit_has_its_momentum(tmp_path, family):
    """Its programs build paddle.optimizer.Momentum where the YAML says SGD."""
    text = f"MODEL: {{TYPE: {family}}}\nTRAIN: {{OPTIMIZER: {{NAME: SGD, MOMENTUM: 0.8}}}}"
    config = load(tmp_path, family, text)
    assert (config.TRAIN.OPTIMIZER.NAME, config.TRAIN.OPTIMIZER.MOMENTUM) == ("Momentum", 0.8)
    assert "TRAIN.OPTIMIZER.NAME SGD: Momentum" in config.NOTES[0]


def test_augmentation_follows_paddlevits_rules(tmp_path):
    train = load(tmp_path, "ConvNeXt").TRAIN  # magnitude 9 of 10, half of the operations, no jitter beside them
    assert (train.RAND_AUGMENT_MAGNITUDE, train.RAND_AUGMENT_PROB, train.COLOR_JITTER) == (27, 0.5, (0.0,))
    assert train.RANDOM_ERASE_MODE == "colour" and not train.AUTO_AUGMENT
    both = load(tmp_path, "ConvNeXt", "MODEL: {TYPE: convnext}\nTRAIN: {AUTO_AUGMENT: True}").TRAIN
    assert both.RAND_AUGMENT and not both.AUTO_AUGMENT
    neither = load(tmp_path, "ConvNeXt", "MODEL: {TYPE: convnext}\nTRAIN: {RAND_AUGMENT: False}").TRAIN
    assert neither.COLOR_JITTER == (0.4,) and not neither.RAND_AUGMENT


def test_distillation_of_deit_is_read_from_its_keys_and_flag(tmp_path):
    config = load(tmp_path, "DeiT")
    train = config.TRAIN
    assert (train.DISTILLATION_TYPE, train.DISTILLATION_ALPHA, train.DISTILLATION_TAU) == ("hard", 0.5, 1.0)
    assert config.MODEL.TEACHER == "./teacher.pdparams"
    assert load(tmp_path, "DeiT", None, "-teacher_model_path=other").MODEL.TEACHER == "other"
    plain = load(tmp_path, "DeiT", "MODEL: {TYPE: deit}\nTRAIN: {DISTILLATION_TYPE: 'none'}")
    assert plain.MODEL.ARGUMENTS["distilled"] is False and plain.TRAIN.DISTILLATION_TYPE == "none"


@pytest.mark.parametrize(
    ("family", "text", "message"),
    [
        ("DeiT", "MODEL: {TYPE: deit, QKV_BIAS: False}", "MODEL.QKV_BIAS: only True is computed here, found False"),
        ("Swin", "MODEL: {TYPE: swin, APE: True}", "MODEL.APE: only False is computed here"),
        ("ConvNeXt", "MODEL: {TYPE: convnext}\nTRAIN: {MIXUP_MODE: elem}", "TRAIN.MIXUP_MODE: only 'batch'"),
        ("ViT", "MODEL: {TYPE: RegNet}", "MODEL.TYPE RegNet: ViT takes vit"),
        ("ResNet", "MODEL: {TYPE: resnet}", "MODEL.TYPE marks a file of PaddleViT: none of its families is ResNet"),
        ("ViT", "MODEL: {TYPE: vit, EMBED_DIMS: 3}", "MODEL.EMBED_DIMS is not a key; did you mean MODEL.EMBED_DIM"),
        ("ViT", "MODEL: {TYPE: vit}\nTRAIN: 5\nTRAIN.X: 1", "TRAIN: expected a section of keys, found 5"),
        ("ViT", "MODEL: {TYPE: vit}\nTRAIN: 5", "TRAIN: expected a section of keys, found 5"),
    ],
)
def test_what_is_not_computed_here_is_one_line(tmp_path, family, text, message):
    with pytest.raises(UserError) as caught:
        load(tmp_path, family, text)
    assert message in str(caught.value)


def test_tools_find_the_family_by_its_type(tmp_path):
    path = tmp_path / "theirs.yaml"
    path.write_text(TEXTS["Mixer"])
    assert find_config(str(path))[1] is builder(PACKAGE / "Mixer")
