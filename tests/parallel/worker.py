"""What each rank of the distributed tests does: many checks per start, because a start costs seconds.

    python worker.py FOLDER CHECK[,CHECK...]        (the harness sets the ranks)

A check is a function of `checks_*.py` named in CHECKS; what it returns is written to FOLDER/rank_<r>.json by its name.
"""

import importlib
import json
import sys
import time
import traceback
from pathlib import Path

from image_classification.parallel import env
from image_classification.runtime import prepare_process
from tests.parallel.harness import linger

place = env.prepare()
linger(place)
env.export_device(place, "cpu")
prepare_process()

from image_classification.parallel import context
from image_classification.parallel.topology import resolve_degrees


def main(folder, names):
    context.init_processes(resolve_degrees(place.world_size))
    results = {}
    for name in names.split(","):
        module, function, *arguments = name.split(":")
        check = getattr(importlib.import_module(f"tests.parallel.{module}"), function)
        start = time.time()
        try:
            results[name] = check(*arguments)
        except Exception:
            print(f"check {name} failed on rank {place.rank}", flush=True)
            traceback.print_exc()
            raise
        print(f"{name}: {time.time() - start:.1f} s", flush=True)
    Path(folder, f"rank_{place.rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
