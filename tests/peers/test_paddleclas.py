"""Networks of PaddleClas's own code: their weights load under its names, and the logits are the same."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import paddle
import pytest

from image_classification.weights import load_pretrained, read_registry
from tests.helpers.model_zoo import CONFIGS, build, published

pytestmark = pytest.mark.peers

JOB = Path(__file__).with_name("paddleclas_job.py")
PATHS = {path.stem: path for path in CONFIGS}
MOST_PARAMETERS = 50e6
NETWORKS = {  # its network: our variant
    entry.id.removeprefix("paddleclas/").removesuffix("_ssld"): entry.variant
    for entry in read_registry().values()
    if entry.id.startswith("paddleclas/") and published()[entry.variant]["parameters"] < MOST_PARAMETERS
}


@pytest.mark.parametrize("name", NETWORKS)
def test_logits_equal_those_of_its_own_network(paddleclas, name, tmp_path):
    side = 224 if "patch" in name else 64
    images = np.random.default_rng(0).standard_normal((2, 3, side, side)).astype("float32")
    files = [tmp_path / file for file in ("images.npy", "theirs.pdparams", "logits.npy")]
    np.save(files[0], images)
    command = [sys.executable, JOB, paddleclas, name, *files]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=environment, timeout=600)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    model = build(PATHS[NETWORKS[name]])
    load_pretrained(model, str(files[1]))
    model.eval()
    with paddle.no_grad():
        found = model(paddle.to_tensor(images)).numpy()
    expected = np.load(files[2])
    assert abs(found - expected).max() <= 1e-5 * abs(expected).max()
