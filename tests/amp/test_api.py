"""Mixed precision in somebody else's training script."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import paddle
import pytest
from paddle.nn import functional as F

from image_classification import amp
from tests.helpers.amp_models import batch, bits, network

PACKAGE = Path(amp.__file__).resolve().parent.parent
LEVELS = ["O0", "O1", "O2", "O3"]
MODES = [*LEVELS, "auto", "naive"]


def adamw(model, rate=0.01):
    return paddle.optimizer.AdamW(rate, parameters=model.parameters())


def start(level, optimizer=adamw, **arguments):
    model = network()
    return amp.initialize(model, optimizer(model), opt_level=level, verbosity=0, **arguments)


def iterate(model, optimizer, steps=3, accumulate=1, **arguments):
    """Return the losses of Apex's three lines, repeated; `accumulate` backward passes make one step."""
    losses = []
    for _ in range(steps):
        for micro in range(accumulate):
            loss = F.cross_entropy(model(batch()[0]), batch()[1]) / accumulate
            delay = {"delay_unscale": micro < accumulate - 1} if arguments.get("delay") else {}
            with amp.scale_loss(loss, optimizer, **delay) as scaled_loss:
                scaled_loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        losses.append(loss.item() * accumulate)
    return losses


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("level", MODES)
def test_three_lines_train(level, dtype):
    scale = {"loss_scale": 1024.0} if level == "naive" else {}  # its own begins at 2^32, and the first steps overflow
    losses = iterate(*start(level, dtype=None if level == "O0" else dtype, **scale), steps=8)
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize("level", MODES)
def test_three_lines_do_what_a_trainer_does(level):
    """Bit by bit the same as `Precision`, because scaling by powers of two is exact."""
    model, optimizer = start(level)
    losses = iterate(model, optimizer)
    precision = amp.build_precision(level)
    trained = precision.convert_model(network())
    trainer = paddle.optimizer.AdamW(0.01, parameters=[param for _, param in precision.master_params(trained)])
    expected = []
    for _ in range(3):
        with precision.forward_context():
            loss = F.cross_entropy(trained(batch()[0]).astype("float32"), batch()[1])
        precision.backward(loss)
        precision.step(trainer)
        expected.append(loss.item())
    assert losses == expected
    assert bits(model.state_dict()) == bits(precision.model_state_dict(trained))


@pytest.mark.parametrize("level", LEVELS)
def test_model_returns_float32_and_saves_float32(level):
    model, _ = start(level)
    assert model(batch()[0]).dtype == paddle.float32
    assert {tensor.dtype for tensor in model.state_dict().values()} == {paddle.float32}
    assert list(model.state_dict()) == list(network().state_dict())


def test_model_called_inside_the_context_keeps_level_1s_dtype():
    model, _ = start("O1")
    with model.precision.forward_context():
        assert model(batch()[0]).dtype == paddle.float16


@pytest.mark.parametrize("level", LEVELS)
def test_set_state_dict_refreshes_masters(level):
    model, optimizer = start(level)
    iterate(model, optimizer, steps=1)
    wanted = network(seed=9).state_dict()
    assert model.set_state_dict(wanted) == ([], [])
    masters = trained(optimizer)
    exact = [param for param in network(seed=9).parameters() if not param.stop_gradient]
    for master, value in zip(masters, exact, strict=True):
        expected = value if level != "O3" else value.astype("float16")
        np.testing.assert_array_equal(master.numpy(), expected.numpy())


@pytest.mark.parametrize("level", LEVELS)
def test_shapes_of_arguments_come_back(level):
    for models, optimizers in ((1, 1), (2, 1), (1, 2), (2, 2), (1, 0), (2, 0)):
        made = [network(seed) for seed in range(models)]
        optims = [paddle.optimizer.SGD(0.1, parameters=made[0].parameters()) for _ in range(optimizers)]
        given = made[0] if models == 1 else made
        if optimizers == 0:
            result = amp.initialize(given, opt_level=level, verbosity=0)
            assert isinstance(result, list) == (models == 2)
            continue
        new_models, new_optims = amp.initialize(
            given, optims[0] if optimizers == 1 else optims, opt_level=level, verbosity=0
        )
        assert isinstance(new_models, list) == (models == 2)
        assert isinstance(new_optims, list) == (optimizers == 2)


@pytest.mark.parametrize("level", LEVELS)
def test_overflow_skips_one_step_and_halves_a_dynamic_scale(level):
    model, optimizer = start(level, loss_scale="dynamic")
    iterate(model, optimizer, steps=1)
    before = bits(model.state_dict())
    loss = F.cross_entropy(model(batch()[0]), batch()[1]) * float("inf")
    statistics = {name for name in before if "_mean" in name or "_variance" in name}
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    result = optimizer.step()
    after = bits(model.state_dict())
    assert not result.applied
    assert result.first_bad in before
    assert {name for name in before if before[name] != after[name]} <= statistics
    assert amp.state_dict(optimizer)["loss_scaler0"]["scale"] == 2.0**15
    optimizer.clear_grad()
    assert optimizer.step().applied  # nothing to apply, nothing to skip
    iterate(model, optimizer, steps=1)
    assert bits(model.state_dict()) != after


@pytest.mark.parametrize("level", LEVELS)
def test_accumulation_by_repeated_or_delayed_unscaling_agrees(level):
    """Delayed, gradients are added scaled and unscaled once; powers of two make that equal to unscaling each pass."""
    ends = []
    for delay in (False, True):
        model, optimizer = start(level)
        iterate(model, optimizer, accumulate=2, delay=delay)
        ends.append(bits(model.state_dict()))
    assert ends[0] == ends[1]


def loss_of(model):
    return F.cross_entropy(model(batch()[0]), batch()[1])


def test_delayed_pass_leaves_gradients_scaled_and_the_scale_where_it_is():
    """The scale moves once a step: the second of two passes, not the first, sees the overflow of both."""
    model, optimizer = start("O2", loss_scale="dynamic")
    largest = []
    for delay in (True, False):
        with amp.scale_loss(loss_of(model), optimizer, delay_unscale=delay) as scaled_loss:
            scaled_loss.backward()
        gradients = [param.grad for param in amp.master_params(optimizer) if param.grad is not None]
        largest.append(max(gradient.abs().max().item() for gradient in gradients))
    assert largest[0] == pytest.approx(2.0**16 * largest[1] / 2, rel=1e-6)  # one pass scaled, both unscaled
    with amp.scale_loss(loss_of(model) * float("inf"), optimizer, delay_unscale=True) as scaled_loss:
        scaled_loss.backward()
    assert amp.state_dict(optimizer)["loss_scaler0"]["scale"] == 2.0**16
    assert not optimizer.step().applied
    assert amp.state_dict(optimizer)["loss_scaler0"]["scale"] == 2.0**15


def test_step_after_a_delayed_pass_unscales_it_first():
    """Apex steps with gradients 65536 times too large here."""
    results = []
    for delay in (False, True):
        model, optimizer = start("O2", lambda model: paddle.optimizer.SGD(0.1, parameters=model.parameters()))
        loss = F.cross_entropy(model(batch()[0]), batch()[1])
        with amp.scale_loss(loss, optimizer, delay_unscale=delay) as scaled_loss:
            scaled_loss.backward()
        assert optimizer.step().applied
        results.append(bits(model.state_dict()))
    assert results[0] == results[1]


def test_plain_backward_is_applied_unscaled_and_checked():
    model, optimizer = start("O2")
    before = bits(model.state_dict())
    F.cross_entropy(model(batch()[0]), batch()[1]).backward()
    assert optimizer.step().applied
    assert bits(model.state_dict()) != before
    optimizer.clear_grad()
    (F.cross_entropy(model(batch()[0]), batch()[1]) * float("nan")).backward()
    assert not optimizer.step().applied


def test_losses_with_scales_of_their_own():
    model, optimizer = start("O2", num_losses=3)
    for loss_id in (0, 1, 0):
        with amp.scale_loss(model(batch()[0]).mean() * 1e-3, optimizer, loss_id=loss_id) as scaled_loss:
            scaled_loss.backward()
    with amp.scale_loss(model(batch()[0]).sum() * float("inf"), optimizer, loss_id=2) as scaled_loss:
        scaled_loss.backward()
    states = amp.state_dict(optimizer)
    assert [states[f"loss_scaler{i}"]["good_steps"] for i in range(3)] == [2, 1, 0]
    assert [states[f"loss_scaler{i}"]["scale"] for i in range(3)] == [2.0**16, 2.0**16, 2.0**15]
    assert not optimizer.step().applied
    with pytest.raises(ValueError, match="loss_id 3 is out of range: num_losses is 3"):
        with amp.scale_loss(model(batch()[0]).sum(), optimizer, loss_id=3):
            pass


def test_gradients_of_losses_with_different_scales_add_up():
    """Loss 0 at 2^8 and loss 1 at 2^4, both of the same sum: the gradient must be exactly twice that of one."""
    gradients = []
    for ids in ((0,), (0, 1)):
        model = paddle.nn.Linear(2, 1)
        optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
        model, optimizer = amp.initialize(model, optimizer, opt_level="O2", num_losses=2, verbosity=0)
        optimizer.precision.scalers[0].scale, optimizer.precision.scalers[1].scale = 2.0**8, 2.0**4
        for delayed, loss_id in zip((len(ids) > 1, False), ids, strict=False):
            with amp.scale_loss(model(paddle.ones([1, 2])).sum(), optimizer, loss_id, delay_unscale=delayed) as scaled:
                scaled.backward()
        gradients.append(amp.master_params(optimizer)[0].grad.numpy())
    np.testing.assert_array_equal(gradients[1], 2 * gradients[0])


def test_two_models_and_optimizers_share_one_loss():
    models = [paddle.nn.Linear(4, 4), paddle.nn.Linear(4, 2)]
    optimizers = [paddle.optimizer.SGD(0.1, parameters=model.parameters()) for model in models]
    models, optimizers = amp.initialize(models, optimizers, opt_level="O2", verbosity=0)
    x = paddle.ones([3, 4])
    with amp.scale_loss(models[1](models[0](x)).mean() * 1e-3, optimizers) as scaled_loss:
        scaled_loss.backward()
    assert [optimizer.step().applied for optimizer in optimizers] == [True, True]
    with amp.scale_loss(models[1](models[0](x)).sum() * float("inf"), optimizers) as scaled_loss:
        scaled_loss.backward()
    assert [optimizer.step().applied for optimizer in optimizers] == [False, False]
    assert amp.state_dict(optimizers[0])["loss_scaler0"]["scale"] == 2.0**15


def trained(optimizer):
    """Return the tensors that an optimizer moves: running statistics are parameters too, for Paddle."""
    return [param for param in amp.master_params(optimizer) if not param.stop_gradient]


def test_bad_gradients_of_one_optimizer_skip_the_other_too():
    models = [paddle.nn.Linear(4, 4), paddle.nn.Linear(4, 2)]
    optimizers = [paddle.optimizer.SGD(0.1, parameters=model.parameters()) for model in models]
    models, optimizers = amp.initialize(models, optimizers, opt_level="O1", verbosity=0)
    models[1].model.bias.register_hook(lambda gradient: gradient * float("inf"))
    before = bits(models[0].state_dict())
    with amp.scale_loss(models[1](models[0](paddle.ones([3, 4]))).mean() * 1e-3, optimizers) as scaled_loss:
        scaled_loss.backward()
    results = [optimizer.step() for optimizer in optimizers]
    assert [result.applied for result in results] == [False, False]
    assert {result.first_bad for result in results} == {"bias"}
    assert bits(models[0].state_dict()) == before


def test_a_good_loss_does_not_excuse_a_bad_one_before_it():
    model, optimizer = start("O2", num_losses=2)
    before = bits(model.state_dict())
    for loss_id, factor in ((0, float("inf")), (1, 1e-3)):
        with amp.scale_loss(model(batch()[0]).mean() * factor, optimizer, loss_id=loss_id) as scaled_loss:
            scaled_loss.backward()
    assert not optimizer.step().applied
    assert bits(model.state_dict())["7.weight"] == before["7.weight"]
    assert [amp.state_dict(optimizer)[f"loss_scaler{i}"]["good_steps"] for i in range(2)] == [0, 1]


def test_cleared_gradients_do_not_come_back():
    """Gradients of half weights that no step has seen belong to the dropped batch, too."""
    ends = []
    for dropped in (False, True):
        model, optimizer = start("O2", lambda model: paddle.optimizer.SGD(0.1, parameters=model.parameters()))
        model.eval()  # running statistics would remember the dropped batch
        if dropped:
            (model(batch(seed=5)[0]).mean() * 1e4).backward()
            optimizer.clear_grad()
        iterate(model, optimizer, steps=1)
        ends.append(bits(model.state_dict()))
    assert ends[0] == ends[1]


def test_clipping_between_the_block_and_the_step():
    model, optimizer = start("O2", lambda model: paddle.optimizer.SGD(1.0, parameters=model.parameters()))
    before = [param.numpy().copy() for param in trained(optimizer)]
    with amp.scale_loss(F.cross_entropy(model(batch()[0]), batch()[1]), optimizer) as scaled_loss:
        scaled_loss.backward()
    norm = optimizer.clip_grad_norm(0.01)
    assert norm > 0.01
    optimizer.step()
    moved = [after.numpy() - old for after, old in zip(trained(optimizer), before, strict=True)]
    assert np.sqrt(sum(float((move**2).sum()) for move in moved)) == pytest.approx(0.01, rel=1e-3)


def test_clipping_of_a_plain_backward_and_of_the_mode_do_not_add_up():
    """By hand to 0.02 first and by the mode to 0.01 then: 0.01, and after a plain backward pass all the same."""
    model = network()
    optimizer = paddle.optimizer.SGD(1.0, parameters=model.parameters())
    model, optimizer, _ = amp.convert_to_amp(model, optimizer, None, "naive", {"clip_grad": 0.01, "init_scale": 64})
    before = [param.numpy().copy() for param in trained(optimizer)]
    F.cross_entropy(model(batch()[0]), batch()[1]).backward()
    assert optimizer.clip_grad_norm(0.02) > 0.02
    assert optimizer.step().applied
    moved = [after.numpy() - old for after, old in zip(trained(optimizer), before, strict=True)]
    assert np.sqrt(sum(float((move**2).sum()) for move in moved)) == pytest.approx(0.01, rel=1e-3)


def test_group_added_later_is_trained_through_its_masters():
    model = network()
    head, rest = model[7], [param for name, param in model.named_parameters() if not name.startswith("7.")]
    optimizer = paddle.optimizer.Momentum(0.1, parameters=[{"params": rest}])
    model, optimizer = amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    assert head.weight.dtype == paddle.float16
    optimizer.add_param_group({"params": list(head.parameters()), "learning_rate": 0.5})
    assert all(param.dtype == paddle.float32 for param in amp.master_params(optimizer))
    before = bits(model.state_dict())
    losses = iterate(model, optimizer, steps=4)
    assert bits(model.state_dict())["7.weight"] != before["7.weight"]
    assert losses[-1] < losses[0]


def test_group_cannot_be_added_to_a_plain_list():
    _, optimizer = start("O2")
    with pytest.raises(ValueError, match="built with a plain list"):
        optimizer.add_param_group({"params": [paddle.create_parameter([1], "float32")]})


def test_state_goes_on_where_it_was_saved():
    model, optimizer = start("O1", num_losses=2)
    iterate(model, optimizer, steps=2)
    state = amp.state_dict(optimizer)
    assert list(state) == ["loss_scaler0", "loss_scaler1"]
    _, resumed = start("O1", num_losses=2)
    amp.load_state_dict(resumed, state)
    assert amp.state_dict(resumed) == state
    with pytest.raises(ValueError, match="unexpected key 'model'"):
        amp.load_state_dict(resumed, {"model": 1})


def test_different_number_of_losses_is_said(caplog):
    _, optimizer = start("O1", num_losses=2)
    _, other = start("O1")
    with caplog.at_level("WARNING"):
        amp.load_state_dict(other, amp.state_dict(optimizer))
    assert "the saved state has 2 loss scalers, this run has 1" in caplog.text


def test_disabled_amp_is_not_there():
    model = network()
    same, optimizer = amp.initialize(model, adamw(model), opt_level="O2", enabled=False, verbosity=0)
    assert same is model
    loss = F.cross_entropy(model(batch()[0]), batch()[1])
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        assert scaled_loss is loss
        scaled_loss.backward()
    assert optimizer.step().applied
    assert amp.state_dict(optimizer) == {}
    amp.load_state_dict(optimizer, {})
    assert {param.dtype for param in model.parameters()} == {paddle.float32}


def test_attributes_of_model_and_optimizer_are_reached_through():
    model = network()
    model.answer = 42
    model, optimizer = amp.initialize(model, adamw(model), opt_level="O2", verbosity=0)
    assert model.answer == 42
    optimizer.set_lr(0.5)
    assert optimizer.get_lr() == 0.5
    with pytest.raises(AttributeError):
        _ = model.question
    model.eval()
    assert not model.model.training


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: amp.initialize("model"), TypeError, "models must be a paddle.nn.Layer"),
        (lambda: amp.initialize(network(), "adam"), TypeError, "optimizers must be a paddle optimizer"),
        (lambda: amp.initialize(network(), opt_level="01"), ValueError, "letter O, not a zero"),
        (lambda: amp.initialize(network(), opt_level=None), ValueError, "unknown optimization level None"),
        (lambda: amp.initialize(network(), opt_level="paddle"), ValueError, "unknown optimization level 'paddle'"),
        (lambda: amp.initialize(network(), opt_level="auto", num_losses=2), ValueError, "has no option 'num_losses'"),
        (
            lambda: amp.initialize(network(), opt_level="naive", keep_batchnorm_fp32=True),
            ValueError,
            "naive has no option 'keep_batchnorm_fp32'",
        ),
        (lambda: amp.initialize(network(), opt_level="O1", keep_batchnorm_fp32=True), ValueError, "must be None"),
        (lambda: amp.initialize(start("O1")[0]), ValueError, "this model was through amp already"),
        (lambda: amp.initialize(network(), start("O1")[1]), ValueError, "this optimizer was through amp already"),
        (
            lambda: amp.initialize(network().to(dtype="float16"), opt_level="O1"),
            ValueError,
            "give the model in float32",
        ),
        (lambda: amp.scale_loss(1, adamw(network())).__enter__(), TypeError, "was not through amp.initialize"),
        (lambda: amp.state_dict(adamw(network())), TypeError, "was not through amp.initialize"),
        (lambda: amp.disable_casts(network()), TypeError, "needs a model that initialize returned"),
        (lambda: amp.convert_to_amp(network(), adamw(network()), None, "zero"), ValueError, "mode must be an AMP_TYPE"),
        (lambda: amp.convert_to_amp(network(), None, None, "naive"), TypeError, "optimizers must be"),
    ],
)
def test_misuse_is_explained(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_two_runs_in_one_process_do_not_disturb_each_other():
    """Alone or interleaved with a run of another level, a run gives the same bits."""
    alone = {level: (lambda m, o: (iterate(m, o, 4), bits(m.state_dict())))(*start(level)) for level in ("O1", "O2")}
    first, second = start("O1"), start("O2")
    losses = {"O1": [], "O2": []}
    for _ in range(4):
        losses["O1"] += iterate(*first, steps=1)
        losses["O2"] += iterate(*second, steps=1)
    assert (losses["O1"], bits(first[0].state_dict())) == alone["O1"]
    assert (losses["O2"], bits(second[0].state_dict())) == alone["O2"]


def test_nothing_is_left_patched_behind_a_call():
    before = {name: getattr(paddle._C_ops, name) for name in ("matmul", "conv2d", "add")} | {"mse": F.mse_loss}
    for level in LEVELS:
        iterate(*start(level), steps=1)
    after = {name: getattr(paddle._C_ops, name) for name in ("matmul", "conv2d", "add")} | {"mse": F.mse_loss}
    assert before == after


def test_amp_has_no_module_state_that_changes():
    """Module-level names are constants, functions and classes; dictionaries among them are never written to."""
    for path in sorted((PACKAGE / "amp").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            assert not isinstance(node, ast.Global), f"{path.name} line {node.lineno}: global"


# ColossalAI's interface


@pytest.mark.parametrize(
    "mode", [amp.AMP_TYPE.PADDLE, amp.AMP_TYPE.APEX, amp.AMP_TYPE.NAIVE, "paddle", "torch", "apex", "naive"]
)
def test_convert_to_amp_trains(mode):
    model, criterion = network(), paddle.nn.CrossEntropyLoss()
    config = {"initial_scale": 2**16, "clip_grad": 1.0} if mode in ("naive", amp.AMP_TYPE.NAIVE) else None
    model, optimizer, criterion = amp.convert_to_amp(model, adamw(model), criterion, mode, config)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        loss = criterion(model(batch()[0]), batch()[1])
        optimizer.backward(loss)
        assert optimizer.step().applied
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_torch_is_another_name_of_paddle():
    assert amp.AMP_TYPE.TORCH is amp.AMP_TYPE.PADDLE


def test_only_operator_casts_wrap_the_criterion():
    for mode, wrapped in (("paddle", True), ("apex", True), ("naive", False)):
        model, criterion = network(), paddle.nn.CrossEntropyLoss()
        _, _, result = amp.convert_to_amp(model, adamw(model), criterion, mode)
        assert (result is not criterion) == wrapped


@pytest.mark.parametrize("mode", ["torch", "naive", "apex"])
def test_convert_to_amp_takes_models_that_were_created_in_half(mode, caplog):
    """The same bits as a float32 model with the rounded weights; the optimizer updates what it was built with."""
    results = []
    for in_half in (True, False):
        model = network()
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.set_value(tensor.astype("float16").astype("float32"))
        model = model.to(dtype="float16") if in_half else model
        with caplog.at_level("WARNING"):
            model, optimizer, _ = amp.convert_to_amp(model, adamw(model), None, mode, {"dtype": "float16"})
        for _ in range(3):
            loss = F.cross_entropy(model(batch()[0]).astype("float32"), batch()[1])
            optimizer.backward(loss)
            optimizer.step()
            optimizer.clear_grad()
        assert {param.dtype for param in amp.master_params(optimizer)} == {paddle.float32}
        results.append((loss.item(), bits(model.state_dict())))
    assert results[0] == results[1]
    assert caplog.text.count("are half already: the float32 masters are made from them, with their rounding") == 1


def test_convert_to_amp_takes_apexs_options():
    model = network()
    model, _, _ = amp.convert_to_amp(model, adamw(model), None, "apex", {"opt_level": "O2", "loss_scale": 128.0})
    assert (model.precision.mode, model.precision.loss_scale) == ("O2", 128.0)


def test_convert_to_amp_refuses_unknown_options():
    model = network()
    with pytest.raises(ValueError, match="mode naive has no option 'gradient_clipping'"):
        amp.convert_to_amp(model, adamw(model), None, "naive", {"gradient_clipping": 1.0})


def test_naive_clips_inside_the_step():
    model = network()
    optimizer = paddle.optimizer.SGD(1.0, parameters=model.parameters())
    model, optimizer, criterion = amp.convert_to_amp(
        model, optimizer, paddle.nn.CrossEntropyLoss(), "naive", {"initial_scale": 256, "clip_grad_norm": 0.01}
    )
    before = [param.numpy().copy() for param in trained(optimizer)]
    optimizer.backward(criterion(model(batch()[0]), batch()[1]))
    result = optimizer.step()
    moved = [after.numpy() - old for after, old in zip(trained(optimizer), before, strict=True)]
    assert np.sqrt(sum(float((move**2).sum()) for move in moved)) == pytest.approx(0.01, rel=1e-3)
    assert result.grad_norm > 0.01


def test_folders_can_be_lifted_into_another_code_base(tmp_path):
    """amp and half_cpu alone, under another package name, with nothing else of the project in reach."""
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "__init__.py").write_text("")
    for part in ("amp", "half_cpu"):
        shutil.copytree(PACKAGE / part, tmp_path / "theirs" / part, ignore=shutil.ignore_patterns("__pycache__"))
    script = """
import paddle
from theirs import amp
model = paddle.nn.Linear(4, 2)
optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
model, optimizer = amp.initialize(model, optimizer, opt_level="O2", loss_scale=128.0)
with amp.scale_loss(model(paddle.ones([2, 4])).sum(), optimizer) as scaled_loss:
    scaled_loss.backward()
print(optimizer.step().applied)
"""
    result = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert result.stdout.split()[-1:] == ["True"], result.stderr
