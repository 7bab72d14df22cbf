"""The support matrix: what it says, what it refuses and which words it uses."""

import itertools

import pytest

from image_classification import amp

# Seed matrix: Paddle's way works with tensor parallel, Apex's with neither, naive with both; nothing half with ZeRO
# but auto, whose weights are float32. O0 is float32.
EXPECTED = {
    "fp32": {"data", "tensor", "pipeline", "sharding", "accumulation"},
    "auto": {"data", "tensor", "sharding", "accumulation", "bfloat16"},
    "O0": {"data", "tensor", "pipeline", "sharding", "accumulation"},
    "O1": {"data", "accumulation", "bfloat16"},
    "O2": {"data", "accumulation", "bfloat16"},
    "O3": {"data", "accumulation", "bfloat16"},
    "naive": {"data", "tensor", "pipeline", "accumulation", "bfloat16"},
}
FEATURES = ("data", "tensor", "pipeline", "sharding", "accumulation", "bfloat16")


@pytest.mark.parametrize(("mode", "feature"), list(itertools.product(EXPECTED, FEATURES)))
def test_matrix(mode, feature):
    assert amp.supported(mode, feature) == (feature in EXPECTED[mode])
    degrees = {} if feature == "bfloat16" else {feature: 2}
    dtype = "bfloat16" if feature == "bfloat16" else None
    if feature in EXPECTED[mode]:
        amp.check_supported(mode, dtype, **degrees)
    else:
        with pytest.raises(ValueError, match=f"precision mode {mode}"):
            amp.check_supported(mode, dtype, **degrees)


@pytest.mark.parametrize(
    ("mode", "degrees", "instead"),
    [("O2", {"tensor": 2}, "auto or naive"), ("auto", {"pipeline": 4}, "naive"), ("naive", {"sharding": 2}, "auto")],
)
def test_refusal_names_the_alternative(mode, degrees, instead):
    with pytest.raises(ValueError, match=f"use {instead} instead"):
        amp.check_supported(mode, **degrees)


def test_degree_of_one_is_always_fine():
    for mode in EXPECTED:
        amp.check_supported(mode, tensor=1, pipeline=1, sharding=1, accumulation=8, data=8)


def test_unknown_mode_or_degree_is_refused():
    with pytest.raises(ValueError, match="did you mean 'O1'"):
        amp.check_supported("01")
    with pytest.raises(TypeError, match="unknown kind of parallelism 'expert'"):
        amp.check_supported("auto", expert=2)


def test_table_has_a_row_for_each_mode_and_a_cell_for_each_feature():
    lines = amp.support_table().splitlines()
    assert len(lines) == 2 + len(EXPECTED)
    assert {line.count("|") for line in lines} == {len(FEATURES) + 2}
    assert "| naive | yes | yes | yes | no | yes | yes |" in lines
