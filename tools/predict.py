"""Classify images.

    python tools/predict.py vit_base_patch16_224 -pretrained=timm/vit_base_patch16_224.augreg_in21k_ft_in1k cat.jpg
    python tools/predict.py resnet50 -pretrained=torchvision/resnet50.V2 photos/ "more/*.png" -top_k=3 -json
    python tools/predict.py output/train-.../config.yaml -pretrained=output/train-.../best photos/ -output=out -explain

The first argument is a variant or a YAML, the others are images, folders or patterns. -output writes each picture with
its best class; with -explain next to it where the model looked, by Grad-CAM or attention rollout.
"""

import argparse
import glob
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from image_classification.runtime import UserError, atomic_write, prepare_process

prepare_process()

import cv2
import numpy as np
import paddle
from paddle.nn import functional as F

from image_classification.explain import heatmap
from image_classification.preview import class_names, eval_pixels, normalised
from image_classification.zoo import load_model

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")
SMALLEST_PICTURE = 224  # pixels; smaller ones are enlarged so that the text can be read
CAPTION = 22


def main(arguments=None):
    """Print the predictions and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cfg", help="variant or YAML file")
    parser.add_argument("images", nargs="+", help="images, folders, patterns")
    parser.add_argument("-pretrained", required=True, help="registry id, hub id, URL or file")
    parser.add_argument("-top_k", type=int, default=5, help="classes an image (default: 5)")
    parser.add_argument("-batch_size", type=int, default=32, help="images at a time (default: 32)")
    parser.add_argument("-class_names", help="file with one class a line (default: ImageNet-1k's, or numbers)")
    parser.add_argument("-json", action="store_true", help="print JSON as PaddleClas does instead of a table")
    parser.add_argument("-output", type=Path, help="folder for annotated pictures")
    parser.add_argument("-explain", action="store_true", help="add where the model looked to the pictures")
    parser.add_argument("-opts", nargs="+", default=[], metavar="KEY=VALUE", help="keys of the configuration")
    options = parser.parse_args(arguments)
    try:
        if options.explain and options.output is None:
            raise UserError("-explain: needs -output with a folder for the pictures")
        results = run(options)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(results, indent=1, ensure_ascii=False) if options.json else table(results))
    return 0


def run(options):
    """Return one dictionary an image: file_name, class_ids, scores, label_names; best class first."""
    paths = find_images(options.images)
    model, config = load_model(options.cfg, options.pretrained, options.opts)
    names = class_names(config, options.class_names)
    count = min(max(options.top_k, 1), len(names))
    results = []
    for start in range(0, len(paths), max(options.batch_size, 1)):
        batch = paths[start : start + options.batch_size]
        pixels = eval_pixels(config, batch)
        images = paddle.to_tensor(normalised(config, pixels))
        with paddle.no_grad():
            scores = F.softmax(model(images), axis=1).numpy()
        best = np.argsort(-scores, axis=1, kind="stable")[:, :count]
        for path, ids, row in zip(batch, best, scores, strict=True):
            results.append({
                "file_name": str(path),
                "class_ids": ids.tolist(),
                "scores": [round(float(row[index]), 5) for index in ids],
                "label_names": [names[index] for index in ids],
            })
        if options.output is not None:
            maps = [None] * len(batch)
            if options.explain:
                maps = heatmap(model, images, paddle.to_tensor(best[:, 0])).numpy()
            for picture, heat, result in zip(pixels, maps, results[start:], strict=True):
                save_picture(options.output, picture, heat, result)
    return results


def find_images(words):
    """Return the paths that files, folders and patterns name, in order, each once.

    Raises:
        UserError: a word names nothing, or a folder has no image.
    """
    found = []
    for word in words:
        path = Path(word)
        if path.is_dir():
            matches = sorted(entry for entry in path.rglob("*") if entry.suffix.lower() in SUFFIXES)
        else:
            matches = [path] if path.is_file() else [Path(name) for name in sorted(glob.glob(word, recursive=True))]
        if not matches:
            raise UserError(f"{word}: no such image, or a folder without images")
        found += matches
    return list(dict.fromkeys(found))


def save_picture(folder, pixels, heat, result):
    """Write the crop that the model saw, with its best class below and the heat map beside it."""
    pixels = np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels
    side = max(SMALLEST_PICTURE, pixels.shape[0])
    picture = cv2.resize(pixels, (side, side), interpolation=cv2.INTER_NEAREST)[:, :, ::-1]
    if heat is not None:
        smooth = cv2.resize(heat.astype(np.float32), (side, side), interpolation=cv2.INTER_CUBIC).clip(0, 1)
        colours = cv2.applyColorMap((smooth * 255).astype(np.uint8), cv2.COLORMAP_JET)
        picture = np.hstack([picture, cv2.addWeighted(np.ascontiguousarray(picture), 0.5, colours, 0.5, 0)])
    caption = np.zeros((CAPTION, picture.shape[1], 3), np.uint8)
    text = f"{result['label_names'][0]} {result['scores'][0]:.3f}"
    cv2.putText(caption, text, (4, 15), cv2.FONT_HERSHEY_SIMPLEX, 0.45, (255, 255, 255), 1, cv2.LINE_AA)
    content = cv2.imencode(".png", np.vstack([picture, caption]))[1]
    source = Path(result["file_name"])
    with atomic_write(folder / f"{source.stem}-{source.suffix.lstrip('.')}.png") as file:
        file.write(content.tobytes())


def table(results):
    """Return the predictions as text, one block an image."""
    lines = []
    for result in results:
        lines.append(result["file_name"])
        for index, score, name in zip(result["class_ids"], result["scores"], result["label_names"], strict=True):
            lines.append(f"  {score:7.4f}  {index:>5}  {name}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
