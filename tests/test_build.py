"""From a configuration to the objects of a run: what a section of the YAML means for the parts."""

import random
import sys
from types import SimpleNamespace

import numpy as np
import paddle
import pytest

from image_classification.build import build_parts
from image_classification.ema import EMA, NoEMA
from image_classification.launch import run
from image_classification.parallel.context import Context
from image_classification.parallel.single import SingleProcess
from image_classification.runtime import UserError
from image_classification.ViT.vit import build_model as build_vit
from tests.helpers.small_runs import build_net, config_of, trainer_of


class FirstOfTwo(SingleProcess):
    """The first of two replicas, whose partner never answers: for what is built before anything is computed."""

    world_size = data_size = 2


@pytest.mark.parametrize(
    ("batch_size", "window", "parallel", "factor"),
    [(4, 1, SingleProcess(), 4), (4, 3, SingleProcess(), 12), (2, 1, FirstOfTwo(), 4), (2, 5, FirstOfTwo(), 20)],
)
def test_scaled_learning_rate_counts_accumulation_and_replicas(batch_size, window, parallel, factor):
    """BASE_LR belongs to LINEAR_SCALED_LR images (Goyal et al. 2017); a step sees batch x accumulation x replicas."""
    train = {"BASE_LR": 0.5, "LINEAR_SCALED_LR": 1, "ACCUM_ITER": window, "LR_SCHEDULER": {"NAME": "constant"}}
    trainer = trainer_of(config_of(data={"BATCH_SIZE": batch_size}, train=train), parallel=parallel)
    assert trainer.schedule(0) == 0.5 * factor


@pytest.mark.parametrize(("window", "steps"), [(1, 5), (2, 3), (5, 1), (7, 1)])
def test_schedule_counts_optimizer_steps_of_an_epoch(window, steps):
    """Five micro-batches an epoch: a linear decay over two epochs is half way after those of one."""
    train = {"BASE_LR": 1.0, "END_LR": 0.0, "NUM_EPOCHS": 2, "ACCUM_ITER": window, "LR_SCHEDULER": {"NAME": "linear"}}
    trainer = trainer_of(config_of(train=train))
    assert trainer.steps_per_epoch == steps
    assert trainer.schedule(steps) == pytest.approx(0.5)


@pytest.mark.parametrize("norm", [None, 0.5])
def test_gradients_are_clipped_where_the_recipe_says_so(norm):
    assert trainer_of(config_of(train={"GRAD_CLIP": norm})).precision.clip_grad_norm == norm


def test_optimizer_follows_what_the_model_exempts_and_its_layers():
    def build_model(num_classes: int = 4, in_channels: int = 3):
        model = build_net(num_classes, in_channels)
        model.no_weight_decay = lambda: frozenset({"fc.weight"})
        return model

    train = {"WEIGHT_DECAY": 0.1, "OPTIMIZER": {"NAME": "Momentum", "LAYER_DECAY": 0.5}}
    named = trainer_of(config_of(train=train), build_model).model.named_parameters()
    params = {name: param for name, param in named if not param.stop_gradient}
    assert [name for name, param in params.items() if param.regularizer is not None] == ["conv.weight"]
    assert {name: param.optimize_attr["learning_rate"] for name, param in params.items()} == {
        "conv.weight": 0.5, "conv.bias": 0.5, "bn.weight": 0.5, "bn.bias": 0.5, "fc.weight": 1.0, "fc.bias": 1.0,
    }  # fmt: skip


@pytest.mark.parametrize(("window", "stages", "warned"), [(1, 2, True), (3, 4, True), (2, 2, False), (1, 1, False)])
def test_pipeline_of_fewer_micro_batches_than_stages_is_warned_of_in_one_line(caplog, window, stages, warned):
    trainer_of(config_of(train={"ACCUM_ITER": window}, PARALLEL={"PIPELINE": stages}))
    line = f"TRAIN.ACCUM_ITER {window}: fewer micro-batches than the {stages} stages of PARALLEL.PIPELINE, "
    assert [message.startswith(line) for message in caplog.messages if "PIPELINE" in message] == [True] * warned


@pytest.mark.parametrize(("wanted", "kind"), [(True, EMA), (False, NoEMA)])
def test_average_is_built_where_it_is_asked_for_and_moved_by_a_hook(wanted, kind):
    trainer = trainer_of(config_of(train={"MODEL_EMA": wanted, "MODEL_EMA_DECAY": 0.5, "NUM_EPOCHS": 1}))
    assert type(trainer.ema) is kind
    before = {name: value.numpy().copy() for name, value in trainer.ema.state_dict().items()}
    trainer.fit()
    after = trainer.ema.state_dict()
    assert all((after[name].numpy() != value).any() for name, value in before.items() if name.endswith("weight"))


class SecondOfTwo(FirstOfTwo):
    rank = data_rank = 1


def test_replicas_draw_differently_after_the_model_was_built_alike():
    """What a hook or a data set draws from Python's and NumPy's generators is another number on each replica."""
    draws, weights = [], []
    for parallel in (FirstOfTwo(), SecondOfTwo(), FirstOfTwo()):
        parts = build_parts(config_of(data={"BATCH_SIZE": 2}), build_net, parallel)
        draws.append((random.random(), np.random.random()))
        weights.append(parts.model.fc.weight.numpy())
    assert draws[0] == draws[2] and draws[0][0] != draws[1][0] and draws[0][1] != draws[1][1]
    assert (weights[0] == weights[1]).all()


def test_evaluation_never_replaces_the_head_and_training_may(tmp_path):
    """With weights of five classes a model of four is trained from a fresh head; its evaluation would be noise."""
    path = tmp_path / "five.pdparams"
    paddle.save(build_net(num_classes=5).state_dict(), str(path))
    pretrained = {"NUM_CLASSES": 4, "PRETRAINED": str(path)}
    parts = build_parts(config_of(MODEL=pretrained), build_net, SingleProcess())
    assert parts.model.fc.weight.shape == [8, 4]
    with pytest.raises(UserError, match="fc.weight"):
        build_parts(config_of(MODEL=pretrained, EVAL=True), build_net, SingleProcess())


class Sharing(SingleProcess):
    """One of processes that share a model, which never answer."""

    check_model = Context.check_model

    def __init__(self, tensor=1, pipeline=1):
        super().__init__()
        self.tensor, self.pipeline = SimpleNamespace(size=tensor), SimpleNamespace(size=pipeline)


def build_transformer(num_classes: int = 4, in_channels: int = 3, image_size: int = 8):
    return build_vit(image_size, 4, in_channels, num_classes, embed_dim=6, depth=2, num_heads=3)


@pytest.mark.parametrize(("sections", "message"), [
    ({"MODEL": {"PRETRAINED": "gone.pdparams"}}, "-pretrained: .*gone.pdparams: no such file"),
    ({"MODEL": {"RESUME": "gone.pdparams"}}, "-resume: .*gone.pdparams: no such file"),
    ({"MODEL": {"TEACHER": "gone.pdparams"}, "train": {"DISTILLATION_TYPE": "soft"}}, "MODEL.TEACHER gone.*no such"),
    ({"MODEL": {"TEACHER": __file__}, "train": {"DISTILLATION_TYPE": "soft"}}, "build.py: no such.*TEACHER_CFG says"),
    ({"MODEL": {"TEACHER": __file__, "TEACHER_CFG": "resnet5"}, "train": {"DISTILLATION_TYPE": "soft"}},
     "MODEL.TEACHER .*did you mean resnet50[?]$"),
    ({"train": {"DISTILLATION_TYPE": "soft"}}, "TRAIN.DISTILLATION_TYPE soft: needs MODEL.TEACHER"),
    ({"train": {"FREEZE": ["bm.*"]}}, "TRAIN.FREEZE: 'bm.*' matches no parameter"),
    ({"train": {"HOOKS": ["nowhere:Mine"]}}, "TRAIN.HOOKS: 'nowhere:Mine'"),
    ({"train": {"CLASS_WEIGHTS": [1, 2]}}, "TRAIN.CLASS_WEIGHTS: 2 weights for 4 classes"),
    ({"train": {"COLOR_JITTER": [0.1, 0.2]}}, "TRAIN.COLOR_JITTER"),
    ({"data": {"IMAGE_SIZE": 224, "CROP_PCT": 0.01}}, "DATA.CROP_PCT 0.01: .* 22400 x 22400 pixels"),
    ({"data": {"CROP_PCT": 1e-300}, "EVAL": True, "MODEL": {"PRETRAINED": "own"}}, "DATA.CROP_PCT .* 8e.300 pixels"),
    ({"data": {"IMAGE_CHANNELS": 2, "IMAGENET_MEAN": [0, 0], "IMAGENET_STD": [1, 1]}}, "IMAGE_CHANNELS: .*found 2"),
    ({"data": {"IMAGENET_MEAN": [0.5]}}, "DATA.IMAGENET_MEAN: has 1 values, DATA.IMAGE_CHANNELS is 3"),
    ({"data": {"LOADER": "dali"}}, "DATA.LOADER: dali needs the package nvidia-dali"),
    ({"data": {"LOADER": "dali"}, "EVAL": True, "MODEL": {"PRETRAINED": "own"}}, "DATA.LOADER: dali needs the package"),
    ({"amp": {"MODE": "O2", "KEEP_FLOAT32": ["blocks.1.hed"]}}, "AMP: keep_float32: .* no layer 'blocks.1.hed'"),
    ({"parallel": Sharing(tensor=2)}, "PARALLEL.TENSOR 2: blocks.0.attn: 3 attention heads do not divide by it"),
    ({"parallel": Sharing(tensor=3)}, "gone"),
    ({"parallel": Sharing(pipeline=3)}, "PARALLEL.PIPELINE 3: the model has 2 blocks, fewer than stages"),
    ({"parallel": Sharing(pipeline=2), "train": {"FREEZE": ["blocks.1.*", "norm.*", "head.*"]}},
     "PARALLEL.PIPELINE 2: every parameter of stage 1 is frozen"),
])  # fmt: skip
def test_what_a_configuration_has_wrong_is_said_before_the_data_are_read(sections, message, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    data = {"DATASET": "folder", "DATA_PATH": str(tmp_path / "gone")} | sections.pop("data", {})
    parallel = sections.pop("parallel", SingleProcess())
    if sections.get("MODEL") == {"PRETRAINED": "own"}:
        sections["MODEL"] = {"PRETRAINED": str(tmp_path / "own.pdparams"), "NUM_CLASSES": 4}
        paddle.save(build_transformer().state_dict(), str(tmp_path / "own.pdparams"))
    with pytest.raises(UserError, match=message):
        run(config_of(data=data, **sections), build_transformer, parallel)
