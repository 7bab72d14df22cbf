"""PaddleViT's name of main_multi_gpu.py for an XCiT: the YAML says whether there is a teacher."""

import runpy
from pathlib import Path

runpy.run_path(str(Path(__file__).resolve().with_name("main_multi_gpu.py")), run_name=__name__)
