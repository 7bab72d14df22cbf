"""Train or evaluate what a configuration names, in this process, alone or one of several.

The project's modules that need Paddle are imported inside the functions: a wrong command line is answered at once.
"""

import contextlib
import errno
import importlib
import signal
import sys
import traceback
from pathlib import Path

from .config.catalogue import module_of
from .parallel import watch
from .parallel.entry import prepare_processes
from .parallel.exit_codes import EXIT_PEER_LOST, EXIT_TRAINING_ERROR, EXIT_USER_ERROR, PeerLost
from .report import describe, empty_report, result_table
from .runtime import (
    UserError,
    check_interrupts,
    ending,
    failure_of,
    get_logger,
    ignore_interrupts,
    interrupted,
    log_to_file,
    print_error,
    release_interrupts,
)
from .runtime import setup_logger as start_log
from .runtime.errors import first_line

LESS_MEMORY = "lower -batch_size and raise -accum_iter by the same factor; an evaluation: lower -batch_size_eval"


def run_family(program, alone=False):
    """Train or evaluate a model of the family that the program at this path is of, then exit; `alone`: see `entry`."""
    prepare_processes(alone)  # ranks and threads, before Paddle is imported; with -ngpus this starts the processes
    main(importlib.import_module(module_of(Path(program).resolve().parent.name)).build_model)


def main(build_model, argv=None):
    """Train or evaluate as the command line says, then exit; `prepare_processes` has given this process its rank.

    Exit codes: 0 done, 2 something the user gave is wrong (one line on stderr), 3 the training cannot go on, 4 another
    process failed first, 130 interrupted twice or before the training, 143 terminated before it.
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
    except KeyboardInterrupt as error:
        return _fail(*ending(error))
    except Exception as error:
        from .trainer import TrainingError

        failure = failure_of(error)
        interrupt = interrupted()
        if interrupt:  # Paddle made another error of it
            return _fail(*ending(interrupt))
        if isinstance(error, PeerLost):
            return _fail(error, EXIT_PEER_LOST)
        if isinstance(error, TrainingError):
            return _fail(error, EXIT_TRAINING_ERROR)
        no_memory = isinstance(error, OSError) and error.errno == errno.ENOMEM
        if no_memory or isinstance(error, MemoryError) or "ResourceExhausted" in (failure or ""):
            return _fail(f"out of memory: {first_line(failure or error)}; {LESS_MEMORY}", EXIT_TRAINING_ERROR)
        if isinstance(error, OSError) and error.filename is not None:  # a file that nobody expected to be in the way
            log_to_file(traceback.format_exc())
            return _fail(f"{error.filename}: {error.strerror}", EXIT_USER_ERROR)
        if failure:
            return _fail(f"the device failed: {failure}; checkpoints saved before are whole", EXIT_TRAINING_ERROR)
        log_to_file(traceback.format_exc())
        raise


def _fail(message, code):
    ignore_interrupts()
    log_to_file(f"error: {message}")
    print_error(f"error: {message}")
    watch.leave(code, str(message))
    return code


def run(config, build_model, parallel):
    """Train or evaluate; every process of the run calls this with its own ``parallel``.

    Nothing is written before all that can be wrong with the command, the files and the data has been looked at.
    """
    start_log(None, parallel.rank)
    if config.EVAL and not (config.MODEL.PRETRAINED or config.MODEL.RESUME):
        raise UserError("-eval: needs -pretrained with the weights to evaluate")
    parts, trainer, weights = build(config, build_model, parallel)
    report = empty_report(parts)
    if config.DRY_RUN:
        from .dry_run import dry_run

        return dry_run(parts, trainer)
    with contextlib.closing(open_folder(parts)) as folder:
        if config.EVAL:
            from .evaluate_only import evaluate

            evaluate(parts, folder, report | {"checkpoint": str(weights)}, build_model)
        else:
            train(trainer, parts, folder, report)
    ignore_interrupts()  # nothing is left to do but to end the data workers
    get_logger().info(f"results are in {folder.path}")


def build(config, build_model, parallel):
    """Return (the parts, the trainer of a training, the weights' file of an evaluation), with what ``-resume`` holds.

    Raises:
        UserError: see `run`; whatever is wrong with the checkpoint alone is said before the data are read.
    """
    from .build import build_parts, build_trainer
    from .foreign import read_resumed

    resumed = read_resumed(config) if config.MODEL.RESUME else None
    parts = build_parts(config, build_model, parallel, resumed)
    check_interrupts()
    if config.EVAL:
        from .evaluate_only import load_resumed_weights

        if resumed:
            load_resumed_weights(parts, *resumed)
        return parts, None, resumed[0] if resumed else parts.weights
    trainer = build_trainer(parts)
    if resumed:
        resume(trainer, *resumed)
    return parts, trainer, None


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
    describe(parts)
    get_logger().info(f"run folder: {path}")
    return folder or RunFolder(path)


def resume(trainer, path, state):
    """Continue from ``-resume``, the content of a checkpoint.

    Raises:
        UserError: it does not fit, or has nothing left to train.
    """
    from . import checkpoint, foreign
    from .parallel.agreement import check_same_file
    from .saved_config import changed_recipe

    changed = ""
    check_same_file(trainer.parallel, "-resume", path)
    if foreign.is_foreign(state):
        foreign.resume(trainer, state, path)
    else:
        trainer.load_state(state, path)
        changed = changed_recipe(state, trainer.config, trainer.units(), f"-resume: {path}")
    if changed:
        get_logger().warning(f"-resume: {path}: goes on with another recipe: {changed}; -cfg=<its run folder> keeps it")
    progress = trainer.progress
    get_logger().info(
        f"resumed from {path}: in epoch {progress.epoch + 1} after batch {progress.batch}, step {progress.step}"
    )
    is_own = checkpoint.lies_in(path, trainer.config.OUTPUT) and "run" in state and not changed
    checkpoint.check_unfinished(path, progress.epoch, trainer.config, trainer.parallel.gather(is_own)[0])


def train(trainer, parts, folder, report):
    """Train to the end or to a requested stop."""
    from .build import folder_hooks
    from .run_folder import resume_word

    logger, epochs = get_logger(), parts.config.TRAIN.NUM_EPOCHS
    trainer.add_hooks(folder_hooks(parts, folder, report))
    with stop_on_signal(trainer):
        trainer.fit()
    ignore_interrupts()  # all is saved
    if trainer.progress.epoch < epochs or trainer.evaluation is None:
        logger.info(f"stopped by {trainer.stop_reason}; continue with {resume_word(folder.path)}")
    elif parts.parallel.is_main:
        logger.info(result_table(report))


@contextlib.contextmanager
def stop_on_signal(trainer):
    """SIGTERM and the first Ctrl-C end the run after the running step, or batch of an evaluation, with a checkpoint; a
    second Ctrl-C at once."""

    def request_stop(number, frame):
        if trainer.stop_requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        trainer.request_stop("a signal")
        trainer.train_loader.hurry()
        trainer.eval_loader.hurry()
        get_logger().info(f"{signal.Signals(number).name}: stopping after this step or batch")

    check_interrupts()
    previous = {number: signal.signal(number, request_stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
