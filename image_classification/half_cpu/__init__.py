"""float16 and bfloat16 arithmetic for Paddle's CPU backend, and faster float32.

    with half_cpu.dispatch():
        loss = model(images.astype("bfloat16")).mean()
    loss.backward()

Depends on paddle alone, so that the folder can be lifted into another code base.
"""

from . import onednn
from .composites import composite
from .dispatch import backend_name, dispatch
from .frozen import frozen, rounded_once
from .paddle_names import data_format, is_plain, norm_arguments
from .pieces import replay_images
from .products import Operand
from .reference import UnsupportedOperator
from .replay import computes_only, replay
from .training_replay import Replayed
from .updates import multiplies_gradients, reads_half_gradients, update, widens_gradients, writes_weights_last

__all__ = [
    "Operand",
    "Replayed",
    "UnsupportedOperator",
    "backend_name",
    "composite",
    "computes_only",
    "data_format",
    "dispatch",
    "frozen",
    "is_plain",
    "multiplies_gradients",
    "norm_arguments",
    "reads_half_gradients",
    "replay",
    "replay_images",
    "rounded_once",
    "update",
    "widens_gradients",
    "writes_weights_last",
]

onednn.register()
