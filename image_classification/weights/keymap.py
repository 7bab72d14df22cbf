"""Other projects' parameter names to ours, by the dialects that a model states."""

import contextlib
import re

from ..runtime import UserError

OWN_NAMES = "our own names"
COUNTERS = (r".*\.num_batches_tracked", "n_averaged", "StructuredToParameterName@@")  # PyTorch's two and Paddle's
BATCH_NORM = ((re.compile(r"(.*)\.running_mean"), r"\1._mean"), (re.compile(r"(.*)\.running_var"), r"\1._variance"))


def translate(tensors, model):
    """Return (tensors under our names, name of the dialect they came in); values are not yet transposed.

    Raises:
        UserError: two tensors have one name among ours.
    """
    dialect = next((d for d in model.dialects if any(re.fullmatch(d.marker, name) for name in tensors)), None)
    renamed = {}
    for name, value in tensors.items():
        if any(re.fullmatch(pattern, name) for pattern in (*COUNTERS, *model.not_weights)):
            continue
        name = _rename(name, dialect.rules if dialect else ())
        for pattern, replacement in BATCH_NORM:
            name = pattern.sub(replacement, name)
        if name in renamed:
            raise UserError(f"-pretrained: two tensors of the file are {name}")
        renamed[name] = value
    if dialect is None:
        return renamed, OWN_NAMES
    with contextlib.suppress(LookupError, ValueError):  # what is missing or misshapen is listed with the rest
        renamed = dialect.finish(dict(renamed), list(model.state_dict()))
    return renamed, dialect.name


def _rename(name, rules):
    for pattern, replacement in rules:
        match = re.fullmatch(pattern, name)
        if match:
            return match.expand(replacement)
    return name
