"""Downloads and extraction: resumed, verified, made once, never half."""

import hashlib
import http.server
import io
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
import types
import zipfile
from pathlib import Path

import pytest

from image_classification.data import build_dataset, download, sources
from image_classification.data.cifar import CIFAR
from image_classification.data.download import Source, download_once, extract_once
from image_classification.runtime import UserError
from tests.helpers.data_samples import cifar10_members, make_config, tar_bytes, write_class_folders

ROOT = Path(__file__).resolve().parents[2]


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves ``server.content``; knows Range; can cut the connection or answer slowly."""

    def do_GET(self):
        server = self.server
        content = server.content
        start = 0
        server.requests.append(self.headers.get("Range"))
        if server.status != 200:
            self.send_error(server.status)
            return
        if self.headers.get("Range") and server.knows_ranges:
            start = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-"))
            if start >= len(content):
                self.send_error(416)
                return
            self.send_response(206)
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        end = len(content) if server.cut_after is None else start + server.cut_after
        for position in range(start, min(end, len(content)), 1000):
            self.wfile.write(content[position : min(position + 1000, end)])
            time.sleep(server.delay)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.content = bytes(range(256)) * 200
    server.requests, server.status, server.knows_ranges, server.cut_after, server.delay = [], 200, True, None, 0
    server.url = f"http://127.0.0.1:{server.server_address[1]}/file.bin"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


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


# ---- extraction


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
        with pytest.raises(UserError, match="cannot be extracted"):
            extract_once(tmp_path / name, tmp_path / "out")
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as zipped:
        zipped.writestr("1", content)
    damaged = bytearray(file.getvalue())
    damaged[5000] ^= 1
    (tmp_path / "a.zip").write_bytes(damaged)
    with pytest.raises(UserError, match="cannot be extracted"):
        extract_once(tmp_path / "a.zip", tmp_path / "out")
    assert not (tmp_path / "out").exists()


# ---- several processes

FETCH_AND_EXTRACT = """
import sys
sys.path.insert(0, {root!r})
from image_classification.data.download import Source, download_once, extract_once
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
        "import os, shutil, signal\n"
        "copy, count = shutil.copyfileobj, []\n"
        "def dies(*arguments):\n"
        "    copy(*arguments); count.append(1)\n"
        "    if len(count) == 150: os.kill(os.getpid(), signal.SIGKILL)\n"
        "shutil.copyfileobj = dies\n" + archive_script[2]
    ]
    assert subprocess.run(slow, timeout=60).returncode == -signal.SIGKILL
    assert visible(tmp_path) == ["files.extracting", "files.tar"]
    assert subprocess.run(archive_script, timeout=60).returncode == 0
    assert_files_whole(tmp_path)


# ---- as a user asks for it


def test_download_key_fetches_the_archive_and_loads_it(server, tmp_path, monkeypatch):
    members, truth = cifar10_members()
    server.content = tar_bytes(members, "w:gz")
    source, is_present = source_of(server, CIFAR["cifar10"].source.file_name), sources.DOWNLOADS["cifar10"][1]
    monkeypatch.setitem(sources.DOWNLOADS, "cifar10", (source, is_present))
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
