"""The option -pretrained of tools that take a model with weights, or the folder of a run, which has both."""

import os

from image_classification.runtime import UserError


def add_pretrained(parser):
    """Give a parser the option; :func:`settle_pretrained` looks at it."""
    text = "registry id, hf-hub:owner/name, URL, file or run's folder (default: the run's folder that cfg names)"
    parser.add_argument("-pretrained", help=text)


def settle_pretrained(options):
    """Let the weights be those of the run's folder that ``options.cfg`` names, where no others are given.

    Raises:
        UserError: it names no folder.
    """
    if options.pretrained is None:
        if not os.path.isdir(options.cfg):
            raise UserError("the following arguments are required: -pretrained; -h explains them")
        options.pretrained = options.cfg
