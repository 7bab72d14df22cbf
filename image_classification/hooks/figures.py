"""The pictures that a training leaves for people."""

from ..class_files import write_class_files
from ..curves import draw_curves
from ..runtime import get_logger
from .hook import Hook


class FiguresHook(Hook):
    """At the end `curves.png`, and of the last evaluation the files about classes; rank 0 only.

    Args:
        run: the run folder.
        class_names: one name a class.
    """

    priority = 15  # VisualDL gets the confusion matrix from the file

    def __init__(self, run, class_names):
        self.run = run
        self.class_names = class_names

    def after_train(self, trainer):
        draw_curves(self.run.read_metrics(), self.run.path / "curves.png")
        if trainer.class_report is not None:
            for line in write_class_files(self.run, trainer.class_report, self.class_names):
                get_logger().info(line)
