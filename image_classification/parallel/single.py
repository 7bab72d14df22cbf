"""One process alone: every collective is the identity."""

from ..amp import Reduction


class SingleProcess:
    """What the trainer asks of the other processes, when there are none."""

    rank = 0
    world_size = 1
    data_rank = 0
    data_size = 1
    is_main = True

    def __init__(self):
        self.reduction = Reduction()

    def any(self, flag):
        """Return whether any process has the flag set."""
        return bool(flag)

    def sum(self, values):
        """Return the element-wise sums over the data-parallel processes."""
        return list(values)

    def gather(self, value):
        """Return the values of all processes in the order of their ranks."""
        return [value]

    def barrier(self):
        """Return when every process is here."""
