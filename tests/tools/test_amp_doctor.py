"""The doctor finds planted faults, and following its advice makes the run converge."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import paddle
import pytest
import yaml
from paddle import nn
from paddle.nn import functional as F

from image_classification import amp, half_cpu
from image_classification.amp.diagnosis import diagnose, total
from image_classification.amp.observer import FORMATS, Observer, Record
from tests.helpers.small_runs import build_plain_net, config_of

ROOT = Path(__file__).resolve().parents[2]


class Scale(nn.Layer):
    """A fault to plant: multiplies by a constant."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return x * self.factor


def classifier(fault=None):
    """Return a small network of which the middle may be at fault."""
    paddle.seed(0)
    middle = {
        # activations pass 65504, the layer norm would bring them back
        "overflow": [nn.Linear(16, 16), Scale(1e6), nn.LayerNorm(16)],
        # everything before has gradients of about 2^-32
        "underflow": [nn.Linear(16, 16), nn.LayerNorm(16)],
        None: [nn.Linear(16, 16), nn.LayerNorm(16)],
    }[fault]
    head = [nn.Linear(16, 3)] + ([Scale(2.0**-24), Up(2.0**24)] if fault == "underflow" else [])
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), *middle, *head)


class Up(nn.Layer):
    """Brings values back up in the forward pass only, so that all gradients before it are tiny."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return x + (x * (self.factor - 1)).detach()


def problem():
    random = np.random.default_rng(0)
    x = random.standard_normal((64, 4)).astype("float32")
    return paddle.to_tensor(x), paddle.to_tensor(x[:, :3].argmax(axis=1))


def train(model, mode, steps=30, observer=None, **options):
    """Return (losses, skipped steps, records of each step)."""
    precision = amp.build_precision(mode, dtype=None if mode == "fp32" else "float16", options=options)
    model = precision.convert_model(model)
    optimizer = paddle.optimizer.AdamW(0.01, parameters=[param for _, param in precision.master_params(model)])
    watch = observer and Observer(model)
    losses, skipped, records = [], 0, []
    x, y = problem()
    for _ in range(steps):
        with precision.forward_context():
            loss = F.cross_entropy(model(x).astype("float32"), y)
        precision.backward(loss)
        if watch:
            records.append(watch.collect(precision.named_params(optimizer)))
        skipped += not precision.step(optimizer).applied
        losses.append(loss.item())
    return losses, skipped, records, watch


def diagnosis(fault, scale=2.0**16, dynamic=True, dtype="float16"):
    _, _, records, observer = train(classifier(fault), "fp32", steps=3, observer=True)
    return diagnose(records, observer.order, dtype, scale, dynamic)


@pytest.mark.parametrize("mode", ["auto", "O1", "O2", "naive"])
def test_planted_overflow_is_named_and_the_advice_makes_the_run_converge(mode):
    found = diagnosis("overflow")
    assert found.overflow[0] == "3"  # the first to overflow in the order of execution
    assert "3" in found.keep_float32
    sick, skipped, _, _ = train(classifier("overflow"), mode, init_scale=1024.0)
    assert not sick[-1] < 0.5 * sick[0]
    healed, skipped, _, _ = train(classifier("overflow"), mode, init_scale=1024.0, keep_float32=found.keep_float32)
    assert skipped == 0
    assert healed[-1] < 0.5 * healed[0]


def test_planted_underflow_is_named_and_the_advice_makes_the_run_converge():
    found = diagnosis("underflow", scale=1.0, dynamic=False)
    assert {"0", "2"} <= set(found.underflow)
    assert found.loss_scale > 2.0**10
    sick, _, _, _ = train(classifier("underflow"), "O2", loss_scale=1.0)
    assert not sick[-1] < 0.5 * sick[0]
    advice = {"loss_scale": found.loss_scale, "keep_float32": found.keep_float32}
    healed, skipped, _, _ = train(classifier("underflow"), "O2", **advice)
    assert skipped == 0
    assert healed[-1] < 0.5 * healed[0]


def test_static_scale_when_gradients_overflow_under_it_is_replaced_and_the_run_converges():
    found = diagnosis(None, scale=2.0**40, dynamic=False)
    sick, skipped, _, _ = train(classifier(), "O2", loss_scale=2.0**40)
    assert skipped == len(sick)
    assert found.loss_scale < 2.0**40
    healed, skipped, _, _ = train(classifier(), "O2", loss_scale=found.loss_scale)
    assert skipped == 0 and healed[-1] < 0.5 * healed[0]
    assert diagnosis(None, scale=2.0**40, dynamic=True).loss_scale is None  # it goes down by itself


@pytest.mark.parametrize("word", ["-eval", "-resume=latest", "-output=mine", "-dry_run", "-prof=3", "-ngpus=2"])
def test_doctor_when_a_word_would_have_no_effect_refuses_it(word, tmp_path, capsys):
    from image_classification.tools import amp_doctor

    assert amp_doctor.main(["-cfg=vit_tiny_digits", "-report", str(tmp_path / "report"), word]) == 2
    assert f"{word}: two short trainings are examined" in capsys.readouterr().err


def test_healthy_model_gets_no_advice():
    found = diagnosis(None)
    assert (found.overflow, found.underflow, found.loss_scale, found.keep_float32) == ([], [], None, [])


def test_bfloat16_needs_no_advice_where_float16_does():
    for fault in ("overflow", "underflow"):
        found = diagnosis(fault, scale=1.0, dynamic=False, dtype="bfloat16")
        assert (found.overflow, found.underflow, found.keep_float32) == ([], [], [])


def test_first_non_finite_value_is_named_in_the_order_of_execution():
    _, _, _, observer = train(classifier("overflow"), "O2", steps=2, observer=True)
    step, kind, name = observer.first_non_finite
    assert (step, name) == (0, "3")
    assert kind == "activation"


def test_first_non_finite_gradient_is_named_when_all_activations_are_finite():
    _, _, _, observer = train(classifier(), "O2", steps=1, observer=True, loss_scale=2.0**40)
    step, kind, name = observer.first_non_finite
    assert (step, kind) == (0, "gradient")
    assert name in ("5", "4")  # the end of the network is the beginning of the backward pass


def test_block_is_named_only_for_what_its_layers_do_not_explain():
    class Block(nn.Layer):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            return self.inner(x) * 1e7

    model = nn.Sequential(Block(), nn.LayerNorm(4))
    observer = Observer(model)
    model(paddle.ones([2, 4])).sum().backward()
    records = [observer.collect(model.named_parameters())]
    found = diagnose(records, observer.order, "float16", 1.0, True)
    assert found.overflow == ["0"]
    assert found.keep_float32 == ["0", "1"]


def test_block_around_a_named_layer_is_not_named():
    records = [Record.of(name, "activation", [1e6]) for name in ("block.fc", "block")]
    assert diagnose([records], ["block.fc", "block"], "float16", 1.0, True).overflow == ["block.fc"]


def test_layers_that_a_larger_scale_saves_stay_half():
    """Gradients of 2^-30 become 0 as they are; next to gradients of 2^-10 there is room for a scale of 2^24."""
    records = [Record.of("a", "gradient", [2.0**-30] * 4), Record.of("b", "gradient", [2.0**-10])]
    found = diagnose([records], ["a", "b"], "float16", 1.0, False)
    assert (found.underflow, found.loss_scale, found.keep_float32) == (["a"], 2.0**24, [])


def test_observer_counts_what_numpy_counts():
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU())
    observer = Observer(model)
    x = paddle.to_tensor(np.random.default_rng(0).standard_normal((4, 3)).astype("float32"))
    y = model(x)
    (y**2).sum().backward()
    records = {(r.name, r.kind): r for r in observer.collect(model.named_parameters())}
    observer.remove()
    assert observer.order == ["0", "1"]
    hidden, outputs = model[0](x).numpy(), y.numpy()
    assert records["0", "activation"].largest == np.abs(hidden).max()
    assert records["1", "activation"].largest == outputs.max()
    assert records["1", "input"].largest == np.abs(hidden).max()
    np.testing.assert_allclose(records["1", "gradient"].largest, (2 * outputs).max(), rtol=1e-6)
    assert records["0.weight", "parameter"].largest == np.abs(model[0].weight.grad.numpy()).max()
    assert records["1", "activation"].exponents.sum() == (outputs != 0).sum()
    assert observer.collect([]) == []  # the hooks are off


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("scale", [1.0, 2.0**10, 2.0**-10])
def test_shares_are_those_of_real_rounding(name, scale):
    """Against Paddle's own conversion; values are away from the limits by a factor of two and more."""
    random = np.random.default_rng(1)
    exponents = random.integers(-38, 20, 4000) if name == "float16" else random.integers(-120, 120, 4000)
    values = np.ldexp(random.uniform(1.1, 1.9, 4000), exponents).astype("float32")
    if name == "float16":
        values = values[(np.abs(np.log2(values * scale) - 16) > 1) & (np.abs(np.log2(values * scale) + 25) > 1)]
    record = Record.of("x", "gradient", values)
    rounded = (paddle.to_tensor(values) * scale).astype(name).astype("float32").numpy()
    number_format = FORMATS[name]
    assert record.overflow_share(number_format, scale) == pytest.approx(np.isinf(rounded).mean())
    assert record.flush_share(number_format, scale) == pytest.approx((rounded == 0).mean())


def test_limits_are_exact():
    half = FORMATS["float16"]
    assert Record.of("x", "activation", [65519.0, 1.0]).overflow_share(half) == 0
    assert Record.of("x", "activation", [65520.0, 1.0]).overflow_share(half) == 0.5
    assert Record.of("x", "activation", [float("nan"), float("inf"), 1.0, 0.0]).overflow_share(half) == 0.5
    assert Record.of("x", "gradient", [2.0**-26, 2.0**-24, 0.0]).flush_share(half) == 0.5
    assert Record.of("x", "gradient", []).flush_share(half) == 0.0


def test_records_of_steps_add_up():
    steps = [
        [Record.of("a", "gradient", [1.0, 2.0])],
        [Record.of("a", "gradient", [4.0]), Record.of("b", "input", [1.0])],
    ]
    merged = total(steps)
    assert (merged["a", "gradient"].largest, merged["a", "gradient"].count) == (4.0, 3)
    assert merged["b", "input"].count == 1


def test_command_writes_table_json_picture_and_histograms(tmp_path):
    cfg = "image_classification/ViT/configs/vit_tiny_digits.yaml"
    report = tmp_path / "report"
    words = [f"-cfg={cfg}", "-amp_mode=O2", "-amp_dtype=float16", "-steps=2", "-batch_size=8", f"-report={report}"]
    done = subprocess.run(
        [sys.executable, "tools/amp_doctor.py", *words], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads((report / "doctor.json").read_text())
    assert facts["precision"] == f"O2/float16 on cpu ({half_cpu.backend_name('float16')})"
    assert {"patch_embed.proj", "blocks.0.attn.qkv", "head"} <= {row["layer"] for row in facts["layers"]}
    assert {"patch_embed.proj.weight", "head.bias"} <= {row["parameter"] for row in facts["parameters"]}
    for row in facts["layers"]:
        assert 0 < row["largest_activation"] < 65504
    assert facts["steps"] == 2
    assert (report / "doctor.png").read_bytes().startswith(b"\x89PNG")
    assert any(path.stat().st_size > 1000 for path in report.glob("vdlrecords*"))
    assert "patch_embed.proj" in done.stdout
    assert "advice" in done.stdout


def test_advice_is_a_configuration_that_the_entry_points_take(tmp_path):
    """The first linear layer's weights are planted to overflow: the advice runs without a skipped step."""
    from image_classification.config import load_config
    from image_classification.ViT.vit import build_model

    path = ROOT / "image_classification/ViT/configs/vit_tiny_digits.yaml"
    from image_classification.tools.parts.amp_doctor_report import advice_yaml

    found = diagnosis("overflow")
    text = advice_yaml("O2", found)
    (tmp_path / "advice.yaml").write_text(f"BASE: {path}\n{text}")
    config = load_config([f"-cfg={tmp_path / 'advice.yaml'}"], build_model)
    assert yaml.safe_load(text)["AMP"]["keep_float32"] == found.keep_float32
    assert list(config.AMP.OPTIONS["keep_float32"]) == found.keep_float32
    assert config.AMP.MODE == "O2"


def test_gradients_of_an_accumulated_window_are_those_of_the_whole_batch():
    """Four micro-batches of 8 images give the gradients, and with them the advice, of one batch of 32."""
    from tools.amp_doctor import short_run

    largest = []
    for batch_size, window in ((32, 1), (8, 4)):
        config = config_of(data={"SYNTHETIC_IMAGES": 64, "BATCH_SIZE": batch_size}, train={"ACCUM_ITER": window})
        run = short_run(config, build_plain_net, 1)
        merged = total(run.records)
        largest.append({name: record.largest for (name, kind), record in merged.items() if kind == "parameter"})
    whole, accumulated = largest
    assert whole.keys() == accumulated.keys()
    for name, value in whole.items():
        assert accumulated[name] == pytest.approx(value, rel=1e-4), name  # float32 sums in another order


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-cfg=no_such_model"], "error: -cfg: no_such_model: no such file, and no model or recipe of that name"),
        (["-cfg=vit_tiny_digits", "-steps=0"], "error: argument -steps: expected an integer of at least 1, found '0'"),
        (["-cfg=vit_tiny_digits", "-step=2"], "unknown argument '-step=2'; did you mean -steps?"),
        (["-cfg=vit_tiny_digits", "-batchsize", "2"], "unknown argument '-batchsize'; did you mean -batch_size?"),
        (["-cfg=vit_tiny_digits", "-amp_mode=O2", "-opts", "AMP.hystersis=2"], "did you mean 'hysteresis'"),
        (["-cfg=vit_tiny_digits", "-amp_mode=O2", "-opts", "AMP.keep_float32=[neck]"], "the model has no layer 'neck'"),
    ],
)
def test_bad_argument_is_one_line(words, message, tmp_path, capsys):
    from tools.amp_doctor import main

    assert main([*words, f"-report={tmp_path}"]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert message in lines[0]


def test_report_of_another_examination_is_kept(tmp_path, capsys):
    from tools.amp_doctor import main

    (tmp_path / "advice.yaml").write_text("AMP: {MODE: O1}")
    assert main(["-cfg=vit_tiny_digits", "-steps=1", f"-report={tmp_path}"]) == 2
    assert f"-report: {tmp_path}: is a folder that is not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["advice.yaml"]


def test_training_that_breaks_in_float32_is_said_and_blamed_on_no_format(tmp_path, capsys):
    """A learning rate of 1e30: the second step is not finite in any format, and only the first one counts."""
    from tools.amp_doctor import main

    sick = ["TRAIN.BASE_LR=1e30", "TRAIN.WARMUP_EPOCHS=0", "TRAIN.OPTIMIZER.NAME=SGD"]
    words = ["-cfg=vit_tiny_digits", "-amp_mode=fp32", "-steps=4", "-batch_size=8", f"-report={tmp_path}"]
    assert main([*words, "-opts", *sick]) == 0
    assert "float32 itself: first inf or NaN in step 1: " in capsys.readouterr().out

    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    facts = json.loads((tmp_path / "doctor.json").read_text(), parse_constant=refuse)
    assert facts["first_non_finite_float32"]["step"] == 1
    assert facts["losses"]["float32"][-1] is None
    assert facts["diagnosis"]["overflow"] == facts["diagnosis"]["keep_float32"] == []
    assert yaml.safe_load((tmp_path / "advice.yaml").read_text()) == {"AMP": {"MODE": "auto", "DTYPE": "float16"}}


def test_parameters_whose_gradients_overflow_are_named_beside_the_activations(tmp_path, capsys):
    from tools.amp_doctor import main

    words = ["-cfg=vit_tiny_digits", "-amp_mode=O2", "-amp_dtype=float16", "-steps=1", "-batch_size=8"]
    assert main([*words, f"-report={tmp_path}", "-opts", "AMP.LOSS_SCALE=1073741824"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "overflow in float16 of activations: none" in lines
    start = "overflow in float16 at loss scale 1.07374e+09 of gradients of parameters: "
    (named,) = [line.removeprefix(start).split(", ") for line in lines if line.startswith(start)]
    rows = json.loads((tmp_path / "doctor.json").read_text())["parameters"]
    assert named == [row["parameter"] for row in rows if row["largest_gradient"] >= 65520] and "head.weight" in named
