"""Parameter names of a MobileViT in PaddleViT; ours are timm's."""

from image_classification.model import Dialect

PLACES = ("0.0", "1.0", "1.1", "1.2", "2.0", "3.0", "4.0")
BLOCKS = {f"mv2_block_{number}": place for number, place in enumerate(PLACES, 1)}
TRANSFORMERS = {f"mvit_block_{number}": f"{number + 1}.1" for number in (1, 2, 3)}
CONVOLUTIONS = {"conv1": "conv_kxk", "conv2": "conv_1x1", "conv3": "conv_proj", "conv4": "conv_fusion"}


def normalised(theirs: str, ours: str) -> tuple[tuple[str, str], ...]:
    """Return the rules of a convolution with its BatchNorm."""
    return (rf"{theirs}\.conv\.(.*)", rf"{ours}.conv.\1"), (rf"{theirs}\.norm\.(.*)", rf"{ours}.bn.\1")


RULES = [*normalised("conv3x3", "stem"), *normalised("conv1x1", "final_conv"), (r"linear\.(.*)", r"head.fc.\1")]
for theirs, place in BLOCKS.items():
    RULES += normalised(rf"{theirs}\.conv\.0", f"stages.{place}.conv1_1x1")
    RULES += normalised(rf"{theirs}\.conv\.1", f"stages.{place}.conv2_kxk")
    RULES += [
        (rf"{theirs}\.conv\.2\.(.*)", rf"stages.{place}.conv3_1x1.conv.\1"),
        (rf"{theirs}\.conv\.3\.(.*)", rf"stages.{place}.conv3_1x1.bn.\1"),
    ]
for theirs, place in TRANSFORMERS.items():
    for number, ours in CONVOLUTIONS.items():
        RULES += normalised(rf"{theirs}\.{number}", f"stages.{place}.{ours}")
    layers = rf"{theirs}\.transformer\.layers\.(\d+)"
    RULES += [
        (rf"{layers}\.attn_norm\.(.*)", rf"stages.{place}.transformer.\1.norm1.\2"),
        (rf"{layers}\.mlp_norm\.(.*)", rf"stages.{place}.transformer.\1.norm2.\2"),
        (rf"{layers}\.(.*)", rf"stages.{place}.transformer.\1.\2"),
        (rf"{theirs}\.transformer\.norm\.(.*)", rf"stages.{place}.norm.\1"),
    ]

DIALECTS = (Dialect("PaddleViT MobileViT", r"mv2_block_1\.conv\.0\.conv\.weight", tuple(RULES)),)
