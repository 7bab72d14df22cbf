"""A network of PaddleClas's own code: `paddleclas_job.py <its checkout> <name> <images.npy> <weights> <logits.npy>`.

It has random weights and the statistics of the images. Only the modules of networks are imported: its package itself
needs what no network does.
"""

import importlib
import logging
import re
import sys
import types
from pathlib import Path

import numpy as np
import paddle


def prepare(checkout):
    """Let the modules of networks be imported without running the packages around them."""
    for name in ("ppcls", "ppcls.arch", "ppcls.arch.backbone", *(
        f"ppcls.arch.backbone.{part}" for part in ("base", "base.dbb", "legendary_models", "model_zoo")
    )):  # fmt: skip
        package = types.ModuleType(name)
        package.__path__ = [str(Path(checkout, *name.split(".")))]
        sys.modules[name] = package
    sys.modules["ppcls.utils"] = types.ModuleType("ppcls.utils")
    sys.modules["ppcls.utils"].logger = logging.getLogger("ppcls")
    reader = sys.modules["ppcls.utils.save_load"] = types.ModuleType("ppcls.utils.save_load")
    reader.load_dygraph_pretrain = None


def network(checkout, name):
    """Return the network of a name, from the module that defines it."""
    for part in ("legendary_models", "model_zoo"):
        for path in sorted(Path(checkout, "ppcls", "arch", "backbone", part).glob("*.py")):
            if re.search(rf"^def {name}\(", path.read_text(encoding="utf-8"), re.MULTILINE):
                return getattr(importlib.import_module(f"ppcls.arch.backbone.{part}.{path.stem}"), name)()
    raise LookupError(name)


def main(checkout, name, images, weights, logits):
    prepare(checkout)
    paddle.seed(1)
    model, images = network(checkout, name), paddle.to_tensor(np.load(images))
    rng = np.random.default_rng(0)
    for key, value in model.state_dict().items():
        if value.ndim == 1 and not key.endswith("_variance"):  # norms and biases that are not 1 and 0
            value.set_value(value.numpy() + rng.normal(0, 0.05, value.shape).astype("float32"))
    model.eval()
    for layer in model.sublayers():
        if isinstance(layer, paddle.nn.BatchNorm | paddle.nn.BatchNorm2D):
            layer._momentum = 0.1
            layer.train()
    with paddle.no_grad():
        model(images)
        model.eval()
        paddle.save(model.state_dict(), weights)
        np.save(logits, model(images).numpy())


if __name__ == "__main__":
    main(*sys.argv[1:])
