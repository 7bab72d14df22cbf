"""Parameter names of a DenseNet in torchvision's files and PaddleClas; ours are timm's."""

from image_classification.model import Dialect

MOST_STAGES = 4

DIALECTS = (
    Dialect(  # of the files, which are older than the library's own names
        "torchvision DenseNet",
        r"features\.denseblock1\.denselayer1\.norm\.1\.weight",
        ((r"(.*\.denselayer\d+)\.(norm|conv)\.(\d)\.(.*)", r"\1.\2\3.\4"),),
    ),
    Dialect(
        "PaddleClas DenseNet",
        r"conv1_func\._conv\.weight",
        (
            (r"conv1_func\._conv\.(.*)", r"features.conv0.\1"),
            (r"conv1_func\._batch_norm\.(.*)", r"features.norm0.\1"),
            *(
                rule
                for stage in range(1, MOST_STAGES + 1)
                for theirs, ours in (("_batch_norm", "norm"), ("_conv", "conv"))
                for rule in (
                    (rf"db_conv_{stage + 1}\.conv\d+_(\d+)\.bn_ac_func(\d)\.{theirs}\.(.*)",
                     rf"features.denseblock{stage}.denselayer\1.{ours}\2.\3"),
                    (rf"tr_conv{stage + 1}_blk\.conv_ac_func\.{theirs}\.(.*)",
                     rf"features.transition{stage}.{ours}.\1"),
                )
            ),
            (r"batch_norm\.(.*)", r"features.norm5.\1"),
            (r"out\.(.*)", r"classifier.\1"),
        ),
    ),
)  # fmt: skip
