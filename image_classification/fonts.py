"""The fonts for names in any script: matplotlib's own, then the installed ones that have the letters it lacks."""

import functools
import unicodedata
from pathlib import Path

from .runtime import get_logger

BOX = "□"  # stands for a letter that no font has


class _Known:
    """What was found for the texts so far: the fonts, in the order in which they are asked, and letters without one."""

    def __init__(self):
        import matplotlib
        from matplotlib.ft2font import FT2Font

        self.fonts = [FT2Font(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"))]
        self.nowhere = set()


_known = functools.cache(_Known)


def drawable(texts):
    """Return the texts in one line each, accents composed, with a box for each letter that no installed font has."""
    texts = ["".join(" " if letter.isspace() else letter for letter in unicodedata.normalize("NFC", text))
             for text in texts]  # fmt: skip
    _find_fonts(texts)
    return ["".join(BOX if letter in _known().nowhere else letter for letter in text if letter.isprintable())
            for text in texts]  # fmt: skip


def families_for(texts):
    """Return what matplotlib's `fontfamily` is for drawable texts."""
    from matplotlib.font_manager import fontManager

    fonts = _find_fonts(texts)
    for font in fonts:
        if font.family_name not in fontManager.get_font_names():  # installed since matplotlib wrote its list
            fontManager.addfont(font.fname)
    return [font.family_name for font in fonts]


def parts_of(text):
    """Return [(file of a font, part)], the parts of a drawable text that one font has each."""
    fonts, parts = _find_fonts([text]), []
    for letter in text:
        path = next((font.fname for font in fonts if _covered(font, letter)), fonts[0].fname)
        if parts and parts[-1][0] == path:
            parts[-1] = path, parts[-1][1] + letter
        else:
            parts.append((path, letter))
    return parts


def _find_fonts(texts):
    """Return the fonts that together have every letter that any has; the log says once that some letters have none."""
    from matplotlib.font_manager import findSystemFonts
    from matplotlib.ft2font import FT2Font

    fonts, nowhere = _known().fonts, _known().nowhere
    lacking = {letter for letter in set().union(*texts) if letter.isprintable()} - nowhere
    lacking -= set().union(*(_covered(font, lacking) for font in fonts))
    if not lacking:
        return fonts
    choice = {path: _worth(path, lacking) for path in sorted(findSystemFonts())}
    while choice and lacking:
        best = max(choice, key=lambda path: (len(choice[path][0] & lacking), choice[path][1]))
        if not choice[best][0] & lacking:
            break
        fonts.append(FT2Font(best))
        lacking -= choice.pop(best)[0]
    if lacking and not nowhere:
        named = " ".join(sorted(lacking)[:10]) + (" ..." if len(lacking) > 10 else "")
        get_logger().warning(f"pictures have boxes for {named}, which no installed font has; Debian's fonts-noto-cjk "
                             "has Chinese, Japanese and Korean, fonts-symbola emoji, fonts-noto-core more")  # fmt: skip
    nowhere.update(lacking)
    return fonts


def _worth(path, letters):
    """Return which of the letters a font file has, and whether it is a plain sans serif."""
    from matplotlib.ft2font import FT2Font

    try:
        font = FT2Font(path)
    except (OSError, RuntimeError):
        return set(), False
    if not font.scalable or "Color" in font.family_name or "Last" in font.family_name:  # pictures of one size; boxes
        return set(), False
    is_plain = font.style_name in ("Regular", "Normal", "Book", "Medium") and "Serif" not in font.family_name
    return _covered(font, letters), is_plain


def _covered(font, letters):
    return {letter for letter in letters if font.get_char_index(ord(letter))}
