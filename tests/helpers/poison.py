"""A hook of TRAIN.HOOKS for runs of several processes: one has an infinite gradient, and at the end all must agree."""


from image_classification.hooks import Hook
from image_classification.runtime import get_logger

STEP = 3


class PoisonHook(Hook):
    """Multiply one gradient of the last process by inf in the third step; log how far the processes are apart."""

    def __init__(self):
        self.steps = 0

    def before_step(self, trainer):
        self.steps += 1
        if self.steps == STEP and trainer.parallel.rank == trainer.parallel.world_size - 1:
            param = next(param for param in trainer.model.parameters() if not param.stop_gradient)
            param.register_hook(lambda gradient: gradient * float("inf") if self.steps == STEP else gradient)

    def after_train(self, trainer):
        weights = [value.astype("float32").numpy() for value in trainer.model.state_dict().values()]
        everyone = trainer.parallel.gather(weights)
        pairs = [pair for others in everyone for pair in zip(weights, others, strict=True)]
        gap = max(float(abs(ours - theirs).max()) for ours, theirs in pairs)
        get_logger().info(f"largest difference of weights between processes {gap:g}")
