"""Pipeline parallelism: each process runs a part of the model's chain of blocks, micro-batches in 1F1B order.

1F1B (Narayanan et al. 2019, PipeDream-Flush): after a warm-up each stage alternates one forward and one backward, so
that stage s of p holds the activations of at most p - s micro-batches. The bubble is (p - 1) / (m + p - 1) of the time
for m micro-batches.

A send returns when the neighbour has received. The one rule that keeps neighbours from waiting for each other: after a
backward, receive the next activation before sending the gradient back.
"""

import collections
from typing import Any

import paddle
from paddle import nn

from image_classification.metrics import num_correct
from image_classification.runtime import UserError


class Stage(nn.Layer):
    """The part of a model that one process runs, under the plain model's parameter names.

    `forward` maps the images (first stage) or the activation of the stage before to the activation for the stage after,
    or to the logits (last stage).

    Args:
        model: has `sequential_blocks()`; the parameters of other stages are dropped from it.
        group: the stages, in order.
    """

    def __init__(self, model, group):
        super().__init__()
        links = split_chain(model, group.size)[group.index]
        keep_only(model, tuple(prefix for link in links for prefix in link.prefixes))
        # The same registries, not copies: the links are methods of the model and must see what is replaced in here.
        self._sub_layers, self._parameters, self._buffers = model._sub_layers, model._parameters, model._buffers
        self._model = (model,)  # a tuple: not to be registered as a sublayer
        self._links = links
        self.dialects, self.not_weights = model.dialects, model.not_weights

    def forward(self, x):
        for link in self._links:
            x = link.run(x)
        return x

    def no_weight_decay(self):
        """Return what the model exempts from weight decay."""
        return self._model[0].no_weight_decay()

    def layer_groups(self):
        """Return the layers of the whole model."""
        return self._model[0].layer_groups()

    def train(self, mode: bool = True) -> "Stage":
        self._model[0].training = mode
        return super().train(mode)

    def eval(self) -> "Stage":
        self._model[0].training = False
        return super().eval()


def split_chain(model, num_stages):
    """Return one list of a model's links per stage: the stem goes to the first stage and the head to the last.

    The blocks between them are dealt out evenly, earlier stages less.

    Raises:
        UserError: there are fewer blocks than stages, or a stage has nothing to train.
    """
    stem, *blocks, head = model.sequential_blocks()
    if len(blocks) < num_stages:
        raise UserError(f"PARALLEL.PIPELINE {num_stages}: the model has {len(blocks)} blocks, fewer than stages")
    bounds = [index * len(blocks) // num_stages for index in range(num_stages + 1)]
    stages = [blocks[start:end] for start, end in zip(bounds, bounds[1:], strict=False)]
    stages[0] = [stem, *stages[0]]
    stages[-1] = [*stages[-1], head]
    for index, links in enumerate(stages):
        prefixes = tuple(prefix for link in links for prefix in link.prefixes)
        if all(param.stop_gradient for name, param in model.named_parameters() if name.startswith(prefixes)):
            raise UserError(f"PARALLEL.PIPELINE {num_stages}: every parameter of stage {index} is frozen")
    return stages


def keep_only(model, prefixes):
    """Drop every parameter and buffer whose name starts with none of the prefixes; their memory is freed."""
    for path, layer in model.named_sublayers(include_self=True):
        own = [*layer.named_parameters(include_sublayers=False), *layer.named_buffers(include_sublayers=False)]
        for name, _ in own:
            if not (f"{path}.{name}" if path else name).startswith(prefixes):
                delattr(layer, name)


FORMATS = ("float32", "float16", "bfloat16", "float64")
HEADER = 8  # int64: index of the format, number of axes, lengths of at most six axes


class Pipeline:
    """Moves the micro-batches of one model through the stages.

    Args:
        stages: group of all stages, in order.
        before, after: groups of two with the neighbouring stages, None at the ends.
    """

    def __init__(self, stages, before, after):
        self.stages = stages
        self.before = before
        self.after = after
        self._headers = {}  # shape of the images -> format of the activation; sent once, then known

    def forward_backward(self, model, criterion, precision, micro_batches, teacher=None):
        """Add the gradients of a window's mean loss; return [(loss, correct, count)] in order, on every stage.

        What `trainer.forward_backward` does, with its arguments. The micro-batches are the same on every stage: the
        first reads the images, the last the labels; the last one has the teacher.
        """
        window = len(micro_batches)
        run = _Window(self, model, criterion, precision, micro_batches, teacher)
        warmup = min(self.stages.size - self.stages.index - 1, window)
        for _ in range(warmup):
            run.receive()
            run.forward()
        if warmup < window:
            run.receive()
        for index in range(warmup, window):
            run.forward()
            gradient = run.backward()
            if index < window - 1:
                run.receive()
            run.send_back(gradient)
        for _ in range(warmup):
            run.send_back(run.backward())
        # Read only now: on a GPU each value waits for its micro-batch.
        results = [[loss.item(), correct.item()] for loss, correct in run.results] or [[0.0, 0.0]] * window
        results = self.stages.broadcast(paddle.to_tensor(results, dtype="float64"), self.stages.size - 1)
        return [(loss, correct, count) for (loss, correct), count in zip(results, run.counts, strict=True)]

    def predict(self, model, images):
        """Return the logits of the whole model, float32, on every stage."""
        key = ("predict", *images.shape)
        output = model(images if self.before is None else self.receive_activation(key))
        if self.after is not None:
            self.send_activation(output, key)
        logits = output.astype("float32")
        last = self.stages.size - 1
        shape = self.stages.broadcast(paddle.to_tensor(logits.shape[:2], dtype="int64"), last).tolist()
        return self.stages.broadcast(logits if self.after is None else paddle.empty(shape, dtype="float32"), last)

    def send_activation(self, tensor, key):
        """Send to the next stage, with the format in front when this shape of images comes for the first time."""
        if key not in self._headers:
            header = [FORMATS.index(str(tensor.dtype).split(".")[-1]), tensor.ndim, *tensor.shape]
            self._headers[key] = None
            self.after.send(paddle.to_tensor(header + [0] * (HEADER - len(header)), dtype="int64"), 1)
        self.after.send(tensor, 1)

    def receive_activation(self, key):
        """Return what the stage before sent."""
        if ("in", key) not in self._headers:
            code, ndim, *shape = self.before.receive([HEADER], "int64", 0).tolist()
            self._headers["in", key] = (FORMATS[code], shape[:ndim])
        dtype, shape = self._headers["in", key]
        return self.before.receive(shape, dtype, 0)


class _Window:
    """The micro-batches of one optimizer step that are under way on this stage."""

    def __init__(self, pipeline, model, criterion, precision, micro_batches, teacher):
        self.pipeline = pipeline
        self.model = model
        self.criterion = criterion
        self.precision = precision
        self.teacher = teacher
        self.window = len(micro_batches)
        self.batches = iter(micro_batches)
        self.waiting: tuple[Any, Any, Any, tuple[int, ...]]  # (input, images, labels, shape) the next forward takes
        self.under_way: collections.deque = collections.deque()  # (input, output), oldest first
        self.results, self.counts = [], []

    def receive(self):
        images, labels = next(self.batches)
        self.counts.append(len(labels))
        key = tuple(images.shape)
        if self.pipeline.before is None:
            activation = paddle.to_tensor(images)
        else:
            activation = self.pipeline.receive_activation(key)
            activation.stop_gradient = False
        self.waiting = (activation, images, labels, key)

    def forward(self):
        activation, images, labels, key = self.waiting
        if self.pipeline.after is None:
            labels = paddle.to_tensor(labels)
            targets = labels if self.teacher is None else self.teacher(paddle.to_tensor(images), labels)
        with self.precision.forward_context():
            output = self.model(activation)
            if self.pipeline.after is None:
                loss = self.criterion(output, targets)
                self.results.append((loss.detach(), num_correct(output.detach(), labels)))
                output = loss
            elif self.precision.wire_dtype is not None:
                output = output.astype(self.precision.wire_dtype)
        self.under_way.append((activation, output))
        if self.pipeline.after is not None:
            self.pipeline.send_activation(output.detach(), key)

    def backward(self):
        """Run the oldest micro-batch backward; return the gradient for the stage before, None on the first."""
        activation, output = self.under_way.popleft()
        if self.pipeline.after is None:
            self.precision.backward(output / self.window)
        else:
            gradient = self.pipeline.after.receive(output.shape, output.dtype, 1)
            self.precision.backward_from(output, gradient)
        return None if self.pipeline.before is None else activation.grad

    def send_back(self, gradient):
        if self.pipeline.before is not None:
            self.pipeline.before.send(gradient, 0)
