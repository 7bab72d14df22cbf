"""What scripts do with half weights themselves: write, freeze and copy them between the steps of an amp optimizer."""

import copy
import gc

import numpy as np
import paddle
import pytest
from paddle import nn

from image_classification import amp


def scripted(mode="O2", rate=0.5, frozen=()):
    """Return a model of two layers as a script has it, bfloat16 weights and masters, its optimizer and one step."""
    paddle.seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    for index in frozen:
        for param in model[index].parameters():
            param.stop_gradient = True
    optimizer = paddle.optimizer.SGD(rate, parameters=model.parameters())
    model, optimizer = amp.initialize(model, optimizer, opt_level=mode, dtype="bfloat16", verbosity=0)

    def step():
        model(paddle.ones([3, 4])).sum().backward()
        result = optimizer.step()
        optimizer.clear_grad()
        return result

    return model, optimizer, step


WRITES = {
    "set_value": lambda param: param.set_value(paddle.zeros_like(param)),
    "in place": lambda param: param.zero_(),
    "copy_": lambda param: param.copy_(paddle.zeros_like(param), True),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("mode", ["O2", "naive"])
def test_what_is_written_into_half_weights_is_where_the_next_step_begins(mode, write):
    model, _, step = scripted(mode)
    step()
    with paddle.no_grad():
        for param in model.parameters():
            WRITES[write](param)
    step()  # all activations are 0, so the biases of the last layer alone move
    expected = {"0.weight": 0, "0.bias": 0, "1.weight": 0, "1.bias": -1.5}
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), np.full(value.shape, expected[name], "float32"), err_msg=name)


def test_state_set_on_the_half_model_itself_is_saved_and_trained():
    model, _, step = scripted()
    values = {name: paddle.full(value.shape, 0.25, "bfloat16") for name, value in model.state_dict().items()}
    model.model.set_state_dict(values)
    assert all((value == 0.25).all() for value in model.state_dict().values())
    step()
    assert float((model.state_dict()["0.weight"] - 0.25).abs().max()) > 0.5


def test_numbers_that_nobody_wrote_keep_the_bits_of_their_masters():
    model, optimizer, step = scripted(rate=1e-5)
    masters = amp.master_params(optimizer)
    for _ in range(2):  # updates that half weights cannot hold
        step()
        with paddle.no_grad():
            for param in model.parameters():
                paddle.assign(param.astype("float32").clip(-0.3, 0.3).astype("bfloat16"), param)
    kept = [master.numpy() for master in masters]
    assert all((master.astype("bfloat16").astype("float32") != master).any() for master in masters[::2])
    step()
    for before, master in zip(kept, masters, strict=True):
        inside = np.abs(before) < 0.29
        np.testing.assert_allclose(master.numpy()[inside], before[inside], atol=1e-3)
        assert (master.numpy()[inside] != before[inside]).any()


def test_steps_of_the_optimizer_alone_cost_no_look_at_the_half_weights():
    model, _, step = scripted()
    for _ in range(2):
        step()
        assert not any(param.was_written() for param in model.parameters())


@pytest.mark.parametrize("frozen", [(0,), (0, 1)])
@pytest.mark.parametrize("mode", ["O2", "naive"])
def test_weights_that_are_unfrozen_between_steps_are_trained(mode, frozen):
    model, _, step = scripted(mode, frozen=frozen)
    before = model.state_dict()["0.weight"].numpy()
    if frozen == (0,):
        step()
    np.testing.assert_array_equal(model.state_dict()["0.weight"].numpy(), before)
    for param in model.parameters():
        param.stop_gradient = False
    assert step().grad_norm > 0
    assert (model.state_dict()["0.weight"].numpy() != before).any()


@pytest.mark.parametrize("frozen", [(), (0,)])
def test_weights_whose_masters_are_frozen_between_steps_stay(frozen):
    model, optimizer, step = scripted(frozen=frozen)
    for param in model.parameters():
        param.stop_gradient = False
    step()
    before = model.state_dict()["0.weight"].numpy()
    for master in amp.master_params(optimizer)[:2]:
        master.stop_gradient = True
    step()
    np.testing.assert_array_equal(model.state_dict()["0.weight"].numpy(), before)


@pytest.mark.parametrize("mode", ["O1", "O2", "O3", "auto", "naive"])
def test_copy_of_a_model_has_all_its_bits_and_none_of_its_future(mode):
    model, _, step = scripted(mode)
    step()
    twin, state = copy.deepcopy(model), {name: value.numpy() for name, value in model.state_dict().items()}
    for _ in range(2):
        step()
    for name, value in twin.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), state[name], err_msg=name)
    assert (model.state_dict()["1.bias"].numpy() != state["1.bias"]).all()


def test_copy_of_a_half_model_is_trained_by_an_optimizer_of_its_own():
    precision = amp.build_precision("O2", dtype="bfloat16")
    twin = copy.deepcopy(precision.convert_model(nn.Linear(4, 2)))
    masters = precision.master_params(twin)
    before = twin.weight.astype("float32").numpy()
    with precision.forward_context():
        loss = twin(paddle.ones([1, 4])).sum()
    precision.backward(loss.astype("float32"))
    assert precision.step(paddle.optimizer.SGD(1.0, parameters=[master for _, master in masters])).grad_norm > 0
    assert (twin.weight.astype("float32").numpy() < before - 0.5).all()


def test_copies_that_are_gone_take_no_memory():
    model, _, step = scripted()
    known = model.precision.storage._halves
    for _ in range(3):
        copy.deepcopy(model)
    gc.collect()
    assert len(known) == 4
    step()
