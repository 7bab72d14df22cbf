"""Export a model for deployment, and check that it still answers the same.

    python tools/export.py resnet50 -pretrained=torchvision/resnet50.V2 -output=deploy/resnet50
    python tools/export.py output/train-.../config.yaml -pretrained=output/train-.../best -output=deploy/mine -onnx
    python tools/export.py resnet50 -pretrained=torchvision/resnet50.V2 -output=deploy/resnet50 -onnx -dtype float16

Writes inference.json and inference.pdiparams (paddle.inference), inference.onnx with -onnx (needs the packages
paddle2onnx and onnxruntime), and preprocessing.json: what must be done to an image first. The logits of each exported
model for ten images are compared with the model's own, and the largest difference is printed; more than 1e-4 of the
largest logit is an error. The batch size stays free.

-fold makes one layer of a convolution and the BatchNorm after it first, where nothing else reads what is between them;
the logits are compared with those of the model as it was.

-dtype float16 adds inference.float16.onnx (with -onnx; needs onnxconverter-common too): half weights and arithmetic,
float32 images and logits. -dtype bfloat16 checks the paddle.inference model with oneDNN's bfloat16, which is switched
on when the model is loaded and not in its file. Half logits may differ by 16 roundings of their format, relative to the
largest: 0.8 % for float16, 6 % for bfloat16. Measured are 1 to 3 roundings (docs/model_zoo.md), although the longest
chain of half operators has 117 in ResNet-50 and 270 in ViT-S: most errors cancel.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

if not __package__:  # run by its path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from image_classification.config import check_model
from image_classification.runtime import (
    Parser,
    UserError,
    atomic_write,
    command,
    log_to_stderr,
    prepare_process,
    refuse_existing,
    temporary_home,
    whole_folder,
    writing_to,
)
from image_classification.tools.parts.pretrained import add_pretrained, settle_pretrained

ONNX = Path(__file__).resolve().parent / "parts" / "export_onnx.py"
NUM_IMAGES = 10
LARGEST_BLOCK = 1 << 16  # bytes of a block of a file system
# of the largest logit: other kernels and another order of sums; for the half formats 16 times their unit roundoff
TOLERANCES = {"float32": 1e-4, "float16": 16 * 2.0**-11, "bfloat16": 16 * 2.0**-8}


@command
def main(arguments):
    """Write the files and return the exit code."""
    parser = Parser(description=__doc__)
    parser.add_argument("cfg", help="model, recipe, YAML file or run's folder")
    add_pretrained(parser)
    parser.add_argument("-output", type="new_folder", required=True, help="folder to write")
    parser.add_argument("-onnx", action="store_true", help="also write inference.onnx")
    parser.add_argument("-fold", action="store_true", help="fold BatchNorms into the convolutions before them")
    parser.add_argument("-dtype", choices=tuple(TOLERANCES), default="float32",
                        help="also export in this format (default: %(default)s alone)")  # fmt: skip
    parser.add_argument("-class_names", help="file with one class a line (default: the run's, or ImageNet-1k's)")
    parser.add_argument("-opts", nargs="+", default=[], metavar="KEY=VALUE", help="keys of the configuration")
    options = parser.parse_args(arguments)
    refuse_what_no_engine_has(options)
    refuse_existing(options.output, "-output")
    try:
        os.path.abspath(options.output).encode()
    except UnicodeEncodeError:
        raise UserError(f"-output: {options.output}: Paddle writes to paths in UTF-8 only; name another") from None
    config = check_model(options.cfg, options.opts)
    settle_pretrained(options)
    prepare_process()
    log_to_stderr()
    from image_classification.preview import class_names

    names = class_names(config, options.class_names)
    with whole_folder(options.output) as folder:
        for line in export(options, folder, names):
            print(line)
    return 0


def export(options, folder, names):
    """Write all files of the export into a folder; yield one line for each check."""
    import paddle
    from paddle.static import InputSpec

    from image_classification.fold import fold_batch_norms
    from image_classification.half_cpu.paddle_names import norm_epsilon
    from image_classification.preview import normalised
    from image_classification.zoo import load_model

    model, config = load_model(options.cfg, options.pretrained, options.opts)
    data = config.DATA
    images = normalised(config, blocks(data.IMAGE_SIZE, data.IMAGE_CHANNELS))
    with paddle.no_grad():
        expected = model(paddle.to_tensor(images)).numpy()
    norms = [layer for layer in model.sublayers() if isinstance(layer, (paddle.nn.LayerNorm, paddle.nn.GroupNorm))]
    for norm in norms:
        if norm.weight is not None and norm.bias is None:  # paddle.inference forgets the weight, too
            norm.bias = norm.create_parameter(norm.weight.shape, is_bias=True)
    if options.fold:
        yield f"BatchNorms folded into the layers before them: {fold_batch_norms(model, paddle.to_tensor(images[:2]))}"
    write_preprocessing(folder / "preprocessing.json", config, names)
    prefix = folder / "inference"
    spec = InputSpec([None, data.IMAGE_CHANNELS, data.IMAGE_SIZE, data.IMAGE_SIZE], "float32", name="images")
    with temporary_home(), writing_to(options.output):
        paddle.jit.save(paddle.jit.to_static(model, input_spec=[spec], full_graph=True), str(prefix))
        check_room(f"{prefix}.pdiparams")
    found = run_paddle(prefix, images)
    yield report("paddle.inference", expected, found)
    if options.dtype == "bfloat16":
        yield report("paddle.inference bfloat16 (oneDNN)", expected, run_paddle_bfloat16(prefix, images), "bfloat16")
    if options.onnx:
        epsilons = {norm_epsilon(norm) for norm in norms if isinstance(norm, paddle.nn.GroupNorm)}
        yield report("onnxruntime", expected, run_onnx(prefix, images, epsilons))
    if options.dtype == "float16":
        yield report("onnxruntime float16", expected, run_onnx_float16(prefix, images), "float16")


def check_room(path):
    """Write a little behind the end of a file, and take it back: Paddle does not look whether the disk took its bytes.

    Raises:
        OSError: the disk is full, so that the file may be cut.
    """
    with open(path, "r+b") as file:
        end = file.seek(0, os.SEEK_END)
        file.write(bytes(LARGEST_BLOCK))
        file.flush()
        os.fsync(file.fileno())
        file.truncate(end)


def blocks(side, channels):
    """Return uint8 [NUM_IMAGES, side, side, channels]: blocks of random colours, from one to a block a pixel.

    Pure noise looks alike to a network: its logits would differ less from image to image than a half format may round,
    and a model that answers all of them with the same logits would pass.
    """
    rng = np.random.default_rng(0)
    pictures = []
    for count in 2 ** np.arange(NUM_IMAGES):
        place = np.arange(side) * count // side
        pictures.append(rng.integers(0, 256, (count, count, channels), np.uint8)[place][:, place])
    return np.stack(pictures)


def refuse_what_no_engine_has(options):
    """Raise a UserError, before any work, for a format that no engine asked for computes in, or a missing package."""
    if options.dtype == "float16" and not options.onnx:
        raise UserError("-dtype float16: paddle.inference has no float16 on a CPU; add -onnx, or take bfloat16")
    if options.dtype == "bfloat16" and options.onnx:
        raise UserError("-dtype bfloat16: onnxruntime has no bfloat16 on a CPU; leave -onnx out, or take float16")
    needed = ["paddle2onnx", "onnxruntime"] if options.onnx else []
    needed += ["onnxconverter_common"] if options.dtype == "float16" else []
    missing = [name.replace("_", "-") for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        verb = "package {} is" if len(missing) == 1 else "packages {} are"
        names = " ".join(missing)
        raise UserError(f"-onnx: the {verb.format(names)} missing: pip install {' '.join(needed).replace('_', '-')}")


def write_preprocessing(path, config, names):
    """Write what turns an image file into the model's input, and the classes."""
    data = config.DATA
    content = {
        "image_size": data.IMAGE_SIZE,
        "exif_orientation": "applied" if data.EXIF_ORIENTATION else "ignored",
        "resize_short_side" if data.KEEP_ASPECT else "resize_square": int(data.IMAGE_SIZE / data.CROP_PCT),
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


def run_paddle(prefix, images, change=lambda config: None, wanted=""):
    """Return the logits of the exported model by Paddle's inference engine on the CPU.

    Raises:
        UserError: the engine has no kernel for it, or its passes break it, as some of oneDNN's bfloat16 do.
    """
    import paddle
    from paddle import inference

    # enable_memory_optim fails on a CPU in Paddle 3 (issue 75496), so it is left alone
    config = inference.Config(f"{prefix}.json", f"{prefix}.pdiparams")
    config.disable_glog_info()  # the name of each of its passes
    change(config)
    given = paddle.to_tensor(images, place=paddle.CPUPlace())  # the engine takes any address for one of the CPU's
    try:
        return inference.create_predictor(config).run([given])[0].numpy()
    except Exception as error:  # its errors have no class in common
        raise UserError(f"paddle.inference{wanted} cannot run this model: {' '.join(str(error).split())}") from None


def run_paddle_bfloat16(prefix, images):
    """Return the logits with oneDNN's bfloat16.

    Raises:
        UserError: the engine went on in float32, as it does on a CPU without bfloat16.
    """

    def bfloat16(config):
        config.enable_onednn()
        config.enable_onednn_bfloat16()

    found = run_paddle(prefix, images, bfloat16, " with bfloat16")
    if np.array_equal(found, run_paddle(prefix, images, lambda config: config.enable_onednn())):
        raise UserError("-dtype bfloat16: paddle.inference computes this model in float32 on this CPU")
    return found


def run_onnx(prefix, images, epsilons):
    """Write inference.onnx and return its logits by onnxruntime; `epsilons` are those of the model's GroupNorms."""
    path = f"{prefix}.onnx"
    if len(epsilons) > 1:
        raise UserError(f"-onnx: the model's GroupNorms have several epsilons, {sorted(epsilons)}; paddle2onnx has one")
    forms = gelu_forms(json.loads(Path(f"{prefix}.json").read_text(encoding="utf-8")))
    if len(forms) > 1:
        raise UserError("-onnx: the model has GELUs with erf and with tanh; paddle2onnx has one form")
    words = [str(prefix), path, str(max(epsilons, default=0.0)), *(forms or ["erf"])]
    done = subprocess.run([sys.executable, ONNX, "convert", *words], capture_output=True, text=True)
    if done.returncode:
        said = (done.stdout + done.stderr).splitlines()
        reason = next((line for line in said if "ERROR" in line), f"exit code {done.returncode}")
        raise UserError(f"-onnx: paddle2onnx cannot convert this model: {reason}")
    return answer_of_onnxruntime(path, images, "-onnx: onnxruntime cannot run what paddle2onnx")


def gelu_forms(program):
    """Return which of "erf" and "tanh" the GELUs of a program in Paddle's JSON compute with."""
    if isinstance(program, list):
        return set().union(*map(gelu_forms, program))
    if not isinstance(program, dict):
        return set()
    if str(program.get("#")).endswith(".gelu"):
        return {"tanh" if each["AT"]["D"] else "erf" for each in program["A"] if each["N"] == "approximate"}
    return gelu_forms(list(program.values()))


def run_onnx_float16(prefix, images):
    """Write inference.float16.onnx from inference.onnx and return its logits by onnxruntime."""
    path = f"{prefix}.float16.onnx"
    done = subprocess.run([sys.executable, ONNX, "halve", f"{prefix}.onnx", path], capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise UserError(f"-dtype float16: onnxconverter-common cannot convert this model: {reason}")
    return answer_of_onnxruntime(path, images, "-dtype float16: onnxruntime cannot run what onnxconverter-common")


def answer_of_onnxruntime(path, images, blame):
    """Return the logits of an ONNX file on the CPU; `blame` begins what is said of one that cannot be run."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # it warns of each constant that the conversion left unused
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        return session.run(None, {session.get_inputs()[0].name: images})[0]
    except Exception as error:  # its errors have no class in common
        raise UserError(f"{blame} made of this model: {' '.join(str(error).split())}") from None


def report(engine, expected, found, dtype="float32"):
    """Return a line with the largest difference of logits of an engine that computes in `dtype`.

    Raises:
        UserError: it is more than the tolerance.
    """
    same = found.shape == expected.shape
    difference, largest = float(np.abs(found - expected).max()) if same else np.inf, float(np.abs(expected).max())
    line = f"{engine}: {len(expected)} images, largest difference of logits {difference:.2e} (largest {largest:.2e})"
    allowed = TOLERANCES[dtype] * largest
    line += f", allowed {allowed:.2e}"
    if not difference <= allowed:
        raise UserError(f"{line}: the exported model answers differently, more than {TOLERANCES[dtype]:.2g}")
    return line


if __name__ == "__main__":
    sys.exit(main())
