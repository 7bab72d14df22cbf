"""Well-formed files whose tensors have the wrong shapes: one line in every dialect, and the model stays as it is."""

import re

import numpy as np
import pytest

from image_classification.runtime import UserError
from image_classification.weights import load, load_pretrained
from image_classification.weights.read import WeightFile
from tests.helpers.model_zoo import CONFIGS, build

VARIANTS = {path.parents[1].name: path for path in CONFIGS if path.stem.endswith("_digits")}
SHAPES = [(), (0,), (1,), (3,), (0, 0), (1, 0, 8), (1, 1, 8), (1, 2, 8), (5, 1, 1, 1), (1,) * 9, (2, 0, 2)]


@pytest.fixture
def load_tensors(monkeypatch):
    """Load named arrays as if they had been read from a file of a layout."""

    def run(model, tensors, layout, replace_head):
        monkeypatch.setattr(load, "find_weights", lambda source: source)
        monkeypatch.setattr(load, "read_weights", lambda path: WeightFile(tensors, layout, "test"))
        return load_pretrained(model, "file", replace_head=replace_head)

    return run


def arrays_of(model):
    return {name: value.numpy() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("replace_head", [False, True])
@pytest.mark.parametrize("family", VARIANTS)
def test_tensor_of_any_shape_under_any_name_is_one_line(load_tensors, family, replace_head):
    model = build(VARIANTS[family])
    before = arrays_of(model)
    kinds = {re.sub(r"\d+", "0", name): name for name in before}  # one of each kind of parameter
    for name in kinds.values():
        for shape in SHAPES:
            if shape == before[name].shape:
                continue
            with pytest.raises(UserError) as caught:
                load_tensors(model, before | {name: np.zeros(shape, np.float32)}, "paddle", replace_head)
            assert str(caught.value).isprintable()
    assert all(np.array_equal(value, before[name]) for name, value in arrays_of(model).items())


@pytest.mark.parametrize("replace_head", [False, True])
@pytest.mark.parametrize("family", VARIANTS)
def test_file_that_has_only_the_mark_of_a_dialect_is_one_line(load_tensors, family, replace_head):
    model = build(VARIANTS[family])
    for dialect in model.dialects:
        name = re.sub(r"\\(.)", r"\1", dialect.marker)
        assert re.fullmatch(dialect.marker, name)
        for shape in SHAPES:
            with pytest.raises(UserError, match="does not fit this model") as caught:
                load_tensors(model, {name: np.zeros(shape, np.float32)}, "torch", replace_head)
            assert str(caught.value).isprintable()


def test_two_names_for_one_tensor_are_refused(load_tensors):
    model = build(VARIANTS["ResNet"])
    tensors = arrays_of(model)
    with pytest.raises(UserError, match="two tensors of the file are bn1._mean"):
        load_tensors(model, tensors | {"bn1.running_mean": tensors["bn1._mean"]}, "torch", False)
