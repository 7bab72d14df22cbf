"""PaddleViT's name of main_multi_gpu.py for a BEiT."""

import runpy
from pathlib import Path

runpy.run_path(str(Path(__file__).resolve().with_name("main_multi_gpu.py")), run_name=__name__)
