"""Export a model for deployment, and check that it still answers the same.

    python tools/export.py resnet50 -pretrained=torchvision/resnet50.V2 -output=deploy/resnet50
    python tools/export.py output/train-.../config.yaml -pretrained=output/train-.../best -output=deploy/mine -onnx

Writes inference.json and inference.pdiparams (paddle.inference), inference.onnx with -onnx (needs the packages
paddle2onnx and onnxruntime), and preprocessing.json: what must be done to an image first. The logits of each exported
model for ten images are compared with the model's own, and the largest difference is printed; more than 1e-4 of the
largest logit is an error. The batch size stays free.
"""

import argparse
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from image_classification.runtime import UserError, atomic_write, prepare_process

prepare_process()

import numpy as np
import paddle
from paddle.static import InputSpec

from image_classification.preview import class_names, normalised
from image_classification.zoo import load_model

NUM_IMAGES = 10
TOLERANCE = 1e-4  # of the largest logit: other kernels, other order of sums
# the default optimize_tool would install further packages from another index at run time
CONVERT = """
import sys, paddle2onnx
prefix, path = sys.argv[1:]
files = f"{prefix}.json", f"{prefix}.pdiparams", path
paddle2onnx.export(*files, opset_version=17, optimize_tool="None", verbose=False)
"""


def main(arguments=None):
    """Write the files and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cfg", help="variant or YAML file")
    parser.add_argument("-pretrained", required=True, help="registry id, hub id, URL or file")
    parser.add_argument("-output", type=Path, required=True, help="folder to write")
    parser.add_argument("-onnx", action="store_true", help="also write inference.onnx")
    parser.add_argument("-class_names", help="file with one class a line (default: ImageNet-1k's, or numbers)")
    parser.add_argument("-opts", nargs="+", default=[], metavar="KEY=VALUE", help="keys of the configuration")
    options = parser.parse_args(arguments)
    try:
        for line in export(options):
            print(line)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def export(options):
    """Write all files of the export; yield one line for each check."""
    model, config = load_model(options.cfg, options.pretrained, options.opts)
    data = config.DATA
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (NUM_IMAGES, data.IMAGE_SIZE, data.IMAGE_SIZE, data.IMAGE_CHANNELS), np.uint8)
    images = normalised(config, pixels)
    with paddle.no_grad():
        expected = model(paddle.to_tensor(images)).numpy()
    write_preprocessing(options.output / "preprocessing.json", config, class_names(config, options.class_names))
    prefix = options.output / "inference"
    spec = InputSpec([None, data.IMAGE_CHANNELS, data.IMAGE_SIZE, data.IMAGE_SIZE], "float32", name="images")
    paddle.jit.save(paddle.jit.to_static(model, input_spec=[spec], full_graph=True), str(prefix))
    yield report("paddle.inference", expected, run_paddle(prefix, images))
    if options.onnx:
        yield report("onnxruntime", expected, run_onnx(prefix, images))


def write_preprocessing(path, config, names):
    """Write what turns an image file into the model's input, and the classes."""
    data = config.DATA
    content = {
        "image_size": data.IMAGE_SIZE,
        "resize_short_side": int(data.IMAGE_SIZE / data.CROP_PCT),
        "interpolation": data.INTERPOLATION,
        "resize_library": data.RESIZE_LIBRARY,
        "crop": "center",
        "channels": "RGB" if data.IMAGE_CHANNELS == 3 else data.IMAGE_CHANNELS,
        "scale": 1 / 255,
        "mean": data.IMAGENET_MEAN,
        "std": data.IMAGENET_STD,
        "layout": "NCHW",
        "class_names": names,
    }
    with atomic_write(path) as file:
        file.write(json.dumps(content, indent=1, ensure_ascii=False).encode())


def run_paddle(prefix, images):
    """Return the logits of the exported model by Paddle's inference engine on the CPU."""
    from paddle import inference

    # enable_memory_optim fails on a CPU in Paddle 3 (issue 75496), so it is left alone
    predictor = inference.create_predictor(inference.Config(f"{prefix}.json", f"{prefix}.pdiparams"))
    return predictor.run([paddle.to_tensor(images)])[0].numpy()


def run_onnx(prefix, images):
    """Write inference.onnx and return its logits by onnxruntime."""
    missing = [name for name in ("paddle2onnx", "onnxruntime") if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"-onnx: the package {missing[0]} is missing: pip install paddle2onnx onnxruntime")
    import onnxruntime

    path = f"{prefix}.onnx"
    # in a process of its own: paddle2onnx aborts its process at an operator that it does not know
    done = subprocess.run([sys.executable, "-c", CONVERT, str(prefix), path], capture_output=True, text=True)
    if done.returncode:
        reason = next((line for line in done.stdout.splitlines() if "ERROR" in line), f"exit code {done.returncode}")
        raise UserError(f"-onnx: paddle2onnx cannot convert this model: {reason}")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: images})[0]


def report(engine, expected, found):
    """Return a line with the largest difference of logits.

    Raises:
        UserError: it is more than the tolerance.
    """
    difference, largest = float(np.abs(found - expected).max()), float(np.abs(expected).max())
    line = f"{engine}: {len(expected)} images, largest difference of logits {difference:.2e} (largest {largest:.2e})"
    if not difference <= TOLERANCE * max(largest, 1.0):
        raise UserError(f"{line}: more than {TOLERANCE}")
    return line


if __name__ == "__main__":
    sys.exit(main())
