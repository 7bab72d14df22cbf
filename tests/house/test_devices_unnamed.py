"""One module knows kinds of devices (runtime/devices.py, for NVIDIA's runtime/cuda.py); names elsewhere stand here."""

import re

from tests.helpers.model_zoo import PACKAGE, ROOT
from tests.house.test_families_unnamed import SHARED, names_in

KINDS = re.compile(r"gpu|cuda|nvidia|nccl|xpu|npu(?!t)", re.IGNORECASE)
KNOWS = {PACKAGE / "runtime" / "devices.py", PACKAGE / "runtime" / "cuda.py"}
TYPED = {"main_single_gpu.py", "main_multi_gpu.py", "ngpus", "NGPUS", "-ngpus="}  # names that users type
DALI = {"DALI_GPU", "nvidia.dali", "on_gpu"}  # which exists for NVIDIA's GPUs alone
LEFT = {
    "image_classification/config/command_line.py": TYPED,
    "image_classification/config/schema.py": TYPED | DALI,
    "image_classification/data/build.py": DALI | {"gpu"},
    "image_classification/data/dali.py": DALI,
    "image_classification/half_cpu/paddle_names.py": {"_use_gpudnn"},  # a method of Paddle's tensors on a CPU, too
    "image_classification/config/meant.py": {"-ngpus"},  # what a user is to type
    "image_classification/config/switches.py": {"NGPUS", "-ngpus="},  # what a user typed
    "image_classification/config/unread.py": {"DATA.DALI_GPU"},
    "image_classification/parallel/entry.py": TYPED,
    "image_classification/parallel/spawn.py": {"-ngpus="},
    "image_classification/runtime/versions.py": {"paddlepaddle-gpu", "paddlepaddle-xpu"},  # names of packages
    "image_classification/config/catalogue.py": {"*/main_single_gpu.py"},
    "tools/parts/benchmark_data_rows.py": DALI,
    "tools/compare_precision.py": TYPED,
    "tools/new_family.py": TYPED,
    "tools/parallel_cost.py": {"gpus"},  # figures of published machines
    "tools/version_matrix.py": TYPED,
}


def test_code_names_no_kind_of_device_outside_of_its_module():
    found = {}
    for path in SHARED:
        name = str(path.resolve().relative_to(ROOT))  # the package has its tools by a link
        named = {text for text in names_in(path) if KINDS.search(text)} - LEFT.get(name, set())
        if named and path not in KNOWS:
            found[name] = named
    assert found == {}


def test_every_exception_is_needed():
    for name, allowed in LEFT.items():
        assert allowed & set(names_in(ROOT / name)), name
