"""Pieces of a state joined to the whole one; what real processes save and load is in checks_checkpoint.py."""

import numpy as np
import paddle
import pytest
from paddle import nn

from image_classification.optim import load_optimizer_state, optimizer_state
from image_classification.optim.groups import parameter_settings
from image_classification.optim.rules import Lamb
from image_classification.parallel.consolidate import Layout
from image_classification.parallel.group import Group
from image_classification.parallel.tensor import Cut


class Two:
    """Rank 0's view of two processes, of which the other one has the same pieces."""

    size, index, ranks = 2, 0, (0, 1)

    def all_gather(self, tensor):
        return [tensor, tensor]


def layer_and_optimizer(outputs, kind):
    """Return (a linear layer's named parameters, an optimizer of them after a step)."""
    layer = nn.Linear(4, outputs)
    named = list(layer.named_parameters())
    if kind == "LAMB":
        optimizer = Lamb(0.1, parameter_settings(named, 0.1))
    else:
        optimizer = paddle.optimizer.AdamW(0.1, parameters=layer.parameters())
    layer(paddle.ones([2, 4])).sum().backward()
    optimizer.step()
    return named, optimizer


@pytest.mark.parametrize("kind", ["AdamW", "LAMB"])
def test_optimizer_of_a_tensor_cut_to_single_numbers_is_saved_as_that_of_the_whole(kind):
    """A head of two classes on two processes: a piece of its bias is one number, as the powers of the betas are."""
    alone = Group("alone", [0], 0)
    layout = Layout(Two(), alone, alone, Two())
    pieces, optimizer = layer_and_optimizer(1, kind)
    layout.cuts = {"weight": Cut(1), "bias": Cut(0)}
    layout.local_shapes = {name: tuple(value.shape) for name, value in pieces}
    joined = layout.merge(optimizer_state(optimizer, pieces))
    whole, other = layer_and_optimizer(2, kind)
    expected = optimizer_state(other, whole)
    for key, value in expected.items():
        np.testing.assert_array_equal(joined[key], value.numpy(), err_msg=key)
    load_optimizer_state(other, whole, joined)  # another topology takes it
    for key, value in layout.cut(joined).items():  # and so does the same one
        assert list(value.shape) == list(optimizer_state(optimizer, pieces)[key].shape), key
