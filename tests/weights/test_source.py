"""Where weights come from: no file stands for another one, and what the cache has is what was published."""

import hashlib
import os

import pytest

from image_classification.runtime import UserError
from image_classification.weights import find_weights, read_registry, source
from image_classification.weights.registry import Entry
from tests.helpers.web_server import head, web_server

ID = "torchvision/resnet18.V1"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PADDLE_ZOO_WEIGHTS", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def server(cache):
    with web_server() as running:
        yield running


def address(server, path):
    return server.url.replace("/file.bin", path)


def publish(monkeypatch, server, digest):
    """Let the registry know one set of weights, on this server."""
    entry = read_registry()[ID]
    values = {name: getattr(entry, name) for name in Entry.__dataclass_fields__}
    entry = Entry(**values | {"url": address(server, "/resnet18.pth"), "digest": digest})
    monkeypatch.setattr(source, "read_registry", lambda: {ID: entry})
    monkeypatch.setattr(source, "find_entry", lambda name: {ID: entry}[name])


def test_run_folder_means_its_best_weights(tmp_path):
    with pytest.raises(UserError, match="the folder has no best.pdparams"):
        find_weights(str(tmp_path))
    (tmp_path / "best.pdparams").write_bytes(b"")
    assert find_weights(str(tmp_path)) == tmp_path / "best.pdparams"


def test_download_when_the_user_has_no_home_names_the_variable_for_a_folder(monkeypatch):
    def home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("PADDLE_ZOO_WEIGHTS", raising=False)
    monkeypatch.setattr(source.Path, "home", home)
    with pytest.raises(UserError, match="Could not determine home directory. PADDLE_ZOO_WEIGHTS may name a folder"):
        find_weights(ID)


def test_urls_that_end_alike_are_different_files(server):
    first, second = address(server, "/a/model.safetensors"), address(server, "/b/model.safetensors")
    server.contents = {"/a/model.safetensors": b"one", "/b/model.safetensors": b"two"}
    for _ in range(2):  # the second time from the cache
        assert find_weights(first).read_bytes() == b"one"
        assert find_weights(second).read_bytes() == b"two"
    assert len(server.requests) == 2
    assert find_weights(f"{first}?version=2") != find_weights(first)


def test_cached_url_needs_no_network(server, cache):
    url = address(server, "/a/model.safetensors")
    path = find_weights(url)
    server.shutdown()
    server.server_close()
    assert find_weights(url) == path


def test_url_cannot_stand_for_a_registry_id(server, cache, monkeypatch):
    content = b"of the publisher"
    publish(monkeypatch, server, f"sha256:{hashlib.sha256(content).hexdigest()}")
    name = read_registry()[ID].file_name
    server.contents = {f"/x/{name}": b"of a stranger", "/resnet18.pth": content}
    assert find_weights(address(server, f"/x/{name}")).read_bytes() == b"of a stranger"
    assert find_weights(ID).read_bytes() == content
    assert find_weights(ID) == cache / name


def test_cached_file_of_the_registry_is_hashed(server, cache, monkeypatch):
    content = b"of the publisher"
    publish(monkeypatch, server, f"sha256:{hashlib.sha256(content).hexdigest()[:8]}")
    cache.mkdir()
    path = cache / "torchvision--resnet18.V1.pth"
    path.write_bytes(b"put there by somebody")
    with pytest.raises(UserError, match=r"resnet18.V1.pth: has sha256:.*expected sha256:.*remove it"):
        find_weights(ID)
    path.write_bytes(content)
    assert find_weights(ID) == path and not server.requests


def test_cached_file_that_changed_since_its_download_is_noticed(server, cache):
    url = address(server, "/a/model.safetensors")
    path = find_weights(url)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match="is damaged or another file; remove it"):
        find_weights(url)


def test_hash_that_the_hub_announces_is_checked(server):
    url = address(server, "/a/model.safetensors")
    server.head = head(302, f'X-Linked-ETag: "{hashlib.sha256(b"other").hexdigest()}"', "Location: http://x/")
    with pytest.raises(UserError, match="expected sha256:"):
        find_weights(url)
    server.head = head(302, f'X-Linked-ETag: "{hashlib.sha256(server.content).hexdigest()}"', "Location: http://x/")
    assert find_weights(url).read_bytes() == server.content


def test_hash_in_the_name_of_a_url_is_checked(server):
    """torchvision's names end in it."""
    digest = hashlib.sha256(server.content).hexdigest()[:8]
    assert find_weights(address(server, f"/resnet18-{digest}.pth")).read_bytes() == server.content
    with pytest.raises(UserError, match="expected sha256:00000000; the file was removed"):
        find_weights(address(server, "/resnet18-00000000.pth"))


@pytest.mark.parametrize(
    "url",
    [
        "http://[::1/x.pth", "https://127.0.0.1:1/", "http://127.0.0.1:99999/x.pth", "http://127.0.0.1:9/\x1b[2J.pth",
        "http://127.0.0.1:9/\udc80.pth", "http:///x.pth", "file://[/x", "hf-hub:ä/ß", "x" * 300, "a\0b", "file:///a%00b",
        "http://127.0.0.1:9/" + "n" * 300 + ".pth", "http://127.0.0.1:9/..", "http://127.0.0.1:9/%2e%2e%2fx.pth",
    ],
)  # fmt: skip
def test_malformed_source_is_one_line_and_leaves_nothing_outside_the_cache(tmp_path, cache, monkeypatch, url):
    monkeypatch.setattr("image_classification.files.download.ATTEMPTS", 1)
    if url.startswith("hf-hub"):
        monkeypatch.setattr(source, "hub_url", lambda name: f"http://127.0.0.1:9/{name}/model.safetensors")
    with pytest.raises(UserError) as caught:
        find_weights(url)
    assert str(caught.value).isprintable() and "-pretrained" in str(caught.value)
    found = [os.path.join(base, file) for base, _, files in os.walk(tmp_path) for file in files]
    assert all(file.startswith(str(cache / "urls" / ".")) for file in found)
