"""An evaluation without training: -eval."""

import dataclasses

from . import checkpoint, foreign
from .build import build_parts
from .class_files import summary, write_class_files, write_summary
from .config.schema import Amp
from .evaluation import evaluate as evaluate_model
from .metrics import ClassReport
from .parallel.agreement import check_same_file
from .report import result_table
from .runtime import get_logger, peak_memory_bytes
from .saved_config import check_classes, warn_of_other_model


def evaluate(parts, folder, report, build_model):
    """Evaluate the weights that the model holds and write the report and the files about classes."""
    classes = ClassReport(parts.config.MODEL.NUM_CLASSES)
    result = evaluate_model(parts.model, parts.precision, parts.eval_loader, parts.parallel, classes)
    report.update(
        top1=result["top1"],
        top5=result["top5"],
        best_top1=result["top1"],
        eval_images=result["images"],
        images_per_second=result["images"] / max(result["seconds"], 1e-9),
        seconds=result["seconds"],
        peak_memory_bytes=peak_memory_bytes(parts.device),
    )
    logger = get_logger()
    logger.info(f"----- Validation Loss: {result['loss']:.4f}, time: {result['seconds']:.2f}")
    logger.info(result_table(report))  # before what a full disk may end
    if parts.parallel.is_main:
        folder.append_metrics({"kind": "eval", **{name: result[name] for name in ("top1", "top5", "loss")}})
        folder.write_report(report)
    figures = {name: result[name] for name in ("top1", "top5", "loss", "images")}
    if parts.config.EVAL_FP32 and not parts.precision.is_plain:
        figures |= compare_with_float32(parts, result, build_model)
    if parts.parallel.is_main:
        for line in write_class_files(folder, classes, parts.class_names):
            logger.info(line)
        write_summary(folder, figures | summary(classes, parts.class_names))


def load_resumed_weights(parts, path, state):
    """Fill the model with the weights of ``-resume``, the content of a checkpoint."""
    check_same_file(parts.parallel, "-resume", path)
    if foreign.is_foreign(state):
        model, average = foreign.weights(state, parts.model, f"-resume: {path}")
    else:
        check_classes(state["config"], parts.config, f"-resume: {path}")
        warn_of_other_model(state["config"], parts.config, f"-resume: {path}")
        model, average = state["model"], state["ema"]
    evaluated = average or model  # as in training
    if average:
        get_logger().info("%s: its averaged weights are taken", path)
    own, loaded = parts.precision.model_state_dict(parts.model), parts.parallel.cut(evaluated)
    checkpoint.check_matches(own, loaded, path)
    parts.precision.load_model_state_dict(parts.model, loaded)


def compare_with_float32(parts, result, build_model):
    """Evaluate the same weights in float32 too, log the difference and return both figures."""
    plain = build_parts(dataclasses.replace(parts.config, AMP=Amp()), build_model, parts.parallel)
    if parts.config.MODEL.RESUME:
        load_resumed_weights(plain, *foreign.read_resumed(parts.config))
    top1 = evaluate_model(plain.model, plain.precision, plain.eval_loader, plain.parallel)["top1"]
    difference = result["top1"] - top1
    precision = f"{parts.precision.mode}/{parts.precision.dtype}"
    get_logger().info(f"top-1 {result['top1']:.4f} in {precision}, {top1:.4f} in float32: difference {difference:+.4f}")
    return {"top1_fp32": top1, "top1_difference": difference}
