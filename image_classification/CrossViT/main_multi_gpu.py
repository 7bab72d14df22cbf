r"""Train or evaluate a CrossViT in several processes, one per GPU or CPU process; -h lists the flags.

    python main_multi_gpu.py -ngpus=2 -device=cpu -cfg=./configs/crossvit_tiny_digits.yaml -amp
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from image_classification.parallel.entry import prepare_processes

prepare_processes()  # ranks and threads, before Paddle is imported; with -ngpus this starts the processes

from image_classification.CrossViT.crossvit import build_model
from image_classification.launch import main

if __name__ == "__main__":
    main(build_model)
