"""Finds every reference to Paddle's operators, replaces all of them while a dispatch is active, and restores them.

`paddle._C_ops` holds the operators, but a module that did `from paddle._C_ops import gelu` has its own reference, and
so has everyone who imported the name from there. All of them are found by identity.
"""

import sys
import threading

from . import paddle_names


class References:
    """The replacement of built-in operators and Tensor methods by wrappers; counted, so that threads may overlap.

    Args:
        tables: [(module, {operator name: wrapper})], replaced in the module and wherever a module refers to the same
            built-in function.
        methods: {Tensor method name: wrapper}.
    """

    def __init__(self, tables, methods):
        self._lock = threading.Lock()
        self._users = 0
        self._methods = [(name, getattr(paddle_names.Tensor, name), wrapper) for name, wrapper in methods.items()]
        self._tables = []
        self._wrapper_of = {}  # id of the built-in function -> wrapper
        for module, wrappers in tables:
            originals = {name: getattr(module, name) for name in wrappers}
            self._tables.append((vars(module), originals, wrappers))
            self._wrapper_of.update({id(originals[name]): wrapper for name, wrapper in wrappers.items()})
        self._modules_seen = None
        self._elsewhere = []
        self._main = []

    def replace(self):
        """Replace every reference by its wrapper, unless an earlier caller already did."""
        with self._lock:
            self._users += 1
            if self._users > 1:
                return
            seen = self._loaded_modules()
            if seen != self._modules_seen:
                self._elsewhere = self._find(sys.modules.items())
                self._modules_seen = seen
            # Scripts and notebooks import while they run, so their own names are looked up each time.
            self._main = self._find([("__main__", sys.modules["__main__"])])
            for namespace, _, wrappers in self._all():
                namespace.update(wrappers)
            for name, _, wrapper in self._methods:
                setattr(paddle_names.Tensor, name, wrapper)

    def restore(self):
        """Restore every reference, unless another caller still needs the wrappers."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
            for name, original, _ in self._methods:
                setattr(paddle_names.Tensor, name, original)
            for namespace, originals, _ in self._all():
                namespace.update(originals)

    def _all(self):
        return [*self._tables, *self._elsewhere, *self._main]

    @staticmethod
    def _loaded_modules():
        return hash(tuple(map(id, sys.modules.values())))

    def _find(self, modules):
        """Return [(namespace, {name: original}, {name: wrapper})] of all modules that refer to an operator."""
        found = []
        for module_name, module in list(modules):
            namespace = getattr(module, "__dict__", None)
            if namespace is None or module_name.startswith(paddle_names.RAW_TABLES):
                continue
            originals = {name: value for name, value in list(namespace.items()) if id(value) in self._wrapper_of}
            if originals:
                wrappers = {name: self._wrapper_of[id(value)] for name, value in originals.items()}
                found.append((namespace, originals, wrappers))
        return found
