"""The tar reader against Python's tarfile, and against headers that tarfile never ends with."""

import gzip
import io
import os
import tarfile

import pytest

from image_classification.files.tar import members, open_tar
from image_classification.runtime import UserError


def listing(path):
    """Return [(name, kind, content)] of an archive."""
    with open_tar(path) as (file, limit):
        return [
            (member.name, member.kind, file.read(member.size) if member.kind == "file" else b"")
            for member in members(file, limit)
        ]


def archive(kind, names_and_contents, mode="w"):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode, format=kind) as tar:
        for name, content in names_and_contents:
            info = tarfile.TarInfo(name)
            if content is None:
                info.type = tarfile.DIRTYPE
            else:
                info.size = len(content)
            tar.addfile(info, io.BytesIO(content or b""))
    return file.getvalue()


CONTENTS = [
    ("plain.txt", b"some text"),
    ("empty", b""),
    ("block", bytes(512)),
    ("folder", None),
    ("folder/" + "long" * 20 + "/" + "name" * 20, b"x" * 1000),
    ("grüße.jpg", b"\xff\xd8"),
]


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_members_are_those_that_tarfile_wrote(tmp_path, kind, mode):
    contents = [*CONTENTS, ("very" * 60, b"long")] if kind != tarfile.USTAR_FORMAT else CONTENTS
    path = tmp_path / "a.tar"
    path.write_bytes(archive(kind, contents, mode))
    expected = [(name, "folder" if content is None else "file", content or b"") for name, content in contents]
    assert [(name.rstrip("/"), *rest) for name, *rest in listing(path)] == expected
    with tarfile.open(path) as tar:
        assert [member.name for member in tar] == [name for name, _, _ in expected]


def test_member_larger_than_octal_numbers_is_found_behind_its_place(tmp_path):
    info = tarfile.TarInfo("large")
    info.size = 9 << 30
    path = tmp_path / "a.tar"
    with open(path, "wb") as file:
        file.write(info.tobuf(tarfile.GNU_FORMAT))
        file.seek(info.size, os.SEEK_CUR)
        file.write(archive(tarfile.GNU_FORMAT, [("behind", b"it")]))
    with open_tar(path) as (file, limit):
        assert [(member.name, member.size) for member in members(file, limit)] == [("large", 9 << 30), ("behind", 2)]


def header(name=b"file", size=b"00000000000\0", kind=b"0", magic=b"ustar\x0000"):
    """Return a header block with a right checksum, whatever its fields say."""
    block = bytearray(512)
    for offset, value in ((0, name[:100]), (124, size), (156, kind), (257, magic)):
        block[offset : offset + len(value)] = value
    block[148:156] = b"%06o\0 " % (sum(block) + 8 * 32)
    return bytes(block)


def extended(kind, content):
    return header(b"x", b"%011o\0" % len(content), kind) + content + bytes(-len(content) % 512)


END = bytes(1024)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (header(size=b"\xff" * 12) + END, "a number that is none"),  # -1, and tarfile goes back by a block
        (header(size=b"\xff" * 10 + b"\xfe\x00") + END, "a number that is none"),
        (header(size=b"\x80" + b"\xff" * 11) + END, "is cut"),
        (header(size=b"-0000000001\0") + END, "a number that is none"),
        (header(size=b"77777777777\0") + END, "is cut"),
        (header(size=b"8\0") + END, "a number that is none"),
        (extended(b"x", b"13 size=-512\n") + header() + END, "a size that is none"),
        (extended(b"x", b"30 size=99999999999999999999\n\n") + header() + END, "a size that is none"),
        (extended(b"x", b"16 size=1000000\n") + header() + END, "is cut"),
        (extended(b"x", b"99 path=x\n") + header() + END, "malformed header"),
        (extended(b"x", b"0 path=x\n") + header() + END, "malformed header"),
        (extended(b"x", b"path\n") + header() + END, "malformed header"),
        (extended(b"x", b"22 GNU.sparse.major=1\n") + header() + END, "sparse"),
        (extended(b"x", b"9" * 60_000) + header() + END, "malformed header"),  # quadratic for tarfile
        (extended(b"x", bytes(70_000)) + header() + END, "a header of 70000 bytes"),
        (extended(b"L", b"x" * 70_000) + header() + END, "a header of 70000 bytes"),
        (header(kind=b"S") + END, "sparse"),
        (extended(b"L", b"a\nb\x1b") * 3000, "is cut"),  # no member follows; recursion for tarfile
        (extended(b"x", b"11 path=a\0\n") + header() + END, "a name with a zero"),
        (header()[:-1] + b"x" + END, "wrong checksum"),
        (header() + bytes(100), "is cut"),
        (header(), "is cut"),
        (b"", "is cut"),
        (b"no archive" * 100, "that is none"),
    ],
)
def test_malformed_archive_is_one_line(tmp_path, content, message):
    path = tmp_path / "a.tar"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        listing(path)
    assert str(caught.value).startswith(f"{path}: ") and str(caught.value).isprintable()


def test_every_changed_byte_of_a_gzipped_archive_is_noticed_or_changes_nothing(tmp_path):
    contents = [("a", os.urandom(300)), ("b", bytes(300))]
    whole = archive(tarfile.GNU_FORMAT, contents, "w:gz")
    path = tmp_path / "a.tar.gz"
    noticed = 0
    for index in range(len(whole)):
        path.write_bytes(whole[:index] + bytes([whole[index] ^ 1 << index % 8]) + whole[index + 1 :])
        try:
            assert listing(path) == [(name, "file", content) for name, content in contents], index
        except UserError:
            noticed += 1
    assert noticed > 0.9 * len(whole)  # not the time in gzip's header


def test_gzipped_archive_that_unfolds_without_bound_is_refused(tmp_path):
    path = tmp_path / "a.tar.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(header(size=b"%011o\0" % (80 << 20)))
        for _ in range(80):
            file.write(bytes(1 << 20))
        file.write(END)
    with pytest.raises(UserError, match="unfolds to more than"):
        listing(path)
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(header() + END)
        for _ in range(80):
            file.write(bytes(1 << 20))
    with pytest.raises(UserError, match="unfolds to more than"):
        listing(path)
