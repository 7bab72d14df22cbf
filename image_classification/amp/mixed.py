"""Every mode with a half format in it: where weights are half, and which casts surround the model or its operators."""

import contextlib
import difflib
import threading

import paddle
from paddle import nn

from .. import half_cpu
from .plain import PlainPrecision
from .storage import FLOAT32_ONLY, is_below
from .structures import cast_floating


class _Here(threading.local):
    """What is open in a thread: forward contexts, and the layers whose calls run without casts."""

    open_contexts = 0

    def __init__(self):
        self.entered = []

    def leave(self, layer):
        """Switch the casts on again, unless the call of the layer failed before they were switched off."""
        if self.entered and self.entered[-1][0] is layer:
            self.entered.pop()[1].__exit__(None, None, None)


def _run_separately(layer):
    """Return the layer, and of a container, of which a model may run one child after the other, those inside, too."""
    if not isinstance(layer, nn.Sequential | nn.LayerList | nn.LayerDict):
        return [layer]
    return [layer, *(inside for child in layer.children() for inside in _run_separately(child))]


class MixedPrecision(PlainPrecision):
    """Mixed or pure half precision, put together from independent parts.

    Args:
        mode: name of the mode.
        casts: OperatorCasts, or None for no casts around operators.
        storage: HalfStorage, or None for float32 weights.
        input_dtype, output_dtype: to which the model's floating inputs and outputs are cast, nested containers
            included; None for not at all.
        keep_float32: names of layers that stay float32 with everything below them; what they return does too.
        arguments: as for PlainPrecision.
    """

    is_plain = False

    def __init__(self, mode, *, casts, storage, input_dtype, output_dtype, keep_float32, **arguments):
        super().__init__(**arguments)
        self.mode = mode
        self.casts = casts
        self.storage = storage
        self.input_dtype = self.wire_dtype = input_dtype  # the next stage would cast its inputs to it anyway
        self.output_dtype = output_dtype
        self.keep_float32 = keep_float32
        self._here = _Here()

    def check_model(self, model):
        layers = dict(model.named_sublayers())
        for name in self.keep_float32:
            if name not in layers:
                nearest = difflib.get_close_matches(name, layers, 1, 0.6)
                hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
                raise ValueError(f"keep_float32: the model has no layer {name!r}{hint}")

    def convert_model(self, model):
        self.check_model(model)
        self._remember_names(model)
        layers = dict(model.named_sublayers())
        for name in self.keep_float32:
            for layer in _run_separately(layers[name]):
                self._surround(layer, "float32", None, without_casts=True)
        if self.storage is not None:
            with self.cpu_kernels():  # Paddle's own cast to float16 is not exact
                self.storage.convert(model)
            for name, layer in layers.items():
                if is_below(name, self.keep_float32):
                    continue
                own = {param.dtype for param in layer.parameters(include_sublayers=False)}
                if isinstance(layer, FLOAT32_ONLY) and paddle.float32 in own:
                    self._surround(layer, "float32", self.storage.dtype)
                elif self.keep_float32 and own & {paddle.float16, paddle.bfloat16}:
                    # What leaves a kept layer stays float32, because it may not fit into the half format.
                    self._surround(layer, self.storage.dtype, None)
            self._remember_names(model)
        self._surround(model, self.input_dtype, self.output_dtype)
        return model

    def master_params(self, model):
        return [(name, self.master(param)) for name, param in super().master_params(model)]

    def master(self, param):
        return param if self.storage is None else self.storage.master(param)

    @property
    def is_active(self):
        return self._here.open_contexts > 0

    @property
    def casts_operators(self):
        return self.casts is not None

    @contextlib.contextmanager
    def forward_context(self):
        self._here.open_contexts += 1
        try:
            with self.cpu_kernels() if self.casts is None else self.casts.on():
                yield
        finally:
            self._here.open_contexts -= 1

    def disable_casts(self):
        return contextlib.nullcontext() if self.casts is None else self.casts.off()

    def collect(self):
        if self.storage is not None and self.storage.masters:
            with self.cpu_kernels():
                self.storage.collect()

    def apply(self, optimizer, factor):
        if self.storage is not None and self.storage.masters:
            self.storage.adopt()
        super().apply(optimizer, factor)

    def half(self, master):
        return None if self.storage is None else self.storage.half(master)

    def publish(self, masters, written):
        if self.storage is not None and self.storage.masters:
            self.storage.publish(masters, written)

    def model_state_dict(self, model):
        state = model.state_dict()
        for key, tensor in state.items():
            master = self.master(tensor)
            half = master.dtype in (paddle.float16, paddle.bfloat16)
            state[key] = master.astype("float32") if half else master
        return state

    def _surround(self, layer, input_dtype, output_dtype, without_casts=False):
        """Cast what goes into a layer and what comes out of it; switch the operators' casts off in between."""
        here = self._here

        @half_cpu.computes_only
        def before(layer, args, kwargs):
            if without_casts:
                context = self.disable_casts()
                context.__enter__()
                here.entered.append((layer, context))
            if input_dtype is None:
                return None
            return cast_floating(args, input_dtype), cast_floating(kwargs, input_dtype)

        @half_cpu.computes_only
        def after(layer, args, outputs):
            if without_casts:
                here.leave(layer)
            return outputs if output_dtype is None else cast_floating(outputs, output_dtype)

        if without_casts or input_dtype is not None:
            layer.register_forward_pre_hook(before, with_kwargs=True)
        if without_casts or output_dtype is not None:
            # Paddle calls the hook after an exception too, so the casts are switched on again.
            layer.register_forward_post_hook(after, always_call=True)
