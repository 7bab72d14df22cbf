"""The process that reads: one line of JSON a case on standard output, before it (`begin`) and after it.

    python -m tests.fuzz.child <reader> <file>...
"""

import json
import os
import sys
import traceback

from image_classification.runtime import UserError

from .limits import MEGABYTES, limited
from .readers import READERS, fingerprint


def read(reader, path, megabytes=MEGABYTES):
    """Return {"outcome": "read" | "refused" | "failed", "text": fingerprint, message or traceback} of one file."""
    size = os.stat(path).st_size
    try:
        with limited(size, megabytes):
            found = READERS[reader](path)
        return {"outcome": "read", "text": fingerprint(found)}
    except UserError as error:
        text = str(error)
        fine = text.isprintable() and len(text) < 1100 and "memory" not in text
        return {"outcome": "refused" if fine else "failed", "text": text}
    except BaseException:
        return {"outcome": "failed", "text": traceback.format_exc()[-3000:]}


def say(**line):
    print(json.dumps(line), flush=True)


def main(reader, *paths):
    for path in paths:
        say(begin=path)
        say(path=path, **read(reader, path))


if __name__ == "__main__":
    main(*sys.argv[1:])
