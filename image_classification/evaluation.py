"""Accuracy and loss of a model over a data set, in the same forward context as in training."""

import time

import paddle

from .metrics import Accumulator
from .runtime import progress_bar


def evaluate(model, precision, loader, parallel):
    """Return ``{"top1", "top5", "loss", "images", "seconds"}`` over every image exactly once, on all processes.

    Accuracies are fractions 0-1; the loss is plain cross entropy whatever the training criterion is, so that recipes
    can be compared.
    """
    parallel.average_buffers(model)
    model.eval()
    start = time.time()
    accumulator = Accumulator()
    with paddle.no_grad(), progress_bar(loader.num_images, "evaluate", "img", parallel.is_main) as bar:
        for images, labels in loader:
            with precision.forward_context():
                logits = parallel.predict(model, paddle.to_tensor(images))
            accumulator.add(logits.astype("float32"), labels)
            bar.update(len(labels))
    model.train()
    total = Accumulator()
    total.merge([round(number) for number in parallel.sum(accumulator.sums.tolist())])
    return total.result() | {"seconds": time.time() - start}
