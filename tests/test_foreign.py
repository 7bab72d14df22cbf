"""PaddleViT's training checkpoints, written by Paddle in their form; its own training writes them in tests/peers."""

import re

import numpy as np
import paddle
import pytest

from image_classification import checkpoint
from image_classification.build import build_parts, build_trainer
from image_classification.config import load_config
from image_classification.evaluate_only import load_resumed_weights
from image_classification.foreign import check_fits, is_foreign, read_resumed
from image_classification.launch import resume
from image_classification.optim import optimizer_state
from image_classification.parallel.single import SingleProcess
from image_classification.runtime import UserError
from image_classification.ViT.vit import build_model
from tests.helpers.model_zoo import PACKAGE
from tests.helpers.weight_files import PADDLEVIT_TRANSFORMER

SIZES = {"IMAGE_SIZE": 16, "PATCH_SIZE": 8, "EMBED_DIM": 16, "DEPTH": 1, "NUM_HEADS": 2}
SCALER = {  # as paddle.amp.GradScaler.state_dict() is on a GPU
    "scale": np.array([1024.0], "float32"), "incr_ratio": 2.0, "decr_ratio": 0.5, "incr_every_n_steps": 2000,
    "decr_every_n_nan_or_inf": 1, "incr_count": 7, "decr_count": 0, "use_dynamic_loss_scaling": True,
}  # fmt: skip


def go_on(trainer):
    resume(trainer, *read_resumed(trainer.config))


def theirs(name):
    pattern, replacement = next(((p, r) for p, r in PADDLEVIT_TRANSFORMER if re.match(p, name)), ("$^", ""))
    return re.sub(pattern, replacement, name, count=1)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Return (path of a checkpoint after two steps of Paddle's AdamW, the model, the average of its weights)."""
    paddle.seed(5)
    model = build_model(image_size=16, patch_size=8, num_classes=4, embed_dim=16, depth=1, num_heads=2)
    schedule = paddle.optimizer.lr.CosineAnnealingDecay(0.01, T_max=4)
    optimizer = paddle.optimizer.AdamW(schedule, parameters=model.parameters())
    images = paddle.randn([8, 3, 16, 16])
    for _ in range(2):
        paddle.nn.functional.cross_entropy(model(images), paddle.arange(8) % 4).backward()
        optimizer.step()
        optimizer.clear_grad()
    average = {name: value * 0.5 for name, value in model.state_dict().items()}
    state = {"model": {theirs(name): value for name, value in model.state_dict().items()},
             "model_ema": {theirs(name): value for name, value in average.items()}, "optimizer": optimizer.state_dict(),
             "epoch": 3, "lr_scheduler": schedule.state_dict(), "amp_grad_scaler": SCALER}  # fmt: skip
    path = tmp_path_factory.mktemp("paddlevit") / "Epoch-3-Loss-1.5.pdparams"
    paddle.save(state, str(path))
    return path, model, optimizer, average


def load(path, *options, eval_only=False):
    words = [f"-cfg={PACKAGE / 'ViT/configs/vit_tiny_digits.yaml'}", f"-resume={path}", *(["-eval"] * eval_only)]
    words += ["-opts", "DATA.DATASET=synthetic", "DATA.SYNTHETIC_IMAGES=16", "DATA.BATCH_SIZE=8", "DEVICE=cpu"]
    words += ["MODEL.NUM_CLASSES=4", "DATA.NUM_WORKERS=0", "TRAIN.NUM_EPOCHS=5", "MODEL.MLP_RATIO=4.0"]
    words += [f"{'DATA' if key == 'IMAGE_SIZE' else 'MODEL'}.{key}={value}" for key, value in SIZES.items()]
    config = load_config([*words, *options], build_model)
    return build_parts(config, build_model, SingleProcess())


def test_checkpoint_continues_weights_moments_average_scale_and_epoch(written, caplog):
    path, model, optimizer, average = written
    trainer = build_trainer(load(path, "AMP.MODE=auto", "AMP.DTYPE=float16", "TRAIN.MODEL_EMA=True"))
    with caplog.at_level("INFO", "image_classification"):
        go_on(trainer)
    assert "its weights, schedule, average, loss scale 1024 and epoch 3; data order" in caplog.text
    assert (trainer.progress.epoch, trainer.progress.step, trainer.precision.loss_scale) == (3, 6, 1024)
    named = dict(trainer.precision.master_params(trainer.model))
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(named[name].numpy(), value.numpy(), err_msg=name)
        np.testing.assert_array_equal(trainer.ema.state_dict()[name].numpy(), average[name].numpy(), err_msg=name)
    state = optimizer_state(trainer.optimizer, list(named.items()))
    for name, parameter in model.named_parameters():
        for slot in ("moment1", "moment2", "beta1_pow_acc", "beta2_pow_acc"):
            expected = optimizer._accumulators[slot][parameter.name].numpy()
            np.testing.assert_array_equal(state[f"{name}/{slot}"].numpy(), expected, err_msg=f"{name} {slot}")
    trainer.train_epoch(0.0)
    assert trainer.progress.epoch == 4 and trainer.last_result.applied


def test_what_has_no_place_here_starts_afresh_and_is_named(written, caplog):
    trainer = build_trainer(load(written[0], "TRAIN.OPTIMIZER.NAME=Momentum"))
    with caplog.at_level("INFO", "image_classification"):
        go_on(trainer)
    assert "best top-1, the optimizer, whose state is another one's" in caplog.text
    assert "averaged weights are not used: TRAIN.MODEL_EMA is False" in caplog.text
    assert not any(value.numpy().any() for value in optimizer_state(
        trainer.optimizer, trainer.precision.master_params(trainer.model)).values())  # fmt: skip


@pytest.mark.parametrize("is_own", [False, True])
def test_checkpoint_is_compared_with_a_model_whose_classes_the_data_have_not_decided(written, is_own):
    path, model, *_ = written
    own = {"format": 1, "model": {name: value.numpy() for name, value in model.state_dict().items()}}
    tree = own if is_own else checkpoint.read(path)
    words = ["-cfg=vit_tiny_digits", "-eval", "-data_path=/none", "-opts", "DATA.DATASET=folder"]
    config = load_config(words, build_model)
    sizes = {name.lower(): value for name, value in SIZES.items()}
    check_fits(config, build_model(**sizes, num_classes=1000), path, tree)
    for other, why in (({"depth": 2}, "it lacks blocks.1"), ({"embed_dim": 24}, "it has other shapes: ")):
        with pytest.raises(UserError, match=f"^-resume: {path}: is of another model: {why}"):
            check_fits(config, build_model(**sizes | other, num_classes=4), path, tree)


def test_evaluation_takes_the_average(written):
    parts = load(written[0], eval_only=True)
    load_resumed_weights(parts, *read_resumed(parts.config))
    for name, value in written[3].items():
        np.testing.assert_array_equal(parts.model.state_dict()[name].numpy(), value.numpy(), err_msg=name)


def test_checkpoint_of_another_model_or_a_damaged_one_is_one_line(written, tmp_path):
    with pytest.raises(UserError, match="is of another model: it .*blocks.1"):
        go_on(build_trainer(load(written[0], "MODEL.DEPTH=2")))
    tree = paddle.load(str(written[0]))
    assert is_foreign(tree) and not is_foreign({"model": {}, "format": 1, "epoch": 0})
    for epoch in (-1, "3", 1e9, True, 1 << 62):
        paddle.save(tree | {"epoch": epoch}, str(tmp_path / "bad.pdparams"))
        with pytest.raises(UserError, match="epoch: expected an integer"):
            read_resumed(load_config(["-cfg=vit_tiny_digits", f"-resume={tmp_path / 'bad'}"], build_model))
    strange = {"model_ema": 5, "optimizer": [1], "amp_grad_scaler": {"scale": "much"}}
    paddle.save(tree | strange, str(tmp_path / "strange.pdparams"))
    go_on(build_trainer(load(tmp_path / "strange.pdparams", "AMP.MODE=auto", "AMP.DTYPE=float16")))
    paddle.save(tree | {"model": {}}, str(tmp_path / "bad.pdparams"))
    with pytest.raises(UserError, match="is of another model: it lacks"):
        go_on(build_trainer(load(tmp_path / "bad.pdparams")))
    paddle.save({"model": {}, "optimizer": {}}, str(tmp_path / "bad.pdparams"))
    with pytest.raises(UserError, match="is not a training checkpoint, it lacks .*; -pretrained takes weights alone"):
        checkpoint.load(tmp_path / "bad.pdparams")
