"""Downloads: resumed, verified, made once, never half, whatever the server answers."""

import hashlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import pytest

from image_classification.data import build_dataset
from image_classification.files import download
from image_classification.files.download import Source, download_once
from image_classification.runtime import UserError
from tests.helpers.data_samples import cifar10_members, make_config, publish_cifar10, tar_bytes, write_class_folders
from tests.helpers.web_server import head, web_server

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def server():
    with web_server() as running:
        yield running


def source_of(server, name="file.bin"):
    return Source(server.url, name, f"sha256:{hashlib.sha256(server.content).hexdigest()}")


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(download, "time", types.SimpleNamespace(sleep=lambda seconds: None))


def visible(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def test_download_is_made_once_and_verified(server, tmp_path):
    for _ in range(2):
        assert download_once(source_of(server), tmp_path).read_bytes() == server.content
    assert server.requests == [None]
    assert visible(tmp_path) == ["file.bin"]


def test_wrong_hash_is_refused_and_removed(server, tmp_path):
    wrong = Source(server.url, "file.bin", "md5:" + "0" * 32)
    with pytest.raises(UserError, match="expected md5:0000"):
        download_once(wrong, tmp_path)
    assert visible(tmp_path) == []


@pytest.mark.parametrize("knows_ranges", [True, False])
def test_interrupted_download_is_continued(server, tmp_path, knows_ranges):
    server.knows_ranges = knows_ranges
    (tmp_path / "file.bin.part").write_bytes(server.content[:7000])
    assert download_once(source_of(server), tmp_path).read_bytes() == server.content
    assert server.requests == ["bytes=7000-"]


def test_part_that_is_already_whole_is_accepted(server, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(server.content)
    assert download_once(source_of(server), tmp_path).read_bytes() == server.content


def test_cut_connections_are_retried_from_where_they_stopped(server, tmp_path):
    server.cut_after = 20000
    assert download_once(source_of(server), tmp_path).read_bytes() == server.content
    assert server.requests == [None, "bytes=20000-", "bytes=40000-"]


@pytest.mark.parametrize(("status", "attempts"), [(404, 1), (503, download.ATTEMPTS)])
def test_server_errors_end_in_one_line(server, tmp_path, status, attempts):
    server.status = status
    with pytest.raises(UserError, match=f"download failed: HTTP {status}"):
        download_once(source_of(server), tmp_path)
    assert len(server.requests) == attempts


def test_unreachable_server_ends_in_one_line(tmp_path):
    with pytest.raises(UserError, match="download failed: "):
        download_once(Source("http://127.0.0.1:9/x", "x", "md5:0"), tmp_path)


def unpublished(server, name="file.bin"):
    return Source(server.url, name, None)


def left_behind(server, folder, content, size=None, version='"one"'):
    """Leave the part and the record of a download that was interrupted."""
    (folder / "file.bin.part").write_bytes(content)
    record = {"url": server.url, "size": size or len(server.content), "version": version}
    (folder / ".file.bin.source").write_text(json.dumps(record))


def test_file_that_is_there_is_verified_against_the_published_hash(server, tmp_path):
    (tmp_path / "file.bin").write_bytes(b"something else")
    with pytest.raises(UserError, match=f"file.bin: has sha256:.*expected {source_of(server).digest}.*remove it"):
        download_once(source_of(server), tmp_path)
    assert (tmp_path / "file.bin").read_bytes() == b"something else" and not server.requests


def test_file_without_a_published_hash_is_verified_against_its_own_download(server, tmp_path):
    path = download_once(unpublished(server), tmp_path)
    assert download_once(unpublished(server), tmp_path) == path and len(server.requests) == 1
    path.write_bytes(server.content[:-1] + b"x")
    with pytest.raises(UserError, match="is damaged or another file; remove it"):
        download_once(unpublished(server), tmp_path)
    path.write_bytes(server.content)
    with pytest.raises(UserError, match=r"comes from http://127.0.0.1:\d+/file.bin, not from https://other"):
        download_once(Source("https://other/file.bin", "file.bin", None), tmp_path)


def test_file_that_was_put_there_by_hand_needs_no_network(tmp_path):
    (tmp_path / "file.bin").write_bytes(b"by hand")
    assert download_once(Source("http://127.0.0.1:9/x", "file.bin", None), tmp_path).read_bytes() == b"by hand"


def test_part_is_continued_without_a_hash_where_the_server_says_that_it_is_of_this_version(server, tmp_path):
    server.etag = '"one"'
    left_behind(server, tmp_path, server.content[:7000])
    assert download_once(unpublished(server), tmp_path).read_bytes() == server.content
    assert [(each["range"], each["if-range"]) for each in server.request_headers] == [("bytes=7000-", '"one"')]


def test_part_of_another_version_is_fetched_anew(server, tmp_path):
    server.etag = '"two"'
    left_behind(server, tmp_path, b"x" * 7000)
    assert download_once(unpublished(server), tmp_path).read_bytes() == server.content


@pytest.mark.parametrize("published", [True, False])
def test_part_of_nobody_knows_what_is_fetched_anew(server, tmp_path, published):
    (tmp_path / "file.bin.part").write_bytes(b"x" * 7000)
    source = source_of(server) if published else unpublished(server)
    assert download_once(source, tmp_path).read_bytes() == server.content
    # with a hash it is worth a try, which fails; without one nobody would notice
    assert server.requests == (["bytes=7000-", None] if published else [None])


@pytest.mark.parametrize(
    "answer",
    [
        head(206, "Content-Length: 4"),  # no Content-Range
        head(206, "Content-Range: bytes 0-3/51200", "Content-Length: 4"),
        head(206, "Content-Range: bytes 7000-7003/51200", "Content-Length: 4"),
        head(206, "Content-Range: bytes 7000-7003/7004", "Content-Length: 4"),
        head(206, "Content-Range: bytes 7000-51199/51200", 'ETag: "two"', "Content-Length: 44200"),
        head(206, "Content-Range: bytes 7000-99999999999999999999/9", "Content-Length: 4"),
        head(206, "Content-Range: chapters 1-2/3", "Content-Length: 4"),
        head(416, "Content-Range: bytes */7000"),
        head(416),
    ],
)
def test_answer_that_does_not_continue_the_part_is_not_taken(server, tmp_path, answer):
    server.etag = '"one"'
    left_behind(server, tmp_path, server.content[:7000])
    server.answers = [answer + b"four"]
    assert download_once(unpublished(server), tmp_path).read_bytes() == server.content
    assert server.requests == ["bytes=7000-", None]


CHUNKED = head(200, "Transfer-Encoding: chunked")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"no web server\r\n\r\n",
        b"HTTP/1.1 99999 Strange\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000,
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 500 + b"\r\n",
        head(204),
        head(206, "Content-Range: bytes 0-3/4", "Content-Length: 4") + b"four",
        head(301),
        head(500),
        head(429),
        head(200, "Content-Length: 51200") + bytes(100),
        CHUNKED + b"ffff\r\nabc",
        CHUNKED + b"3\r\nabc\r\n",
        CHUNKED + b"no number\r\nabc\r\n",
        head(200, "Content-Encoding: gzip", "Content-Length: 4") + b"four",
    ],
)
def test_broken_answer_is_followed_by_another_attempt_or_one_line(server, tmp_path, answer):
    server.answers = [answer]
    try:
        assert download_once(unpublished(server), tmp_path).read_bytes() == server.content
    except UserError as error:
        assert "download failed: HTTP 301" in str(error)
    assert visible(tmp_path) in (["file.bin"], [])
    server.answers = [answer] * download.ATTEMPTS
    with pytest.raises(UserError, match="download failed: ") as caught:
        download_once(unpublished(server, "again.bin"), tmp_path)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("length", ["-5", "x", "9" * 5000, ""])
def test_length_that_is_none_is_as_good_as_no_length(server, tmp_path, length):
    server.answers = [head(200, f"Content-Length: {length}") + b"all of it"]
    assert download_once(unpublished(server), tmp_path).read_bytes() == b"all of it"


@pytest.mark.parametrize("start", [head(200), CHUNKED])
def test_body_without_end_is_cut_off_at_the_largest_allowed_size(server, tmp_path, monkeypatch, start):
    monkeypatch.setattr(download, "LARGEST", 1 << 20)
    block = b"10000\r\n" + bytes(1 << 16) + b"\r\n" if start is CHUNKED else bytes(1 << 16)
    server.answers = [itertools.chain([start], itertools.repeat(block))]
    with pytest.raises(UserError, match="more than 1048576 bytes come"):
        download_once(unpublished(server), tmp_path)
    assert (tmp_path / "file.bin.part").stat().st_size <= 1 << 20


def test_claimed_size_is_refused_before_anything_is_received(server, tmp_path, monkeypatch):
    server.answers = [head(200, f"Content-Length: {1 << 50}") + b"x"] * 2
    with pytest.raises(UserError, match="at most 34359738368 are allowed"):
        download_once(unpublished(server), tmp_path)
    monkeypatch.setattr(download, "LARGEST", 1 << 60)
    with pytest.raises(UserError, match="has no room for 1125899906842624 bytes"):
        download_once(unpublished(server), tmp_path)


@pytest.mark.parametrize(
    "url",
    [
        "http://[::1/x", "http://127.0.0.1:99999/x", "http://127.0.0.1:x/x", "http://a b/x", "http:///x", "http://\x00/x",
        "http://127.0.0.1/\n", "http://" + "a" * 300 + "/x", "http://\u2100.example\udc80/x", "ftp://127.0.0.1/x",
        "file:///etc/passwd", "data:,x", "x",
    ],
)  # fmt: skip
def test_malformed_address_is_one_line(tmp_path, url):
    with pytest.raises(UserError, match="download failed: ") as caught:
        download_once(Source(url, "x", None), tmp_path)
    assert str(caught.value).isprintable() and visible(tmp_path) == []


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/x", "http://[::1/x", "gopher://x"])
def test_redirect_away_from_the_web_is_not_followed(server, tmp_path, target):
    server.answers = [head(302, f"Location: {target}")]
    with pytest.raises(UserError, match="download failed: "):
        download_once(unpublished(server), tmp_path)
    assert visible(tmp_path) == []


@pytest.mark.parametrize("record", ["", "[]", "{", '{"url": 3, "size": "x", "digest": "md5:zz"}', "[" * 100_000])
def test_record_that_is_none_is_as_good_as_no_record(server, tmp_path, record):
    (tmp_path / "file.bin").write_bytes(b"by hand")
    (tmp_path / ".file.bin.source").write_text(record)
    assert download_once(unpublished(server), tmp_path).read_bytes() == b"by hand"


@pytest.mark.parametrize("place", ["file.bin", "file.bin.part", ".file.bin.lock", ".file.bin.source"])
@pytest.mark.parametrize("kind", ["fifo", "link to nothing", "folder"])
def test_what_is_no_plain_file_never_blocks_a_download(server, tmp_path, place, kind):
    path = tmp_path / place
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("nowhere")
    try:
        assert download_once(unpublished(server), tmp_path).read_bytes() == server.content
    except UserError as error:
        assert str(tmp_path) in str(error)
    assert not (tmp_path / "nowhere").exists()


# ---- several processes

FETCH_AND_EXTRACT = """
import sys
sys.path.insert(0, {root!r})
from image_classification.files.archives import extract_once
from image_classification.files.download import Source, download_once
archive = download_once(Source({url!r}, "files.tar", {digest!r}), {folder!r})
extract_once(archive, {folder!r} + "/files")
"""


@pytest.fixture
def archive_script(server, tmp_path):
    """A tar file of 300 small files that takes the server a while, and the script that fetches and extracts it."""
    server.content = tar_bytes({f"{number}.txt": b"%d" % number * 50 for number in range(300)})
    script = FETCH_AND_EXTRACT.format(
        root=str(ROOT), url=server.url, digest=source_of(server).digest, folder=str(tmp_path)
    )
    return [sys.executable, "-c", script]


def assert_files_whole(folder):
    assert visible(folder) == ["files", "files.tar"]
    assert len(visible(folder / "files")) == 300
    for number in range(300):
        assert (folder / "files" / f"{number}.txt").read_bytes() == b"%d" % number * 50


def test_processes_that_start_at_once_share_one_download(server, tmp_path, archive_script):
    processes = [subprocess.Popen(archive_script) for _ in range(3)]
    assert [process.wait(timeout=60) for process in processes] == [0, 0, 0]
    assert server.requests == [None]
    assert_files_whole(tmp_path)


def _wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.002)


def test_kill_in_the_middle_of_a_download_is_survived(server, tmp_path, archive_script):
    server.delay = 0.003
    part = tmp_path / "files.tar.part"
    process = subprocess.Popen(archive_script)
    _wait_for(lambda: part.exists() and part.stat().st_size > 0)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert visible(tmp_path) == ["files.tar.part"]
    server.delay, done = 0, part.stat().st_size
    assert 0 < done < len(server.content)
    assert subprocess.run(archive_script, timeout=60).returncode == 0
    assert server.requests == [None, f"bytes={done}-"]
    assert_files_whole(tmp_path)


def test_kill_in_the_middle_of_an_extraction_is_survived(server, tmp_path, archive_script):
    slow = archive_script[:2] + [
        "import builtins, os, signal\n"
        "opens, count = open, []\n"
        "def dies(path, mode='r', *arguments, **options):\n"
        "    count.append(mode == 'xb')\n"
        "    if sum(count) == 150: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return opens(path, mode, *arguments, **options)\n"
        "builtins.open = dies\n" + archive_script[2]
    ]
    assert subprocess.run(slow, timeout=60).returncode == -signal.SIGKILL
    assert visible(tmp_path) == ["files.extracting", "files.tar"]
    assert subprocess.run(archive_script, timeout=60).returncode == 0
    assert_files_whole(tmp_path)


# ---- as a user asks for it


def test_download_key_fetches_the_archive_and_loads_it(server, tmp_path, monkeypatch):
    members, truth = cifar10_members()
    server.content = tar_bytes(members, "w:gz")
    publish_cifar10(monkeypatch, server.content, server.url)
    config = make_config(DATASET="cifar10", DATA_PATH=tmp_path / "new", DOWNLOAD=True)
    assert build_dataset(config, "val").labels.tolist() == truth["val"][1]
    assert build_dataset(config, "train").labels.tolist() == truth["train"][1]
    assert len(server.requests) == 1


def test_download_key_leaves_an_extracted_data_set_alone(tmp_path):
    write_class_folders(tmp_path / "101_ObjectCategories", {"ant": 5})
    config = make_config(1, DATASET="caltech101", DATA_PATH=tmp_path, DOWNLOAD=True)
    assert len(build_dataset(config, "train")) == 4
    assert not list(tmp_path.glob("*.part"))


def test_download_of_a_private_data_set_is_an_error():
    with pytest.raises(UserError, match="imagenet2012 has no public download"):
        build_dataset(make_config(DATASET="imagenet2012", DOWNLOAD=True), "train")
