"""What a model says of itself, so that no tool has to know its family.

A family's architecture file derives its model from :class:`Model`; the loop, the optimizer, the parallel topologies and
the tools ask that model and nothing else. The defaults stand here; what a family does not offer is a UserError that
says so. A layer that several processes can share says how in `tensor_parallel_plan`, see :class:`TensorParallel`.

Shapes use: B batch, N tokens, C channels, H and W the sides of a feature map.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

from paddle import nn
from paddle.nn import functional as F

from image_classification.runtime import UserError


class Block(NamedTuple):
    """One link of a model's chain: `run(output of the link before)`.

    `prefixes` are the beginnings of the parameter names that this link owns, so that a pipeline stage can keep its own
    parameters and drop the others.
    """

    name: str
    run: Callable
    prefixes: tuple[str, ...]


def layer_links(name: str, layers: nn.Layer) -> list[Block]:
    """Return one link for each layer of a list or a sequence."""
    return [Block(f"{name}.{own}", layer, (f"{name}.{own}.",)) for own, layer in layers.named_children()]


def nested_links(name: str, stages: nn.Sequential) -> list[Block]:
    """Return one link for each layer of each stage, a sequence of layers."""
    return [link for own, stage in stages.named_children() for link in layer_links(f"{name}.{own}", stage)]


def stage_links(name: str, stages: nn.Layer, then: tuple[str, ...] = ()) -> list[Block]:
    """Return one link for each of the `blocks` of each stage.

    The first block takes along the `downsample` before it, in each stage but the first, and the last the layers `then`
    after it: published factors of layer-wise learning rates count blocks.
    """
    chain = []
    for index, stage in enumerate(stages):
        own = f"{name}.{index}"
        blocks = layer_links(f"{own}.blocks", stage.blocks)
        if index:
            before = Block(f"{own}.downsample", stage.downsample, (f"{own}.downsample.",))
            blocks = [_joined(before, blocks[0]), *blocks[1:]]
        after = [Block(f"{own}.{last}", getattr(stage, last), (f"{own}.{last}.",)) for last in then]
        chain += [*blocks[:-1], _joined(blocks[-1], *after)]
    return chain


def _links(name: str, layers: nn.Sequential, kind: type) -> list[Block]:
    """Return one link for each layer of a kind, together with those that follow it up to the next."""
    own = layer_links(name, layers)
    starts = [index for index, layer in enumerate(layers) if isinstance(layer, kind)]
    return [_joined(*own[start:end]) for start, end in zip([0, *starts[1:]], [*starts[1:], len(own)], strict=True)]


def _joined(*blocks):
    """Return the one link, called as the first, that runs the layers of some in turn.

    A layer, not a function: Paddle's tracer converts what is inside.
    """
    prefixes = tuple(prefix for block in blocks for prefix in block.prefixes)
    return Block(blocks[0].name, nn.Sequential(*(block.run for block in blocks)), prefixes)


class PositionEmbedding(NamedTuple):
    """A parameter [1, num_prefix_tokens + rows * columns, C] that another image size resamples.

    `grid` is (rows, columns) of this model; the first `num_prefix_tokens` belong to tokens that have no place in it.
    """

    grid: tuple[int, int]
    num_prefix_tokens: int = 0


class RelativePositions(NamedTuple):
    """A parameter [(2 * rows - 1) * (2 * columns - 1) + num_others, heads] that another window size resamples; or, with
    no others, one of TensorFlow's, [heads, 2 * rows - 1, 2 * columns - 1].

    `window` is (rows, columns) of this model; the last `num_others` rows are no relative positions (those of a class
    token in BEiT).
    """

    window: tuple[int, int]
    num_others: int = 0


class Dialect(NamedTuple):
    """The parameter names of another project for the same model.

    Attributes:
        name: as the log calls it.
        marker: regular expression; a file with a name that matches it is in this dialect. No other dialect of the
            family and none of our own names may match.
        rules: (regular expression, replacement), tried in order; the first that matches a whole name wins, and a name
            without a rule stays.
        finish: (tensors under the new names, the model's own names) -> tensors, for what no rule can say.
    """

    name: str
    marker: str
    rules: tuple[tuple[str, str], ...]
    finish: Callable = lambda tensors, own_names: tensors


class GradCam(NamedTuple):
    """Explained by the class activation of the last feature map: what goes into the chain's link `into`.

    `axes` are those of that map: "BCHW", "BHWC" or "BNC"; of the last, `num_prefix_tokens` come before the tokens of a
    grid of `grid` (rows, columns).
    """

    into: str
    axes: str = "BCHW"
    grid: tuple[int, int] | None = None
    num_prefix_tokens: int = 0


class AttentionRollout(NamedTuple):
    """Explained by the product of all attention weights.

    Attributes:
        layers: in the order of execution; `layer.attention_weights(*its inputs)` returns [B, heads, N, N].
        grid: (rows, columns) of the patch tokens, which follow the first `num_prefix_tokens`.
        reads: index of the token that the head reads; None for the mean of the patch tokens.
    """

    layers: list[nn.Layer]
    grid: tuple[int, int]
    num_prefix_tokens: int = 0
    reads: int | None = None


class Count(NamedTuple):
    """A number of the layer that n processes divide among them, such as its heads; `of` says what it counts."""

    of: str


class Column(NamedTuple):
    """A linear layer whose outputs are divided; `blocks` equal ones are packed in it (query, key and value: 3)."""

    blocks: int = 1


class Row(NamedTuple):
    """A linear layer whose inputs are divided; its outputs are summed over the processes, then the bias is added."""


class Slice(NamedTuple):
    """A parameter of the layer itself that is divided along `axis`, in which `blocks` equal ones are packed."""

    axis: int
    blocks: int = 1


class Draw(NamedTuple):
    """A :class:`layers.Dropout` of a divided tensor: each process draws for itself."""


class Whole(NamedTuple):
    """A layer that each process uses on its own part and holds whole, such as a norm over the channels of one head:
    the gradients of its parameters are summed over the processes."""


@runtime_checkable
class TensorParallel(Protocol):
    """A layer that n processes can share: whole inputs give whole outputs, and each process computes 1 / n of it."""

    def tensor_parallel_plan(self) -> dict[str, NamedTuple]:
        """Return {name of an attribute, parameter or sublayer: Count, Slice, Column, Row, Draw or Whole}.

        What is not named stays whole, sees whole tensors and has the same gradient on every process. A layer that
        changes the forward pass of the class that it derives from states its own plan; {} shares nothing.
        """


class Model(nn.Layer):
    """A classifier: `forward` maps normalised images, [B, in_channels, H, W], to logits, [B, num_classes].

    It is made by the `build_model` of its file, the signature of which is the schema of a YAML's MODEL section.
    `num_classes`, `in_channels` and `image_size` (pixels) come from the configuration where the signature has them; a
    model whose signature has `image_size` takes images of that side only. One whose signature has `deploy` trains in
    another form than it needs in inference: `deploy=True` builds the plain form, and its dialects fold weights of the
    form that trained, so that the logits stay the same.

    Attributes:
        head_names: the linear layers that give the logits: what another number of classes replaces.
        dialects: parameter names of other projects.
        separate_heads: set for a training with a teacher: the logits of each head in training mode, [B, heads,
            num_classes], instead of their mean; a model of one head has nothing to separate.
        not_weights: regular expressions of what published files hold under our own names too and the model computes.
    """

    head_names: tuple[str, ...]
    dialects: tuple[Dialect, ...] = ()
    not_weights: tuple[str, ...] = ()
    separate_heads: bool = False

    def check_image(self, height: int, width: int):
        """Raise UserError that names DATA.IMAGE_SIZE for images, in pixels, that the model cannot take."""

    def forward(self, images):
        """Return class logits, [B, num_classes], for normalised images, [B, in_channels, H, W].

        Raises:
            UserError: the model cannot take images of this height and width.
        """
        for block in self.sequential_blocks():
            images = block.run(images)
        return images

    def sequential_blocks(self) -> list[Block]:
        """Return the model as a chain whose links, run in order, are `forward`; each parameter belongs to one link.

        The first link takes the images and the last gives the logits; a pipeline deals out those between them.
        """
        raise NotImplementedError

    def layer_groups(self) -> list[tuple[str, ...]]:
        """Return the layers for layer-wise learning rates, from the stem to the head, as prefixes of parameter names.

        The default: each link of the chain that owns parameters is a layer.
        """
        return [block.prefixes for block in self.sequential_blocks() if block.prefixes]

    def no_weight_decay(self) -> set[str]:
        """Return the parameters that weight decay leaves alone, beside biases, norms and other vectors; default none.

        On a pipeline stage some of them may be missing.
        """
        return set()

    def position_embeddings(self) -> dict[str, PositionEmbedding | RelativePositions]:
        """Return {parameter: its grid} of what is resampled where the weights are of another image or window size."""
        return {}

    def explanation(self) -> GradCam | AttentionRollout:
        """Return where `tools/predict.py -explain` looks; the default is the error that the model does not say."""
        raise UserError(f"-explain: {type(self).__name__} does not say where it looks")


class FeatureMapModel(Model):
    """A classifier whose head reads a map of features, [B, C, H, W], and so is explained by it."""

    def explanation(self) -> GradCam:
        """Return that map."""
        return GradCam(into="head")


class StagedModel(FeatureMapModel):
    """A classifier of a stem, stages with a `downsample` and `blocks`, and a head, run in this order."""

    def forward(self, images):
        """Return class logits, [B, num_classes], for normalised images, [B, in_channels, H, W]."""
        return self.head(self.stages(self.stem(images)))

    def sequential_blocks(self) -> list[Block]:
        """Return the model as a chain whose links, run in order, are `forward`."""
        stages = stage_links("stages", self.stages)
        return [Block("stem", self.stem, ("stem.",)), *stages, Block("head", self.head, ("head.",))]


class FlatModel(Model):
    """A classifier of a sequence `features` with convolutions, whose map is pooled to `side` x `side` places, and a
    sequence `classifier` with three linear layers."""

    head_names = ("classifier.6",)
    side: int

    def flatten(self, x):
        """Return [B, C * side * side] for features [B, C, H, W]."""
        if tuple(x.shape[2:]) != (self.side, self.side):
            x = F.adaptive_avg_pool2d(x, self.side)
        return x.flatten(1)

    def forward(self, images):
        """Return class logits, [B, num_classes], for normalised images, [B, in_channels, H, W]."""
        self.check_image(*images.shape[2:])
        return self.classifier(self.flatten(self.features(images)))

    def sequential_blocks(self) -> list[Block]:
        """Return the model as a chain whose links, run in order, equal `forward`; each has one layer with weights."""
        features = _links("features", self.features, nn.Conv2D)
        linears = _links("classifier", self.classifier, nn.Linear)
        return [*features, Block("flatten", self.flatten, ()), *linears]

    def explanation(self) -> GradCam:
        """Return the features before the linear layers, [B, C, H, W]."""
        return GradCam(into="flatten")
