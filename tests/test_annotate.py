"""A picture with what a model says: nothing of the photograph or of the score is lost."""

import numpy as np

from image_classification.annotate import annotate


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
    long = annotate(photo, (0, 0, 300, 300), None, ["93.1 %" + 40 * " Œuvre"])[300:]
    assert long.shape == short.shape and (long[:, :40] == short[:, :40]).all()
    shapes = {annotate(photo, (0, 0, 300, 300), None, [letter])[300:].tobytes() for letter in "éñжλ?"}
    assert len(shapes) == 5


def test_large_photograph_is_made_smaller_and_a_tiny_one_larger():
    for side, expected in ((3000, 1024), (16, 224)):
        picture = annotate(np.zeros((side, side, 3), np.uint8), (0, 0, side, side), None, ["x"])
        assert picture.shape[1] == expected
