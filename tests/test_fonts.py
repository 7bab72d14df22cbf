"""Names in any script are drawn with installed fonts, or with boxes of which the log speaks."""

import functools

import matplotlib
import numpy as np
import pytest
from matplotlib import font_manager
from PIL import Image

from image_classification import fonts
from image_classification.annotate import annotate
from image_classification.class_files import draw_confusion

FILES = matplotlib.get_data_path() + "/fonts/ttf/"
DEJAVU, STIX = FILES + "DejaVuSans.ttf", FILES + "STIXGeneral.ttf"  # which has a の, the former none


@pytest.fixture
def installed(monkeypatch):
    """Return a function that makes font files those that are installed."""
    monkeypatch.setattr(fonts, "_known", functools.cache(fonts._Known))
    return lambda *paths: monkeypatch.setattr(font_manager, "findSystemFonts", lambda: list(paths))


def test_letters_are_drawn_with_the_plain_font_that_has_them(installed, tmp_path):
    broken = tmp_path / "broken.ttf"
    broken.write_bytes(b"no font")
    installed(str(broken), FILES + "LastResortHE-Regular.ttf", STIX)
    assert fonts.drawable(["cat の", "e\u0301te\u0301\n"]) == ["cat の", "été "]
    assert fonts.parts_of("cat の é") == [(DEJAVU, "cat "), (STIX, "の"), (DEJAVU, " é")]
    assert fonts.families_for(["cat の"]) == ["DejaVu Sans", "STIXGeneral"]


@pytest.mark.filterwarnings("error")  # matplotlib's, one a letter
def test_letters_that_no_font_has_are_boxes_and_one_line_in_the_log(installed, tmp_path, caplog):
    installed()
    draw_confusion(np.eye(2, dtype=np.int64), ["の猫", "犬"], tmp_path / "c.png")
    photo = np.zeros((300, 300, 3), np.uint8)
    boxed, dotted = (annotate(photo, (0, 0, 300, 300), None, [line]) for line in ("鳥", "□"))
    assert (boxed == dotted).all()
    assert len(caplog.messages) == 1 and "の 犬 猫" in caplog.text and "fonts-noto-cjk" in caplog.text


def test_pictures_show_the_letters_of_an_installed_font(installed, tmp_path):
    installed(STIX)
    photo = np.zeros((300, 300, 3), np.uint8)
    pictures = []
    for name in ("の", "□"):
        draw_confusion(np.eye(1, dtype=np.int64), [name], tmp_path / "c.png")
        pictures.append((np.asarray(Image.open(tmp_path / "c.png")), annotate(photo, (0, 0, 300, 300), None, [name])))
    assert all((drawn != box).any() for drawn, box in zip(*pictures, strict=True))
