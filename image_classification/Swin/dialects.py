"""Parameter names of a Swin in its original repository, torchvision and PaddleViT; ours are timm's."""

import re

from image_classification.model import Dialect


def _swin_downsample(tensors, own_names):
    """In the original a stage ends with the patch merging, in timm the next one begins with it."""
    shifted = {}
    for name, value in tensors.items():
        merging = re.match(r"layers\.(\d+)\.downsample\.(.*)", name)
        shifted[f"layers.{int(merging[1]) + 1}.downsample.{merging[2]}" if merging else name] = value
    return shifted


def _torchvision_stages(tensors, own_names):
    """torchvision counts stages (1, 3, 5, 7) and what is between them (2, 4, 6); Swin V2 takes no bias of its keys."""
    renamed = {}
    for name, value in tensors.items():
        stage = re.fullmatch(r"layers\.(\d+)\.(.*)", name)
        name = f"layers.{int(stage[1]) // 2}.{stage[2]}" if stage else name
        if name.endswith("qkv.bias") and name not in own_names:
            start, third = name.removesuffix("qkv.bias"), len(value) // 3
            renamed |= {f"{start}q_bias": value[:third], f"{start}v_bias": value[2 * third :]}
        else:
            renamed[name] = value
    return renamed


DIALECTS = (
    Dialect(
        "PaddleViT Swin",
        r"stages\.0\.blocks\.0\.attn\.relative_position_bias_table",
        (
            (r"patch_embedding\.patch_embed\.(.*)", r"patch_embed.proj.\1"),
            (r"patch_embedding\.norm\.(.*)", r"patch_embed.norm.\1"),
            (r"stages\.(.*)", r"layers.\1"),
            (r"fc\.(.*)", r"head.fc.\1"),
        ),
        _swin_downsample,
    ),
    Dialect(
        "torchvision Swin",
        r"features\.2\.reduction\.weight",
        (
            (r"features\.0\.0\.(.*)", r"patch_embed.proj.\1"),
            (r"features\.0\.2\.(.*)", r"patch_embed.norm.\1"),
            (r"features\.(\d+)\.((?:reduction|norm)\..*)", r"layers.\1.downsample.\2"),
            (r"features\.(\d+)\.(\d+)\.mlp\.0\.(.*)", r"layers.\1.blocks.\2.mlp.fc1.\3"),
            (r"features\.(\d+)\.(\d+)\.mlp\.3\.(.*)", r"layers.\1.blocks.\2.mlp.fc2.\3"),
            (r"features\.(\d+)\.(\d+)\.(.*)", r"layers.\1.blocks.\2.\3"),
            (r"head\.(weight|bias)", r"head.fc.\1"),
        ),
        _torchvision_stages,
    ),
    Dialect(
        "original Swin",
        r"layers\.0\.downsample\.reduction\.weight",
        (
            (r"head\.(weight|bias)", r"head.fc.\1"),
        ),
        _swin_downsample,
    ),
)
