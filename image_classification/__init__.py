"""An image-classification zoo for PaddlePaddle whose subject is number formats.

    import image_classification

    model = image_classification.create_model("vit_base_patch16_224", pretrained=True, num_classes=5)
    prepare = image_classification.create_transform("vit_base_patch16_224")
    image_classification.list_models("vit*")

Paddle is imported when one of them is used first, with the threads and the settings of the project's commands, unless
it was imported before.
"""

import importlib

from . import runtime as runtime  # first: it refuses a Python or a Paddle that is not supported

FUNCTIONS = ("create_model", "create_transform", "list_models")
PACKAGES = ("amp", "data", "half_cpu", "parallel", "weights", "zoo")


def __getattr__(name):
    if name not in (*FUNCTIONS, *PACKAGES):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    runtime.prepare_process()
    if name in PACKAGES:
        return importlib.import_module(f".{name}", __name__)
    return getattr(importlib.import_module(".zoo", __name__), name)


def __dir__():
    return sorted([*globals(), *FUNCTIONS, *PACKAGES])
