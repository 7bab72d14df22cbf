"""A picture with what a model says: nothing of the photograph or of the score is lost."""

import cv2
import numpy as np
import pytest

from image_classification.annotate import MARGIN, annotate
from image_classification.data.transforms import EvalTransform


def test_heat_lies_on_the_crop_alone_and_the_crop_is_outlined():
    photo = np.full((300, 600, 1), 128, np.uint8)
    picture = annotate(photo, (0, 150, 300, 450), np.ones((7, 7)), ["93.1 %  cat"])
    left, right = picture[:300, :600], picture[:300, 600:]
    assert (left[:, :140] == 128).all() and (left[100:200, 160:440] == 128).all()
    assert (right[:, :140] == 128).all() and (right[100:200, 160:440] != 128).any(axis=2).all()
    assert (left[150, 150] == 255).all()


def test_long_line_is_cut_at_its_end_and_every_letter_has_a_shape():
    photo = np.zeros((300, 300, 3), np.uint8)
    short = annotate(photo, (0, 0, 300, 300), None, ["93.1 %"])[300:]
    long = annotate(photo, (0, 0, 300, 300), None, ["93.1 %" + 10_000 * " Œuvre"])[300:]
    assert long.shape == short.shape and (long[:, :40] == short[:, :40]).all()
    assert not long[:, -MARGIN:].any()
    shapes = {annotate(photo, (0, 0, 300, 300), None, [letter])[300:].tobytes() for letter in "éñжλ?"}
    assert len(shapes) == 5


@pytest.mark.parametrize("size", [(1, 3000), (3000, 1), (3, 20_000), (1, 20_000)])
def test_strip_of_pixels_is_no_longer_than_a_picture_may_be(size):
    box = EvalTransform(32).box(*size)
    picture = annotate(np.full((*size, 3), 128, np.uint8), box, np.ones((7, 7)), ["93.1 %  cat"])
    assert max(picture.shape) <= 2 * 4096 and cv2.imencode(".png", picture)[0]


def test_large_photograph_is_made_smaller_and_a_tiny_one_larger():
    for side, expected in ((3000, 1024), (16, 224)):
        picture = annotate(np.zeros((side, side, 3), np.uint8), (0, 0, side, side), None, ["x"])
        assert picture.shape[1] == expected
