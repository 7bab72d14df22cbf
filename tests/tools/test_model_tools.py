"""tools/list_models, convert_weights, predict and export, called as a user would, on a small model."""

import importlib.util
import json
import math
import re
from pathlib import Path

import numpy as np
import paddle
import pytest
from PIL import Image

from image_classification import explain, zoo
from image_classification.config import build_config
from image_classification.config.catalogue import family_of
from image_classification.data.datasets import IMAGE_EXTENSIONS
from image_classification.half_cpu import onednn
from image_classification.half_cpu.replay import RECORDED
from image_classification.preview import class_names, eval_pixels, normalised
from image_classification.runtime import UserError
from image_classification.weights import export_tensors, read_weights, write_weights
from tests.helpers.model_zoo import CONFIGS, FOLDERS, ROOT
from tests.helpers.small_runs import runs_of

VARIANT = "resnet_tiny_digits"
CPU_FLAGS = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""


def tool(name):
    spec = importlib.util.spec_from_file_location(f"tools_{name}", ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """Return the path of fixed weights of the small model."""
    paddle.seed(0)
    model, _ = zoo.load_model(VARIANT)
    path = tmp_path_factory.mktemp("weights") / "w.safetensors"
    write_weights(path, export_tensors(model, "torch"))
    return path


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for name, size in (("a.png", (40, 60)), ("b.jpg", (64, 32)), ("sub/c.png", (32, 32))):
        (folder / name).parent.mkdir(exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (*size, 3), np.uint8)).save(folder / name)
    return folder


def test_list_models_counts_and_sorts(capsys):
    assert tool("list_models").main(["resnet*", "-sort", "top1", "-json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["variant"] for row in rows} == {p.stem for p in CONFIGS if p.stem.startswith("resnet")}
    figures = [row["top1"] or 0 for row in rows]
    assert figures == sorted(figures, reverse=True)
    resnet50 = next(row for row in rows if row["variant"] == "resnet50")
    assert (resnet50["parameters"], resnet50["gmacs"], resnet50["image_size"]) == (25557032, 4.11, 224)


def test_list_models_counts_multiply_adds_that_nobody_published(capsys):
    assert tool("list_models").main(["vit_tiny_digits", "-json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    # patches; qkv, projection and MLP (ratio 2): 8 width^2 a token; scores and mixture; a LayerNorm: 5 a value
    model, _ = zoo.load_model("vit_tiny_digits")
    depth, width, tokens = len(model.blocks), model.pos_embed.shape[2], model.pos_embed.shape[1]
    patches = (tokens - 1) * math.prod(model.patch_embed.proj.weight.shape)
    block = tokens * 8 * width**2 + 2 * tokens**2 * width + 2 * 5 * tokens * width
    head = 5 * tokens * width + width * 10
    assert row["gmacs"] == round((patches + depth * block + head) / 1e9, 4)


def test_list_models_keeps_the_rows_that_satisfy_all_conditions(capsys):
    where = ["-where", "parameters < 30M", "top1>=71", "family=resnet", "image_size=224", "licence=bsd*"]
    assert tool("list_models").main(["resnet[1-5]*", "-json", *where]) == 0
    kept = {row["variant"]: row for row in json.loads(capsys.readouterr().out)}
    assert "resnet50" in kept and not {"resnet18", "resnet101"} & set(kept)
    assert all(row["parameters"] < 30e6 and row["top1"] >= 71 for row in kept.values())


def test_list_models_knows_in_which_formats_a_family_trains_as_in_float32(capsys, tmp_path, monkeypatch):
    top1 = {"vit_tiny_digits": {"fp32": 0.97, "auto/float16": 0.951, "naive/float16": 0.949},
            "mixer_tiny_digits": {"fp32": 0.9, "auto/float16": 0.99}}  # fmt: skip
    (tmp_path / "formats.json").write_text(json.dumps(top1))
    list_models = tool("list_models")
    monkeypatch.setattr(list_models, "FORMATS", tmp_path / "formats.json")

    def families(*words):
        assert list_models.main([*words, "-json"]) == 0
        return {row["family"]: row["trains in"] for row in json.loads(capsys.readouterr().out)}

    assert families("[MV]i*", "-families", "-where", "trains in=*float16*") == {
        "Mixer": "auto/float16", "ViT": "auto/float16"
    }  # fmt: skip
    assert families("vit_tiny_digits", "-where", "trains in=*auto/float16*") == {"ViT": "auto/float16"}
    assert list_models.main(["vit_tiny_digits", "-where", "trains in=*naive*"]) == 2


def test_measured_formats_are_those_of_one_small_variant_of_a_family():
    measured = json.loads((ROOT / "tools/formats.json").read_text())
    families = [family_of(variant) for variant in measured]
    assert len(set(families)) == len(families) and set(families) <= {folder.name for folder in FOLDERS}
    assert all({"fp32", "auto/bfloat16", "auto/float16"} <= set(top1) for top1 in measured.values())


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("top1", "expected a column, =, <, <=, > or >=, and a value"),
        ("size<3", "columns are variant, family"),
        ("licence>3", "licence is compared with a number"),
        ("top1>high", "compared with a number"),
        ("top1>100", "nothing is left"),
        ("top1=>80", "expected a column, =, <, <=, > or >=, and a value"),
    ],
)
def test_list_models_condition_that_makes_no_sense_is_one_line(condition, message, capsys):
    assert tool("list_models").main(["resnet18", "-where", condition]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("what", "by"), [("-families", "parameters"), ("-families", "top1"), ("-weights", "gmacs")])
def test_list_models_sort_by_what_the_list_does_not_have_is_one_line(what, by, capsys):
    assert tool("list_models").main([what, "-sort", by]) == 2
    assert f"-sort={by}: this list is sorted by name" in capsys.readouterr().err


def test_list_models_without_match_is_an_error(capsys):
    assert tool("list_models").main(["nothing*"]) == 2
    assert "no variant matches" in capsys.readouterr().err
    assert tool("list_models").main(["resnet"]) == 2
    assert "did you mean 'resnet*'?" in capsys.readouterr().err


def test_convert_weights_round_trip_is_bit_equal(weights, tmp_path, capsys):
    convert = tool("convert_weights")
    steps = [weights, tmp_path / "a.pth", tmp_path / "b.pdparams", tmp_path / "c.safetensors"]
    for source, target in zip(steps, steps[1:], strict=False):
        assert convert.main([VARIANT, str(source), str(target)]) == 0, capsys.readouterr().err
    first, last = read_weights(weights).tensors, read_weights(steps[-1]).tensors
    assert first.keys() == last.keys() and all(np.array_equal(first[name], last[name]) for name in first)
    assert paddle.load(str(tmp_path / "b.pdparams"))["fc.weight"].shape == [64, 10]
    assert read_weights(tmp_path / "a.pth").tensors["fc.weight"].shape == (10, 64)


@pytest.mark.parametrize("words", [("convert_weights", VARIANT, "weights", "there"),
                                   ("export", VARIANT, "-pretrained=weights", "-output=folder"),
                                   ("export", VARIANT, "-pretrained=weights", "-output=there")],
                         ids=["a file", "a folder", "a file for a folder"])  # fmt: skip
def test_tool_writes_over_nothing(weights, tmp_path, capsys, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    for path in ("there", "folder/note.txt"):
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).write_text("mine")
    name, *arguments = [word.replace("weights", str(weights)) if "_" not in word else word for word in words]
    assert tool(name).main(arguments) == 2
    assert re.search("remove it first|there: is no folder", capsys.readouterr().err)
    assert {path.read_text() for path in tmp_path.rglob("*") if path.is_file()} == {"mine"}


@pytest.mark.parametrize("target", ["w.onnx", "w"])
def test_convert_weights_when_the_ending_is_no_format_refuses_before_it_reads(tmp_path, capsys, target):
    assert tool("convert_weights").main([VARIANT, str(tmp_path / "gone.pth"), str(tmp_path / target)]) == 2
    assert "allowed are .safetensors, .pth, .pt, .pdparams" in capsys.readouterr().err


def test_convert_weights_of_another_model_is_one_line(weights, tmp_path, capsys):
    assert tool("convert_weights").main(["vit_tiny_digits", str(weights), str(tmp_path / "x.pth")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "x.pth").exists()


def test_predict_gives_the_models_own_scores(weights, photos, capsys):
    assert tool("predict").main([VARIANT, str(photos), f"-pretrained={weights}", "-top_k=3", "-json"]) == 0
    results = json.loads(capsys.readouterr().out)
    assert [result["file_name"] for result in results] == [str(photos / n) for n in ("a.png", "b.jpg", "sub/c.png")]
    model, config = zoo.load_model(VARIANT, str(weights))
    images = normalised(config, eval_pixels(config, [photos / "a.png"]))
    assert images.shape == (1, 3, config.DATA.IMAGE_SIZE, config.DATA.IMAGE_SIZE)
    scores = paddle.nn.functional.softmax(model(paddle.to_tensor(images)), axis=1).numpy()[0]
    assert results[0]["class_ids"] == np.argsort(-scores)[:3].tolist()
    np.testing.assert_allclose(results[0]["scores"], np.sort(scores)[::-1][:3], atol=1e-5)  # printed with 5 digits
    words = [VARIANT, str(photos / "a.png"), f"-pretrained={weights}", "-top_k=99", "-json"]
    assert tool("predict").main(words) == 0  # more classes than the model has: all of them
    assert json.loads(capsys.readouterr().out)[0]["class_ids"] == np.argsort(-scores).tolist()


def test_predict_says_that_it_computes_in_float32_where_the_configuration_says_otherwise(weights, photos, capsys):
    words = [VARIANT, str(photos), f"-pretrained={weights}", "-json"]
    assert tool("predict").main(words) == 0
    plain = capsys.readouterr()
    assert tool("predict").main([*words, "-opts", "AMP.MODE=auto"]) == 0
    mixed = capsys.readouterr()
    assert mixed.out == plain.out and "float32" not in plain.err
    assert mixed.err == plain.err + "AMP.MODE auto is of the training: predictions are computed in float32\n"


@pytest.mark.skipif(not onednn.available(), reason="passes are recorded where kernels compute")
def test_predict_runs_the_layers_for_the_first_batches_only(weights, tmp_path, capsys, monkeypatch):
    for index in range(RECORDED + 3):
        Image.fromarray(np.full((32, 32, 3), index, np.uint8)).save(tmp_path / f"{index}.png")
    model, config = zoo.load_model(VARIANT, str(weights))
    monkeypatch.setattr(zoo, "load_model", lambda *words: (model, config))
    runs = runs_of(getattr(model, model.head_names[0]))
    assert tool("predict").main([VARIANT, str(tmp_path), f"-pretrained={weights}", "-batch_size=1"]) == 0
    assert len(runs) == RECORDED + 1  # and once to record


def test_predict_draws_on_the_photograph_and_keeps_both_of_a_name(weights, tmp_path, capsys):
    predict = tool("predict")
    rng = np.random.default_rng(0)
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        Image.fromarray(rng.integers(0, 255, (300, 500, 3), np.uint8)).save(tmp_path / folder / "a.png")
    (tmp_path / "two" / "cut.png").write_bytes((tmp_path / "two" / "a.png").read_bytes()[:900])
    output = tmp_path / "out"
    words = [VARIANT, str(tmp_path / "one"), str(tmp_path / "two"), f"-pretrained={weights}", f"-output={output}"]
    assert predict.main([*words, "-json"]) == 1
    out, err = capsys.readouterr()
    results = json.loads(out)
    assert [sorted(result) for result in results[:2]] == 2 * [["class_ids", "file_name", "label_names", "scores"]]
    assert "two/cut.png: is no image that can be read" in results[2]["error"] and "skipped: " in err
    assert sorted(path.relative_to(output).as_posix() for path in output.rglob("*.png")) == [
        "one/a-png.png", "two/a-png.png"
    ]  # fmt: skip
    picture = np.asarray(Image.open(output / "one" / "a-png.png"))
    photo = np.asarray(Image.open(tmp_path / "one" / "a.png"))
    assert picture.shape[1] == 500 and picture.shape[0] > 300
    np.testing.assert_array_equal(picture[:300, :90], photo[:, :90])  # left of the square that the model saw
    assert picture[300:].any()  # the caption
    assert predict.main([*words, "-explain"]) == 1
    assert "two/cut.png\n  is no image" in capsys.readouterr().out
    assert Image.open(output / "one" / "a-png.png").size[0] == 1000


def test_predict_of_a_folder_finds_what_a_training_finds_in_it(weights, tmp_path, capsys):
    for suffix in IMAGE_EXTENSIONS:
        Image.fromarray(np.zeros((40, 40, 3), np.uint8)).convert("L").save(tmp_path / f"a{suffix}")
    (tmp_path / "._a.jpg").write_bytes(b"what another system keeps beside a photograph")
    assert tool("predict").main([VARIANT, str(tmp_path), f"-pretrained={weights}", "-top_k=1", "-json"]) == 0
    found = [Path(result["file_name"]) for result in json.loads(capsys.readouterr().out)]
    assert found == sorted(tmp_path / f"a{suffix}" for suffix in IMAGE_EXTENSIONS)


def test_predict_goes_on_after_a_batch_of_which_no_image_can_be_read(weights, tmp_path, capsys):
    (tmp_path / "a.png").write_text("no image")
    Image.fromarray(np.zeros((40, 40, 3), np.uint8)).save(tmp_path / "b.png")
    assert tool("predict").main([VARIANT, str(tmp_path), f"-pretrained={weights}", "-batch_size=1", "-json"]) == 1
    assert ["error" in result for result in json.loads(capsys.readouterr().out)] == [True, False]


@pytest.mark.parametrize(("word", "message"), [("gone.png", "gone.png: no such image"), ("TEXT", "is no image")])
def test_predict_names_what_is_no_image(weights, tmp_path, capsys, word, message):
    (tmp_path / "text.png").write_text("no image")
    word = str(tmp_path / "text.png") if word == "TEXT" else word
    assert tool("predict").main([VARIANT, word, f"-pretrained={weights}"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("output", ["photos", "photos/pictures", "photos/cat", "."])
def test_predict_never_writes_among_the_photographs(weights, tmp_path, capsys, monkeypatch, output):
    """The next training would take the pictures for photographs of a class."""
    monkeypatch.chdir(tmp_path)
    for name in ("photos/cat/a.png", "photos/dog/b.png"):
        (tmp_path / name).parent.mkdir(parents=True)
        Image.fromarray(np.zeros((40, 40, 3), np.uint8)).save(tmp_path / name)
    words = [VARIANT, "photos", f"-pretrained={weights}", "-output", output]
    if output == ".":
        words[1] = "photos/cat/a.png"  # its picture would stand beside the folder photos, where nothing is read
        assert tool("predict").main(words) == 0
    else:
        assert tool("predict").main(words) == 2
        assert f"-output: {output}: lies among the photographs" in capsys.readouterr().err
    assert len(list((tmp_path / "photos").rglob("*"))) == 4


def test_class_names_come_from_a_file_or_imagenet(tmp_path):
    _, config = zoo.load_model(VARIANT)
    (tmp_path / "names.txt").write_text("".join(f"{index} sign {index}\n" for index in range(10)))
    assert class_names(config, tmp_path / "names.txt")[3] == "sign 3"
    with pytest.raises(UserError, match="has 1 lines, the model has 10 classes"):
        (tmp_path / "short.txt").write_text("one\n")
        class_names(config, tmp_path / "short.txt")
    assert class_names(config)[3] == "3"


def test_export_answers_the_same_and_carries_its_preprocessing(weights, tmp_path, capfd):
    assert tool("export").main([VARIANT, f"-pretrained={weights}", "-output", str(tmp_path / "one")]) == 0
    assert "paddle.inference: 10 images, largest difference" in capfd.readouterr().out
    steps = json.loads((tmp_path / "one" / "preprocessing.json").read_text())
    side = steps["image_size"]
    assert (steps["resize_short_side"], steps["mean"], len(steps["class_names"])) == (side, [0.5, 0.5, 0.5], 10)
    words = [VARIANT, f"-pretrained={weights}", "-output", str(tmp_path / "two"), "-fold"]
    words += ["-opts", "DATA.KEEP_ASPECT=False", f"MODEL.CLASS_NAMES={list('abcdefghij')}"]
    assert tool("export").main(words) == 0
    assert re.search(r"BatchNorms folded into the layers before them: [1-9]", capfd.readouterr().out)
    steps = json.loads((tmp_path / "two" / "preprocessing.json").read_text())
    assert "resize_short_side" not in steps and steps["resize_square"] == side
    assert steps["class_names"] == list("abcdefghij")
    again = paddle.jit.load(str(tmp_path / "two" / "inference"))
    again.eval()
    assert again(paddle.zeros([3, 3, side, side])).shape == [3, 10]  # the batch size is free


@pytest.mark.parametrize("name", ["export", "predict"])
def test_class_file_that_is_missing_is_named_before_weights_are_read(name, tmp_path, capsys):
    words = [VARIANT, "-pretrained=gone.pdparams", "-output", str(tmp_path / "out"), "-class_names=gone.txt"]
    assert tool(name).main(words if name == "export" else [*words, str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: gone.txt: cannot be read") and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_export_to_a_path_that_is_no_text_is_one_line_before_any_work(weights, tmp_path, capsys):
    output = tmp_path / "\udce4"  # a byte of Latin-1, as a system of long ago wrote it
    assert tool("export").main([VARIANT, f"-pretrained={weights}", f"-output={output}"]) == 2
    assert "Paddle writes to paths in UTF-8 only" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_export_that_an_engine_cannot_run_is_one_line_and_leaves_nothing(tmp_path, capfd):
    """oneDNN has no bfloat16 pooling of RegNet's kind, and none at all on a CPU without its instructions."""
    model, _ = zoo.load_model("regnet_tiny_digits")
    write_weights(tmp_path / "w.safetensors", export_tensors(model, "torch"))
    words = ["regnet_tiny_digits", f"-pretrained={tmp_path / 'w.safetensors'}", "-dtype=bfloat16"]
    assert tool("export").main([*words, f"-output={tmp_path / 'a' / 'b'}"]) == 2
    last = capfd.readouterr().err.splitlines()[-1]
    assert re.match("error: .*(cannot run this model|computes this model in float32|answers differently)", last)
    assert [path.name for path in tmp_path.iterdir()] == ["w.safetensors"]


@pytest.mark.parametrize("keep_aspect", [True, False])
def test_exported_preprocessing_is_that_of_the_evaluation(photos, tmp_path, keep_aspect):
    """Pillow and NumPy, told by the file alone, give the numbers that the model is evaluated with."""
    data = {"IMAGE_SIZE": 24, "CROP_PCT": 0.8, "KEEP_ASPECT": keep_aspect, "RESIZE_LIBRARY": "pil"}
    data |= {"IMAGENET_MEAN": (0.1, 0.5, 0.7), "IMAGENET_STD": (0.2, 0.3, 0.4), "INTERPOLATION": "bicubic"}
    config = build_config([("test", {"DATA": data, "MODEL": {"NUM_CLASSES": 4}})])
    tool("export").write_preprocessing(tmp_path / "preprocessing.json", config, [])
    steps = json.loads((tmp_path / "preprocessing.json").read_text())
    image = Image.open(photos / "a.png")  # 60 x 40
    size = steps["image_size"]
    side = steps["resize_short_side" if keep_aspect else "resize_square"]
    wide = int(side * 60 / 40) if "resize_short_side" in steps else side
    image = image.resize((wide, side), Image.Resampling[steps["interpolation"].upper()])
    left, top = round((wide - size) / 2), round((side - size) / 2)
    pixels = np.asarray(image.crop((left, top, left + size, top + size)), np.float32)
    expected = ((pixels * steps["scale"] - steps["mean"]) / steps["std"]).transpose(2, 0, 1)
    (found,) = normalised(config, eval_pixels(config, [photos / "a.png"]))
    np.testing.assert_allclose(found, expected, atol=1e-5)  # float32 in another order


def test_export_report_refuses_another_answer():
    export = tool("export")
    expected = np.ones((2, 3), np.float32)
    assert "1.00e-05" in export.report("engine", expected, expected + np.float32(1e-5))
    for wrong in (expected + np.float32(1e-3), expected * np.nan, expected[:1]):
        with pytest.raises(UserError, match="more than"):
            export.report("engine", expected, wrong)
    with pytest.raises(UserError, match="more than"):  # of logits that are small, too
        export.report("engine", expected * np.float32(1e-5), expected * 0)


def test_export_images_when_a_model_answers_all_alike_show_it(tmp_path):
    """Of pure noise the logits of a ResNet differ by less than bfloat16 may round."""
    export = tool("export")
    paddle.seed(0)
    model, config = zoo.load_model("resnet18", options=["DATA.IMAGE_SIZE=128"])
    pictures = export.blocks(128, 3)
    assert pictures.shape == (10, 128, 128, 3) and (pictures[0] == pictures[0, 0, 0]).all()
    with paddle.no_grad():
        expected = model(paddle.to_tensor(normalised(config, pictures))).numpy()
    for row in expected:
        with pytest.raises(UserError, match="answers differently"):
            export.report("engine", expected, np.broadcast_to(row, expected.shape), "bfloat16")


def test_grad_cam_of_one_linear_head_is_the_weighted_feature_map():
    """With pooling and one linear layer the gradient is the class's weight vector (Zhou et al. 2016)."""
    paddle.seed(0)  # some weights give a class that looks nowhere
    model, config = zoo.load_model(VARIANT)
    images = paddle.to_tensor(np.random.default_rng(0).standard_normal((2, 3, 32, 32)).astype(np.float32))
    classes = np.array([4, 7])
    x = images
    for block in model.sequential_blocks()[:-1]:
        x = block.run(x)
    weights = model.fc.weight.numpy()[:, classes].T  # [B, C]
    expected = np.maximum((weights[:, :, None, None] * x.numpy()).sum(1), 0)
    low, high = expected.min((1, 2), keepdims=True), expected.max((1, 2), keepdims=True)
    found = explain.heatmap(model, images, paddle.to_tensor(classes)).numpy()
    np.testing.assert_allclose(found, (expected - low) / (high - low), atol=1e-5)


def test_attention_rollout_of_one_block_is_its_mean_attention():
    paddle.seed(0)
    model, _ = zoo.load_model("vit_tiny_digits", options=["MODEL.DEPTH=1"])
    images = paddle.randn([2, 3, 32, 32])
    attention = model.blocks[0].attn
    with paddle.no_grad():
        packed = attention.qkv(model.blocks[0].norm1(model.embed(images))).numpy().reshape(2, 17, 3, 4, 16)
    query, key = (packed[:, :, i].transpose(0, 2, 1, 3) for i in (0, 1))
    scores = query @ key.transpose(0, 1, 3, 2) / 4.0  # sqrt(16)
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    expected = weights.mean(1)[:, 0, 1:].reshape(2, 4, 4)  # from the class token to the patches
    low, high = expected.min((1, 2), keepdims=True), expected.max((1, 2), keepdims=True)
    found = explain.heatmap(model, images, paddle.to_tensor([0, 0])).numpy()
    np.testing.assert_allclose(found, (expected - low) / (high - low), atol=1e-4)


@pytest.mark.parametrize("name", ["vit_tiny_digits", "swin_tiny_patch4_window7_224", "alexnet"])
def test_heatmap_is_a_map_between_0_and_1_for_each_kind_of_model(name):
    options = ["MODEL.EMBED_DIM=12", "MODEL.DEPTHS=[1, 1]", "MODEL.NUM_HEADS=[1, 2]"] if "swin" in name else []
    model, config = zoo.load_model(name, options=options)
    side = 64 if name == "alexnet" else config.DATA.IMAGE_SIZE
    maps = explain.heatmap(model, paddle.randn([2, 3, side, side]), paddle.to_tensor([0, 1])).numpy()
    assert maps.ndim == 3 and maps.shape[0] == 2 and maps.min() >= 0 and maps.max() <= 1


def test_zoo_finds_a_run_folders_config_by_its_model_name(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("MODEL: {NAME: vit_tiny_digits, NUM_CLASSES: 3, EMBED_DIM: 8, NUM_HEADS: 1, PATCH_SIZE: 8}\n")
    model, config = zoo.load_model(str(path), options=["DATA.IMAGE_SIZE=16"])
    assert model.head.weight.shape == [8, 3]
    with pytest.raises(UserError, match="no variant of the zoo"):
        path.write_text("MODEL: {NAME: other}\n")
        zoo.find_config(str(path))


def test_export_to_onnx_answers_the_same(weights, tmp_path, capfd):
    pytest.importorskip("paddle2onnx", reason="optional: pip install paddle2onnx onnxruntime")
    onnxruntime = pytest.importorskip("onnxruntime")
    assert tool("export").main([VARIANT, f"-pretrained={weights}", "-output", str(tmp_path), "-onnx"]) == 0
    assert "onnxruntime: 10 images, largest difference" in capfd.readouterr().out
    session = onnxruntime.InferenceSession(tmp_path / "inference.onnx")
    ends = {end.name: end.shape for end in (*session.get_inputs(), *session.get_outputs())}
    side = json.loads((tmp_path / "preprocessing.json").read_text())["image_size"]
    assert ends == {"images": ["batch", 3, side, side], "logits": ["batch", 10]}


def test_export_to_onnx_when_a_model_pads_images_pads_with_zeros(tmp_path, capfd):
    """paddle2onnx leaves what was in its memory for the value: another one in each process."""
    pytest.importorskip("paddle2onnx", reason="optional: pip install paddle2onnx onnxruntime")
    onnx = pytest.importorskip("onnx")
    model, _ = zoo.load_model("pphgnet_tiny_digits")
    write_weights(tmp_path / "w.safetensors", export_tensors(model, "torch"))
    words = ["pphgnet_tiny_digits", "-pretrained", str(tmp_path / "w.safetensors"), "-output", str(tmp_path / "out")]
    assert tool("export").main([*words, "-onnx"]) == 0, capfd.readouterr().err
    nodes = onnx.load(tmp_path / "out" / "inference.onnx").graph.node
    borders = {node.input[2] for node in nodes if node.op_type == "Pad"}
    values = [node.attribute[0].t.raw_data for node in nodes if {*node.output} & borders]
    assert values and set(values) == {bytes(4)}


@pytest.mark.parametrize(
    "variant", ["maxvit_tiny_digits", "volo_tiny_digits", "crossvit_tiny_digits"], ids=["tanh", "casts", "resized"]
)
def test_export_to_onnx_and_float16_mends_what_the_converters_leave_wrong(variant, tmp_path, capfd):
    """GELUs of tanh become erf's; a cast between halves stays one to float32, an empty scale becomes a given one."""
    for package in ("paddle2onnx", "onnxruntime", "onnxconverter_common"):
        pytest.importorskip(package, reason="optional: pip install paddle2onnx onnxruntime onnxconverter-common")
    paddle.seed(0)
    model, _ = zoo.load_model(variant)
    for weight in (weight for weight in model.parameters() if weight.ndim == 2):
        weight.set_value(weight * 4.0)  # GELUs whose forms differ
    write_weights(tmp_path / "w.safetensors", export_tensors(model, "torch"))
    words = [variant, f"-pretrained={tmp_path / 'w.safetensors'}", f"-output={tmp_path / 'out'}", "-onnx"]
    assert tool("export").main([*words, "-dtype=float16"]) == 0, capfd.readouterr().err


@pytest.mark.parametrize(("variant", "form"), [("maxvit_tiny_digits", "tanh"), ("vit_tiny_digits", "erf")])
def test_form_of_gelu_is_that_of_the_exported_program(variant, form, tmp_path):
    model, config = zoo.load_model(variant)
    spec = paddle.static.InputSpec([None, 3, config.DATA.IMAGE_SIZE, config.DATA.IMAGE_SIZE], "float32")
    paddle.jit.save(paddle.jit.to_static(model, input_spec=[spec], full_graph=True), str(tmp_path / "inference"))
    assert tool("export").gelu_forms(json.loads((tmp_path / "inference.json").read_text())) == {form}


def test_export_to_onnx_without_the_packages_names_them(weights, tmp_path, capfd, monkeypatch):
    export = tool("export")
    monkeypatch.setattr(export.importlib.util, "find_spec", lambda name: None)
    assert export.main([VARIANT, f"-pretrained={weights}", "-output", str(tmp_path), "-onnx"]) == 2
    assert "the packages paddle2onnx onnxruntime are missing: pip install" in capfd.readouterr().err


def export_with(weights, folder, *words):
    return tool("export").main([VARIANT, f"-pretrained={weights}", "-output", str(folder), *words])


def figures_of(line):
    """Return (largest difference, largest logit) of a line that export printed."""
    return [float(number) for number in re.findall(r"\d\.\d+e[+-]\d+", line)[:2]]


@pytest.mark.skipif("avx512_bf16" not in CPU_FLAGS, reason="this CPU has no bfloat16 arithmetic")
@pytest.mark.parametrize("variant", [VARIANT, "vit_tiny_digits"])
def test_export_bfloat16_computes_in_bfloat16_and_answers_nearly_the_same(variant, tmp_path, capfd):
    paddle.seed(0)
    model, _ = zoo.load_model(variant)
    write_weights(tmp_path / "w.safetensors", export_tensors(model, "torch"))
    words = [variant, f"-pretrained={tmp_path / 'w.safetensors'}", f"-output={tmp_path / 'out'}", "-dtype", "bfloat16"]
    assert tool("export").main(words) == 0
    lines = [line for line in capfd.readouterr().out.splitlines() if line.startswith("paddle.inference")]
    full, half = (figures_of(line)[0] / figures_of(line)[1] for line in lines)
    # a rounding is up to 2**-8 of a number; far below one of them it was float32 that ran
    assert full < 1e-5 and 2.0**-13 < half < 16 * 2.0**-8


def test_export_bfloat16_that_runs_in_float32_is_refused(weights, tmp_path, capfd, monkeypatch):
    export = tool("export")
    monkeypatch.setattr(export, "run_paddle", lambda *_: np.zeros((10, 10), np.float32))
    with pytest.raises(UserError, match="computes this model in float32"):
        export.run_paddle_bfloat16("prefix", None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-dtype", "float16"), "paddle.inference has no float16 on a CPU"),
        (("-dtype", "bfloat16", "-onnx"), "onnxruntime has no bfloat16 on a CPU"),
    ],
)
def test_export_in_a_format_that_the_engine_lacks_is_one_line_and_writes_nothing(
    weights, tmp_path, capfd, words, message
):
    assert export_with(weights, tmp_path / "out", *words) == 2
    error = capfd.readouterr().err
    assert message in error and error.count("\n") == 1 and not (tmp_path / "out").exists()


def test_export_to_float16_onnx_is_half_the_size_and_answers_nearly_the_same(weights, tmp_path, capfd):
    for package in ("paddle2onnx", "onnxruntime", "onnxconverter_common"):
        pytest.importorskip(package, reason="optional: pip install paddle2onnx onnxruntime onnxconverter-common")
    assert export_with(weights, tmp_path, "-onnx", "-dtype", "float16") == 0
    line = next(line for line in capfd.readouterr().out.splitlines() if line.startswith("onnxruntime float16"))
    difference, largest = figures_of(line)
    assert 2.0**-16 < difference / largest < 16 * 2.0**-11
    full, half = ((tmp_path / name).stat().st_size for name in ("inference.onnx", "inference.float16.onnx"))
    assert half < 0.6 * full


def test_export_report_allows_what_the_format_rounds_and_no_more():
    export = tool("export")
    expected = np.full((2, 3), 4.0, np.float32)
    for dtype, bits in (("float16", 11), ("bfloat16", 8)):
        assert "engine" in export.report("engine", expected, expected * np.float32(1 + 15 * 2.0**-bits), dtype)
        with pytest.raises(UserError, match="answers differently"):
            export.report("engine", expected, expected * np.float32(1 + 17 * 2.0**-bits), dtype)
