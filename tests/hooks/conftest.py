"""A module with a hook of the user's."""

import sys

import pytest


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    (tmp_path / "my_hooks.py").write_text(
        "from image_classification.hooks import Hook\nclass Mine(Hook):\n    priority = 3\nclass Other: pass\n"
        "class Needs(Hook):\n    def __init__(self, run): pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("my_hooks", None)
