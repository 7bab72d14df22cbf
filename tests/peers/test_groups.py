"""Weight decay and layers of the parameters equal timm's, but for what is otherwise here on purpose."""

import json
import re

import paddle
import pytest

from image_classification.optim.groups import layer_scales
from tests.helpers.model_zoo import build, size_of

from .test_logits import VARIANTS, job_of, of_peer

pytestmark = pytest.mark.peers

# factors of norms and of attention, which are no vectors in timm: ResMLP's authors have vectors, XCiT's decay theirs
EXEMPT = r"(norm\d?\.(alpha|beta)|attn\.temperature)$"
# timm gives them the last block's rate; here they go with the head, as BEiT's and MAE's norm does
WITH_HEAD = r"(norm(\.\d)?\.|conv_head\.|bn2\.|head_conv\.)"
# whose layers are counted otherwise: timm takes whole stages (MaxViT, PVTv2), one with its neighbour or other ends
OTHER_LAYERS = ("CaiT", "DenseNet", "MaxViT", "MobileViT", "PVTv2", "VGG")


def smallest_variants():
    chosen = {}
    for name, path in sorted(VARIANTS.items(), key=lambda item: size_of(item[1])):
        if of_peer("timm", name):
            chosen.setdefault((path.parents[1].name, re.match(r"[a-z]+(v2)?", name)[0]), name)
    return list(chosen.values())


@pytest.mark.parametrize("name", smallest_variants())
def test_decay_and_layers_equal_timms(peers, tmp_path, name):
    peers.ask(action="groups", folder=tmp_path, **job_of("timm", name)[1])
    theirs = json.loads((tmp_path / "groups.json").read_text())
    with paddle.LazyGuard():
        model = build(VARIANTS[name], num_classes=1000)
    trained = {each: parameter for each, parameter in model.named_parameters() if not parameter.stop_gradient}
    exempt = model.no_weight_decay()
    decayed = {each for each, parameter in trained.items() if parameter.ndim > 1 and each not in exempt}
    family = VARIANTS[name].parents[1].name
    if family != "VGG":  # other names
        assert decayed == {each for each in theirs["decayed"] if not re.search(EXEMPT, each)}
    if family in OTHER_LAYERS or "layers" not in theirs:
        return
    last = max(theirs["layers"].values())
    expected = {each: 0.5 ** (last - layer) for each, layer in theirs["layers"].items() if each in trained}
    found = layer_scales(list(trained), 0.5, model.layer_groups())
    differ = {each for each in found if found[each] != expected[each]}
    assert all(re.match(WITH_HEAD, each) and found[each] == 1 for each in differ), sorted(differ)[:4]
