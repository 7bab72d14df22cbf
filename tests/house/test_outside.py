"""Bytes from outside come in through a few doors: whoever opens, parses or unpacks does it where that is bounded."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "image_classification"
# call -> the modules that may make it: those that keep to a budget, and those that read what this project itself wrote
DOORS = {
    "open": {"files/plain.py", "files/download.py", "files/archives.py", "run_folder.py", "parallel/spawn.py",
             "half_cpu/compiler.py", "checkpoint.py", "half_cpu/huge_pages.py"},  # the last: /proc/self/maps
    ".read_text": {"runtime/process.py", "weights/registry.py", "run_folder.py"},
    ".read_bytes": {"half_cpu/compiler.py", "hooks/records.py"},
    "Image.open": {"data/decode.py"},
    "cv2.imdecode": {"data/decode.py"},
    "cv2.imread": set(),
    "pickle.load": set(),
    "pickle.loads": {"data/workers.py"},  # between a process and its workers
    "pickle.Unpickler": set(),
    "np.load": set(),
    "np.fromfile": set(),
    "np.loadtxt": {"data/digits.py"},  # of a file that scikit-learn installs
    "json.load": set(),
    "json.loads": {"data/labels.py", "files/download.py", "weights/safetensors.py", "run_folder.py",
                   "runtime/devices.py", "parallel/hub.py", "parallel/watch.py"},
    "yaml.safe_load": set(),
    "yaml.load": {"weights/registry.py"},  # of the project's own files
    "tarfile.open": set(),
    "zipfile.ZipFile": {"files/zip.py", "files/archives.py", "weights/write.py"},
    "gzip.open": set(),
    "gzip.GzipFile": {"files/tar.py"},
    "mmap.mmap": {"files/zip.py", "weights/read.py", "data/workers.py"},
    "urllib.request.urlopen": set(),
    "urllib.request.build_opener": {"files/download.py", "weights/source.py"},
    "ast.literal_eval": {"runtime/seeds.py"},  # of a text that the checkpoint's schema has matched
    "eval": set(),
    "exec": {"config/catalogue.py"},  # the head of a function of the project's own
}  # fmt: skip


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_module_reads_through_the_doors_alone(path):
    own = str(path.relative_to(PACKAGE))
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("read_text", "read_bytes"):
            name = f".{node.func.attr}"
        assert own in DOORS.get(name, {own}), f"{own}:{node.lineno}: {name}: use image_classification/files"
