"""Names, values and combinations of options: what is accepted, what is refused, and in which words."""

import itertools

import pytest

from image_classification import amp
from image_classification.amp.options import HALF_DTYPES, TABLE, resolve
from image_classification.config import schema


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("01", "O1"), ("o2", "O2"), ("o3", "O3"), ("Auto", "auto"), ("naiv", "naive"), ("FP32", "fp32")],
)
def test_misspelt_mode_gets_a_suggestion(typed, meant):
    with pytest.raises(ValueError, match=f"did you mean '{meant}'"):
        amp.build_precision(typed)


def test_modes_and_formats_are_those_of_the_configuration():
    assert (amp.MODES, HALF_DTYPES) == (schema.PRECISION_MODES, schema.HALF_DTYPES)
    assert [mode for mode in amp.MODES if not amp.supported(mode, "bfloat16")] == list(schema.FLOAT32_MODES)


def test_zero_for_the_letter_o_is_explained():
    with pytest.raises(ValueError, match="letter O, not the number zero"):
        amp.build_precision("01")


@pytest.mark.parametrize("mode", [None, 1, "", "bf16", "O4x"])
def test_unknown_mode_is_refused(mode):
    with pytest.raises(ValueError, match="Modes are fp32, auto, O0, O1, O2, O3, naive"):
        amp.build_precision(mode)


@pytest.mark.parametrize(
    ("mode", "options", "message"),
    [
        ("naive", {"hystersis": 2}, "mode naive has no option 'hystersis'; did you mean 'hysteresis'"),
        ("auto", {"num_losses": 2}, "mode auto has no option 'num_losses'"),
        ("auto", {"keep_batchnorm_fp32": True}, "mode auto has no option 'keep_batchnorm_fp32'"),
        ("fp32", {"init_scale": 2.0}, "mode fp32 has no option 'init_scale'"),
        ("O2", {"keep_batchnorm": True}, "did you mean 'keep_batchnorm_fp32'"),
        ("auto", {"init_scale": 2.0, "init_loss_scaling": 2.0}, "another name of 'init_scale'"),
        ("auto", {"init_scale": 0}, "mode auto: init_scale must be a finite number above 0"),
        ("auto", {"growth_interval": "often"}, "mode auto: growth_interval must be an integer"),
        ("auto", {"scaler": "apx"}, "unknown scaler rule 'apx'"),
        ("auto", {"white_list": ["matmull"]}, "Paddle has no operator 'matmull'; did you mean 'matmul'"),
        ("auto", {"white_list": "matmul"}, "white_list must be a list"),
        ("auto", {"white_list": ["exp"], "black_list": ["exp"]}, "'exp' is in white_list and in black_list"),
        ("O1", {"white_list": ["sum"], "black_list": ["reduce_sum"]}, "'sum' is in white_list and in black_list"),
        ("naive", {"keep_float32": "head"}, "keep_float32 must be a list"),
        ("naive", {"clip_grad": -1}, "clip_grad_norm must be a finite number, 0 or more"),
        ("naive", {"verbose": "yes"}, "verbose must be True or False"),
        ("O1", {"num_losses": 0}, "num_losses must be an integer of at least 1"),
        ("O1", {"verbosity": 3}, "verbosity must be 0, 1 or 2"),
        ("O1", {"cast_model_outputs": "int8"}, "cast_model_outputs must be one of"),
        ("O1", {"min_loss_scale": 131072}, "min_scale 131072.0 is greater than init_scale 65536.0"),
        ("O2", {"white_list": ["exp"]}, "white_list: patch_torch_functions is False, so no single operator is cast"),
        ("O0", {"black_list": ["exp"]}, "black_list: patch_torch_functions is False, so no single operator is cast"),
        ("O1", {"black_list": ["exp"], "patch_torch_functions": False}, "so no single operator is cast"),
        ("auto", {"loss_scale": "dynamic", "dynamic": False}, "loss_scale 'dynamic' and dynamic False contradict"),
        ("auto", {"custom_white_list": ["exp"], "white_list": ["exp"]}, "'custom_white_list' is another name of"),
    ],
)
def test_bad_option_is_refused_in_words_that_name_it(mode, options, message):
    with pytest.raises(ValueError, match=message):
        amp.validate_options(mode, options)


@pytest.mark.parametrize(
    ("mode", "dtype", "options", "idle"),
    [
        ("auto", "bfloat16", {"growth_interval": 7, "hysteresis": 2}, "growth_interval, hysteresis"),
        ("O2", "float16", {"loss_scale": 128, "scale_window": 7, "max_loss_scale": None}, "growth_interval"),
        ("naive", "float16", {"dynamic": False, "min_scale": 2}, "min_scale"),
    ],
)
def test_option_of_a_moving_scale_when_the_scale_is_static_is_a_warning(mode, dtype, options, idle):
    said = f"the loss scale is static, so there is no effect of: {idle}"
    assert resolve(mode, dtype, "cpu", options).warnings == (said,)
    assert resolve(mode, dtype, "cpu", options | {"loss_scale": "dynamic", "dynamic": True}).warnings == ()


def test_options_come_back_under_their_own_names():
    options = amp.validate_options("naive", {"INITIAL_SCALE": 1024, "clip_grad": 1.0, "dynamic_grad_scale": True})
    assert options == {"init_scale": 1024, "clip_grad_norm": 1.0, "dynamic": True}


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        # ColossalAI's documented configurations, word for word
        (
            "auto",
            {
                "init_scale": 2.0**16,
                "growth_factor": 2.0,
                "backoff_factor": 0.5,
                "growth_interval": 2000,
                "enabled": True,
            },
        ),
        (
            "O1",
            {
                "enabled": True,
                "cast_model_type": None,
                "patch_torch_functions": None,
                "keep_batchnorm_fp32": None,
                "master_weights": None,
                "loss_scale": None,
                "cast_model_outputs": None,
                "num_losses": 1,
                "verbosity": 1,
                "min_loss_scale": None,
                "max_loss_scale": 16777216.0,
            },
        ),
        (
            "naive",
            {
                "log_num_zeros_in_grad": False,
                "initial_scale": 2**32,
                "min_scale": 1,
                "growth_factor": 2,
                "backoff_factor": 0.5,
                "growth_interval": 1000,
                "hysteresis": 2,
            },
        ),
        # Paddle's GradScaler
        (
            "auto",
            {
                "init_loss_scaling": 1024.0,
                "incr_ratio": 2.0,
                "decr_ratio": 0.5,
                "incr_every_n_steps": 1000,
                "decr_every_n_nan_or_inf": 2,
                "use_dynamic_loss_scaling": True,
            },
        ),
    ],
)
def test_published_configurations_are_accepted(mode, options):
    amp.build_precision(mode, dtype="float16", options=options)


def legal(level, loss_scale, keep_batchnorm):
    return not (level == "O1" and keep_batchnorm is not None)


GRID = list(
    itertools.product(
        ["O0", "O1", "O2", "O3"], [None, 1.0, 128.0, "128.0", "dynamic"], [None, True, False, "True", "False"]
    )
)


@pytest.mark.parametrize(("level", "loss_scale", "keep_batchnorm"), GRID)
def test_apexs_grid_of_levels_and_overrides(level, loss_scale, keep_batchnorm):
    options = {"loss_scale": loss_scale, "keep_batchnorm_fp32": keep_batchnorm}
    if not legal(level, loss_scale, keep_batchnorm):
        with pytest.raises(ValueError, match="O1 keeps the weights of every layer float32"):
            amp.build_precision(level, options=options)
        return
    settings = resolve(level, "float16", "cpu", options)
    rule, numbers = settings.scalers[0]
    assert rule == "apex"
    default = {"O0": 1.0, "O1": "dynamic", "O2": "dynamic", "O3": 1.0}[level]
    expected = default if loss_scale is None else float(loss_scale) if loss_scale != "dynamic" else "dynamic"
    assert numbers == ({} if expected == "dynamic" else {"init_scale": expected, "dynamic": False})
    keeps = {"O0": False, "O1": False, "O2": True, "O3": False}[level]
    if keep_batchnorm is not None:
        keeps = str(keep_batchnorm) == "True"
    assert settings.float32_norms == ("batch" if keeps else "none")
    assert settings.stored == ("float16" if level in ("O2", "O3") else "float32")
    assert settings.masters == (level == "O2")
    assert settings.operator_casts == ("apex" if level == "O1" else None)
    assert settings.input_dtype == {"O0": "float32", "O1": None, "O2": "float16", "O3": "float16"}[level]
    assert settings.output_dtype == {"O0": "float32", "O1": None, "O2": "float32", "O3": "float32"}[level]


@pytest.mark.parametrize(
    ("level", "options", "message"),
    [
        ("O1", {"cast_model_type": "float16"}, "cast_model_type cannot be 'float16'; choose O2 or O3"),
        ("O1", {"keep_batchnorm_fp32": False}, "keep_batchnorm_fp32 must be None, not False"),
        ("O1", {"keep_batchnorm_fp32": "False"}, "keep_batchnorm_fp32 must be None, not 'False'"),
        ("O1", {"master_weights": False}, "master_weights must be None, not False"),
        ("O1", {"master_weights": True}, "master_weights must be None, not True"),
        ("O0", {"patch_torch_functions": True}, "patch_torch_functions=True belongs to O1"),
        ("O2", {"patch_torch_functions": True}, "patch_torch_functions=True belongs to O1"),
        ("O2", {"keep_batchnorm_fp32": "yes"}, "keep_batchnorm_fp32 must be True, False or None, not 'yes'"),
        ("O2", {"keep_batchnorm_fp32": 1}, "keep_batchnorm_fp32 must be True, False or None, not 1"),
        ("O2", {"loss_scale": "Dynamic"}, "loss_scale must be a number or 'dynamic', not 'Dynamic'"),
        ("O2", {"loss_scale": "abc"}, "loss_scale must be a number or 'dynamic', not 'abc'"),
        ("O2", {"loss_scale": True}, "loss_scale must be a number or 'dynamic', not True"),
        ("O2", {"loss_scale": 0}, "loss_scale must be a finite number above 0, not 0"),
        ("O2", {"loss_scale": -8.0}, "loss_scale must be a finite number above 0"),
        ("O2", {"loss_scale": float("nan")}, "loss_scale must be a finite number above 0"),
        ("O2", {"cast_model_type": "int8"}, "cast_model_type must be False or one of"),
        ("O2", {"loss_scale": 128.0, "init_scale": 2.0}, "static, so init_scale cannot be given too"),
    ],
)
def test_contradicting_override_is_refused(level, options, message):
    with pytest.raises(ValueError, match=f"mode {level}: .*{message}"):
        amp.validate_options(level, options)


@pytest.mark.parametrize(
    ("level", "options"),
    [
        ("O1", {"cast_model_type": "float32"}),
        ("O1", {"cast_model_type": False}),
        ("O1", {"patch_torch_functions": False}),
        ("O1", {"cast_model_outputs": "float16"}),
        ("O3", {"master_weights": True}),
        ("O3", {"keep_batchnorm_fp32": True}),
        ("O3", {"loss_scale": "dynamic"}),
        ("O2", {"master_weights": False}),
    ],
)
def test_legal_override_is_accepted(level, options):
    amp.validate_options(level, options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"loss_scale": 128.0}, "needs no loss scale"),
        ({"loss_scale": "dynamic"}, "needs no loss scale"),
        ({"keep_batchnorm_fp32": True}, "keep_batchnorm_fp32=True has no effect"),
        ({"master_weights": True}, "master_weights=True has no effect"),
    ],
)
def test_meaningless_override_of_level_0_warns(options, words, caplog):
    with caplog.at_level("WARNING"):
        amp.build_precision("O0", options=options)
    assert words in caplog.text


def test_level_0_alone_does_not_warn(caplog):
    with caplog.at_level("WARNING"):
        amp.build_precision("O0")
    assert not caplog.text


@pytest.mark.parametrize(
    ("mode", "device", "dtype"),
    [
        ("fp32", "cpu", "float32"),
        ("auto", "cpu", "bfloat16"),
        ("auto", "gpu", "float16"),
        ("O0", "cpu", "float32"),
        ("O1", "cpu", "float16"),
        ("O2", "gpu", "float16"),
        ("O3", "cpu", "float16"),
        ("naive", "cpu", "float16"),
    ],
)
def test_default_dtype(mode, device, dtype):
    assert resolve(mode, None, device).dtype == dtype


def test_cast_model_type_names_the_format():
    assert resolve("O2", None, "cpu", {"cast_model_type": "bfloat16"}).stored == "bfloat16"
    with pytest.raises(ValueError, match="cast_model_type bfloat16 contradicts the dtype float16"):
        resolve("O2", "float16", "cpu", {"cast_model_type": "bfloat16"})


@pytest.mark.parametrize("mode", ["auto", "O2", "naive"])
def test_dtype_that_is_no_half_format_is_refused(mode):
    with pytest.raises(ValueError, match="dtype must be one of float16, bfloat16, not 'float32'"):
        amp.build_precision(mode, dtype="float32")


@pytest.mark.parametrize("mode", ["auto", "O1", "O2", "naive"])
def test_bfloat16_has_a_static_scale_of_one_unless_asked(mode):
    scaler = amp.build_precision(mode, dtype="bfloat16").scalers[0]
    assert (scaler.scale, scaler.dynamic) == (1.0, False)
    asked = amp.build_precision(mode, dtype="bfloat16", options={"loss_scale": "dynamic"}).scalers[0]
    assert asked.dynamic
    assert asked.scale >= 2.0**16


@pytest.mark.parametrize(("mode", "scale"), [("auto", 2.0**16), ("O1", 2.0**16), ("O2", 2.0**16), ("naive", 2.0**32)])
def test_float16_starts_at_the_documented_scale(mode, scale):
    assert amp.build_precision(mode, dtype="float16").loss_scale == scale


def test_another_scaler_rule_can_be_chosen():
    scaler = amp.build_precision("naive", options={"scaler": "megatron", "hysteresis": 4}).scalers[0]
    assert (scaler.rule, scaler.hysteresis) == ("megatron", 4)


@pytest.mark.parametrize("mode", ["auto", "O1", "O2", "O3", "naive"])
def test_disabled_is_plain_float32(mode):
    precision = amp.build_precision(mode, options={"enabled": False})
    assert (precision.mode, precision.dtype, precision.loss_scale) == ("fp32", "float32", 1.0)


def test_disabled_mode_still_checks_its_options():
    with pytest.raises(ValueError, match="init_scale"):
        amp.build_precision("auto", options={"enabled": False, "init_scale": -1})


@pytest.mark.parametrize("mode", TABLE)
def test_every_option_name_is_known_to_its_own_mode(mode):
    for name in TABLE[mode].options:
        with pytest.raises(ValueError) as error:
            amp.validate_options(mode, {name: object()})
        assert "has no option" not in str(error.value)
        assert name.removeprefix("loss_") in str(error.value)


def test_two_clip_norms_take_the_run_s_and_say_so(caplog):
    with caplog.at_level("WARNING"):
        precision = amp.build_precision("naive", options={"clip_grad": 2.0}, clip_grad_norm=1.0)
    assert precision.clip_grad_norm == 1.0
    assert "ignored" in caplog.text
    assert amp.build_precision("naive", options={"clip_grad": 2.0}).clip_grad_norm == 2.0
