"""One schema with defaults, YAML files with BASE, the command line; frozen once loaded. Knows no Paddle."""

from .command_line import load_config
from .merge import build_config
from .schema import Config, invocation_yaml, to_yaml

__all__ = ["Config", "build_config", "invocation_yaml", "load_config", "to_yaml"]
