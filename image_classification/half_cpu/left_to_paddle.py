"""Calls on float32 tensors that are left to Paddle's own operators, because a kernel would take as long or longer.

They are asked before anything else looks at a call, so that it costs little more than without a dispatch. Each function
gets Paddle's operator and the call, and returns its result, or NotImplemented where a kernel may be worth its call.
"""

from .arguments import FLOAT32, HALF_NAMES, KINDS, TENSOR
from .branches import is_inner
from .compiled_worth import asks_gradient
from .linear_map import LinearMap
from .onednn_memory import as_images, as_rows, channels_last, is_channels_last, passed_on
from .onednn_primitives import numel
from .scope import active

# On float32 tensors of up to so many elements Paddle's own take 5 to 13 us in one thread, forward, and 10 to 40
# backward: less than it takes to call a kernel.
SMALL = 1 << 16


def _wide(tensor):
    return KINDS[type(tensor)] == TENSOR and tensor.dtype is FLOAT32


def _never(x):
    return False


def _is_no_image(x):
    return x.ndim != 4


def _copies_no_gradient(x):
    """The gradient of images would be copied, and written over; what such a function reads, others seldom do."""
    return x.is_contiguous() or not asks_gradient(x)


def _function_of_one(is_fast):
    """Return the rule of an elementwise function; `is_fast(x)`: whether Paddle's is, for any number of elements."""

    def rule(original, args, kwargs):
        x = args[0]
        if not _wide(x) or not (numel(x) <= SMALL or is_fast(x)):
            return NotImplemented
        if x.is_contiguous():
            return original(*args, **kwargs)
        if not is_channels_last(x):
            return NotImplemented
        # Paddle would copy images that lie as rows element by element.
        return _as_images(original(_as_rows(x), *args[1:], **kwargs))

    return rule


def _as_rows(images):
    """Return the view of images; where a pass is recorded nothing may read what others read too unless it is noted."""
    is_noted = active.recorder is not None and not images.stop_gradient
    return LinearMap.apply(images, as_rows, as_images) if is_noted else as_rows(images)


def _as_images(rows):
    return as_images(rows) if rows.stop_gradient else LinearMap.apply(rows, as_images, _gradient_as_rows)


def _gradient_as_rows(gradient):
    """Return the gradient of images, a copy: of a view Paddle does not see that a hook has it, and writes into it."""
    ordered = channels_last(gradient)
    return as_rows(passed_on(ordered) if ordered is gradient else ordered)


def _function_of_two(is_fast):
    """Return the rule of a sum, difference or product: Paddle has MKL's, in as many threads; `is_fast(x)`: whether its
    gradient, in one thread, is as well, for any number of elements."""

    def rule(original, args, kwargs):
        if len(args) < 2:
            return NotImplemented
        left, right = args[:2]
        if not _wide(left) or not _wide(right) or not left.is_same_shape(right):
            return NotImplemented
        if asks_gradient(left, right) and numel(left) > SMALL and not is_fast(left):
            return NotImplemented
        if left.is_contiguous() and right.is_contiguous():
            return original(*args, **kwargs)
        if not is_channels_last(left) or not is_channels_last(right):
            return NotImplemented
        return _as_images(original(as_rows(left), as_rows(right), *args[2:], **kwargs))

    return rule


def _copy(with_gradients):
    """Return the rule of an operator that copies parts of its first argument."""

    def rule(original, args, kwargs):
        x = args[0]
        if not _wide(x) or not x.is_contiguous() or not with_gradients and asks_gradient(x):
            return NotImplemented
        return original(*args, **kwargs)

    return rule


def _embedding(original, args, kwargs):
    """Of half weights Paddle copies the bits of rows, too; their gradients are sums."""
    if len(args) < 2 or KINDS[type(args[1])] != TENSOR:
        return NotImplemented
    weight = args[1]
    is_copied = weight.dtype is FLOAT32 or weight.dtype in HALF_NAMES and not asks_gradient(weight)
    if not is_copied or not weight.is_contiguous() or active.recorder is not None and weight.dtype is not FLOAT32:
        return NotImplemented
    return original(*args, **kwargs)


# Paddle's elementwise functions use one thread. Where that is all there is, memory is what these wait for; of large
# images that several operators may read only where nothing is recorded, or kernels do not sum their gradients.
_FAST = {
    **dict.fromkeys(("relu6", "hardtanh", "hardsigmoid", "softsign"), _copies_no_gradient),
    **dict.fromkeys(("clip", "square", "sqrt", "rsqrt", "scale"), lambda x: not (asks_gradient(x) and is_inner(x))),
    # gradients three to eight times as slow as the kernels'
    **dict.fromkeys(("relu", "leaky_relu", "hardswish", "abs"), lambda x: x.is_contiguous() and not asks_gradient(x)),
}


# Whose kernels give the bits of Paddle's operators. Where a pass is recorded a call of a kernel costs next to nothing,
# and one of an operator more than without.
EXACT = ("relu", "hardsigmoid", "add", "subtract", "multiply", "gather", "index_select")


def _unless_recorded(rule):
    def asked(original, args, kwargs):
        return NotImplemented if active.recorder is not None else rule(original, args, kwargs)

    return asked


def rules(threads):
    """Return {operator: rule} for so many threads."""
    found = _rules(threads)
    return found | {name: _unless_recorded(found[name]) for name in EXACT}


def _rules(threads):
    return {
        **{name: _function_of_one(is_fast if threads == 1 else _never) for name, is_fast in _FAST.items()},
        # Paddle writes one of the two gradients over the one that comes in, which with two threads is still as fast.
        "add": _function_of_two(_is_no_image if threads <= 2 else _never),
        **dict.fromkeys(("subtract", "multiply"), _function_of_two(_never)),
        "gather": _copy(True),
        "index_select": _copy(True),
        "embedding": _embedding,
        **dict.fromkeys(("expand", "tile"), _copy(False)),
    }
