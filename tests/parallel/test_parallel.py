"""Data, tensor, pipeline and hybrid parallel training in real processes against one process with the whole batch."""

import pytest

from image_classification import half_cpu
from image_classification.half_cpu.replay import RECORDED
from image_classification.half_cpu.training_replay import RECORDED as TRAINED_BY_LAYERS

from .conftest import WORKER
from .harness import ProcessFailed, run_ranks

PARITY_FP32 = {
    2: ("dp2", "tp2", "pp2", "sh2"),
    4: ("dp4", "tp4", "pp4", "dp2tp2", "dp2pp2", "tp2pp2", "dp2sh2"),
    8: ("dp2tp2pp2",),
}
PARITY_HALF = {
    2: ("dp2:auto:bfloat16", "tp2:auto:float16", "sh2:auto:float16", "dp2:O2:float16", "tp2:naive:bfloat16",
        "pp2:naive:float16"),
    4: ("dp2tp2:auto:bfloat16", "dp2pp2:naive:float16", "tp2pp2:naive:bfloat16"),
    8: ("dp2tp2pp2:naive:float16",),
}  # fmt: skip
PLANTED = {
    2: ("dp2:fp32", "dp2:auto:float16", "dp2:O1:float16", "dp2:O2:float16", "dp2:O3:bfloat16", "dp2:naive:float16",
        "tp2:fp32", "tp2:auto:float16", "tp2:auto:bfloat16", "tp2:naive:float16", "pp2:fp32", "pp2:naive:float16",
        "pp2:naive:bfloat16", "sh2:fp32", "sh2:auto:float16"),
    4: ("dp4:auto:float16", "tp4:auto:float16", "pp4:naive:float16", "dp2tp2:auto:float16", "dp2pp2:naive:float16",
        "tp2pp2:naive:float16", "dp2sh2:auto:float16"),
    8: ("dp2tp2pp2:naive:float16",),
}  # fmt: skip
MOVES = {
    2: ("dp2:tp2:fp32", "tp2:pp2:fp32", "pp2:sh2:fp32", "sh2:one:fp32", "tp2:dp2:auto:float16",
        "tp2:one:naive:bfloat16"),
    4: ("tp4:dp2tp2:fp32", "dp2tp2:one:fp32", "dp2pp2:tp2pp2:naive:float16", "tp4:dp2sh2:fp32", "dp2sh2:one:fp32"),
    8: ("dp2tp2pp2:one:fp32",),
}  # fmt: skip
RESNET = ("dp2:fp32:", "pp2:fp32:", "pp2:naive:bfloat16")
STAND_ALONE = [f"{topology}:{api}" for topology in ("dp2", "tp2") for api in ("initialize", "convert")]
LAYERS = ("attention", "attention_without_bias", "mlp", "block", "normed_attention", "gated_mlp")

SLOW = pytest.mark.slow
# Losses over some steps of AdamW may differ by the rounding of activations: half a unit in the last place, of 1.
ROUNDING = {"float16": 2**-11, "bfloat16": 2**-8}


def is_slow(size, name):
    """Eight processes, and four where one kind of parallelism does what two of them show."""
    return size == 8 or name.partition(":")[0] in ("dp4", "tp4", "pp4")


def by_size(names):
    return [
        pytest.param(size, name, marks=SLOW if is_slow(size, name) else (), id=f"{name}".replace(":", "-"))
        for size, group in names.items()
        for name in group
    ]


@pytest.mark.check("checks_parity:parity:{topology}")
@pytest.mark.parametrize(("size", "topology"), by_size(PARITY_FP32))
def test_float32_training_equals_plain_paddle_in_one_process(results, size, topology):
    result = results[0]
    assert result["loss"] <= 1e-5
    assert result["norm"] <= 1e-5
    # Adam divides by the root of the second moment: where a gradient is almost 0 its rounding moves the weight.
    # Measured: 2e-6.
    assert result["weights"] <= 2e-5


@pytest.mark.check("checks_parity:parity:{name}")
@pytest.mark.parametrize(("size", "name"), by_size(PARITY_HALF))
def test_half_precision_training_equals_one_process_within_rounding(results, size, name):
    result = results[0]
    rounding = ROUNDING[name.rsplit(":", 1)[1]]
    assert result["loss"] <= rounding
    assert result["norm"] <= 4 * rounding


@pytest.mark.check("checks_beside:beside:{name}", size=2)
@pytest.mark.parametrize("name", ["tp2", "pp2", "pp2:naive:bfloat16"])
def test_teacher_frozen_weights_evaluation_and_counts_are_those_of_one_process(results, name):
    # logits around 1; float32 products in another order, half activations travel as they are
    for difference, facts, expected in results:
        assert difference <= ROUNDING.get(name.rpartition(":")[2], 1e-5)
        assert facts == expected
        assert facts[1:] == [1, 33, True] or "naive" in name  # 32 weights and a bias


@pytest.mark.check("checks_parity:rounding:tp2:{mode}", size=2)
@pytest.mark.parametrize("mode", ["auto", "naive"])
def test_gradients_of_shared_layers_in_bfloat16_are_as_close_to_float32_as_whole_ones(results, mode):
    # Two partial sums are rounded and their sum again, where one process rounds once; but that is two products of a
    # block each way among many other roundings, and a shared bias is added in float32. Measured: 0.92 and 0.97.
    assert results[0] <= 1.15


@pytest.mark.check("checks_parity:parity:{name}:resnet", size=2)
@pytest.mark.parametrize("name", RESNET)
def test_resnet_with_batch_norm_equals_one_process(results, name):
    # In stages both sides run the same micro-batches and half activations travel as they are. What is left is clipping
    # by a norm that is added in another order, after which single weights are rounded the other way.
    result = results[0]
    rounding = ROUNDING.get(name.rsplit(":", 1)[1], 1e-5)
    assert result["loss"] <= rounding
    assert result["norm"] <= 4 * rounding


@pytest.mark.check("checks_finite:planted:{name}")
@pytest.mark.parametrize(("size", "name"), by_size(PLANTED))
def test_planted_inf_and_nan_on_one_process_skip_the_step_on_all(results, size, name):
    assert results == [[]] * size


@pytest.mark.check("checks_finite:stand_alone:{name}:{value}", size=2)
@pytest.mark.parametrize("value", ["inf", "nan"])
@pytest.mark.parametrize("name", STAND_ALONE)
def test_scaler_with_explicit_clipping_in_a_users_loop_skips_on_all(results, name, value):
    for result in results:
        # skipped before clipping saw a norm, at half the first scale; then applied
        assert result["outcome"] == [[False, False, 2.0**15], [True, True, 2.0**15]]
        assert result["replicas"] == 1


@pytest.mark.check("checks_finite:stand_alone:tp2:{api}:inf:alone", size=2)
@pytest.mark.parametrize("api", ["initialize", "convert"])
def test_scaler_in_a_users_loop_without_reduction_skips_on_one_alone(results, api):
    _, applied, scales = zip(*(result["outcome"][0] for result in results), strict=True)
    assert applied == (True, False)
    assert scales == (2.0**16, 2.0**15)


@pytest.mark.check("checks_checkpoint:move:{name}")
@pytest.mark.parametrize(("size", "name"), by_size(MOVES))
def test_state_saved_under_one_topology_continues_under_another(results, size, name):
    losses, averages = results[0]
    assert losses <= ROUNDING.get(name.rsplit(":", 1)[1], 1e-5)
    if name.endswith("fp32"):
        assert averages <= 2e-4  # for the reason of test_float32_training_...


@pytest.mark.parametrize("topology", ["tp2", pytest.param("dp2", marks=pytest.mark.slow)])
def test_without_the_common_decision_processes_lose_each_other(tmp_path, topology):
    # The one with the planted value skips and ends; the other one waits for it in the next collective.
    with pytest.raises(ProcessFailed, match="PeerLost: rank 1"):
        run_ranks(WORKER, 2, tmp_path, f"checks_finite:decided_alone:{topology}", timeout=180)


@pytest.mark.check("checks_layers:tensor_layer:tp{size}:{kind}")
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("kind", LAYERS)
def test_shared_layer_has_outputs_and_gradients_of_the_whole_layer(results, size, kind):
    for errors in results:
        assert {name: error for name, error in errors.items() if error > 1e-6} == {}


@pytest.mark.check("checks_layers:sync_batch_norm{kind}")
@pytest.mark.parametrize(("size", "kind"), [(2, ""), (2, ":uneven"), (3, ""), (3, ":uneven"), (3, ":empty")])
def test_sync_batch_norm_equals_one_process_with_the_whole_batch(results, size, kind):
    # The images lie around 100, where neighbouring float32 values are 8e-6 apart.
    for errors in results:
        assert {name: error for name, error in errors.items() if error > 5e-5} == {}


@pytest.mark.check("checks_layers:collectives")
@pytest.mark.parametrize("size", [2, 3])
def test_collectives_are_right_in_every_format(results, size):
    # gloo's own float16 sum is inf for every value that is not zero
    total, numbers = size * (size + 1) / 2, [float(rank + 1) for rank in range(size)]
    for result in results:
        for dtype, answers in result["answers"].items():
            assert answers == [[total, 10.0 * size], [float(size), 10.0], numbers, [float(size), 10.0]], dtype
        assert result["vote"] == [size - 1, 5]
        assert result["objects"] == [{"rank": rank} for rank in range(size)]


@pytest.mark.check("checks_layers:reduction:dp2", size=2)
def test_averaged_gradients_are_the_mean_in_every_format(results):
    for result in results:
        for name in ("float32", "float16", "bfloat16", "on one rank only", "norm"):
            assert result[name] == 0, name
        assert result["stays without"]
        assert result["zeros"] == 1
        assert result["no overflow"] == pytest.approx(1, rel=1e-6)


@pytest.mark.check("checks_layers:gate", size=2)
def test_gate_waits_for_the_last_and_survives_signals(results):
    seconds, signals = results[0]
    assert seconds >= 0.4
    assert signals > 0


@pytest.mark.check("checks_statistics:means:dp{size}")
@pytest.mark.parametrize("size", [2, 3])
def test_running_statistics_are_averaged_and_weights_left_alone(results, size):
    for rank, (mean, weight, same) in enumerate(results):
        assert mean == [(size + 1) / 2, 5.0 * (size + 1)]
        assert weight == [5.0 * (rank + 1)] * 2
        assert same == [True, True]  # a frozen weight, a statistic that is the same everywhere


@pytest.mark.check("checks_statistics:evaluated_and_saved:dp2:{average}", size=2)
@pytest.mark.parametrize("average", ["ema", "none"])
def test_checkpoint_of_replicas_holds_the_statistics_that_were_evaluated(results, average):
    for together, alone in results:
        assert together == pytest.approx(alone, rel=1e-6)  # a batch of another size may be summed in another order


@pytest.mark.check("checks_statistics:resumed:{topology}:{mode}")
@pytest.mark.parametrize(
    ("size", "topology", "mode"),
    [(2, "dp2", ""), (2, "sh2", ""), (2, "dp2", "naive"), (4, "dp2pp2", "")],
)
def test_run_goes_on_with_the_statistics_of_its_checkpoint(results, size, topology, mode):
    assert results == [[]] * size


@pytest.mark.check("checks_statistics:train_lines:{topology}")
@pytest.mark.parametrize(("size", "topology"), [(2, "dp2"), (2, "sh2"), (4, "dp2tp2")])
def test_train_lines_are_those_of_all_replicas_images(results, size, topology):
    together, resumed, alone = results[0]
    assert [step for step, *_ in together] == [2, 4, 6, 8, 10, 12]
    for line, expected, again in zip(together, alone, resumed, strict=True):
        assert line == pytest.approx(expected, rel=1e-5)  # a batch of another size may be summed in another order
        assert line == pytest.approx(again, rel=1e-6)


@pytest.mark.check("checks_statistics:frozen:dp{size}:{kind}")
@pytest.mark.parametrize(("size", "kind"), [(2, ""), (3, ""), (2, "sync_bn")])
def test_frozen_tensors_of_replicas_and_of_their_average_keep_their_bits(results, size, kind):
    assert results == [[]] * size


LAYERS = RECORDED + 1  # the runs of the layers for a shape: once to record
STEPS = {"dp2": TRAINED_BY_LAYERS + 1, "tp2": 6}  # what is recorded is compared with the layers as well
RUNS = {"dp2": [8] * LAYERS + [16] * LAYERS, "tp2": [16] * 6}


@pytest.mark.skipif(half_cpu.backend_name("bfloat16") == "reference", reason="where kernels compute")
@pytest.mark.parametrize(("topology", "runs"), RUNS.items(), ids=RUNS)
@pytest.mark.check("checks_layers:replayed:{topology}", size=2)
def test_evaluation_is_replayed_where_no_layer_is_shared(results, topology, runs):
    """Each batch needs the other processes where one is: their messages are not recorded."""
    assert results == [[runs, True]] * 2


@pytest.mark.skipif(half_cpu.backend_name("bfloat16") == "reference", reason="where kernels compute")
@pytest.mark.parametrize(("topology", "runs"), STEPS.items(), ids=STEPS)
@pytest.mark.check("checks_layers:trained:{topology}", size=2)
def test_training_is_replayed_where_no_layer_is_shared(results, topology, runs):
    assert results == [[runs, True]] * 2


@pytest.mark.check("checks_layers:trained:dp2:True", size=2)
def test_training_is_not_replayed_where_statistics_are_those_of_all(results):
    assert results == [[6, True]] * 2


@pytest.mark.check("checks_layers:dropout:{topology}")
@pytest.mark.parametrize(("size", "topology"), [(2, "pp2"), (4, "dp2tp2")])
def test_dropout_agrees_where_tensors_are_whole_and_differs_where_they_are_shared(results, size, topology):
    for facts in results:
        assert all(facts.values()), facts
