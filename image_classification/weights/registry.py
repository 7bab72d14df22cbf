"""The zoo's published weights, as data: one YAML per family in `registry/`."""

import dataclasses
import difflib
import functools
import re
from pathlib import Path

import yaml

from ..runtime import UserError

FOLDER = Path(__file__).resolve().parent / "registry"
HUB_ID = re.compile(r"(?:hf-hub:|hf:)([\w.-]+/[\w.-]+)")


@dataclasses.dataclass(frozen=True)
class Entry:
    """One published set of weights; `url` may be derived from a hub id, `digest` is "sha256:..." or "md5:...".

    With `by_hand` the URL is a page for people, behind which the file lies. `classes` is the number of the head's
    outputs, 0 where there is no head.
    """

    id: str
    family: str
    variant: str
    url: str
    digest: str | None
    licence: str
    top1: float | None
    preprocessing: dict
    by_hand: bool
    classes: int = 1000

    @property
    def file_name(self):
        """Name in the cache: unique over all publishers."""
        ending = ".pdparams" if self.by_hand else Path(self.url).suffix
        return self.id.replace("/", "--") + ending


def hub_url(hub_id):
    """Return the address of the weights in a Hugging Face repository."""
    return f"https://huggingface.co/{hub_id}/resolve/main/model.safetensors"


@functools.cache
def read_registry():
    """Return {id: Entry} over all families."""
    entries = {}
    for family, variants in read_variants().items():
        for variant, data in variants.items():
            for name, weight in data["weights"].items():
                digest = next((f"{kind}:{weight[kind]}" for kind in ("sha256", "md5") if kind in weight), None)
                url = weight.get("url") or weight.get("page") or hub_url(weight["hub"])
                entries[name] = Entry(name, family, variant, url, digest, weight["licence"], weight["top1"],
                                      weight["preprocessing"], by_hand="page" in weight,
                                      classes=weight.get("classes", 1000))  # fmt: skip
    return entries


@functools.cache
def read_variants():
    """Return {family: {variant: what its YAML says}}."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's reads all families in a tenth of the time
    paths = sorted(FOLDER.glob("*.yaml"))
    return {path.stem: yaml.load(path.read_text(encoding="utf-8"), loader) or {} for path in paths}


def published(source):
    """Return the Entry of a registry id, also where it is given as the hub's; None for other sources: paths, None."""
    hub = HUB_ID.fullmatch(str(source))
    entry = read_registry().get(hub[1] if hub else source)
    return None if hub and entry and entry.url != hub_url(hub[1]) else entry


def find_entry(name):
    """Return the Entry of a registry id.

    Raises:
        UserError: the id is unknown; the nearest ids are named.
    """
    entries = read_registry()
    if name in entries:
        return entries[name]
    near = difflib.get_close_matches(name, entries, n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(near)}?" if near else "; tools/list_models.py -weights lists all"
    raise UserError(f"-pretrained: {name}: no such file and no weights of that name{hint}")
