"""Extraction: whole or nothing, within the folder, and no more than an archive of its size may hold."""

import io
import os
import tarfile
import zipfile

import pytest

from image_classification.files.archives import extract_once
from image_classification.files.download import Source
from image_classification.runtime import UserError
from tests.helpers.data_samples import tar_bytes


def test_extraction_gives_the_content_once(tmp_path):
    archive = tmp_path / "a.tar.gz"
    archive.write_bytes(tar_bytes({"x/1.txt": b"one", "./x/y/2.txt": b"two"}, "w:gz"))
    folder = extract_once(archive, tmp_path / "out")
    assert (folder / "x/1.txt").read_bytes() == b"one" and (folder / "x/y/2.txt").read_bytes() == b"two"
    archive.unlink()
    assert extract_once(archive, tmp_path / "out") == folder


def _link(kind):
    info = tarfile.TarInfo("inside")
    info.type, info.linkname = kind, "../../outside"
    return info


@pytest.mark.parametrize(
    "members",
    [
        {"../outside": b"x"},
        {"a/../../outside": b"x"},
        {"/tmp/outside": b"x"},
        {"a\\..\\..\\outside": b"x"},
        {"inside": _link(tarfile.SYMTYPE)},
        {"inside": _link(tarfile.LNKTYPE)},
        {"inside": _link(tarfile.FIFOTYPE)},
    ],
)
def test_archive_that_leaves_its_folder_is_refused(tmp_path, members):
    base = tmp_path / "base"
    base.mkdir()
    (base / "evil.tar").write_bytes(tar_bytes(members))
    with pytest.raises(UserError, match=r"evil.tar: refused: "):
        extract_once(base / "evil.tar", base / "data" / "out")
    assert not (base / "data" / "out").exists() and not list(tmp_path.rglob("outside"))


def test_zip_that_leaves_its_folder_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "evil.zip", "w") as zipped:
        zipped.writestr("../outside", b"x")
    with pytest.raises(UserError, match="refused"):
        extract_once(tmp_path / "evil.zip", tmp_path / "out")


def test_cut_archives_are_refused_and_leave_no_folder(tmp_path):
    content = os.urandom(30000)
    members = {"1": content, "2": os.urandom(30000)}
    at_a_header = 512 + 30208  # the first member: header, bytes, padding
    for name, mode, size in (("a.tar", "w", 40000), ("b.tar", "w", at_a_header), ("a.tar.gz", "w:gz", 40000)):
        (tmp_path / name).write_bytes(tar_bytes(members, mode)[:size])
        with pytest.raises(UserError, match="is cut, damaged"):
            extract_once(tmp_path / name, tmp_path / "out")
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as zipped:
        zipped.writestr("1", content)
    damaged = bytearray(file.getvalue())
    damaged[5000] ^= 1
    (tmp_path / "a.zip").write_bytes(damaged)
    with pytest.raises(UserError, match="is cut or damaged: Bad CRC-32"):
        extract_once(tmp_path / "a.zip", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["n" * 300, "d" * 300 + "/x", ".", "x/../.."])
def test_name_that_no_file_can_have_is_one_line(tmp_path, name):
    (tmp_path / "a.tar").write_bytes(tar_bytes({name: b"x"}))
    with pytest.raises(UserError, match=r"a.tar: ") as caught:
        extract_once(tmp_path / "a.tar", tmp_path / "out")
    assert str(caught.value).isprintable() and not (tmp_path / "out").exists()


@pytest.mark.parametrize("second", ["x", "x/y"])
def test_members_that_take_the_same_place_are_refused(tmp_path, second):
    (tmp_path / "a.tar").write_bytes(tar_bytes([("x", b"one"), (second, b"two")]))
    with pytest.raises(UserError, match="cannot be extracted"):
        extract_once(tmp_path / "a.tar", tmp_path / "out")


def test_archive_of_many_empty_files_is_refused(tmp_path):
    (tmp_path / "a.tar.gz").write_bytes(tar_bytes({str(number): b"" for number in range(5000)}, "w:gz"))
    with pytest.raises(UserError, match=r"more than \d+ members"):
        extract_once(tmp_path / "a.tar.gz", tmp_path / "out")


def test_zip_that_unfolds_without_bound_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as zipped:
        zipped.writestr("x", bytes(80 << 20))
    with pytest.raises(UserError, match="unfolds to more than"):
        extract_once(tmp_path / "bomb.zip", tmp_path / "out")


def test_archive_of_another_hash_than_the_published_one_is_not_extracted(tmp_path):
    (tmp_path / "a.tar").write_bytes(tar_bytes({"x": b"one"}))
    with pytest.raises(UserError, match="a.tar: has md5:.*expected md5:0"):
        extract_once(tmp_path / "a.tar", tmp_path / "out", Source("https://x/a.tar", "a.tar", "md5:" + "0" * 32))
    assert not (tmp_path / "out").exists()
