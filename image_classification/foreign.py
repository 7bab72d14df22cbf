"""Training checkpoints of PaddleViT: `-resume` continues from what its main_*.py saved.

They are one paddle.save of {model, optimizer, epoch, lr_scheduler} and, where it was on, {model_ema, amp_grad_scaler}.
paddle.save keeps each parameter's generated name beside its array; under these names the optimizer has its moments. The
data, the random numbers and the best accuracy are not in them: they start afresh, and one line says so.
"""

import numpy as np

from . import checkpoint
from .optim import check_optimizer_state, load_optimizer_state, optimizer_state
from .progress import Progress, Resumed
from .runtime import UserError, get_logger
from .weights import replaceable_head
from .weights.keymap import translate

MOST_EPOCHS = 10**6


def is_foreign(tree):
    """Return whether the content of a file is a training checkpoint of PaddleViT."""
    return "format" not in tree and isinstance(tree.get("model"), dict) and "epoch" in tree


def read_resumed(config):
    """Return (the file, its content) of ``-resume``: PaddleViT's as it is, this project's once it is looked at.

    Raises:
        UserError: it is neither, or damaged.
    """
    path = checkpoint.find(config.MODEL.RESUME)
    tree = checkpoint.read(path)
    if not is_foreign(tree):
        return path, checkpoint.check(tree, path)
    epoch = tree["epoch"]
    if type(epoch) is not int or not 0 <= epoch <= MOST_EPOCHS:
        raise UserError(f"-resume: {path}: epoch: expected an integer of 0 to {MOST_EPOCHS}, found {str(epoch)[:40]}")
    return path, tree


def check_fits(config, model, path, tree):
    """See that a checkpoint is of a model, of which shapes are enough, and of its optimizer in a training.

    The number of classes is left out where the data decide it.

    Raises:
        UserError: it is of another one.
    """
    own = model.state_dict()
    loaded = weights(tree, model, f"-resume: {path}")[0] if is_foreign(tree) else tree["model"]
    head = () if config.MODEL.CLASSES_GIVEN else replaceable_head(model, own, loaded)
    body = [{name: value for name, value in named.items() if name not in head} for named in (own, loaded)]
    checkpoint.check_matches(*body, path)
    if config.EVAL:
        return
    epoch = tree["epoch"] if is_foreign(tree) else tree["progress"]["epoch"]
    checkpoint.check_unfinished(path, epoch, config, checkpoint.lies_in(path, config.OUTPUT))
    if is_foreign(tree):  # its optimizer may be another one
        return
    trained = [name for name, parameter in model.named_parameters() if not parameter.stop_gradient]
    try:
        check_optimizer_state(config.TRAIN, trained, tree["optimizer"])
    except UserError as error:
        raise UserError(f"-resume: {path}: {error}") from None


def weights(tree, model, path):
    """Return the weights and the average of them, {our name: float32 array}; no average: {}.

    Args:
        model: states the names that other projects gave its parameters.

    Raises:
        UserError: they are no arrays.
    """
    return tuple(_arrays(parameters(tree, key), model, f"{path}: {key}") for key in ("model", "model_ema"))


def parameters(tree, key):
    """Return {name: (generated name, array)} of the state dict that a file has under a key."""
    named = tree[key] if isinstance(tree.get(key), dict) else {}
    pairs = {name: value if type(value) in (tuple, list) and len(value) == 2 else (name, value)
             for name, value in named.items() if isinstance(name, str)}  # fmt: skip
    return {name: (own, value) for name, (own, value) in pairs.items() if isinstance(value, np.ndarray)}


def saved_scale(tree):
    """Return the loss scale of a file, None where it has none in the range of one."""
    _, value = parameters(tree, "amp_grad_scaler").get("scale", (None, np.zeros(0)))
    scale = float(value.reshape(-1)[0]) if value.size == 1 and value.dtype.kind == "f" else 0.0
    return scale if 2.0**-149 <= scale <= 2.0**127 else None


def resume(trainer, tree, path):
    """Continue from the content of a checkpoint of PaddleViT.

    Raises:
        UserError: it is of another model, or damaged; nothing has changed then.
    """
    epoch = tree["epoch"]
    model, average = weights(tree, trainer.model, f"-resume: {path}")
    parallel, precision = trainer.parallel, trainer.precision
    for loaded in (model, average) if average else (model,):
        checkpoint.check_matches(precision.model_state_dict(trainer.model), parallel.cut(loaded), path)
    precision.load_model_state_dict(trainer.model, parallel.cut(model))
    trainer.ema.load_state_dict(parallel.cut(average), precision.model_state_dict(trainer.model))
    named = parallel.owned(precision.master_params(trainer.model))
    moments = _optimizer_entries(tree, trainer, named)
    afresh = ["data order and random numbers", "best top-1"]
    try:
        load_optimizer_state(trainer.optimizer, named, parallel.cut(moments, named))
    except UserError:
        afresh.append("the optimizer, whose state is another one's")
    words, scalers, scale = "", precision.state_dict(), saved_scale(tree)
    if "loss_scaler0" in scalers and scale is not None:
        precision.load_state_dict(scalers | {"loss_scaler0": scalers["loss_scaler0"] | {"scale": scale}})
        words = f", loss scale {scale:g}"
    elif precision.loss_scale != 1:
        afresh.append(f"the loss scale at {precision.loss_scale:g}")
    trainer.progress = Progress(epoch=epoch, step=epoch * trainer.steps_per_epoch)
    trainer.resumed = Resumed(path, {})
    get_logger().info(f"-resume: {path} is PaddleViT's: its weights, schedule{', average' if average else ''}"
                      f"{words} and epoch {epoch}; {', '.join(afresh)} start afresh")  # fmt: skip


def _arrays(named, model, where):
    """Return a state dict of PaddleViT under our names."""
    tensors = {name: value for name, (_, value) in named.items()}
    for name, value in tensors.items():
        if value.dtype.kind not in "fiu":
            raise UserError(f"{where}: {name[:80]}: expected numbers, found {value.dtype}")
    return {name: np.asarray(value, np.float32) for name, value in translate(tensors, model)[0].items()}


def _optimizer_entries(tree, trainer, named):
    """Return {"<our name>/<slot>": array} of what the optimizer here asks for and the file has."""
    saved = {name: value for name, (_, value) in parameters(tree, "optimizer").items()}
    slots = {key.rpartition("/")[2] for key in optimizer_state(trainer.optimizer, named)}
    entries = {}
    for slot in slots:
        found = {name: saved[f"{own}_{slot}_0"] for name, (own, _) in parameters(tree, "model").items()
                 if f"{own}_{slot}_0" in saved}  # fmt: skip
        entries |= {f"{name}/{slot}": value for name, value in translate(found, trainer.model)[0].items()}
    return entries
