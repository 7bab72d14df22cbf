"""tools/convert_weights.py, called as a user would, on a small model."""

import json

import numpy as np
import paddle
import pytest

from image_classification.weights import read_weights, write_weights
from tests.helpers.model_tools import VARIANT, tool


def test_convert_weights_round_trip_is_bit_equal(weights, tmp_path, capsys):
    convert = tool("convert_weights")
    steps = [weights, tmp_path / "a.pth", tmp_path / "b.pdparams", tmp_path / "c.safetensors"]
    for source, target in zip(steps, steps[1:], strict=False):
        assert convert.main([VARIANT, str(source), str(target)]) == 0, capsys.readouterr().err
    first, last = read_weights(weights).tensors, read_weights(steps[-1]).tensors
    assert first.keys() == last.keys() and all(np.array_equal(first[name], last[name]) for name in first)
    assert paddle.load(str(tmp_path / "b.pdparams"))["fc.weight"].shape == [64, 10]
    assert read_weights(tmp_path / "a.pth").tensors["fc.weight"].shape == (10, 64)


def test_converted_safetensors_carry_what_the_source_knows_of_itself_else_the_configuration(weights, tmp_path):
    """Else a later use in another way, or by labels of other classes, is not noticed."""
    convert, names = tool("convert_weights"), list("abcdefghij")
    own, kept, foreign = (tmp_path / f"{name}.safetensors" for name in ("own", "kept", "foreign"))
    options = ["-opts", f"MODEL.CLASS_NAMES={json.dumps(names)}", "DATA.CROP_PCT=0.75"]
    assert convert.main([VARIANT, str(weights), str(own), *options]) == 0
    assert convert.main([VARIANT, str(own), str(kept)]) == 0
    for path in (own, kept):
        known = json.loads(read_weights(path).config)
        assert known["MODEL"]["CLASS_NAMES"] == names and known["DATA"]["CROP_PCT"] == 0.75
        assert "SEED" not in known and "BATCH_SIZE" not in known["DATA"]
    write_weights(weights.parent / "other.safetensors", read_weights(weights).tensors, "of: [another, project")
    assert convert.main([VARIANT, str(weights.parent / "other.safetensors"), str(foreign), *options]) == 0
    assert read_weights(foreign).config == read_weights(own).config


@pytest.mark.parametrize("target", ["w.onnx", "w"])
def test_convert_weights_when_the_ending_is_no_format_refuses_before_it_reads(tmp_path, capsys, target):
    assert tool("convert_weights").main([VARIANT, str(tmp_path / "gone.pth"), str(tmp_path / target)]) == 2
    assert "allowed are .safetensors, .pth, .pt, .pdparams" in capsys.readouterr().err


def test_convert_weights_of_another_model_is_one_line(weights, tmp_path, capsys):
    assert tool("convert_weights").main(["vit_tiny_digits", str(weights), str(tmp_path / "x.pth")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "x.pth").exists()
