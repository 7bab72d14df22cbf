"""Environment mapping: what SLURM, Open MPI, torchrun, Paddle's launcher and a user say about ranks."""

import pytest

from image_classification.parallel import env
from image_classification.runtime import UserError

SLURM = {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "1",
         "SLURM_NODEID": "1", "SLURM_STEP_NODELIST": "n[01-02]", "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
         "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0"}
OPENMPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
           "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "job.1"}
TORCHRUN = {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "node1",
            "MASTER_PORT": "29500"}
PADDLE = {"PADDLE_TRAINER_ID": "1", "PADDLE_TRAINERS_NUM": "2", "PADDLE_MASTER": "127.0.0.1:4000",
          "PADDLE_LOCAL_RANK": "1", "PADDLE_LOCAL_SIZE": "2", "PADDLE_CURRENT_ENDPOINT": "127.0.0.1:4002"}


def test_slurm_variables_give_rank_and_first_host():
    place = env.detect("auto", SLURM)
    assert place[:5] == ("slurm", 3, 4, 1, 2)
    assert place.master.startswith("n01:")
    assert env.detect("slurm", SLURM | {"SLURM_PROCID": "0"}).master == place.master


def test_slurm_batch_script_itself_is_a_single_process():
    batch = {"ENVIRONMENT": "BATCH", "SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "1"}
    assert env.detect("auto", batch).world_size == 1


def test_openmpi_variables_on_one_host_need_no_master_address():
    place = env.detect("auto", OPENMPI)
    assert place[:5] == ("openmpi", 1, 2, 1, 2)
    assert place.master.startswith("127.0.0.1:")


def test_openmpi_on_several_hosts_without_master_address_is_an_error():
    with pytest.raises(UserError, match="MASTER_ADDR"):
        env.detect("auto", OPENMPI | {"OMPI_COMM_WORLD_SIZE": "4"})


def test_mpirun_inside_slurm_allocation_is_openmpi():
    assert env.detect("auto", SLURM | OPENMPI).launcher == "openmpi"


def test_torchrun_variables_give_master_and_leave_the_agents_port_alone():
    assert env.detect("auto", TORCHRUN) == ("torchrun", 2, 4, 0, 2, "node1:29500")
    assert env.detect("auto", TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "True"}).master == "node1:29501"


def test_paddle_variables_are_kept():
    environ = dict(PADDLE)
    assert env.prepare("auto", environ) == ("paddle", 1, 2, 1, 2, "127.0.0.1:4000")
    assert environ["PADDLE_CURRENT_ENDPOINT"] == "127.0.0.1:4002"


def test_export_writes_what_paddle_reads():
    environ = OPENMPI | {"PADDLE_CURRENT_ENDPOINT": "127.0.0.1:1"}  # what somebody's shell had
    place = env.prepare("openmpi", environ)
    port = int(place.master.split(":")[1])
    assert environ["PADDLE_TRAINER_ID"] == "1"
    assert environ["PADDLE_TRAINERS_NUM"] == "2"
    assert environ["PADDLE_LOCAL_SIZE"] == "2"
    assert environ["PADDLE_MASTER"] == place.master == f"{environ['MASTER_ADDR']}:{environ['MASTER_PORT']}"
    assert environ["PADDLE_CURRENT_ENDPOINT"] == f"127.0.0.1:{port + 2}"


@pytest.mark.parametrize(("host", "local_rank", "expected"), [
    ("127.0.0.1", None, (1, 2)),
    ("10.0.0.1", None, (0, 1)),  # a host of its own, as docs/distributed.md has it
    ("10.0.0.1", 1, (1, 2)),
])
def test_hand_set_numbers_are_the_place(host, local_rank, expected):
    assert env.hand_set(1, 2, host, 6000, local_rank) == ("hand", 1, 2, *expected, f"{host}:6000")


@pytest.mark.parametrize(("device", "before", "expected"), [
    ("cpu", {}, {"PADDLE_DISTRI_BACKEND": "gloo"}),
    ("gpu", {}, {"PADDLE_DISTRI_BACKEND": "nccl", "FLAGS_selected_gpus": "1"}),
    ("gpu", {"FLAGS_selected_gpus": "0,1"}, {"PADDLE_DISTRI_BACKEND": "nccl", "FLAGS_selected_gpus": "1"}),
    ("gpu", {"FLAGS_selected_gpus": ""}, {"PADDLE_DISTRI_BACKEND": "nccl", "FLAGS_selected_gpus": "1"}),
    ("gpu", {"FLAGS_selected_gpus": "5"}, {"PADDLE_DISTRI_BACKEND": "nccl", "FLAGS_selected_gpus": "5"}),
    ("xpu", {}, {"PADDLE_DISTRI_BACKEND": "bkcl", "FLAGS_selected_xpus": "1"}),
    ("npu", {}, {"PADDLE_DISTRI_BACKEND": "xccl", "FLAGS_selected_npus": "1"}),
])
def test_device_of_a_rank_is_its_local_rank_unless_chosen(device, before, expected):
    environ = dict(before)
    env.export_device(env.Environment("hand", 1, 2, 1, 2, "h:1"), device, environ)
    assert environ == expected


@pytest.mark.parametrize(("launcher", "environ", "message"), [
    ("auto", {"OMPI_COMM_WORLD_RANK": "0"}, "OMPI_COMM_WORLD_SIZE is not set"),
    ("auto", {"RANK": "0"}, "WORLD_SIZE is not set"),
    ("auto", {"PADDLE_TRAINERS_NUM": "2"}, "PADDLE_TRAINER_ID is not set"),
    ("auto", {"PADDLE_TRAINERS_NUM": "2", "PADDLE_TRAINER_ID": "0"}, "PADDLE_MASTER or PADDLE_TRAINER_ENDPOINTS"),
    ("auto", {"SLURM_PROCID": "0", "SLURM_STEP_ID": "0"}, "SLURM_NTASKS"),
    ("slurm", {}, "SLURM_PROCID is not set; was the program started by srun"),
    ("openmpi", {}, "started by mpirun"),
    ("torchrun", TORCHRUN | {"RANK": "4"}, "rank 4 of world size 4"),
    ("torchrun", TORCHRUN | {"RANK": "two"}, "RANK='two' is not an integer"),
    ("torchrun", TORCHRUN | {"LOCAL_RANK": "2"}, "local rank 2 of 2"),
    ("torchrun", TORCHRUN | {"MASTER_PORT": "99999"}, "is not host:port"),
    ("slurm", SLURM | {"SLURM_STEP_NODELIST": "n[a-b]"}, r"node list 'n\[a-b\]': expected hosts like n\[01-03,7\],m5"),
    ("slurm", SLURM | {"SLURM_STEP_NODELIST": "n[1-"}, r"node list 'n\[1-'"),
    ("slurm", SLURM | {"SLURM_STEP_NODELIST": "n[3-1]"}, r"node list 'n\[3-1\]'"),
    ("mpi", {}, "allowed are auto, paddle"),
])
def test_partial_or_wrong_environment_is_one_clear_error(launcher, environ, message):
    with pytest.raises(UserError, match=message) as error:
        env.detect(launcher, environ)
    assert "\n" not in str(error.value)


def test_clean_environment_is_one_process():
    environ = {"PATH": "/bin"}
    assert env.prepare("auto", environ).world_size == 1
    assert environ == {"PATH": "/bin"}


@pytest.mark.parametrize(("nodelist", "hosts"), [
    ("m5", ["m5"]),
    ("n[01-03,7],m5", ["n01", "n02", "n03", "n7", "m5"]),
    ("r[1-2]n[8-9]-x", ["r1n8-x", "r1n9-x", "r2n8-x", "r2n9-x"]),
    ("a,b", ["a", "b"]),
])
def test_node_list_expands_to_hosts(nodelist, hosts):
    assert env.expand_hosts(nodelist) == hosts


def test_tasks_per_node_repeats():
    assert env.detect("auto", SLURM | {"SLURM_STEP_TASKS_PER_NODE": "1,3"}).local_size == 3


def test_tests_of_several_processes_run_on_one_worker(request):
    """pytest-xdist reads the group of a test from its name, where `conftest.py` marked it early enough."""
    if not request.config.getoption("loadgroup", False):
        pytest.skip("needs pytest-xdist with --dist loadgroup")
    assert request.node.nodeid.endswith("@distributed")
