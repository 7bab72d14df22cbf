"""Measure timm's or torchvision's model with PyTorch in this process, for tools/benchmark.py and the example.

Runs in an environment with torch and timm, not Paddle. Takes and prints what benchmark_worker.py does; without
a task it only says which versions it has, and for "models" which models torchvision has. The task's "engine" says what
runs the model: PyTorch ("eager", "compiled" by its inductor, which needs a C++ compiler), or for evaluation
"onnxruntime" or "openvino", where they are installed.
"""

import contextlib
import json
import os
import resource
import sys
import tempfile
import time

from torch_peers import timm, torch, torchvision

WARMUP_ITERATIONS = 8  # as many as ours


def main():
    if len(sys.argv) == 1:
        print(f"torch {torch.__version__}, timm {timm.__version__}")
        return
    if sys.argv[1] == "models":
        print("\n".join(torchvision.models.list_models()))
        return
    task = json.loads(sys.argv[1])
    idle_memory = resident_bytes()
    torch.manual_seed(0)
    size, batch_size, classes = task["image_size"], task["batch_size"], task["num_classes"]
    library, _, name = task["model"].rpartition("/")
    if library == "torchvision":
        model = torchvision.models.get_model(name, num_classes=classes)
    else:
        published = timm.get_pretrained_cfg(name)
        fixed = {"img_size": size} if published and published.fixed_input_size else {}
        model = timm.create_model(name, num_classes=classes, **fixed)
    images = torch.randn(batch_size, 3, size, size)
    labels = torch.randint(0, classes, (batch_size,))
    context = contextlib.nullcontext
    if task["dtype"] != "float32":
        context = lambda: torch.autocast("cpu", getattr(torch, task["dtype"]))  # noqa: E731
    model.train(not task["evaluation"])
    run_model = ENGINES[task["engine"]](model, images, task["dtype"])
    if task["evaluation"]:
        run = evaluation(run_model, images, context)
    else:
        run = training(run_model, images, labels, context, task)
    iterations = [run() for _ in range(WARMUP_ITERATIONS + task["iterations"])][WARMUP_ITERATIONS:]
    print(json.dumps({
        "iterations": iterations,
        "dtype": task["dtype"],
        "backend": f"torch {torch.__version__}" if task["engine"] == "eager" else task["engine"],
        "batch_size": batch_size,
        "image_size": size,
        "threads": torch.get_num_threads(),
        "idle_memory_bytes": idle_memory,
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }))


def eager(model, images, dtype):
    """Return the model as it is."""
    return model


def compiled(model, images, dtype):
    """Return the model behind PyTorch's compiler."""
    return torch.compile(model)


def onnxruntime(model, images, dtype):
    """Return a function that runs the model in ONNX Runtime, which has float32 on a CPU."""
    import onnxruntime

    with tempfile.NamedTemporaryFile(suffix=".onnx") as file:
        torch.onnx.export(model, (images,), file.name, external_data=False, verbose=False)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        session = onnxruntime.InferenceSession(file.name, options, providers=["CPUExecutionProvider"])
    name, array = session.get_inputs()[0].name, images.numpy()
    return lambda images: session.run(None, {name: array})


def openvino(model, images, dtype):
    """Return a function that runs the model in OpenVINO, in bfloat16 where the task says so."""
    import openvino

    hints = {"INFERENCE_PRECISION_HINT": "bf16" if dtype == "bfloat16" else "f32", "PERFORMANCE_HINT": "LATENCY",
             "INFERENCE_NUM_THREADS": torch.get_num_threads()}  # fmt: skip
    converted = openvino.convert_model(model, example_input=images)
    network, array = openvino.compile_model(converted, "CPU", hints), images.numpy()
    return lambda images: network(array)


ENGINES = {"eager": eager, "compiled": compiled, "onnxruntime": onnxruntime, "openvino": openvino}


def training(model, images, labels, context, task):
    """Return a function that makes one step with the benchmark's optimizer and returns {phase: seconds}."""
    optimizers = {"AdamW": torch.optim.AdamW, "SGD": torch.optim.SGD, "Momentum": torch.optim.SGD}
    momentum = {"momentum": 0.9} if task["optimizer"] == "Momentum" else {}
    optimizer = optimizers.get(task["optimizer"], torch.optim.AdamW)(model.parameters(), lr=1e-4, **momentum)

    def step():
        times, cpu_start = [time.perf_counter()], time.process_time()
        with context():
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        times.append(time.perf_counter())
        loss.backward()
        times.append(time.perf_counter())
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter())
        return {
            "data": 0.0, "forward": times[1] - times[0], "backward": times[2] - times[1],
            "optimizer": times[3] - times[2], "scaler": 0.0, "cpu": time.process_time() - cpu_start,
        }  # fmt: skip

    return step


def evaluation(run_model, images, context):
    """Return a function that makes one forward pass without gradients."""

    def step():
        start, cpu_start = time.perf_counter(), time.process_time()
        with torch.no_grad(), context():
            run_model(images)
        forward = time.perf_counter() - start
        cpu = time.process_time() - cpu_start
        return {"data": 0.0, "forward": forward, "backward": 0.0, "optimizer": 0.0, "scaler": 0.0, "cpu": cpu}

    return step


def resident_bytes():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
