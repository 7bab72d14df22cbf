"""What an entry point does before it imports Paddle: find this process's place in the run, or start its processes."""

import faulthandler
import os
import resource
import signal
import sys
from pathlib import Path

from image_classification.config import model_folders, preview_config
from image_classification.runtime import (
    UserError,
    ending,
    expected_kind,
    hold_interrupts,
    ignore_interrupts,
    interrupted,
    open_missing_streams,
    prepare_process,
    print_error,
    release_interrupts,
    visible,
)

from . import env, spawn, watch
from .exit_codes import EXIT_PEER_LOST, EXIT_USER_ERROR, PeerLost
from .topology import resolve_degrees

DEGREES = ("DATA", "TENSOR", "PIPELINE", "SHARDING")
# variables of launchers that leave their processes behind when they are killed
LAUNCHERS_ALONE = ("PADDLE_LOG_DIR", "TORCHELASTIC_RUN_ID")


def prepare_processes(alone=False, argv=None):
    """Give this process its rank and threads; without a launcher, start NGPUS processes, wait for them and exit.

    Call it before Paddle is imported: that takes seconds, and the whole command line is checked first. A mistake of the
    user is one line on stderr and exit code 2.

    Args:
        alone: the program is made for one process, and refuses to be one of several.
    """
    open_missing_streams()
    hold_interrupts()  # a shell's background jobs begin with Ctrl-C ignored
    try:
        release_interrupts()
        program = Path(sys.argv[0]).resolve()  # of one family, or one that runs them all
        family = program.parent.name if program.is_file() and program.parent.name in model_folders() else None
        settings = preview_config(sys.argv[1:] if argv is None else argv, family)
        if settings.NGPUS == 0 or settings.NGPUS < -1:
            raise UserError(f"-ngpus={settings.NGPUS}: expected at least 1, or -1 for one per visible device")
        place = find_place(settings)
        device = expected_kind(settings.DEVICE)
        if alone:
            refuse_company(settings, place)
        refuse_other_number(settings, place)
        starts = not alone and place.world_size == 1 and place.launcher == "none"
        count = processes_to_start(settings, device) if starts else 1
        degrees = resolve_degrees(
            count if starts else place.world_size, *(getattr(settings.PARALLEL, name) for name in DEGREES)
        )
        refuse_few_files(max(count, place.world_size))
        if place.world_size > 1:
            env.export_device(place, device)
            os.environ[watch.DEGREES] = " x ".join(f"{name} {degrees[name.lower()]}" for name in DEGREES)
            meet(settings.PARALLEL.TIMEOUT)
        hold_interrupts()  # until launch.main
        if count > 1:
            sys.exit(spawn.run_workers(count))
    except UserError as error:
        end(error, EXIT_USER_ERROR)
    except PeerLost as error:
        end(error, EXIT_PEER_LOST)
    except KeyboardInterrupt as error:
        end(*ending(error))
    try:
        prepare_process()
    except Exception as error:
        interrupt = interrupted()
        if interrupt:  # a command that Paddle starts got the Ctrl-C, too
            end(*ending(interrupt))
        if isinstance(error, OSError) and error.filename is not None:  # the disk, or the permissions of this machine
            end(f"{error.filename}: {error.strerror}", EXIT_USER_ERROR)
        raise


def end(message, code):
    """End this process with one line."""
    ignore_interrupts()
    print_error(f"error: {message}")
    sys.exit(code)


def meet(timeout):
    """Return when all processes of the run have come; from here on none of them waits for one that stalls."""
    faulthandler.register(signal.SIGUSR1)  # shows where a process hangs
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGUSR1})
    watch.this_process().limit = timeout or watch.LIMIT_SECONDS


def processes_to_start(settings, device):
    """Return how many processes `-ngpus` asks for; the default is one for each visible device."""
    count = settings.NGPUS if settings.NGPUS > 0 else max(1, visible(device))
    if device != "cpu" and count > visible(device):
        raise UserError(f"-ngpus={count}: there are {visible(device)} visible {device.upper()}s")
    return count


def refuse_company(settings, place):
    """Refuse what one process alone cannot do: to be one of several, or to share its work.

    Raises:
        UserError: the command line, the configuration or a launcher asks for several processes.
    """
    kinds = settings.PARALLEL
    asked = {
        f"{place.launcher} started {place.world_size} processes": place.world_size > 1,
        f"-ngpus={settings.NGPUS}": settings.NGPUS > 1,
        "-sync_bn": kinds.SYNC_BN and not settings.EVAL,
    }
    asked |= {f"PARALLEL.{name}={getattr(kinds, name)}": (getattr(kinds, name) or 1) > 1 for name in DEGREES}
    for what, is_asked in asked.items():
        if is_asked:
            raise UserError(f"{what}, and main_single_gpu.py is one process: use main_multi_gpu.py")


def refuse_other_number(settings, place):
    """Refuse a number of processes that is neither that of the run nor, on several hosts, that of this host.

    Raises:
        UserError: a launcher started another number, and this program starts none beside it.
    """
    if place.launcher == "none" or settings.NGPUS in (-1, place.world_size, place.local_size):
        return
    size, here = place.world_size, place.local_size
    processes = "1 process" if size == 1 else f"{size} processes"
    of_host = "" if here == size else f", {here} of them on this host"
    raise UserError(f"-ngpus={settings.NGPUS}: {place.launcher} started {processes}{of_host}: leave -ngpus out, or let "
                    "the launcher start as many")  # fmt: skip


def refuse_few_files(processes):
    """Refuse a limit of open files with which several processes cannot connect: libraries would end them by signals.

    Rank 0 of four has up to 120; the limits that systems set, 256 and more, are taken as they are.
    """
    allowed, needed = resource.getrlimit(resource.RLIMIT_NOFILE)[0], min(64 + 32 * processes, 256)
    if processes > 1 and 0 <= allowed < needed:
        raise UserError(f"ulimit -n: {allowed} open files are allowed, {processes} processes need at least {needed}")


def find_place(settings, environ=os.environ):
    """Return this process's :class:`env.Environment` and write it into the variables that Paddle reads."""
    parallel = settings.PARALLEL
    if spawn.is_worker(environ):
        spawn.die_with_parent()
        return env.prepare("paddle", environ)
    if any(name in environ for name in LAUNCHERS_ALONE):
        spawn.die_with_parent()
    if parallel.LOCAL_RANK is not None:
        environ.setdefault("LOCAL_RANK", str(parallel.LOCAL_RANK))
    if parallel.RANK is None and parallel.WORLD_SIZE is None:
        return env.prepare(parallel.LAUNCHER, environ)
    if parallel.RANK is None or parallel.WORLD_SIZE is None:
        raise UserError("-rank and -world_size: give both or none")
    if parallel.LAUNCHER not in ("auto", "none"):
        raise UserError(f"-launcher={parallel.LAUNCHER}: -rank and -world_size are set by hand: give one of them")
    place = env.hand_set(parallel.RANK, parallel.WORLD_SIZE, parallel.HOST, parallel.PORT, parallel.LOCAL_RANK)
    if place.world_size > 1:
        env.export(place, environ)
    return place
