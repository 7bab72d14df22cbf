"""What a checkpoint may hold: types, ranges and shapes of a training state, checked before anything is changed.

The generators' states are the strictest part: NumPy and Paddle take any position in them and read there.
"""

import math
import re

import numpy as np

from .runtime import UserError

MOST = 10**12  # of anything that is counted
NUMPY_NUMBERS = 624  # of MT19937
PADDLE_NUMBERS = 312  # of std::mt19937_64
_PYTHON_STATE = re.compile(r"\(3, \((?:\d{1,10}, ){624}\d{1,3}\), (?:None|-?\d\.\d{1,20}(?:e-?\d{1,3})?)\)")
_PADDLE_STATE = re.compile(r"(?:\d{1,20} ){312}\d{1,3}")


class _Wrong(Exception):
    """A value is not what its key asks for; the text names both."""


def validate(state, path):
    """Return when a dictionary is a state that a run of this project can have had.

    Raises:
        UserError: the first key whose value is of a wrong type, out of range, or does not fit another.
    """
    try:
        _STATE(state, "")
        _check_relations(state)
    except _Wrong as error:
        raise UserError(f"-resume: {path}: {error}") from None


def _check_relations(state):
    shapes = {name: value.shape for name, value in state["model"].items()}
    average = {name: value.shape for name, value in state["ema"].items()}
    if average and average != shapes:
        raise _Wrong("ema: its names and shapes are not those of model")
    for name, value in state["optimizer"].items():
        shape = shapes.get(name.split("/")[0])
        if "/" not in name or shape is None or (value.shape != shape and value.size != 1):
            raise _Wrong(f"optimizer.{name}: is {list(value.shape)}, of no parameter in model or not of its shape")
    units = state.get("units")
    if units:
        windows, rest = divmod(units["images_per_step"], units["images_per_batch"])
        batch, most = state["progress"]["batch"], units["steps_per_epoch"] * windows
        if rest or batch > most:
            raise _Wrong(f"progress.batch: {batch} is not one of the {most} batches of an epoch that units says")


# ---- what a value may be: a function of (value, name) that raises


def _fail(name, expected, value):
    found = repr(value) if isinstance(value, int | float | None) else f"a {type(value).__name__}"
    if isinstance(value, str):
        found = repr(value[:40])
    if isinstance(value, np.ndarray):
        found = f"{value.dtype} {list(value.shape)}"
    raise _Wrong(f"{name}: expected {expected}, found {found}")


def _whole(low, high):
    def check(value, name):
        if type(value) is not int or not low <= value <= high:
            _fail(name, f"an integer of {low} to {high}", value)

    return check


def _number(low, high):
    def check(value, name):
        if type(value) not in (int, float) or not low <= value <= high:  # NaN is in no range
            _fail(name, f"a number of {low:g} to {high:g}", value)

    return check


def _or_none(check):
    def check_if_any(value, name):
        if value is not None:
            check(value, name)

    return check_if_any


def _flag(value, name):
    if type(value) is not bool:
        _fail(name, "true or false", value)


def _text(longest):
    def check(value, name):
        if type(value) is not str or len(value) > longest or not value.isprintable():
            _fail(name, f"one line of {longest} characters at most", value)

    return check


def _lines(value, name):
    if type(value) is not str or len(value) > 1 << 20:
        _fail(name, "a text", value)


def _matching(pattern, expected):
    def check(value, name):
        if type(value) is not str or not pattern.fullmatch(value):
            _fail(name, expected, value)

    return check


def _list(check_item, shortest=0, longest=MOST):
    def check(value, name):
        if type(value) is not list or not shortest <= len(value) <= longest:
            _fail(name, f"a list of {shortest} entries and more" if longest == MOST else f"{shortest} entries", value)
        for index, item in enumerate(value):
            check_item(item, f"{name}[{index}]")

    return check


def _record(required, optional=None, others=None):
    """Check a dictionary of known keys; `others` is (pattern of further keys, what they hold)."""
    known = required | (optional or {})

    def check(value, name):
        if type(value) is not dict:
            _fail(name or "the file", "a dictionary", value)
        missing = [key for key in required if key not in value]
        if missing:
            raise _Wrong(f"{name or 'it'} lacks {missing[0]}")
        for key, item in value.items():
            inner = f"{name}.{key}" if name else str(key)
            if key in known:
                known[key](item, inner)
            elif others and isinstance(key, str) and re.fullmatch(others[0], key):
                others[1](item, inner)
            else:
                raise _Wrong(f"{inner}: is no key of a checkpoint")

    return check


def _anything(value, name):
    pass


def _array(*dtypes):
    def check(value, name):
        if not isinstance(value, np.ndarray) or value.dtype.name not in dtypes:
            _fail(name, f"an array of {' or '.join(dtypes)}", value)

    return check


def _arrays(*dtypes):
    return _record({}, others=(r"(?s).+", _array(*dtypes)))


def _some_arrays(value, name):
    _arrays("float32", "int64")(value, name)
    if not value:
        _fail(name, "the model's arrays", value)


def _python_generator(value, name):
    _matching(_PYTHON_STATE, "the state of Python's generator")(value, name)
    *numbers, position = map(int, value[5 : value.index("), ")].split(", "))
    if max(numbers) >= 1 << 32 or position > NUMPY_NUMBERS:
        raise _Wrong(f"{name}: the state of Python's generator is out of range")


def _numpy_numbers(value, name):
    _array("int64", "uint32")(value, name)
    if value.shape != (NUMPY_NUMBERS,) or value.min() < 0 or value.max() >= 1 << 32:
        _fail(name, f"{NUMPY_NUMBERS} numbers of 32 bits", value)


def _paddle_engine(value, name):
    if isinstance(value, str) and not value:  # of a GPU
        return
    _matching(_PADDLE_STATE, "the state of Paddle's generator")(value, name)
    *numbers, position = map(int, value.split())
    if max(numbers) >= 1 << 64 or position > PADDLE_NUMBERS:
        raise _Wrong(f"{name}: the state of Paddle's generator is out of range")


_COUNT, _SIZE = _whole(0, MOST), _whole(1, MOST)
_SCALER = _record(
    {"rule": _text(40), "scale": _number(2.0**-149, 2.0**127), "good_steps": _COUNT, "bad_steps": _COUNT},
    {"dynamic": _flag},
)
_PROGRESS = _record({
    "epoch": _COUNT,
    "batch": _COUNT,
    "step": _COUNT,
    "skipped_steps": _COUNT,
    "skipped_in_a_row": _COUNT,
    "best_top1": _or_none(_number(0, 1)),  # before the first evaluation
    "seconds": _number(0, MOST),
    "sums": _list(_number(-math.inf, math.inf), 3, 3),
})  # fmt: skip
_GENERATORS = {
    "python": _python_generator,
    "numpy": _record({
        "name": _matching(re.compile("MT19937"), "MT19937"),
        "keys": _numpy_numbers,
        "position": _whole(0, NUMPY_NUMBERS),
        "has_gauss": _whole(0, 1),
        "cached": _number(-100, 100),  # a draw of the normal distribution
    }),
    "paddle": _list(_record({
        "device": _whole(-1, 1000),
        "seed": _whole(0, (1 << 64) - 1),
        "offset": _whole(0, (1 << 63) - 1),
        "engine": _paddle_engine,
    })),
}  # fmt: skip
_DEVICE = {"device": _text(40)}
_STATE = _record(
    {
        "format": _anything,
        "model": _some_arrays,
        "optimizer": _arrays("float32", "float64"),
        "precision": _record({
            "mode": _text(40),
            "dtype": _text(40),
            "state": _record({}, {"mode": _text(40), "dtype": _text(40)}, others=(r"loss_scaler\d{1,3}", _SCALER)),
        }),
        "ema": _arrays("float32", "int64"),
        "progress": _PROGRESS,
        "rng": _list(_record(_GENERATORS, _DEVICE | {"tensor_parallel": _record(_GENERATORS, _DEVICE)}), 1),
        "config": _lines,
    },
    {
        "topology": _text(1000),
        "run": _record({}, {
            "name": _matching(re.compile(r"step|epoch_\d{4,12}"), "step or epoch_<number>"),
            "is_best": _flag,
            "metrics_bytes": _or_none(_COUNT),
            "report": _record({}, others=(r"\w{1,40}", _or_none(_number(0, math.inf)))),
        }),
        "units": _record(
            {"images_per_batch": _SIZE, "images_per_step": _SIZE, "steps_per_epoch": _SIZE}, {"images": _SIZE}
        ),
    },
)  # fmt: skip
