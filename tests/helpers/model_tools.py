"""The tools that are given a model, as modules, and a small model for them."""

import importlib.util

from tests.helpers.model_zoo import ROOT

VARIANT = "resnet_tiny_digits"


def tool(name):
    """Return a fresh module of a tool."""
    spec = importlib.util.spec_from_file_location(f"tools_{name}", ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
