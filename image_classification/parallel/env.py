"""Which process of how many is this? One answer from whatever started the process.

Paddle reads its own PADDLE_* variables and no others. `prepare` translates what SLURM, Open MPI, torchrun or the user
says into them; call it before anything asks for rank and world size (threads, device, logger). Knows no Paddle.
"""

import contextlib
import os
import re
import socket
import time
import zlib
from collections.abc import Callable, MutableMapping
from typing import NamedTuple

from image_classification.runtime import UserError, cards_variable, device_of

LAUNCHERS = ("auto", "paddle", "slurm", "openmpi", "torchrun", "none")
# Below Linux' range for outgoing connections (32768-60999), so that a derived port is rarely taken.
FIRST_PORT, NUM_PORTS = 12000, 18000


class Environment(NamedTuple):
    """Place of this process in the run; `master` is "host:port" of rank 0, empty when alone."""

    launcher: str
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_size: int = 1
    master: str = ""


def prepare(launcher="auto", environ: MutableMapping[str, str] = os.environ) -> Environment:
    """Return this process's place and write it into the PADDLE_* variables that Paddle reads.

    Raises:
        UserError: the variables of the launcher are incomplete or contradict each other.
    """
    found = detect(launcher, environ)
    if found.world_size > 1:
        export(found, environ)
    return found


def detect(launcher, environ: MutableMapping[str, str]) -> Environment:
    """Return this process's place as the named launcher tells it; `auto` takes the first launcher that left a trace."""
    if launcher not in LAUNCHERS:
        raise UserError(f"-launcher={launcher}: allowed are {', '.join(LAUNCHERS)}")
    if launcher == "none":
        return Environment("none")
    if launcher == "auto":
        # mpirun inside a SLURM allocation leaves both traces and is the inner of the two: Open MPI comes first.
        launcher = next((name for name, launched in _TRACES.items() if launched(environ)), "none")
        if launcher == "none":
            return Environment("none")
    return _validated(_READERS[launcher](_Variables(launcher, environ)))


def hand_set(rank, world_size, host, port, local_rank) -> Environment:
    """Return the place that a user typed with -rank, -world_size, -host and -port.

    Without -local_rank a process is the only one of its host, unless rank 0's address is one that all hosts have.
    """
    if host in ("127.0.0.1", "localhost"):
        local, size = rank if local_rank is None else local_rank, world_size
    else:
        local = local_rank or 0
        size = local + 1  # as far as this process can tell
    return _validated(Environment("hand", rank, world_size, local, size, f"{host}:{port}"))


def export(place: Environment, environ: MutableMapping[str, str] = os.environ):
    """Write the place of this process into the variables that Paddle reads; what Paddle's launcher wrote stays."""
    host, _, port = place.master.rpartition(":")
    environ["PADDLE_TRAINER_ID"] = environ["PADDLE_GLOBAL_RANK"] = str(place.rank)
    environ["PADDLE_TRAINERS_NUM"] = environ["PADDLE_GLOBAL_SIZE"] = str(place.world_size)
    environ["PADDLE_LOCAL_RANK"] = environ["PADDLE_RANK_IN_NODE"] = str(place.local_rank)
    environ["PADDLE_LOCAL_SIZE"] = str(place.local_size)
    # Paddle prefers MASTER_ADDR and MASTER_PORT where both exist, so they must say the same.
    environ["PADDLE_MASTER"] = place.master
    environ["MASTER_ADDR"], environ["MASTER_PORT"] = host, port
    if place.launcher != "paddle" or not environ.get("PADDLE_CURRENT_ENDPOINT"):
        environ["PADDLE_CURRENT_ENDPOINT"] = f"{_own_address(host)}:{int(port) + 1 + place.rank}"


def export_device(place: Environment, device: str, environ: MutableMapping[str, str] = os.environ):
    """Choose the collectives of this kind of device, and the card: the local rank's, if the launcher chose none."""
    backend, cards = device_of(device).backend, cards_variable(device)
    if device == "cpu":
        environ["PADDLE_DISTRI_BACKEND"] = backend
        return
    environ.setdefault("PADDLE_DISTRI_BACKEND", backend)
    if "," in environ.get(cards, ",") or not environ[cards]:
        environ[cards] = str(place.local_rank)


def free_port():
    """Return a port that nobody listens on, outside the range that the system hands out by itself."""
    start = zlib.crc32(f"{os.getpid()}.{time.monotonic_ns()}".encode())
    for offset in range(NUM_PORTS):
        port = FIRST_PORT + (start + offset) % NUM_PORTS
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return port
    raise UserError("there is no free port on this host")


class _Variables:
    """Reads integers and texts of one launcher, and complains in one line."""

    def __init__(self, launcher, environ):
        self.launcher = launcher
        self.environ = environ

    def text(self, *names, default=None):
        value = next((self.environ[name] for name in names if self.environ.get(name)), default)
        if value is None:
            raise UserError(f"launcher {self.launcher}: {' or '.join(names)} is not set; was the program started by "
                            f"{_STARTERS[self.launcher]}?")
        return value

    def integer(self, *names, default=None):
        text = self.text(*names, default=default)
        try:
            return int(text)
        except ValueError:
            raise UserError(f"launcher {self.launcher}: {' or '.join(names)}={text!r} is not an integer") from None


def _paddle(variables):
    rank, size = variables.integer("PADDLE_TRAINER_ID"), variables.integer("PADDLE_TRAINERS_NUM")
    if size == 1:
        return Environment("paddle", rank)
    endpoints = variables.text("PADDLE_MASTER", "PADDLE_TRAINER_ENDPOINTS")
    local_rank = variables.integer("PADDLE_LOCAL_RANK", "PADDLE_RANK_IN_NODE", default=str(rank))
    local_size = variables.integer("PADDLE_LOCAL_SIZE", default=str(size))
    return Environment("paddle", rank, size, local_rank, local_size, endpoints.split(",")[0])


def _torchrun(variables):
    rank, size = variables.integer("RANK"), variables.integer("WORLD_SIZE")
    if size == 1:
        return Environment("torchrun", rank)
    port = variables.integer("MASTER_PORT")
    if variables.environ.get("TORCHELASTIC_USE_AGENT_STORE", "").lower() == "true":
        port += 1  # torchrun's own store listens on MASTER_PORT itself
    master = f"{variables.text('MASTER_ADDR')}:{port}"
    local_rank = variables.integer("LOCAL_RANK", default=str(rank))
    return Environment("torchrun", rank, size, local_rank, variables.integer("LOCAL_WORLD_SIZE", default=str(size)),
                       master)


def _openmpi(variables):
    rank, size = variables.integer("OMPI_COMM_WORLD_RANK"), variables.integer("OMPI_COMM_WORLD_SIZE")
    if size == 1:
        return Environment("openmpi", rank)
    local_rank = variables.integer("OMPI_COMM_WORLD_LOCAL_RANK")
    local_size = variables.integer("OMPI_COMM_WORLD_LOCAL_SIZE", default=str(size))
    if local_size == size:
        host = variables.text("MASTER_ADDR", default="127.0.0.1")
    else:  # several hosts: Open MPI does not tell which one has rank 0
        host = variables.text("MASTER_ADDR")
    job = variables.text("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", default=str(os.getppid()))
    return Environment("openmpi", rank, size, local_rank, local_size, f"{host}:{_port(variables, job)}")


def _slurm(variables):
    rank = variables.integer("SLURM_PROCID")
    size = variables.integer("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")
    if size == 1:
        return Environment("slurm", rank)
    local_rank = variables.integer("SLURM_LOCALID")
    hosts = expand_hosts(variables.text("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"))
    host = variables.text("MASTER_ADDR", default="127.0.0.1" if len(hosts) == 1 else hosts[0])
    job = f"{variables.text('SLURM_JOB_ID', 'SLURM_JOBID')}.{variables.environ.get('SLURM_STEP_ID', '0')}"
    tasks = _tasks_per_node(variables.text("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE", default=""))
    node = variables.integer("SLURM_NODEID", default="0")
    local_size = tasks[node] if node < len(tasks) else max(1, size // len(hosts))
    return Environment("slurm", rank, size, local_rank, local_size, f"{host}:{_port(variables, job)}")


def expand_hosts(nodelist: str) -> list[str]:
    """Return the host names of a SLURM node list: "n[01-03,7],m5" -> n01 n02 n03 n7 m5.

    Raises:
        UserError: it is none, or of no host.
    """
    hosts = []
    numbers = r"\d+(?:-\d+)?"
    name = rf"(?:[^,\[\]]|\[{numbers}(?:,{numbers})*\])+"
    for part in re.findall(name, nodelist) if re.fullmatch(f"{name}(?:,{name})*", nodelist) else []:
        pieces = re.split(r"\[([^\]]*)\]", part)  # text and bracket content in turn
        names = [pieces[0]]
        for inside, text in zip(pieces[1::2], pieces[2::2], strict=True):
            names = [f"{name}{number}{text}" for name in names for number in _expand_numbers(inside)]
        hosts.extend(names)
    if not hosts:
        raise UserError(f"launcher slurm: node list {nodelist!r}: expected hosts like n[01-03,7],m5")
    return hosts


def _expand_numbers(ranges):
    for item in ranges.split(","):
        first, _, last = item.partition("-")
        for number in range(int(first), int(last or first) + 1):
            yield str(number).zfill(len(first))


def _tasks_per_node(text):
    # "2(x3),1" -> [2, 2, 2, 1]
    counts = []
    for count, repeat in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts.extend([int(count)] * int(repeat or 1))
    return counts


def _port(variables, job):
    """Return MASTER_PORT, or a port that every rank of the same job computes alike."""
    if variables.environ.get("MASTER_PORT"):
        return variables.integer("MASTER_PORT")
    return FIRST_PORT + zlib.crc32(job.encode()) % NUM_PORTS


def _own_address(master_host):
    """Return the address under which the master, and with it every other rank, sees this host."""
    if master_host in ("127.0.0.1", "localhost"):
        return "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((master_host, 9))  # sends nothing: it only chooses the interface
        except OSError as error:
            raise UserError(f"the master's host {master_host!r} cannot be reached from here: {error}") from None
        return probe.getsockname()[0]


def _validated(place):
    if place.world_size < 1 or not 0 <= place.rank < place.world_size:
        raise UserError(f"launcher {place.launcher}: rank {place.rank} of world size {place.world_size}: the rank must "
                        "lie between 0 and the world size minus 1")
    if place.world_size == 1:
        return place
    if not 0 <= place.local_rank < max(place.local_size, 1):
        raise UserError(f"launcher {place.launcher}: local rank {place.local_rank} of {place.local_size} processes on "
                        "this host: the local rank must be smaller")
    host, _, port = place.master.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UserError(f"launcher {place.launcher}: master {place.master!r} is not host:port")
    return place


def _srun_started(environ):
    # A batch script sees SLURM_PROCID=0 and the whole job's task count too, but only srun sets a step.
    tasks = environ.get("SLURM_STEP_NUM_TASKS") or environ.get("SLURM_NTASKS") or environ.get("SLURM_NPROCS")
    inside_batch_script = environ.get("ENVIRONMENT") == "BATCH" and "SLURM_STEP_ID" not in environ
    return "SLURM_PROCID" in environ and tasks != "1" and not inside_batch_script


_TRACES: dict[str, Callable[[MutableMapping[str, str]], bool]] = {
    "paddle": lambda environ: "PADDLE_TRAINER_ID" in environ or "PADDLE_TRAINERS_NUM" in environ,
    "torchrun": lambda environ: "RANK" in environ or "WORLD_SIZE" in environ,
    "openmpi": lambda environ: "OMPI_COMM_WORLD_RANK" in environ or "OMPI_COMM_WORLD_SIZE" in environ,
    "slurm": _srun_started,
}
_READERS = {"paddle": _paddle, "torchrun": _torchrun, "openmpi": _openmpi, "slurm": _slurm}
_STARTERS = {"paddle": "python -m paddle.distributed.launch", "torchrun": "torchrun", "openmpi": "mpirun",
             "slurm": "srun"}
