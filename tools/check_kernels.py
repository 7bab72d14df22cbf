r"""Print which kernels a precision mode needs and a device's Paddle does not have.

    python tools/check_kernels.py                              # this Paddle, the first device it sees
    python tools/check_kernels.py -device gpu -registry FILE   # another Paddle's registry, as -dump wrote it there
    python tools/check_kernels.py -dump FILE                   # write this Paddle's registry; needs no GPU

Expected: one line for each mode; exit code 1 when anything is missing. What a mode needs was recorded on the test
device (docs/devices.md) from every family of the zoo and every optimizer: tools/kernels.json. A registry can be read
wherever that Paddle can be imported: paddlepaddle-gpu lists its GPU kernels on machines without a GPU too.
"""

import json
import sys
from pathlib import Path

if not __package__:  # run by its path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from image_classification.files.plain import read_text
from image_classification.runtime import (
    Parser,
    UserError,
    atomic_write,
    command,
    expected_kind,
    kernel_registry,
    prepare_process,
    refuse_existing,
)

NEEDED = Path(__file__).with_name("kernels.json")
LARGEST = 1 << 24  # bytes of a registry


def missing(registry, needed, kind):
    """Return [(kernel, dtype, why)] of what a mode needs and the device lacks."""
    result = []
    for name, dtypes in sorted(needed.items()):
        have = set(registry.get(name, []))
        for dtype in dtypes:
            if not have & {(kind, dtype), ("any", dtype)}:
                result.append((name, dtype, "the CPU's runs instead" if ("cpu", dtype) in have else "none at all"))
    return result


def read_registry(path):
    """Return {kernel: [(device, dtype)]} of a file that -dump wrote.

    Raises:
        UserError: it is another file, or none.
    """
    text = read_text(path, LARGEST)
    try:
        return {name: [(kind, dtype) for kind, dtype in keys] for name, keys in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError):
        raise UserError(f"-registry: {path}: is no file that -dump wrote; name another") from None


@command
def main(arguments):
    """Print the lines and return the exit code."""
    parser = Parser(description=__doc__)
    parser.add_argument("-device", default="auto", help="kind of device: gpu, xpu, a plug-in's name (default: auto)")
    parser.add_argument("-registry", type=Path, help="file that -dump wrote with another Paddle")
    parser.add_argument("-dump", type="new_file", help="write this Paddle's registry and stop")
    options = parser.parse_args(arguments)
    if options.dump:
        refuse_existing(options.dump, "-dump")
    registry = read_registry(options.registry) if options.registry else None
    prepare_process()
    if options.dump:
        with atomic_write(options.dump) as file:
            file.write(json.dumps(kernel_registry()).encode())
        return 0
    kind = expected_kind(options.device)
    registry = kernel_registry() if registry is None else registry
    if not any(key[0] == kind for keys in registry.values() for key in keys):
        raise UserError(f"-device: {kind}: this registry has no kernel for it")
    failed = False
    for mode, needed in json.loads(NEEDED.read_text()).items():
        lacking = missing(registry, needed, kind)
        failed |= bool(lacking)
        count = sum(len(dtypes) for dtypes in needed.values())
        print(f"{mode} on {kind}: {count} kernels needed, {len(lacking)} missing")
        for name, dtype, instead in lacking:
            print(f"    {name} {dtype}: {instead}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
