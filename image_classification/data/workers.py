"""Worker processes that fill batches in shared memory.

They are fresh interpreters that import NumPy, OpenCV and Pillow, not Paddle: a process forked from one that runs
Paddle's thread pools can dead-lock, and multiprocessing's spawn would import the user's main script, and Paddle with
it, in each worker. The shared memory is an anonymous file, so a small /dev/shm does no harm and a kill leaves nothing
behind. A worker ends when its pipe does, so none outlives the training process.
"""

import errno
import mmap
import os
import pickle
import signal
import subprocess
import sys
import time
import traceback
import weakref
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path

import numpy as np

from ..runtime import UserError, anonymous_file

_ROOT = str(Path(__file__).resolve().parents[2])
_ALIGNMENT = 64
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# columns of the status table, one line a worker: samples done, -1 before it has started; index of the current one or -1
_DONE, _CURRENT = 0, 1
START_SECONDS = 60.0  # what a fresh interpreter may take on a busy machine
STOP_SECONDS = 10.0  # a run that is to stop waits no longer for a worker that makes no progress


class BatchMemory:
    """``num_slots`` batches of uint8 images and int64 labels, and a status table, in one shared file.

    ``generation[0]`` counts the iterations that were started; a worker drops tasks of an older one.
    """

    def __init__(self, num_slots, batch_size, image_shape, num_workers, descriptor=None):
        self.layout = (num_slots, batch_size, image_shape, num_workers)
        images_shape = (num_slots, batch_size, *image_shape)
        parts = [
            ("status", np.int64, (num_workers, 2)),
            ("generation", np.int64, (1,)),
            ("labels", np.int64, (num_slots, batch_size)),
            ("valid", np.uint8, (num_slots, batch_size)),
            ("images", np.uint8, images_shape),
        ]
        sizes = [int(np.prod(shape)) * np.dtype(kind).itemsize for _, kind, shape in parts]
        starts = np.cumsum([0] + [_round_up(size) for size in sizes])
        self.descriptor = anonymous_file() if descriptor is None else descriptor
        if descriptor is None:
            _lengthen(self.descriptor, int(starts[-1]))
        memory = mmap.mmap(self.descriptor, int(starts[-1]))
        for (name, kind, shape), start in zip(parts, starts, strict=False):
            array = np.frombuffer(memory, kind, int(np.prod(shape)), offset=int(start)).reshape(shape)
            setattr(self, name, array)


def _lengthen(descriptor, size):
    try:
        os.truncate(descriptor, size)
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        raise UserError(
            f"ulimit -f: files may not have the {size} bytes that data workers share; DATA.NUM_WORKERS=0 needs none"
        ) from error


def _round_up(size):
    return -(-size // _ALIGNMENT) * _ALIGNMENT


class WorkerPool:
    """Processes that make samples; tasks go out with :meth:`submit` and come back through :meth:`collect`."""

    def __init__(self, maker, num_workers, num_slots, batch_size, image_shape, timeout_seconds):
        self.maker = maker
        self.timeout_seconds = timeout_seconds
        self.is_to_stop = False
        self.memory = BatchMemory(num_slots, batch_size, image_shape, num_workers)
        self.memory.status[:] = -1
        self.outstanding = 0
        self._next_worker = 0
        self._pipes, self._processes = [], []
        self._finalizer = weakref.finalize(self, _shut_down, self._pipes, self._processes, [self.memory.descriptor])
        header, shared = _share_arrays(maker)
        try:
            for number in range(num_workers):
                self._start(number, header, shared)
        except OSError as error:  # a limit of this machine: open files, processes, memory
            self.close()
            raise UserError(f"DATA.NUM_WORKERS: {num_workers}: not all can be started: {error.strerror}") from error
        finally:
            os.close(shared)

    def _start(self, number, header, shared):
        ours, theirs = Pipe()
        descriptors = (theirs.fileno(), self.memory.descriptor, shared)
        command = f"from {__name__} import main; main{(*descriptors, number)!r}"
        # The package's own root: the training process may have found it through its current folder.
        search = [_ROOT, *(path or os.getcwd() for path in sys.path)]
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(search))
        environment.update(dict.fromkeys(_THREAD_VARIABLES, "1"))
        # Signals reach the whole group; the training process decides. What is blocked stays so in the worker.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
        try:
            process = subprocess.Popen(
                [sys.executable, "-c", command], pass_fds=descriptors, env=environment, stdin=subprocess.DEVNULL
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        self._pipes.append(ours)
        self._processes.append(process)
        try:
            ours.send_bytes(pickle.dumps((self.memory.layout, header)))
        except OSError as error:
            raise self._death(number) from error

    def new_generation(self):
        """Make the workers drop what an abandoned iteration still has under way, and wait for them to do so."""
        self.memory.generation[0] += 1
        while self.outstanding:
            self.collect()
        return int(self.memory.generation[0])

    def submit(self, ticket, slot, start, epoch, order):
        """Queue the samples ``order`` [n, 2] of (image, repeat) for places start ... start + n - 1 of a slot."""
        number = self._next_worker
        self._next_worker = (number + 1) % len(self._pipes)
        try:
            self._pipes[number].send((int(self.memory.generation[0]), ticket, slot, start, epoch, order.tolist()))
        except OSError as error:
            raise self._death(number) from error
        self.outstanding += 1

    def collect(self):
        """Wait for replies and return a list of (ticket, [(image, reason) left out], error or None: of bad data).

        Raises:
            UserError: a worker died, or made no progress for ``timeout_seconds``.
        """
        replies = []
        for pipe in self._wait():
            number = self._pipes.index(pipe)
            try:
                replies.append(pipe.recv())
            except (EOFError, OSError) as reason:
                raise self._death(number) from reason
            self.outstanding -= 1
        return replies

    def _wait(self):
        progress, since = self.memory.status[:, _DONE].sum(), time.monotonic()
        while True:
            ready = wait(self._pipes, timeout=min(5.0, self.timeout_seconds / 4))
            if ready:
                return ready
            if self.memory.status[:, _DONE].sum() != progress:
                progress, since = self.memory.status[:, _DONE].sum(), time.monotonic()
            starting = (self.memory.status[:, _DONE] < 0).any()
            limit, why = self.timeout_seconds, "DATA.WORKER_TIMEOUT"
            if self.is_to_stop and limit > STOP_SECONDS:
                limit, why = STOP_SECONDS, "the run is to stop"
            if time.monotonic() - since > limit + starting * START_SECONDS:
                number = int(np.argmax(self.memory.status[:, _CURRENT] >= 0))
                self.close()
                raise UserError(
                    f"data worker {number} made no progress for {limit:g} s ({why}); "
                    f"last file: {self._last_file(number)}"
                )

    def _last_file(self, number):
        index = int(self.memory.status[number, _CURRENT])
        return self.maker.dataset.describe(index) if index >= 0 else "none yet"

    def _death(self, number):
        try:
            code = self._processes[number].wait(timeout=5)
        except subprocess.TimeoutExpired:
            code = None
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
        hint = "; perhaps the machine ran out of memory" if code == -signal.SIGKILL else ""
        self.close()
        return UserError(f"data worker {number} {how}{hint}; last file: {self._last_file(number)}")

    def close(self):
        """End the workers."""
        self._finalizer()


def _shut_down(pipes, processes, descriptors):
    for pipe in pipes:
        pipe.close()
    deadline = time.monotonic() + 2
    for process in processes:
        try:
            process.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for descriptor in descriptors:
        os.close(descriptor)


def _share_arrays(maker):
    """Return ((pickle without the arrays, their places), descriptor of the file that holds the arrays once for all)."""
    buffers = []
    body = pickle.dumps(maker, protocol=5, buffer_callback=buffers.append)
    descriptor = anonymous_file()
    places, position = [], 0
    for buffer in buffers:
        view = buffer.raw()
        places.append((position, view.nbytes))
        _lengthen(descriptor, position + _round_up(view.nbytes))
        while view.nbytes:
            written = os.pwrite(descriptor, view[: 1 << 30], position)
            view, position = view[written:], position + written
        position = _round_up(position)
    return (body, places), descriptor


def _load_shared(header, descriptor):
    body, places = header
    size = os.fstat(descriptor).st_size
    memory = memoryview(mmap.mmap(descriptor, size, access=mmap.ACCESS_READ) if size else b"")
    return pickle.loads(body, buffers=[memory[start : start + length] for start, length in places])


def main(pipe_descriptor, batch_descriptor, shared_descriptor, number):
    """Serve one worker: answer tasks until the pipe closes."""
    pipe = Connection(pipe_descriptor)
    try:
        layout, header = pickle.loads(pipe.recv_bytes())
        memory = BatchMemory(*layout, descriptor=batch_descriptor)
        maker = _load_shared(header, shared_descriptor)
        memory.status[number, _DONE] = 0
        while True:
            pipe.send(_serve(maker, memory, memory.status[number], *pipe.recv()))
    except (EOFError, OSError):  # the training process is gone
        return


def _serve(maker, memory, status, generation, ticket, slot, start, epoch, order):
    skipped = []
    try:
        for position, (index, repeat) in enumerate(order, start=start):
            if memory.generation[0] != generation:
                break
            status[_CURRENT] = index
            out = memory.images[slot, position]
            label = maker.make(epoch, index, repeat, out, lambda *skip: skipped.append(skip))
            memory.valid[slot, position] = label is not None
            memory.labels[slot, position] = -1 if label is None else label
            status[_DONE] += 1
    except UserError as error:
        return ticket, skipped, error
    except Exception:
        name = maker.dataset.describe(index)
        return ticket, skipped, RuntimeError(f"data worker failed at {name}\n{traceback.format_exc()}")
    status[_CURRENT] = -1
    return ticket, skipped, None
