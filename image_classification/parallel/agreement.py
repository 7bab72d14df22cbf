"""Whether all processes were started for the same run."""

import operator
import os
from collections.abc import Mapping

from ..config import Config
from ..config.compare import changes, recipe_of
from ..files.pickle_file import checksum_of
from ..runtime import UserError
from .protocol import Parallel

TASK = ("EVAL", "EVAL_FP32", "DRY_RUN", "TRAIN.LAST_EPOCH", "TRAIN.PROFILE_STEP")  # beside the recipe


def check_agreement(parallel: Parallel, config: Config, images: Mapping[str, int]) -> None:
    """Return when every process does what rank 0 does. A collective.

    Where the data are and how they are fetched may be another on each host.

    Args:
        config: settled, with the names of the classes that were found.
        images: {what of the data sets is to be the same: the number here}.

    Raises:
        UserError: on every process: each would train weights of its own, or wait for the others in vain.
    """
    own = recipe_of(config) | {key: operator.attrgetter(key)(config) for key in TASK} | dict(images)
    own["MODEL.RESUME"] = config.MODEL.RESUME and os.path.basename(config.MODEL.RESUME)
    first, *others = parallel.gather(own)
    for rank, other in enumerate(others, 1):
        different = changes(first, other)
        if different:
            texts = (f"{key} is {there} there and {here} on rank 0" for key, here, there in different)
            raise UserError(f"rank {rank} was started for another run: {'; '.join(texts)}")


def check_same_file(parallel: Parallel, flag: str, path: str | os.PathLike[str]) -> None:
    """Return when the file that each process reads has the bytes of rank 0's. A collective.

    Its path may be another on each host.

    Raises:
        UserError: on every process: they would go on from different weights, and nothing would tell.
    """
    if parallel.world_size == 1:
        return
    first, *others = parallel.gather((checksum_of(path), str(path)))
    for rank, (checksum, there) in enumerate(others, 1):
        if checksum != first[0]:
            raise UserError(f"{flag}: rank {rank} has another file at {there} than rank 0 at {first[1]}")
