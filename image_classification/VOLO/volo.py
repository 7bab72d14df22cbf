"""VOLO, vision outlooker (Yuan et al. 2021, https://arxiv.org/abs/2106.13112).

Outlook attention looks at fine patches first: a place says itself, by a linear layer, how its 3x3 neighbours mix. A
transformer works on patches twice as large, and a class token reads them in blocks of its own (CaiT). Parameter names
and epsilon (1e-5) are timm's.

The published weights were trained with a label for each patch (token labelling, Jiang et al. 2021), which an auxiliary
head learnt. Logits are the class token's plus half of the auxiliary head's largest over the patches, per class, in
training as in evaluation: without labels of patches both heads learn from the image's label through that sum.

Shapes use: B batch, H and W the height and width of a grid of patches, N patches, C channels, h heads, d = C // h.
"""

import paddle
from paddle import nn

from image_classification.layers import (
    TRUNC_NORMAL,
    ConvSequence,
    Mlp,
    check_image_size,
    conv,
    drop_path_rates,
    linear,
    normal_conv,
)
from image_classification.model import Block, Column, GradCam, Model, PositionEmbedding, layer_links
from image_classification.runtime import UserError
from image_classification.transformer import ClassAttention, TransformerBlock

from .dialects import DIALECTS
from .outlook import Outlooker

PATCH_SIZE = 8  # of the outlookers; twice as large in the transformer


class PairedClassAttention(ClassAttention):
    """Class attention with key and value in one projection, all without biases, [B, N + 1, C] -> [B, 1, C]."""

    def __init__(self, dim: int, num_heads: int):
        super().__init__(dim, num_heads, ())
        self.q = linear(dim, dim, bias=False)
        self.kv = linear(dim, 2 * dim, bias=False)

    def project(self, x):
        """Return the query of the first token, [B, 1, C], key and value of all, [B, N + 1, C]."""
        return self.q(x[:, :1]), *self.kv(x).chunk(2, axis=-1)

    def tensor_parallel_plan(self):
        """Divided by heads; one sum after the projection."""
        return super().tensor_parallel_plan() | {"q": Column(), "kv": Column(blocks=2)}


class ClassBlock(nn.Layer):
    """A block of the class token alone, ([B, 1, C], [B, N, C]) -> [B, 1, C]."""

    def __init__(self, dim: int, num_heads: int, mlp_ratio: float):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, epsilon=1e-5)
        self.attn = PairedClassAttention(dim, num_heads)
        self.norm2 = nn.LayerNorm(dim, epsilon=1e-5)
        self.mlp = Mlp(dim, int(dim * mlp_ratio))

    def forward(self, token, x):
        token = token + self.attn(self.norm1(paddle.concat([token, x.astype(token.dtype)], axis=1)))
        return token + self.mlp(self.norm2(token))


class PatchEmbed(nn.Layer):
    """Three convolutions and a strided one, [B, in_channels, H, W] -> [B, H/8, W/8, C]."""

    def __init__(self, in_channels: int, width: int, embed_dim: int):
        super().__init__()
        layers = []
        for before, kernel_size, stride in ((in_channels, 7, 2), (width, 3, 1), (width, 3, 1)):
            layers += [conv(before, width, kernel_size, stride), nn.BatchNorm2D(width), nn.ReLU()]
        self.conv = ConvSequence(*layers)
        side = PATCH_SIZE // 2
        self.proj = normal_conv(width, embed_dim, side, side)

    def forward(self, images):
        return self.proj(self.conv(images)).transpose([0, 2, 3, 1])


class Downsample(nn.Layer):
    """A strided convolution, [B, H, W, C] -> [B, H/2, W/2, C']."""

    def __init__(self, dim: int, out_dim: int):
        super().__init__()
        self.proj = normal_conv(dim, out_dim, 2, 2)

    def forward(self, x):
        return self.proj(x.transpose([0, 3, 1, 2])).transpose([0, 2, 3, 1])


class Volo(Model):
    """VOLO: outlookers, transformer blocks of the patches in `len(depths) - 1` stages, blocks of the class token.

    The defaults are VOLO-D1.
    """

    head_names = ("head", "aux_head")
    dialects = DIALECTS

    def __init__(self, image_size: int = 224, in_channels: int = 3, num_classes: int = 1000, stem_width: int = 64,
                 embed_dims: tuple[int, ...] = (192, 384, 384, 384), depths: tuple[int, ...] = (4, 4, 8, 2),
                 num_heads: tuple[int, ...] = (6, 12, 12, 12), mlp_ratios: tuple[float, ...] = (3.0, 3.0, 3.0, 3.0),
                 class_depth: int = 2, attention_dropout: float = 0.0, drop_path: float = 0.0):
        super().__init__()
        for key, value in (("EMBED_DIMS", embed_dims), ("NUM_HEADS", num_heads), ("MLP_RATIOS", mlp_ratios)):
            if len(value) != len(depths) or len(value) < 2:
                raise UserError(f"MODEL.{key} {list(value)}: one for each of two or more MODEL.DEPTHS {list(depths)}")
        if len(set(embed_dims[1:])) > 1:
            raise UserError(f"MODEL.EMBED_DIMS {list(embed_dims)}: all but the first are equal")
        if image_size < 1 or image_size % (2 * PATCH_SIZE):
            raise UserError(f"DATA.IMAGE_SIZE {image_size} is not a multiple of {2 * PATCH_SIZE}")
        self.num_classes = num_classes
        self.image_size = image_size
        self.grid = (image_size // (2 * PATCH_SIZE),) * 2
        dim = embed_dims[-1]
        self.patch_embed = PatchEmbed(in_channels, stem_width, embed_dims[0])
        self.pos_embed = self.create_parameter([1, *self.grid, dim], default_initializer=TRUNC_NORMAL)
        rates = iter(drop_path_rates(drop_path, sum(depths))[depths[0] :])  # the authors' outlookers drop nothing
        options = zip(embed_dims, depths, num_heads, mlp_ratios, strict=True)
        first, depth, heads, ratio = next(options)
        outlookers = [Outlooker(first, heads, ratio, attention_dropout) for _ in range(depth)]
        self.network = nn.LayerList([nn.Sequential(*outlookers), Downsample(first, dim)])
        for _, depth, heads, ratio in options:
            self.network.append(nn.Sequential(*(
                TransformerBlock(dim, heads, ratio, False, 0.0, attention_dropout, next(rates), epsilon=1e-5)
                for _ in range(depth)
            )))  # fmt: skip
        self.cls_token = self.create_parameter([1, 1, dim], default_initializer=TRUNC_NORMAL)
        self.post_network = nn.LayerList([
            ClassBlock(dim, num_heads[-1], mlp_ratios[-1]) for _ in range(class_depth)
        ])  # fmt: skip
        self.norm = nn.LayerNorm(dim, epsilon=1e-5)
        self.aux_head = linear(dim, num_classes)
        self.head = linear(dim, num_classes)

    def embed(self, images):
        """Return fine patches, [B, H, W, C], for images [B, in_channels, image_size, image_size]."""
        check_image_size(images, self.image_size)
        return self.patch_embed(images)

    def downsample(self, x):
        """Return large patches with positions, [B, N, C], for fine ones [B, H, W, C]."""
        return (self.network[1](x) + self.pos_embed).flatten(1, 2)

    def forward_head(self, x):
        """Return class logits, [B, num_classes], for the last block's patches [B, N, C]."""
        token = self.cls_token.expand([x.shape[0], -1, -1])
        for block in self.post_network:
            token = block(token, x)
        patches = self.aux_head(self.norm(x))  # [B, N, num_classes]
        largest = patches.argmax(axis=1, keepdim=True)  # the gradient of Paddle's max takes longer than the whole model
        return self.head(self.norm(token[:, 0])) + 0.5 * paddle.take_along_axis(patches, largest, axis=1).squeeze(1)

    def forward(self, images):
        """Return class logits, [B, num_classes], for normalised images, [B, in_channels, image_size, image_size].

        Raises:
            UserError: the images' height or width differs from `image_size` (pixels).
        """
        x = self.downsample(self.network[0](self.embed(images)))
        for stage in self.network[2:]:
            x = stage(x)
        return self.forward_head(x)

    def sequential_blocks(self) -> list[Block]:
        """Return the model as a chain whose links, run in order, are `forward`."""
        chain = [Block("embed", self.embed, ("patch_embed.",))]
        for index, stage in enumerate(self.network):
            if index == 1:
                chain.append(Block("downsample", self.downsample, ("network.1.", "pos_embed")))
            else:
                chain += layer_links(f"network.{index}", stage)
        prefixes = ("cls_token", "post_network.", "norm.", "head.", "aux_head.")
        return [*chain, Block("head", self.forward_head, prefixes)]

    def layer_groups(self) -> list[tuple[str, ...]]:
        """Return the stem with positions and class token, each block, the downsampling among them, and the heads."""
        blocks = [block.prefixes for block in self.sequential_blocks()[1:-1]]
        blocks[blocks.index(("network.1.", "pos_embed"))] = ("network.1.",)
        of_class = [(f"post_network.{index}.",) for index in range(len(self.post_network))]
        return [("patch_embed.", "pos_embed", "cls_token"), *blocks, *of_class, ("norm.", "head.", "aux_head.")]

    def position_embeddings(self) -> dict[str, PositionEmbedding]:
        """Return the position embedding, [1, rows, columns, C]."""
        return {"pos_embed": PositionEmbedding(self.grid)}

    def no_weight_decay(self) -> set[str]:
        """Return the position embedding and the class token."""
        return {"pos_embed", "cls_token"}

    def explanation(self) -> GradCam:
        """Return the patches that the class token and the auxiliary head read, [B, N, C]."""
        return GradCam(into="head", axes="BNC", grid=self.grid)


build_model = Volo  # its arguments are the MODEL section of a YAML file
