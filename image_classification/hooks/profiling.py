"""A trace of a few steps."""

from paddle import profiler

from ..runtime import device_of, get_logger
from .hook import Hook


class ProfilerHook(Hook):
    """Records ten steps with Paddle's profiler into ``profile/``, a trace for chrome://tracing or Perfetto.

    The run ends with the tenth, with a checkpoint, as in Apex's example.

    Args:
        run: the run folder.
        first_step: how many steps of this process come before, skipped ones included.
    """

    priority = 5
    num_steps = 10

    def __init__(self, run, first_step):
        self.path = run.path / "profile"
        self.first_step = first_step
        self.steps = 0  # begun by this process
        self.profiler = None

    def before_step(self, trainer):
        if self.steps == self.first_step:
            names = dict.fromkeys(["CPU", device_of(trainer.precision.device).profiler_target])
            targets = [getattr(profiler.ProfilerTarget, name) for name in names]
            write = profiler.export_chrome_tracing(str(self.path))
            self.profiler = profiler.Profiler(targets=targets, on_trace_ready=write)
            self.profiler.start()
        self.steps += 1
        if self.steps == self.first_step + self.num_steps:
            trainer.request_stop("the end of the profile")

    def after_step(self, trainer):
        if self.profiler is None:
            return
        self.profiler.step()
        if self.steps == self.first_step + self.num_steps:
            self._stop()

    def after_train(self, trainer):
        if self.profiler is not None:
            self._stop()
        elif self.steps <= self.first_step:
            steps = f"TRAIN.PROFILE_STEP is {self.first_step}, this process made {self.steps} steps"
            get_logger().warning(f"nothing was profiled: {steps}")

    def _stop(self):
        self.profiler.stop()
        self.profiler = None
        get_logger().info(f"profile of steps {self.first_step} to {self.steps - 1}: {self.path}")
