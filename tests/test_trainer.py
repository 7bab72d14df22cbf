"""The loop: windows of accumulation, skipped steps, what counts as a step, stopping, hooks."""

import dataclasses
import json
import math
import re
import time
import types

import numpy as np
import paddle
import pytest
from paddle import nn

from image_classification import amp, checkpoint
from image_classification.build import Parts
from image_classification.config import build_config
from image_classification.data import build_train_loader
from image_classification.ema import build_ema
from image_classification.hooks import EmaHook, Hook, LogHook, ProfilerHook
from image_classification.losses import build_criterion
from image_classification.optim import build_optimizer, build_schedule
from image_classification.parallel.single import SingleProcess
from image_classification.progress import RunningMean
from image_classification.runtime import seed_everything
from image_classification.trainer import Trainer, TrainingError, steps_per_epoch
from tests.helpers.small_runs import config_of, trainer_of

NUM_CLASSES = 3


class ArrayLoader:
    """Batches of fixed arrays: the loader's interface without files."""

    def __init__(self, batches):
        self.batches = batches
        self.dataset = [label for _, labels in batches for label in labels]
        self.num_images = sum(len(labels) for _, labels in batches)

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        return self.iterate()

    def set_epoch(self, epoch):
        self.epoch = epoch

    def iterate(self, start_batch=0):
        return iter(self.batches[start_batch:])


class Net(nn.Layer):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(12, 8)
        self.fc2 = nn.Linear(8, NUM_CLASSES)

    def forward(self, images):
        return self.fc2(nn.functional.relu(self.fc1(images.flatten(1))))


def make_batches(num_batches, batch_size, seed=0):
    rng = np.random.default_rng(seed)
    return [
        (rng.normal(size=(batch_size, 3, 2, 2)).astype("float32"), rng.integers(0, NUM_CLASSES, batch_size))
        for _ in range(num_batches)
    ]


def make_trainer(batches, hooks=(), precision=None, batch_size=4, **train):
    settings = {"NUM_EPOCHS": 1, "BASE_LR": 0.1, "WARMUP_EPOCHS": 0, "OPTIMIZER": {"NAME": "SGD"}} | train
    layers = [("test", {"MODEL": {"NUM_CLASSES": NUM_CLASSES}, "DATA": {"BATCH_SIZE": batch_size}, "TRAIN": settings})]
    config = build_config(layers)
    seed_everything(0)
    model, precision = Net(), precision or amp.build_precision("fp32")
    model = precision.convert_model(model)
    parts = Parts(
        config=config,
        device="cpu",
        parallel=SingleProcess(),
        model=model,
        precision=precision,
        criterion=build_criterion(config),
        train_loader=ArrayLoader(batches),
        eval_loader=ArrayLoader(make_batches(2, 5, seed=9)),
    )
    return Trainer(
        parts,
        optimizer=build_optimizer(precision.master_params(model), config.TRAIN),
        schedule=build_schedule(config.TRAIN, steps_per_epoch(parts)),
        ema=build_ema(config.TRAIN, precision.model_state_dict(model), 100),
        hooks=list(hooks),
    )


def weights(trainer):
    return {name: value.numpy().copy() for name, value in trainer.model.state_dict().items()}


def poison(trainer, at_calls):
    """Make the loss infinite in the given calls of the criterion, counted from 0."""
    plain, calls = trainer.criterion, iter(range(10**6))
    trainer.criterion = lambda logits, labels: plain(logits, labels) * (math.inf if next(calls) in at_calls else 1.0)


def test_accumulated_micro_batches_equal_the_whole_batch():
    whole = make_batches(3, 8)
    parts = [(images[i : i + 4], labels[i : i + 4]) for images, labels in whole for i in (0, 4)]
    one, two = make_trainer(whole), make_trainer(parts, ACCUM_ITER=2)
    one.fit()
    two.fit()
    assert one.progress.step == two.progress.step == 3
    for name, value in weights(one).items():
        # float32 sums in another order
        np.testing.assert_allclose(weights(two)[name], value, atol=1e-6)


def test_last_shorter_window_is_divided_by_its_own_size():
    """Five micro-batches in windows of 3: the second window has two, and its step equals that of a batch of two."""
    batches = make_batches(5, 4)
    accumulated = make_trainer(batches, ACCUM_ITER=3, LR_SCHEDULER={"NAME": "constant"})
    accumulated.fit()
    assert accumulated.progress.step == accumulated.steps_per_epoch == 2
    joined = [
        (np.concatenate([images for images, _ in group]), np.concatenate([labels for _, labels in group]))
        for group in (batches[:3], batches[3:])
    ]
    whole = make_trainer(joined, LR_SCHEDULER={"NAME": "constant"})
    whole.fit()
    for name, value in weights(whole).items():
        np.testing.assert_allclose(weights(accumulated)[name], value, atol=1e-6)


def test_skipped_step_changes_no_weight_and_no_count_but_its_own():
    trainer = make_trainer(make_batches(4, 4), ACCUM_ITER=2)
    poison(trainer, {0})
    before = weights(trainer)
    trainer.train_loader.set_epoch(0)
    batches = trainer.train_loader.iterate()
    trainer.train_step(batches, 2)
    assert not trainer.last_result.applied and trainer.last_result.first_bad == "fc1.weight"
    assert all((weights(trainer)[name] == value).all() for name, value in before.items())
    progress = trainer.progress
    assert (progress.step, progress.skipped_steps, progress.skipped_in_a_row, progress.batch) == (0, 1, 1, 2)
    assert all(parameter.grad is None for parameter in trainer.model.parameters())
    trainer.train_step(batches, 2)  # the inf of the first window does not leak into the second
    assert trainer.last_result.applied
    assert (progress.step, progress.skipped_steps, progress.skipped_in_a_row) == (1, 1, 0)


def test_time_of_a_step_has_the_wait_for_its_first_batch():
    """The first micro-batch is read before the step that takes it; 0.1 s is what the reader sleeps at least."""
    costs = []

    class Costs(Hook):
        def after_step(self, trainer):
            costs.append(trainer.timer.last)

    trainer = make_trainer(make_batches(4, 4), hooks=[Costs()], ACCUM_ITER=2)
    read = trainer.train_loader.iterate

    def slowly(*args):
        for number, batch in enumerate(read(*args)):
            if number == 2:  # the first of the second step
                time.sleep(0.1)
            yield batch

    trainer.train_loader.iterate = slowly
    trainer.fit()
    assert costs[1]["batch_cost"] >= costs[1]["reader_cost"] >= 0.1


def test_learning_rate_follows_applied_steps_only():
    trainer = make_trainer(make_batches(6, 4), LR_SCHEDULER={"NAME": "linear"})
    rates = []
    trainer.hooks.append(type("Rates", (Hook,), {"after_step": lambda self, t: rates.append(t.optimizer.get_lr())})())
    poison(trainer, {1, 2})
    trainer.fit()
    assert rates[1] == rates[2] == rates[3]
    assert rates[0] > rates[1] > rates[4]


def test_average_moves_on_applied_steps_only():
    averages = []

    class Watch(Hook):
        def after_step(self, trainer):
            averages.append(trainer.ema.state_dict()["fc1.weight"].numpy().copy())

    trainer = make_trainer(make_batches(4, 4), hooks=[EmaHook(), Watch()], MODEL_EMA=True, MODEL_EMA_DECAY=0.5)
    poison(trainer, {1, 2})
    trainer.fit()
    # After the first step the average lies half way to the weights: any further update would move it.
    assert (averages[0] != weights(trainer)["fc1.weight"]).any()
    assert (averages[0] == averages[1]).all() and (averages[1] == averages[2]).all()
    assert (averages[2] != averages[3]).any()


def test_non_finite_steps_in_a_row_stop_the_run_with_a_diagnosis():
    trainer = make_trainer(make_batches(9, 4), MAX_SKIPPED_STEPS=3)
    poison(trainer, set(range(2, 9)))
    with pytest.raises(TrainingError) as caught:
        trainer.fit()
    message = str(caught.value)
    assert "3 steps in a row" in message and "fc1.weight" in message and "step 2" in message and "loss scale" in message
    assert trainer.progress.skipped_steps == 3


def test_last_epoch_without_a_finite_step_is_an_error_once_everything_is_written():
    class Written(Hook):
        def after_train(self, trainer):
            self.epoch = trainer.progress.epoch

    written = Written()
    trainer = make_trainer(make_batches(3, 4), NUM_EPOCHS=2, hooks=[written])
    poison(trainer, {3, 4, 5})
    with pytest.raises(TrainingError, match="no step of the last epoch had finite gradients; lower") as caught:
        trainer.fit()
    assert written.epoch == 2 and "\n" not in str(caught.value)


def test_last_epoch_with_one_finite_step_is_no_error():
    trainer = make_trainer(make_batches(3, 4), NUM_EPOCHS=2)
    poison(trainer, {3, 5})
    trainer.fit()
    assert trainer.progress.skipped_steps == 2


def test_weights_that_classify_nothing_finite_are_an_error():
    """One step, applied with finite gradients, after which the logits overflow."""
    trainer = make_trainer(make_batches(1, 4), BASE_LR=1e38)
    with pytest.raises(TrainingError, match="the last evaluation"):
        trainer.fit()
    assert trainer.progress.step == 1


def test_one_image_without_a_finite_loss_fails_no_run():
    trainer = make_trainer(make_batches(1, 4), BASE_LR=0.0)
    huge = np.full([NUM_CLASSES, 3, 2, 2], 1e30, "float32")  # one of them is right
    trainer.eval_loader = ArrayLoader([*make_batches(1, 8), (huge, np.arange(NUM_CLASSES))])
    trainer.fit()
    assert math.isinf(trainer.evaluation["loss"]) and trainer.evaluation["top1"]


def test_non_finite_losses_are_left_out_of_the_mean():
    mean = RunningMean()
    for value in (1.0, math.inf, math.nan, 3.0):
        mean.add(paddle.to_tensor(value), paddle.to_tensor(1), 2)
    assert mean.loss == 2.0


@pytest.mark.parametrize("is_main", [True, False])
def test_mean_where_a_run_saves_and_where_it_resumes_is_that_of_all_replicas_and_counted_once(is_main):
    """Rank 0 goes on from the sums of all as its own: a resumed run adds in the order of one that nothing stopped."""

    class Replica(SingleProcess):
        def sum(self, values):
            return [own + other for own, other in zip(values, (5.0, 3.0, 4.0, 3.0, 1.0), strict=True)]

    first, second = (make_trainer(make_batches(3, 4)) for _ in range(2))
    for trainer in (first, second):
        trainer.parallel = Replica()
        trainer.parallel.is_main = is_main
    first.mean.add(paddle.to_tensor(2.0), paddle.to_tensor(1), 4)
    first.progress.batch = 1
    state = first.state()
    assert state["progress"]["sums"] == [13.0, 4.0, 8.0]
    assert first.mean.last_loss == 2.5  # of 2 here and 3 there
    second.load_state(checkpoint.to_arrays(state), "a file")
    for mean in (first.mean, second.mean):
        assert mean.sums.tolist() == ([13.0, 4.0, 8.0] if is_main else [0.0] * 3)
        assert (mean.loss, mean.top1) == (13 / 8, 4 / 8)


def test_mean_without_any_finite_loss_is_no_number():
    mean = RunningMean()
    mean.add(paddle.to_tensor(math.inf), paddle.to_tensor(1), 2)
    assert math.isnan(mean.loss) and math.isnan(mean.top1)


@pytest.mark.parametrize(
    ("precision", "expected", "other"),
    [
        (("fp32", None), "WARMUP_EPOCHS$", "amp"),
        (("auto", "bfloat16"), "without -amp$", "bfloat16"),
        (("auto", "float16"), "use -amp_dtype bfloat16 or train in float32, without -amp$", "O1"),
    ],
)
def test_advice_of_a_diverged_run_names_what_does_not_run_already(precision, expected, other):
    trainer = make_trainer(make_batches(3, 4), MAX_SKIPPED_STEPS=1, precision=amp.build_precision(*precision))
    poison(trainer, {0, 1, 2})
    with pytest.raises(TrainingError, match=expected) as caught:
        trainer.fit()
    assert other not in str(caught.value)


def test_first_evaluation_is_the_best_so_far_even_with_nothing_right():
    trainer = make_trainer(make_batches(1, 4), BASE_LR=0.0)
    trainer.model.fc2.bias.set_value(np.array([100, 0, 0], "float32"))
    trainer.eval_loader = ArrayLoader([(images, np.ones_like(labels)) for images, labels in make_batches(1, 4)])
    trainer.fit()
    assert trainer.evaluation["is_best"] and trainer.progress.best_top1 == 0.0


def test_stop_requested_in_a_step_ends_the_run_after_it():
    class Stop(Hook):
        def after_step(self, trainer):
            trainer.stop_requested = trainer.progress.step == 2

    trainer = make_trainer(make_batches(6, 4), hooks=[Stop()])
    trainer.fit()
    assert trainer.progress.batch in (2, 3) and trainer.progress.epoch == 0


def test_stop_in_the_evaluation_of_a_finished_run_leaves_no_figures_of_a_part_of_it():
    """A resume makes it where a kill left something unwritten; pictures and tables of classes follow from it."""
    trainer = make_trainer(make_batches(2, 4))
    trainer.progress.epoch, trainer.stop_requested = 1, True
    trainer.fit()
    assert trainer.evaluation is None and trainer.class_report is None
    trainer.stop_requested = False
    trainer.fit()
    assert trainer.evaluation["images"] == 10 and trainer.class_report is not None


@pytest.mark.parametrize("moment", ["before_step", "after_step", "before_evaluation", "after_epoch"])
def test_run_ends_only_where_all_processes_agreed_on_it(moment):
    """A signal reaches one process before and another after a vote: none may act on its own until the next."""
    agreed = []

    class Processes(SingleProcess):
        def any(self, flag):
            agreed.append(flag)
            return flag

    class Signal(Hook):
        def after_step(self, trainer):  # what the hooks after it see, such as the one that saves
            assert trainer.stopping == agreed[-1]

        after_epoch = after_step

    def arrive(self, trainer):
        Signal.after_step(self, trainer) if moment.startswith("after") else None
        trainer.stop_requested = True

    trainer = make_trainer(make_batches(3, 4), NUM_EPOCHS=3)
    trainer.parallel = Processes()
    trainer.hooks.append(type("Arriving", (Signal,), {moment: arrive})())
    trainer.fit()
    assert agreed[-1] and not any(agreed[:-1])
    assert (trainer.progress.epoch, trainer.progress.batch) == {
        "before_step": (0, 1), "after_step": (0, 2), "before_evaluation": (0, 3), "after_epoch": (1, 1),
    }[moment]  # fmt: skip


def test_hooks_are_called_in_the_order_of_their_priorities():
    calls = []

    def recorder(name, priority):
        def record(event):
            return lambda self, trainer: calls.append((name, event))

        events = [event for event in vars(Hook) if event.startswith(("before", "after"))]
        return type(name, (Hook,), {event: record(event) for event in events} | {"priority": priority})()

    trainer = make_trainer(make_batches(1, 4), hooks=[recorder("late", 70), recorder("early", 5)])
    trainer.fit()
    assert [event for name, event in calls if name == "early"] == [
        "before_train",
        "before_epoch",
        "before_step",
        "after_update",
        "after_step",
        "before_evaluation",
        "after_evaluation",
        "after_epoch",
        "after_train",
    ]
    assert [name for name, _ in calls] == ["early", "late"] * 9


def test_state_loaded_into_another_trainer_continues_bit_for_bit():
    settings = {"OPTIMIZER": {"NAME": "AdamW"}, "NUM_EPOCHS": 4, "MODEL_EMA": True, "MODEL_EMA_DECAY": 0.9}
    straight = make_trainer(make_batches(5, 4), hooks=[EmaHook()], **settings)
    straight.fit()

    class StopAfterTwoEpochs(Hook):
        def after_evaluation(self, trainer):
            trainer.stop_requested = trainer.progress.epoch == 2

    first = make_trainer(make_batches(5, 4), hooks=[EmaHook(), StopAfterTwoEpochs()], **settings)
    first.fit()
    state = first.state()
    second = make_trainer(make_batches(5, 4), hooks=[EmaHook()], **settings)
    second.load_state(state, "memory")
    assert second.progress.epoch == 2
    second.fit()
    for name, value in weights(straight).items():
        assert (weights(second)[name] == value).all(), name
    for name, value in straight.ema.state_dict().items():
        assert (second.ema.state_dict()[name].numpy() == value.numpy()).all(), name
    ours, theirs = dataclasses.asdict(second.progress), dataclasses.asdict(straight.progress)
    assert {**ours, "seconds": 0} == {**theirs, "seconds": 0}


@pytest.mark.parametrize(("mode", "dtype", "scale"), [
    ("auto", "float16", 4.0), ("auto", "bfloat16", 16.0), ("O1", "float16", 16.0),
])  # fmt: skip
def test_loss_scale_of_a_checkpoint_is_that_of_its_mode_and_format_alone(mode, dtype, scale):
    def trainer_in(mode, dtype, init_scale):
        precision = amp.build_precision(mode, dtype=dtype, options={"init_scale": init_scale})
        return make_trainer(make_batches(2, 4), precision=precision)

    first, second = trainer_in("auto", "float16", 4.0), trainer_in(mode, dtype, 16.0)
    second.load_state(first.state(), "memory")
    assert second.precision.loss_scale == scale


def test_dropout_of_a_checkpoint_of_another_topology_goes_on_with_new_draws():
    """Not with those of the run's beginning, and each time with the same ones."""
    first = make_trainer(make_batches(2, 4))
    first.fit()
    state = first.state() | {"topology": "2 processes"}
    draws = []
    for _ in range(2):
        make_trainer(make_batches(2, 4)).load_state(state, "memory")
        draws.append(paddle.rand([3]).tolist())
    first.parallel.seed_dropout(first.config.SEED)
    assert draws[0] == draws[1] != paddle.rand([3]).tolist()


@pytest.mark.parametrize(("batch_size", "window", "batch", "step"), [
    (4, 1, 3, 3),  # as saved: 12 of 24 images, 3 of 6 steps
    (2, 2, 6, 3),  # the same steps of two micro-batches, as a pipeline needs them
    (2, 1, 6, 6),
    (2, 4, 4, 2),  # the micro-batches of a whole step
    (8, 1, 1, 2),  # not yet the 4 images of half a step, and the schedule's nearest step
    (2, 8, 12, 2),  # the whole epoch, which is still to be evaluated: no step, however short, comes again
])  # fmt: skip
def test_state_of_other_batches_continues_at_the_same_image(batch_size, window, batch, step):
    class Stop(Hook):
        def after_update(self, trainer):
            trainer.stop_requested = trainer.progress.step == (6 if batch == 12 else 3)

    first = make_trainer(make_batches(6, 4), hooks=[Stop()], batch_size=4)
    first.fit()
    second = make_trainer(make_batches(24 // batch_size, batch_size), batch_size=batch_size, ACCUM_ITER=window)
    second.load_state(first.state(), "memory")
    assert (second.progress.batch, second.progress.step) == (batch, step)


@pytest.mark.parametrize("batches", [3, 12])
def test_state_of_another_number_of_images_continues_at_the_same_part_of_the_schedule(batches, caplog):
    first = make_trainer(make_batches(6, 4), batch_size=4, NUM_EPOCHS=1)
    first.fit()
    second = make_trainer(make_batches(batches, 4), batch_size=4, NUM_EPOCHS=3)
    with caplog.at_level("WARNING"):
        second.load_state(first.state(), "memory")
    assert second.progress.step == batches  # one epoch of three
    assert f"the number of training images was 24, now it is {4 * batches}: step 6 counts as {batches}" in caplog.text


def test_best_accuracy_stays_the_best_after_a_worse_evaluation():
    trainer = make_trainer(make_batches(2, 4))
    images, labels = trainer.eval_loader.batches[0]
    results = []
    for right in (3, 1, 3, 5):  # of 5 images: the head always answers class 0
        trainer.model.fc2.weight.set_value(paddle.zeros([8, NUM_CLASSES]))
        trainer.model.fc2.bias.set_value(paddle.to_tensor([1.0, 0.0, 0.0]))
        trainer.eval_loader = ArrayLoader([(images, np.array([0] * right + [1] * (5 - right)))])
        trainer.evaluate()
        results.append((trainer.evaluation["top1"], trainer.evaluation["is_best"], trainer.progress.best_top1))
    assert results == [(0.6, True, 0.6), (0.2, False, 0.6), (0.6, False, 0.6), (1.0, True, 1.0)]


def test_each_epoch_reads_its_own_order_of_the_images():
    config = config_of(data={"SYNTHETIC_IMAGES": 16}, train={"NUM_EPOCHS": 3})
    trainer = trainer_of(config)
    seen, plain = [], trainer.criterion
    trainer.criterion = lambda logits, labels: (seen.extend(labels.tolist()), plain(logits, labels))[1]
    trainer.fit()
    loader, expected = build_train_loader(config), []
    for epoch in range(3):
        loader.set_epoch(epoch)
        expected += [label for _, labels in loader for label in labels.tolist()]
    assert seen == expected
    assert len({tuple(seen[start : start + 16]) for start in (0, 16, 32)}) == 3


def test_loss_of_an_epoch_is_that_of_all_replicas():
    """Another replica saw 4 images with a mean loss of 3 and one of them right."""

    class WithAnother(SingleProcess):
        def sum(self, values):
            return [own + other for own, other in zip(values, (12.0, 1.0, 4.0, 3.0, 1.0), strict=True)]

    said = []
    trainer = make_trainer(make_batches(1, 4))
    trainer.evaluate = lambda: None
    trainer.parallel = WithAnother()
    note = lambda self, trainer: said.append((trainer.mean.loss, trainer.mean.top1))  # noqa: E731
    trainer.add_hooks([type("Said", (Hook,), {"after_epoch": note})()])
    plain = trainer.criterion
    trainer.criterion = lambda logits, labels: plain(logits, labels) * 0 + 1.0
    trainer.fit()
    ((loss, top1),) = said
    assert loss == (4 * 1.0 + 12.0) / 8
    assert top1 * 8 % 1 == 0 and 1 / 8 <= top1 <= 5 / 8


def test_evaluation_sees_the_averaged_weights_and_leaves_the_models_own():
    trainer = make_trainer(make_batches(2, 4), MODEL_EMA=True, MODEL_EMA_DECAY=0.5)
    before = weights(trainer)
    trainer.ema.load_state_dict({name: np.zeros_like(value) for name, value in before.items()}, {})
    trainer.evaluate()
    assert trainer.evaluation["loss"] == pytest.approx(math.log(NUM_CLASSES), abs=2**-23)  # all logits are 0
    assert all((weights(trainer)[name] == value).all() for name, value in before.items())


def test_evaluation_counts_every_image_once_and_marks_the_best():
    trainer = make_trainer(make_batches(2, 4))
    trainer.evaluate()
    assert trainer.evaluation["images"] == 10
    assert trainer.evaluation["is_best"] == (trainer.evaluation["top1"] > 0)
    trainer.evaluate()
    assert not trainer.evaluation["is_best"]
    assert trainer.model.training


def test_seconds_of_an_epoch_hold_its_evaluation_and_its_training_time_does_not(caplog):
    """A slow evaluation of the last epoch is in the report and the checkpoint, as those before are."""
    found = []

    class Slow(Hook):
        def before_evaluation(self, trainer):
            time.sleep(1)

        def after_epoch(self, trainer):
            found.append(trainer.progress.seconds)

    with caplog.at_level("INFO"):
        make_trainer(make_batches(3, 4), hooks=[Slow(), LogHook()], NUM_EPOCHS=2).fit()
    trained = [float(seconds) for seconds in re.findall(r"Train Acc: .*time: ([\d.]+)", caplog.text)]
    epochs = found[0], found[1] - found[0]
    assert len(trained) == 2
    assert all(whole - steps >= 0.99 for whole, steps in zip(epochs, trained, strict=True))  # rounded to 0.01


def test_profiler_records_ten_steps_from_the_one_asked_for_and_ends_the_run(tmp_path):
    hook = ProfilerHook(types.SimpleNamespace(path=tmp_path), first_step=2)
    recorded = []

    class Look(Hook):
        priority = 6  # right after the profiler's

        def before_step(self, trainer):
            recorded.append(hook.profiler is not None)

    trainer = make_trainer(make_batches(14, 4), hooks=[hook, Look()], NUM_EPOCHS=1)
    trainer.fit()
    assert recorded == [False] * 2 + [True] * 10
    (trace,) = (tmp_path / "profile").iterdir()
    names = [event["name"] for event in json.loads(trace.read_text())["traceEvents"] if "name" in event]
    steps = {name.split("[")[0] for name in names if name.startswith("ProfileStep")}
    assert {f"ProfileStep#{number}" for number in range(10)} <= steps
    assert hook.steps == 12
    assert trainer.stopping and trainer.stop_reason == "the end of the profile"


def test_profiler_of_a_shorter_run_writes_what_it_has(tmp_path):
    hook = ProfilerHook(types.SimpleNamespace(path=tmp_path), first_step=1)
    make_trainer(make_batches(3, 4), hooks=[hook], NUM_EPOCHS=1).fit()
    assert len(list((tmp_path / "profile").iterdir())) == 1


def test_profiler_when_the_run_ends_before_its_first_step_says_so(tmp_path, caplog):
    hook = ProfilerHook(types.SimpleNamespace(path=tmp_path), first_step=3)
    make_trainer(make_batches(3, 4), hooks=[hook], NUM_EPOCHS=1).fit()
    assert "nothing was profiled: TRAIN.PROFILE_STEP is 3, this process made 3 steps" in caplog.text
