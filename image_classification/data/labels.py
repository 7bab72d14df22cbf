"""Labels as files have them: text or JSON, by whoever wrote it."""

import json
import re

from ..runtime import UserError

NUMBER = re.compile(r"-?[0-9]{1,6}")  # of a class: where the data count them, each costs memory


def text_label(text, where):
    """Return the integer that a text is.

    Raises:
        UserError: naming ``where``, for anything but a decimal number of at most six digits.
    """
    if not NUMBER.fullmatch(text.strip()):
        raise UserError(f"{where}: {text.strip()[:80]!r} is no label")
    return int(text)


def json_label(text, where):
    """Return the integer under "label" of a JSON object.

    Raises:
        UserError: naming ``where``, for anything else.
    """
    try:
        label = json.loads(text)["label"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{where}: holds no label ({type(error).__name__} {str(error)[:80]})") from None
    if type(label) is not int or abs(label) >= 10**6:
        raise UserError(f"{where}: holds no label: {str(label)[:80]!r} is no integer")
    return label


def count_classes(labels, where):
    """Return how many classes labels count.

    Raises:
        UserError: naming ``where``, the labels do not start at 0.
    """
    if min(labels) != 0:
        count = max(labels) + 1
        hint = f"; -num_classes={count} keeps classes without images" if min(labels) > 0 else ""
        raise UserError(f"{where}: the smallest label is {min(labels)}: labels start at 0{hint}")
    return int(max(labels)) + 1
