"""Configurations by strangers: one line that names the file or the flag, at once, whatever the text."""

import os

import pytest

from image_classification.config import build_config, load_config
from image_classification.config.yaml_text import load_yaml
from image_classification.runtime import UserError


def build_model(
    num_classes: int = 10,
    embed_dim: int = 64,
    depths: tuple[int, ...] = (1, 2),
    drop_rate: float = 0.0,
    stem: str = "patch",
    **_,
):
    """A builder whose signature is a MODEL schema."""


BOMB = "a: &a [x, x]\n" + "".join(f"{b}: &{b} [*{a}, *{a}]\n" for a, b in zip("abcdefghij", "bcdefghijk", strict=True))
MERGES = "a: &a {x: 1}\n" + "".join(
    f"{b}: &{b}\n  <<: [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefg", "bcdefgh", strict=True)
)
TEXTS = {
    "alias bomb": BOMB,
    "merge bomb": MERGES,
    "alias": "DATA: &d {BATCH_SIZE: 3}\nTRAIN: *d",
    "alias of itself": "DATA: &d [*d]",
    "deep lists": "DATA: " + "[" * 5000,
    "deep mappings": "DATA: " + "{a: " * 5000,
    "deep blocks": "\n".join(" " * depth + "a:" for depth in range(500)),
    "many values": "DATA: [" + "1," * 60_000 + "]",
    "long integer": "SEED: " + "9" * 5000,
    "large integer": "SEED: " + "9" * 30,
    "integer as a float": "TRAIN: {BASE_LR: " + "9" * 400 + "}",
    "sexagesimal": "SEED: " + ":59" * 3000,
    "infinite": "TRAIN: {BASE_LR: .inf}",
    "infinite by size": "TRAIN: {BASE_LR: 1.0e+999}",
    "infinite text": "TRAIN: {BASE_LR: 'inf'}",
    "no number": "TRAIN: {BASE_LR: .nan}",
    "date": "DATA: {BATCH_SIZE: 2024-01-01}",
    "date that is none": "DATA: {BATCH_SIZE: 2024-13-45}",
    "time that is none": "DATA: {BATCH_SIZE: 2001-12-14t99:99:99Z}",
    "binary": "DATA: {DATA_PATH: !!binary '=='}",
    "set": "DATA: !!set {a, b}",
    "object": "DATA: !!python/object/apply:os.system ['true']",
    "unknown tag": "DATA: !x 1",
    "long tag": "DATA: !" + "x" * 5000 + " 1",
    "integer that is none": "SEED: !!int x",
    "boolean that is none": "EVAL: !!bool x",
    "empty integer": "SEED: !!int ''",
    "list as a key": "[a]: 1",
    "mapping as a key": "{a: 1}: 1",
    "number as a key": "1: 1",
    "nothing as a key": "null: 1",
    "long key": "x" * 5000 + ": 1",
    "long value": "SAVE: " + "x" * 20_000,
    "control character": "SAVE: a\x07b",
    "escaped control character": 'SAVE: "a\\x1b[2J"',
    "escaped line break": 'SAVE: "a\\nb"',
    "text that turns around": 'SAVE: "a\\u202eb"',
    "half a character": 'SAVE: "\\uD800"',
    "control character in a key": '"SAVE\\x1b[2J": 1',
    "no characters": "\udcff",
    "zero": "\x00",
    "two documents": "SEED: 1\n---\nSEED: 2",
    "directive": "%YAML 9.9\n---\nSEED: 1",
    "tab": "DATA:\n\tBATCH_SIZE: 1",
    "embedding of nothing": "MODEL: {EMBED_DIM: 0}",
    "negative embedding": "MODEL: {EMBED_DIM: -64}",
    "embedding beyond all": "MODEL: {EMBED_DIM: 99999999999}",
    "no layers in a stage": "MODEL: {DEPTHS: [1, 0]}",
    "infinite rate": "MODEL: {DROP_RATE: .inf}",
    "negative rate": "MODEL: {DROP_RATE: -0.5}",
    "tuple of texts": "TRAIN: {OPTIMIZER: {BETAS: '((((((((((((((((('}}",
    "deep tuple": "TRAIN: {OPTIMIZER: {BETAS: '" + "(" * 9000 + "'}}",
    "base that is a mapping": "BASE: {a: [b]}",
    "base with a long name": "BASE: " + "n" * 300,
    "base with a zero in it": 'BASE: "a\\0b"',
    "base that is a folder": "BASE: .",
    "base that is a device": "BASE: /dev/zero",
    "smoke that is a list": "SMOKE: [1]",
    "section that is a list": "DATA: [[[1]]]",
}


@pytest.mark.parametrize("title", TEXTS)
def test_hostile_yaml_is_one_line_that_names_the_file(tmp_path, title):
    path = tmp_path / "model.yaml"
    path.write_bytes(TEXTS[title].encode("utf-8", "surrogateescape"))
    with pytest.raises(UserError) as caught:
        load_config([f"-cfg={path}"], build_model)
    text = str(caught.value)
    assert str(path)[:100] in text and text.isprintable() and len(text) < 1100


SINGLE_LINES = {title for title, text in TEXTS.items() if text.isprintable()} - {"number as a key", "many values"}


@pytest.mark.parametrize("title", sorted(SINGLE_LINES))
def test_hostile_value_of_opts_is_one_line_that_names_the_flag(tmp_path, title):
    path = tmp_path / "model.yaml"
    path.write_text("SEED: 1")
    key, _, value = TEXTS[title].partition(": ")
    for word in (f"{key}={value}", f"AMP.X={TEXTS[title]}", f"{key}.{'x.' * 3000}x={value}", f"AMP{'.' * 900}={value}"):
        try:
            repr(load_config([f"-cfg={path}", "-opts", word], build_model))
        except UserError as error:
            text = str(error)
            assert "-opts" in text and text.isprintable() and len(text) < 1100
        else:
            assert word.startswith("AMP.")  # whatever is an option of a mode is the mode's to judge


def test_flags_of_any_bytes_are_one_line(tmp_path):
    path = tmp_path / "model.yaml"
    path.write_text("SEED: 1")
    for value in ("\udcff", "a\x1b[2J", "\n", "x" * 100_000):
        with pytest.raises(UserError) as caught:
            load_config([f"-cfg={path}", f"-data_path={value}", f"-batch_size={value}"], build_model)
        assert str(caught.value).isprintable() and len(str(caught.value)) < 1100
    for name in ("n" * 300, "/dev/zero", str(tmp_path), "\udcff"):
        with pytest.raises(UserError, match="-cfg"):
            load_config([f"-cfg={name}"], build_model)


def test_base_files_that_multiply_are_refused(tmp_path):
    for number in range(30):
        (tmp_path / f"{number}.yaml").write_text(f"BASE: [{number + 1}.yaml, {number + 1}.yaml]")
    (tmp_path / "30.yaml").write_text("SEED: 1")
    with pytest.raises(UserError, match="BASE leads to more than 100 files"):
        load_config([f"-cfg={tmp_path / '0.yaml'}"], build_model)


def test_base_that_is_a_fifo_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "model.yaml").write_text("BASE: fifo")
    with pytest.raises(UserError, match="it is no plain file .BASE of"):
        load_config([f"-cfg={tmp_path / 'model.yaml'}"], build_model)


def test_file_that_is_too_long_is_refused_before_it_is_read(tmp_path):
    with open(tmp_path / "model.yaml", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UserError, match="at most 1048576 are allowed"):
        load_config([f"-cfg={tmp_path / 'model.yaml'}"], build_model)


def test_plain_values_are_what_they_were():
    text = "a: 1\nb: 1.5\nc: true\nd: null\ne: text\nf: [1, x]\ng: {h: '1'}\ni: 3e-3\nj: 0x10\nk: 2024-01-01\nl: ~"
    assert load_yaml(text, "x") == {
        "a": 1, "b": 1.5, "c": True, "d": None, "e": "text", "f": [1, "x"], "g": {"h": "1"}, "i": "3e-3", "j": "0x10",
        "k": "2024-01-01", "l": None,
    }  # fmt: skip


@pytest.mark.parametrize("text", ["(0.9, 0.999)", "0.9, 0.999", "[0.9, 0.999]", "(0.9,0.999,)"])
def test_tuple_as_text_is_a_tuple(text):
    config = build_config([("x", {"TRAIN": {"OPTIMIZER": {"BETAS": text}}})])
    assert config.TRAIN.OPTIMIZER.BETAS == (0.9, 0.999)
