"""Parameter names of a MetaFormer in its authors' repositories and in PaddleViT's PoolFormer; ours are timm's."""

from image_classification.model import Dialect


def linears_as_convolutions(tensors, own_names):
    """Return the tensors with linear layers over maps as the 1x1 convolutions that they are here."""
    attention = {name.split(".token_mixer.")[0] for name in own_names if name.endswith("token_mixer.qkv.weight")}

    def is_convolution(name):
        block = name.split(".mlp.")[0]
        return ".pwconv" in name or block != name and name.startswith("stages.") and block not in attention

    return {
        name: value.reshape([*value.shape, 1, 1]) if is_convolution(name) and value.ndim == 2 else value
        for name, value in tensors.items()
    }


STAGES = tuple(  # of four, the layers between them have the odd numbers
    rule
    for stage in range(4)
    for rule in (
        (rf"network\.{2 * stage}\.(\d+)\.layer_scale_(\d)", rf"stages.{stage}.blocks.\1.layer_scale\2.scale"),
        (rf"network\.{2 * stage}\.(.*)", rf"stages.{stage}.blocks.\1"),
        (rf"network\.{2 * stage - 1}\.proj\.(.*)", rf"stages.{stage}.downsample.conv.\1"),
    )
)
HEAD = ((r"norm\.(.*)", r"head.norm.\1"), (r"head\.(.*)", r"head.fc.\1"))

DIALECTS = (
    Dialect(
        "original PoolFormer",
        r"network\.0\.0\.mlp\.fc1\.weight",
        ((r"patch_embed\.proj\.(.*)", r"stem.conv.\1"), *STAGES, *HEAD),
    ),
    Dialect(
        "original MetaFormer",
        r"downsample_layers\.0\.conv\.weight",
        (
            (r"downsample_layers\.0\.post_norm\.(.*)", r"stem.norm.\1"),
            (r"downsample_layers\.0\.(.*)", r"stem.\1"),
            (r"downsample_layers\.(\d)\.pre_norm\.(.*)", r"stages.\1.downsample.norm.\2"),
            (r"downsample_layers\.(\d)\.(.*)", r"stages.\1.downsample.\2"),
            (r"stages\.(\d)\.(.*)", r"stages.\1.blocks.\2"),
            *HEAD,
        ),
        linears_as_convolutions,
    ),
)
