"""Begin a new family of models: a folder and a registry file with which every test passes.

    python tools/new_family.py CoAtNet

writes image_classification/CoAtNet/ and image_classification/weights/registry/CoAtNet.yaml, and overwrites nothing. The
folder holds a small network of convolutions and MLPs that trains on the digits; replace it by the family's own. What
each file is for stands in CONTRIBUTING.md.
"""

import importlib.util
import keyword
import re
import sys
from pathlib import Path
from string import Template

ROOT = Path(__file__).resolve().parents[1]
if not __package__:  # run by its path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from image_classification.config import variants
from image_classification.runtime import Parser, UserError, atomic_write, command

PACKAGE = ROOT / "image_classification"

ARCHITECTURE = '''\
"""$Family (Authors Year, https://arxiv.org/abs/0000.00000), with timm's parameter names and epsilon (1e-6).

Shapes use: B batch, C channels, H and W the height and width of the feature map.
"""

from paddle import nn

from image_classification.layers import DropPath, Mlp, drop_path_rates, linear, normal_conv
from image_classification.model import Block, FeatureMapModel, layer_links


class ${Family}Block(nn.Layer):
    """Depthwise 3x3 convolution, LayerNorm, MLP and a shortcut, [B, C, H, W] -> [B, C, H, W]."""

    def __init__(self, dim: int, mlp_ratio: float, drop_path: float):
        super().__init__()
        self.conv_dw = normal_conv(dim, dim, 3, padding=1, groups=dim)
        self.norm = nn.LayerNorm(dim, epsilon=1e-6)
        self.mlp = Mlp(dim, int(dim * mlp_ratio))  # says itself how processes share it
        self.drop_path = DropPath(drop_path)

    def forward(self, x):
        shortcut = x
        x = self.conv_dw(x).transpose([0, 2, 3, 1])  # channels last for the linear layers
        return shortcut + self.drop_path(self.mlp(self.norm(x)).transpose([0, 3, 1, 2]))


class $Family(FeatureMapModel):
    """Patches of the image by a strided convolution, `depth` blocks, average pooling and the classifier."""

    head_names = ("head",)

    def __init__(self, patch_size: int = 16, in_channels: int = 3, num_classes: int = 1000, embed_dim: int = 384,
                 depth: int = 12, mlp_ratio: float = 4.0, drop_path: float = 0.0):
        super().__init__()
        self.num_classes = num_classes
        self.stem = normal_conv(in_channels, embed_dim, patch_size, stride=patch_size)
        rates = drop_path_rates(drop_path, depth)
        self.blocks = nn.LayerList([${Family}Block(embed_dim, mlp_ratio, rate) for rate in rates])
        self.norm = nn.LayerNorm(embed_dim, epsilon=1e-6)
        self.head = linear(embed_dim, num_classes)

    def forward_head(self, x):
        """Return class logits, [B, num_classes], for the last block's features [B, C, H, W]."""
        return self.head(self.norm(x.mean(axis=[2, 3])))

    def sequential_blocks(self) -> list[Block]:
        """Return the model as a chain whose links, run in order, are `forward`."""
        blocks = layer_links("blocks", self.blocks)
        return [Block("stem", self.stem, ("stem.",)), *blocks, Block("head", self.forward_head, ("norm.", "head."))]


build_model = $Family  # its arguments are the MODEL section of a YAML file
'''

DIGITS = """\
# python main_single_gpu.py -cfg=./configs/${family}_tiny_digits.yaml -amp
# Expected: top-1 0.97 to 0.99 on the 360 test digits, a minute on two CPU cores. 42,682 parameters.
BASE: digits
DATA:
  BATCH_SIZE: 32
  BATCH_SIZE_EVAL: 180
MODEL:
  NAME: ${family}_tiny_digits
  PATCH_SIZE: 4
  EMBED_DIM: 48
  DEPTH: 4
  MLP_RATIO: 2.0
TRAIN:
  NUM_EPOCHS: 20
  WARMUP_EPOCHS: 3
  WEIGHT_DECAY: 0.05
  BASE_LR: 3.0e-3
  WARMUP_START_LR: 1.0e-5
  END_LR: 0.0
  GRAD_CLIP: 1.0
  SMOOTHING: 0.1
  OPTIMIZER: {NAME: AdamW}
VALIDATE_FREQ: 5
SAVE_FREQ: 5
"""

README = """\
# $Family

*Title*, Authors Year, <https://arxiv.org/abs/0000.00000>. `$family.py` is the whole architecture.

    python main_single_gpu.py -cfg=./configs/${family}_tiny_digits.yaml -amp
    python main_multi_gpu.py -ngpus=2 -device=cpu -cfg=./configs/${family}_tiny_digits.yaml -amp

Parameter names are timm's. Each file in `configs/` begins with its command, the published top-1 and where that figure
comes from.
"""

REGISTRY = """\
# Published weights of the $Family family.
# A variant: the number of its parameters, the billions of multiply-adds per image at its YAML's image size (gmacs), the
# id that its YAML quotes, and its weights by id; what timm and torchvision call the model (peers) where timm has
# another name for it or none (null), or torchvision has it.
# A weight: where it is (hub: a repository of huggingface.co that holds model.safetensors; url; or page: an address for
# browsers, behind which the file lies), the hash that its publisher gives (sha256 may be the first digits only, as in
# torchvision's file names), the licence, top-1 on ImageNet-1k in percent as published, and the preprocessing which that
# figure belongs to.
#
# ${family}_tiny_patch16_224:
#   parameters: 1000000
#   gmacs: 0.16
#   default: timm/${family}_tiny_patch16_224.in1k
#   peers: {torchvision: ${family}_t_16}
#   weights:
#     timm/${family}_tiny_patch16_224.in1k:
#       hub: timm/${family}_tiny_patch16_224.in1k
#       licence: apache-2.0
#       top1: 75.0
#       preprocessing: {crop_pct: 0.875, image_size: 224, interpolation: bicubic, library: pil,
#                       mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}
"""


@command
def main(arguments):
    """Write the files and return the exit code."""
    parser = Parser(description=__doc__)
    parser.add_argument("name", help="of the family, as the paper writes it: CoAtNet")
    options = parser.parse_args(arguments)
    paths = write_family(options.name)
    for path in paths:
        print(path.relative_to(ROOT))
    return 0


def write_family(name):
    """Write a family's files and return their paths.

    Raises:
        UserError: the name cannot be a class, is taken, or a file is there already.
    """
    if not re.fullmatch(r"[A-Z][A-Za-z0-9]*", name):
        raise UserError(f"NAME: {name!r}: expected letters and digits that begin with a capital, such as CoAtNet")
    family, taken = name.lower(), {path.stem.lower(): path for path in PACKAGE.iterdir() if path.name != name}
    if keyword.iskeyword(name) or keyword.iskeyword(family) or re.search(rf"import .*\b{name}\b", ARCHITECTURE):
        raise UserError(f"NAME: {name}: is a word of Python, or of the file that is written; name it otherwise")
    if family in taken:
        raise UserError(f"NAME: {name}: {taken[family].relative_to(ROOT)} has the name but for the capitals")
    if f"{family}_tiny_digits" in variants() and not (PACKAGE / name).exists():
        raise UserError(f"NAME: {name}: there is a variant {family}_tiny_digits already")
    if importlib.util.find_spec(family):  # an entry point finds what lies beside it first
        raise UserError(f"NAME: {name}: {family}.py would hide the module {family} of Python or of a package")
    contents = files_of(name)
    there = [path for path in contents if path.exists()]
    if there:
        raise UserError(f"NAME: {name}: {there[0].relative_to(ROOT)} exists already")
    for path, text in contents.items():
        with atomic_write(path) as file:
            file.write(text.encode())
    return list(contents)


def files_of(name):
    """Return {path: text} of a new family."""
    folder, family = PACKAGE / name, name.lower()
    templates = {
        folder / "__init__.py": "",
        folder / f"{family}.py": ARCHITECTURE,
        folder / "configs" / f"{family}_tiny_digits.yaml": DIGITS,
        folder / "README.md": README,
        PACKAGE / "weights" / "registry" / f"{name}.yaml": REGISTRY,
    }
    texts = {path: Template(text).substitute(Family=name, family=family) for path, text in templates.items()}
    programs = (next(PACKAGE.glob(f"*/{name}")) for name in ("main_single_gpu.py", "main_multi_gpu.py"))
    return texts | {folder / path.name: path.read_text(encoding="utf-8") for path in programs}  # of any family


if __name__ == "__main__":
    sys.exit(main())
