"""Runs in the peers' environment: answers jobs, one JSON object per line, with models of timm and torchvision.

    {"action": "make", "library": "timm", "name": "resnet18", "options": {}, "format": "zip", "file": "...", ...}

makes the model with random weights and BatchNorm statistics, saves them in the library's own format and writes the
logits for `images.npy`; "gradients" saves those weights and, under their names, their gradients in training mode;
"fresh" saves the weights that a training begins with; "resave" loads a file of ours and saves its tensors again;
"positions" resamples `before.npy`; "groups" writes which parameters decay, and each one's layer; "load" fills the model
from a file of ours, strictly.
Needs no Paddle.
"""

import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools" / "parts"))

import safetensors.torch
from PIL import Image
from torch_peers import timm, torch, torchvision


def make_model(library, name, options):
    model = timm.create_model(name, **options) if library == "timm" else torchvision.models.get_model(name, **options)
    return model.eval()


@torch.no_grad()
def randomise(model):
    """Change what initialisation leaves at 0 or 1, so that no bias, scale or statistic can be missed or mixed up."""
    torch.manual_seed(0)
    for name, value in model.state_dict().items():
        if not value.is_floating_point():
            continue
        if name.endswith("running_var") or (value.ndim == 1 and name.endswith(("weight", "gamma"))):
            value.uniform_(0.7, 1.3)
        elif value.ndim == 1 or name.endswith("running_mean"):
            value.normal_(0, 0.1)
        elif name.endswith(("token", "pos_embed", "relative_position_bias_table")):
            value.normal_(0, 0.5)
    return model


@torch.no_grad()
def normalise(model, images):
    """Give BatchNorms nine tenths of the statistics of these images, as training does.

    With others the features of a deep network grow from block to block until squeeze-excite's gates are steps, and
    1e-7 of one block is one tenth of the logits.
    """
    for norm in batch_norms(model):
        norm.momentum = 0.9
        norm.train()
    model(images)
    return model.eval()


def batch_norms(model):
    return [layer for layer in model.modules() if isinstance(layer, torch.nn.BatchNorm2d)]


@torch.enable_grad()
def write_gradients(model, images, folder):
    """Write the logits of training mode without dropout, and their gradients for `cotangents.npy`."""
    for layer in model.modules():
        if type(layer).__name__ in ("Dropout", "DropPath"):
            layer.eval()
    logits = model(images)
    logits = sum(logits) / len(logits) if isinstance(logits, tuple | list) else logits
    logits.backward(torch.from_numpy(np.load(folder / "cotangents.npy")))
    np.save(folder / "logits.npy", logits.detach().numpy())
    found = {name: value.grad for name, value in model.named_parameters()}
    save({name: found.get(name, value) for name, value in model.state_dict().items()}, "safetensors",
         folder / "gradients.safetensors")


def save(state, file_format, path):
    state = {name: value.contiguous() for name, value in state.items()}
    if file_format == "safetensors":
        safetensors.torch.save_file(state, path)
    else:
        torch.save(state, path, _use_new_zipfile_serialization=file_format == "zip")


def load(path):
    if path.endswith(".safetensors"):
        return safetensors.torch.load_file(path)
    return torch.load(path, weights_only=True)


def published_transform(weights, image_size):
    """Return the evaluation transform that a library itself gives to one of its weights, at one of its sizes."""
    library, _, name = weights.partition("/")
    if library == "torchvision":
        model, _, tag = name.partition(".")
        return getattr(torchvision.models.get_model_weights(model), f"IMAGENET1K_{tag}").transforms()
    config = timm.get_pretrained_cfg(name).to_dict()
    is_test_size = (config.get("test_input_size") or config["input_size"])[-1] == image_size
    data = timm.data.resolve_data_config(pretrained_cfg=config, use_test_size=is_test_size)
    assert data["input_size"][-1] == image_size
    return timm.data.create_transform(**data)


@torch.no_grad()
def answer(job):
    folder = Path(job["folder"])
    if job["action"] == "preprocess":
        transform = published_transform(job["id"], job["image_size"])
        np.save(folder / "input.npy", transform(Image.open(job["image"]).convert("RGB")).numpy())
        return
    if job["action"] == "groups":
        from timm.optim import param_groups_weight_decay

        model = make_model(job["library"], job["name"], job["options"])
        exempt = model.no_weight_decay() if hasattr(model, "no_weight_decay") else ()
        groups = param_groups_weight_decay(model, 0.1, no_weight_decay_list=exempt)
        decayed = {id(parameter) for group in groups if group["weight_decay"] for parameter in group["params"]}
        found = {"decayed": [name for name, parameter in model.named_parameters() if id(parameter) in decayed]}
        if hasattr(model, "group_matcher"):
            matcher = model.group_matcher(coarse=False)
            found["layers"] = timm.models.group_parameters(model, matcher, reverse=True)
        (folder / "groups.json").write_text(json.dumps(found))
        return
    if job["action"] == "positions":
        before, (rows, columns), others = torch.from_numpy(np.load(folder / "before.npy")), job["grid"], job["others"]
        if before.ndim == 3:
            after = timm.layers.resample_abs_pos_embed(before, [rows, columns], num_prefix_tokens=others)
        else:
            shape = ((2 * rows - 1) * (2 * columns - 1) + others, before.shape[1])
            after = timm.layers.resize_rel_pos_bias_table(before, (rows, columns), shape)
        np.save(folder / "after.npy", after.numpy())
        return
    if job["action"] == "resave":
        state = load(job["file"])
        dtype = getattr(torch, job["dtype"])
        state = {name: value.to(dtype) if value.is_floating_point() else value for name, value in state.items()}
        save(state, job["format"], job["target"])
        return
    if job["action"] == "fresh":
        torch.manual_seed(0)
        save(make_model(job["library"], job["name"], job["options"]).state_dict(), "safetensors", job["file"])
        return
    model = make_model(job["library"], job["name"], job["options"])
    images = torch.from_numpy(np.load(folder / "images.npy"))
    if job["action"] == "gradients":
        save(normalise(randomise(model), images).state_dict(), "safetensors", job["file"])
        write_gradients(model.double().train(), images.double(), folder)
        return
    if job["action"] == "make":
        save(normalise(randomise(model), images).state_dict(), job["format"], job["file"])
    else:
        state = load(job["file"])
        model.load_state_dict(state, strict=True)
        assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    if batch_norms(model):  # what is left of that growth makes 1e-7 of one block 1e-4 of the logits
        model, images = model.double(), images.double()
    np.save(folder / "logits.npy", model(images).numpy())


torch.set_num_threads(1)
print("ready", flush=True)
for line in sys.stdin:
    try:
        answer(json.loads(line))
        print("done", flush=True)
    except Exception as error:
        print(f"{type(error).__name__}: {error}".replace("\n", " "), flush=True)
