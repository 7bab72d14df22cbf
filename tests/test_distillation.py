"""Distillation against NumPy in float64 and equations 2 and 3 of DeiT, and in whole trainings."""

import contextlib

import numpy as np
import paddle
import pytest
from PIL import Image

from image_classification.build import build_parts, build_trainer
from image_classification.config import load_config
from image_classification.DeiT.deit import build_model
from image_classification.distillation import Distillation, Teacher
from image_classification.losses import Criterion
from image_classification.metrics import num_correct
from image_classification.parallel.single import SingleProcess
from image_classification.runtime import UserError
from image_classification.zoo import load_model
from tests.helpers.entry import report_of, run_well
from tests.helpers.model_zoo import PACKAGE

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(scale=2, size=(5, 2, 4)).astype("float32")  # of both heads
TEACHER = RNG.normal(scale=2, size=(5, 4)).astype("float32")
LABELS = np.array([0, 3, 1, 1, 2])


def log_softmax(x):
    x = x.astype("float64")
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def reference(own, distilled, kind, alpha, tau):
    """Return equation 2 or 3 of Touvron et al. 2021 in float64."""
    rows = np.arange(len(LABELS))
    base = -log_softmax(own)[rows, LABELS].mean()
    if kind == "hard":
        distance = -log_softmax(distilled)[rows, TEACHER.argmax(axis=1)].mean()
    else:
        expected = log_softmax(TEACHER / tau)
        distance = tau**2 * (np.exp(expected) * (expected - log_softmax(distilled / tau))).sum(axis=1).mean()
    return (1 - alpha) * base + alpha * distance


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize(("kind", "alpha", "tau"), [("hard", 0.5, 1.0), ("soft", 0.1, 3.0), ("soft", 1.0, 1.0)])
def test_loss_equals_the_papers_equations(kind, alpha, tau, heads):
    logits = LOGITS if heads == 2 else LOGITS[:, 0]
    own, distilled = (LOGITS[:, 0], LOGITS[:, 1]) if heads == 2 else (logits, logits)
    criterion = Distillation(Criterion(), kind, alpha, tau)
    loss = criterion(paddle.to_tensor(logits), (paddle.to_tensor(LABELS), paddle.to_tensor(TEACHER)))
    assert loss.item() == pytest.approx(reference(own, distilled, kind, alpha, tau), rel=1e-6)


def test_loss_of_labels_keeps_smoothing_and_the_teacher_none():
    targets = paddle.to_tensor(LABELS), paddle.to_tensor(TEACHER)
    logits = paddle.to_tensor(LOGITS)
    both = Distillation(Criterion(smoothing=0.1), "hard", 0.25, 1.0)(logits, targets).item()
    base = Criterion(smoothing=0.1)(logits[:, 0], targets[0]).item()
    distance = Criterion()(logits[:, 1], targets[1].argmax(axis=1)).item()
    assert both == pytest.approx(0.75 * base + 0.25 * distance, rel=1e-6)


def test_accuracy_of_two_heads_is_that_of_their_mean():
    best = LOGITS.mean(axis=1).argmax(axis=1)
    assert all((LOGITS[:, head].argmax(axis=1) != best).any() for head in (0, 1))
    assert num_correct(paddle.to_tensor(LOGITS), paddle.to_tensor(best)).item() == len(best)


def test_teacher_sees_images_normalised_as_its_own():
    class Mean:
        def forward_context(self):
            return contextlib.nullcontext()

    one = paddle.ones([1])
    one.stop_gradient = False
    pixels = RNG.random((2, 3, 4, 4)).astype("float32")
    student, own = ((0.5,) * 3, (0.5,) * 3), ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    teacher = Teacher(lambda images: images * one, Mean(), student, own)
    labels, seen = teacher(paddle.to_tensor((pixels - 0.5) / 0.5), "labels")
    expected = (pixels - np.reshape(own[0], (3, 1, 1))) / np.reshape(own[1], (3, 1, 1))
    assert labels == "labels" and seen.stop_gradient  # nothing is kept for a backward pass
    np.testing.assert_allclose(seen.numpy(), expected, atol=1e-6)  # a few roundings of numbers up to 2.6


# ---- whole trainings


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """Weights of a small ResNet, as a file that does not say what it is."""
    paddle.seed(7)
    model, _ = load_model("resnet_tiny_digits", options=["MODEL.NUM_CLASSES=4"])
    path = tmp_path_factory.mktemp("teacher") / "weights.pdparams"
    paddle.save(model.state_dict(), str(path))
    return path


SYNTHETIC = "DATA.DATASET=synthetic", "DATA.SYNTHETIC_IMAGES=16", "MODEL.NUM_CLASSES=4"


def trainer_of(weights, *options, argv=(), parallel=None, data=SYNTHETIC):
    words = [f"-cfg={PACKAGE / 'DeiT/configs/deit_tiny_digits.yaml'}", *argv, "-opts", *data]
    words += ["DATA.BATCH_SIZE=4", "DATA.BATCH_SIZE_EVAL=4"]
    words += ["MODEL.DISTILLED=True", "MODEL.DEPTH=1", "TRAIN.NUM_EPOCHS=2", "TRAIN.WARMUP_EPOCHS=0", "DEVICE=cpu"]
    words += ["DATA.NUM_WORKERS=0", "TRAIN.DISTILLATION_TYPE=hard", f"MODEL.TEACHER={weights}"]
    config = load_config([*words, "MODEL.TEACHER_CFG=resnet_tiny_digits", *options], build_model)
    return build_trainer(build_parts(config, build_model, parallel or SingleProcess()))


def gradients(trainer, window):
    """Return the gradients of the first `window` micro-batches."""
    trainer.model.train()
    batches = trainer.train_loader.iterate(0)
    list(trainer.forward_backward([next(batches) for _ in range(window)]))
    return {name: parameter.grad.numpy() for name, parameter in trainer.model.named_parameters()}


def test_each_head_learns_from_its_own_part_of_the_loss(weights):
    from_labels = gradients(trainer_of(weights, "TRAIN.DISTILLATION_ALPHA=0"), 1)
    from_teacher = gradients(trainer_of(weights, "TRAIN.DISTILLATION_ALPHA=1"), 1)
    assert not from_labels["head_dist.weight"].any() and from_labels["head.weight"].any()
    assert not from_teacher["head.weight"].any() and from_teacher["head_dist.weight"].any()


@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_accumulation_gives_the_gradients_of_the_whole_batch(weights, kind):
    both = [f"TRAIN.DISTILLATION_TYPE={kind}", *(["TRAIN.DISTILLATION_TAU=2"] if kind == "soft" else [])]
    whole = gradients(trainer_of(weights, *both, "DATA.BATCH_SIZE=8"), 1)
    parts = gradients(trainer_of(weights, *both), 2)
    for name, value in whole.items():  # sums of eight images in another order
        np.testing.assert_allclose(parts[name], value, atol=1e-6 + 1e-4 * abs(value).max(), err_msg=name)


def test_teacher_is_neither_trained_nor_saved_and_a_resumed_run_equals_the_whole(weights):
    short = "DATA.SYNTHETIC_IMAGES=8"
    whole = trainer_of(weights, short)
    teacher = whole.teacher._model
    before = {name: value.numpy().copy() for name, value in teacher.state_dict().items()}
    whole.fit()
    for name, value in teacher.state_dict().items():  # statistics of batch norms, too
        np.testing.assert_array_equal(value.numpy(), before[name], err_msg=name)
    first = trainer_of(weights, short)
    first.train_epoch(0.0)
    state = first.state()
    assert not set(before) & set(state["model"])
    second = trainer_of(weights, short)
    second.load_state(state, "memory")
    second.fit()
    for name, value in whole.model.state_dict().items():
        np.testing.assert_array_equal(second.model.state_dict()[name].numpy(), value.numpy(), err_msg=name)


@pytest.mark.parametrize(("mode", "dtype"), [("auto", "bfloat16"), ("O2", "float16"), ("naive", "float16")])
def test_teacher_computes_in_the_students_precision_or_in_float32(weights, mode, dtype):
    images, labels = paddle.to_tensor(RNG.normal(size=(2, 3, 16, 16)).astype("float32")), None
    small = "DATA.IMAGE_SIZE=16"
    modes = [f"AMP.MODE={mode}", f"AMP.DTYPE={dtype}", small]
    modes += [] if mode == "naive" else ["AMP.KEEP_FLOAT32=[blocks.0]"]  # of the student: a ResNet has no such layer
    plain = trainer_of(weights, small).teacher(images, labels)[1].numpy()
    half = trainer_of(weights, *modes).teacher(images, labels)[1].numpy()
    exact = trainer_of(weights, *modes, "MODEL.TEACHER_FP32=True").teacher(images, labels)[1].numpy()
    np.testing.assert_array_equal(exact, plain)
    assert 0 < abs(half - plain).max() < 0.1 * abs(plain).max()  # 2**-8 a layer in bfloat16


def test_teacher_that_is_the_folder_of_a_run_is_its_model_with_its_weights(weights, tmp_path):
    (tmp_path / "config.yaml").write_text("BASE: resnet_tiny_digits\nMODEL: {NUM_CLASSES: 4}\n")
    (tmp_path / "best.pdparams").write_bytes(weights.read_bytes())
    images = paddle.to_tensor(RNG.normal(size=(2, 3, 16, 16)).astype("float32"))
    small, folder = "DATA.IMAGE_SIZE=16", (f"MODEL.TEACHER={tmp_path}", "MODEL.TEACHER_CFG=none")
    logits = [trainer_of(weights, small, *words).teacher(images, None)[1].numpy() for words in ((), folder)]
    np.testing.assert_array_equal(*logits)


def test_teacher_that_is_missing_or_does_not_fit_is_one_line(weights):
    with pytest.raises(UserError, match="TRAIN.DISTILLATION_TYPE hard: needs MODEL.TEACHER"):
        trainer_of(weights, "MODEL.TEACHER=none")
    with pytest.raises(UserError, match="weights.pdparams: .*weights: no such file, and no model.*TEACHER_CFG says"):
        trainer_of(weights, "MODEL.TEACHER_CFG=none")
    with pytest.raises(UserError, match="MODEL.TEACHER .*does not fit this model"):
        trainer_of(weights, "MODEL.TEACHER_CFG=vit_tiny_digits")
    grey = ["DATA.IMAGE_CHANNELS=1", "DATA.IMAGENET_MEAN=[0.5]", "DATA.IMAGENET_STD=[0.5]"]
    with pytest.raises(UserError, match="^MODEL.TEACHER .* has images of DATA.IMAGE_CHANNELS 3, this training of 1"):
        trainer_of(weights, *grey)


def test_teacher_of_other_classes_is_refused(weights, tmp_path):
    """As many outputs, but each of another class: the student would learn that a cat is a bee."""
    path, own = tmp_path / "teacher.pdparams", "MODEL.CLASS_NAMES=[ant,bee,cat,dog]"
    for names in ("[bee,cat,dog,ant]", "[ant,bee,cat,dog]"):
        paddle.save({"model": paddle.load(str(weights)), "config": f"MODEL: {{CLASS_NAMES: {names}}}"}, str(path))
        if names not in own:
            with pytest.raises(UserError, match="MODEL.TEACHER .*teacher.pdparams: .*class 0 is bee there and ant in"):
                trainer_of(path, own)
    trainer_of(path, own)


@pytest.mark.parametrize("names", ["abcd", "abc"])
def test_teacher_has_as_many_classes_as_the_data_decide(weights, tmp_path, names):
    for name in names:
        (tmp_path / name).mkdir()
        for number in range(5):
            Image.new("RGB", (40, 40)).save(tmp_path / name / f"{number}.png")
    data = "DATA.DATASET=folder", f"DATA.DATA_PATH={tmp_path}"
    if names == "abcd":
        teacher = trainer_of(weights, data=data).teacher
        assert teacher(paddle.zeros([2, 3, 32, 32]), None)[1].shape == [2, 4]
    else:
        with pytest.raises(UserError, match=r"^MODEL.TEACHER .*fc.weight \[64, 4\] instead of \[64, 3\]"):
            trainer_of(weights, data=data)


class BesideAnother(SingleProcess):
    """Rank 0 of two, of which the other has a teacher of its own."""

    world_size = 2

    def gather(self, value):
        return [value, (value[0] + 1, value[1]) if isinstance(value, tuple) else value]


def test_teacher_of_other_bytes_on_another_rank_is_refused(weights):
    with pytest.raises(UserError, match="MODEL.TEACHER: rank 1 has another file at"):
        trainer_of(weights, parallel=BesideAnother())


@pytest.mark.slow
def test_several_processes_learn_what_one_learns(weights, tmp_path):
    """Two replicas, a layer shared by two, a pipeline of two: the loss of two epochs is that of one process."""
    words = ["-cfg=deit_tiny_digits", "-device=cpu", "-num_epochs=2", "-opts", "DATA.DATASET=synthetic"]
    words += ["DATA.SYNTHETIC_IMAGES=16", "MODEL.NUM_CLASSES=4", "MODEL.DEPTH=2", "DATA.NUM_WORKERS=0"]
    words += ["TRAIN.DISTILLATION_TYPE=soft", "TRAIN.DISTILLATION_TAU=2", f"MODEL.TEACHER={weights}"]
    words += ["MODEL.TEACHER_CFG=resnet_tiny_digits", "TRAIN.WARMUP_EPOCHS=0", "SAVE_FREQ=5"]
    losses = {}
    for kind, processes in (("ONE", 1), ("DATA", 2), ("TENSOR", 2), ("PIPELINE", 2)):
        own = [f"DATA.BATCH_SIZE={4 if kind == 'DATA' else 8}", *([f"PARALLEL.{kind}=2"] * (processes - 1))]
        run_well(f"-ngpus={processes}", f"-output={tmp_path / kind}", *words, *own, model="DeiT",
                 script="main_multi_gpu.py", timeout=300)  # fmt: skip
        losses[kind] = report_of(tmp_path / kind)["train_loss"]
    assert losses == pytest.approx(dict.fromkeys(losses, losses["ONE"]), rel=1e-4)  # four steps of other sums
