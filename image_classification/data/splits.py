"""Fixed splits for data sets that come without one."""

import numpy as np

EVAL_SHARE = 0.2


def stratified_split(labels, split):
    """Return the sorted indices of ``split`` "train" or "val"; "val" holds 20 % of each class, "train" the rest.

    The total of "val" is rounded up, the shares of the classes by largest remainder; the only image of a class is for
    training. The same labels always give the same split: RandomState's streams are frozen by NumPy's compatibility
    policy, default_rng's are not.
    """
    labels = np.asarray(labels)
    counts = np.bincount(labels)
    exact = counts * EVAL_SHARE
    held_out = np.floor(exact).astype(int)
    missing = int(np.ceil(exact.sum())) - held_out.sum()
    held_out[np.argsort(held_out - exact, kind="stable")[:missing]] += 1
    held_out = np.minimum(held_out, np.maximum(counts - 1, 0))
    shuffler = np.random.RandomState(0)
    chosen = []
    for label, count in enumerate(held_out):
        order = shuffler.permutation(np.flatnonzero(labels == label))
        chosen.append(order[:count] if split == "val" else order[count:])
    return np.sort(np.concatenate(chosen))
