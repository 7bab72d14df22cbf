"""The example for any Paddle model: its table, its mistakes, and every network beside it in every format."""

import subprocess
import sys
from pathlib import Path

import paddle
import pytest

from examples import accelerate_any_model as example
from examples.other_models import MODELS
from image_classification import half_cpu

# Neighbouring numbers are 2^-10 and 2^-7 apart, and up to a hundred operators round one after the other.
TOLERANCE = {"float32": 1e-4, "float16": 0.02, "bfloat16": 0.15}


def test_table_has_a_line_for_training_and_one_for_evaluation_of_each_model():
    words = ["shufflenet_v2_x0_25", "crnn", "--image-size", "32", "--batch-size", "2"]
    words += ["--rounds", "1", "--threads", "1"]
    done = subprocess.run([sys.executable, example.__file__, *words], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    head, *rows = [line for line in done.stdout.splitlines() if line.startswith("|") and "---" not in line]
    assert head.count("|") == 8 and "float32" in head and "bfloat16" in head and "float16" in head
    assert [row.split("|")[1:3] for row in rows] == [
        [f" {name} ", f" {work} "] for name in ("shufflenet_v2_x0_25", "crnn") for work in ("training", "evaluation")
    ]
    assert all(float(cell.split()[0]) > 0 for row in rows for cell in row.split("|")[3:7])


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["resnet5000"], "resnet5000"),
        (["no_such_module:Net"], "no_such_module"),
        ([], "-all"),
        (["resnet18", "--all"], "-all"),
        (["resnet18", "--formats", "float8"], "float8"),
        (["resnet18", "--rounds", "0"], "-rounds"),
        (["resnet18", "--peers", "jax"], "jax"),
        (["resnet18", "--peers", "eager", "--formats", "float16"], "bfloat16"),
        (["resnet18", "--peers", "eager", "--peer-python", "no/python"], "no/python"),
        (["resnet18", "--peers", "eager", "--peer-python", "/bin/false"], "/bin/false: ends with exit code 1"),
        (["..net:Net"], "..net:Net"),
        (["math:pi"], "math:pi"),
        (["json:dumps"], "json:dumps"),
        (["time:time"], "time:time"),
        (["resnet18", "--path", "no/folder"], "-path no/folder"),
        (["googlenet", "--image-size", "64", "--batch-size", "1"], "[1, 3, 64, 64]"),
    ],
)
def test_mistake_is_one_line_and_nothing_runs(words, named, capsys):
    assert example.main(words) == 2
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1 and named in printed.err


@pytest.mark.parametrize(("name", "said"), [
    ("lenet", "lenet: there is no such model; did you mean LeNet?"), ("resnet5O", "did you mean resnet50?"),
    ("Conv2D_of_mine", "known are resnet18, "), ("paddle.nn:Linear", "paddle.nn:Linear: called without arguments: "),
    ("math:pi", "math:pi: called without arguments: "),
])  # fmt: skip
def test_wrong_name_behind_a_right_one_is_said_before_anything_is_measured(name, said, capsys):
    assert example.main(["crnn", name]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1 and said in printed.err


@pytest.fixture
def peer(tmp_path):
    """A Python of which PyTorch's models are resnet18 alone, and which measures nothing."""
    program = tmp_path / "python"
    program.write_text('#!/bin/sh\n[ "$2" = models ] && echo resnet18\n')
    program.chmod(0o755)
    return program


def test_peer_that_has_none_of_the_models_is_refused_before_anything_is_measured(peer, capsys):
    assert example.main(["crnn", "unet", "--peers", "eager", f"--peer-python={peer}"]) == 2
    error = "error: -peers: torchvision has none of the models crnn, unet; leave -peers out\n"
    assert capsys.readouterr() == ("", error)


def test_model_that_the_peer_does_not_have_is_said_once(peer, capsys, monkeypatch):
    asked = []
    monkeypatch.setattr(example, "measure", lambda name, build, options, bar: asked.append(name) or [])
    assert example.main(["resnet18", "crnn", "--peers", "eager", f"--peer-python={peer}"]) == 0
    assert capsys.readouterr().err == "PyTorch is not measured with crnn: torchvision has no such model\n"
    assert asked == ["resnet18", "crnn"]


def test_model_that_is_trained_again_and_again_stays_finite():
    """bfloat16 products of inf and NaN take longer: a feature pyramid had them after six steps at a rate of 1e-2."""
    paddle.seed(0)
    model, make_inputs = MODELS["fpn"]()
    contestant, inputs = example.Accelerated(model, "bfloat16"), make_inputs(2)
    for _ in range(6):
        contestant.train(inputs)
    model.eval()
    with paddle.no_grad():
        assert all(paddle.isfinite(one.astype("float32")).all() for one in example.flat(contestant.evaluate(inputs)))


def test_ratio_is_of_their_time_over_ours_round_by_round():
    assert example.in_words([2.0, 4.0, 9.0], [1.0, 1.0, 3.0]) == "3.00 (2.00 to 4.00)"


def test_model_of_a_module_on_the_path_is_found(tmp_path, monkeypatch):
    (tmp_path / "my_models.py").write_text("import paddle\n\n\ndef tiny():\n    return paddle.nn.Conv2D(3, 4, 3)\n")
    monkeypatch.syspath_prepend(Path(tmp_path))
    model, inputs = example.find_model("my_models:tiny", MODELS, lambda batch: [paddle.ones([batch, 3, 8, 8])])()
    assert model(*inputs(2)).shape == [2, 4, 6, 6]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "crnn" else pytest.mark.slow) for name in MODELS]
)
def test_network_trains_in_every_format_and_evaluates_as_in_stock_paddle(name, monkeypatch):
    monkeypatch.setattr(example, "LEARNING_RATE", 1e3)  # one step moves what has a gradient, however small
    for dtype in example.FORMATS:
        if half_cpu.backend_name(dtype) == "reference":
            continue
        results = []
        for make in (example.Stock, lambda model, dtype=dtype: example.Accelerated(model, dtype)):
            paddle.seed(0)
            model, make_inputs = MODELS[name]()
            inputs, contestant = make_inputs(1), make(model)
            model.eval()
            with paddle.no_grad():
                results.append([output.astype("float32") for output in example.flat(contestant.evaluate(inputs))])
            model.train()
            trained = [parameter for parameter in model.parameters() if not parameter.stop_gradient]
            before = [parameter.clone() for parameter in trained]
            for _ in range(8):  # float16 skips steps until its loss scale fits
                contestant.train(inputs)
                moved = [bool((old != new).any()) for old, new in zip(before, trained, strict=True)]
                if any(moved):
                    break
            assert all(bool(paddle.isfinite(p).all()) for p in trained) and sum(moved) > 0.8 * len(moved)
        assert example.difference(*results[::-1]) <= TOLERANCE[dtype]
