"""What a PyLayer keeps for its backward pass, and whether it is still that by then."""

from . import paddle_names


def own_result(out):
    """Return what a PyLayer keeps of its own result: the same memory, but not the tensor, which holds the PyLayer. A
    result without a backward pass would never be freed."""
    return out.detach()


def keep(ctx, *tensors):
    """Save tensors, or None, for the backward pass with the strides that they have now.

    `Tensor.contiguous()` rearranges the tensor that it is called on and whatever shares its description, but no view.
    """
    save(ctx, *map(_unchangeable, tensors))


def save(ctx, *tensors):
    """Save tensors, or None, for the backward pass, in any memory order that they may have by then."""
    ctx.save_for_backward(*tensors)
    ctx.versions = [None if tensor is None else paddle_names.inplace_version(tensor) for tensor in tensors]


def saved(ctx):
    """Return what was saved for the backward pass, or what hooks (`paddle.autograd.saved_tensors_hooks`), such as those
    of `recompute(use_reentrant=False)`, give in its place: that was never written.

    Raises:
        RuntimeError: it was written in place since.
    """
    tensors = ctx.saved_tensor()
    for tensor, version in zip(tensors, ctx.versions, strict=True):
        if tensor is not None and paddle_names.inplace_version(tensor) > version:
            raise RuntimeError(f"a tensor {list(tensor.shape)} that the backward pass needs was written in place since")
    return tensors


def _unchangeable(tensor):
    if tensor is None or tensor.is_contiguous():
        return tensor
    return paddle_names.transpose(tensor, list(range(len(tensor.shape))))  # a view with the same axes
