"""Weights into models: names checked both ways, heads, positions, sources, and the registry as data."""

import dataclasses
import http.server
import re
import threading
import types

import numpy as np
import paddle
import pytest
from PIL import Image

from image_classification.config import load_config, to_yaml
from image_classification.model import PositionEmbedding, RelativePositions
from image_classification.ResNet.resnet import build_model as build_resnet
from image_classification.runtime import UserError
from image_classification.ViT.vit import build_model as build_vit
from image_classification.weights import (
    export_tensors,
    find_weights,
    linear_weights,
    load_pretrained,
    preprocessing_of,
    read_registry,
    read_variants,
    transpose_linears,
    with_preprocessing,
    write_weights,
)
from image_classification.weights import preprocessing as preprocessing_module
from image_classification.weights import source as source_module
from image_classification.weights.position import resize_positions, spreading
from tests.helpers.model_zoo import CONFIGS, build, builder


def tiny_vit(**changes):
    options = {"image_size": 16, "patch_size": 4, "embed_dim": 8, "depth": 1, "num_heads": 2, "num_classes": 5}
    return build_vit(**options | changes)


def tiny_resnet(**changes):
    return build_resnet(**{"block": "basic", "layers": (1, 1), "base_width": 4, "num_classes": 5} | changes)


def arrays_of(model):
    return {name: value.numpy() for name, value in model.state_dict().items()}


def randomise(model, seed=0):
    rng = np.random.default_rng(seed)
    for value in model.state_dict().values():
        value.set_value(rng.uniform(0.5, 1.5, value.shape).astype(np.float32))
    return model


def save(model, path):
    """Write a model the way its format's owner would: PyTorch's layout except for .pdparams."""
    tensors = arrays_of(model)
    if path.suffix != ".pdparams":
        tensors = transpose_linears(linear_weights(model), tensors)
    write_weights(path, tensors)
    return str(path)


@pytest.mark.parametrize("ending", ["safetensors", "pth", "pdparams"])
def test_model_survives_each_format_bit_equal(tmp_path, ending):
    model = randomise(tiny_vit())
    other = tiny_vit()
    load_pretrained(other, save(model, tmp_path / f"w.{ending}"))
    for name, value in arrays_of(model).items():
        np.testing.assert_array_equal(arrays_of(other)[name], value, err_msg=name)


def test_folder_of_a_run_is_reported_as_the_file_that_was_read(tmp_path):
    path = save(tiny_vit(), tmp_path / "best.pdparams")
    assert load_pretrained(tiny_vit(), str(tmp_path)).source == path
    assert load_pretrained(tiny_vit(), path.removesuffix(".pdparams")).source == path.removesuffix(".pdparams")


def test_square_linear_weight_is_transposed_by_layer_type(tmp_path):
    model = randomise(tiny_vit())
    tensors = transpose_linears(linear_weights(model), arrays_of(model))
    square = "blocks.0.attn.proj.weight"
    assert tensors[square].shape == (8, 8)
    np.testing.assert_array_equal(tensors[square], arrays_of(model)[square].T)
    np.testing.assert_array_equal(tensors["pos_embed"], arrays_of(model)["pos_embed"])


@pytest.mark.parametrize("value", [np.nan, -np.inf, 1e39])  # the last is none of float32's
def test_value_that_is_not_finite_is_refused_and_nothing_changes(tmp_path, value):
    tensors = arrays_of(randomise(tiny_vit()))
    tensors["norm.bias"] = tensors["norm.bias"].astype(np.float64)
    tensors["norm.bias"][3] = value
    write_weights(tmp_path / "w.pdparams", tensors)
    model = tiny_vit()
    before = arrays_of(model)
    with pytest.raises(UserError, match=r"-pretrained: .*w.pdparams: norm.bias has values that are not finite"):
        load_pretrained(model, str(tmp_path / "w.pdparams"))
    assert all(np.array_equal(arrays_of(model)[name], value) for name, value in before.items())


def test_unmatched_missing_and_misshapen_names_are_all_listed(tmp_path):
    tensors = arrays_of(tiny_vit())
    tensors["extra"] = tensors.pop("norm.bias")
    tensors["norm.weight"] = np.zeros(9, np.float32)
    write_weights(tmp_path / "w.pdparams", tensors)
    model = tiny_vit()
    before = arrays_of(model)
    with pytest.raises(UserError) as caught:
        load_pretrained(model, str(tmp_path / "w.pdparams"))
    for part in ("lacks norm.bias", "unmatched extra", "norm.weight [9] instead of [8]"):
        assert part in str(caught.value)
    assert all(np.array_equal(arrays_of(model)[name], value) for name, value in before.items())


def test_other_number_of_classes_needs_permission_and_keeps_a_fresh_head(tmp_path):
    path = save(randomise(tiny_vit()), tmp_path / "w.safetensors")
    model = tiny_vit(num_classes=3)
    fresh = arrays_of(model)
    with pytest.raises(UserError, match=r"head.weight \[8, 5\] instead of \[8, 3\]"):
        load_pretrained(model, path)
    report = load_pretrained(model, path, replace_head=True)
    assert report.replaced == ("head.bias", "head.weight")
    np.testing.assert_array_equal(arrays_of(model)["head.weight"], fresh["head.weight"])
    assert not np.array_equal(arrays_of(model)["norm.weight"], fresh["norm.weight"])


def test_permission_for_the_head_does_not_hide_another_architecture(tmp_path):
    path = save(tiny_vit(embed_dim=12), tmp_path / "w.safetensors")
    with pytest.raises(UserError, match="other shapes: .*cls_token"):
        load_pretrained(tiny_vit(num_classes=3), path, replace_head=True)


@pytest.mark.parametrize(("inputs", "classes"), [(9, 3), (9, 5), (8, 5)])
def test_permission_for_the_head_covers_its_number_of_classes_only(tmp_path, inputs, classes):
    tensors = arrays_of(tiny_vit())
    tensors |= {"head.weight": np.zeros((inputs, 3), np.float32), "head.bias": np.zeros(classes, np.float32)}
    write_weights(tmp_path / "w.pdparams", tensors)
    with pytest.raises(UserError, match=rf"head.weight \[{inputs}, 3\] instead of \[8, 5\]"):
        load_pretrained(tiny_vit(), str(tmp_path / "w.pdparams"), replace_head=True)


def test_headless_weights_load_where_the_head_is_replaced(tmp_path):
    tensors = transpose_linears(linear_weights(tiny_vit()), arrays_of(tiny_vit()))
    backbone = {name: value for name, value in tensors.items() if not name.startswith("head.")}
    write_weights(tmp_path / "w.pth", backbone)
    with pytest.raises(UserError, match="lacks head.weight, head.bias"):
        load_pretrained(tiny_vit(), str(tmp_path / "w.pth"))
    report = load_pretrained(tiny_vit(), str(tmp_path / "w.pth"), replace_head=True)
    assert report.num_tensors == len(backbone)


def test_pos_embed_is_interpolated_to_another_image_size(tmp_path):
    path = save(randomise(tiny_vit()), tmp_path / "w.pth")
    model = tiny_vit(image_size=24)
    assert load_pretrained(model, path).resized == ("pos_embed",)
    assert model.pos_embed.shape == [1, 37, 8]


@pytest.mark.parametrize(("old", "new"), [(4, 7), (7, 4), (14, 24), (24, 14)])
def test_interpolated_positions_equal_pillows_antialiased_bicubic(old, new):
    rng = np.random.default_rng(0)
    embedding = rng.standard_normal((1, old * old + 2, 3)).astype(np.float32)
    found = resize_positions(embedding, PositionEmbedding((new, new), 2))
    np.testing.assert_array_equal(found[:, :2], embedding[:, :2])
    for channel in range(3):
        image = Image.fromarray(embedding[0, 2:, channel].reshape(old, old))
        expected = np.asarray(image.resize((new, new), Image.Resampling.BICUBIC))
        # Pillow rounds to float32 between the two axes
        np.testing.assert_allclose(found[0, 2:, channel].reshape(new, new), expected, atol=2e-6)
    as_grid = resize_positions(embedding[:, 2:].reshape(1, old, old, 3), PositionEmbedding((new, new)))
    np.testing.assert_array_equal(as_grid.reshape(1, -1, 3), found[:, 2:])


def stretched(old, new):
    """Return the distances, in the new window, at which BEiT's authors place the rows of the old table, in order."""
    low, high = 1.01, 1.5
    while high - low > 1e-6:
        ratio = (low + high) / 2
        low, high = (low, ratio) if sum(ratio**i for i in range(old - 1)) > new - 1 else (ratio, high)
    ahead = [sum(ratio**i for i in range(steps)) for steps in range(1, old)]
    return [-each for each in reversed(ahead)] + [0.0] + ahead


@pytest.mark.parametrize(("old", "new"), [(4, 6), (14, 24), (7, 12), (12, 7), (1, 3)])
def test_tables_of_distances_keep_near_ones_and_stretch_far_ones_as_beit_does(old, new):
    rng = np.random.default_rng(0)
    side, wide = 2 * old - 1, 2 * new - 1
    table = rng.standard_normal((side**2 + 3, 2)).astype(np.float32)
    found = resize_positions(table, RelativePositions((new, new), 3))
    np.testing.assert_array_equal(found[wide**2 :], table[side**2 :])
    places, targets = stretched(old, new), np.arange(1 - new, new)
    for head in range(2):
        rows = [np.interp(targets, places, row) for row in table[: side**2, head].reshape(side, side)]
        expected = np.stack([np.interp(targets, places, column) for column in np.transpose(rows)], axis=1)
        np.testing.assert_allclose(found[: wide**2, head].reshape(wide, wide), expected, atol=1e-6)
    if old > 1:  # a pair of neighbours is one whatever the window's size
        near = found[: wide**2].reshape(wide, wide, 2)[new - 2 : new + 1, new - 2 : new + 1]
        before = table[: side**2].reshape(side, side, 2)[old - 2 : old + 1, old - 2 : old + 1]
        np.testing.assert_allclose(near, before, atol=1e-6)
    heads_first = table[: side**2].T.reshape(2, side, side)
    np.testing.assert_array_equal(
        resize_positions(heads_first, RelativePositions((new, new))), found[: wide**2].T.reshape(2, wide, wide)
    )


@pytest.mark.parametrize("side", [0, 2, 6])
def test_tables_of_no_window_stay_as_they_are(side):
    table = np.zeros((side**2, 1), np.float32)
    assert resize_positions(table, RelativePositions((2, 2))) is table
    heads_first = table.reshape(1, side, side)
    assert resize_positions(heads_first, RelativePositions((2, 2))) is heads_first


def test_distances_of_a_huge_table_are_numbers():
    assert spreading(70001, 3).sum(axis=1) == pytest.approx(1)


def test_weights_of_another_window_load_into_a_swin(tmp_path):
    config = next(path for path in CONFIGS if path.stem == "swin_tiny_digits")
    path = save(build(config), tmp_path / "w.pth")
    wider = build(config, window_size=8)
    # the second stage has maps of 4x4: one window there, of that size, in both
    tables = tuple(name for name in wider.position_embeddings() if name.startswith("layers.0."))
    assert load_pretrained(wider, path).resized == tables and len(tables) == 2
    assert wider.layers[0].blocks[0].attn.relative_position_bias_table.shape == [15 * 15, 2]


def test_positions_of_no_square_grid_are_named(tmp_path):
    tensors = arrays_of(tiny_vit())
    tensors["pos_embed"] = tensors["pos_embed"][:, :-1]
    write_weights(tmp_path / "w.pdparams", tensors)
    with pytest.raises(UserError, match=r"pos_embed \[1, 16, 8\] instead of \[1, 17, 8\]"):
        load_pretrained(tiny_vit(), str(tmp_path / "w.pdparams"))


def test_batch_norm_statistics_of_pytorch_find_their_place(tmp_path):
    model = randomise(tiny_resnet())
    tensors = {}
    for name, value in transpose_linears(linear_weights(model), arrays_of(model)).items():
        tensors[name.replace("._mean", ".running_mean").replace("._variance", ".running_var")] = value
    tensors["bn1.num_batches_tracked"] = np.array(3, np.int64)
    tensors["n_averaged"] = np.array(5, np.int64)  # of torchvision's `model_ema`
    write_weights(tmp_path / "w.pth", tensors)
    other = tiny_resnet()
    load_pretrained(other, str(tmp_path / "w.pth"))
    assert all(np.array_equal(arrays_of(other)[name], value) for name, value in arrays_of(model).items())


def test_batch_norms_are_exported_with_all_buffers_that_pytorch_saves():
    """The counter is int64 without axes; PyTorch fills in one that is missing, other readers compare the names."""
    exported = export_tensors(tiny_resnet(), "torch")
    norms = [name.removesuffix("running_mean") for name in exported if name.endswith("running_mean")]
    assert norms and {f"{norm}running_var" for norm in norms} <= exported.keys()
    counters = {name: value for name, value in exported.items() if name.endswith("num_batches_tracked")}
    assert counters.keys() == {f"{norm}num_batches_tracked" for norm in norms}
    assert all(value.dtype == np.int64 and value.shape == () for value in counters.values())


METAFORMER = (  # our names, those of the authors' repository
    (r"stem\.norm\.", "downsample_layers.0.post_norm."),
    (r"stem\.", "downsample_layers.0."),
    (r"stages\.(\d)\.downsample\.norm\.", r"downsample_layers.\1.pre_norm."),
    (r"stages\.(\d)\.downsample\.", r"downsample_layers.\1."),
    (r"stages\.(\d)\.blocks\.", r"stages.\1."),
    (r"head\.fc\.", "head."),
    (r"head\.norm\.", "norm."),
)


def test_linear_layers_over_maps_of_a_metaformer_are_convolutions_here(tmp_path):
    """The authors' layers keep the channels last, so that all 1x1 convolutions of timm's are linear ones of theirs."""
    path = next(path for path in CONFIGS if path.stem == "caformer_tiny_digits")
    model, tensors = randomise(build(path)), {}
    for name, value in transpose_linears(linear_weights(model), arrays_of(model)).items():
        rule = next((rule for rule in METAFORMER if re.match(rule[0], name)), ("$", ""))
        value = value.reshape(value.shape[:2]) if value.shape[2:] == (1, 1) else value
        tensors[re.sub(*rule, name, count=1)] = value
    assert tensors.keys() >= {"downsample_layers.2.pre_norm.weight", "stages.1.0.token_mixer.act1.scale", "norm.bias",
                              "stages.2.0.token_mixer.qkv.weight", "head.fc2.weight"}  # fmt: skip
    shapes = [tensors[f"stages.{stage}.0.mlp.fc1.weight"].ndim for stage in range(3)]
    assert shapes == [2, 2, 2] and tensors["stages.1.0.token_mixer.dwconv.weight"].ndim == 4
    write_weights(tmp_path / "w.pth", tensors)
    other = build(path)
    assert load_pretrained(other, str(tmp_path / "w.pth")).dialect == "original MetaFormer"
    assert all(np.array_equal(arrays_of(other)[name], value) for name, value in arrays_of(model).items())


def test_registry_entries_are_complete_and_belong_to_a_config():
    known = {path.stem: path.parents[1].name for path in CONFIGS}
    said = {name: weight for variants in read_variants().values() for data in variants.values()
            for name, weight in data["weights"].items()}  # fmt: skip
    for entry in read_registry().values():
        assert known[entry.variant] == entry.family
        assert (entry.digest is None) == said[entry.id].keys().isdisjoint(("sha256", "md5"))
        assert entry.classes == said[entry.id].get("classes", 1000)
        assert entry.id.split("/")[0] in ("timm", "torchvision", "paddle", "paddleclas", "paddlevit")
        assert entry.url.startswith("https://") and entry.licence
        assert entry.by_hand == entry.id.startswith("paddlevit/")
        assert entry.digest is None or re.fullmatch(r"sha256:[0-9a-f]{8,64}|md5:[0-9a-f]{32}", entry.digest)
        assert entry.top1 is None or 50 < entry.top1 < 91
        assert preprocessing_of(entry.id).keys() == {
            "CROP_PCT", "INTERPOLATION", "RESIZE_LIBRARY", "EXIF_ORIENTATION", "KEEP_ASPECT", "IMAGENET_MEAN",
            "IMAGENET_STD",
        }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "resized"),
    [  # sides that the publishers' own evaluation resizes to
        ("timm/vit_base_patch16_224.augreg_in21k_ft_in1k", 248),
        ("timm/resnet50.a1_in1k", 235),
        ("torchvision/resnet50.V1", 256),
        ("torchvision/resnet50.V2", 232),
        ("torchvision/vit_l_16.V1", 242),
        ("paddleclas/ResNet50", 256),
    ],
)
def test_crop_share_of_published_weights_gives_their_resize_side(name, resized):
    assert int(224 / preprocessing_of(name)["CROP_PCT"]) == resized


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_config_has_the_preprocessing_and_figure_of_its_default_weights(path):
    variant = read_variants()[path.parents[1].name].get(path.stem) if not path.stem.endswith("_digits") else None
    if variant is None or "default" not in variant:
        pytest.skip("no published weights")
    data = load_config([f"-cfg={path}"], builder(path.parents[1])).DATA
    for key, value in preprocessing_of(variant["default"]).items():
        assert getattr(data, key) == value
    entry = read_registry()[variant["default"]]
    assert entry.preprocessing["image_size"] == data.IMAGE_SIZE
    assert f"{entry.top1:.2f} % top-1" in path.read_text() and entry.id in path.read_text()


def test_unknown_id_suggests_the_nearest():
    with pytest.raises(UserError, match="did you mean .*torchvision/resnet50.V2"):
        find_weights("torchvision/resnet50.V3")


@pytest.mark.parametrize("source", ["gone.pth", "file:///gone/w.safetensors", "folder/gone.pdparams"])
def test_missing_file_is_named(source):
    with pytest.raises(UserError, match="gone.*no such file"):
        find_weights(source)


def test_file_that_holds_no_weights_is_named_with_the_option(tmp_path):
    (tmp_path / "notes.txt").write_text("to do")
    with pytest.raises(UserError, match=f"^-pretrained: {tmp_path}/notes.txt: no weight file"):
        load_pretrained(tiny_vit(), str(tmp_path / "notes.txt"))


def test_path_and_file_url_with_and_without_suffix_name_the_same_file(tmp_path):
    path = tmp_path / "my weights.pdparams"
    write_weights(path, {"x": np.zeros(1, np.float32)})
    assert find_weights(str(path)) == find_weights(str(path.with_suffix(""))) == find_weights(path.as_uri()) == path


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def server(tmp_path):
    """Serve the folder `tmp_path/www` on this machine."""
    (tmp_path / "www").mkdir()
    handler = lambda *arguments: Quiet(*arguments, directory=str(tmp_path / "www"))  # noqa: E731
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


def test_url_is_downloaded_once_into_the_cache_folder(tmp_path, server, monkeypatch):
    monkeypatch.setenv("PADDLE_ZOO_WEIGHTS", str(tmp_path / "cache"))
    model = randomise(tiny_vit())
    save(model, tmp_path / "www" / "w.safetensors")
    other = tiny_vit()
    load_pretrained(other, f"{server}/w.safetensors")
    np.testing.assert_array_equal(other.head.weight.numpy(), model.head.weight.numpy())
    (tmp_path / "www" / "w.safetensors").unlink()
    assert find_weights(f"{server}/w.safetensors").name.endswith("-w.safetensors")


def test_download_with_another_hash_than_its_name_says_is_refused(tmp_path, server, monkeypatch):
    monkeypatch.setenv("PADDLE_ZOO_WEIGHTS", str(tmp_path / "cache"))
    (tmp_path / "www" / "resnet18-f37072fd.pth").write_bytes(b"something else")
    with pytest.raises(UserError, match="expected sha256:f37072fd"):
        find_weights(f"{server}/resnet18-f37072fd.pth")
    assert not list((tmp_path / "cache").glob("*.pth"))


def test_offline_error_says_which_file_to_put_where(tmp_path, monkeypatch):
    monkeypatch.setenv("PADDLE_ZOO_WEIGHTS", str(tmp_path / "cache"))

    def no_network(source, folder):
        raise UserError(f"{source.url}: download failed: no route to host")

    monkeypatch.setattr(source_module, "download_once", no_network)
    with pytest.raises(UserError) as caught:
        find_weights("torchvision/resnet18.V1")
    assert "https://download.pytorch.org/models/resnet18-f37072fd.pth" in str(caught.value)
    assert str(tmp_path / "cache" / "torchvision--resnet18.V1.pth") in str(caught.value)


def test_loaded_parameters_still_get_gradients(tmp_path):
    config = next(path for path in CONFIGS if path.stem == "resnet_tiny_digits")
    model = build(config)
    path = save(randomise(build(config), seed=1), tmp_path / "w.safetensors")
    load_pretrained(model, path)
    model(paddle.zeros([2, 3, 32, 32])).sum().backward()
    assert model.conv1.weight.grad is not None


def config_with(*words):
    path = next(path for path in CONFIGS if path.stem == "resnet50")
    return load_config([f"-cfg={path}", *words], builder(path.parents[1]))


def test_evaluation_of_published_weights_takes_their_preprocessing():
    config = with_preprocessing(config_with("-eval", "-pretrained=paddleclas/ResNet50"))
    data = config.DATA
    assert (data.CROP_PCT, data.INTERPOLATION, data.RESIZE_LIBRARY) == (0.875, "bilinear", "cv2")
    assert config_with().DATA.RESIZE_LIBRARY == "pil"  # what the YAML says


@pytest.mark.parametrize("prefix", ["hf-hub:", "hf:"])
def test_published_weights_are_the_same_by_the_name_that_the_hub_has_for_them(prefix):
    name, other = "timm/resnet50.a1_in1k", f"{prefix}paddleclas/ResNet50"  # which is no repository of the hub
    assert preprocessing_of(f"{prefix}{name}") == preprocessing_of(name) is not None
    assert preprocessing_of(other) is None


def test_training_from_published_weights_takes_their_normalisation_only():
    config = config_with("-pretrained=torchvision/resnet50.V1")
    grey = (0.5, 0.5, 0.5)
    configured = dataclasses.replace(config.DATA, IMAGENET_MEAN=grey, IMAGENET_STD=grey, CROP_PCT=0.8)
    data = with_preprocessing(dataclasses.replace(config, DATA=configured)).DATA
    assert (data.IMAGENET_MEAN, data.IMAGENET_STD) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert data.CROP_PCT == 0.8


@pytest.mark.parametrize(("words", "mean"), [([], 0.485), (["-eval"], 0.5)])
def test_training_that_is_resumed_keeps_the_normalisation_of_the_weights_in_its_recipe(tmp_path, words, mean):
    """As by the words of its first start; an evaluation takes the checkpoint's recipe, or says that it does not."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("BASE: resnet50\nDATA: {IMAGENET_MEAN: [0.5, 0.5, 0.5]}\n"
                      "MODEL: {PRETRAINED: torchvision/resnet50.V1}\n")  # fmt: skip
    config = load_config([f"-cfg={recipe}", "-resume=run/latest", *words], build_resnet)
    assert with_preprocessing(config).DATA.IMAGENET_MEAN[0] == mean


@pytest.mark.parametrize(
    ("word", "key", "value"),
    [
        ("DATA.CROP_PCT=0.8", "CROP_PCT", 0.8),
        ("DATA.INTERPOLATION=nearest", "INTERPOLATION", "nearest"),
        ("DATA.RESIZE_LIBRARY=pil", "RESIZE_LIBRARY", "pil"),
        ("DATA.EXIF_ORIENTATION=False", "EXIF_ORIENTATION", False),
        ("DATA.IMAGENET_MEAN=[0.4, 0.4, 0.4]", "IMAGENET_MEAN", (0.4, 0.4, 0.4)),
        ("DATA.IMAGENET_STD=[0.4, 0.4, 0.4]", "IMAGENET_STD", (0.4, 0.4, 0.4)),
    ],
)
def test_one_key_of_the_command_line_stays_and_the_rest_comes_with_the_weights(word, key, value, tmp_path, monkeypatch):
    lines = []
    logger = types.SimpleNamespace(info=lambda text, *values: lines.append(text % values))
    monkeypatch.setattr(preprocessing_module, "get_logger", lambda: logger)
    config = config_with("-eval", "-pretrained=paddleclas/ResNet50", "-opts", word)
    expected = preprocessing_of("paddleclas/ResNet50") | {key: value}
    data = with_preprocessing(config).DATA
    assert {name: getattr(data, name) for name in expected} == expected
    assert any(f"DATA.{key} {value} as configured, instead of" in line for line in lines)
    (tmp_path / "config.yaml").write_text(to_yaml(config))  # a run folder's file says the same once more
    words = [f"-cfg={tmp_path / 'config.yaml'}", "-eval", "-pretrained=paddleclas/ResNet50"]
    again = load_config(words, build_resnet)
    assert data == with_preprocessing(again).DATA


@pytest.mark.parametrize("weights", ["timm/resnet101d.ra2_in1k", "torchvision/resnet101.V2"])
def test_evaluation_at_another_size_than_the_published_figures_is_said(weights, monkeypatch):
    lines = []
    logger = types.SimpleNamespace(info=lambda text, *values: lines.append(text % values))
    monkeypatch.setattr(preprocessing_module, "get_logger", lambda: logger)
    size = read_registry()[weights].preprocessing["image_size"]
    for own in (224, 256):
        lines.clear()
        config = config_with("-eval", f"-pretrained={weights}", f"-image_size={own}")
        data = with_preprocessing(config).DATA
        assert own == data.IMAGE_SIZE
        said = [line for line in lines if "IMAGE_SIZE" in line]
        assert said == [f"preprocessing: DATA.IMAGE_SIZE {own} as configured, instead of {size}"] * (own != size)


@pytest.mark.parametrize("words", [("-opts", "DATA.PREPROCESSING=config"), ("-pretrained=some/file.pdparams",)])
def test_preprocessing_stays_as_configured_where_asked_or_unknown(words):
    config = config_with("-eval", "-pretrained=paddleclas/ResNet50", *words)
    assert with_preprocessing(config).DATA == config.DATA
