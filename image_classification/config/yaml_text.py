"""YAML for settings: empty values, true and false, numbers, texts, lists and mappings, within bounds.

Dates stay the text that they are, and so does a number that is not written as Python prints it: 1.50, 0x10, 0123, 1:30
and 20260101_12 may be names of folders; where a number is expected, ``convert`` makes one of them. Aliases and merge
keys are errors, because a few lines of them unfold to more than a memory holds; BASE does what they are for. So is a
key that stands twice in one place: one of the two would be ignored.
"""

import contextlib
from typing import Any

import yaml

from ..runtime import UserError

DEEPEST = 20
MOST_VALUES = 50_000  # a factor for each class of ImageNet-21k is 21,841
LONGEST = 10_000  # characters of a value
_PREFIX = "tag:yaml.org,2002:"
_NUMBERS = (f"{_PREFIX}int", f"{_PREFIX}float")
_KNOWN = {f"{_PREFIX}{name}" for name in ("null", "bool", "int", "float", "str", "seq", "map")}


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag in _KNOWN]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.count = self.depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.count += 1
        self.depth += 1
        if self.check_event(yaml.AliasEvent):
            self._refuse("an alias (*): repeat the value, or use BASE")
        if self.count > MOST_VALUES or self.depth > DEEPEST:
            self._refuse(f"more than {MOST_VALUES} values, or {DEEPEST} in each other")
        node = super().compose_node(parent, index)
        assert node is not None
        self.depth -= 1
        if node.tag in _NUMBERS and not _is_printed_so(node.value):
            node.tag = f"{_PREFIX}str"
        if node.tag not in _KNOWN:
            self._refuse(f"the tag {node.tag[:80]}")
        if isinstance(node, yaml.ScalarNode) and len(node.value) > LONGEST:
            self._refuse(f"a value of {len(node.value)} characters")
        keys = [key for key, _ in node.value] if isinstance(node, yaml.MappingNode) else []
        if not all(isinstance(key, yaml.ScalarNode) for key in keys):
            self._refuse("a list or a mapping as a key")
        seen: set[str] = set()
        for key in keys:
            if key.value in seen:
                self._refuse(f"the key {key.value[:80]} a second time", key.start_mark)
            seen.add(key.value)
        return node

    def _refuse(self, what: str, mark: Any = None) -> None:
        mark = mark or self.peek_event().start_mark
        raise yaml.composer.ComposerError(problem=f"{what} is not allowed", problem_mark=mark)


def _is_printed_so(text: str) -> bool:
    """Return whether nothing is lost where a text becomes a number, and the number a text."""
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return str(kind(text)) == text
    return False


def load_yaml(text: str, where: str) -> Any:
    """Return what a YAML text says: None, bool, int, float, str, lists, and dicts with plain keys.

    Raises:
        UserError: naming ``where`` and the line, for anything else.
    """
    loader = None
    try:
        loader = _Loader(text)
        return loader.get_single_data()
    except (yaml.YAMLError, ValueError, LookupError, TypeError, RecursionError) as error:
        # ValueError, LookupError: what PyYAML raises for "!!int x" and its like
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise UserError(f"{where}{line}: is not YAML: {getattr(error, 'problem', None) or error}") from None
    finally:
        if loader is not None:
            loader.dispose()
