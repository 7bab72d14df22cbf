"""The undocumented names of Paddle that `amp` stands on: each test names the one that a release removed or changed."""

import weakref

import numpy as np
import paddle

from image_classification.amp import private


def test_squared_l2_norm_is_the_sum_of_squares():
    values = np.arange(12, dtype="float32").reshape(3, 4)
    assert private.squared_l2_norm(paddle.to_tensor(values)).item() == float((values**2).sum())


def test_optimizer_parameters_come_flat_and_in_order():
    layers = [paddle.nn.Linear(2, 2), paddle.nn.Linear(2, 2)]
    params = [param for layer in layers for param in layer.parameters()]
    plain = paddle.optimizer.SGD(0.1, parameters=params)
    groups = paddle.optimizer.SGD(0.1, parameters=[{"params": layer.parameters()} for layer in layers])
    for optimizer in (plain, groups):
        assert all(a is b for a, b in zip(private.optimizer_parameters(optimizer), params, strict=True))


def test_added_group_is_updated_by_the_next_step():
    first, second = paddle.create_parameter([2], "float32"), paddle.create_parameter([2], "float32")
    optimizer = paddle.optimizer.SGD(1.0, parameters=[{"params": [first]}])
    private.add_param_group(optimizer, {"params": [second], "learning_rate": 0.5})
    before = second.numpy().copy()
    second.grad = paddle.ones([2])
    optimizer.step()
    np.testing.assert_allclose(before - second.numpy(), [0.5, 0.5], rtol=1e-6)
    assert private.optimizer_parameters(optimizer)[1] is second


def test_lists_are_sets_of_names():
    for dtype in ("float16", "bfloat16"):
        white, black = private.amp_lists(dtype)
        assert "matmul_v2" in white
        assert "softmax" in black
        assert not white & black


def test_operator_names_are_those_of_the_operator_table():
    assert {"matmul", "conv2d", "softmax", "batch_norm"} <= private.operator_names()


def test_twin_of_a_parameter_keeps_name_and_attributes():
    attributes = paddle.ParamAttr(learning_rate=0.1, need_clip=False, regularizer=paddle.regularizer.L2Decay(0.5))
    param = paddle.nn.Linear(2, 2, weight_attr=attributes).weight
    param.is_distributed = True
    twin = private.HalfParameter.of(param, "float16", weakref.WeakValueDictionary())
    assert twin.dtype == paddle.float16
    assert isinstance(twin, type(param))
    assert (twin.name, twin.trainable, twin.stop_gradient) == (param.name, True, False)
    assert (twin.optimize_attr, twin.need_clip, twin.is_distributed) == ({"learning_rate": 0.1}, False, True)
    assert twin.regularizer is param.regularizer
    assert twin.master is param


def test_cast_in_place_keeps_the_object_and_its_place_in_the_layer():
    layer = paddle.nn.Linear(2, 2)
    weight, values = layer.weight, layer.weight.numpy()
    private.cast_in_place(weight, "float16")
    assert layer.weight is weight
    assert weight.dtype == paddle.float16
    np.testing.assert_array_equal(weight.numpy(), values.astype("float16"))
    weight.astype("float32").sum().backward()
    assert weight.grad.dtype == paddle.float16


def test_gradient_of_a_parameter_can_be_set():
    param = paddle.create_parameter([2], "float32")
    param.grad = paddle.ones([2])
    np.testing.assert_array_equal(param.grad.numpy(), [1.0, 1.0])
    param.clear_gradient(False)
    assert param.grad is None


def test_hook_for_gradients_is_noticed():
    param = paddle.create_parameter([2], "float32")
    assert not private.has_gradient_hooks(param)
    assert private.has_gradient_hooks(param)  # one was there, the one that asked
    (param * 2).sum().backward()
    np.testing.assert_array_equal(param.grad.numpy(), [2.0, 2.0])


def test_moved_tensor_stays_where_the_first_is_cleared():
    param = paddle.create_parameter([2], "float32")
    (param * 2).sum().backward()
    moved = private.moved(param.grad)
    assert moved.data_ptr() == param.grad.data_ptr()
    param.clear_gradient(False)
    (param * 3).sum().backward()
    np.testing.assert_array_equal(moved.numpy(), [2.0, 2.0])
    np.testing.assert_array_equal(param.grad.numpy(), [3.0, 3.0])


def test_post_hook_is_called_after_an_error():
    layer, called = paddle.nn.Linear(2, 2), []
    layer.register_forward_post_hook(lambda *_: called.append(True), always_call=True)
    try:
        layer(paddle.ones([1, 3]))
    except ValueError:
        assert called == [True]
    else:
        raise AssertionError("a wrong shape was accepted")
