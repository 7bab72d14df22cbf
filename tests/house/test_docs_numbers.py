"""Numbers at which something else happens are those of the code, on the pages that name them."""

import math

import pytest

from image_classification.data import build, decode
from image_classification.files import tar
from image_classification.half_cpu import (
    branches,
    call_list,
    compiled_attention,
    compiled_tiled_convolution,
    compiled_worth,
    compiler,
    first_calls,
    huge_pages,
    left_to_paddle,
    onednn_convolution_passes,
    onednn_matmul,
    onednn_primitives,
    onednn_tiles,
    pieces,
    recording,
    training_replay,
)
from image_classification.half_cpu.replay import KEPT, RECORDED
from image_classification.parallel import hub, reduction, watch
from image_classification.tools.parts import benchmark_worker
from tests.helpers.model_zoo import ROOT

COUNT = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight"]
ORDER = ["zeroth", "first", "second", "third", "fourth", "fifth"]
MIB, BLOCK = 1 << 20, math.isqrt(compiled_attention.SCORES)
NUMBERS = {
    "half_cpu": [
        ("not done after {:.0f} minutes", compiler.LIMIT / 60),
        ("tensors of less than 2^{:.0f} elements", math.log2(compiled_worth.LARGE)),
        ("without a gradient, and up to 2^{:.0f} elements", math.log2(left_to_paddle.SMALL)),
        ("a half tensor of 2^{:.0f} elements or more", math.log2(branches.LARGE_HALF)),
        ("or float32 images of 2^{:.0f}", math.log2(branches.LARGE)),
        ("Up to {0} x {0} scores and {1} channels of a head one", BLOCK, compiled_attention.CHANNELS),
        ("gradients up to {0} x {0} scores", math.isqrt(compiled_attention.SCORES_AMX)),
        ("one head's would take more than {:.0f} MiB", onednn_tiles.LARGE / MIB),
        ("Up to {0} x {0} scores of a head the probabilities are kept", math.isqrt(onednn_tiles.KEPT_SCORES)),
        ("no query of a block of {} sees", onednn_tiles.CAUSAL_QUERIES),
        ("up to {:,} terms not on that of rows", compiled_tiled_convolution._MOST_TERMS),
        ("windows of up to {} channels", onednn_convolution_passes.FEW),
        ("the {} used last are kept", onednn_primitives.CACHE_SIZE),
        ("it is entered the {0}th, {1}th", huge_pages.Adviser()._next, 8 * huge_pages.Adviser()._next),
        ("recorded training](#training-without-layers) of more than {:.0f} MiB", training_replay._LARGE / MIB),
        ("**Recorded** is the {} batch of a shape", ORDER[RECORDED]),
        ("the call is made. {} shapes are kept", COUNT[KEPT].capitalize()),
        ("compute most of it and more than {:.0f} MiB", recording.COPIED / MIB),
        ("up to {} rows are multiplied by a kernel of our own", onednn_matmul.FEW),
        ("The {} batch of a shape is recorded", ORDER[training_replay.RECORDED]),
        ("**Kept** are {} shapes. To record again", COUNT[training_replay.KEPT]),
        ("up to {} without a look at signals", call_list._AT_ONCE),
        ("{} images pass, their recorded pass", COUNT[pieces._FIRST]),
        ("there are fewer than {}, in float32", 2 * pieces._FIRST),
        ("take about {:.0f} MB", pieces._IN_CACHES / MIB),
        ("are then made for {} images at a time", COUNT[first_calls._FEW]),
    ],
    "any_model": [
        ("From the {} batch of a shape on", ORDER[training_replay.RECORDED + 1]),
        ("the {} batch of a shape is recorded", ORDER[RECORDED]),
    ],
    "distributed": [
        ("rank 0 names it after {:.0f} s", hub.START_SECONDS),
        ("`PARALLEL.TIMEOUT` ({:.0f} s,", watch.LIMIT_SECONDS),
        ("{:.0f} s later it is named", watch.STOP_SECONDS),
        ("flat float32 buckets of {:.0f} MiB", 4 * reduction.BUCKET_ELEMENTS / MIB),
    ],
    "data": [
        ("one for each core of the process, at most {}", build.MAX_AUTO_WORKERS),
        ("more than {:.0f} million pixels", decode.LARGEST / 1e6),
        ("unfolds to more than twenty times its size and {:.0f} MiB", tar.FLOOR / MIB * tar.RATIO / 20),
    ],
    "benchmarks": [("warms up for at least {} steps", COUNT[benchmark_worker.WARMUP_ITERATIONS])],
}


@pytest.mark.parametrize("page", NUMBERS)
def test_numbers_of_the_page_are_those_of_the_code(page):
    text = " ".join((ROOT / f"docs/{page}.md").read_text().split())
    for words, *values in NUMBERS[page]:
        assert words.format(*values) in text, words.format(*values)
