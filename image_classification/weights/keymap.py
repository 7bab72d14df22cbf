"""Other projects' parameter names to ours.

Our names are those of timm (transformers, ConvNeXt) and torchvision (ResNet, VGG, AlexNet), so most files need no
renaming. A dialect is recognised by one name that only it has; its rules are regular expressions, tried in order, the
first that matches the whole name wins. Names without a rule stay as they are.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

DROPPED = ""  # a rule's replacement for what is no weight


class Dialect(NamedTuple):
    """Names of one project: recognised by a name that matches `marker`, rewritten by `rules`, then by `finish`."""

    name: str
    marker: str
    rules: tuple[tuple[str, str], ...]
    finish: Callable = lambda tensors, own_names: tensors


def _vgg_flatten(tensors, own_names):
    """timm's classifier is two convolutions over the 7x7 map; as linear layers they are [out, in]."""
    for name in ("classifier.0.weight", "classifier.3.weight"):
        tensors[name] = tensors[name].reshape(tensors[name].shape[0], -1)
    return tensors


def _paddleclas_resnet(tensors, own_names):
    """PaddleClas numbers its blocks through; ours restart in each stage."""
    stages = list(dict.fromkeys(re.findall(r"(layer\d+\.\d+)\.conv1\.weight", "\n".join(own_names))))
    renamed = {}
    for name, value in tensors.items():
        block = re.match(r"blocks\.(\d+)\.(.*)", name)
        if block and int(block[1]) < len(stages):
            name = f"{stages[int(block[1])]}.{block[2]}"
        renamed[name] = value
    return renamed


def _halve_after_dropout(tensors, own_names):
    """Their dropout (p = 0.5) halves the activations at inference; ours doubles them in training: halve the weights."""
    for name in ("classifier.1.weight", "classifier.4.weight"):
        tensors[name] = tensors[name] * np.float32(0.5)
    return tensors


def _swin_downsample(tensors, own_names):
    """In the original a stage ends with the patch merging, in timm the next one begins with it."""
    shifted = {}
    for name, value in tensors.items():
        merging = re.match(r"layers\.(\d+)\.downsample\.(.*)", name)
        shifted[f"layers.{int(merging[1]) + 1}.downsample.{merging[2]}" if merging else name] = value
    return shifted


def _torchvision_stages(tensors, own_names):
    """torchvision counts stages (1, 3, 5, 7) and what is between them (2, 4, 6); its layer scales are [dim, 1, 1]."""
    renamed = {}
    for name, value in tensors.items():
        stage = re.fullmatch(r"(stages|layers)\.(\d+)\.(.*)", name)
        name = f"{stage[1]}.{int(stage[2]) // 2}.{stage[3]}" if stage else name
        renamed[name] = value.reshape(-1) if name.endswith(".gamma") else value
    return renamed


DIALECTS = (
    Dialect(
        "torchvision ViT",
        r"encoder\.layers\.encoder_layer_0\.ln_1\.weight",
        (
            (r"class_token", "cls_token"),
            (r"encoder\.pos_embedding", "pos_embed"),
            (r"conv_proj\.(.*)", r"patch_embed.proj.\1"),
            (r"encoder\.layers\.encoder_layer_(\d+)\.ln_(\d)\.(.*)", r"blocks.\1.norm\2.\3"),
            (r"encoder\.layers\.encoder_layer_(\d+)\.self_attention\.in_proj_(.*)", r"blocks.\1.attn.qkv.\2"),
            (r"encoder\.layers\.encoder_layer_(\d+)\.self_attention\.out_proj\.(.*)", r"blocks.\1.attn.proj.\2"),
            (r"encoder\.layers\.encoder_layer_(\d+)\.mlp\.(?:0|linear_1)\.(.*)", r"blocks.\1.mlp.fc1.\2"),
            (r"encoder\.layers\.encoder_layer_(\d+)\.mlp\.(?:3|linear_2)\.(.*)", r"blocks.\1.mlp.fc2.\2"),
            (r"encoder\.ln\.(.*)", r"norm.\1"),
            (r"heads\.head\.(.*)", r"head.\1"),
        ),
    ),
    Dialect(
        "PaddleViT",
        r"encoder\.layers\.0\.attn_norm\.weight",
        (
            (r"position_embedding", "pos_embed"),
            (r"cls_token", "cls_token"),
            (r"(?:patch_embedding\.)(?:patch_embedding)\.(.*)", r"patch_embed.proj.\1"),
            (r"patch_embedding\.position_embeddings", "pos_embed"),
            (r"patch_embedding\.cls_token", "cls_token"),
            (r"encoder\.layers\.(\d+)\.attn_norm\.(.*)", r"blocks.\1.norm1.\2"),
            (r"encoder\.layers\.(\d+)\.mlp_norm\.(.*)", r"blocks.\1.norm2.\2"),
            (r"encoder\.layers\.(\d+)\.attn\.out\.(.*)", r"blocks.\1.attn.proj.\2"),
            (r"encoder\.layers\.(\d+)\.(.*)", r"blocks.\1.\2"),
            (r"encoder\.(?:encoder_)?norm\.(.*)", r"norm.\1"),
            (r"classifier\.(.*)", r"head.\1"),
            (r"classifier_dist\.(.*)", r"head_dist.\1"),
        ),
    ),
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
        "PaddleClas ResNet",
        r"stem\.0\.conv\.weight",
        (
            (r"stem\.0\.conv\.(.*)", r"conv1.\1"),
            (r"stem\.0\.bn\.(.*)", r"bn1.\1"),
            (r"(blocks\.\d+)\.conv0\.conv\.(.*)", r"\1.conv1.\2"),
            (r"(blocks\.\d+)\.conv0\.bn\.(.*)", r"\1.bn1.\2"),
            (r"(blocks\.\d+)\.conv1\.conv\.(.*)", r"\1.conv2.\2"),
            (r"(blocks\.\d+)\.conv1\.bn\.(.*)", r"\1.bn2.\2"),
            (r"(blocks\.\d+)\.conv2\.conv\.(.*)", r"\1.conv3.\2"),
            (r"(blocks\.\d+)\.conv2\.bn\.(.*)", r"\1.bn3.\2"),
            (r"(blocks\.\d+)\.short\.conv\.(.*)", r"\1.downsample.0.\2"),
            (r"(blocks\.\d+)\.short\.bn\.(.*)", r"\1.downsample.1.\2"),
        ),
        _paddleclas_resnet,
    ),
    Dialect(
        "timm VGG",
        r"pre_logits\.fc1\.weight",
        (
            (r"pre_logits\.fc1\.(.*)", r"classifier.0.\1"),
            (r"pre_logits\.fc2\.(.*)", r"classifier.3.\1"),
            (r"head\.fc\.(.*)", r"classifier.6.\1"),
        ),
        _vgg_flatten,
    ),
    Dialect(
        "Paddle AlexNet",
        r"_conv1\._conv\.weight",
        (
            (r"_conv1\._conv\.(.*)", r"features.0.\1"),
            (r"_conv2\._conv\.(.*)", r"features.3.\1"),
            (r"_conv3\.(.*)", r"features.6.\1"),
            (r"_conv4\.(.*)", r"features.8.\1"),
            (r"_conv5\._conv\.(.*)", r"features.10.\1"),
            (r"_fc6\.(.*)", r"classifier.1.\1"),
            (r"_fc7\.(.*)", r"classifier.4.\1"),
            (r"_fc8\.(.*)", r"classifier.6.\1"),
        ),
        _halve_after_dropout,
    ),
    Dialect(
        "original ConvNeXt",
        r"downsample_layers\.0\.0\.weight",
        (
            (r"downsample_layers\.0\.(.*)", r"stem.\1"),
            (r"downsample_layers\.(\d+)\.(.*)", r"stages.\1.downsample.\2"),
            (r"stages\.(\d+)\.(\d+)\.dwconv\.(.*)", r"stages.\1.blocks.\2.conv_dw.\3"),
            (r"stages\.(\d+)\.(\d+)\.pwconv(\d)\.(.*)", r"stages.\1.blocks.\2.mlp.fc\3.\4"),
            (r"stages\.(\d+)\.(\d+)\.(.*)", r"stages.\1.blocks.\2.\3"),
            (r"norm\.(.*)", r"head.norm.\1"),
            (r"head\.(.*)", r"head.fc.\1"),
        ),
    ),
    Dialect(
        "torchvision ConvNeXt",
        r"features\.1\.0\.layer_scale",
        (
            (r"features\.0\.(.*)", r"stem.\1"),
            (r"features\.(\d+)\.(\d+)\.layer_scale", r"stages.\1.blocks.\2.gamma"),
            (r"features\.(\d+)\.(\d+)\.block\.0\.(.*)", r"stages.\1.blocks.\2.conv_dw.\3"),
            (r"features\.(\d+)\.(\d+)\.block\.2\.(.*)", r"stages.\1.blocks.\2.norm.\3"),
            (r"features\.(\d+)\.(\d+)\.block\.3\.(.*)", r"stages.\1.blocks.\2.mlp.fc1.\3"),
            (r"features\.(\d+)\.(\d+)\.block\.5\.(.*)", r"stages.\1.blocks.\2.mlp.fc2.\3"),
            (r"features\.(\d+)\.(.*)", r"stages.\1.downsample.\2"),
            (r"classifier\.0\.(.*)", r"head.norm.\1"),
            (r"classifier\.2\.(.*)", r"head.fc.\1"),
        ),
        _torchvision_stages,
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

# What no model has as a weight, in any dialect.
NOT_WEIGHTS = re.compile(r".*\.num_batches_tracked|.*\.(relative_position_index|attn_mask)|StructuredToParameterName@@")
BATCH_NORM = ((re.compile(r"(.*)\.running_mean"), r"\1._mean"), (re.compile(r"(.*)\.running_var"), r"\1._variance"))


def translate(tensors, own_names):
    """Return (tensors under our names, name of the dialect they came in); values are not yet transposed."""
    dialect = next((d for d in DIALECTS if any(re.fullmatch(d.marker, name) for name in tensors)), None)
    rules = dialect.rules if dialect else ()
    renamed = {}
    for name, value in tensors.items():
        if NOT_WEIGHTS.fullmatch(name):
            continue
        for pattern, replacement in rules:
            match = re.fullmatch(pattern, name)
            if match:
                name = match.expand(replacement)
                break
        for pattern, replacement in BATCH_NORM:
            name = pattern.sub(replacement, name)
        if name != DROPPED:
            renamed[name] = value
    if dialect is None:
        return renamed, "our own names"
    return dialect.finish(renamed, own_names), dialect.name
