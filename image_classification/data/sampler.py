"""Which image stands where: order of an epoch, exact shares of the ranks, and the random generator of each sample."""

import numpy as np

# Keeps the generator that shuffles an epoch apart from those of the samples: trailing zeros do not change a
# SeedSequence, so [seed, epoch] and [seed, epoch, 0, 0] would be the same.
_ORDER_STREAM = (1,)


def sample_rng(seed, epoch, index, repeat=0):
    """Return the generator of one sample; it depends on nothing but these four numbers."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, epoch, index, repeat])))


def train_order(num_images, seed, epoch, batch_size, rank=0, world_size=1, repeats=1, shares=None):
    """Return int64 [batches * batch_size, 2] of (image, repeat) for this rank, the last incomplete batch dropped.

    The batches with the same number on all ranks together are one piece of the shuffled epoch, so a global batch holds
    the same images however many processes share it. With ``repeats`` r (Hoffer et al., 2019), each image occurs r times
    in a row before the ranks take turns, and the epoch keeps its length, so 1 / r of the images are seen. With
    ``shares``, float64 [num_images] that sum to 1, images are drawn with replacement, each with its share.
    """
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, epoch], spawn_key=_ORDER_STREAM)))
    if shares is None:
        order = generator.permutation(num_images)
    else:
        order = generator.choice(num_images, num_images, p=shares)
    global_batch = batch_size * world_size
    kept = num_images // global_batch * global_batch
    images = np.repeat(order, repeats)[:kept] if repeats > 1 else order[:kept]
    repeat = np.arange(kept) % repeats
    return np.stack([images, repeat], axis=1)[rank::world_size]


def balanced_shares(labels):
    """Return float64 [N]: every class that occurs in ``labels``, int64 [N], gets the same share of the draws."""
    counts = np.bincount(labels)
    return 1.0 / (counts[labels] * np.count_nonzero(counts))


def eval_order(num_images, rank, world_size):
    """Return int64 [share, 2] of (image, 0): images rank, rank + world_size, ...; nothing padded, nothing twice."""
    images = np.arange(rank, num_images, world_size)
    return np.stack([images, np.zeros_like(images)], axis=1)
