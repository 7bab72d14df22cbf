"""CrossViT (Chen et al. 2021, https://arxiv.org/abs/2103.14899): a branch of small patches and one of large.

After a few blocks of its own, each branch sends its class token to read the other's patches. Logits are the mean of
both heads. Parameter names and epsilon (1e-6) are timm's.
Shapes use: B batch, N patches of a branch, C its width; what has two values has one for each branch.
"""

import functools

import paddle
from paddle import nn
from paddle.nn import functional as F

from image_classification.layers import TRUNC_NORMAL, ZERO, Dropout, DropPath, PatchEmbed, conv, linear, stage_rates
from image_classification.model import AttentionRollout, Block, Model, PositionEmbedding
from image_classification.runtime import UserError
from image_classification.transformer import ClassAttention, TransformerBlock

from .dialects import DIALECTS

STEMS = {12: ((7, 4, 3), (3, 3, 0), (3, 1, 1)), 16: ((7, 4, 3), (3, 2, 1), (3, 2, 1))}  # (kernel, stride, padding)


class ConvPatchEmbed(PatchEmbed):
    """Image to patches, [B, in_channels, H, W] -> [B, N, C], by three convolutions (the dagger in a variant's name)."""

    def __init__(self, image_size: int, patch_size: int, in_channels: int, embed_dim: int):
        super().__init__(image_size, patch_size, in_channels, embed_dim)
        if patch_size not in STEMS:
            raise UserError(f"MODEL.PATCH_SIZES: with MODEL.MULTI_CONV allowed are {list(STEMS)}, found {patch_size}")
        layers, before = [], in_channels
        widths = embed_dim // 4, embed_dim // 2, embed_dim
        for width, (kernel_size, stride, padding) in zip(widths, STEMS[patch_size], strict=True):
            layers += [conv(before, width, kernel_size, stride, bias=True, padding=padding), nn.ReLU()]
            before = width
        self.proj = nn.Sequential(*layers[:-1])


class CrossAttentionBlock(nn.Layer):
    """What a branch's class token takes from the other's patches, [B, N + 1, C] -> [B, 1, C]."""

    def __init__(self, dim: int, num_heads: int, drop_path: float):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, epsilon=1e-6)
        self.attn = ClassAttention(dim, num_heads, ("wq", "wk", "wv"))
        self.drop_path = DropPath(drop_path)

    def forward(self, x):
        return x[:, :1] + self.drop_path(self.attn(self.norm1(x)))


def between_widths(dim: int, out_dim: int, epsilon: float = 1e-6) -> nn.Sequential:
    """Return what brings a class token to the other branch's width; it has no shortcut and starts at full size."""
    start = nn.initializer.XavierNormal()
    return nn.Sequential(nn.LayerNorm(dim, epsilon=epsilon), nn.GELU(), nn.Linear(dim, out_dim, start, ZERO))


class MultiScaleBlock(nn.Layer):
    """Blocks of each branch, then their class tokens read the other's patches; 2 x [B, N + 1, C] -> the same."""

    def __init__(self, dims: tuple[int, int], depths: tuple[int, int], num_heads: tuple[int, int],
                 mlp_ratios: tuple[float, float], revert_epsilon: float, dropout: float, attention_dropout: float,
                 rates: list[float]):
        super().__init__()
        self.blocks = nn.LayerList([
            nn.Sequential(*(
                TransformerBlock(dim, heads, ratio, True, dropout, attention_dropout, rates[index])
                for index in range(depth)
            ))
            for dim, depth, heads, ratio in zip(dims, depths, num_heads, mlp_ratios, strict=True)
        ])  # fmt: skip
        small, large = dims
        self.projs = nn.LayerList([between_widths(small, large), between_widths(large, small)])
        self.fusion = nn.LayerList([
            CrossAttentionBlock(large, num_heads[1], rates[-1]), CrossAttentionBlock(small, num_heads[0], rates[-1]),
        ])  # fmt: skip
        self.revert_projs = nn.LayerList([
            between_widths(large, small, revert_epsilon), between_widths(small, large, revert_epsilon),
        ])  # fmt: skip

    def forward(self, branches):
        branches = [blocks(branches[index]) for index, blocks in enumerate(self.blocks)]
        result = []
        for index, x in enumerate(branches):
            token, others = self.projs[index](x[:, :1]), branches[1 - index][:, 1:]
            token = self.fusion[index](paddle.concat([token, others.astype(token.dtype)], axis=1))
            token = self.revert_projs[index](token)
            result.append(paddle.concat([token, x[:, 1:].astype(token.dtype)], axis=1))
        return result


class CrossVit(Model):
    """CrossViT: a chain of :class:`MultiScaleBlock`. Images of any size are resampled to those of the branches.

    The defaults are CrossViT-S. `branch_sizes` are the sides, in pixels, that images are resampled to; `revert_epsilon`
    is that of the norms before a class token returns to its branch (PaddleViT has 1e-5). A third number in `depths` or
    `mlp_ratios`, as the authors write them, belongs to layers that no published variant has.
    """

    head_names = ("head.0", "head.1")
    dialects = DIALECTS

    def __init__(self, in_channels: int = 3, num_classes: int = 1000, branch_sizes: tuple[int, ...] = (240, 224),
                 patch_sizes: tuple[int, ...] = (12, 16), embed_dims: tuple[int, ...] = (192, 384),
                 depths: tuple[tuple[int, ...], ...] = ((1, 4), (1, 4), (1, 4)), num_heads: tuple[int, ...] = (6, 6),
                 mlp_ratios: tuple[float, ...] = (4.0, 4.0), multi_conv: bool = False, revert_epsilon: float = 1e-6,
                 dropout: float = 0.0, attention_dropout: float = 0.0, drop_path: float = 0.0):
        super().__init__()
        pairs = {"BRANCH_SIZES": branch_sizes, "PATCH_SIZES": patch_sizes, "EMBED_DIMS": embed_dims,
                 "NUM_HEADS": num_heads, "MLP_RATIOS": mlp_ratios[:2]}  # fmt: skip
        for key, value in pairs.items():
            if len(value) != 2:
                raise UserError(f"MODEL.{key} {list(value)}: one for each of two branches")
        for depth in depths:
            if len(depth) not in (2, 3) or any(depth[2:]) or min(depth[:2]) < 1:
                raise UserError(f"MODEL.DEPTHS: {list(depth)}: the blocks of two branches, at most a 0 behind them")
        self.num_classes = num_classes
        make_patches = ConvPatchEmbed if multi_conv else PatchEmbed
        self.patch_embed = nn.LayerList([
            make_patches(size, patch_size, in_channels, dim)
            for size, patch_size, dim in zip(branch_sizes, patch_sizes, embed_dims, strict=True)
        ])
        counts = [1 + patches.num_patches for patches in self.patch_embed]
        self.shapes = list(zip(counts, embed_dims, strict=True))
        for index, (tokens, dim) in enumerate(self.shapes):
            for name, count in (("cls_token", 1), ("pos_embed", tokens)):
                start = self.create_parameter([1, count, dim], default_initializer=TRUNC_NORMAL)
                setattr(self, f"{name}_{index}", start)
        self.pos_drop = Dropout(dropout)
        rates = stage_rates(drop_path, [max(depth) for depth in depths])
        self.blocks = nn.LayerList([
            MultiScaleBlock(embed_dims, depth[:2], num_heads, mlp_ratios[:2], revert_epsilon, dropout,
                            attention_dropout, own)
            for depth, own in zip(depths, rates, strict=True)
        ])  # fmt: skip
        self.norm = nn.LayerList([nn.LayerNorm(dim, epsilon=1e-6) for dim in embed_dims])
        self.head = nn.LayerList([linear(dim, num_classes) for dim in embed_dims])

    def embed(self, images):
        """Return each branch's class token and patches with positions, 2 x [B, N + 1, C]."""
        branches = []
        for index, patches in enumerate(self.patch_embed):
            size = [patches.image_size] * 2
            fits = list(images.shape[2:]) == size
            x = patches(images if fits else F.interpolate(images, size, mode="bicubic"))
            token = getattr(self, f"cls_token_{index}").expand([x.shape[0], -1, -1])
            x = paddle.concat([token, x.astype(token.dtype)], axis=1)
            branches.append(self.pos_drop(x + getattr(self, f"pos_embed_{index}")))
        return branches

    def forward_head(self, branches):
        """Return class logits, [B, num_classes], for what the last block returns."""
        logits = [head(self.norm[index](branches[index][:, 0])) for index, head in enumerate(self.head)]
        return (logits[0] + logits[1]) / 2

    def forward(self, images):
        """Return class logits, [B, num_classes], for normalised images, [B, in_channels, H, W]."""
        branches = self.embed(images)
        for block in self.blocks:
            branches = block(branches)
        return self.forward_head(branches)

    def packed(self, branches):
        """Return both branches as one tensor, [B, numbers], as it goes from one process to the next."""
        return paddle.concat([x.flatten(1) for x in branches], axis=1)

    def unpacked(self, x):
        """Return the branches that :meth:`packed` packed."""
        parts = paddle.split(x, [tokens * dim for tokens, dim in self.shapes], axis=1)
        return [part.reshape([-1, *shape]) for part, shape in zip(parts, self.shapes, strict=True)]

    def sequential_blocks(self) -> list[Block]:
        """Return the model as a chain whose links, run in order, equal `forward`; they hand on both branches as one."""

        def run(function, unpack, pack, x):
            x = function(self.unpacked(x) if unpack else x)
            return self.packed(x) if pack else x

        names = [f"blocks.{index}" for index in range(len(self.blocks))]
        return [
            Block("embed", functools.partial(run, self.embed, False, True), ("patch_embed.", "cls_token", "pos_embed")),
            *(
                Block(name, functools.partial(run, block, True, True), (f"{name}.",))
                for name, block in zip(names, self.blocks, strict=True)
            ),
            Block("head", functools.partial(run, self.forward_head, True, False), ("norm.", "head.")),
        ]

    def position_embeddings(self) -> dict[str, PositionEmbedding]:
        """Return the position embedding of each branch, with the class token's."""
        grids = [patches.grid for patches in self.patch_embed]
        return {f"pos_embed_{index}": PositionEmbedding(grid, 1) for index, grid in enumerate(grids)}

    def no_weight_decay(self) -> set[str]:
        """Return the class tokens and the position embeddings."""
        return {f"{name}_{index}" for name in ("cls_token", "pos_embed") for index in range(2)}

    def explanation(self) -> AttentionRollout:
        """Return the attention within the branch of large patches, which most blocks belong to."""
        layers = [block.attn for blocks in self.blocks for block in blocks.blocks[1]]
        return AttentionRollout(layers, self.patch_embed[1].grid, num_prefix_tokens=1, reads=0)


build_model = CrossVit  # its arguments are the MODEL section of a YAML file
