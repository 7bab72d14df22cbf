"""What torchvision's training reference and PaddleClas's ResNet-50 recipe do to an image, step by step."""

import io
import math
import random

import cv2
import numpy as np
from PIL import Image

SIZE = 224
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def torchvision_steps(content):
    """Return float32 [3, 224, 224] as RandomResizedCrop, RandomHorizontalFlip, ToTensor and Normalize make it."""
    image = Image.open(io.BytesIO(content)).convert("RGB")
    width, height = image.size
    for _ in range(10):
        area = height * width * random.uniform(0.08, 1.0)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if w <= width and h <= height:
            break
    else:
        w = h = min(width, height)
    left, top = random.randint(0, width - w), random.randint(0, height - h)
    image = image.crop((left, top, left + w, top + h)).resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    if random.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    pixels = np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1)).astype(np.float32) / np.float32(255)
    pixels -= np.array(MEAN, np.float32)[:, None, None]
    pixels /= np.array(STD, np.float32)[:, None, None]
    return pixels


def paddleclas_steps(content):
    """Return float32 [3, 224, 224] as DecodeImage, RandCropImage, RandFlipImage and NormalizeImage make it."""
    pixels = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR)[:, :, ::-1]
    height, width = pixels.shape[:2]
    aspect = math.sqrt(random.uniform(3 / 4, 4 / 3))
    bound = min(width / height / aspect**2, height / width * aspect**2)
    side = math.sqrt(width * height * random.uniform(min(0.08, bound), min(1.0, bound)))
    w, h = int(side * aspect), int(side / aspect)
    left, top = random.randint(0, width - w), random.randint(0, height - h)
    pixels = cv2.resize(pixels[top : top + h, left : left + w], (SIZE, SIZE), interpolation=cv2.INTER_LINEAR)
    if random.randint(0, 1):
        pixels = cv2.flip(pixels, 1)
    mean, std = np.array(MEAN, np.float32), np.array(STD, np.float32)
    pixels = (pixels.astype(np.float32) * np.float32(1 / 255) - mean) / std
    return pixels.transpose(2, 0, 1)
