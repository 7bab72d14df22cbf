"""Pretrained weights: where they are, how they are read safely, and how they fit our models."""

from .export import export_tensors, torch_tensors
from .load import (
    LoadReport,
    Pretrained,
    differences,
    linear_weights,
    load_pretrained,
    replaceable_head,
    transpose_linears,
)
from .preprocessing import preprocessing_of, with_preprocessing
from .read import read_weights
from .registry import find_entry, published, read_registry, read_variants
from .source import find_weights, is_here, locate
from .write import write_weights, writer_of

__all__ = [
    "LoadReport",
    "Pretrained",
    "differences",
    "export_tensors",
    "find_entry",
    "find_weights",
    "is_here",
    "linear_weights",
    "load_pretrained",
    "locate",
    "preprocessing_of",
    "published",
    "read_registry",
    "read_variants",
    "read_weights",
    "replaceable_head",
    "torch_tensors",
    "transpose_linears",
    "with_preprocessing",
    "write_weights",
    "writer_of",
]
