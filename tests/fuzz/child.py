"""The process that reads: a line of JSON on standard output before and after each case.

    python -m tests.fuzz.child files <file>...                                weight files as they are
    python -m tests.fuzz.child seeds <folder>                                 one unchanged file of each format
    python -m tests.fuzz.child cases <folder> <first> <behind the last>       cases by number, in a folder of their own
"""

import json
import os
import random
import shutil
import sys
import traceback
from pathlib import Path

from image_classification.runtime import UserError
from image_classification.weights import read_weights

from .fingerprint import fingerprint
from .formats import all_formats
from .limits import MEGABYTES, limited


def attempt(read, size, megabytes=MEGABYTES):
    """Return {"outcome": "read" | "refused" | "failed", "text": fingerprint, message or traceback}."""
    try:
        with limited(size, megabytes):
            found = read()
        return {"outcome": "read", "text": fingerprint(found)}
    except UserError as error:
        text = str(error)
        return {"outcome": "refused" if text.isprintable() and len(text) < 1100 else "failed", "text": text}
    except BaseException:
        return {"outcome": "failed", "text": traceback.format_exc()[-3000:]}


def say(**line):
    print(json.dumps(line), flush=True)


def read_files(*paths):
    for path in paths:
        say(begin=path)
        say(case=path, **attempt(lambda path=path: read_weights(path).tensors, os.stat(path).st_size))


class Cases:
    """Case `number` of any run is the same: a format, a seed and a change, drawn by a generator of that number."""

    def __init__(self, folder):
        self.folder = Path(folder)
        shutil.rmtree(self.folder, ignore_errors=True)
        seeds = self.folder / "seeds"
        seeds.mkdir(parents=True)
        self.formats = all_formats(seeds)
        self.names = list(self.formats)
        self.whole = {}

    def content(self, number):
        """Return (name of the format, index of the seed, whether checksums were repaired, changed content)."""
        rng = random.Random(number)
        name = self.names[number % len(self.names)]
        kind = self.formats[name]
        seed = rng.randrange(len(kind.seeds))
        repaired = kind.repaired is not None and rng.random() < 0.7
        change = kind.repaired if repaired else kind.change
        return name, seed, repaired, change(rng, kind.seeds[seed], kind.seeds)

    def run(self, number):
        name, seed, repaired, content = self.content(number)
        result = self.read(name, content)
        kind = self.formats[name]
        shorter = kind.open_ended and kind.seeds[seed].startswith(content)
        if result["outcome"] == "read" and kind.has_checksum and not repaired and not shorter:
            if (name, seed) not in self.whole:
                self.whole[name, seed] = self.read(name, self.formats[name].seeds[seed])["text"]
            if result["text"] != self.whole[name, seed]:
                result = {"outcome": "failed", "text": "other data, and nobody noticed"}
        return {"case": number, "format": name, **result}

    def read(self, name, content):
        kind, folder = self.formats[name], self.folder / "case"
        shutil.rmtree(folder, ignore_errors=True)
        for path, data in {**kind.beside, kind.name: content}.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)
        size = sum(map(len, (content, *kind.beside.values())))
        return attempt(lambda: kind.read(folder), size, kind.megabytes)


def run_cases(folder, first, end):
    os.sync = lambda: None  # of the whole machine, after each extraction
    cases = Cases(folder)
    for number in range(int(first), int(end)):
        say(begin=number)
        say(**cases.run(number))


def read_seeds(folder):
    cases = Cases(folder)
    for name, kind in cases.formats.items():
        say(begin=name)
        say(case=name, **cases.read(name, kind.seeds[0]))


if __name__ == "__main__":
    {"files": read_files, "cases": run_cases, "seeds": read_seeds}[sys.argv[1]](*sys.argv[2:])
