"""BatchNorms folded into convolutions: the same answers, and nothing folded that is read or shared elsewhere."""

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn

from image_classification import create_model
from image_classification.fold import fold_batch_norms


def moved(model):
    """Return the model in evaluation mode with statistics and parameters that no norm begins with."""
    paddle.seed(0)
    for layer in model.sublayers():
        if isinstance(layer, (nn.BatchNorm1D, nn.BatchNorm2D)):
            for tensor, start in ((layer._mean, 0.0), (layer._variance, 1.0), (layer.weight, 1.0), (layer.bias, 0.0)):
                tensor.set_value(start + 0.3 * paddle.rand(tensor.shape))
    model.eval()
    return model


def folded(model, x):
    """Return how many were folded; the answer stays the same to float32 accuracy."""
    with paddle.no_grad():
        expected = model(x).numpy()
        count = fold_batch_norms(model, x)
        found = model(x).numpy()
    # another order of products and sums of up to 20 layers
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * np.abs(expected).max())
    return count


class Chain(nn.Layer):
    """Convolution, norm and linear layer, norm, with a twist."""

    def __init__(self, twist):
        super().__init__()
        self.twist = twist
        self.conv = nn.Conv2D(3, 8, 3, padding=1, bias_attr=None if twist == "bias" else False)
        self.bn = nn.BatchNorm2D(8)
        self.fc, self.bn1 = nn.Linear(8, 4), nn.BatchNorm1D(4)
        self.other = nn.Conv2D(3, 8, 3, padding=1)
        if twist == "shared weight":
            self.other.weight = self.conv.weight

    def forward(self, x):
        y = self.conv(x)
        z = self.bn(y)
        if self.twist == "read":
            z = z + y
        if self.twist == "called twice":
            z = z + self.bn(self.conv(2 * x))
        if self.twist == "shared weight":
            z = z + self.other(x)
        if self.twist == "between":
            z = self.bn(F.relu(y))
        return self.bn1(self.fc(z.mean(axis=[2, 3])))


@pytest.mark.parametrize(("twist", "count"), [
    ("none", 2), ("bias", 2), ("read", 1), ("called twice", 1), ("shared weight", 1), ("between", 1),
])  # fmt: skip
def test_pair_is_folded_where_nothing_else_reads_or_shares_it(twist, count):
    assert folded(moved(Chain(twist)), paddle.randn([2, 3, 6, 6])) == count


def test_norm_that_trains_or_is_hooked_is_left_alone():
    model = moved(Chain("none"))
    model.bn.train()
    model.bn1.register_forward_post_hook(lambda *arguments: None)
    assert fold_batch_norms(model, paddle.randn([2, 3, 6, 6])) == 0
    assert type(model.bn) is nn.BatchNorm2D and model.conv.bias is None


class Pair(nn.Layer):
    """A layer and the norm after it, which is given the result by the word that is asked for, if any."""

    def __init__(self, layer, norm, word=None):
        super().__init__()
        self.layer, self.norm, self.word = layer, norm, word

    def forward(self, x):
        return self.norm(**{self.word: self.layer(x)}) if self.word else self.norm(self.layer(x))


@pytest.mark.parametrize(("layer", "norm", "shape"), [
    (lambda: nn.Linear(8, 5), lambda: nn.BatchNorm1D(5), [2, 5, 8]),  # a norm of tokens, as many as features
    (lambda: nn.Linear(8, 4), lambda: nn.BatchNorm1D(5), [2, 5, 8]),
    (lambda: nn.Conv2D(3, 6, 1, data_format="NHWC"), lambda: nn.BatchNorm2D(6), [2, 6, 4, 3]),  # a norm of rows
])  # fmt: skip
def test_norm_of_another_axis_than_the_layers_outputs_is_left_alone(layer, norm, shape):
    assert folded(moved(Pair(layer(), norm())), paddle.randn(shape)) == 0


def test_model_that_answers_with_names_and_gaps_is_folded():
    model = moved(Chain("none"))
    plain, x = model.forward, paddle.randn([2, 3, 6, 6])
    expected = plain(x).numpy()
    model.forward = lambda x: {"logits": plain(x), "further": [None, plain(x) > 0]}
    assert fold_batch_norms(model, x) == 0  # called twice
    model.forward = lambda x: {"logits": plain(x), "further": [None, 3]}
    assert fold_batch_norms(model, x) == 2
    np.testing.assert_allclose(plain(x).numpy(), expected, rtol=0, atol=2e-5 * np.abs(expected).max())  # as `folded`


def test_norm_that_is_given_its_input_by_name_is_left_alone():
    assert folded(moved(Pair(nn.Conv2D(3, 6, 1), nn.BatchNorm2D(6), "input")), paddle.randn([2, 3, 4, 4])) == 0


@pytest.mark.parametrize("name", ["resnet_tiny_digits", "regnet_tiny_digits", "mobilenet_tiny_digits"])
def test_every_norm_after_a_convolution_of_a_zoo_model_is_folded(name):
    model = moved(create_model(name))
    norms = sum(type(layer) is nn.BatchNorm2D for layer in model.sublayers())
    assert folded(model, paddle.randn([2, 3, 32, 32])) == norms > 3
    assert not [layer for layer in model.sublayers() if isinstance(layer, nn.BatchNorm2D)]
