"""What a run does beside its steps, shared and in one process: teacher, frozen weights, evaluation, counts."""

import paddle

from image_classification import amp, trainer
from image_classification.parallel.single import SingleProcess
from image_classification.ViT.vit import build_model

from .checks_parity import SEED, TINY_VIT, context_of, criterion, share

CLASSES = 7  # not to be shared by two processes, so that the head stays whole
WINDOW = 2


def beside(topology, mode="fp32", dtype=None):
    """Return the largest difference of logits to one process's and the facts that must be equal, of both."""
    logits, facts = _run(context_of(topology), mode, dtype)
    expected_logits, expected_facts = _run(SingleProcess(), mode, dtype)
    difference = max(float(abs(a - b).max()) for a, b in zip(logits, expected_logits, strict=True))
    return [difference, facts, expected_facts]


def _run(parallel, mode, dtype):
    paddle.seed(SEED + parallel.rank)  # the weights are rank 0's
    model = build_model(**TINY_VIT | {"num_classes": CLASSES, "qkv_bias": False, "dropout": 0.5})
    with paddle.no_grad():
        model.blocks[-1].mlp.fc2.weight[-1] = 0.0  # what leads there has gradients of exactly 0: 32 weights and a bias
    for name, param in model.named_parameters():
        param.stop_gradient = name.startswith("blocks.0.")
    parallel.seed_dropout(SEED)
    model = parallel.shard_model(model)
    options = {"log_num_zeros_in_grad": True}
    precision = amp.build_precision(mode, dtype, options=options, reduction=parallel.reduction)
    model = precision.convert_model(model)
    named = precision.master_params(model)
    optimizer = paddle.optimizer.SGD(0.1, [param for _, param in named])
    frozen = {name: value.numpy() for name, value in model.state_dict().items() if name.startswith("blocks.0.")}
    model.eval()  # dropout does nothing, here and in shared layers
    batches = [(images, labels % CLASSES) for images, labels in share(parallel, 0, WINDOW)]
    run = parallel.pipeline_schedule or trainer.forward_backward
    list(run(model, criterion, precision, batches, lambda images, labels: (labels + 1) % CLASSES))
    result = precision.step(optimizer)
    shapes = [batches[0][0], batches[0][0][:1], batches[0][0]]
    with paddle.no_grad(), precision.forward_context():
        logits = [parallel.predict(model, paddle.to_tensor(images)) for images in shapes]
    stayed = all((model.state_dict()[name].numpy() == value).all() for name, value in frozen.items())
    images = parallel.sum([1.0 / parallel.data_size])[0]  # each replica counts once, whoever holds its parts
    facts = [parallel.num_parameters(model), images, result.num_zeros, stayed]
    return [each.astype("float32").numpy() for each in logits], facts
