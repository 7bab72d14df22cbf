"""One of two processes that train the same network twice: by Paddle's fleet and its scaler, and by ours.

    python fleet_scaler.py FOLDER        (tests/parallel/harness.py sets the ranks)

Writes FOLDER/rank_<r>.json: of each {"losses", "scales", "skipped"}. In step POISONED the last one has a loss of inf.
"""

import json
import sys
from pathlib import Path

from image_classification.parallel import env
from tests.parallel.harness import linger

DEVICE = "npu"
place = env.prepare()
linger(place)
env.export_device(place, DEVICE)

import numpy as np
import paddle
from paddle.distributed import fleet
from paddle.nn import functional as F

from image_classification import amp
from image_classification.parallel import context
from image_classification.parallel.topology import resolve_degrees
from tests.helpers.amp_models import batch, network

STEPS, POISONED = 12, 10
SCALER = {"init_scale": 2.0**24, "growth_interval": 3}
GRAD_SCALER = {"init_loss_scaling": 2.0**24, "incr_every_n_steps": 3, "decr_every_n_nan_or_inf": 1, "decr_ratio": 0.5}


def train(model, forward_context, scale, backward_and_step):
    """Return what a training was like; `backward_and_step` returns whether the step was applied."""
    images, labels = (paddle.to_tensor(tensor.numpy()[place.rank :: place.world_size]) for tensor in batch())
    result = {"losses": [], "scales": [], "skipped": []}
    for step in range(STEPS):
        with forward_context():
            logits = model(images)
        loss = F.cross_entropy(logits.astype("float32"), labels)
        result["losses"].append(loss.item())
        result["scales"].append(scale())
        poisoned = step == POISONED and place.rank == place.world_size - 1
        if not backward_and_step(loss * float("inf") if poisoned else loss):
            result["skipped"].append(step)
    return result


def by_fleet(weights):
    model = network()
    model.set_state_dict(weights)
    rule = fleet.distributed_optimizer(paddle.optimizer.AdamW(0.01, parameters=model.parameters()))
    scaler = fleet.distributed_scaler(paddle.amp.GradScaler(**GRAD_SCALER))
    replica = fleet.distributed_model(model)

    def backward_and_step(loss):
        before = model.state_dict()["7.bias"].numpy()
        scaler.scale(loss).backward()
        scaler.step(rule)
        scaler.update()
        rule.clear_grad()
        return not np.array_equal(before, model.state_dict()["7.bias"].numpy())

    auto_cast = lambda: paddle.amp.auto_cast(level="O1", dtype="float16")  # noqa: E731
    return train(replica, auto_cast, lambda: float(scaler._scale.item()), backward_and_step)


def by_us(weights, parallel):
    precision = amp.build_precision(
        "auto", dtype="float16", device=DEVICE, options=SCALER, reduction=parallel.reduction
    )
    model = precision.convert_model(network())
    precision.load_model_state_dict(model, weights)
    rule = paddle.optimizer.AdamW(0.01, parameters=[param for _, param in precision.master_params(model)])

    def backward_and_step(loss):
        precision.backward(loss)
        return precision.step(rule).applied

    return train(model, precision.forward_context, lambda: precision.loss_scale, backward_and_step)


def main(folder):
    paddle.set_device("cpu")
    weights = {name: value.numpy() for name, value in network().state_dict().items()}  # each device draws its own
    paddle.set_device(f"{DEVICE}:{place.local_rank}")
    degrees = resolve_degrees(place.world_size)
    context.init_processes(degrees)
    results = {"ours": by_us(weights, context.Context(degrees)), "fleet": by_fleet(weights)}
    Path(folder, f"rank_{place.rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
