"""Plain files: opened at once or refused in one line."""

import os
import socket

import pytest

from image_classification.files.plain import open_plain, read_plain, read_text
from image_classification.runtime import UserError
from image_classification.zoo import find_config

KINDS = ("fifo", "folder", "device", "socket", "loop", "link to a device", "missing", "long name", "long path", "zero")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_plain_file_is_refused_at_once(tmp_path, kind):
    path = tmp_path / "x"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(os.path.relpath(path))
        listener.close()
    elif kind in ("loop", "link to a device"):
        path.symlink_to("x" if kind == "loop" else "/dev/zero")
    others = {"device": "/dev/zero", "long name": tmp_path / ("n" * 300), "long path": "/a" * 5000, "zero": "a\0b"}
    with pytest.raises(UserError, match="cannot be read") as caught:
        open_plain(others.get(kind, path))
    assert str(caught.value).isprintable() and len(str(caught.value)) < 1100


def test_link_to_a_plain_file_is_followed(tmp_path):
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    assert read_plain(tmp_path / "link") == b"content"


def test_file_beyond_the_limit_is_refused_before_it_is_read(tmp_path):
    with open(tmp_path / "x", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UserError, match="at most 100 are allowed"):
        read_plain(tmp_path / "x", 100)


def test_text_that_is_none_is_refused(tmp_path):
    (tmp_path / "x").write_bytes(b"ab\xff")
    with pytest.raises(UserError, match="no text in UTF-8: byte 2"):
        read_text(tmp_path / "x")


def test_variant_of_a_name_that_no_file_can_have_is_one_line():
    with pytest.raises(UserError, match="no such file, and no model or recipe of that name"):
        find_config("n" * 300)
