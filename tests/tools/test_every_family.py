"""Every family, found by itself, in its digits-sized variants, through every tool."""

import json

import numpy as np
import paddle
import pytest
from PIL import Image

from image_classification.config import load_config
from image_classification.freeze import freeze
from image_classification.runtime import UserError
from image_classification.tools import amp_doctor, convert_weights, export, list_models, predict
from image_classification.tools.parts import benchmark_worker
from image_classification.weights import export_tensors, load_pretrained, read_weights, write_weights
from tests.helpers.model_zoo import build, builder, digits_cases


@pytest.fixture(scope="module", params=digits_cases())
def path(request):
    """Return the YAML of a family's digits-sized variant."""
    return request.param


@pytest.fixture(scope="module")
def weights(path, tmp_path_factory):
    """Return the path of weights of that variant, none of whose factors and biases is where it began."""
    paddle.seed(0)
    file = tmp_path_factory.mktemp("weights") / f"{path.stem}.safetensors"
    model = build(path)
    for parameter in model.parameters():
        if parameter.ndim == 1 and not parameter.stop_gradient:
            parameter.set_value(parameter + 0.1 * paddle.randn(parameter.shape))
    write_weights(file, export_tensors(model, "torch"))
    return file


def test_predict_draws_where_the_model_looks(path, weights, tmp_path, capsys):
    pixels = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    words = [path.stem, str(tmp_path / "a.png"), f"-pretrained={weights}", "-explain", "-json"]
    assert predict.main([*words, "-output", str(tmp_path / "out")]) == 0
    (result,) = json.loads(capsys.readouterr().out)
    assert len(result["scores"]) == 5 and all(np.isfinite(result["scores"]))
    picture = np.asarray(Image.open(tmp_path / "out" / "a-png.png").convert("RGB")).astype(int)
    width = picture.shape[1] // 2
    photograph, heat = np.split(picture[: round(width * 40 / 60)], 2, axis=1)
    assert photograph.shape == heat.shape and (photograph != heat).any(axis=2).mean() > 0.5  # the crop, under the map


def test_export_answers_as_the_model(path, weights, tmp_path, capfd):
    assert export.main([path.stem, f"-pretrained={weights}", "-output", str(tmp_path)]) == 0
    assert "paddle.inference: 10 images, largest difference" in capfd.readouterr().out


@pytest.mark.slow  # in an environment with the two packages
def test_export_to_onnx_answers_as_the_model_or_says_that_it_does_not_convert(path, weights, tmp_path, capfd):
    pytest.importorskip("paddle2onnx", reason="optional: pip install paddle2onnx onnxruntime")
    pytest.importorskip("onnxruntime")
    code = export.main([path.stem, f"-pretrained={weights}", "-output", str(tmp_path), "-onnx"])
    said = capfd.readouterr()
    if code == 0:
        assert "onnxruntime: 10 images, largest difference" in said.out
    else:
        assert code == 2 and "error: -onnx: " in said.err and "paddle2onnx" in said.err


def test_convert_weights_there_and_back_is_bit_equal(path, weights, tmp_path, capsys):
    assert convert_weights.main([path.stem, str(weights), str(tmp_path / "a.pdparams")]) == 0
    assert convert_weights.main([path.stem, str(tmp_path / "a.pdparams"), str(tmp_path / "b.safetensors")]) == 0
    first, last = read_weights(weights).tensors, read_weights(tmp_path / "b.safetensors").tensors
    assert first.keys() == last.keys() and all(np.array_equal(first[name], last[name]) for name in first)


@pytest.mark.slow  # a minute for all of them; tests/tools/test_amp_doctor.py has the doctor itself
def test_doctor_measures_every_layer_with_weights(path, tmp_path, capsys):
    words = [f"-cfg={path.stem}", "-amp_mode=O2", "-amp_dtype=float16", "-steps=1", "-batch_size=2"]
    words += [f"-report={tmp_path}", "-opts", "DATA.NUM_WORKERS=0"]
    assert amp_doctor.main(words) == 0, capsys.readouterr().err
    facts = json.loads((tmp_path / "doctor.json").read_text())
    layers = {row["layer"] for row in facts["layers"]}
    heads = build(path).head_names
    assert layers >= set(heads) and facts["losses"]["float32"]


def test_benchmark_worker_trains_in_half(path):
    task = {
        "cfg": path.stem, "mode": "naive", "dtype": "bfloat16", "batch_size": 2, "image_size": None,
        "data": "synthetic", "iterations": 1, "device": "cpu", "evaluation": False, "opts": [], "stock": False,
        "products": False, "layers": False,
    }  # fmt: skip
    (iteration,) = benchmark_worker.measure(task)["iterations"]
    assert all(iteration[phase] >= 0 for phase in benchmark_worker.PHASES)


def test_list_models_counts(path, capsys):
    assert list_models.main([path.stem, "-json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["variant"], row["family"]) == (path.stem, path.parents[1].name)
    assert row["parameters"] > 0 and row["gmacs"] > 0


def test_everything_but_the_head_is_frozen(path):
    model = build(path)
    head = tuple(f"{name}." for name in model.head_names)
    others = [name for name, parameter in model.named_parameters()
              if not parameter.stop_gradient and not name.startswith(head)]  # fmt: skip
    freeze(model, others)
    assert {name for name, parameter in model.named_parameters() if not parameter.stop_gradient} == {
        name for name, _ in model.named_parameters() if name.startswith(head)
    }


def test_weights_start_a_model_of_other_classes_and_size(path, weights):
    size = load_config([f"-cfg={path}"], builder(path.parents[1])).DATA.IMAGE_SIZE
    model = build(path, num_classes=7)
    head = [name for name, _ in model.named_parameters() if name.startswith(tuple(f"{h}." for h in model.head_names))]
    with pytest.raises(UserError, match="instead of"):
        load_pretrained(model, str(weights))
    assert load_pretrained(model, str(weights), replace_head=True).replaced == tuple(sorted(head))
    if model.position_embeddings():
        model = build(path)
        larger = build(path, image_size=2 * size)
        others = [name for name in larger.position_embeddings()
                  if larger.state_dict()[name].shape != model.state_dict()[name].shape]  # fmt: skip
        assert load_pretrained(larger, str(weights)).resized == tuple(others)
