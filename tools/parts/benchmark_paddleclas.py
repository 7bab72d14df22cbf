"""Serve epochs of PaddleClas's own training input to benchmark_data.py; runs in PaddleClas's environment, not ours.

    python benchmark_paddleclas.py '{"source": ..., "root": ..., "list": ..., "batch_size": ..., "workers": ...}'

``ImageNetDataset`` with the training transforms of PaddleClas's ResNet50.yaml, in ``paddle.io.DataLoader`` with the
workers kept between the epochs. A line on standard input asks for a number of batches; each is answered by its shape.
"""

import itertools
import json
import sys

# DataLoader.Train.dataset.transform_ops of ppcls/configs/ImageNet/ResNet/ResNet50.yaml; CommonDataset does ToCHWImage
TRANSFORMS = [
    {"DecodeImage": {"to_rgb": True, "channel_first": False}},
    {"RandCropImage": {"size": 224}},
    {"RandFlipImage": {"flip_code": 1}},
    {
        "NormalizeImage": {
            "scale": "1.0/255.0",
            "mean": [0.485, 0.456, 0.406],
            "std": [0.229, 0.224, 0.225],
            "order": "",
        }
    },
]


def main():
    """Answer requests until standard input ends."""
    options = json.loads(sys.argv[1])
    sys.path.insert(0, options["source"])
    answers, sys.stdout = sys.stdout, sys.stderr  # the libraries print
    import cv2
    import paddle
    from ppcls.data.dataloader.imagenet_dataset import ImageNetDataset

    paddle.set_device("cpu")
    dataset = ImageNetDataset(options["root"], options["list"], TRANSFORMS, delimiter="\t")
    loader = paddle.io.DataLoader(
        dataset,
        batch_size=options["batch_size"],
        shuffle=True,
        drop_last=True,
        num_workers=options["workers"],
        use_shared_memory=True,
        persistent_workers=True,
    )
    print(f"PaddleClas: OpenCV {cv2.__version__}, Paddle {paddle.__version__}", file=sys.stderr)
    for line in sys.stdin:
        for images, _ in itertools.islice(loader, int(line)):
            print(json.dumps(images.shape), file=answers, flush=True)


if __name__ == "__main__":
    main()
