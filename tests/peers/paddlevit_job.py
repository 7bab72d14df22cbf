"""PaddleViT's own code on a CPU and in one process: `paddlevit_job.py main|logits <its folder> ...`.

main <program> <flags>: its program, which asks for a GPU and the processes that one has; nothing else is changed.
logits <module> <builder> <cfg> <images.npy> <weights> <logits.npy>: a model with random weights and what it computes.
"""

import importlib
import inspect
import sys
import types

import numpy as np
import paddle


def main(program, *flags):
    sys.argv[1:] = flags
    set_device = paddle.device.set_device
    paddle.device.set_device = lambda device: set_device("cpu")
    paddle.distributed.spawn = lambda function, args: function(*args)
    paddle.distributed.barrier = lambda *_: None
    module = importlib.import_module(program)
    # train() of its Swin names a scheduler that it was not given
    vars(module).setdefault("lr_scheduler", types.SimpleNamespace(step=lambda epoch: None))
    module.main()


def logits(module, builder, cfg, images, weights, out):
    config = importlib.import_module("config").get_config(cfg)
    paddle.seed(1)
    build = getattr(importlib.import_module(module), builder)
    model = build(*[config] * len(inspect.signature(build).parameters))  # its RegNet has one size and takes nothing
    rng = np.random.default_rng(0)
    for value in model.state_dict().values():
        if value.ndim == 1:  # norms and biases that are not 1 and 0
            value.set_value(value.numpy() + rng.normal(0, 0.1, value.shape).astype("float32"))
    model.eval()
    paddle.save(model.state_dict(), weights)
    with paddle.no_grad():
        result = model(paddle.to_tensor(np.load(images)))
        np.save(out, (result[0] if isinstance(result, tuple) else result).numpy())  # its XCiT gives them twice


if __name__ == "__main__":
    job, folder, *arguments = sys.argv[1:]
    sys.path.insert(0, folder)
    {"main": main, "logits": logits}[job](*arguments)
