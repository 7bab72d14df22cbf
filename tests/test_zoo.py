"""The library's three functions, as a script of one's own calls them."""

import re
import types
from pathlib import Path

import numpy as np
import paddle
import pytest
from PIL import Image

import image_classification as zoo
from image_classification.build import build_parts
from image_classification.config import load_config, preview_config
from image_classification.data.build import build_eval_transform, build_train_transform
from image_classification.data.decode import decode
from image_classification.preview import eval_pixels, normalised
from image_classification.runtime import UserError
from image_classification.weights import export_tensors, read_registry, source, with_preprocessing, write_weights
from image_classification.zoo import OF_TRANSFORM, find_config, load_model, refuse_other_weights
from tests.helpers.model_zoo import CONFIGS, published

NAME = "vit_tiny_digits"


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """Return (file, its tensors) of a model of ten classes."""
    path = tmp_path_factory.mktemp("zoo") / "weights.safetensors"
    paddle.seed(3)
    model, _ = load_model(NAME)
    write_weights(path, export_tensors(model, "torch"))
    return path, model.state_dict()


# (variant, published weights of another one that its YAML advises to begin with)
ADVISED = [
    (path.stem, name)
    for path in CONFIGS
    for name in re.findall("^#.*begin with -pretrained=(\\S+)", path.read_text(), re.MULTILINE)
    if read_registry()[name].variant != path.stem
]


@pytest.mark.parametrize(("name", "weights"), ADVISED)
def test_weights_that_a_variant_advises_to_begin_with_fit_it(name, weights):
    path, build_model = find_config(name)
    refuse_other_weights(load_config([f"-cfg={path}"], build_model), build_model, weights)


def test_list_has_every_variant_and_those_with_weights():
    assert zoo.list_models() == sorted(path.stem for path in CONFIGS)
    assert zoo.list_models("*_Digits") == sorted(path.stem for path in CONFIGS if path.stem.endswith("_digits"))
    assert zoo.list_models(pretrained=True) == sorted(name for name, entry in published().items() if entry["weights"])
    assert zoo.list_models("nothing*") == []


def test_model_comes_in_float32_and_in_training_mode():
    model = zoo.create_model(NAME, num_classes=3, depth=2, drop_path=0.1, image_size=16, in_channels=1)
    assert model.training and all(value.dtype == paddle.float32 for value in model.parameters())
    assert len(model.blocks) == 2 and model(paddle.zeros([2, 1, 16, 16])).shape == [2, 3]


def test_own_weights_are_loaded_and_another_number_of_classes_gets_a_fresh_head(weights):
    path, tensors = weights
    for name, value in zoo.create_model(NAME, pretrained=str(path)).state_dict().items():
        np.testing.assert_array_equal(value.numpy(), tensors[name].numpy())
    model = zoo.create_model(NAME, pretrained=str(path), num_classes=4)
    assert model.head.weight.shape[-1] == 4
    np.testing.assert_array_equal(model.norm.weight.numpy(), tensors["norm.weight"].numpy())


def test_own_weights_of_another_number_of_classes_are_refused_where_nobody_asked_for_a_fresh_head(tmp_path):
    path = tmp_path / "weights.safetensors"
    write_weights(path, export_tensors(zoo.create_model(NAME, num_classes=7), "torch"))
    with pytest.raises(ValueError, match=r"instead of \[10\]"):
        zoo.create_model(NAME, pretrained=str(path))
    assert zoo.create_model(NAME, pretrained=str(path), num_classes=7).num_classes == 7


def test_model_of_published_weights_has_their_number_of_classes(monkeypatch):
    loaded, report = [], types.SimpleNamespace(config=None)

    def load(model, source, replace_head):
        loaded.append(source)
        return report

    monkeypatch.setattr("image_classification.zoo.load_pretrained", load)
    entry = next(entry for entry in read_registry().values() if entry.classes not in (0, 1000))
    with paddle.LazyGuard():
        model = zoo.create_model(entry.variant, pretrained=entry.id)
        assert model.num_classes == entry.classes
        for name in ("resnet18", "resnet50_apex"):  # a variant, and a recipe of one
            zoo.create_model(name, pretrained=True)
    assert loaded == [entry.id, *(published()[name]["default"] for name in ("resnet18", "resnet50"))]


@pytest.mark.parametrize(("name", "weights", "options", "fits"), [
    ("resnet18", "torchvision/resnet50.V2", (), False), ("vit_tiny_digits", "torchvision/resnet50.V2", (), False),
    ("resnet50", "torchvision/resnet101.V2", (), False), ("resnet18", "torchvision/resnet18.V1", (), True),
    ("resnet18", "torchvision/resnet18.V1", ("MODEL.LAYERS=[2,2,2,3]",), False),
    ("resnet18", "torchvision/resnet18.V1", ("MODEL.NUM_CLASSES=7", "DATA.IMAGE_SIZE=288"), True),
    ("repvgg_a0", "timm/repvgg_a0.rvgg_in1k", ("MODEL.DEPLOY=True",), True),
    ("vit_tiny_patch16_384", "timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k", (), True),
    ("deit_tiny_patch16_224", "timm/vit_tiny_patch16_224.augreg_in21k", (), True),
])  # fmt: skip
def test_published_weights_of_another_architecture_are_refused_before_they_are_fetched(
    name, weights, options, fits, tmp_path, monkeypatch
):
    monkeypatch.setenv("PADDLE_ZOO_WEIGHTS", str(tmp_path))
    fetched = []

    def download(source, folder):
        fetched.append(source.file_name)
        raise UserError("fetched")

    monkeypatch.setattr(source, "download_once", download)
    monkeypatch.setattr(source, "_announced_digest", lambda url: None)
    path, build_model = find_config(name)
    words = ["-opts", *options] if options else []
    config = load_config([f"-cfg={path}", f"-pretrained={weights}", *words], build_model)
    message = "fetched" if fits else "is of resnet.* as its YAML has it, which does not fit this model: it "
    calls = [(load_model, (name, weights, options)), (build_parts, (config, build_model, None))]
    for function, arguments in calls if options else [*calls, (zoo.create_model, (name, weights))]:
        with pytest.raises(UserError, match=message) as caught:
            function(*arguments)
        assert "\n" not in str(caught.value)
    assert len(fetched) == (2 if options else 3) * fits


@pytest.mark.parametrize(("call", "message"), [
    (lambda: zoo.create_model("vit_tiny_digit"), "create_model: vit_tiny_digit: .*did you mean vit_tiny_digits?"),
    (lambda: zoo.create_model("resnet18.a1_in1k"), "the model is resnet18, and its weights, .* timm/resnet18.a1_in1k"),
    (lambda: zoo.create_transform("hf-hub:timm/resnet18.a1_in1k"), "^create_transform: hf-hub.*model is resnet18"),
    (lambda: zoo.create_model(NAME, deph=3), "create_model: no argument 'deph'; did you mean depth?"),
    (lambda: zoo.create_model(NAME, num_classes=0), "^create_model: MODEL.NUM_CLASSES: expected at least 1, found 0"),
    (lambda: zoo.create_model(NAME, depth="deep"), "^create_model: MODEL.DEPTH"),
    (lambda: zoo.create_transform(NAME, crop_pct="wide"), "^create_transform: DATA.CROP_PCT"),
    (lambda: zoo.create_model(NAME, pretrained=True), f"{NAME} has no published weights"),
    (lambda: zoo.create_model(NAME, pretrained="gone.safetensors"), "gone.safetensors: no such file"),
    (lambda: zoo.create_model("resnet50", pretrained="timm/resnet50.a1_in1"), "did you mean timm/resnet50.a1_in1k"),
    (lambda: zoo.create_transform("vit_tiny_digit"), "create_transform: .*did you mean vit_tiny_digits?"),
    (lambda: zoo.create_model(NAME, pretrained=Path("gone")), "gone: no such file"),
    (lambda: zoo.create_model(NAME, pretrained=""), "-pretrained: is empty"),
    (lambda: zoo.create_transform("resnet50", "timm/resnet50.a1_in1"), "did you mean timm/resnet50.a1_in1k"),
    (lambda: zoo.create_transform(NAME, "gone.safetensors"), "gone.safetensors: no such file"),
    (lambda: zoo.create_transform(NAME, crop_pc=1.0), "no argument 'crop_pc'; did you mean crop_pct?"),
    (lambda: zoo.create_transform(NAME, num_workers=2), "no argument 'num_workers'; it has image_size, .*, crop_scale"),
])  # fmt: skip
def test_mistake_is_a_value_error_of_one_line(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_arguments_of_a_transform_are_the_keys_that_one_of_both_reads():
    read = set()

    class Recorded:
        def __init__(self, section):
            self.section = section

        def __getattr__(self, key):
            read.add(key)
            return getattr(self.section, key)

    config = preview_config(["-cfg=resnet50", "-opts", "TRAIN.RANDOM_ERASE_PROB=0.5"])
    recorded = types.SimpleNamespace(DATA=Recorded(config.DATA), TRAIN=config.TRAIN)
    build_train_transform(recorded)
    build_eval_transform(recorded.DATA)
    chosen = {"IMAGENET_MEAN", "IMAGENET_STD", "PREPROCESSING", "PREPROCESSING_KEPT"}  # read before, or after
    assert {f"DATA.{key}" for key in read | chosen} == set(OF_TRANSFORM)


def test_unknown_name_of_the_package_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'create_modle'"):
        zoo.create_modle  # noqa: B018
    assert {"create_model", "create_transform", "list_models", "amp"} <= set(dir(zoo))


@pytest.mark.parametrize("given", ["path", "bytes", "image", "pixels"])
def test_transform_makes_the_input_of_the_evaluation(given, tmp_path):
    path = tmp_path / "photo.jpg"
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    noise = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)
    Image.fromarray(noise).save(path, exif=exif, quality=95)
    prepare = zoo.create_transform("resnet50", image_size=32, exif_orientation=True)
    image = {"path": path, "bytes": path.read_bytes(), "image": Image.open(path),
             "pixels": decode(path.read_bytes(), "pil", upright=True)}[given]  # fmt: skip
    # what belongs to resnet50's default weights, by the tools' own way
    default = published()["resnet50"]["default"]
    config = described("resnet50", default, ["DATA.IMAGE_SIZE=32", "DATA.EXIF_ORIENTATION=True"])
    (expected,) = normalised(config, eval_pixels(config, [path]))
    np.testing.assert_allclose(prepare(image), expected, atol=1e-6)


def test_pillow_image_of_16_bits_is_scaled_as_its_file_is(tmp_path):
    path = tmp_path / "scan.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 65536, (40, 32), np.uint16)).save(path)
    prepare = zoo.create_transform(NAME)
    np.testing.assert_array_equal(prepare(Image.open(path)), prepare(path))


@pytest.mark.parametrize("given", ["path", "bytes", "image"])
@pytest.mark.parametrize("training", [False, True])
def test_image_that_cannot_be_read_is_a_value_error_of_one_line(given, training, tmp_path):
    path = tmp_path / "depth.tif"
    Image.fromarray(np.random.default_rng(0).random((8, 8), np.float32)).save(path)
    image = {"path": path, "bytes": path.read_bytes(), "image": Image.open(path)}[given]
    place = {"path": str(path), "bytes": r"an image \(bytes\)", "image": r"an image \(TiffImageFile\)"}[given]
    with pytest.raises(ValueError, match=f"^{place}: is no image that can be read: 32-bit floats: which one is white"):
        zoo.create_transform(NAME, training=training)(image)


def test_transform_of_published_weights_fetches_nothing():
    zoo.create_transform("resnet50", "https://example.invalid/resnet50.pth")


def test_transform_of_a_recipe_is_that_of_its_models_weights():
    image = np.random.default_rng(0).integers(0, 256, (64, 48, 3), np.uint8)
    recipe, variant = (zoo.create_transform(name, image_size=32)(image) for name in ("resnet50_apex", "resnet50"))
    np.testing.assert_array_equal(recipe, variant)


def described(name, pretrained, options):
    """Return the configuration with the preprocessing of published weights."""
    path, build_model = find_config(name)
    words = [f"-cfg={path}", "-eval", f"-pretrained={pretrained}", "-opts", *options]
    return with_preprocessing(load_config(words, build_model))


@pytest.mark.parametrize("image", [
    np.zeros([8, 8, 3], "float32"), np.zeros([8, 8, 3], "uint16"), np.zeros([1, 8, 8, 3], "uint8"),
    np.zeros([8, 8, 2], "uint8"), np.zeros([0, 8, 3], "uint8"), np.zeros([8], "uint8"), paddle.zeros([8, 8, 3]), [[0]],
    None,
], ids=lambda image: f"{type(image).__name__}{list(getattr(image, 'shape', ()))}")  # fmt: skip
@pytest.mark.parametrize("training", [False, True])
def test_what_is_no_image_is_refused_by_the_transform(image, training):
    with pytest.raises(ValueError, match=r"uint8 pixels \[H, W\] or \[H, W, C\], not"):
        zoo.create_transform(NAME, training=training)(image)


def test_numbers_of_numpy_are_numbers():
    model = zoo.create_model(NAME, num_classes=np.int64(5), in_channels=np.int64(2), dropout=np.float32(0.25))
    assert model(paddle.zeros([1, 2, 32, 32])).shape == [1, 5]


def test_training_transform_is_random_and_repeats_with_its_generator():
    prepare = zoo.create_transform("resnet50", training=True, image_size=32)
    image = np.random.default_rng(0).integers(0, 256, (64, 48, 3), np.uint8)
    first, again, other = (prepare(image, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert first.shape == (3, 32, 32) and first.dtype == np.float32
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(first, prepare(image, 1))
    assert not np.array_equal(first, other) and not np.array_equal(prepare(image), prepare(image))


def test_zoo_finds_a_run_folders_config_by_its_model_name(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("MODEL: {NAME: vit_tiny_digits, NUM_CLASSES: 3, EMBED_DIM: 8, NUM_HEADS: 1, PATCH_SIZE: 8}\n")
    model, config = load_model(str(path), options=["DATA.IMAGE_SIZE=16"])
    assert model.head.weight.shape == [8, 3]
    with pytest.raises(UserError, match="no variant of the zoo"):
        path.write_text("MODEL: {NAME: other}\n")
        find_config(str(path))
