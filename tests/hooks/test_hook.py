"""The user's own hooks are found by name."""

import pytest

from image_classification.hooks import Hook, load_hooks
from image_classification.runtime import UserError


def test_hook_of_the_user_is_made_from_its_name(user_module):
    (hook,) = load_hooks(["my_hooks:Mine"])
    assert isinstance(hook, Hook) and hook.priority == 3


@pytest.mark.parametrize("name", [
    "my_hooks", "my_hooks:Nobody", "my_hooks:Other", "my_hooks:Needs", "nowhere:Mine", ":Mine", "",
])  # fmt: skip
def test_hook_that_cannot_be_made_is_named(user_module, name):
    with pytest.raises(UserError, match="TRAIN.HOOKS"):
        load_hooks([name])
