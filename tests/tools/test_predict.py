"""tools/predict.py, called as a user would, on a small model."""

import json
from pathlib import Path

import numpy as np
import paddle
import pytest
from PIL import Image

from image_classification import zoo
from image_classification.data.datasets import IMAGE_EXTENSIONS
from image_classification.half_cpu import onednn
from image_classification.half_cpu.replay import RECORDED
from image_classification.preview import eval_pixels, normalised
from tests.helpers.model_tools import VARIANT, tool
from tests.helpers.small_runs import runs_of


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


def test_predict_says_that_it_computes_in_float32_where_the_configuration_says_otherwise(
    weights, photos, capsys, tmp_path
):
    path = tmp_path / "mixed.yaml"
    words = [VARIANT, str(photos), f"-pretrained={weights}", "-json"]
    assert tool("predict").main(words) == 0
    plain = capsys.readouterr()
    path.write_text(f"BASE: {VARIANT}\nAMP: {{MODE: auto}}\n")
    assert tool("predict").main([str(path), *words[1:]]) == 0
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


def test_predict_goes_on_past_links_that_lead_nowhere(weights, photos, tmp_path, capsys):
    for name, target in (("loop.png", "loop.png"), ("gone.png", "nowhere.png"), ("kept.png", photos / "a.png")):
        (tmp_path / name).symlink_to(target)
    words = [VARIANT, str(tmp_path), f"-pretrained={weights}", f"-output={tmp_path.parent / 'drawn'}", "-json"]
    assert tool("predict").main(words) == 1
    out, err = capsys.readouterr()
    results = {Path(result["file_name"]).name: result for result in json.loads(out)}
    assert {name for name, result in results.items() if "error" in result} == {"gone.png", "loop.png"}
    assert "scores" in results["kept.png"] and "loop.png: cannot be read: Too many levels" in err


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
    assert predict.main([*words[:-1], f"-output={tmp_path / 'explained'}", "-explain"]) == 1
    assert "two/cut.png\n  is no image" in capsys.readouterr().out
    assert Image.open(tmp_path / "explained" / "one" / "a-png.png").size[0] == 1000


def test_predict_writes_over_no_picture_of_before(photos, tmp_path, capsys):
    there = tmp_path / "sub" / "c-png.png"
    there.parent.mkdir()
    there.write_text("precious")
    words = [VARIANT, str(photos / "a.png"), str(photos / "sub"), "-pretrained=gone.pdparams", f"-output={tmp_path}"]
    assert tool("predict").main(words) == 2
    assert capsys.readouterr() == ("", f"error: -output: {there}: exists; name another, or remove it first\n")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [there] and there.read_text() == "precious"


def test_predict_of_a_folder_finds_what_a_training_finds_in_it(weights, tmp_path, capsys):
    for suffix in IMAGE_EXTENSIONS:
        Image.fromarray(np.zeros((40, 40, 3), np.uint8)).convert("L").save(tmp_path / f"a{suffix}")
    (tmp_path / "._a.jpg").write_bytes(b"what another system keeps beside a photograph")
    (tmp_path / "b.heic").write_bytes(b"what no library here reads")
    assert tool("predict").main([VARIANT, str(tmp_path), f"-pretrained={weights}", "-top_k=1", "-json"]) == 0
    out, err = capsys.readouterr()
    assert f"{tmp_path}: 1 files are no images by their names: b.heic, ..." in err
    found = [Path(result["file_name"]) for result in json.loads(out)]
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
    if output in (".", "photos/cat"):
        words[1] = "photos/cat/a.png"
    if output == ".":  # its picture would stand beside the folder photos, where nothing is read
        assert tool("predict").main(words) == 0
    else:
        assert tool("predict").main(words) == 2
        assert f"-output: {output}: lies among the photographs" in capsys.readouterr().err
    assert len(list((tmp_path / "photos").rglob("*"))) == 4


@pytest.mark.parametrize("program", ["predict", "export"])
def test_folder_of_a_run_brings_its_weights_and_a_model_alone_needs_them(program, photos, weights, tmp_path, capsys):
    run, words = tmp_path / "run", {"predict": [str(photos)], "export": [f"-output={tmp_path / 'out'}"]}[program]
    run.mkdir()
    (run / "config.yaml").write_text(f"BASE: {VARIANT}\n")
    assert tool(program).main([str(run), *words]) == 2
    assert capsys.readouterr().err.startswith(f"error: -pretrained: {run}: ")  # it has none yet
    assert tool(program).main([VARIANT, *words]) == 2
    assert capsys.readouterr().err == "error: the following arguments are required: -pretrained; -h explains them\n"
    assert tool(program).main([f"{run}n", *words]) == 2  # mistyped: it is not weights that are missing
    assert capsys.readouterr().err.startswith(f"error: -cfg: {run}n: ")
    paddle.save(zoo.load_model(VARIANT, str(weights))[0].state_dict(), str(run / "best.pdparams"))
    assert tool(program).main([str(run), *words]) == 0
    found = capsys.readouterr().out
    if program == "predict":
        assert tool(program).main([str(run), *words, f"-pretrained={weights}"]) == 0
        assert capsys.readouterr().out == found
