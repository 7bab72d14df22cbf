"""The loss scale against published sequences: `O` is a step with inf or NaN, `.` a clean one."""

import json
import logging
import math
from pathlib import Path
from random import Random

import pytest

from image_classification.amp import LossScaler
from image_classification.amp.scaler import RULES

VECTORS = json.loads((Path(__file__).with_name("vectors.json")).read_text())["vectors"]
RULE_NAMES = {"naive_gen0": "naive", "hysteresis_refill_on_clean": "nemo"}
PARAMETER_NAMES = {
    "init": "init_scale",
    "g": "growth_factor",
    "f": "growth_factor",
    "b": "backoff_factor",
    "n": "growth_interval",
    "h": "hysteresis",
    "m": "consecutive",
    "mn": "min_scale",
    "mx": "max_scale",
}


def run(scaler, pattern):
    """Return the scale after each character of the pattern."""
    scales = []
    for character in pattern:
        scaler.update(character == "O")
        scales.append(scaler.scale)
    return scales


def expand(runs):
    return [value for value, count in runs for _ in range(count)]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: f"{vector['rule']}-{vector['name']}")
def test_scaler_follows_published_sequence(vector):
    options = {PARAMETER_NAMES[name]: value for name, value in vector["params"].items()}
    scaler = LossScaler(RULE_NAMES.get(vector["rule"], vector["rule"]), **options)
    assert scaler.scale == vector["start"]
    assert run(scaler, "".join(expand(vector["pattern_rle"]))) == expand(vector["after_rle"])


MIXED = "O.O....OO....O"
TORCH_SEQUENCE = [512, 512, 256, 256, 256, 256, 512, 256, 128, 128, 128, 128, 256, 128]
NAIVE_SEQUENCE = [1024, 1024, 512, 512, 512, 512, 1024, 1024, 512, 512, 512, 512, 1024, 1024]
REFILL_SEQUENCE = [1024, 1024, 1024, 1024, 1024, 1024, 2048, 2048, 1024, 1024, 1024, 1024, 2048, 2048]


@pytest.mark.parametrize(
    ("rule", "options", "expected"),
    [
        ("torch", {}, TORCH_SEQUENCE),
        ("apex", {}, TORCH_SEQUENCE),
        ("paddle", {}, TORCH_SEQUENCE),
        ("paddle", {"consecutive": 2}, REFILL_SEQUENCE),
        ("naive", {}, NAIVE_SEQUENCE),
        ("naive_gen1", {}, NAIVE_SEQUENCE),
        ("megatron", {}, NAIVE_SEQUENCE),
        ("nemo", {}, REFILL_SEQUENCE),
    ],
)
def test_rules_differ_on_one_pattern_as_their_originals_do(rule, options, expected):
    scaler = LossScaler(rule, init_scale=1024, growth_interval=4, **options)
    assert run(scaler, MIXED) == expected


def test_paddle_counts_consecutive_bad_steps_anew_after_a_back_off_and_nemo_does_not():
    assert run(LossScaler("paddle", init_scale=8, consecutive=2), "OOOO") == [8, 4, 4, 2]
    assert run(LossScaler("nemo", init_scale=8, hysteresis=2), "OOOO") == [8, 4, 2, 1]


def megatron_lm(pattern, scale, interval, hysteresis, least=1.0):
    """Megatron-LM's DynamicGradScaler: tolerated bad steps come back with a growth only, whether the scale is high or
    low by then."""
    growth, tolerated = 0, hysteresis
    for character in pattern:
        growth += 1
        if character == "O":
            growth, tolerated = 0, tolerated - 1
            scale = max(scale / 2, least) if tolerated <= 0 else scale
        elif growth == interval:
            growth, tolerated, scale = 0, hysteresis, scale * 2
        yield scale


def nemo(pattern, scale, interval, hysteresis):
    """What apex's update_scale_hysteresis makes of NeMo's numbers: they come back with each clean step."""
    growth, tolerated = 0, hysteresis
    for character in pattern:
        if character == "O":
            growth, tolerated = 0, tolerated - 1
            scale = scale / 2 if tolerated <= 0 else scale
        else:
            growth, tolerated = growth + 1, hysteresis
            if growth == interval:
                growth, scale = 0, scale * 2
        yield scale


def paddle_amp(pattern, scale, interval, patience):
    """Paddle's GradScaler: bad steps in a row, counted anew after each back-off."""
    good = bad = 0
    for character in pattern:
        good, bad = (0, bad + 1) if character == "O" else (good + 1, 0)
        if bad == patience:
            bad, scale = 0, scale / 2
        if good == interval:
            good, scale = 0, scale * 2
        yield scale


@pytest.mark.parametrize("share", [0.05, 0.2, 0.4])
@pytest.mark.parametrize(("rule", "model"), [("megatron", megatron_lm), ("nemo", nemo), ("paddle", paddle_amp)])
def test_long_random_sequence_is_that_of_the_original(rule, model, share):
    random = Random(share)
    for patience in (1, 2, 3):
        # As many growths as back-offs, so that the scale stays between the bounds of ours.
        interval = max(2, round(patience / share / 2))
        scaler = LossScaler(rule, init_scale=2.0**10, growth_interval=interval, hysteresis=patience)
        pattern = "".join(random.choices("O.", (share, 1 - share), k=5000))
        expected = list(model(pattern, 2.0**10, interval, patience))
        count = next((i for i, scale in enumerate(expected) if not 2.0**-24 < scale < 2.0**127), len(expected))
        assert run(scaler, pattern)[:count] == expected[:count]
        assert count > 50


@pytest.mark.parametrize(
    ("pattern", "last"),
    [
        ("OOO", [2**32, 2**31, 2**30]),
        ("OOO" + "." * 999, [2**30]),
        ("OOO" + "." * 1000, [2**31]),
        ("OOO" + "." * 1000 + "OO", [2**31, 2**31, 2**30]),
        ("O" + "." * 999 + "O", [2**32, 2**31]),
        ("O" + "." * 1000 + "O", [2**32, 2**32]),
        ("O" * 31, [4]),
        ("O" * 40, [2, 1, 1, 1, 1, 1, 1, 1, 1]),
        ("." * 3000, [2**32]),
    ],
)
def test_naive_defaults(pattern, last):
    assert run(LossScaler("naive"), pattern)[-len(last) :] == last


@pytest.mark.parametrize(
    ("rule", "options", "pattern", "expected"),
    [
        ("naive", {"init_scale": 4, "hysteresis": 1, "min_scale": 1}, "OOOO", [2, 1, 1, 1]),
        ("naive_gen1", {"init_scale": 4, "hysteresis": 1}, "OOOO", [2, 1, 0.5, 0.25]),
        ("naive_gen1", {"init_scale": 4, "hysteresis": 0}, "OO", [2, 1]),
        ("naive", {"init_scale": 2, "max_scale": 3, "growth_interval": 1}, "...", [4, 4, 4]),
        ("naive_gen1", {"init_scale": 2, "max_scale": 3, "growth_interval": 1}, "...", [3, 3, 3]),
        (
            "naive_gen1",
            {"init_scale": 4096, "hysteresis": 3, "growth_interval": 3},
            "OO.O.O...OOO",
            [4096, 4096, 4096, 2048, 2048, 1024, 1024, 1024, 2048, 2048, 2048, 1024],
        ),
        ("apex", {"max_scale": 1024}, "O", [512]),
        ("apex", {"min_scale": 128}, "O" * 12, [32768, 16384, 8192, 4096, 2048, 1024, 512, 256, 128, 128, 128, 128]),
        ("apex", {"min_scale": 0}, "OO", [32768, 16384]),
        ("paddle", {"init_scale": 1024}, "OO", [512, 256]),
    ],
)
def test_bounds(rule, options, pattern, expected):
    assert run(LossScaler(rule, **options), pattern) == expected


def test_apex_grows_to_its_ceiling():
    scales = run(LossScaler("apex"), "." * 20000)
    assert [scales[i - 1] for i in (1999, 2000, 4000, 16000, 20000)] == [2**16, 2**17, 2**18, 2**24, 2**24]


def test_torch_defaults():
    scales = run(LossScaler("torch"), "O" + "." * 3999 + "O" + "." * 2000)
    assert [scales[i] for i in (0, 1999, 2000, 3999)] == [2**15, 2**15, 2**16, 2**16]
    assert [scales[i] for i in (4000, 5999, 6000)] == [2**15, 2**15, 2**16]


def test_naive_gen1_without_ceiling_passes_its_start():
    assert run(LossScaler("naive_gen1", init_scale=2**32), "O" + "." * 1000)[-1] == 2**33


@pytest.mark.parametrize("rule", RULES)
def test_scale_is_never_zero_or_infinite(rule):
    scaler = LossScaler(rule, growth_interval=1)
    lows, highs = run(scaler, "O" * 3000), run(scaler, "." * 3000)
    assert min(lows) >= 2.0**-24
    assert math.isfinite(max(highs))


def test_growth_stops_at_the_last_power_of_two_of_float32():
    assert run(LossScaler("torch", init_scale=2.0**127, growth_interval=1), ".") == [2.0**127]


@pytest.mark.parametrize("rule", RULES)
def test_static_scale_never_moves(rule):
    assert set(run(LossScaler(rule, init_scale=128, dynamic=False), "OO..O")) == {128}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("cut", [0, 1, 3, 8, 13])
def test_state_round_trip_at_any_step_continues_alike(rule, cut):
    options = {"init_scale": 1024, "growth_interval": 4, "hysteresis": 2}
    pattern = MIXED + "..OO.O..O"
    saved, whole = LossScaler(rule, **options), LossScaler(rule, **options)
    run(saved, pattern[:cut])
    resumed = LossScaler(rule, **options)
    resumed.load_state_dict(json.loads(json.dumps(saved.state_dict())))
    assert run(resumed, pattern[cut:]) == run(whole, pattern)[cut:]


def test_resume_one_step_before_growth_grows_on_the_next_step():
    scaler = LossScaler("apex")
    run(scaler, "." * 1999)
    resumed = LossScaler("apex")
    resumed.load_state_dict(scaler.state_dict())
    assert run(resumed, ".") == [2**17]


def test_state_of_another_rule_keeps_the_scale_and_says_so(caplog):
    other = LossScaler("torch", init_scale=4096, growth_interval=10)
    run(other, "." * 9)
    scaler = LossScaler("naive", growth_interval=10)
    with caplog.at_level(logging.WARNING):
        scaler.load_state_dict(other.state_dict())
    assert "4096 taken from a torch scaler" in caplog.text
    assert run(scaler, "." * 10) == [4096] * 9 + [8192]


def test_state_outside_the_bounds_is_moved_to_the_bound_and_says_so(caplog):
    other = LossScaler("apex", init_scale=2.0**20)
    scaler = LossScaler("apex", max_scale=1024)
    with caplog.at_level(logging.WARNING):
        scaler.load_state_dict(other.state_dict())
    assert scaler.scale == 1024
    assert "outside the bounds" in caplog.text


def test_static_scaler_keeps_its_scale_when_a_state_is_loaded(caplog):
    scaler = LossScaler("apex", init_scale=128, dynamic=False)
    with caplog.at_level(logging.WARNING):
        scaler.load_state_dict(LossScaler("apex").state_dict())
    assert scaler.scale == 128
    assert "static 128" in caplog.text


@pytest.mark.parametrize("state", [{}, {"scale": 4.0}, {**LossScaler().state_dict(), "scale": float("inf")}])
def test_foreign_state_is_refused(state):
    with pytest.raises(ValueError, match="loss scale"):
        LossScaler().load_state_dict(state)


@pytest.mark.parametrize(
    ("rule", "options", "message"),
    [
        ("apx", {}, "unknown scaler rule 'apx'"),
        ("torch", {"init_scale": 0}, "init_scale must be a finite number above 0"),
        ("torch", {"init_scale": -1.0}, "init_scale must be a finite number above 0"),
        ("torch", {"init_scale": float("nan")}, "init_scale must be a finite number above 0"),
        ("torch", {"init_scale": 2.0**128}, "between 2\\^-24 and 2\\^127"),
        ("torch", {"growth_factor": 1.0}, "growth_factor must be greater than 1"),
        ("torch", {"backoff_factor": 0}, "backoff_factor must be a finite number above 0"),
        ("torch", {"backoff_factor": 1.0}, "backoff_factor must be between 0 and 1"),
        ("torch", {"growth_interval": 0}, "growth_interval must be at least 1"),
        ("paddle", {"consecutive": 0}, "consecutive must be at least 1"),
        ("naive", {"hysteresis": 0}, "hysteresis must be at least 1"),
        ("naive", {"min_scale": 0}, "min_scale must be a finite number above 0"),
        ("naive", {"init_scale": 2**33}, "max_scale 4294967296.0 is smaller than init_scale"),
        ("apex", {"min_scale": 131072}, "min_scale 131072.0 is greater than init_scale 65536.0"),
        ("naive", {"hysteresis": 2, "consecutive": 2}, "two names of one option"),
    ],
)
def test_bad_number_is_refused(rule, options, message):
    with pytest.raises(ValueError, match=message):
        LossScaler(rule, **options)


@pytest.mark.parametrize(
    "options", [{"init_scale": "big"}, {"init_scale": True}, {"growth_interval": 2.5}, {"dynamic": 1}, {"scael": 1}]
)
def test_wrong_type_is_refused(options):
    with pytest.raises(TypeError, match=next(iter(options))):
        LossScaler("torch", **options)
