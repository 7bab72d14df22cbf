"""tools/export.py, called as a user would, on a small model."""

import json
import re
import resource
from pathlib import Path

import numpy as np
import paddle
import pytest
from PIL import Image

from image_classification import zoo
from image_classification.config import build_config
from image_classification.preview import eval_pixels, normalised
from image_classification.runtime import UserError
from image_classification.weights import export_tensors, write_weights
from tests.helpers.model_tools import VARIANT, tool

CPU_FLAGS = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""


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


def test_export_to_a_path_that_is_no_text_is_one_line_before_any_work(weights, tmp_path, capsys):
    output = tmp_path / "\udce4"  # a byte of Latin-1, as a system of long ago wrote it
    assert tool("export").main([VARIANT, f"-pretrained={weights}", f"-output={output}"]) == 2
    assert "Paddle writes to paths in UTF-8 only" in capsys.readouterr().err and not list(tmp_path.iterdir())


@pytest.mark.parametrize("room", [2**9, 2**12, 2**16, 0])
def test_export_onto_a_full_disk_says_so_and_leaves_nothing(weights, tmp_path, capfd, room):
    """The limit of a file stands for the end of the disk: within each of the files, and in the last bytes."""
    assert export_with(weights, tmp_path / "whole") == 0
    size = (tmp_path / "whole" / "inference.pdiparams").stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room or size - 10, limits[1]))
    try:
        assert export_with(weights, tmp_path / "out") == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert re.search("error: .*out.*: cannot be written( to)?: File too large\n$", capfd.readouterr().err)
    assert not (tmp_path / "out").exists()


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
    data = {"IMAGE_SIZE": 24, "CROP_PCT": 0.81, "KEEP_ASPECT": keep_aspect, "RESIZE_LIBRARY": "pil"}  # 29.6: 29
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
