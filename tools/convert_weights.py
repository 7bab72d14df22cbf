"""Convert weights between formats and projects.

    python tools/convert_weights.py resnet50 torchvision/resnet50.V2 resnet50.pdparams
    python tools/convert_weights.py vit_base_patch16_224 output/train-.../best.pdparams vit.safetensors
    python tools/convert_weights.py output/train-.../config.yaml output/train-.../best.pdparams model.pth

The first argument is the model (or a YAML) that the weights belong to: its layers decide what is transposed, and
every name and shape is checked. The source is whatever -pretrained takes. The ending of the target is its format:
.safetensors and .pth are for timm and torchvision (their names and layout), .pdparams is for Paddle and this project.
.safetensors also say which classes, model and preprocessing the weights are of.
"""

import contextlib
import sys
from pathlib import Path

if not __package__:  # run by its path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from image_classification.config import check_model, to_yaml
from image_classification.runtime import Parser, UserError, command, log_to_stderr, prepare_process, refuse_existing


@command
def main(arguments):
    """Write the target and return the exit code."""
    parser = Parser(description=__doc__)
    parser.add_argument("cfg", help="model, recipe, YAML file or run's folder")
    parser.add_argument("source", help="registry id, hf-hub:owner/name, URL, file or run's folder")
    parser.add_argument("target", type="new_file", help="file to write: .safetensors, .pth, .pt or .pdparams")
    parser.add_argument("-opts", nargs="+", default=[], metavar="KEY=VALUE", help="keys, as MODEL.NUM_CLASSES=10")
    options = parser.parse_args(arguments)
    refuse_existing(options.target, "target")
    check_model(options.cfg, options.opts)
    prepare_process()
    log_to_stderr()
    from image_classification.weights import export_tensors, write_weights, writer_of
    from image_classification.zoo import load_with_report

    writer_of(options.target)
    model, config, loaded = load_with_report(options.cfg, options.source, options.opts)
    layout = "paddle" if options.target.suffix == ".pdparams" else "torch"
    tensors = export_tensors(model, layout)
    write_weights(options.target, tensors, known(loaded, config) if options.target.suffix == ".safetensors" else None)
    print(f"{options.target}: {len(tensors)} tensors, {sum(t.nbytes for t in tensors.values()) / 1e6:.1f} MB, {layout}")
    return 0


def known(loaded, config):
    """Return what goes with the weights: what their source says of itself, else what the configuration does."""
    from image_classification.saved_config import of_weights_alone

    with contextlib.suppress(UserError):  # the text of another project
        if loaded.config is not None:
            return of_weights_alone(loaded.config, loaded.source)
    return of_weights_alone(to_yaml(config), loaded.source)


if __name__ == "__main__":
    sys.exit(main())
