"""What a run folder says of its training, to be compared with that of another run."""

import hashlib
import json

import numpy as np

from image_classification import checkpoint

RATES = ("images_per_second", "seconds", "peak_memory_bytes", "checkpoint")  # of the process, not of the training


def left_behind(folder):
    """Return all that a run folder says of its training, without how long it took."""
    report = json.loads((folder / "report.json").read_text())
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {
        "files": sorted(path.name for path in folder.iterdir() if path.name != "visualdl"),
        "checkpoints": {path.name: digest(path) for path in sorted(folder.glob("*.pdparams"))},
        "report": {name: value for name, value in report.items() if name not in RATES},
        "metrics": [{name: value for name, value in line.items() if name not in RATES} for line in lines],
    }


def digest(path):
    state = checkpoint.load(path)
    sums = hashlib.sha256()
    for part in ("model", "optimizer"):
        for name, value in sorted(state[part].items()):
            sums.update(name.encode() + np.asarray(value).tobytes())
    counts = {name: value for name, value in state["progress"].items() if name != "seconds"}
    return sums.hexdigest(), counts, state["precision"]


def scalars(folder):
    from visualdl import LogReader

    (record,) = (folder / "visualdl").iterdir()
    reader = LogReader(file_path=str(record))
    return {tag: [(each.id, each.value) for each in reader.get_data("scalar", tag)]
            for tag in reader.get_tags()["scalar"] if "images_per_second" not in tag}  # fmt: skip
