"""Attention within the parts of a map, and what it adds for where two tokens of a part stand to one another.

Shapes use: B batch, H and W the height and width of the map, C channels, w side of a part, n = w * w tokens of a part,
h heads, d = C // h.
"""

import numpy as np
import paddle
from paddle import nn

from image_classification.layers import TRUNC_NORMAL, Dropout, Mlp, linear, rearrange
from image_classification.model import Column, Slice
from image_classification.runtime import UserError
from image_classification.transformer import Attention, PreNormBlock, bias_of_pairs, relative_position_index

POSITIONS = ("table", "mlp")
POSITION_UNITS = 512  # hidden units of the network of the position biases


class PositionTable(nn.Layer):
    """A learned bias for each head and distance, [1, h, n, n]; in TensorFlow's weights the heads come first, and a
    distance is that of the key from the query."""

    def __init__(self, window: int, num_heads: int, heads_first: bool):
        super().__init__()
        self.heads_first = heads_first
        side = 2 * window - 1
        shape = [num_heads, side, side] if heads_first else [side**2, num_heads]
        self.relative_position_bias_table = self.create_parameter(shape, default_initializer=TRUNC_NORMAL)
        index = relative_position_index(window)
        index = paddle.to_tensor((index.T if heads_first else index).reshape(-1))
        self.register_buffer("relative_position_index", index, persistable=False)

    def forward(self):
        table = self.relative_position_bias_table
        rows = table.flatten(1).transpose([1, 0]) if self.heads_first else table
        return bias_of_pairs(rows, self.relative_position_index)

    def tensor_parallel_plan(self):
        """Divided by heads."""
        return {"relative_position_bias_table": Slice(axis=0 if self.heads_first else 1)}


class PositionMlp(nn.Layer):
    """A small network that gives the bias of each head for a distance on a logarithmic scale, [1, h, n, n]."""

    def __init__(self, window: int, num_heads: int):
        super().__init__()
        self.mlp = nn.Sequential(
            ("fc1", linear(2, POSITION_UNITS)), ("act", nn.ReLU()), ("drop1", Dropout(0.125)),
            ("fc2", linear(POSITION_UNITS, num_heads)),
        )  # fmt: skip
        steps = np.arange(1 - window, window)
        steps = np.sign(steps) * np.log1p(np.abs(steps))
        coords = np.stack(np.meshgrid(steps, steps, indexing="ij"), axis=-1).reshape(-1, 2).astype("float32")
        self.register_buffer("rel_coords_log", paddle.to_tensor(coords), persistable=False)
        index = paddle.to_tensor(relative_position_index(window).reshape(-1))
        self.register_buffer("relative_position_index", index, persistable=False)

    def forward(self):
        rows = self.mlp(self.rel_coords_log.astype(self.mlp.fc1.weight.dtype))
        return bias_of_pairs(rows, self.relative_position_index)

    def tensor_parallel_plan(self):
        """Divided by heads."""
        return {"mlp.fc2": Column()}


class PartAttention(Attention):
    """Self-attention within the parts of a map, [B, H, W, C] -> [B, H, W, C].

    The parts are windows of w x w neighbours or, for a `grid`, w x w tokens that are spread evenly over the map.
    `by_head` says how timm's own weights pack query, key and value: [h, 3, d] instead of [3, h, d].
    """

    def __init__(self, dim: int, num_heads: int, window: int, grid: bool, positions: nn.Layer, by_head: bool,
                 attention_dropout: float, dropout: float):
        super().__init__(dim, num_heads, True, attention_dropout, dropout)
        self.window = window
        self.grid = grid
        self.by_head = by_head
        self.rel_pos = positions

    def packed(self, x):
        """Return query, key and value of `x`, [parts, n, C], as `attention` takes them."""
        qkv = self.qkv(x)
        if not self.by_head:
            return qkv
        split = [*qkv.shape[:2], self.num_heads, 3, self.head_dim]
        return rearrange(qkv, split, [0, 1, 3, 2, 4], qkv.shape)

    def position_bias(self):
        """Return what is added to the scores of each pair of tokens of a part, [1, h, n, n]."""
        return self.rel_pos()

    def forward(self, x):
        batch, height, width, dim = x.shape
        side, rows, columns = self.window, height // self.window, width // self.window
        parts = [batch * rows * columns, side**2, dim]
        if self.grid:
            x = rearrange(x, [batch, side, rows, side, columns, dim], [0, 2, 4, 1, 3, 5], parts)
            split, order = [batch, rows, columns, side, side, dim], [0, 3, 1, 4, 2, 5]
        else:  # [B, H/w, w, W/w, w * C] -> [B, H/w, W/w, w, w * C] and back
            x = rearrange(x, [batch, rows, side, columns, side * dim], [0, 1, 3, 2, 4], parts)
            split, order = [batch, rows, columns, side, side * dim], [0, 1, 3, 2, 4]
        return rearrange(super().forward(x), split, order, [batch, height, width, dim])

    def tensor_parallel_plan(self):
        """Divided by heads; one sum after the projection. The positions say themselves how they are shared."""
        return super().tensor_parallel_plan() | {"qkv": Column(blocks=1 if self.by_head else 3)}


class PartBlock(PreNormBlock):
    """Attention within the parts of a map and an MLP, each with a shortcut, [B, H, W, C] -> [B, H, W, C]."""

    def __init__(self, dim: int, head_dim: int, window: int, grid: bool, positions: str, mlp_ratio: float,
                 layer_scale: float | None, epsilon: float, activation: str, heads_first: bool,
                 attention_dropout: float, dropout: float, drop_path: float):
        if head_dim < 1 or dim % head_dim:
            raise UserError(f"MODEL.EMBED_DIMS: {dim} is not a multiple of MODEL.HEAD_DIM {head_dim}")
        heads = dim // head_dim
        bias = PositionTable(window, heads, heads_first) if positions == "table" else PositionMlp(window, heads)
        attn = PartAttention(dim, heads, window, grid, bias, not heads_first, attention_dropout, dropout)
        mlp = Mlp(dim, int(dim * mlp_ratio), dropout, activation)
        super().__init__(dim, attn, mlp, layer_scale, epsilon, drop_path)


def start_with_xavier(block: PartBlock) -> None:
    """Draw the weights of all linear layers from Xavier's uniform distribution, as timm's own models start.

    Biases stay zero there, except those of MLPs, which a normal distribution of 1e-6 keeps from being equal.
    """
    for name, layer in block.named_sublayers():
        if isinstance(layer, nn.Linear):
            nn.initializer.XavierUniform()(layer.weight)
            if "mlp" in name:
                nn.initializer.Normal(std=1e-6)(layer.bias)
