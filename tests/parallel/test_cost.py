"""The cost model against what the groups of real processes sent, and the documentation against both."""

import math
import subprocess
import sys

import pytest

from image_classification.parallel import cost
from image_classification.parallel.reduction import BUCKET_ELEMENTS

from .harness import ROOT

TINY = cost.Transformer(tokens=17, embed_dim=32, depth=4, parameters=36648)
CLASSES = 8
FLOAT32 = 4


@pytest.mark.check("checks_layers:traffic:tp2", size=2)
def test_tensor_parallel_messages_are_those_of_the_model(results):
    for sent in results:
        calls, payload = cost.tensor_all_reduce(TINY, sent["micro_batch"], FLOAT32)
        own_logits = sent["micro_batch"] * CLASSES // 2
        assert sent["training"] == {
            "tensor all_reduce calls": sent["window"] * calls,
            "tensor all_reduce bytes": sent["window"] * payload,
            "tensor all_gather calls": sent["window"],
            "tensor all_gather bytes": sent["window"] * own_logits * FLOAT32,
        }


@pytest.mark.check("checks_layers:traffic:dp2", size=2)
def test_data_parallel_messages_wait_for_the_last_micro_batch(results):
    for sent in results:
        assert sent["window"] == 2
        assert sent["training"] == {}
        # gradients in buckets, and one flag for each tensor
        assert sent["step"]["data all_reduce calls"] == math.ceil(sent["parameters"] / BUCKET_ELEMENTS)
        assert sent["step"]["data all_reduce bytes"] == (sent["parameters"] + sent["tensors"]) * FLOAT32


@pytest.mark.check("checks_layers:traffic:pp2", size=2)
def test_pipeline_messages_are_one_activation_and_one_gradient_per_micro_batch(results):
    first, last = results
    calls, payload = cost.stage_send(TINY, first["micro_batch"], FLOAT32)
    header = 8 * 8  # the format, once
    assert first["training"]["stage after send calls"] == first["window"] * calls + 1
    assert first["training"]["stage after send bytes"] == first["window"] * payload + header
    assert last["training"]["stage before send calls"] == last["window"] * calls
    assert last["training"]["stage before send bytes"] == last["window"] * payload


@pytest.mark.check("checks_layers:traffic:{topology}")
@pytest.mark.parametrize(("size", "topology"), [(2, "dp2"), (2, "tp2"), (2, "pp2"), (4, "tp2pp2")])
def test_every_step_asks_once_whether_all_gradients_are_finite(results, size, topology):
    for sent in results:
        step = sent["step"]
        assert step["world all_reduce calls"] == 1
        assert step["world all_reduce bytes"] == 4
        assert step.get("model all_reduce calls", 0) == (0 if topology == "dp2" else 1)


def test_prediction_grows_worse_with_slower_links_and_counts_the_bubble():
    fast, slow = cost.CLUSTERS[0], cost.CLUSTERS[0]._replace(between=2e9)
    arguments = {"images": 64, "micro_batches": 1, "data": 64}
    assert cost.predict(TINY, slow, **arguments)["efficiency"] < cost.predict(TINY, fast, **arguments)["efficiency"]
    alone = cost.predict(TINY, fast, 64, 1)
    assert alone["efficiency"] == 1
    free = fast._replace(inside=1e30)
    bubble = cost.predict(TINY, free, 64, 8, pipeline=4)
    assert bubble["efficiency"] == pytest.approx(8 / (8 + 3))


def test_ring_sends_almost_twice_the_payload():
    assert cost.ring_bytes(1000, 2) == 1000
    assert cost.ring_bytes(1000, 1000) == pytest.approx(1998)


def test_documentation_shows_the_prediction_that_the_code_has():
    page = (ROOT / "docs" / "distributed.md").read_text()
    printed = subprocess.run([sys.executable, "tools/parallel_cost.py"], cwd=ROOT, capture_output=True, text=True)
    rows = [line for line in printed.stdout.splitlines() if line.startswith(("| ViT", "| DGX"))]
    assert len(rows) == 22
    assert [row for row in rows if row not in page] == []
