"""tools/list_models.py, called as a user would."""

import json
import math

import pytest

from image_classification import zoo
from image_classification.config.catalogue import family_of
from tests.helpers.model_tools import tool
from tests.helpers.model_zoo import CONFIGS, FOLDERS, ROOT


def test_list_models_counts_and_sorts(capsys):
    assert tool("list_models").main(["ResNet5*", "-sort", "top1", "-json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["variant"] for row in rows} == {p.stem for p in CONFIGS if p.stem.startswith("resnet5")}
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
    assert tool("list_models").main(["resnet[15]*", "-json", *where]) == 0
    kept = {row["variant"]: row for row in json.loads(capsys.readouterr().out)}
    assert "resnet50" in kept and not {"resnet18", "resnet101"} & set(kept)
    assert all(row["parameters"] < 30e6 and row["top1"] >= 71 for row in kept.values())
    assert not tool("list_models").satisfies({"top1": None}, "top1<50")  # a figure that nobody published is not small


def test_list_models_knows_in_which_formats_a_family_trains_as_in_float32(capsys, tmp_path, monkeypatch):
    top1 = {"vit_tiny_digits": {"fp32": 0.97, "auto/float16": 0.951, "naive/float16": 0.949},
            "mixer_tiny_digits": {"fp32": 0.9, "auto/float16": 0.99}}  # fmt: skip
    (tmp_path / "formats.json").write_text(json.dumps(top1))
    list_models = tool("list_models")
    monkeypatch.setattr(list_models, "FORMATS", tmp_path / "formats.json")

    def families(*words):
        assert list_models.main([*words, "-json"]) == 0
        return {row["family"]: row["trains in"] for row in json.loads(capsys.readouterr().out)}

    assert families("[mV]i*", "-families", "-where", "trains in=*float16*") == {
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
