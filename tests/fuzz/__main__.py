"""Fuzz every reader of bytes from outside.

    python -m tests.fuzz --seconds 3600              from where the clock says, so that no two runs are the same
    python -m tests.fuzz --first 12345 --cases 1     one case again; its files stay in the folder that is printed
"""

import argparse
import sys
import tempfile
import time

from .run import fuzz


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, help="stop after this time")
    parser.add_argument("--cases", type=int, help="stop after this many cases")
    parser.add_argument("--first", type=int, default=int(time.time()) * 1000, help="number of the first case")
    options = parser.parse_args()
    if options.seconds is None and options.cases is None:
        parser.error("--seconds or --cases is needed")
    folder = tempfile.mkdtemp(prefix="fuzz-")
    print(f"cases from {options.first} on, in {folder}", flush=True)
    report = fuzz(folder, options.first, options.cases, options.seconds)
    for failure in report.failures:
        print(f"\ncase {failure['case']}, {failure['format']}: {failure['text']}")
    print(report.table())
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
