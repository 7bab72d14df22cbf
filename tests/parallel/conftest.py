"""One start of N real processes serves many tests: the checks are listed here, each test reads its own result."""

from pathlib import Path

import pytest

from tests.helpers.model_zoo import FOLDERS

from .harness import ROOT, once_per_session, run_ranks

WORKER = ROOT / "tests" / "parallel" / "worker.py"

PARITY_FP32 = {
    2: ("dp2", "tp2", "pp2", "sh2"),
    4: ("dp4", "tp4", "pp4", "dp2tp2", "dp2pp2", "tp2pp2", "dp2sh2"),
    8: ("dp2tp2pp2",),
}
PARITY_HALF = {
    2: ("dp2:auto:bfloat16", "tp2:auto:float16", "sh2:auto:float16", "dp2:O2:float16", "tp2:naive:bfloat16",
        "pp2:naive:float16"),
    4: ("dp2tp2:auto:bfloat16", "dp2pp2:naive:float16", "tp2pp2:naive:bfloat16"),
    8: ("dp2tp2pp2:naive:float16",),
}  # fmt: skip
PLANTED = {
    2: ("dp2:fp32", "dp2:auto:float16", "dp2:O1:float16", "dp2:O2:float16", "dp2:O3:bfloat16", "dp2:naive:float16",
        "tp2:fp32", "tp2:auto:float16", "tp2:auto:bfloat16", "tp2:naive:float16", "pp2:fp32", "pp2:naive:float16",
        "pp2:naive:bfloat16", "sh2:fp32", "sh2:auto:float16"),
    4: ("dp4:auto:float16", "tp4:auto:float16", "pp4:naive:float16", "dp2tp2:auto:float16", "dp2pp2:naive:float16",
        "tp2pp2:naive:float16", "dp2sh2:auto:float16"),
    8: ("dp2tp2pp2:naive:float16",),
}  # fmt: skip
MOVES = {
    2: ("dp2:tp2:fp32", "tp2:pp2:fp32", "pp2:sh2:fp32", "sh2:one:fp32", "tp2:dp2:auto:float16",
        "tp2:one:naive:bfloat16"),
    4: ("tp4:dp2tp2:fp32", "dp2tp2:one:fp32", "dp2pp2:tp2pp2:naive:float16", "tp4:dp2sh2:fp32", "dp2sh2:one:fp32"),
    8: ("dp2tp2pp2:one:fp32",),
}
RESNET = ("dp2:fp32:", "pp2:fp32:", "pp2:naive:bfloat16")
STAND_ALONE = [f"{topology}:{api}" for topology in ("dp2", "tp2") for api in ("initialize", "convert")]
FAMILIES = ("pp2", "tp2")
LAYERS = ("attention", "attention_without_bias", "mlp", "block", "normed_attention", "gated_mlp")


def checks(size):
    """Return the names of everything that `size` processes check in one start."""
    names = [f"checks_parity:parity:{name}" for name in (*PARITY_FP32[size], *PARITY_HALF[size])]
    names += [f"checks_finite:planted:{name}" for name in PLANTED[size]]
    names += [f"checks_checkpoint:move:{name}" for name in MOVES[size]]
    if size == 2:
        names += [f"checks_parity:parity:{name}:resnet" for name in RESNET]
        names += ["checks_layers:collectives", "checks_layers:reduction:dp2", "checks_layers:buffers:dp2",
                  "checks_layers:barrier"]
        names += [f"checks_finite:stand_alone:{name}:{value}" for name in STAND_ALONE for value in ("inf", "nan")]
        names += [f"checks_finite:stand_alone:tp2:{api}:inf:alone" for api in ("initialize", "convert")]
        names += [f"checks_parity:rounding:tp2:{mode}" for mode in ("auto", "naive")]
        names += [f"checks_layers:{name}" for name in ("sync_batch_norm", "sync_batch_norm:uneven")]
        names += [f"checks_layers:traffic:{topology}" for topology in ("dp2", "tp2", "pp2")]
        names += [f"checks_families:family:{topology}:{folder.name}" for folder in FOLDERS for topology in FAMILIES]
    if size == 4:
        names += ["checks_layers:dropout:dp2tp2", "checks_layers:traffic:tp2pp2"]
    if size <= 4:
        names += [f"checks_layers:tensor_layer:tp{size}:{kind}" for kind in LAYERS]
    return names


def pytest_collection_modifyitems(items):
    # One of pytest-xdist's workers runs them all: two starts at once would only wait for each other's processors.
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.xdist_group("distributed"))


def start(tmp_path_factory, size, names, timeout):
    def produce(folder):
        return run_ranks(WORKER, size, folder, ",".join(names), timeout=timeout)

    return once_per_session(tmp_path_factory, f"ranks_{size}", produce)


@pytest.fixture(scope="session")
def two_ranks(tmp_path_factory):
    return start(tmp_path_factory, 2, checks(2), timeout=500)


@pytest.fixture(scope="session")
def three_ranks(tmp_path_factory):
    names = [f"checks_layers:sync_batch_norm{kind}" for kind in ("", ":uneven", ":empty")]
    return start(tmp_path_factory, 3, [*names, "checks_layers:collectives"], timeout=240)


@pytest.fixture(scope="session")
def four_ranks(tmp_path_factory):
    return start(tmp_path_factory, 4, checks(4), timeout=600)


@pytest.fixture(scope="session")
def eight_ranks(tmp_path_factory):
    return start(tmp_path_factory, 8, checks(8), timeout=600)


@pytest.fixture
def ranks(request):
    """Return the function size -> results of that many processes, started when first asked for."""
    names = {2: "two_ranks", 3: "three_ranks", 4: "four_ranks", 8: "eight_ranks"}
    return lambda size: request.getfixturevalue(names[size])
