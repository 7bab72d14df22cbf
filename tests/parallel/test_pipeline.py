"""What a stage of a pipeline is by itself; what stages do together is in test_parallel.py."""

from types import SimpleNamespace

import paddle
import pytest

from image_classification.DeiT.deit import build_model
from image_classification.parallel.pipeline import Stage
from image_classification.runtime import UserError

LAST = SimpleNamespace(size=2, index=1)


def model():
    return build_model(image_size=16, patch_size=8, num_classes=3, embed_dim=8, depth=2, num_heads=2, distilled=True)


def test_links_of_a_stage_follow_its_mode():
    stage = Stage(model(), LAST)
    stage._model[0].separate_heads = True  # as in a training with a teacher: then logits of each head, in training only
    tokens = paddle.ones([4, 6, 8])
    shapes = []
    for switch in (stage.eval, stage.train):
        switch()
        shapes.append(stage(tokens).shape)
    assert shapes == [[4, 3], [4, 2, 3]]


def test_stage_states_for_the_optimizer_what_the_whole_model_states():
    whole = model()
    exempted, groups = whole.no_weight_decay(), whole.layer_groups()
    stage = Stage(whole, SimpleNamespace(size=2, index=0))  # which has the embeddings
    assert exempted and groups and (stage.no_weight_decay(), stage.layer_groups()) == (exempted, groups)


def test_stage_without_a_parameter_to_train_is_an_error():
    frozen = model()
    for name, param in frozen.named_parameters():
        param.stop_gradient = name.startswith(("blocks.1.", "norm.", "head"))
    with pytest.raises(UserError, match="PARALLEL.PIPELINE 2: every parameter of stage 1 is frozen"):
        Stage(frozen, LAST)


def test_more_stages_than_blocks_are_an_error():
    with pytest.raises(UserError, match="PARALLEL.PIPELINE 3: the model has 2 blocks, fewer than stages"):
        Stage(model(), SimpleNamespace(size=3, index=0))
