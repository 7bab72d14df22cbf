r"""Train or evaluate a Swin Transformer in one process, on a GPU or a CPU; -h lists the flags.

    python main_single_gpu.py -cfg=./configs/swin_tiny_patch4_window7_224.yaml -dataset=imagenet2012 \
        -batch_size=64 -data_path=/dataset/imagenet -amp
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from image_classification.runtime import prepare_process

prepare_process()  # threads, before Paddle is imported

from image_classification.launch import run_single
from image_classification.Swin.swin import build_model

if __name__ == "__main__":
    run_single(build_model)
