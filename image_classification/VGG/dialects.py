"""Parameter names of a VGG in timm; ours are torchvision's."""

from image_classification.model import Dialect


def _vgg_flatten(tensors, own_names):
    """timm's classifier is two convolutions over the 7x7 map; as linear layers they are [out, in]."""
    for name in ("classifier.0.weight", "classifier.3.weight"):
        tensors[name] = tensors[name].reshape(tensors[name].shape[0], -1)
    return tensors


DIALECTS = (
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
)
