"""What an evaluation measures: the model in evaluation mode, in its precision's context, each image once."""

import contextlib

import numpy as np
import paddle
import pytest

from image_classification import amp, half_cpu
from image_classification.build import build_parts
from image_classification.evaluate_only import evaluate as evaluate_alone
from image_classification.evaluation import EvaluationStopped, evaluate, raise_together
from image_classification.half_cpu import onednn
from image_classification.half_cpu.replay import RECORDED
from image_classification.metrics import ClassReport
from image_classification.parallel.single import SingleProcess
from image_classification.report import empty_report
from image_classification.run_folder import RunFolder
from image_classification.runtime import UserError
from tests.helpers.small_runs import build_net, config_of, runs_of

RNG = np.random.default_rng(0)
IMAGES, LABELS = RNG.standard_normal((10, 3, 8, 8)).astype("float32"), np.arange(10) % 4


class Batches(list):
    """The loader's interface over arrays."""

    num_images = len(LABELS)


LOADER = Batches([(IMAGES[:4], LABELS[:4]), (IMAGES[4:8], LABELS[4:8]), (IMAGES[8:], LABELS[8:])])


def model_of(precision):
    """Return a model with dropout, and running statistics that no batch has."""
    paddle.seed(1)
    model = build_net()
    model.bn._mean.set_value(paddle.linspace(-0.5, 0.5, 8))
    model.bn._variance.set_value(paddle.linspace(0.5, 2.0, 8))
    model.fc.weight.set_value(model.fc.weight * 30)  # far from uniform predictions
    return precision.convert_model(model)


def losses(logits):
    """Return the cross entropy of each image in float64."""
    logits = logits.astype("float64")
    return np.log(np.exp(logits).sum(1)) - logits[np.arange(len(LABELS)), LABELS]


def test_evaluation_is_without_dropout_and_by_running_statistics():
    precision = amp.build_precision("fp32")
    model = model_of(precision)
    result = evaluate(model, precision, LOADER, SingleProcess())
    model.eval()
    logits = model(paddle.to_tensor(IMAGES)).numpy()
    assert result["images"] == 10
    assert result["top1"] == (logits.argmax(1) == LABELS).mean()
    # a loss is counted in units of 2^-24; the forward pass may add in another order
    assert result["loss"] == pytest.approx(losses(logits).mean(), rel=1e-6)


def test_model_trains_on_after_an_evaluation_and_is_as_before():
    precision = amp.build_precision("fp32")
    model = model_of(precision)
    before = {name: value.numpy().copy() for name, value in model.state_dict().items()}
    evaluate(model, precision, LOADER, SingleProcess())
    assert model.training and model.bn.training and model.drop.training
    assert all((value.numpy() == before[name]).all() for name, value in model.state_dict().items())
    assert all(param.grad is None for param in model.parameters())


@pytest.mark.parametrize("mode", ["auto", "naive"])
def test_evaluation_computes_in_the_precisions_format(mode):
    """The loss is that of half logits, which differs from the float32 one by far more than the order of sums."""
    precision, plain = amp.build_precision(mode, dtype="bfloat16"), amp.build_precision("fp32")
    result = evaluate(model_of(precision), precision, LOADER, SingleProcess())
    in_float32 = evaluate(model_of(plain), plain, LOADER, SingleProcess())
    model = model_of(precision)
    model.eval()
    with precision.forward_context():
        logits = model(paddle.to_tensor(IMAGES)).astype("float32").numpy()
    assert result["loss"] == pytest.approx(losses(logits).mean(), rel=1e-6)
    assert abs(result["loss"] - in_float32["loss"]) > 1e-4 * in_float32["loss"]


@pytest.mark.skipif(not onednn.available(), reason="passes are recorded where kernels compute")
def test_evaluation_runs_the_layers_for_the_first_batches_only():
    precision = amp.build_precision("fp32")
    model = model_of(precision)
    runs = runs_of(model.fc)
    batch = IMAGES[:2], LABELS[:2]
    evaluate(model, precision, Batches([batch] * (RECORDED + 4)), SingleProcess())
    assert len(runs) == RECORDED + 1  # and once to record


@pytest.mark.skipif(half_cpu.backend_name("bfloat16") == "reference", reason="where kernels compute")
def test_evaluation_takes_many_half_images_a_few_at_a_time():
    precision = amp.build_precision("auto", "bfloat16")
    model = model_of(precision)
    runs = runs_of(model.fc)
    evaluate(model, precision, Batches([(np.resize(IMAGES, (16, 3, 8, 8)), np.resize(LABELS, 16))]), SingleProcess())
    assert runs == [8, 8]


def test_class_report_of_an_evaluation_counts_each_image_once():
    precision, report = amp.build_precision("fp32"), ClassReport(4)
    result = evaluate(model_of(precision), precision, LOADER, SingleProcess(), report)
    assert report.confusion.sum(1).tolist() == np.bincount(LABELS).tolist()
    assert np.diag(report.confusion).sum() == round(result["top1"] * 10)


@pytest.mark.parametrize(("own", "said"), [(None, "b.png: corrupt"), ("a.png: corrupt", "a.png: corrupt")])
def test_process_says_its_own_failure_before_that_of_another(own, said):
    class OneOfTwo(SingleProcess):
        def gather(self, value):
            return ["b.png: corrupt", value]

    with pytest.raises(UserError, match=said):
        raise_together(OneOfTwo(), own and UserError(own))


@pytest.mark.parametrize(("batches", "end"), [(2, pytest.raises(EvaluationStopped)), (3, contextlib.nullcontext())])
def test_evaluation_that_is_to_stop_ends_at_its_next_batch_unless_it_was_the_last(batches, end):
    precision = amp.build_precision("fp32")
    model = model_of(precision)
    seen = runs_of(model.fc)
    with end:
        evaluate(model, precision, LOADER, SingleProcess(), stop=lambda: len(seen) == batches)
    assert seen == [4, 4, 2][:batches]
    assert model.training


def test_evaluation_whose_report_cannot_be_written_has_said_its_result(tmp_path, caplog):
    """Hours of work would be lost."""
    (tmp_path / "report.json").mkdir()
    parts = build_parts(config_of(EVAL=True), build_net, SingleProcess())
    with caplog.at_level("INFO"), pytest.raises(UserError, match="report.json: cannot be written"):
        evaluate_alone(parts, RunFolder(tmp_path), empty_report(parts), build_net)
    assert "Validation Loss: " in caplog.text and "images evaluated  20" in caplog.text
