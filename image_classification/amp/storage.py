"""A model whose weights are half, and the float32 masters that the optimizer updates in their place.

The float32 parameter that the model was built with becomes the master, and the model gets a half twin of it. So masters
are never made from rounded weights, and an optimizer that was built before the conversion already holds them.
"""

import weakref

import paddle

from . import private
from .gradients import write
from .masters import collect

BATCH_NORMS = (
    paddle.nn.BatchNorm,
    paddle.nn.BatchNorm1D,
    paddle.nn.BatchNorm2D,
    paddle.nn.BatchNorm3D,
    paddle.nn.SyncBatchNorm,
)
NORMS = (
    *BATCH_NORMS,
    paddle.nn.LayerNorm,
    paddle.nn.GroupNorm,
    paddle.nn.InstanceNorm1D,
    paddle.nn.InstanceNorm2D,
    paddle.nn.InstanceNorm3D,
)
# Kernels that do not take half inputs with float32 weights: all of the layer runs in float32.
FLOAT32_ONLY = (paddle.nn.GroupNorm,)
FLOAT32_NORMS = {"all": NORMS, "batch": BATCH_NORMS, "none": ()}
# Statistics that a forward pass writes into its own layer; a master of them would be out of date.
STATISTICS = ("_mean", "_variance")


class HalfStorage:
    """Half twins of a model's weights and where their masters are.

    Args:
        dtype: "float16" or "bfloat16".
        masters: False makes the weights themselves half, and the optimizer updates those.
        keeps_float32: function of (layer name, layer) that says which layers stay as they are.
    """

    def __init__(self, dtype, masters, keeps_float32):
        self.dtype = dtype
        self.masters = masters
        self._keeps_float32 = keeps_float32
        # id of the master -> half parameter, which holds the master; those of copies of the model as well
        self._halves: weakref.WeakValueDictionary[int, private.HalfParameter] = weakref.WeakValueDictionary()

    def convert(self, model):
        """Store the model's float32 parameters and buffers in half, except in layers that stay float32.

        Raises:
            ValueError: a parameter is not float32 to begin with.
        """
        for name, param in model.named_parameters():
            if param.dtype in (paddle.float16, paddle.bfloat16) and self.master(param) is param:
                raise ValueError(f"parameter {name!r} is {param.dtype} already: give the model in float32")
        kept: list[str] = []
        for name, layer in model.named_sublayers(include_self=True):
            if self._keeps_float32(name, layer) or is_below(name, kept):
                kept.append(name)
            else:
                self._convert_layer(layer)

    def master(self, tensor):
        """Return the float32 master of a half parameter, or the tensor itself when it has none."""
        if not isinstance(tensor, private.HalfParameter):
            return tensor
        _adopt(tensor)
        return tensor.master

    def half(self, tensor):
        """Return the half parameter of a master, None when there is none."""
        return self._halves.get(id(tensor))

    def collect(self):
        """Add the gradients of the half weights to those of their masters, in float32, and clear the former."""
        collect([half for half in self._halves.values() if half.grad is not None and _learns(half)])

    def adopt(self):
        """Make masters what somebody else has written into their half weights since the last step."""
        for half in self._halves.values():
            _adopt(half)

    def publish(self, masters, written):
        """Round masters into their half weights, but those whose ids are among the written ones.

        No others: a graph that reads them may still wait for its backward pass, as a generator's does while its
        discriminator steps.
        """
        with paddle.no_grad():
            for master in masters:
                half = self.half(master)
                if half is None:
                    continue
                if not master.stop_gradient and id(half) not in written:
                    write(half, master)
                half.note()

    def _convert_layer(self, layer):
        replaced = {}
        for name, param in layer.named_parameters(include_sublayers=False):
            if param.dtype != paddle.float32:
                continue
            if not self.masters or name in STATISTICS:
                private.cast_in_place(param, self.dtype)
                continue
            half = self.half(param)
            if half is None:
                half = private.HalfParameter.of(param, self.dtype, self._halves)
            setattr(layer, name, half)
            replaced[id(param)] = half
        for _, buffer in layer.named_buffers(include_sublayers=False):
            if buffer.dtype == paddle.float32:
                private.cast_in_place(buffer, self.dtype)
        # Recurrent layers keep their weights a second time in a list.
        for name, value in vars(layer).items():
            if isinstance(value, list) and any(id(item) in replaced for item in value):
                setattr(layer, name, [replaced.get(id(item), item) for item in value])


def _learns(half):
    """Return whether a half weight's gradient is its master's; one that is frozen no more is trained from now on."""
    if half.frozen and half.master.stop_gradient:
        half.master.stop_gradient = False
    half.frozen = False
    if half.master.stop_gradient:  # somebody froze the master alone
        half.drop_gradient()
    return not half.master.stop_gradient


def _adopt(half):
    """Write into a master what differs in its half weight from the rounded master: the rest keeps its bits."""
    if not half.was_written():
        return
    with paddle.no_grad():
        wide = half.detach().astype("float32")
        same = half.master.detach().astype(half.dtype).astype("float32") == wide
        paddle.assign(paddle.where(same, half.master, wide), half.master)
    half.note()


def is_below(name, layers):
    """Return whether a layer is one of `layers`, or inside one of them."""
    return any(name == layer or name.startswith(f"{layer}.") for layer in layers)
