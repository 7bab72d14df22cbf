"""Train or evaluate what a configuration names, in this process, alone or one of several.

The project's modules that need Paddle are imported inside the functions: a wrong command line is answered at once.
"""

import contextlib
import dataclasses
import signal
import sys
import time
import traceback
from pathlib import Path

from .parallel import watch
from .parallel.exit_codes import EXIT_INTERRUPTED, EXIT_PEER_LOST, EXIT_TRAINING_ERROR, EXIT_USER_ERROR, PeerLost
from .runtime import (
    UserError,
    check_interrupts,
    failure_of,
    get_logger,
    interrupted,
    log_to_file,
    peak_memory_bytes,
    release_interrupts,
)
from .runtime import setup_logger as start_log

LESS_MEMORY = "lower -batch_size and raise -accum_iter by the same factor; an evaluation: lower -batch_size_eval"


def main(build_model, argv=None):
    """Train or evaluate as the command line says, then exit; `prepare_processes` has given this process its rank.

    Exit codes: 0 done, 2 something the user gave is wrong (one line on stderr), 3 the training cannot go on, 4 another
    process failed first, 130 interrupted twice.
    """
    sys.exit(run_guarded(build_model, sys.argv[1:] if argv is None else argv))


def run_guarded(build_model, argv):
    """Return the exit code of a run; errors that a user can mend are one line, not a traceback."""
    from .config import load_config
    from .parallel import connect
    from .run_folder import check_output

    try:
        config = load_config(argv, build_model)
        check_output(config)
        from . import build  # noqa: F401 (the rest of what is slow to import)

        release_interrupts()
        run(config, build_model, connect(config))
        return 0
    except UserError as error:
        return _fail(error, EXIT_USER_ERROR)
    except KeyboardInterrupt:
        return _fail("interrupted", EXIT_INTERRUPTED)
    except Exception as error:
        from .trainer import TrainingError

        failure = failure_of(error)
        if interrupted():  # Paddle made another error of the Ctrl-C
            return _fail("interrupted", EXIT_INTERRUPTED)
        if isinstance(error, PeerLost):
            return _fail(error, EXIT_PEER_LOST)
        if isinstance(error, TrainingError):
            return _fail(error, EXIT_TRAINING_ERROR)
        if isinstance(error, MemoryError) or "ResourceExhausted" in (failure or ""):
            return _fail(f"out of memory: {_first_line(failure or error)}; {LESS_MEMORY}", EXIT_TRAINING_ERROR)
        if failure:
            return _fail(f"the device failed: {failure}; checkpoints saved before are whole", EXIT_TRAINING_ERROR)
        log_to_file(traceback.format_exc())
        raise


def _first_line(text):
    return next((line for line in str(text).splitlines() if line.strip()), "an allocation failed")


def _fail(message, code):
    log_to_file(f"error: {message}")
    print(f"error: {message}", file=sys.stderr, flush=True)
    watch.leave(code, str(message))
    return code


def run(config, build_model, parallel):
    """Train or evaluate; every process of the run calls this with its own ``parallel``.

    Nothing is written before all that can be wrong with the command, the files and the data has been looked at.
    """
    start_log(None, parallel.rank)
    if config.EVAL and not (config.MODEL.PRETRAINED or config.MODEL.RESUME):
        raise UserError("-eval: needs -pretrained with the weights to evaluate")
    from .build import build_parts, build_trainer

    parts = build_parts(config, build_model, parallel)
    check_interrupts()
    if config.DRY_RUN:
        return dry_run(parts)
    report = _empty_report(parts)
    if config.EVAL:
        weights = load_resumed_weights(parts) if config.MODEL.RESUME else config.MODEL.PRETRAINED
        folder = open_folder(parts)
        evaluate(parts, folder, report | {"checkpoint": str(weights)}, build_model)
    else:
        trainer = build_trainer(parts)
        if config.MODEL.RESUME:
            resume(trainer)
        folder = open_folder(parts)
        train(trainer, parts, folder, report)
    get_logger().info(f"results are in {folder.path}")


def open_folder(parts):
    """Return the :class:`RunFolder` of this run, made by the main process, and log what runs, from here on there, too.

    Raises:
        UserError: on every process, where the main one cannot have the folder.
    """
    from .run_folder import RunFolder

    folder, problem = None, None
    if parts.parallel.is_main:
        try:
            folder = RunFolder.create(parts.config)
        except UserError as error:
            problem = str(error)
    path, problem = parts.parallel.gather((str(folder.path) if folder else None, problem))[0]
    if problem:
        raise UserError(problem)
    start_log(path, parts.parallel.rank)
    _describe(parts)
    get_logger().info(f"run folder: {path}")
    return folder or RunFolder(path)


def resume(trainer):
    """Continue from ``-resume``.

    Raises:
        UserError: the checkpoint does not fit, or has nothing left to train.
    """
    from . import checkpoint

    path = checkpoint.find(trainer.config.MODEL.RESUME, "-resume")
    state = checkpoint.load(path)
    trainer.load_state(state, path)
    progress, epochs = trainer.progress, trainer.config.TRAIN.NUM_EPOCHS
    get_logger().info(
        f"resumed from {path}: in epoch {progress.epoch + 1} after batch {progress.batch}, step {progress.step}"
    )
    output = trainer.config.OUTPUT
    is_own = output is not None and Path(output).resolve() == path.resolve().parent
    # in its own folder a finished run is resumed to write what a kill left unwritten
    if progress.epoch >= epochs and not (is_own and "run" in state):
        raise UserError(
            f"-resume: {path} has {progress.epoch} epochs done, TRAIN.NUM_EPOCHS is {epochs}: nothing to train"
        )


def train(trainer, parts, folder, report):
    """Train to the end or to a requested stop."""
    from .build import folder_hooks

    logger, epochs = get_logger(), parts.config.TRAIN.NUM_EPOCHS
    trainer.add_hooks(folder_hooks(parts, folder, report))
    with stop_on_signal(trainer):
        trainer.fit()
    if trainer.stopping and trainer.progress.epoch < epochs:
        logger.info(f"stopped by {trainer.stop_reason}; continue with -resume={folder.path / 'latest'}")
    elif parts.parallel.is_main:
        logger.info(_result_table(report))


def evaluate(parts, folder, report, build_model):
    """Evaluate the weights that the model holds and write the report and the files about classes."""
    from .class_files import summary, write_class_files, write_summary
    from .evaluation import evaluate as evaluate_model
    from .metrics import ClassReport

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
    if parts.parallel.is_main:
        folder.append_metrics({"kind": "eval", **{name: result[name] for name in ("top1", "top5", "loss")}})
        folder.write_report(report)
    logger = get_logger()
    logger.info(f"----- Validation Loss: {result['loss']:.4f}, time: {result['seconds']:.2f}")
    logger.info(_result_table(report))
    figures = {name: result[name] for name in ("top1", "top5", "loss", "images")}
    if parts.config.EVAL_FP32 and not parts.precision.is_plain:
        figures |= compare_with_float32(parts, result, build_model)
    if parts.parallel.is_main:
        for line in write_class_files(folder, classes, parts.class_names):
            logger.info(line)
        write_summary(folder, figures | summary(classes, parts.class_names))


def load_resumed_weights(parts):
    """Fill the model with the weights of ``-resume`` and return the checkpoint's path."""
    from . import checkpoint

    path = checkpoint.find(parts.config.MODEL.RESUME, "-resume")
    state = checkpoint.load(path)
    own, loaded = parts.precision.model_state_dict(parts.model), parts.parallel.cut(state["model"])
    checkpoint.check_matches(own, loaded, path, "-resume")
    parts.precision.load_model_state_dict(parts.model, loaded)
    return path


def compare_with_float32(parts, result, build_model):
    """Evaluate the same weights in float32 too, log the difference and return both figures."""
    from .build import build_parts
    from .config.schema import Amp
    from .evaluation import evaluate as evaluate_model

    plain = build_parts(dataclasses.replace(parts.config, AMP=Amp()), build_model, parts.parallel)
    if parts.config.MODEL.RESUME:
        load_resumed_weights(plain)
    top1 = evaluate_model(plain.model, plain.precision, plain.eval_loader, plain.parallel)["top1"]
    difference = result["top1"] - top1
    precision = f"{parts.precision.mode}/{parts.precision.dtype}"
    get_logger().info(f"top-1 {result['top1']:.4f} in {precision}, {top1:.4f} in float32: difference {difference:+.4f}")
    return {"top1_fp32": top1, "top1_difference": difference}


def dry_run(parts):
    """Run one training step (one evaluation batch with -eval), print what a real run would do, write nothing."""
    import paddle

    from .build import build_trainer
    from .config import invocation_yaml, to_yaml

    config, logger = parts.config, get_logger()
    logger.info("dry run: this is the effective configuration\n" + to_yaml(config).rstrip())
    logger.info("and this belongs to this invocation alone\n" + invocation_yaml(config).rstrip())
    _describe(parts)
    start = time.perf_counter()
    if config.EVAL:
        images, labels = next(iter(parts.eval_loader))
        parts.model.eval()
        with paddle.no_grad(), parts.precision.forward_context():
            logits = parts.parallel.predict(parts.model, paddle.to_tensor(images))
        logger.info(f"one batch of {len(labels)} images: logits {logits.shape} {logits.dtype}")
    else:
        trainer = build_trainer(parts)
        parts.train_loader.set_epoch(0)
        parts.model.train()
        trainer.train_step(parts.train_loader.iterate(0), min(config.TRAIN.ACCUM_ITER, len(parts.train_loader)))
        result = trainer.last_result
        what = "applied" if result.applied else f"skipped ({result.first_bad} is not finite)"
        logger.info(
            f"one step of {config.TRAIN.ACCUM_ITER} x {config.DATA.BATCH_SIZE} images: loss {trainer.mean.loss:.4f}, "
            f"{what}, loss scale {result.loss_scale:g}"
        )
        logger.info(
            f"a run would make {config.TRAIN.NUM_EPOCHS} epochs of {trainer.steps_per_epoch} steps and write to "
            f"{config.OUTPUT or config.SAVE}"
        )
    logger.info(
        f"{time.perf_counter() - start:.2f} s, peak memory {peak_memory_bytes(parts.device) / 2**20:.0f} MiB; "
        "dry run: nothing was written"
    )


@contextlib.contextmanager
def stop_on_signal(trainer):
    """SIGTERM and the first Ctrl-C end the run after the running step, with a checkpoint; a second Ctrl-C at once."""

    def request_stop(number, frame):
        if trainer.stop_requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        trainer.request_stop("a signal")
        get_logger().info(f"{signal.Signals(number).name}: stopping after this step")

    check_interrupts()
    previous = {number: signal.signal(number, request_stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _describe(parts):
    config, logger = parts.config, get_logger()
    size = parts.parallel.num_parameters(parts.model)
    logger.info(f"parallel: {parts.parallel.describe()}")
    logger.info(f"precision: {parts.precision.describe()}")
    logger.info(f"model: {config.MODEL.NAME or 'unnamed'}, {size / 1e6:.2f} M parameters")
    logger.info(f"weights: {config.MODEL.RESUME or config.MODEL.PRETRAINED or f'fresh, seed {config.SEED}'}")


def _empty_report(parts):
    """Return the report with every key it will ever have; ``report.json`` has the same keys in every mode."""
    config, precision = parts.config, parts.precision
    return {
        "mode": "eval" if config.EVAL else "train",
        "model": config.MODEL.NAME,
        "dataset": config.DATA.DATASET,
        "device": parts.device,
        "precision": {"mode": precision.mode, "dtype": precision.dtype, "backend": precision.backend},
        "world_size": parts.parallel.world_size,
        "epochs": 0,
        "steps": 0,
        "skipped_steps": 0,
        "loss_scale": precision.loss_scale,
        "train_loss": None,
        "top1": None,
        "top5": None,
        "eval_images": 0,
        "best_top1": None,
        "images_per_second": 0.0,
        "seconds": 0.0,
        "peak_memory_bytes": 0,
        "checkpoint": None,
    }


def _result_table(report):
    precision = report["precision"]
    rows = [
        ("model", report["model"]),
        ("precision", f"{precision['mode']}/{precision['dtype']} on {report['device']} ({precision['backend']})"),
        ("top-1", f"{report['top1']:.4f}"),
        ("top-5", f"{report['top5']:.4f}"),
        ("best top-1", f"{report['best_top1']:.4f}"),
        ("images evaluated", report["eval_images"]),
        ("steps", f"{report['steps']} ({report['skipped_steps']} skipped)"),
        ("images/s", f"{report['images_per_second']:.1f}"),
        ("seconds", f"{report['seconds']:.1f}"),
        ("peak memory", f"{report['peak_memory_bytes'] / 2**20:.0f} MiB"),
        ("checkpoint", report["checkpoint"]),
    ]
    width = max(len(name) for name, _ in rows)
    return "result\n" + "\n".join(f"  {name:<{width}}  {value}" for name, value in rows)
