"""What a pickle made, before anybody walks over it."""

import pickle

import numpy as np

from .constructors import DType, LeftOut, TorchTensor, Unknown

DEEPEST = 64
_PLAIN = frozenset({str, bytes, int, float, bool, type(None), np.ndarray, TorchTensor, DType})
_CONTAINERS = frozenset({dict, list, tuple})


def check_tree(root, budget):
    """Return the names of what was left out; raise unless every walk over the tree ends soon.

    Nothing holds itself, little is deep, and written out without sharing it has `budget` nodes at most.
    """
    left_out = set()
    known = {}  # id -> (nodes, depth), None while it is open
    todo = [root]
    while todo:
        node = todo[-1]
        kind = type(node)
        if kind not in _CONTAINERS:
            if kind is LeftOut:
                left_out.add(node.name)
            elif kind not in _PLAIN:
                raise pickle.UnpicklingError(_stray(node))
            todo.pop()
            continue
        children = node.values() if kind is dict else node
        if id(node) not in known:
            known[id(node)] = None
            for child in children:
                if type(child) in _PLAIN:
                    continue
                if known.get(id(child), child) is None:
                    raise pickle.UnpicklingError("a list or dictionary that holds itself")
                if id(child) not in known:
                    todo.append(child)
            if len(todo) > budget:
                raise pickle.UnpicklingError("too many lists and dictionaries in each other")
        else:
            todo.pop()
            if known[id(node)] is not None:
                continue
            inner = [known[id(child)] for child in children if type(child) in _CONTAINERS]
            nodes = 1 + len(node) + sum(count for count, _ in inner)
            depth = 1 + max((deep for _, deep in inner), default=0)
            if depth > DEEPEST or nodes > budget:
                raise pickle.UnpicklingError("lists and dictionaries too deep in each other, or too often the same")
            known[id(node)] = nodes, depth
    return left_out


def _stray(value):
    name = value.name if type(value) is Unknown else f"a {type(value).__name__}"
    return f"{name}, which is no part of a tensor"
