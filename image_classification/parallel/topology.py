"""How many processes share what."""

from image_classification.runtime import UserError


def resolve_degrees(world_size, data=None, tensor=1, pipeline=1, sharding=1):
    """Return the degrees by axis with `data` filled in.

    Raises:
        UserError: the product is not the number of processes, or two kinds do not go together.
    """
    model = tensor * pipeline * sharding
    if data is None:
        if world_size % model:
            raise UserError(f"PARALLEL: TENSOR {tensor} x PIPELINE {pipeline} x SHARDING {sharding} = {model} does not "
                            f"divide the {world_size} processes")
        data = world_size // model
    if data * model != world_size:
        raise UserError(f"PARALLEL: DATA {data} x TENSOR {tensor} x PIPELINE {pipeline} x SHARDING {sharding} = "
                        f"{data * model}, but there are {world_size} processes")
    if sharding > 1 and tensor * pipeline > 1:
        raise UserError(f"PARALLEL.SHARDING: {sharding}: not together with TENSOR {tensor} or PIPELINE {pipeline}")
    return {"data": data, "pipeline": pipeline, "sharding": sharding, "sep": 1, "tensor": tensor}
