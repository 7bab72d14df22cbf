r"""Train or evaluate a VOLO in several processes, one per GPU or CPU process; -h lists the flags.

    python main_multi_gpu.py -ngpus=2 -device=cpu -cfg=./configs/volo_tiny_digits.yaml -amp
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from image_classification.parallel.entry import prepare_processes

prepare_processes()  # ranks and threads, before Paddle is imported; with -ngpus this starts the processes

from image_classification.launch import main
from image_classification.VOLO.volo import build_model

if __name__ == "__main__":
    main(build_model)
