"""Classify images.

    python tools/predict.py vit_base_patch16_224 -pretrained=timm/vit_base_patch16_224.augreg_in21k_ft_in1k cat.jpg
    python tools/predict.py resnet50 -pretrained=torchvision/resnet50.V2 photos/ "more/*.png" -top_k=3 -json
    python tools/predict.py output/train-.../config.yaml -pretrained=output/train-.../best photos/ -output=out -explain

The first argument is a model or a YAML, the others are images, folders or patterns. -output writes each picture with
its best class; with -explain next to it where the model looked, by Grad-CAM or attention rollout.
"""

import glob
import json
import os
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
    progress_bar,
    refuse_existing,
)
from image_classification.tools.parts.pretrained import add_pretrained, settle_pretrained

CAPTIONS = 3  # classes below a picture


@command
def main(arguments):
    """Print the predictions and return the exit code: 0 all done, 1 some images cannot be read, 2 nothing was done."""
    parser = Parser(description=__doc__)
    parser.add_argument("cfg", help="model, recipe, YAML file or run's folder")
    parser.add_argument("images", nargs="+", help="images, folders, patterns")
    add_pretrained(parser)
    parser.add_argument("-top_k", type="count", default=5, help="classes an image (default: 5)")
    parser.add_argument("-batch_size", type="count", default=32, help="images at a time (default: 32)")
    parser.add_argument("-class_names", help="file with one class a line (default: the run's, or ImageNet-1k's)")
    parser.add_argument("-json", action="store_true", help="print JSON as PaddleClas does instead of a table")
    parser.add_argument("-output", type="new_folder", help="folder for annotated pictures")
    parser.add_argument("-explain", action="store_true", help="add where the model looked to the pictures")
    parser.add_argument("-opts", nargs="+", default=[], metavar="KEY=VALUE", help="keys of the configuration")
    options = parser.parse_args(arguments)
    if options.explain and options.output is None:
        raise UserError("-explain: needs -output with a folder for the pictures")
    config = check_model(options.cfg, options.opts)
    settle_pretrained(options)
    prepare_process()
    log_to_stderr()
    from image_classification.preview import class_names

    results = run(options, class_names(config, options.class_names))
    print(json.dumps(results, indent=1, ensure_ascii=False) if options.json else table(results))
    return 1 if any("error" in result for result in results) else 0


def run(options, names):
    """Return one dictionary an image: file_name, class_ids, scores, label_names, best class first; or its error.

    Raises:
        UserError: there is no image, or none that can be read.
    """
    import paddle
    from paddle.nn import functional as F

    from image_classification import half_cpu
    from image_classification.amp import build_precision
    from image_classification.config.schema import FLOAT32_MODES
    from image_classification.explain import heatmap
    from image_classification.preview import normalised
    from image_classification.zoo import load_model

    paths = find_images(options.images)
    root = os.path.commonpath([real(path).parent for path in paths])
    if options.output is not None:
        refuse_output_among(options.output, root, paths, options.images)
        for path in paths:
            refuse_existing(picture_of(path, options.output, root), "-output")
    model, config = load_model(options.cfg, options.pretrained, options.opts)
    results = dict.fromkeys(paths)
    precision = build_precision("fp32")
    if config.AMP.MODE not in FLOAT32_MODES:
        print(f"AMP.MODE {config.AMP.MODE} is of the training: predictions are computed in float32", file=sys.stderr)
    with progress_bar(len(paths), "predict", "images") as bar, half_cpu.frozen(model):
        for start in range(0, len(paths), options.batch_size):
            crops = read_crops(config, paths[start : start + options.batch_size], results, bar)
            if not crops:
                continue
            images = paddle.to_tensor(normalised(config, np.concatenate(list(crops.values()))))
            with paddle.no_grad(), precision.forward_context():
                scores = F.softmax(half_cpu.replay(model, images), axis=1).numpy()
            best = np.argsort(-scores, axis=1, kind="stable")[:, : options.top_k]
            maps = [None] * len(crops)
            if options.explain:
                maps = heatmap(model, images, paddle.to_tensor(best[:, 0])).numpy()
            for path, ids, row, heat in zip(crops, best, scores, maps, strict=True):
                results[path] = {
                    "file_name": str(path),
                    "class_ids": ids.tolist(),
                    "scores": [round(float(row[index]), 5) for index in ids],
                    "label_names": [names[index] for index in ids],
                }
                if options.output is not None:
                    save_picture(picture_of(path, options.output, root), config, heat, results[path])
            bar.update(len(crops))
    if all("error" in result for result in results.values()):
        raise UserError(next(iter(results.values()))["error"])
    return list(results.values())


def refuse_output_among(output, root, paths, words):
    """Refuse to write pictures among the photographs, where a training would find them, too.

    Raises:
        UserError: a picture would lie in a folder with photographs, or in one that was given to be searched.
    """
    read = {real(path).parent for path in paths}
    searched = [real(word) for word in words if os.path.isdir(word)]
    for folder in {real(output) / place.relative_to(root) for place in read}:
        if folder in read or any(folder.is_relative_to(place) for place in searched):
            raise UserError(f"-output: {output}: lies among the photographs; name another folder")


def read_crops(config, paths, results, bar):
    """Return {path: uint8 [1, size, size, channels]} of the images that can be read; say which others there are."""
    from image_classification.preview import eval_pixels

    crops = {}
    for path in paths:
        try:
            crops[path] = eval_pixels(config, [path])
        except UserError as error:
            results[path] = {"file_name": str(path), "error": str(error)}
            bar.write(f"skipped: {error}", file=sys.stderr)
            bar.update()
    return crops


def find_images(words):
    """Return the paths that files, folders and patterns name, in order, each once.

    Raises:
        UserError: a word names nothing, or a folder has no image.
    """
    from image_classification.data.folders import list_images, warn_of_others

    found = []
    for word in words:
        path = Path(word)
        if os.path.isdir(path):  # pathlib's raises where a name is too long
            names, others = list_images(path)
            warn_of_others(word, others)
            matches = [path / name for name in names]
        else:
            named = [word] if os.path.isfile(path) else sorted(glob.glob(word, recursive=True))
            matches = [Path(name) for name in named]
        if not matches:
            raise UserError(f"{word}: no such image, or a folder without images")
        found += matches
    return list(dict.fromkeys(found))


def real(path):
    """Return where links lead, of those that go round in a circle the first: pathlib raises no OSError there."""
    return Path(os.path.realpath(path))


def picture_of(path, output, root):
    """Return the path below `output` of the picture of a photograph, whose place is below `root`."""
    return output / real(path).relative_to(root).parent / f"{path.stem}-{path.suffix.lstrip('.')}.png"


def save_picture(target, config, heat, result):
    """Write the photograph with what the model saw of it outlined, where it looked, and the classes in words."""
    import cv2

    from image_classification.annotate import annotate
    from image_classification.preview import whole_photo

    source = Path(result["file_name"])
    photo, box = whole_photo(config, source)
    lines = [f"{100 * score:.1f} %  {name if not name.isdigit() else f'class {name}'}"
             for name, score in zip(result["label_names"][:CAPTIONS], result["scores"], strict=False)]  # fmt: skip
    picture = annotate(photo, box, heat, lines)
    content = cv2.imencode(".png", picture[:, :, ::-1])[1]
    with atomic_write(target) as file:
        file.write(content.tobytes())


def table(results):
    """Return the predictions as text, one block an image."""
    lines = []
    for result in results:
        lines.append(result["file_name"])
        if "error" in result:
            lines.append(f"  {result['error'].removeprefix(result['file_name'] + ': ')}")
            continue
        for index, score, name in zip(result["class_ids"], result["scores"], result["label_names"], strict=True):
            lines.append(f"  {score:7.4f}  {index:>5}  {name}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
