r"""Train or evaluate a ConvMixer in one process, on a GPU or a CPU; -h lists the flags.

    python main_single_gpu.py -cfg=./configs/convmixer_tiny_digits.yaml -amp
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from image_classification.parallel.entry import prepare_processes

prepare_processes(alone=True)  # threads, before Paddle is imported

from image_classification.ConvMixer.convmixer import build_model
from image_classification.launch import main

if __name__ == "__main__":
    main(build_model)
