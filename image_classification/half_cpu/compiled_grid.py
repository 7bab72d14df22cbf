"""Images read between pixels at the points of a grid, bilinearly, on all formats; float32 arithmetic, rounded once."""


from .arguments import FLOAT32
from .compiled_library import load, numbers
from .compiled_worth import pays
from .onednn_memory import channels_last, contiguous, in_dtype, in_float32, is_channels_last, new_channels_last
from .onednn_primitives import bound, data_type, new_tensor, numel, pointers, servable
from .recorded import PyLayer
from .saved import keep, saved


class GridSample(PyLayer):
    """The values of images [B, C, H, W] at points [B, H', W', 2] from -1 to 1."""

    @staticmethod
    def forward(ctx, x, grid, corners, border):
        """Return the values [B, C, H', W'] in the memory order of x."""
        batch, rows, columns, _ = grid.shape
        ctx.needs, ctx.grid_dtype = (not x.stop_gradient, not grid.stop_gradient), grid.dtype
        ctx.ordered = channels_last if is_channels_last(x) else contiguous
        ctx.constants = data_type(x), numbers(*x.shape, rows * columns), corners, border
        x, grid = channels_last(x), in_float32(grid)
        out = new_channels_last(x.dtype, [batch, x.shape[1], rows, columns])
        load().grid_sample(*ctx.constants, *pointers(x, grid, out))
        keep(ctx, x, grid)
        return ctx.ordered(out)

    @staticmethod
    def backward(ctx, gradient):
        """Return the gradients of the images and of the points."""
        x, grid = saved(ctx)
        gradient = channels_last(gradient)
        images = new_channels_last(x.dtype, x.shape) if ctx.needs[0] else None
        points = new_tensor(FLOAT32, grid.shape) if ctx.needs[1] else None
        load().grid_sample_backward(*ctx.constants, *pointers(x, grid, gradient, images, points))
        return (
            None if images is None else ctx.ordered(images),
            None if points is None else in_dtype(points, ctx.grid_dtype),
        )


def grid_sample(original, args, kwargs):
    """Kernel of ``grid_sample(x, grid, mode, padding_mode, align_corners)``, bilinear, of images."""
    names = ("x", "grid", "mode", "padding_mode", "align_corners")
    x, grid, mode, padding, corners = bound(args, kwargs, names, ("bilinear", "zeros", True))
    if mode != "bilinear" or padding not in ("zeros", "border") or not servable(x, grid) or x.ndim != 4:
        return NotImplemented
    if grid.ndim != 4 or grid.shape[0] != x.shape[0] or grid.shape[3] != 2 or not pays(x, numel(grid) * x.shape[1]):
        return NotImplemented  # Paddle words the error
    return GridSample.apply(x, grid, bool(corners), padding == "border")


KERNELS = {"grid_sample": grid_sample}
