"""Write a picture of the first training batch, as the model sees it, augmentation included.

    python tools/show_batch.py batch.png -cfg=image_classification/ViT/configs/vit_tiny_digits.yaml
    python tools/show_batch.py other.png -cfg=... -data_path=/dataset/imagenet -opts TRAIN.RAND_AUGMENT=True

Takes every option of the training commands but weights and precision. Below each image stands its label; a mixed image
has its two largest.
"""

import sys
from pathlib import Path

if not __package__:  # run by its path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import cv2
import numpy as np

from image_classification.annotate import caption
from image_classification.config import make_parser, preview_config, refuse_run_options
from image_classification.config.command_line import FLAGS
from image_classification.runtime import Parser, UserError, atomic_write, command, refuse_existing

MAX_IMAGES = 64
FORMATS = (".png", ".jpg", ".webp")
BORDER = 4
FONT_SIZE = 11
UNREAD = ("amp", "pretrained", "teacher_model_path", *FLAGS["Precision"])
SMALLEST_TILE = 96  # pixels; smaller images are enlarged so that the captions can be read


@command
def main(arguments):
    """Write the picture and return the exit code."""
    parser = Parser(
        description=__doc__,
        epilog="every other option is one of the training commands: python main_single_gpu.py -h",
    )
    parser.add_argument("path", type="new_file", metavar="PICTURE", help=f"file to write: {', '.join(FORMATS)}")
    parser.add_argument("-cfg", required=True, help="model, recipe, YAML file or run's folder")
    parser.pass_on(make_parser())
    options = parser.parse_args(arguments)
    suffix = options.path.suffix.lower()
    if suffix not in FORMATS:
        raise UserError(f"{options.path}: ends in none of {', '.join(FORMATS)}")
    refuse_existing(options.path, "PICTURE")
    for word in options.words:
        if word.partition("=")[0].lstrip("-") in UNREAD:
            raise UserError(f"{word}: the first training batch is drawn, which does not depend on it; leave it out")
    config = preview_config([f"-cfg={options.cfg}", *options.words])
    refuse_run_options(config, "the first training batch is drawn, into the file that is named first")
    from image_classification.data import build_dataset, build_train_loader, settle_classes

    dataset = build_dataset(config, "train")
    loader = build_train_loader(settle_classes(config, dataset), dataset=dataset)
    images, labels = next(iter(loader))
    loader.close()
    picture = draw(config, images[:MAX_IMAGES], labels[:MAX_IMAGES], loader.dataset.class_names)
    content = encoded(options.path, picture)
    with atomic_write(options.path) as file:
        file.write(content)
    print(f"{options.path}: {len(images[:MAX_IMAGES])} of {len(images)} images")
    return 0


def encoded(path, picture):
    """Return the bytes of the file that a picture, uint8 [height, width, 3], becomes.

    Raises:
        UserError: the format has no place for so many pixels.
    """
    fits, content = cv2.imencode(path.suffix.lower(), picture[:, :, ::-1])
    if not fits:
        height, width = picture.shape[:2]
        raise UserError(f"{path}: a picture of {width} x {height} pixels is too large for {path.suffix}; lower "
                        "-batch_size, or take .png")  # fmt: skip
    return content.tobytes()


def draw(config, images, labels, class_names):
    """Return uint8 [height, width, 3], the images float32 [B, C, H, W] in a grid with their captions."""
    mean = np.reshape(config.DATA.IMAGENET_MEAN, (-1, 1, 1))
    std = np.reshape(config.DATA.IMAGENET_STD, (-1, 1, 1))
    tiles = [
        _tile((image * std + mean) * 255, _labels(label, class_names))
        for image, label in zip(images, labels, strict=True)
    ]
    columns = int(np.ceil(np.sqrt(len(tiles))))
    blank = np.full_like(tiles[0], 255)
    tiles += [blank] * (-len(tiles) % columns)
    return np.vstack([np.hstack(tiles[start : start + columns]) for start in range(0, len(tiles), columns)])


def _tile(image, lines):
    pixels = np.clip(np.round(image), 0, 255).astype(np.uint8).transpose(1, 2, 0)
    pixels = np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else np.ascontiguousarray(pixels)
    factor = max(1, round(SMALLEST_TILE / pixels.shape[1]))
    pixels = cv2.resize(pixels, None, fx=factor, fy=factor, interpolation=cv2.INTER_NEAREST)
    tile = np.pad(pixels, ((BORDER, 0), (BORDER, BORDER), (0, 0)), constant_values=255)
    return np.vstack([tile, 255 - caption(lines, tile.shape[1], FONT_SIZE)])


def _labels(label, class_names):
    """Return the lines below an image: one, or two for a batch whose images may be mixed."""
    if np.ndim(label) == 0:
        return [class_names[int(label)]]
    largest = np.argsort(-label, kind="stable")[:2]
    return [f"{label[index]:.2f} {class_names[index]}" if label[index] > 0 else "" for index in largest]


if __name__ == "__main__":
    sys.exit(main())
