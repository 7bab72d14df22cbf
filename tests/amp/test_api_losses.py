"""Mixed precision in somebody else's training script: several losses, models, optimizers and groups; clipping."""

import numpy as np
import paddle
import pytest
from paddle.nn import functional as F

from image_classification import amp
from image_classification.amp.gradients import gradients_of
from tests.helpers.amp_models import batch, bits, network
from tests.helpers.amp_scripts import iterate, loss_of, start, trained


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


@pytest.mark.parametrize("level", ["O1", "O2", "O3", "naive", "auto"])
@pytest.mark.parametrize("order", ["before", "behind", "behind-clip"])
def test_plain_backward_beside_a_scaled_one_is_added_and_checked(level, order):
    """The gradient of a half weight waited for the next step, and inf that came after the check was applied."""
    for factor in (2.0, float("inf")):
        model = paddle.nn.Linear(3, 2)
        optimizer = paddle.optimizer.SGD(1.0, parameters=model.parameters())
        model, optimizer = amp.initialize(model, optimizer, opt_level=level, loss_scale=8.0, verbosity=0)
        before = model.state_dict()["bias"].numpy()
        x = paddle.ones([1, 3])
        if order == "before":
            (model(x).sum() * factor).backward()
        with amp.scale_loss(model(x).sum(), optimizer) as scaled_loss:
            scaled_loss.backward()
        if order == "behind-clip":
            optimizer.clip_grad_norm(100.0)
        if order != "before":
            (model(x).sum() * factor).backward()
        assert optimizer.step().applied == np.isfinite(factor)
        moved = before - model.state_dict()["bias"].numpy()
        np.testing.assert_allclose(moved, 3.0 if np.isfinite(factor) else 0.0, atol=1e-6)


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "auto"])
@pytest.mark.parametrize("optimizer", ["SGD", "Momentum", "AdamW"])
def test_sparse_gradients_of_an_embedding_train_as_dense_ones_do(level, optimizer):
    """They were read as dense tensors, which ended the process."""
    ends = []
    for sparse in (False, True):
        paddle.seed(0)
        model = paddle.nn.Sequential(paddle.nn.Embedding(10, 4, sparse=sparse), paddle.nn.Linear(4, 2))
        made = getattr(paddle.optimizer, optimizer)(0.1, parameters=model.parameters())
        model, made = amp.initialize(model, made, opt_level=level, loss_scale=8.0, verbosity=0)
        for _ in range(2):
            for index in ([1, 2, 2, 5], [1, 7]):
                with amp.scale_loss(model(paddle.to_tensor(index)).sum(), made) as scaled_loss:
                    scaled_loss.backward()
            assert made.clip_grad_norm(1.0) > 0
            assert made.step().applied
            made.clear_grad()
        ends.append(model.state_dict()["0.weight"].numpy())
    np.testing.assert_allclose(ends[1], ends[0], atol=1e-6)


def test_list_of_gradients_has_dense_ones_alone():
    embedding = paddle.nn.Embedding(10, 4, sparse=True)
    embedding(paddle.to_tensor([1, 2, 2])).sum().backward()
    assert not embedding.weight.grad.is_dense()
    (gradient,) = gradients_of([("weight", embedding.weight)])
    assert gradient.is_dense()
    np.testing.assert_array_equal(gradient.numpy()[:4, 0], [0, 1, 2, 0])


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


@pytest.mark.parametrize("optimizer", [paddle.optimizer.SGD, paddle.optimizer.Adamax])  # with a kernel and without
@pytest.mark.parametrize("level", ["auto", "O0", "O1", "O2", "O3", "naive"])
def test_generator_learns_through_a_discriminator_that_has_stepped_meanwhile(level, optimizer):
    """One optimizer's step writes none of the weights that another one's pending backward pass needs."""
    results = []
    for again in (False, True):
        paddle.seed(0)
        models = [paddle.nn.Sequential(paddle.nn.Linear(4, 6), paddle.nn.Linear(6, 4)) for _ in range(2)]
        optimizers = [optimizer(0.1, parameters=model.parameters()) for model in models]
        models, optimizers = amp.initialize(models, optimizers, opt_level=level, loss_scale=128.0, verbosity=0)
        (generator, critic), (slow, fast) = models, optimizers
        noise = paddle.linspace(-1.0, 1.0, 12).reshape([3, 4])
        images = generator(noise)
        with amp.scale_loss(critic(images.detach()).mean(), fast) as scaled_loss:
            scaled_loss.backward()
        assert fast.step().applied
        images = generator(noise) if again else images
        with amp.scale_loss(critic(images).mean(), slow) as scaled_loss:
            scaled_loss.backward()
        assert slow.step().applied
        results.append(bits(generator.state_dict()))
    assert results[0] == results[1]


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
    assert all(param.grad is None for param in trained(optimizer))
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


@pytest.mark.parametrize("delay", [False, True])
def test_cleared_gradients_leave_neither_scale_nor_norm(delay):
    ends = []
    for dropped in (False, True):
        model, optimizer = start("O2", loss_scale=8.0)
        model.eval()
        if dropped:
            with amp.scale_loss(loss_of(model), optimizer, delay_unscale=delay) as scaled_loss:
                scaled_loss.backward()
            optimizer.clear_grad()
            assert delay or optimizer.step().grad_norm == 0
        loss_of(model).backward()
        ends.append((optimizer.step(), bits(model.state_dict())))
    assert ends[0] == ends[1]


def test_second_step_applies_the_gradients_that_were_not_cleared():
    paddle.seed(0)
    model = paddle.nn.Linear(3, 2)
    optimizer = paddle.optimizer.SGD(1.0, parameters=model.parameters())
    model, optimizer = amp.initialize(model, optimizer, opt_level="O2", loss_scale=8.0, verbosity=0)
    before = model.state_dict()["bias"].numpy()
    with amp.scale_loss(model(paddle.ones([1, 3])).sum(), optimizer) as scaled_loss:
        scaled_loss.backward()
    assert [optimizer.step().applied, optimizer.step().applied] == [True, True]
    np.testing.assert_array_equal(before - model.state_dict()["bias"].numpy(), 2.0)  # a new bias is 0


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
