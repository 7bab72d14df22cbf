"""One schema with defaults, YAML files with BASE, the command line; frozen once loaded. Knows no Paddle."""

from .catalogue import find_yaml, model_folders, variants
from .command_line import check_model, load_config, make_parser, preview_config
from .dialect import family_of_file
from .fields import chosen
from .merge import build_config
from .schema import Config
from .switches import refuse_run_options
from .written import invocation_yaml, to_yaml

__all__ = [
    "Config",
    "build_config",
    "check_model",
    "chosen",
    "family_of_file",
    "find_yaml",
    "invocation_yaml",
    "load_config",
    "make_parser",
    "model_folders",
    "preview_config",
    "refuse_run_options",
    "to_yaml",
    "variants",
]
