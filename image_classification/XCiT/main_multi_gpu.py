"""Train or evaluate a model of this folder in several processes, one per GPU or CPU process; -h lists the flags."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from image_classification.launch import run_family

if __name__ == "__main__":
    run_family(__file__)
