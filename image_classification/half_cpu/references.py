"""Finds every reference to Paddle's operators, replaces all of them while a dispatch is active, and restores them.

`paddle._C_ops` holds the operators, but a module that did `from paddle._C_ops import gelu` has its own reference, and
so has everyone who imported the name from there. All of them are found by identity. The module itself gets another
class, whose properties are the wrappers: to write and write back a thousand names took a tenth of a small model's pass.
"""

import functools
import os
import sys
import threading
import types

from . import paddle_names


class References:
    """The replacement of built-in operators and Tensor methods by wrappers, for users of whom threads may have several.

    What an interrupt leaves undone, whether it comes while they are replaced or restored, the next call does.

    Args:
        operators: [(module, {operator name: wrapper})], replaced for who asks the module, and wherever another one
            refers to the same built-in function.
        functions: [(module, {function name: wrapper})], replaced in the module, which calls them itself, and elsewhere.
        methods: {Tensor method name: wrapper}.
    """

    def __init__(self, operators, functions, methods):
        self._lock = lock = threading.Lock()
        os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
        self._users: set[object] = set()
        self._all_replaced = False
        self._methods = methods
        self._replaced = {}  # by the first caller: somebody else may have put a method of his own there meanwhile
        self._classes = [(module, _of_wrappers(module, wrappers)) for module, wrappers in operators]
        self._tables = [
            (vars(module), {name: vars(module)[name] for name in wrappers}, wrappers) for module, wrappers in functions
        ]
        self._wrapper_of = {}  # id of an original -> wrapper
        self._original_of = {}  # id of a wrapper -> original
        for module, wrappers in [*operators, *functions]:
            for name, wrapper in wrappers.items():
                original = getattr(module, name)
                self._wrapper_of[id(original)] = wrapper
                self._original_of[id(wrapper)] = original
        for name, wrapper in methods.items():
            original = getattr(paddle_names.Tensor, name)
            self._wrapper_of[id(original)] = wrapper
            self._original_of[id(wrapper)] = original
        self._modules_seen = None
        self._elsewhere = []
        self._main = []

    def replace(self, user):
        """Replace every reference by its wrapper for a user, unless they are for an earlier one."""
        with self._lock:
            self._users.add(user)
            if self._all_replaced:
                return
            seen = self._loaded_modules()
            if seen != self._modules_seen:
                self._elsewhere = self._find(sys.modules.items())
                self._modules_seen = seen
            # Scripts and notebooks import while they run, so their own names are looked up each time.
            self._main = self._find([("__main__", sys.modules["__main__"])])
            for module, of_wrappers in self._classes:
                module.__class__ = of_wrappers
            for namespace, _, wrappers in self._all():
                namespace.update(wrappers)
            methods = {name: getattr(paddle_names.Tensor, name) for name in self._methods}
            self._replaced = {name: self._original_of.get(id(method), method) for name, method in methods.items()}
            for name, wrapper in self._methods.items():
                setattr(paddle_names.Tensor, name, wrapper)
            self._all_replaced = True

    def restore(self, user):
        """Restore every reference, unless another user still needs the wrappers."""
        with self._lock:
            self._users.discard(user)
            if self._users:
                return
            self._all_replaced = False
            for name, original in self._replaced.items():
                setattr(paddle_names.Tensor, name, original)
            for module, _ in self._classes:
                module.__class__ = types.ModuleType
            for namespace, originals, _ in self._all():
                namespace.update(originals)
            self._restore_new_names()

    def _restore_new_names(self):
        """Restore names that were bound to a wrapper meanwhile: a module was loaded, a script imported an operator."""
        modules = [sys.modules["__main__"]]
        if self._loaded_modules() != self._modules_seen:
            modules = list(sys.modules.values())
        for module in modules:
            namespace = getattr(module, "__dict__", None) or {}
            for name, value in list(namespace.items()):
                if id(value) in self._original_of:
                    namespace[name] = self._original_of[id(value)]

    def _all(self):
        return [*self._tables, *self._elsewhere, *self._main]

    @staticmethod
    def _loaded_modules():
        return len(sys.modules), next(reversed(sys.modules.values()))

    def _find(self, modules):
        """Return [(namespace, {name: original}, {name: wrapper})] of all modules that refer to an operator."""
        found = []
        for module_name, module in list(modules):
            namespace = getattr(module, "__dict__", None)
            if namespace is None or module_name.startswith((*paddle_names.RAW_TABLES, __package__)):
                continue  # this package itself needs the originals
            originals = {name: value for name, value in list(namespace.items()) if id(value) in self._wrapper_of}
            if originals:
                wrappers = {name: self._wrapper_of[id(value)] for name, value in originals.items()}
                found.append((namespace, originals, wrappers))
        return found


def _of_wrappers(module, wrappers):
    """Return a class for a module whose attributes are the wrappers, whatever the module holds under their names."""
    attributes = {name: property(functools.partial(_itself, wrapper)) for name, wrapper in wrappers.items()}
    return type(module.__name__, (types.ModuleType,), attributes)


def _itself(wrapper, module):
    return wrapper
