"""Training checkpoints of PaddleViT: `-resume` continues from what its main_*.py saved.

They are one paddle.save of {model, optimizer, epoch, lr_scheduler} and, where it was on, {model_ema, amp_grad_scaler}.
paddle.save keeps each parameter's generated name beside its array; under these names the optimizer has its moments. The
data, the random numbers and the best accuracy are not in them: they start afresh, and one line says so.
"""

import math

import numpy as np

from . import checkpoint
from .optim import load_optimizer_state, optimizer_state
from .progress import Progress, Resumed
from .runtime import UserError, get_logger
from .weights.keymap import translate

MOST_EPOCHS = 10**6


def is_foreign(tree):
    """Return whether the content of a file is a training checkpoint of PaddleViT."""
    return "format" not in tree and isinstance(tree.get("model"), dict) and "epoch" in tree


def weights(tree, model, path):
    """Return the weights and the average of them, {our name: float32 array}; no average: {}.

    Args:
        model: states the names that other projects gave its parameters.

    Raises:
        UserError: they are no arrays.
    """
    return tuple(_arrays(_section(tree, key), model, f"{path}: {key}") for key in ("model", "model_ema"))


def resume(trainer, tree, path):
    """Continue from the content of a checkpoint of PaddleViT.

    Raises:
        UserError: it is of another model, or damaged; nothing has changed then.
    """
    epoch = tree["epoch"]
    if type(epoch) is not int or not 0 <= epoch <= MOST_EPOCHS:
        raise UserError(f"-resume: {path}: epoch: expected an integer of 0 to {MOST_EPOCHS}, found {str(epoch)[:40]}")
    model, average = weights(tree, trainer.model, f"-resume: {path}")
    parallel, precision = trainer.parallel, trainer.precision
    for loaded in (model, average) if average else (model,):
        checkpoint.check_matches(precision.model_state_dict(trainer.model), parallel.cut(loaded), path, "-resume")
    precision.load_model_state_dict(trainer.model, parallel.cut(model))
    trainer.ema.load_state_dict(parallel.cut(average))
    named = parallel.owned(precision.master_params(trainer.model))
    moments = _optimizer_entries(tree, trainer, named)
    afresh = ["data order and random numbers", "best top-1"]
    try:
        load_optimizer_state(trainer.optimizer, named, parallel.cut(moments, named))
    except UserError:
        afresh.append("the optimizer, whose state is another one's")
    scale = _loss_scale(tree, precision)
    if not scale and precision.loss_scale != 1:
        afresh.append(f"the loss scale at {precision.loss_scale:g}")
    trainer.progress = Progress(epoch=epoch, step=epoch * trainer.steps_per_epoch)
    trainer.resumed = Resumed(path, {})
    get_logger().info(f"-resume: {path} is PaddleViT's: its weights, schedule{', average' if average else ''}"
                      f"{scale} and epoch {epoch}; afresh start {', '.join(afresh)}")  # fmt: skip


def _section(tree, key):
    """Return a dictionary of the file, an empty one where it has none of that name."""
    return tree[key] if isinstance(tree.get(key), dict) else {}


def _arrays(named, model, where):
    """Return a state dict of PaddleViT under our names."""
    tensors = {name: value for name, (_, value) in _parameters(named).items()}
    for name, value in tensors.items():
        if value.dtype.kind not in "fiu":
            raise UserError(f"{where}: {name[:80]}: expected numbers, found {value.dtype}")
    return {name: np.asarray(value, np.float32) for name, value in translate(tensors, model)[0].items()}


def _parameters(named):
    """Return {name in the model: (generated name, array)} of a state dict inside a paddle.save."""
    pairs = {name: value if type(value) in (tuple, list) and len(value) == 2 else (name, value)
             for name, value in named.items()}  # fmt: skip
    return {name: (own, value) for name, (own, value) in pairs.items() if isinstance(value, np.ndarray)}


def _optimizer_entries(tree, trainer, named):
    """Return {"<our name>/<slot>": array} of what the optimizer here asks for and the file has."""
    saved = {name: value for name, (_, value) in _parameters(_section(tree, "optimizer")).items()}
    slots = {key.rpartition("/")[2] for key in optimizer_state(trainer.optimizer, named)}
    entries = {}
    for slot in slots:
        found = {name: saved[f"{own}_{slot}_0"] for name, (own, _) in _parameters(tree["model"]).items()
                 if f"{own}_{slot}_0" in saved}  # fmt: skip
        entries |= {f"{name}/{slot}": value for name, value in translate(found, trainer.model)[0].items()}
    return entries


def _loss_scale(tree, precision):
    """Give a run that has one the loss scale of the file, and return the words for it; "" where either has none."""
    saved, own = _parameters(_section(tree, "amp_grad_scaler")), precision.state_dict()
    value = saved["scale"][1] if "scale" in saved else np.zeros(0)
    scale = float(value.reshape(-1)[0]) if value.size == 1 and value.dtype.kind == "f" else math.nan
    if "loss_scaler0" not in own or not 2.0**-149 <= scale <= 2.0**127:
        return ""
    precision.load_state_dict(own | {"loss_scaler0": own["loss_scaler0"] | {"scale": scale}})
    return f", loss scale {scale:g}"
