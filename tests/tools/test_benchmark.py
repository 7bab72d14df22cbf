"""The benchmark tool: its figures from known measurements, its mistakes, and one real run."""

import itertools
import json
import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from image_classification import amp, half_cpu
from image_classification.config.schema import PRECISION_MODES
from image_classification.half_cpu import onednn
from image_classification.half_cpu.replay import RECORDED
from image_classification.half_cpu.training_replay import RECORDED as TRAINED_BY_LAYERS
from image_classification.parallel.single import SingleProcess
from image_classification.tools import benchmark
from image_classification.tools.parts import benchmark_report, benchmark_worker
from tests.helpers.small_runs import build_net, config_of, runs_of, trainer_of

MEASURED = {
    "dtype": "bfloat16", "backend": "onednn amx", "threads": 2, "batch_size": 8, "image_size": 32,
    "idle_memory_bytes": 100 * 2**20, "peak_memory_bytes": 300 * 2**20,
}  # fmt: skip


def measured(seconds, **changes):
    """Return a round of two iterations that take `seconds` each, a quarter of it backward."""
    phases = dict.fromkeys(benchmark_report.PHASES, 0.0) | {"forward": 0.75 * seconds, "backward": 0.25 * seconds}
    return MEASURED | {"iterations": [phases | {"cpu": 2 * seconds}] * 2} | changes


def rows_of(*rounds):
    rows = [benchmark_report.summary({"name": str(index), "mode": "auto"}, one) for index, one in enumerate(rounds)]
    benchmark_report.add_speedups(rows)
    return rows


def test_row_gives_rates_memory_and_phases_of_the_mean_iteration():
    (row,) = rows_of([measured(1.0), measured(3.0, peak_memory_bytes=400 * 2**20)])
    assert row["seconds_per_iteration"] == pytest.approx(2.0)
    assert row["images_per_second"] == pytest.approx(4.0) and row["iterations_per_second"] == pytest.approx(0.5)
    assert row["cpu_seconds_per_iteration"] == pytest.approx(4.0)
    assert row["spread"] == pytest.approx(0.5**0.5)  # standard deviation of 1 and 3 over their mean
    assert row["peak_memory_bytes"] == 400 * 2**20 and row["memory_above_idle_bytes"] == 300 * 2**20
    assert row["phases"]["forward"] == pytest.approx(1.5) and row["phases"]["backward"] == pytest.approx(0.5)


def test_speedup_is_the_median_of_the_ratios_within_each_round():
    # The machine is three times as slow in round 2, for both.
    slow, fast = rows_of([measured(2.0), measured(6.0), measured(2.0)], [measured(1.0), measured(3.0), measured(0.5)])
    assert slow["speedup"] == 1.0
    assert fast["speedup"] == pytest.approx(2.0) and fast["speedup_range"] == pytest.approx([2.0, 4.0])


def test_share_of_products_is_that_of_the_fastest_round_at_the_best_speed():
    rows = rows_of([measured(4.0), measured(2.0)])
    benchmark_report.add_shares(rows, {"float32": [1e9, 9e9], "bfloat16": [3e9, 4e9, 2e9]}, 5e8)  # 8 images: 1 s
    assert rows[0]["share_of_products"] == pytest.approx(0.5)


def with_machinery(scaler, optimizer):
    """Return a round of steps of a second of processor time, half a second of it on the clock."""
    phases = dict.fromkeys(benchmark_report.PHASES, 0.0) | {"scaler": scaler, "optimizer": optimizer}
    one = dict.fromkeys(benchmark_report.PHASES, 0.1) | {"cpu": 1.0, "cpu_phases": phases}
    return MEASURED | {"iterations": [one] * 2}


def test_machinery_is_what_a_precision_takes_beyond_the_optimizer_of_float32():
    names = {"fp32": ("fp32", (0.01, 0.2)), "auto": ("auto", (0.02, 0.25)), "stock": ("fp32", None)}
    measurements = [
        ({"name": name, "mode": mode}, [with_machinery(*parts) if parts else measured(1.0)])
        for name, (mode, parts) in names.items()
    ]
    rows = [benchmark_report.summary(*one) for one in measurements]
    benchmark_report.add_machinery(rows, measurements)
    assert [row.get("machinery", {}).get("share") for row in rows] == pytest.approx([0.01, 0.07, None])
    assert benchmark_report.machinery_table(rows).splitlines()[2:] == [
        "| fp32 | 10.0 | 200.0 | 0.0 | 1.0% |", "| auto | 20.0 | 250.0 | 50.0 | 7.0% |",
    ]  # fmt: skip


@pytest.mark.parametrize("words, factor", [([], 6), (["--evaluation"], 2)])
def test_products_of_a_model_are_the_published_multiply_adds(words, factor):
    """torchvision states 1.814 billion for ResNet-18; training has two gradients of each product."""
    options = benchmark.parse(["-cfg", "resnet18", *words])
    assert benchmark.products_of(options) == pytest.approx(factor * 1.814e9, rel=1e-3)


def test_products_are_those_of_the_images_that_are_measured():
    """A ViT is built for one size; that of the configuration was built, and what was measured was lost in the end."""
    small, large = (["-cfg", "vit_tiny_digits", "-image_size", size] for size in ("32", "64"))
    assert benchmark.products_of(benchmark.parse(large)) > 4 * benchmark.products_of(benchmark.parse(small)) > 0


@pytest.mark.parametrize("words, named", [
    (["--modes", "fp32,O4"], "found 'O4'"), (["--dtypes", "bf16"], "did you mean bfloat16?"),
    (["--rounds", "0"], "-rounds"),
    (["--plot", "chart.xyz"], "-plot: chart.xyz: ends in none of .png, .svg"),
    (["--plot", "chart"], "-plot: chart: ends in none of"),
    (["--json", __file__], "test_benchmark.py: exists; name another"),
])  # fmt: skip
def test_wrong_option_is_named_before_anything_is_measured(words, named, capsys, monkeypatch):
    monkeypatch.setattr(benchmark, "contestants", None)
    assert benchmark.main(words) == 2 and named in capsys.readouterr().err


def test_modes_and_formats_are_spelt_as_the_trainer_takes_them():
    options = benchmark.parse(["-modes=o1,O1,FP32", "-dtypes=BFloat16", "-peers=Eager"])
    assert (options.modes, options.dtypes, options.peers) == (("O1", "fp32"), ("bfloat16",), ("eager",))


@pytest.mark.parametrize(("word", "named"), [
    ("AMP.MODE=O2", "-opts: AMP.MODE: -modes says it: fp32, found O2"), ("AMP=True", "AMP.MODE: -modes says it"),
    ("AMP={MODE: auto, DTYPE: float16}", "AMP.MODE: -modes says it"), ("DEVICE=gpu", "DEVICE: -device says it: auto"),
    ("DATA.BATCH_SIZE=64", "DATA.BATCH_SIZE: -batch_size says it: 8, found 64"),
    ("DATA.DATASET=digits", "DATA.DATASET: -data says it: synthetic, found digits"),
    ("OUTPUT=out", "-output=out: steps are measured"), ("MODEL.RESUME=latest", "-resume=latest: steps are measured"),
    ("EVAL=True", "-eval: steps are measured"), ("DRY_RUN=True", "-dry_run: steps are measured"),
])  # fmt: skip
def test_option_that_would_make_rows_of_something_else_is_refused_before_anything_is_measured(
    word, named, capsys, monkeypatch
):
    monkeypatch.setattr(benchmark, "run_rounds", None)
    assert benchmark.main(["-cfg=vit_tiny_digits", "-modes=fp32,auto", "-opts", word]) == 2
    error = capsys.readouterr().err
    assert named in error and error.count("\n") == 1


def test_option_of_the_precision_goes_to_the_modes_that_have_it():
    words = ["-cfg=vit_tiny_digits", "-modes=fp32,auto,naive", "-opts"]
    words += ["AMP.INIT_LOSS_SCALING=8", "AMP.CLIP_GRAD_NORM=1"]
    tasks = [json.loads(entry["program"][-1]) for entry in benchmark.contestants(benchmark.parse(words))]
    assert [task["opts"] for task in tasks] == [[], words[3:4], words[3:]]


def test_option_of_the_precision_that_no_mode_has_is_refused_before_anything_is_measured(capsys, monkeypatch):
    monkeypatch.setattr(benchmark, "run_rounds", None)
    assert benchmark.main(["-cfg=vit_tiny_digits", "-modes=fp32,auto", "-opts", "AMP.CLIP_GRAD_NORM=1"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: -opts: AMP.CLIP_GRAD_NORM=1: precision mode auto has no option")
    assert "init_scale" in error and error.count("\n") == 1


def test_unknown_variant_is_one_line_and_no_warning_of_paddle_beside_it():
    words = [sys.executable, benchmark.__file__, "-cfg", "vit_enormous", "--modes", "fp32", "--rounds", "1"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("error: -cfg: vit_enormous: ")


def test_modes_get_the_environment_of_the_user_and_nothing_that_this_process_sets_for_itself():
    program = ("import os; from image_classification.tools import benchmark; before = dict(os.environ)\n"
               "options = benchmark.parse(['-cfg=vit_tiny_digits', '-modes=fp32'])\n"
               "assert [entry['environment'] for entry in benchmark.contestants(options)] == [before]")  # fmt: skip
    bare = {name: value for name, value in os.environ.items() if name not in benchmark.OUR_SETTINGS}
    done = subprocess.run([sys.executable, "-c", program], env=bare, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_stock_paddle_gets_none_of_our_settings(monkeypatch):
    for name in benchmark.OUR_SETTINGS:
        monkeypatch.setenv(name, "9")
    monkeypatch.setattr(benchmark, "torch_peers", lambda *arguments: [])
    options = benchmark.parse(["--peers", "--threads", "1"])
    installed, given = benchmark.contestants(options)[-2:]
    assert not set(benchmark.OUR_SETTINGS) & set(installed["environment"])
    assert {name: given["environment"].get(name) for name in benchmark.OUR_SETTINGS} == {
        "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": None, "MKL_DEBUG_CPU_TYPE": None,
        "MKL_CBWR": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--modes auto --peers", ["auto bfloat16", "PyTorch bfloat16"]),
        ("--modes auto,auto --dtypes bfloat16,bfloat16 --peers eager,eager", ["auto bfloat16", "PyTorch bfloat16"]),
        ("--modes auto --peers eager,compiled", ["auto bfloat16", "PyTorch bfloat16", "PyTorch compiled bfloat16"]),
        ("--modes auto --evaluation --peers onnxruntime,openvino",
         ["auto bfloat16", "ONNX Runtime float32", "OpenVINO bfloat16"]),
        ("--modes fp32 --peers", ["fp32", "stock Paddle, as installed", "stock Paddle, 1 threads", "PyTorch float32",
                                  "PyTorch bfloat16"]),
    ],
)  # fmt: skip
def test_peers_are_measured_in_the_formats_of_the_modes(words, expected):
    """What has no bfloat16 on a CPU stands for itself in float32.."""
    options = benchmark.parse([*words.split(), "--peer-python", shutil.which("true"), "--threads", "1"])
    assert [entry["name"] for entry in benchmark.contestants(options)] == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--peers", "tensorrt"], "-peers: expected one of eager, compiled, onnxruntime, openvino, found 'tensorrt'"),
        (["--peers", "openvino"], "-peers: openvino does not train: add -evaluation"),
    ],
)
def test_peer_that_cannot_be_measured_is_one_line(words, message, capsys):
    assert benchmark.main(words) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("path", "reason"), [
    ("/nope", "No such file or directory"), (shutil.which("false"), "ends with exit code 1"),
])  # fmt: skip
def test_python_of_the_peers_that_was_named_and_does_not_run_them_is_refused_before_anything_is_measured(
    path, reason, capsys, monkeypatch
):
    monkeypatch.setattr(benchmark, "run_rounds", None)
    assert benchmark.main(["-cfg=vit_tiny_digits", "-modes=fp32", "-peers", f"-peer_python={path}"]) == 2
    assert capsys.readouterr().err == f"error: -peer_python: {path}: does not run PyTorch + timm: {reason}\n"


def test_own_python_without_the_peers_is_a_note(capsys, monkeypatch):
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    entries = benchmark.contestants(benchmark.parse(["-cfg=vit_tiny_digits", "-modes=auto", "-peers"]))
    assert [entry["name"] for entry in entries] == ["auto bfloat16"]
    note = f"PyTorch + timm: not measured, {sys.executable} does not run them (ends with exit code 1)\n"
    assert capsys.readouterr().err == note


def test_stock_paddle_runs_paddles_own_operators(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    words = ["-cfg", "resnet_tiny_digits", "--modes", "fp32", "--iterations", "1", "--peers"]
    monkeypatch.setattr(benchmark, "torch_peers", lambda *arguments: [])
    backends = {}
    for entry in benchmark.contestants(benchmark.parse(words))[:2]:
        done = subprocess.run(
            list(map(str, entry["program"])), env=entry["environment"], capture_output=True, text=True, check=True
        )
        backends[entry["name"]] = json.loads(done.stdout.splitlines()[-1])["backend"]
    assert backends == {"fp32": half_cpu.backend_name("float32"), "stock Paddle, as installed": "paddle"}


def test_support_matrix_names_every_mode():
    words = [sys.executable, benchmark.__file__, "--support-matrix"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert all(f"| {mode} |" in done.stdout for mode in PRECISION_MODES)
    assert done.stderr == ""


def test_run_prints_a_table_and_writes_json_and_a_chart(tmp_path):
    json_path, chart = tmp_path / "rows.json", tmp_path / "chart.png"
    done = subprocess.run(
        [
            sys.executable, benchmark.__file__, "-cfg", "resnet_tiny_digits", "--modes", "fp32,auto", "--rounds", "1",
            "--iterations", "1", "--threads", "1", "--json", str(json_path), "--plot", str(chart),
        ],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "| auto bfloat16 |" in done.stdout and "resnet_tiny_digits, training, batch 8, 16 pixels" in done.stdout
    assert "matrix products alone" in done.stdout and "check, scaler, masters" in done.stdout
    content = json.loads(json_path.read_text())
    speeds = content["machine"]["products_per_second"]
    assert {name: len(rounds) for name, rounds in speeds.items()} == {"float32": 1, "bfloat16": 1}
    assert [row["mode"] for row in content["rows"]] == ["fp32", "auto"]
    assert {"mode", "dtype", "backend", "images_per_second", "iterations_per_second", "seconds_per_iteration",
            "peak_memory_bytes", "phases"} <= set(content["rows"][0])  # fmt: skip
    assert all(0 < row["share_of_products"] < 1.5 for row in content["rows"])
    assert content["machine"]["cores"] > 0
    assert chart.read_bytes().startswith(b"\x89PNG")


def test_table_of_rounds_is_that_of_paddlevits_page():
    rows = rows_of([measured(0.78), measured(0.80)], [measured(0.42)])
    assert benchmark_report.rounds_table(rows).splitlines() == [
        "| s for 100 iterations | 1 | 2 | average | speed-up |",
        "| --- | --: | --: | --: | --: |",
        "| 0 | 78.00 | 80.00 | 79.00 | 1.000 |",
        "| 1 | 42.00 |  | 42.00 | 1.857 |",
    ]


@pytest.mark.skipif(not onednn.available(), reason="passes are recorded where kernels compute")
@pytest.mark.parametrize("layers", [False, True])
def test_evaluation_is_measured_layer_by_layer_where_it_is_asked_for(layers):
    parts = SimpleNamespace(
        model=build_net(), precision=amp.build_precision("fp32"), parallel=SingleProcess(), device="cpu"
    )
    runs = runs_of(parts.model.fc)
    images = np.zeros([2, 3, 8, 8], "float32")
    benchmark_worker.measure_evaluation(parts, itertools.repeat((images, None)), 2, layers)
    assert len(runs) == (benchmark_worker.WARMUP_ITERATIONS + 2 if layers else RECORDED + 1)


@pytest.mark.skipif(not onednn.available(), reason="passes are recorded where kernels compute")
@pytest.mark.parametrize("layers", [False, True])
def test_training_is_measured_layer_by_layer_where_it_is_asked_for(layers):
    trainer = trainer_of(config_of())
    runs = runs_of(trainer.model)
    batches = itertools.repeat((np.zeros([4, 3, 8, 8], "float32"), np.zeros([4], "int64")))
    benchmark_worker.measure_training(trainer, batches, 2, layers)
    assert len(runs) == (benchmark_worker.WARMUP_ITERATIONS + 2 if layers else TRAINED_BY_LAYERS + 1)


def test_training_is_measured_as_it_runs():
    """A step of the optimizer's own would switch off the kernels that write half weights with their masters."""
    trainer = trainer_of(config_of(amp={"MODE": "O2", "DTYPE": "bfloat16"}))
    expected = half_cpu.writes_weights_last(trainer.optimizer)
    batches = itertools.repeat((np.zeros([4, 3, 8, 8], "float32"), np.zeros([4], "int64")))
    (iteration,) = benchmark_worker.measure_training(trainer, batches, 1)
    assert iteration["optimizer"] > 0
    assert expected and half_cpu.writes_weights_last(trainer.optimizer)


def steps_of(scale, count, monkeypatch, most=40):
    """Return the measured steps of float16 that begin at a loss scale."""
    monkeypatch.setattr(benchmark_worker, "MOST_WARMUP_ITERATIONS", most)
    trainer = trainer_of(config_of(amp={"MODE": "auto", "DTYPE": "float16", "INIT_SCALE": scale}))
    batches = itertools.repeat((np.ones([4, 3, 8, 8], "float32"), np.zeros([4], "int64")))
    return benchmark_worker.measure_training(trainer, batches, count)


def test_training_is_measured_once_the_loss_scale_lets_a_step_through(monkeypatch):
    """A step that is skipped has no optimizer, so a format that skips them would look fast."""
    assert not any(one["skipped"] or not one["optimizer"] for one in steps_of(2.0**30, 2, monkeypatch))


def test_steps_that_are_skipped_all_the_same_are_counted_and_named(monkeypatch):
    iterations = steps_of(2.0**60, 2, monkeypatch, most=10)
    (row,) = rows_of([MEASURED | {"iterations": iterations}])
    line = "0: 2 of 2 steps were skipped, without the time of an optimizer: a gradient was not finite"
    assert benchmark_report.describe_skipped([row]) == line
    assert benchmark_report.describe_skipped(rows_of([measured(1.0)])) == ""
