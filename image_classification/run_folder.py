"""What one run leaves behind: a folder with its configuration, log, metrics, VisualDL records, report, checkpoints."""

import json
import os
import time
from pathlib import Path

from .config import to_yaml
from .runtime import UserError, atomic_write


class RunFolder:
    """A folder that exists and can be written to; every process of a run uses the same one."""

    def __init__(self, path):
        self.path = Path(path)

    @classmethod
    def create(cls, config):
        """Make ``-output``, or a new ``train-YYYYMMDD-HHMMSS`` (``eval-...``) below SAVE, and write config.yaml.

        Raises:
            UserError: the folder cannot be made or written to.
        """
        path = Path(config.OUTPUT) if config.OUTPUT else cls._unused(config)
        try:
            path.mkdir(parents=True, exist_ok=True)
            if not os.access(path, os.W_OK):
                raise PermissionError(13, "Permission denied")
        except OSError as error:
            raise UserError(f"-output: {path}: cannot be written to: {error.strerror or error}") from None
        folder = cls(path)
        folder.write_text("config.yaml", to_yaml(config))
        return folder

    @staticmethod
    def _unused(config):
        name = f"{'eval' if config.EVAL else 'train'}-{time.strftime('%Y%m%d-%H%M%S')}"
        candidates = [name, *(f"{name}-{number}" for number in range(2, 1000))]
        return next(path for path in (Path(config.SAVE) / each for each in candidates) if not path.exists())

    def write_text(self, name, text):
        with atomic_write(self.path / name) as file:
            file.write(text.encode("utf-8"))

    def write_report(self, report):
        """Write ``report.json``, the contract for scripts."""
        self.write_text("report.json", json.dumps(report, indent=1) + "\n")

    def append_metrics(self, record):
        """Add one line to ``metrics.jsonl``."""
        with open(self.path / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
