"""Parts that several families are built of, compared with NumPy."""

import numpy as np
import paddle
import pytest

from image_classification import amp
from image_classification.config import load_config
from image_classification.layers import DropPath, Mlp, norm_activation, stage_rates
from image_classification.MaxViT.attention import PartBlock
from image_classification.MaxViT.maxvit import MaxVit
from image_classification.RegNet.blocks import PreBottleneck
from image_classification.transformer import (
    Attention,
    ScaledBlock,
    TransformerBlock,
    bias_of_pairs,
    relative_position_index,
)
from image_classification.VOLO.outlook import OutlookAttention
from image_classification.zoo import make_model
from tests.helpers.model_zoo import FOLDERS, build, builder, digits_config


@pytest.mark.parametrize("depths", [(1,), (2, 3, 1), (3, 3, 9, 3)])
def test_stochastic_depth_rises_evenly_over_all_stages(depths):
    rates = stage_rates(0.3, depths)
    assert [len(own) for own in rates] == list(depths)
    np.testing.assert_allclose(sum(rates, []), np.linspace(0.0, 0.3, sum(depths)), rtol=1e-15)


@pytest.mark.parametrize("family", ["BEiT", "EVA02"])
def test_branches_of_deep_blocks_start_smaller(family):
    """Block n begins 1 / sqrt(2 n) times as large, as in the authors' `fix_init_weight`."""
    (folder,) = (each for each in FOLDERS if each.name == family)
    for number, block in enumerate(build(digits_config(folder)).blocks, start=1):
        for layer in (block.attn.proj, block.mlp.fc2):
            # Of 2,304 numbers and more the deviation is known to 1.5 %; five times as much.
            np.testing.assert_allclose(layer.weight.numpy().std(), 0.02 / (2 * number) ** 0.5, rtol=0.075)


@pytest.mark.parametrize(("design", "deviation"), [("tf", 0.02), ("rw", (2 / (64 + 192)) ** 0.5)])
def test_blocks_of_timms_own_maxvit_start_with_xaviers_weights(design, deviation):
    """Uniform, of deviation sqrt(2 / (inputs + outputs)), as in timm's `_init_transformer`; the authors' have 0.02."""
    model = MaxVit(image_size=16, stem_widths=(8, 8), embed_dims=(64,), depths=(1,), design=design)
    for block in model.stages[0].blocks:
        for part in (block.attn_block, block.attn_grid):
            # Of 12,288 numbers the deviation is known to 0.7 %; five times as much.
            np.testing.assert_allclose(part.attn.qkv.weight.numpy().std(), deviation, rtol=0.035)
            assert not part.attn.proj.bias.numpy().any()
            assert part.mlp.fc1.bias.numpy().any() == (design == "rw")


@pytest.mark.parametrize("window", [2, 3])
def test_bias_of_a_pair_is_the_row_of_where_one_token_lies_from_the_other(window):
    """Swin, equation 4: rows of the table are offsets of the query from the key, down and then across."""
    heads, side = 2, 2 * window - 1
    table = np.random.default_rng(0).standard_normal([side**2, heads]).astype("float32")
    index = paddle.to_tensor(relative_position_index(window).reshape(-1))
    found = bias_of_pairs(paddle.to_tensor(table), index).numpy()
    assert found.shape == (1, heads, window**2, window**2)
    for query, key in np.ndindex(window**2, window**2):
        down, across = np.subtract(divmod(query, window), divmod(key, window)) + window - 1
        np.testing.assert_array_equal(found[0, :, query, key], table[down * side + across])


BLOCKS = {
    "TransformerBlock": lambda: TransformerBlock(8, 2, layer_scale=1.0),
    "ScaledBlock": lambda: ScaledBlock(8, Attention(8, 2, True, 0.0, 0.0), Mlp(8, 16), 0.0, 1.0),
    "PartBlock": lambda: PartBlock(8, 4, 2, False, "table", 2.0, 1.0, 1e-5, "gelu", False, 0.0, 0.0, 0.0),
}


@pytest.mark.parametrize("mode", [("fp32", None), ("auto", "bfloat16")], ids=lambda mode: mode[0])
@pytest.mark.parametrize("name", BLOCKS)
def test_each_branch_of_a_block_is_multiplied_by_its_own_factors(name, mode):
    block = BLOCKS[name]()
    factors = [weight for weight in block.parameters() if weight.shape == [8] and (weight == 1).all()]
    factors = [weight for weight in factors if not any(weight is norm.weight for norm in (block.norm1, block.norm2))]
    x = paddle.randn([2, 4, 4, 8] if name == "PartBlock" else [2, 5, 8])
    branches = (lambda x: block.attn(block.norm1(x))), (lambda x: block.mlp(block.norm2(x)))
    assert len(factors) == 2
    for first, second in ((0.0, 1.0), (1.0, 0.0)):
        for factor, value in zip(factors, (first, second), strict=True):
            factor.set_value(paddle.full([8], value))
        with amp.build_precision(*mode).forward_context(), paddle.no_grad():
            expected = x + branches[int(second)](x).astype("float32")
            np.testing.assert_array_equal(block(x).numpy(), expected.numpy())


@pytest.mark.parametrize("shape", [[4000], [4000, 1, 1], [4000, 2, 3]], ids=str)
def test_dropped_path_is_that_of_a_whole_sample_and_the_others_grow(shape):
    """1000 of 4000 samples are dropped, give or take six standard deviations of 27."""
    path = DropPath(0.25)
    factors = path(paddle.ones(shape)).numpy().reshape([4000, -1])
    assert (factors == factors[:, :1]).all()
    assert set(factors[:, 0]) == {0.0, np.float32(1 / 0.75)}
    assert abs((factors[:, 0] == 0).sum() - 1000) < 165
    path.eval()
    assert (path(paddle.ones(shape)).numpy() == 1).all()


FURTHER = [("MaxViT", ["MODEL.DEPTHS=[2,2]"])]  # with a block of convolutions that keeps its shape


@pytest.mark.parametrize("mode", [("fp32", None), ("auto", "bfloat16")], ids=lambda mode: mode[0])
@pytest.mark.parametrize(("name", "options"), [*((folder.name, []) for folder in FOLDERS), *FURTHER], ids=str)
def test_block_whose_paths_are_all_dropped_gives_what_it_got(name, options, mode):
    (folder,) = (folder for folder in FOLDERS if folder.name == name)
    config = load_config([f"-cfg={digits_config(folder)}", "-opts", "DATA.NUM_WORKERS=0", *options], builder(folder))
    data, model = config.DATA, make_model(config, builder(folder))
    blocks = [layer for layer in model.sublayers() if isinstance(getattr(layer, "drop_path", None), DropPath)]
    checked = []

    def check(layer, given, result):  # one that changes the shape has no shortcut, one of two tensors drops no path
        if len(given) == 1 and given[0].shape == result.shape:
            np.testing.assert_array_equal(result.astype("float32").numpy(), given[0].astype("float32").numpy())
            checked.append(layer)

    for block in blocks:
        block.drop_path.p = 1.0
        block.register_forward_post_hook(check)
    with amp.build_precision(*mode).forward_context():
        model(paddle.randn([2, data.IMAGE_CHANNELS, data.IMAGE_SIZE, data.IMAGE_SIZE]))
    assert bool(checked) == bool(blocks)


def test_block_that_begins_with_its_norm_adds_a_dropped_path_to_what_is_normed():
    folder = next(folder for folder in FOLDERS if folder.name == "RegNet")
    model = build(digits_config(folder), block="preact")
    block = next(layer for layer in model.sublayers() if isinstance(layer, PreBottleneck))
    block.drop_path.p = 1.0
    x = paddle.randn([2, block.norm1.weight.shape[0], 6, 6])
    expected = block.downsample(norm_activation(x, block.norm1, block.activation))
    np.testing.assert_array_equal(block(x).numpy(), expected.numpy())


def test_outlook_attention_scores_the_means_of_four_places():
    """VOLO (https://arxiv.org/abs/2106.13112), section 3.1: at stride 2 the query is the mean of its 2 x 2 tokens."""
    layer, seen = OutlookAttention(8, 2, 0.0), []
    layer.attn.register_forward_pre_hook(lambda _, given: seen.append(given[0].numpy()))
    x = paddle.randn([2, 6, 4, 8])
    layer(x)
    # sums of four numbers in another order: two steps of 2^-24 of the largest
    np.testing.assert_allclose(seen[0], x.numpy().reshape([2, 3, 2, 2, 2, 8]).mean((2, 4)), atol=4 * 2.0**-23)
