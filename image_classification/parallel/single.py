"""One process alone: every collective is the identity."""

import paddle

from ..amp import Reduction
from ..runtime import rng_state, set_rng_state


class SingleProcess:
    """What the trainer asks of the other processes, when there are none.

    Attributes:
        rank, world_size: this process among all of the run.
        data_rank, data_size: which share of the images this process reads, of how many.
        is_main: whether this process writes files and talks.
        reduction: the collectives of an optimizer step.
    """

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

    def describe(self):
        """Return one line for the log: how the processes share the work."""
        return "1 process"

    def shard_model(self, model, sync_batch_norm=False):
        """Return this process's part of a whole model; call it before the precision converts the model."""
        return model

    def holders_of(self, name):
        """Return the group of processes that hold the parts of a parameter, None where each has the whole."""
        return None

    def num_parameters(self, model):
        """Return the number of trainable parameters of the whole model."""
        return sum(param.size for param in model.parameters() if not param.stop_gradient)

    def seed_dropout(self, seed):
        """Seed the draws of training, after the model was built from the common seed."""
        paddle.seed(seed)

    def shard_optimizer(self, optimizer, named_params):
        """Return the optimizer that updates this process's share of the parameters and spreads the result."""
        return optimizer

    def owned(self, named_params):
        """Return those (name, parameter) whose optimizer state is on this process."""
        return named_params

    def rng_state(self):
        """Return the state of every random generator of this process."""
        return rng_state()

    def set_rng_state(self, state):
        """Restore what :meth:`rng_state` returned on a process at the same place of the same topology."""
        set_rng_state(state)

    def train_window(self, model, precision, measure, micro_batches):
        """Add the gradients of a window of micro-batches; yield (loss, correct, count) of each.

        Args:
            measure: logits, labels -> (loss, correctly classified images).
            micro_batches: sized iterable of (images, labels); each loss is divided by its length.
        """
        for images, labels in micro_batches:
            with precision.forward_context():
                loss, correct = measure(model(paddle.to_tensor(images)), paddle.to_tensor(labels))
            precision.backward(loss / len(micro_batches))
            yield loss.detach(), correct, len(labels)

    def predict(self, model, images):
        """Return the logits of the whole model."""
        return model(images)

    def average_buffers(self, model):
        """Replace running statistics by their mean over the processes that saw other images."""

    def merge(self, state):
        """Return the whole state, {name: value}, for the parts that the processes hold; valid where `is_main`."""
        return state

    def cut(self, state, owned=None):
        """Return this process's part of a whole state; of an optimizer's, the part of the ``owned`` parameters."""
        return state
