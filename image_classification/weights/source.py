"""From what a user calls weights to a file on this machine: registry id, hub id, URL or path."""

import hashlib
import http.client
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from ..files.download import Source, download_once
from ..runtime import UserError
from .registry import HUB_ID, find_entry, hub_url, read_registry

CACHE_VARIABLE = "PADDLE_ZOO_WEIGHTS"
SHA256 = re.compile(r"[0-9a-f]{64}")


def cache_folder():
    """Return where downloads are kept: $PADDLE_ZOO_WEIGHTS, else ~/.cache/paddle_zoo/weights.

    Raises:
        UserError: the user has no home.
    """
    try:
        return Path(os.environ.get(CACHE_VARIABLE) or Path.home() / ".cache" / "paddle_zoo" / "weights")
    except RuntimeError as error:
        raise UserError(f"-pretrained: {error} {CACHE_VARIABLE} may name a folder for downloads") from None


def find_weights(source):
    """Return the path of a weight file, downloaded if need be.

    Args:
        source: a file with or without .pdparams, a run's folder (its best), file:// or https:// URL,
            `hf-hub:owner/name`, or a registry id.

    Raises:
        UserError: there is no such file or id, the download failed, or what the cache has is damaged or another file;
            the text says which file to put where.
    """
    place = locate(source)
    return place if isinstance(place, Path) else _download(*place)


def is_here(source):
    """Return whether weights are on this machine, be they whole or not; fetch nothing."""
    try:
        place = locate(source)
    except UserError:
        return False
    return isinstance(place, Path) or os.path.exists(cache_folder() / place[1])


def locate(source):
    """Return the path of a weight file that is there, or (URL, name in the cache, hash or None); fetch nothing.

    Raises:
        UserError: as :func:`find_weights`, but for the download.
    """
    for candidate in (source, f"{source}.pdparams", os.path.join(source, "best.pdparams")):
        if os.path.isfile(candidate):  # pathlib's raises where a name is too long
            return Path(candidate)
    if os.path.isdir(source):
        raise UserError(f"-pretrained: {source}: the folder has no best.pdparams")
    if source.startswith("file://"):
        return _existing(Path(urllib.request.url2pathname(_split(source).path)))
    if source.startswith(("https://", "http://")):
        return source, *_place(source)
    hub = HUB_ID.fullmatch(source)
    if hub:
        return hub_url(hub[1]), *_place(hub_url(hub[1]))
    if source.endswith((".pdparams", ".pth", ".pt", ".safetensors")) and source not in read_registry():
        _existing(Path(source))
    entry = find_entry(source)
    if entry.by_hand:
        return _fetched_by_hand(entry)
    return entry.url, entry.file_name, entry.digest


def _split(url):
    try:
        return urllib.parse.urlsplit(url)
    except ValueError as error:
        raise UserError(f"-pretrained: {url}: {error}") from None


def _place(url):
    """Return (name in the cache, hash or None) for a URL: two URLs never share a file, nor one with a registry id."""
    name = Path(_split(url).path).name
    if not name:
        raise UserError(f"-pretrained: {url}: names no file")
    key = hashlib.sha256(url.encode(errors="surrogateescape")).hexdigest()[:32]
    readable = re.sub(r"[^\w.-]", "_", name, flags=re.ASCII)[-80:]
    return f"urls/{key}-{readable}", _digest_in_name(name)


def _fetched_by_hand(entry):
    path = cache_folder() / entry.file_name
    if not os.path.isfile(path):
        raise UserError(
            f"-pretrained: {entry.id}: is published behind a page for browsers only: get the .pdparams file from"
            f" {entry.url} and put it at {path}"
        )
    return path


def _existing(path):
    if not os.path.isfile(path):
        raise UserError(f"-pretrained: {path}: no such file")
    return path


def _digest_in_name(name):
    """Return the hash that torchvision puts into its file names (`resnet50-0676ba61.pth`), or None."""
    match = re.fullmatch(r".*-([0-9a-f]{8,64})\.pth", name)
    return f"sha256:{match[1]}" if match else None


def _download(url, file_name, digest):
    path = cache_folder() / file_name
    if digest is None and not os.path.lexists(path):
        digest = _announced_digest(url)
    try:
        return download_once(Source(url, path.name, digest), path.parent)
    except UserError as error:
        raise UserError(
            f"-pretrained: {error}. Without a network: get {url} elsewhere and put it at {path}"
        ) from None


class _StayHere(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_):
        return None


def _announced_digest(url):
    """Return the SHA-256 that the hub gives for a large file in its first answer, or None."""
    try:
        request = urllib.request.Request(url, method="HEAD")
        with urllib.request.build_opener(_StayHere).open(request, timeout=30) as response:
            headers = response.headers
    except urllib.error.HTTPError as error:  # the redirect to the storage, which is not followed
        headers = error.headers
        error.close()
    except (OSError, ValueError, http.client.HTTPException):
        return None  # the download itself reports what is wrong
    tag = headers.get("X-Linked-ETag", "").strip('W/"')
    return f"sha256:{tag}" if SHA256.fullmatch(tag) else None
