"""From the texts of a configuration to stages of blocks, and the network around them.

A block's text is in the notation of MnasNet (Tan et al. 2019): `ir_r2_k5_s2_e6_c40_se0.25` are r = 2 inverted
residuals with kernels of k = 5, the first of stride s = 2, that widen e = 6 times, return c = 40 channels and squeeze
to se = 1/4; `nre`, `nhs` and `nsw` set another activation, `skip` and `noskip` ask for the shortcut or forbid it. A
stage of several kinds of blocks is several such texts with spaces between them.
"""

import inspect
import math
import re
from typing import NamedTuple

from paddle import nn

from image_classification.layers import conv_norm
from image_classification.model import Block, FeatureMapModel, nested_links
from image_classification.runtime import UserError

from .blocks import ACTIVATIONS, GATES, Style, round_channels

ABBREVIATIONS = {"re": "relu", "hs": "hardswish", "sw": "silu"}
OPTIONS = {
    "k": "kernel_size", "e": "expansion", "se": "squeeze_ratio", "a": "start_kernel_size", "h": "num_heads",
    "d": "head_dim", "v": "key_value_stride",
}  # fmt: skip


class BlockText(NamedTuple):
    """What one text of a stage says: `repeats` blocks of a kind; `options` are the block's further arguments."""

    kind: str
    repeats: int
    stride: int
    channels: int
    activation: str | None
    options: dict


def read_block(text: str, kinds: dict[str, type]) -> BlockText:
    """Return what a block's text says.

    Raises:
        UserError: it names a kind, option or activation that there is not, or lacks one.
    """
    kind, *words = text.split("_")
    if kind not in kinds:
        raise UserError(f"MODEL.STAGES: {text!r}: {kind!r} is not one of {', '.join(kinds)}")
    numbers, options, activation = {}, {}, None
    for word in words:
        found = re.fullmatch(r"([a-z]+?)(\d+(?:\.\d+)?)", word)
        if word in ("skip", "noskip"):
            options["skip"] = word == "skip"
        elif word[:1] == "n" and word[1:] in ABBREVIATIONS:
            activation = ABBREVIATIONS[word[1:]]
        elif found and found[1] in ("r", "s", "c") and found[2].isdecimal():
            numbers[found[1]] = int(found[2])
        elif found and found[1] in OPTIONS:
            options[OPTIONS[found[1]]] = int(found[2]) if found[2].isdecimal() else float(found[2])
        else:
            raise UserError(f"MODEL.STAGES: {text!r}: {word!r} is no option of a block")
    parameters = inspect.signature(kinds[kind].__init__).parameters
    known = {name: value for name, value in parameters.items() if value.kind is value.KEYWORD_ONLY}
    letters = {name: letter for letter, name in OPTIONS.items()} | {"skip": "skip"}
    lacking = [letters[name] for name, value in known.items() if value.default is value.empty and name not in options]
    lacking += [letter for letter in ("r", "s", "c") if not numbers.get(letter)]
    if lacking or options.keys() - known.keys():
        takes = ", ".join(["r", "s", "c", *(letters[name] for name in known)])
        raise UserError(f"MODEL.STAGES: {text!r}: {kind} takes {takes}; of those that it needs, "
                        f"{', '.join(lacking) or 'none'} is missing")  # fmt: skip
    return BlockText(kind, numbers["r"], numbers["s"], numbers["c"], activation, options)


def build_stages(stages: tuple[str, ...], in_channels: int, style: Style, drop_path: float, kinds: dict[str, type],
                 width_factor: float = 1.0, depth_factor: float = 1.0) -> tuple[nn.Sequential, int]:
    """Return the stages, each a sequence of blocks, and the number of channels that they return.

    Channels are multiplied by `width_factor` and repeats, rounded up, by `depth_factor`. Stochastic depth rises from 0
    at the first block by equal steps to `drop_path` after the last.

    Raises:
        UserError: a text is not what :func:`read_block` reads.
    """
    texts = [[read_block(text, kinds) for text in stage.split()] for stage in stages]
    depth = sum(math.ceil(text.repeats * depth_factor) for stage in texts for text in stage)
    built, number = [], 0
    for stage in texts:
        blocks = []
        for text in stage:
            block_style = style._replace(activation=text.activation or style.activation)
            channels = round_channels(text.channels * width_factor)
            for _ in range(math.ceil(text.repeats * depth_factor)):
                stride = 1 if blocks else text.stride
                rate = drop_path * number / depth
                blocks.append(kinds[text.kind](in_channels, channels, stride, block_style, rate, **text.options))
                in_channels, number = channels, number + 1
        built.append(nn.Sequential(*blocks))
    return nn.Sequential(*built), in_channels


def check_names(style: Style):
    """Raise UserError where an activation or gate has a name that there is not."""
    for key, name, allowed in (
        ("ACTIVATION", style.activation, ACTIVATIONS),
        ("SQUEEZE_ACTIVATION", style.squeeze_activation or "relu", ACTIVATIONS),
        ("GATE", style.gate, GATES),
    ):
        if name not in allowed:
            raise UserError(f"MODEL.{key} {name!r}: allowed are {', '.join(allowed)}")


class InvertedResidualNet(FeatureMapModel):
    """A strided convolution, stages of blocks and what a family adds as its head.

    A family's `forward_head` maps the last block's features, [B, C, H, W], to logits; `head_prefixes` are the
    beginnings of the names of its parameters.
    """

    head_names = ("classifier",)
    head_prefixes: tuple[str, ...]

    def __init__(self, in_channels: int, num_classes: int, stem_channels: int, stages: tuple[str, ...], style: Style,
                 drop_path: float, kinds: dict[str, type], width_factor: float = 1.0, depth_factor: float = 1.0):
        super().__init__()
        check_names(style)
        self.num_classes = num_classes
        self.act = style.act
        self.conv_stem = style.conv(in_channels, stem_channels, 3, stride=2)
        self.bn1 = style.norm(stem_channels)
        self.blocks, self.out_channels = build_stages(
            stages, stem_channels, style, drop_path, kinds, width_factor, depth_factor
        )

    def stem(self, images):
        """Return features of half the image's side, [B, C, H, W]."""
        return conv_norm(images, self.conv_stem, self.bn1, self.act)

    def forward(self, images):
        """Return class logits, [B, num_classes], for normalised images, [B, in_channels, H, W]."""
        return self.forward_head(self.blocks(self.stem(images)))

    def sequential_blocks(self) -> list[Block]:
        """Return the model as a chain whose links, run in order, are `forward`."""
        stem = Block("stem", self.stem, ("conv_stem.", "bn1."))
        return [stem, *nested_links("blocks", self.blocks), Block("head", self.forward_head, self.head_prefixes)]
