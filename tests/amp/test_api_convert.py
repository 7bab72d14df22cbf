"""Mixed precision in somebody else's training script, by ColossalAI's `convert_to_amp`."""

import numpy as np
import paddle
import pytest
from paddle.nn import functional as F

from image_classification import amp
from tests.helpers.amp_models import batch, bits, network
from tests.helpers.amp_scripts import adamw, trained


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
