"""Mixed precision in somebody else's training script."""

import ast
import copy
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import paddle
import pytest
from paddle.nn import functional as F

from image_classification import amp
from tests.helpers.amp_models import batch, bits, network
from tests.helpers.amp_scripts import LEVELS, adamw, iterate, start, trained

PACKAGE = Path(amp.__file__).resolve().parent.parent
MODES = [*LEVELS, "auto", "naive"]


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
@pytest.mark.parametrize("way", ["step", "minimize", "scale_loss", "clip_grad_norm"])
def test_step_without_gradients_changes_nothing_and_is_no_clean_step(level, way):
    """PyTorch's scaler refuses such a step, and Apex's moves no scale."""
    model, optimizer = start(level, loss_scale="dynamic")
    iterate(model, optimizer, steps=2)
    before = bits(model.state_dict()), amp.state_dict(optimizer)
    optimizer.clear_grad()
    if way == "scale_loss":
        with amp.scale_loss(paddle.ones([1]), optimizer):
            pass
    if way == "clip_grad_norm":
        assert optimizer.clip_grad_norm(1.0) == 0.0
    result = optimizer.minimize(None) if way == "minimize" else optimizer.step()
    assert result.applied and result.grad_norm == 0.0
    assert (bits(model.state_dict()), amp.state_dict(optimizer)) == before
    iterate(model, optimizer, steps=1)
    assert amp.state_dict(optimizer)["loss_scaler0"]["good_steps"] == 3


def test_step_when_another_process_has_gradients_counts_here_too():
    class Both(amp.Reduction):
        def found_inf(self, flag):
            asked.append(flag)
            return len(asked) == 1  # the first question: has anybody gradients?

    asked = []
    model = network()
    model, optimizer = amp.initialize(
        model, adamw(model), opt_level="O2", loss_scale="dynamic", verbosity=0, reduction=Both()
    )
    optimizer.step()
    assert asked == [False, False] and amp.state_dict(optimizer)["loss_scaler0"]["good_steps"] == 1


@pytest.mark.parametrize("level", LEVELS)
def test_accumulation_by_repeated_or_delayed_unscaling_agrees(level):
    """Delayed, gradients are added scaled and unscaled once; powers of two make that equal to unscaling each pass."""
    ends = []
    for delay in (False, True):
        model, optimizer = start(level)
        iterate(model, optimizer, accumulate=2, delay=delay)
        ends.append(bits(model.state_dict()))
    assert ends[0] == ends[1]


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


def test_copies_of_criterion_and_optimizer_are_ones_of_their_own():
    model = network()
    parts = amp.convert_to_amp(model, adamw(model), paddle.nn.CrossEntropyLoss(label_smoothing=0.5), "paddle")
    _, optimizer, criterion = copy.deepcopy(parts)
    assert criterion.label_smoothing == 0.5 and criterion.criterion is not parts[2].criterion
    optimizer.set_lr(0.5)
    assert (optimizer.get_lr(), parts[1].get_lr()) == (0.5, 0.01)


@pytest.mark.parametrize("level", MODES)
def test_what_is_set_on_model_and_optimizer_reaches_the_ones_inside(level):
    class Scaled(paddle.nn.Layer):
        def __init__(self):
            super().__init__()
            self.head, self.factor = paddle.nn.Linear(4, 3), 1.0

        def forward(self, x):
            return self.head(x) * self.factor

    plain = Scaled()
    model, optimizer = amp.initialize(plain, adamw(plain), opt_level=level, verbosity=0)
    model.factor = 0.0
    assert float(model(paddle.ones([2, 4])).abs().max()) == 0
    model.head = paddle.nn.Linear(4, 7)
    assert model(paddle.ones([2, 4])).shape == [2, 7]
    model.training = False
    optimizer._learning_rate = 0.25
    assert optimizer.get_lr() == optimizer.optimizer.get_lr() == 0.25


@pytest.mark.parametrize("level", MODES)
def test_parameters_have_the_names_of_the_saved_weights(level):
    plain = network()
    names, buffers = ([name for name, _ in found] for found in (plain.named_parameters(), plain.named_buffers()))
    model = amp.initialize(plain, opt_level=level, verbosity=0)
    assert [name for name, _ in model.named_parameters()] == names
    assert [name for name, _ in model.named_buffers()] == buffers
    assert {*names, *buffers} == set(model.state_dict())
    assert len(model.parameters()) == len(names)


@pytest.mark.parametrize("level", MODES)
def test_minimize_is_the_checked_step(level):
    (model, optimizer), (other, stepped) = start(level), start(level)
    images, labels = batch()
    for each, one in ((model, optimizer), (other, stepped)):
        loss = F.cross_entropy(each(images), labels)
        with amp.scale_loss(loss, one) as scaled:
            scaled.backward()
    optimizer.minimize(loss)
    stepped.step()
    assert bits(model.state_dict()) == bits(other.state_dict())
    assert bits(dict(model.named_parameters())) == bits(dict(other.named_parameters()))
    with pytest.raises(ValueError, match="set stop_gradient"):
        optimizer.minimize(loss, parameters=model.parameters()[:1])


@pytest.mark.parametrize("level", ["O1", "auto"])
def test_model_returns_float32_while_another_thread_is_inside(level):
    model = amp.initialize(network(), opt_level=level, dtype="bfloat16", verbosity=0)
    inside, leave, found = threading.Event(), threading.Event(), []

    def work():
        with model.precision.forward_context():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=work)
    thread.start()
    inside.wait(10)
    found.append(model(batch()[0]).dtype)
    leave.set()
    thread.join()
    assert found == [paddle.float32]


@pytest.mark.parametrize("level", LEVELS)
def test_default_bounds_of_a_static_scale_are_no_warning(level, caplog):
    with caplog.at_level("WARNING"):
        amp.initialize(network(), opt_level=level, dtype=None if level == "O0" else "bfloat16")
        assert not caplog.records
        amp.initialize(network(), opt_level=level, dtype=None if level == "O0" else "bfloat16", max_loss_scale=512.0)
    assert "no effect of: max_scale" in caplog.text


@pytest.mark.parametrize("level", [level for level in MODES if level != "O0"])
@pytest.mark.parametrize("specified", [True, False])
def test_paddle_jit_is_told_to_take_the_plain_model(level, specified, tmp_path):
    model, _ = start(level)
    spec = [paddle.static.InputSpec([None, *batch()[0].shape[1:]], "float32")]
    words = r"paddle\.jit takes no model that was through amp: build the plain model, .*set_state_dict[^\n]*$"
    for call in (
        lambda: paddle.jit.save(model, str(tmp_path / "m"), input_spec=spec if specified else None),
        lambda: paddle.jit.to_static(model, input_spec=spec if specified else None, full_graph=True),
    ):  # fmt: skip
        with pytest.raises(AttributeError, match=words):
            call()
    plain = network()
    plain.set_state_dict(model.state_dict())
    paddle.jit.save(plain, str(tmp_path / "plain"), input_spec=spec)


@pytest.mark.parametrize("level", ["O2", "auto"])
def test_paddle_model_trains_what_a_loop_does(level):
    images, labels = batch()
    model, optimizer = start(level)
    high = paddle.Model(model)
    high.prepare(optimizer, F.cross_entropy)
    data = paddle.io.TensorDataset([images, labels])
    high.fit(data, batch_size=len(data), epochs=3, shuffle=False, verbose=0)
    found = model.state_dict()
    model, optimizer = start(level)
    for _ in range(3):
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.clear_grad()
    for name, expected in model.state_dict().items():
        assert (found[name].astype("float32").numpy() == expected.astype("float32").numpy()).all(), name


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
        (lambda: amp.scale_loss(1, [start("O1")[1], start("O1")[1]]).__enter__(), ValueError, "one call of initialize"),
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
