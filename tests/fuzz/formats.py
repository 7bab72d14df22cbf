"""Every format that comes from outside: valid files, who reads them, and how a change gets past the checksum.

A case writes one changed file beside the valid ones of its format, and reads. Where a format has a checksum, a change
of the file as a whole must be noticed or change nothing; the deeper layers see changes whose checksums were made right
again ("repaired").
"""

import dataclasses
import gzip
import io
import json
import os
import pickle
import tarfile
import zipfile
from collections.abc import Callable

import crc32c
import numpy as np
from PIL import Image

from image_classification import checkpoint, foreign
from image_classification.config import load_config
from image_classification.data import caltech101
from image_classification.data.cifar import CIFAR, read_cifar
from image_classification.data.decode import CorruptImage, decode
from image_classification.data.folders import read_list_file
from image_classification.data.imagenet_val import read_imagenet_val
from image_classification.data.tar_shards import read_tar_shards
from image_classification.data.tfrecord import frame, index_text, serialize_example
from image_classification.data.tfrecord_dataset import read_tfrecords
from image_classification.data.transforms import EvalTransform, TrainTransform
from image_classification.model import Model
from image_classification.preview import class_names
from image_classification.runtime import UserError
from image_classification.weights import read_weights, write_weights
from tests.helpers.checkpoints import make_state
from tests.helpers.data_samples import cifar10_members, encoded, make_config, photo, tar_bytes
from tests.helpers.hostile_pickles import hostile_pickles
from tests.helpers.weight_files import legacy_torch_file, safetensors_file

from .limits import MEGABYTES
from .mutate import change_bytes, change_pickle, change_text


@dataclasses.dataclass(frozen=True)
class Format:
    """How one kind of file is made and read.

    Attributes:
        seeds: contents of whole files.
        name: of the file that is changed, in the folder of the case.
        read: folder -> what was found.
        beside: {name: content} of the other files in that folder.
        change: (generator, content, seeds) -> content, of the file as it is.
        repaired: a change below the checksums, None where there are none.
        has_checksum: a change of the file as it is must be noticed, or change nothing of what is found.
        open_ended: a file that is cut between two of its records is a whole one: only an index beside it can tell.
    """

    seeds: list[bytes]
    name: str
    read: Callable
    beside: dict = dataclasses.field(default_factory=dict)
    change: Callable = change_bytes
    repaired: Callable | None = None
    has_checksum: bool = False
    open_ended: bool = False
    megabytes: int = MEGABYTES


# ---- weights


def _tensors():
    rng = np.random.default_rng(0)
    return {
        "fc.weight": rng.standard_normal((3, 4)).astype(np.float32),
        "fc.bias": rng.standard_normal(3).astype(np.float16),
        "bn.num": np.array(7, np.int64),
        "module.empty": np.zeros((0, 2), np.float32),
    }


def _written(folder, ending):
    path = folder / f"seed.{ending}"
    write_weights(path, _tensors())
    return path.read_bytes()


def _read_weights(folder):
    return read_weights(folder / "w").tensors


def _change_zip(rng, content, seeds):
    """Change one entry of a torch.save archive, or the list of them, with right checksums."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = [(info.filename, archive.read(info)) for info in archive.infolist()]
    index = 0 if rng.random() < 0.6 else rng.randrange(len(entries))
    name, data = entries[index]
    change = change_pickle if name.endswith(".pkl") else change_bytes
    entries[index] = name, change(rng, data, [entry for _, entry in entries])
    if rng.random() < 0.1:
        entries.pop(rng.randrange(len(entries)))
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED if rng.random() < 0.02 else zipfile.ZIP_STORED) as archive:
        for name, data in entries:
            archive.writestr(name, data)
    return out.getvalue()


def _with_trailer(content):
    return content + b"paddle-zoo crc32c %08x\n" % crc32c.crc32c(content)


def _change_pdparams(rng, content, seeds):
    return _with_trailer(change_pickle(rng, content[:-27], [seed[:-27] for seed in seeds]))


def _change_header(rng, content, seeds):
    """Change the JSON header of a safetensors file; its length stays true."""
    size = int.from_bytes(content[:8], "little")
    return safetensors_file(change_text(rng, content[8 : 8 + size], seeds), content[8 + size :])


def _pickle_seeds():
    small = [content for content in hostile_pickles().values() if len(content) < 20_000]
    return [pickle.dumps(_tensors(), protocol) for protocol in (2, 3, 4, 5)] + small


def _read_checkpoint(folder):
    return checkpoint.load(folder / "latest.pdparams")


def _read_paddlevit(folder):
    """Return the weights and what is read of the rest of a training checkpoint of PaddleViT."""
    path = folder / "Epoch-1.pdparams"
    tree = checkpoint.read(path)
    if not foreign.is_foreign(tree):
        raise UserError("no training checkpoint of PaddleViT")
    found = [foreign.weights(tree, Model(), str(path)), foreign.parameters(tree, "optimizer")]
    return [*found, foreign.saved_scale(tree)]


def _paddlevit_checkpoint():
    named = {name: (f"{name}.w_0", value) for name, value in _tensors().items()}
    moments = {f"{name}.w_0_moment1_0": (f"{name}.w_0_moment1_0", value) for name, value in _tensors().items()}
    scaler = {"scale": np.float32([1024]), "incr_count": 3, "use_dynamic_loss_scaling": True}
    state = {"model": named, "model_ema": named, "optimizer": moments | {"LR_Scheduler": {"last_epoch": 2}}, "epoch": 1,
             "lr_scheduler": {"last_epoch": 1, "last_lr": 0.1}, "amp_grad_scaler": scaler}  # fmt: skip
    return pickle.dumps(state, protocol=4)


def _checkpoint(folder):
    checkpoint.save(folder / "seed.pdparams", make_state())
    return (folder / "seed.pdparams").read_bytes()


# ---- data sets


def _samples(dataset):
    """Return what a data set holds; an image whose checksum is wrong counts as refused."""
    found = []
    for index in range(len(dataset)):
        try:
            content, label = dataset.read(index)
        except CorruptImage as error:
            raise UserError(f"corrupt: {error}") from None
        found.append((bytes(content), label))
    return found


def _cifar_images(folder):
    dataset = read_cifar("cifar10", folder, "val")
    return dataset.images, dataset.labels, dataset.class_names


def _without_published_hashes():
    """Let any archive be that of CIFAR-10 or of Caltech-101: the hashes would refuse each of them at once."""
    kind = CIFAR["cifar10"]
    CIFAR["cifar10"] = dataclasses.replace(kind, source=dataclasses.replace(kind.source, digest=None))
    caltech101.SOURCE = dataclasses.replace(caltech101.SOURCE, digest=None)


def _gzipped(content):
    return gzip.compress(content, 1)


def _change_tar(rng, content, seeds):
    """Change an uncompressed tar file: its headers with right checksums, or anything."""
    content = bytearray(change_bytes(rng, content, seeds) if rng.random() < 0.5 else content)
    for begin in range(0, len(content) - 511, 512):
        header = content[begin : begin + 512]
        if header[257:262] == b"ustar" and rng.random() < 0.5:
            field, size = rng.choice(((0, 100), (124, 12), (156, 1), (345, 155), (257, 8)))
            value = rng.choice((
                b"\xff" * 12, b"\x80" + b"\xff" * 11, b"77777777777\0", b"00000000000\0", b"00000001000\0", b"n" * 100,
                b"x", b"L", b"K", b"g", b"5", b"2", b"S", b"\0", b"../x", b"/etc/x", rng.randbytes(8),
            ))  # fmt: skip
            header[field : field + min(size, len(value))] = value[:size]
            header[148:156] = b"%06o\0 " % (sum(header) - sum(header[148:156]) + 8 * 32)
            content[begin : begin + 512] = header
    return bytes(content)


def _change_gzipped_tar(rng, content, seeds):
    return _gzipped(_change_tar(rng, gzip.decompress(content), [gzip.decompress(seed) for seed in seeds]))


def _change_pickle_in_archive(rng, content, seeds):
    """Change one pickle in a gzipped tar file."""
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        members = {member.name: tar.extractfile(member).read() for member in tar}
    name = rng.choice(list(members))
    members[name] = change_pickle(rng, members[name], list(members.values()))
    return tar_bytes(members, "w:gz")


def _change_cifar(rng, content, seeds):
    return rng.choice((_change_gzipped_tar, _change_pickle_in_archive))(rng, content, seeds)


def _caltech_members():
    return {
        f"101_ObjectCategories/{name}/image_{number:04d}.jpg": encoded(photo(16, 16, number))
        for name in ("ant", "BACKGROUND_Google")
        for number in range(5)
    }


def _read_caltech(folder):
    return _samples(caltech101.read_caltech101(folder, "train"))


def _records(count=3):
    return [
        serialize_example({"image/encoded": encoded(photo(12, 12, number)), "image/class/label": number + 1})
        for number in range(count)
    ]


def _record_index(records):
    position, rows = 0, []
    for record in records:
        rows.append((position, len(record) + 16))
        position += len(record) + 16
    return index_text(rows).encode()


def _change_example(rng, content, seeds):
    """Change the examples, with right framing."""
    return b"".join(map(frame, (change_bytes(rng, example, _records()) for example in _records())))


def _read_tfrecords(folder):
    return _samples(read_tfrecords(str(folder), "train", 5))


def _shard():
    members = {}
    for number in range(3):
        members |= {f"{number}.jpg": encoded(photo(12, 12, number)), f"{number}.cls": b"%d\n" % number}
    return tar_bytes(members | {"4.jpg": b"x", "4.json": b'{"label": 3, "caption": "text"}'})


def _change_json(rng, content, seeds):
    """Change the JSON and the text of the labels in a shard."""
    members = {"1.jpg": b"x", "1.json": change_text(rng, b'{"label": 3, "caption": ["text"]}', [content])}
    return tar_bytes(members | {"2.jpg": b"y", "2.cls": change_text(rng, b"4\n", [content])})


def _read_shards(folder):
    dataset = read_tar_shards(str(folder), "train", 10)
    return _samples(dataset)


def _shard_index(folder):
    (folder / "train-0.tar").write_bytes(_shard())
    read_tar_shards(str(folder), "train", 10)
    return (folder / "train-0.tar.index.npy").read_bytes()


def _read_list(folder):
    (folder / "folder").mkdir(exist_ok=True)
    for name in (b"a.jpg", b"folder/b c.jpg", b"\xff.jpg"):
        (folder / os.fsdecode(name)).touch()
    dataset = read_list_file(folder / "train_list.txt", folder, None)
    return [dataset.describe(index) for index in range(min(len(dataset), 100))], dataset.labels


def _meta_mat():
    from scipy.io import savemat

    kind = [("ILSVRC2012_ID", float), ("WNID", object), ("num_children", float)]
    file = io.BytesIO()
    savemat(file, {"synsets": np.array([(1, "n02", 0), (2, "n01", 0), (3, "n00", 3)], dtype=kind)})
    return file.getvalue()


def _read_imagenet_val(folder):
    dataset = read_imagenet_val(str(folder))
    return _samples(dataset), dataset.class_names


_VAL = {"ILSVRC2012_img_val.tar": tar_bytes({"a.jpg": b"one", "b.jpg": b"two"}),
        "ILSVRC2012_validation_ground_truth.txt": b"1\n2\n"}  # fmt: skip


# ---- pictures


def _picture(kind, mode=None, **options):
    return encoded(Image.new(mode, (20, 24)) if mode else photo(24, 20, 1), kind, **options)


def _turned():
    """Return the EXIF data of a photograph that lies on its side."""
    exif = Image.Exif()
    exif[0x0112] = 6  # orientation
    return exif


def _read_picture(folder):
    content = (folder / "picture").read_bytes()
    for library in ("cv2", "pil"):
        try:
            decode(content, library, upright=library == "pil")
            EvalTransform(32, library=library)(content)
            TrainTransform(32, library=library)(content, np.random.default_rng(0))
        except CorruptImage as error:
            reason = str(error)
            continue
        reason = None
    if reason is not None:
        raise UserError(reason)


# ---- texts


def build_model(num_classes: int = 10, embed_dim: int = 64, depths: tuple[int, ...] = (1, 2), rate: float = 0.0, **_):
    """A builder whose signature is a MODEL schema."""


def _read_yaml(folder):
    return repr(load_config([f"-cfg={folder / 'model.yaml'}"], build_model))


def _read_opts(folder):
    words = (folder / "words").read_bytes().decode("utf-8", "surrogateescape").split("\n")
    words = [word for word in words if word and not word.startswith("-")][:20]
    return repr(load_config([f"-cfg={folder / 'model.yaml'}", *(["-opts", *words] if words else [])], build_model))


def _read_class_names(folder):
    return class_names(make_config(3), folder / "names.txt")


_YAML = b"""BASE: base.yaml
DATA: {DATASET: digits, BATCH_SIZE: 32, IMAGENET_MEAN: [0.5, 0.5, 0.5]}
MODEL: {NAME: x, NUM_CLASSES: 10, EMBED_DIM: 32, DEPTHS: [1, 2], RATE: 0.1}
TRAIN:
  NUM_EPOCHS: 3
  BASE_LR: 3e-3
  OPTIMIZER: {BETAS: '(0.9, 0.95)'}
AMP: {MODE: naive, HYSTERESIS: 3}
"""
_WORDS = b"TRAIN.BASE_LR=1e-3\nDATA.BATCH_SIZE=4\nMODEL.DEPTHS=[2, 2]\nAMP.MODE=O1\nDATA.CROP_SCALE=(0.2, 1)"


def all_formats(folder):
    """Return {name: Format}; seeds are written to a folder first, by the project's own writers where it has some."""
    _without_published_hashes()
    archive = tar_bytes(cifar10_members(2)[0], "w:gz")
    batches = {name: content for name, content in cifar10_members(2)[0].items() if "test" in name or "meta" in name}
    batch = "cifar-10-batches-py/test_batch"
    records = _records()
    caltech = tar_bytes(_caltech_members(), "w:gz")
    outer = io.BytesIO()
    with zipfile.ZipFile(outer, "w", zipfile.ZIP_DEFLATED) as zipped:
        zipped.writestr("caltech-101/101_ObjectCategories.tar.gz", caltech)
    yaml = {"base.yaml": b"SEED: 3\nDATA: {IMAGE_SIZE: 16}"}
    pictures = {
        "jpeg": [_picture("JPEG"), _picture("JPEG", progressive=True), _picture("JPEG", "CMYK"),
                 _picture("JPEG", exif=_turned())],
        "png": [_picture("PNG"), _picture("PNG", "P"), _picture("PNG", "I;16")],
        "gif": [_picture("GIF"), _picture("GIF", "P", save_all=True, append_images=[Image.new("P", (9, 30), 3)])],
        "bmp": [_picture("BMP")],
        "webp": [_picture("WEBP"), _picture("WEBP", lossless=True)],
        "tiff": [_picture("TIFF"), _picture("TIFF", compression="tiff_lzw"), _picture("TIFF", compression="jpeg")],
        "ppm": [_picture("PPM")],
    }
    return {
        "safetensors": Format([_written(folder, "safetensors")], "w", _read_weights, repaired=_change_header),
        "pth zip": Format([_written(folder, "pth")], "w", _read_weights, repaired=_change_zip, has_checksum=True),
        "pth legacy": Format([legacy_torch_file([1, 2, 3, 4])], "w", _read_weights, change=change_pickle),
        "pdparams": Format([_written(folder, "pdparams")], "w", _read_weights, repaired=_change_pdparams,
                           has_checksum=True),
        "pdparams of paddle.save": Format(_pickle_seeds(), "w", _read_weights, change=change_pickle),
        "checkpoint": Format([_checkpoint(folder)], "latest.pdparams", _read_checkpoint, repaired=_change_pdparams,
                             has_checksum=True),
        "checkpoint of PaddleViT": Format([_paddlevit_checkpoint()], "Epoch-1.pdparams", _read_paddlevit,
                                          change=change_pickle),
        "cifar archive": Format([archive], "cifar-10-python.tar.gz", _cifar_images, repaired=_change_cifar,
                                has_checksum=True),
        "cifar batch": Format([batches[batch]], batch, _cifar_images, batches, change=change_pickle),
        "caltech tar": Format([caltech], "101_ObjectCategories.tar.gz", _read_caltech, repaired=_change_gzipped_tar,
                              has_checksum=True),
        "caltech zip": Format([outer.getvalue()], "caltech-101.zip", _read_caltech, has_checksum=True),
        "tfrecord": Format([b"".join(map(frame, records))], "train/a", _read_tfrecords, repaired=_change_example,
                           has_checksum=True, open_ended=True),
        "tfrecord index": Format([_record_index(records)], "idx_files/train/a", _read_tfrecords,
                                 {"train/a": b"".join(map(frame, records))}, change=change_text, has_checksum=True),
        "tar shard": Format([_shard()], "train-0.tar", _read_shards, repaired=_change_tar),
        "labels of a shard": Format([_shard()], "train-0.tar", _read_shards, change=_change_json),
        "index of a shard": Format([_shard_index(folder)], "train-0.tar.index.npy", _read_shards,
                                   {"train-0.tar": _shard()}, has_checksum=True),
        "list file": Format([b"a.jpg 0\nfolder/b c.jpg 1\n\xff.jpg\t2\n"], "train_list.txt", _read_list,
                            change=change_text),
        "val.txt": Format([b"a.jpg 0\nb.jpg 999\n"], "val.txt", _read_imagenet_val, _VAL, change=change_text),
        "meta.mat": Format([_meta_mat()], "meta.mat", _read_imagenet_val, _VAL),
        "yaml": Format([_YAML, json.dumps({"SEED": 1}).encode()], "model.yaml", _read_yaml, yaml, change=change_text),
        "-opts": Format([_WORDS], "words", _read_opts, yaml | {"model.yaml": _YAML}, change=change_text),
        "class names": Format([b"one\ntwo, too\n2 three\n"], "names.txt", _read_class_names, change=change_text),
        **{
            kind: Format(seeds, "picture", _read_picture, megabytes=2000)  # 16 bytes for each of the pixels allowed
            for kind, seeds in pictures.items()
        },
    }  # fmt: skip
