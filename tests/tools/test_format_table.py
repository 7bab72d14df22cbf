"""tools/format_table.py: real processes in two modes, weights that float16 cannot hold, and what is typed wrong."""

import json

import numpy as np
import pytest

from image_classification.weights import export_tensors, write_weights
from image_classification.zoo import create_model
from tools import format_table

VARIANT = "mixer_tiny_digits"


@pytest.fixture
def two_modes(monkeypatch):
    """float32, and the mode whose name says nothing of its format."""
    monkeypatch.setattr(format_table, "MODES", (("fp32", None), ("naive", "float16")))


def test_table_measures_a_model_in_each_mode_and_names_what_overflows(two_modes, tmp_path, capsys):
    tensors = export_tensors(create_model(VARIANT), "torch")
    (name,) = [name for name in tensors if name.endswith("stem.proj.weight")]
    tensors[name] = tensors[name] * np.float32(1e7)  # products beyond 65504
    write_weights(tmp_path / f"{VARIANT}.safetensors", tensors)
    words = [VARIANT, "-rounds=1", "-iterations=1", "-batch_size=4", f"-pretrained={tmp_path}/{{}}.safetensors"]
    words += [f"-json={tmp_path / 'f.json'}", f"-plot={tmp_path / 'f.png'}"]
    assert format_table.main(words) == 0, capsys.readouterr().err
    facts = json.loads((tmp_path / "f.json").read_text())
    plain, naive = facts["rows"]
    assert (plain["difference"], plain["time"], plain["memory"]) == (0.0, 1.0, 1.0)
    assert naive["difference"] is None or naive["difference"] > 2.0**-11
    (found,) = facts["ranges"]
    assert found["activation_overflow"] > 0 and any("stem" in layer for layer in found["keep_float32"])
    assert (tmp_path / "f.png").read_bytes()[:4] == b"\x89PNG"
    assert f"| {VARIANT} | naive | float16 |" in capsys.readouterr().out


def test_difference_of_the_logits_is_that_of_roundings(two_modes, tmp_path):
    words = [VARIANT, "-rounds=1", "-iterations=1", "-batch_size=4", "-data=synthetic", f"-json={tmp_path / 'f.json'}"]
    assert format_table.main(words) == 0
    _, naive = json.loads((tmp_path / "f.json").read_text())["rows"]
    # each of some tens of operators rounds by 2^-12 of its result at most; the largest logit is of their size
    assert 0 < naive["difference"] < 64 * 2.0**-12


@pytest.mark.parametrize(("words", "message"), [
    (["vit_tiny"], "vit_tiny: no such variant"),
    (["-rounds=0"], "-rounds: expected an integer of at least 1"),
    ([VARIANT, "-pretrained=no/{}.pdparams"], "no/mixer_tiny_digits.pdparams: no such file"),
    ([VARIANT, "-pretrained=no/{1}{"], "no/{1}{: no such file"),
    ([VARIANT, "-plot=a.xyz"], "-plot: a.xyz: ends in none of .png, .svg"),
    ([VARIANT, f"-json={__file__}"], "test_format_table.py: exists; name another"),
    ([""], "variants: is empty"),
])  # fmt: skip
def test_wrong_words_are_named_before_anything_is_measured(words, message, capsys):
    assert format_table.main(words) == 2
    assert message in capsys.readouterr().err


def test_default_is_one_digits_variant_of_each_family():
    chosen = format_table.parse([]).variants
    assert len(chosen) == len(set(chosen)) and all(name.endswith("_digits") for name in chosen)
    assert {format_table.variants()[name].parents[1].name for name in chosen} <= set(format_table.model_folders())
