"""Weight files made by hand, as other programs write them."""

import io
import json
import pickle
import struct
import zipfile

import numpy as np


def legacy_torch_file(numbers):
    """Return the bytes of a torch.save file of before PyTorch 1.6 with one float32 tensor "w" [2, 2], transposed."""
    pid = b"(U\x07storagectorch\nFloatStorage\nU\x01aU\x03cpuK\x04NtQ"
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n(" + pid + b"K\x00K\x02K\x02\x86K\x01K\x02\x86\x89}tR"
    out = io.BytesIO()
    for value in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True, "protocol_version": 1001}):
        out.write(pickle.dumps(value, protocol=2))
    out.write(b"\x80\x02}U\x01w" + tensor + b"s.")
    out.write(pickle.dumps(["a"], protocol=2))
    out.write(struct.pack("<q", len(numbers)) + np.array(numbers, "<f4").tobytes())
    return out.getvalue()


def torch_zip(path, content, compression=zipfile.ZIP_STORED, storages=()):
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("archive/data.pkl", content)
        for name, data in storages:
            archive.writestr(f"archive/data/{name}", data)


def safetensors_file(header, data=bytes(8)):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


# How timm's names of a ViT become PaddleViT's: (pattern, replacement), the first that matches.
PADDLEVIT_TRANSFORMER = (
    (r"pos_embed", "position_embedding"),
    (r"patch_embed\.proj\.", "patch_embedding.patch_embedding."),
    (r"blocks\.(\d+)\.norm1\.", r"encoder.layers.\1.attn_norm."),
    (r"blocks\.(\d+)\.norm2\.", r"encoder.layers.\1.mlp_norm."),
    (r"blocks\.(\d+)\.attn\.proj\.", r"encoder.layers.\1.attn.out."),
    (r"blocks\.(\d+)\.", r"encoder.layers.\1."),
    (r"norm\.", "encoder.encoder_norm."),
    (r"head\.", "classifier."),
    (r"head_dist\.", "classifier_dist."),
)
