"""Parameter names of a PP-HGNetV2 in PaddleClas; ours are timm's."""

from image_classification.model import Dialect

DIALECTS = (
    Dialect(
        "PaddleClas PP-HGNetV2",
        r"stages\.0\.blocks\.0\.aggregation_squeeze_conv\.conv\.weight",
        (
            (r"(.*)\.aggregation_squeeze_conv\.(.*)", r"\1.aggregation.0.\2"),
            (r"(.*)\.aggregation_excitation_conv\.(.*)", r"\1.aggregation.1.\2"),
            (r"last_conv\.(.*)", r"head.last_conv.0.\1"),
            (r"lab\.(.*)", r"head.last_conv.2.\1"),
            (r"fc\.(.*)", r"head.fc.\1"),
        ),
    ),
)
