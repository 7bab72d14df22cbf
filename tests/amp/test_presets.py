"""The presets in configs/amp: each is accepted, spells out its mode's defaults, and can stand in a model's BASE."""

from pathlib import Path

import pytest
import yaml

from image_classification import amp
from image_classification.amp.options import resolve
from image_classification.amp.scaler import RULES
from image_classification.config import load_config
from image_classification.ViT.vit import build_model

ROOT = Path(__file__).resolve().parents[2]
PRESETS = sorted((ROOT / "configs/amp").glob("*.yaml"))


def load(path):
    """Return (mode, dtype, options) of a preset."""
    section = yaml.safe_load(path.read_text())["AMP"]
    return section.pop("MODE"), section.pop("DTYPE", None), section


def test_every_mode_has_a_preset():
    assert {load(path)[0] for path in PRESETS} == set(amp.MODES) - {"fp32"}


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_preset_spells_out_what_the_mode_does_anyway(path):
    """O3's is the one exception: it keeps batch norm float32, the level alone does not."""
    mode, dtype, options = load(path)
    if mode == "O3":
        assert options.pop("keep_batchnorm_fp32") is True
    written, plain = resolve(mode, dtype, "cpu", options), resolve(mode, dtype, "cpu")
    assert scalers(written) == scalers(plain)
    assert {**vars(written), "scalers": ()} == {**vars(plain), "scalers": ()}


def scalers(settings):
    """Return every number of the settings' loss scalers."""
    return [vars(amp.LossScaler(rule, **options)) for rule, options in settings.scalers]


def test_documented_numbers_are_those_of_the_rules():
    assert RULES["paddle"].growth_interval == RULES["torch"].growth_interval == RULES["apex"].growth_interval == 2000
    assert (RULES["naive"].init_scale, RULES["naive"].growth_interval, RULES["naive"].hysteresis) == (2**32, 1000, 2)


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_preset_stands_in_the_base_of_a_model(path, tmp_path):
    model = ROOT / "image_classification/ViT/configs/vit_tiny_digits.yaml"
    (tmp_path / "run.yaml").write_text(f"BASE: [{model}, {path}]\n")
    config = load_config([f"-cfg={tmp_path / 'run.yaml'}"], build_model)
    mode, dtype, options = load(path)
    assert (mode, dtype) == (config.AMP.MODE, config.AMP.DTYPE)
    amp.build_precision(config.AMP.MODE, dtype=config.AMP.DTYPE, options=dict(config.AMP.OPTIONS))
    assert len(config.AMP.OPTIONS) == len(options)
