"""The private names of Paddle that the adapters of gloo replace: a release that removes one is named by it."""

import paddle.distributed as dist
import pytest
from paddle.base import core
from paddle.distributed import collective

from image_classification.parallel import gloo
from image_classification.runtime import UserError

NAMES = [
    (collective, "_new_process_group_impl"),
    (dist.parallel, "_new_process_group_impl"),
    (collective, "new_group"),
    (core, "TCPStore"),
    (core, "ProcessGroupGloo"),
]


@pytest.mark.parametrize(("owner", "name"), NAMES, ids=[f"{owner.__name__}.{name}" for owner, name in NAMES])
def test_paddle_that_lacks_a_name_is_refused_by_it(owner, name, monkeypatch):
    monkeypatch.setattr(collective, "_new_process_group_impl", lambda: None)  # as before another test installed them
    monkeypatch.delattr(owner, name)  # an error: this Paddle has removed it
    with pytest.raises(UserError, match=rf"has no {owner.__name__}\.{name}: .* tested with Paddle"):
        gloo.install()
