"""Every YAML of every model folder: it builds, it has the published size, it runs forward and backward."""

import functools
import inspect
import math
import re

import numpy as np
import paddle
import pytest

from image_classification import half_cpu
from image_classification.amp import build_precision
from image_classification.config import load_config
from image_classification.half_cpu import training_replay
from image_classification.half_cpu.replay import RECORDED
from image_classification.half_cpu.scope import active
from image_classification.layers import Dropout, DropPath, PatchEmbed
from image_classification.multiply_adds import count_multiply_adds
from image_classification.optim.groups import layer_scales
from image_classification.runtime import UserError
from image_classification.transformer import Attention
from image_classification.weights import load_pretrained, write_weights
from image_classification.weights.registry import read_registry
from image_classification.zoo import make_model
from tests.helpers.model_zoo import (
    CONFIGS,
    FOLDERS,
    PACKAGE,
    ROOT,
    build,
    builder,
    by_cost,
    digits_config,
    published,
    shallow,
    size_of,
    small_side,
)


def count(model):
    """Return the number of trainable values; Paddle keeps BatchNorm's statistics among the parameters too."""
    return sum(math.prod(p.shape) for p in model.parameters() if not p.stop_gradient)


def small_images(path):
    """Return changes to a variant that make its images small, and a giant shallow, and a batch of such images."""
    config = load_config([f"-cfg={path}"], builder(path.parents[1]))
    side = small_side(path)
    rng = np.random.default_rng(0)
    images = rng.standard_normal((2, config.DATA.IMAGE_CHANNELS, side, side)).astype(np.float32)
    return {"image_size": side, "drop_path": 0.0} | shallow(path), paddle.to_tensor(images)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_config_begins_with_its_command_and_expected_result(path):
    first, second = path.read_text().splitlines()[:2]
    assert first.startswith(f"# python main_single_gpu.py -cfg=./configs/{path.name}")
    assert second.startswith("# Expected: ")
    assert path.stem == load_config([f"-cfg={path}"], builder(path.parents[1])).MODEL.NAME


@pytest.mark.parametrize(
    "path", [path for path in CONFIGS if "_finetune]" in path.read_text()], ids=lambda path: path.stem
)
def test_fine_tuned_variant_names_weights_that_are_published(path):
    begins = re.search(
        r"^# Fine-tuning: (?:begin with -pretrained=(\S+)|of weights .* that .* not .*)$", path.read_text(), re.M
    )
    assert begins, "where its training begins"
    assert begins[1] is None or begins[1] in read_registry()


def printed_count(path):
    """Return the number of parameters that the head of a YAML names."""
    return int(re.search(r"([\d,]+) parameters", path.read_text())[1].replace(",", ""))


@pytest.mark.parametrize("path", by_cost(fast=4))  # 0.1 s each: all of them would be a twentieth of `make test`
def test_parameter_count_is_the_printed_one(path):
    with paddle.LazyGuard():  # shapes only, no memory
        assert count(build(path)) == printed_count(path)


def test_printed_parameter_counts_are_the_published_ones():
    variants = [path for path in CONFIGS if not path.stem.endswith("_digits")]
    wrong = [path.stem for path in variants if printed_count(path) != published()[path.stem]["parameters"]]
    assert len(variants) > 400 and wrong == []


@pytest.mark.parametrize("path", by_cost())
def test_variant_runs_forward_and_each_parameter_gets_a_gradient(path):
    paddle.seed(0)
    changes, images = small_images(path)
    model = build(path, num_classes=7, **changes)
    for parameter in model.parameters():
        if not parameter.stop_gradient and parameter.ndim == 1:  # where a norm starts at 0, its branch has no gradient
            parameter.set_value(parameter + 0.1 * paddle.randn(parameter.shape))
    logits = model(images)
    assert logits.shape == [2, 7]
    paddle.nn.functional.cross_entropy(logits, paddle.to_tensor([1, 5])).backward()
    for name, parameter in model.named_parameters():
        if not parameter.stop_gradient:
            assert parameter.grad is not None, name
            total = float(parameter.grad.abs().sum())
            # a norm takes away what a scalar adds to all: what is left is rounding, or nothing
            assert math.isfinite(total) and (total > 0 or parameter.size == 1), name


def smallest(folder):
    return min((path for path in CONFIGS if path.parents[1] == folder), key=size_of)


def small_model(folder):
    """Return a family's smallest model for small images, in evaluation, and a batch of these."""
    path = smallest(folder)
    changes, images = small_images(path)
    model = build(path, **changes)
    model.eval()
    return model, images


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_sequential_blocks_run_in_order_equal_forward(folder):
    model, images = small_model(folder)
    with paddle.no_grad():
        x = images
        for block in model.sequential_blocks():
            x = block.run(x)
        assert paddle.equal_all(x, model(images))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_replayed_pass_of_a_family_gives_the_bits_of_its_layers(folder):
    """In bfloat16, where most is computed by kernels; every family's pass can be recorded."""
    model, images = small_model(folder)
    precision = build_precision("auto", "bfloat16")
    model = precision.convert_model(model)
    with paddle.no_grad(), half_cpu.frozen(model), precision.forward_context():
        for _ in range(RECORDED):
            half_cpu.replay(model, images)
        found, expected = half_cpu.replay(model, images.flip([0, 2])), model(images.flip([0, 2]))
        assert callable(*active.frozen.passes.values())
    assert found.numpy().tobytes() == expected.numpy().tobytes()


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_replayed_step_of_a_family_gives_the_bits_of_its_layers(folder, monkeypatch):
    """In bfloat16; every family's step can be recorded."""
    monkeypatch.setattr(training_replay, "RECORDED", 1)
    model, images = small_model(folder)
    precision = build_precision("auto", "bfloat16")
    model = precision.convert_model(model)
    model.train()
    replayed, found = half_cpu.Replayed(model), []
    with precision.forward_context():
        replayed(images)  # records
    for forward in (replayed, model):
        paddle.seed(1)
        with precision.forward_context():
            logits = forward(images.flip([0, 2]))
        logits.astype("float32").square().sum().backward()
        found.append([logits.numpy().tobytes()])
        for parameter in model.parameters():
            if not parameter.stop_gradient and parameter.grad is not None:
                found[-1].append(parameter.grad.numpy().tobytes())
                parameter.clear_gradient(set_to_zero=False)
    assert isinstance(*replayed._known.values(), training_replay.Training)
    assert found[0] == found[1]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_hook_on_a_stage_sees_its_result(folder):
    """A sequence whose layers were called one by one would leave out the hooks on it, without a word."""
    model, images = small_model(folder)
    called = set()
    for name, layer in model.named_sublayers():
        layer.register_forward_post_hook(lambda layer, inputs, result, name=name: called.add(name))
    with paddle.no_grad():
        model(images)
    layers = dict(model.named_sublayers())
    stages = {name.rpartition(".")[0] for name in called if name.rpartition(".")[2].isdecimal()} & layers.keys()
    left_out = {name for name in stages - called if not isinstance(layers[name], paddle.nn.LayerList)}
    assert not left_out


@pytest.mark.parametrize(
    "folder", [folder for folder in FOLDERS if "deploy" in inspect.signature(builder(folder)).parameters],
    ids=lambda folder: folder.name,
)  # fmt: skip
def test_folded_form_reads_what_trained_and_answers_the_same_for_less(folder, tmp_path):
    path = digits_config(folder)
    paddle.seed(0)
    trained, folded = build(path), build(path, deploy=True)
    for name, value in trained.state_dict().items():  # as far from their start as a training brings them
        if value.ndim == 1:
            value.set_value(value + (0.5 if name.endswith("_variance") else 0.2) * paddle.rand(value.shape))
    write_weights(tmp_path / "trained.pdparams", trained.state_dict())
    load_pretrained(folded, str(tmp_path / "trained.pdparams"))
    images = small_images(path)[1]
    for model in (trained, folded):
        model.eval()
    expected, found = trained(images), folded(images)
    # the roundings of float32 in a chain of a few sums, relative to the largest logit, as between two libraries
    assert float((found - expected).abs().max()) <= 1e-5 * float(expected.abs().max())
    side = small_side(path)
    costs = [count_multiply_adds(lambda form=form: build(path, deploy=form), side) for form in (True, False)]
    assert costs[0].total < costs[1].total and costs[0].batch_norm == 0 < costs[1].batch_norm


@pytest.mark.parametrize("path", by_cost())
def test_chain_layers_and_head_are_stated(path):
    with paddle.LazyGuard():
        model = build(path, num_classes=7)
    prefixes = [prefix for block in model.sequential_blocks() for prefix in block.prefixes]
    for name, _ in model.named_parameters():  # each belongs to one link
        assert sum(name.startswith(prefix) for prefix in prefixes) == 1, name
    assert model.no_weight_decay() <= {name for name, _ in model.named_parameters()}
    names = [name for name, parameter in model.named_parameters() if not parameter.stop_gradient]
    scales = layer_scales(names, 0.5, model.layer_groups())  # an error where a name has not one layer
    assert len(set(scales.values())) == len(model.layer_groups()) > 2  # each layer has parameters
    for head in model.head_names:
        layer = functools.reduce(getattr, head.split("."), model)
        assert isinstance(layer, paddle.nn.Linear) and layer.weight.shape[1] == 7
    assert all(scales[name] == 1 for name in names if name.startswith(tuple(f"{head}." for head in model.head_names)))


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("vit_tiny_digits", {"cls_token": 0, "pos_embed": 0, "patch_embed.proj.weight": 0, "blocks.0.norm1.bias": 1,
                             "blocks.3.mlp.fc2.weight": 4, "norm.weight": 5, "head.bias": 5}),
        ("resnet_tiny_digits", {"conv1.weight": 0, "bn1.bias": 0, "layer1.0.bn1.bias": 1, "layer3.0.conv1.weight": 3,
                                "fc.bias": 4}),
        # what changes the map's size is no layer of its own: a published factor is that from block to block, as in timm
        ("swin_tiny_patch4_window7_224", {"patch_embed.norm.weight": 0, "layers.0.blocks.1.norm1.bias": 2,
                                          "layers.1.downsample.norm.bias": 3, "layers.1.blocks.0.norm1.bias": 3,
                                          "layers.3.blocks.1.norm1.bias": 12, "norm.bias": 13, "head.fc.bias": 13}),
        ("convnextv2_atto", {"stem.0.weight": 0, "stages.0.blocks.1.norm.bias": 2, "stages.1.downsample.0.bias": 3,
                             "stages.1.blocks.0.norm.bias": 3, "stages.3.blocks.1.norm.bias": 12, "head.fc.bias": 13}),
        ("pvt_v2_b0", {"patch_embed.norm.bias": 0, "stages.0.blocks.1.norm1.bias": 2, "stages.0.norm.bias": 2,
                       "stages.1.downsample.norm.bias": 3, "stages.3.norm.bias": 8, "head.bias": 9}),
        ("vgg11_bn", {"features.0.weight": 0, "features.1.bias": 0, "features.4.weight": 1, "classifier.0.weight": 8,
                      "classifier.6.bias": 10}),
    ],
)  # fmt: skip
def test_layers_are_numbered_from_the_stem_to_the_head(name, layers):
    with paddle.LazyGuard():
        model = build(next(path for path in CONFIGS if path.stem == name))
    last = len(model.layer_groups()) - 1
    assert layer_scales(list(layers), 0.5, model.layer_groups()) == {
        parameter: 0.5 ** (last - layer) for parameter, layer in layers.items()
    }


@pytest.mark.parametrize("kind", ["single", "multi"])
def test_entry_points_are_the_same_in_every_folder(kind):
    assert len({(folder / f"main_{kind}_gpu.py").read_text() for folder in FOLDERS}) == 1


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_model_folder_is_complete(folder):
    for name in ("__init__.py", "README.md", "main_multi_gpu.py", f"{folder.name.lower()}.py", "configs"):
        assert (folder / name).exists(), name
    assert digits_config(folder) and (PACKAGE / "weights" / "registry" / f"{folder.name}.yaml").exists()
    named = set(re.findall(r"configs/(\w+)\.yaml", (folder / "README.md").read_text()))
    assert named and named <= {path.stem for path in CONFIGS if path.parents[1] == folder}


def test_base_files_of_configs_stay_inside_the_repository():
    for path in CONFIGS:
        for base in re.findall(r"[./]+configs/\S+?\.yaml", path.read_text().split("BASE:")[-1].splitlines()[0]):
            assert (path.parent / base).resolve().is_relative_to(ROOT / "configs")


def test_attention_equals_softmax_over_packed_query_key_value():
    paddle.seed(0)
    layer = Attention(dim=12, num_heads=3)
    x = paddle.randn([2, 5, 12])
    packed = (x.numpy() @ layer.qkv.weight.numpy() + layer.qkv.bias.numpy()).reshape(2, 5, 3, 3, 4)
    query, key, value = (packed[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
    scores = query @ key.transpose(0, 1, 3, 2) / 2.0  # sqrt(4)
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    mixed = (weights @ value).transpose(0, 2, 1, 3).reshape(2, 5, 12)
    expected = mixed @ layer.proj.weight.numpy() + layer.proj.bias.numpy()
    # float32 sums of 12 terms in another order
    np.testing.assert_allclose(layer(x).numpy(), expected, rtol=1e-5, atol=1e-6)


def test_drop_path_zeroes_whole_samples_and_scales_the_others():
    paddle.seed(0)
    layer = DropPath(0.25)
    dropped = layer(paddle.ones([400, 3, 2])).numpy().reshape(400, 6)
    assert set(np.unique(dropped)) == {0.0, np.float32(1 / 0.75)}
    assert (dropped.min(axis=1) == dropped.max(axis=1)).all()
    assert 0.15 < (dropped[:, 0] == 0).mean() < 0.35  # 400 draws: 4.6 standard deviations
    layer.eval()
    x = paddle.ones([2, 3])
    assert layer(x) is x


def test_volo_drops_the_paths_that_its_authors_drop():
    with paddle.LazyGuard():
        model = builder("VOLO")(drop_path=0.17)  # 4 outlookers, to which their code hands no rate, then 14 blocks
    rates = [layer.p for layer in model.sublayers() if isinstance(layer, DropPath)]
    np.testing.assert_allclose([rate for rate in rates if rate], np.arange(4, 18) / 100, rtol=1e-12)


@pytest.mark.parametrize(("folder", "grows"), [("ResMLP", False), ("CaiT", False), ("Mixer", True), ("GMLP", True)])
def test_paths_are_dropped_as_often_in_each_block_where_the_authors_do_so(folder, grows):
    """ResMLP's and CaiT's code has one rate for all; elsewhere it grows from 0, as in Mixer's paper."""
    with paddle.LazyGuard():  # rates, no weights
        model = builder(folder)(drop_path=0.2, depth=3)
    rates = [layer.drop_path.p for layer in model.blocks]
    assert rates == pytest.approx([0.0, 0.1, 0.2] if grows else [0.2] * 3)


def test_dropout_of_zero_returns_its_input_itself():
    x = paddle.ones([2, 3])
    assert Dropout(0.0)(x) is x


def test_patch_embed_with_other_image_size_names_both_sizes():
    layer = PatchEmbed(image_size=32, patch_size=8, in_channels=3, embed_dim=4)
    with pytest.raises(UserError, match="40x32 pixels.*IMAGE_SIZE 32"):
        layer(paddle.zeros([1, 3, 40, 32]))


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("MaxViT", "IMAGE_SIZE 224"),
        ("MobileViT", "both must be multiples of 64"),
        ("VOLO", "IMAGE_SIZE 224"),
        ("XCiT", "IMAGE_SIZE 224"),
    ],
)
def test_image_of_sides_that_a_model_cannot_take_names_them(folder, message):
    with paddle.LazyGuard():
        model = builder(folder)()
    with pytest.raises(UserError, match=f"240x224 pixels.*{message}"):
        model(paddle.zeros([1, 3, 240, 224]))


@pytest.mark.parametrize("name", ["mixer", "resmlp", "gmlp"])
def test_head_of_a_token_mixer_reads_the_mean_of_all_tokens(name):
    model = build(next(path for path in CONFIGS if path.stem == f"{name}_tiny_digits"))
    model.eval()
    tokens = paddle.randn([2, model.stem.num_patches, model.head.weight.shape[0]])
    mean = model.norm(tokens).numpy().mean(axis=1)
    expected = mean @ model.head.weight.numpy() + model.head.bias.numpy()
    np.testing.assert_allclose(model.forward_head(tokens).numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
@pytest.mark.parametrize("side", [1, 33])
def test_odd_image_size_is_refused_when_the_model_is_made_or_its_images_are_seen(folder, side):
    config = load_config([f"-cfg={digits_config(folder)}", f"-image_size={side}"], builder(folder))
    try:
        model = make_model(config, builder(folder))
    except UserError as error:
        assert "IMAGE_SIZE" in str(error)
        return
    model.eval()
    images = paddle.randn([2, config.DATA.IMAGE_CHANNELS, side, side])
    with paddle.no_grad():
        logits, others = model(images), model(9 * images)  # poolings that leave nothing would hide the difference
    assert paddle.isfinite(logits).all() and not paddle.equal_all(logits, others)


@pytest.mark.parametrize(
    ("folder", "arguments", "message"),
    [
        ("ViT", {"image_size": 225}, "IMAGE_SIZE 225 is not a multiple of MODEL.PATCH_SIZE 16"),
        ("ViT", {"num_heads": 7}, "MODEL.NUM_HEADS 7 does not divide the width of the tokens, 768"),
        ("ViT", {"global_pool": "max"}, "GLOBAL_POOL 'max': allowed are token, avg"),
        ("ViT", {"class_token": False}, "needs MODEL.CLASS_TOKEN"),
        ("ViT", {"dropout": 1.5}, "MODEL: a rate of dropout .* is 1.5, expected a number from 0 to 1"),
        ("Swin", {"drop_path": -0.1}, "MODEL: a rate of .* dropped paths is -.*, expected a number from 0 to 1"),
        ("ResNet", {"block": "bottle"}, "BLOCK 'bottle': allowed are basic, bottleneck"),
        ("ResNet", {"block": "basic", "groups": 2}, "GROUPS .* need MODEL.BLOCK: bottleneck"),
        ("ConvNeXt", {"dims": (8, 8)}, "same length"),
        ("Swin", {"image_size": 256}, "64x64 feature map does not divide into windows of 7x7"),
        ("VGG", {"layers": (1, 1)}, "LAYERS .* five"),
        ("MetaFormer", {"dims": (64, 128, 320, 500)}, "500 .* not a multiple of MODEL.HEAD_DIM 32"),
        ("MetaFormer", {"token_mixers": ("pool", "pool", "mean", "pool")}, "TOKEN_MIXERS .mean.: allowed are pool"),
        ("PVTv2", {"dims": (30, 64, 160, 256), "num_heads": (4, 4, 4, 4)}, "MODEL.NUM_HEADS 4 does not divide .*, 30"),
        ("MobileViT", {"dims": (16, 32, 48, 64, 80)}, "two inverted residuals more than MODEL.HIDDEN_DIMS"),
        ("CrossViT", {"embed_dims": (3, 3), "multi_conv": True}, "MODEL: a convolution would have 3 channels in and 0"),
        ("GMLP", {"mlp_ratio": 0.1, "embed_dim": 50}, "MLP_RATIO: gives 5 channels"),
        ("RegNet", {"initial_width": 1}, "INITIAL_WIDTH 1 .* no width"),
        ("RegNet", {"bottle_ratio": 0.0}, "BOTTLE_RATIO 0.0 leave"),
        ("RegNet", {"bottle_ratio": 3.7}, "BOTTLE_RATIO 3.7 gives .* not a multiple of MODEL.GROUP_WIDTH"),
        ("MobileViT", {"dims": ()}, "two inverted residuals more than MODEL.HIDDEN_DIMS"),
        ("XCiT", {"embed_dim": 7, "num_heads": 1}, "EMBED_DIM 7: the patches halve it 3 times"),
        ("EVA02", {"image_size": 1}, "IMAGE_SIZE 1 is not a multiple of MODEL.PATCH_SIZE"),
        ("EVA02", {"rope_temperature": 0.0}, "ROPE_TEMPERATURE 0.0: expected more than 0"),
    ],
)
def test_impossible_model_arguments_are_named(folder, arguments, message):
    with pytest.raises(UserError, match=message), paddle.LazyGuard():
        builder(folder)(**arguments)
