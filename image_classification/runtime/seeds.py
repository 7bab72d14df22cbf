"""Random generators: seeding, saving and restoring those of Python, NumPy and Paddle."""

import ast
import random
from typing import Any


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and Paddle alike."""
    import numpy
    import paddle

    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    paddle.seed(seed)


def rng_state() -> dict[str, Any]:
    """Return the state of the random generators of Python, NumPy and Paddle as plain numbers and strings."""
    import numpy
    import paddle

    name, numbers, position, has_gauss, cached = numpy.random.get_state()
    keys = numpy.asarray(numbers, "int64")  # paddle.load takes no uint32
    return {
        "python": repr(random.getstate()),
        "numpy": {"name": name, "keys": keys, "position": position, "has_gauss": has_gauss, "cached": cached},
        "device": _kind(),
        "paddle": [_generator_numbers(generator) for generator in paddle.get_rng_state()],
    }


def set_rng_state(state: dict[str, Any]) -> None:
    """Restore what :func:`rng_state` returned; Paddle's part only on as many devices of the same kind.

    A state that was saved on a CPU says nothing about the generators of another device: those keep their seed then.
    """
    import numpy
    import paddle

    random.setstate(ast.literal_eval(state["python"]))
    saved = state["numpy"]
    keys = numpy.asarray(saved["keys"], "uint32")
    numpy.random.set_state((saved["name"], keys, saved["position"], saved["has_gauss"], saved["cached"]))
    if state.get("device", _kind()) == _kind() and len(paddle.get_rng_state()) == len(state["paddle"]):
        paddle.set_rng_state([_generator(numbers) for numbers in state["paddle"]])


def _kind() -> str:
    import paddle

    return paddle.get_device().partition(":")[0]


def _generator_numbers(generator: Any) -> dict[str, Any]:
    # Paddle's GeneratorState shows its content through pickling only: (device, seed, offset, engine as ASCII codes).
    device, seed, offset, engine = generator.__reduce_ex__(4)[2]
    return {"device": device, "seed": seed, "offset": offset, "engine": bytes(engine).decode("ascii")}


def _generator(numbers: dict[str, Any]) -> Any:
    import paddle

    kind = type(paddle.get_rng_state()[0])
    generator = kind.__new__(kind)
    engine = list(numbers["engine"].encode("ascii"))
    generator.__setstate__((numbers["device"], numbers["seed"], numbers["offset"], engine))
    return generator
