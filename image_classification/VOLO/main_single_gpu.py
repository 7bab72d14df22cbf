r"""Train or evaluate a VOLO in one process, on a GPU or a CPU; -h lists the flags.

    python main_single_gpu.py -cfg=./configs/volo_tiny_digits.yaml -amp
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from image_classification.parallel.entry import prepare_processes

prepare_processes(alone=True)  # threads, before Paddle is imported

from image_classification.launch import main
from image_classification.VOLO.volo import build_model

if __name__ == "__main__":
    main(build_model)
