"""What parallel training sends, in bytes and calls per process and step, and a prediction of its speed.

The counts are exact; a test compares them with what the groups really sent. The times are a prediction from published
figures of hardware that nobody of this project has run on. Letters: B images of a micro-batch and process, N tokens, C
channels, L blocks, t, p, d degrees of tensor, pipeline and data parallelism.
"""

from typing import NamedTuple


class Transformer(NamedTuple):
    """The sizes of a ViT that its messages depend on; `parameters` of the whole model."""

    tokens: int
    embed_dim: int
    depth: int
    parameters: int


class Traffic(NamedTuple):
    """Calls of one process and the bytes it hands over in them."""

    calls: int
    bytes: int


def tensor_all_reduce(model, images, element_size):
    """Return the all-reduces of a micro-batch: per block two forward and two backward on [B, N, C], one for the head.

    Half activations count with their own size, although gloo is given float32 for them.
    """
    activation = images * model.tokens * model.embed_dim
    head = images * model.embed_dim
    return Traffic(4 * model.depth + 1, (4 * model.depth * activation + head) * element_size)


def stage_send(model, images, element_size):
    """Return what a stage sends to a neighbour for a micro-batch: activations forward, gradients of that size back."""
    return Traffic(1, images * model.tokens * model.embed_dim * element_size)


def ring_bytes(payload, size):
    """Return what a process sends over its link in a ring all-reduce of `payload` bytes."""
    return 2 * (size - 1) / size * payload


class Cluster(NamedTuple):
    """Published figures of a machine. Bytes per second are those of one direction and of one GPU.

    Attributes:
        node_size: GPUs of one host.
        inside, between: link of a GPU to others of its host; all network cards of a host together.
        flops: peak of dense bfloat16.
        utilization: share of the peak that training reaches, an assumption.
        latency: seconds of one collective, an assumption.
    """

    name: str
    node_size: int
    inside: float
    between: float
    flops: float
    utilization: float = 0.4
    latency: float = 30e-6


# NVIDIA, DGX A100 data sheet: NVLink 600 GB/s both ways, 8 x 200 Gb/s InfiniBand, 312 TFLOPS bfloat16.
# NVIDIA, DGX H100 data sheet: NVLink 900 GB/s both ways, 8 x 400 Gb/s InfiniBand, 989 TFLOPS bfloat16.
CLUSTERS = (
    Cluster("DGX A100", 8, 300e9, 200e9, 312e12),
    Cluster("DGX H100", 8, 450e9, 400e9, 989e12),
)


def predict(model, cluster, images, micro_batches, data=1, tensor=1, pipeline=1):
    """Return {"compute", "tensor", "pipeline", "data", "step"} in seconds and the "efficiency" of a step.

    Nothing overlaps, as in this code. `images` is a micro-batch of one replica; every replica runs `micro_batches` of
    them in a step. The efficiency compares with the same work divided evenly and without messages. A group of
    neighbours lies inside a host while its size (times that of the axes inside of it) is at most the host's.
    """
    flops = 6 * model.parameters * model.tokens * images * micro_batches
    ideal = flops / (tensor * pipeline) / (cluster.flops * cluster.utilization)
    bubble = ideal * (pipeline - 1) / micro_batches
    bfloat16 = 2
    calls, payload = tensor_all_reduce(model, images, bfloat16)
    link = cluster.inside if tensor <= cluster.node_size else cluster.between
    exchanges = micro_batches * (calls * cluster.latency + ring_bytes(payload, tensor) / link) / pipeline
    sends = 2 * (micro_batches + pipeline - 1) * stage_send(model, images, bfloat16).bytes
    # A host's cards are shared by the GPUs that send at once: the processes of a tensor group send the same tensor.
    card = cluster.between / cluster.node_size if tensor * pipeline > cluster.node_size else cluster.inside
    gradients = 4 * model.parameters / (tensor * pipeline)
    # Inside of a host up to node_size GPUs take part in the same ring; between hosts each ring has its share of cards.
    rings = min(cluster.node_size, tensor * pipeline)
    wire = cluster.inside if data * tensor * pipeline <= cluster.node_size else cluster.between / rings
    times = {
        "compute": ideal + bubble,
        "tensor": exchanges if tensor > 1 else 0.0,
        "pipeline": sends / card if pipeline > 1 else 0.0,
        "data": ring_bytes(gradients, data) / wire + cluster.latency if data > 1 else 0.0,
    }
    step = sum(times.values())
    return times | {"step": step, "efficiency": ideal / step}
