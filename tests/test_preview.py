"""What the tools say of images and classes without a data set."""

import pytest

from image_classification import zoo
from image_classification.preview import class_names
from image_classification.runtime import UserError
from tests.helpers.model_tools import VARIANT


def test_class_names_come_from_a_file_or_imagenet(tmp_path, caplog):
    _, config = zoo.load_model(VARIANT)
    (tmp_path / "names.txt").write_text("".join(f"{index} sign {index}\n" for index in range(10)))
    assert class_names(config, tmp_path / "names.txt")[3] == "sign 3"
    assert not caplog.messages
    (tmp_path / "windows.txt").write_bytes("\ufeff".encode() + b"a sign\r\n" * 10 + b"\r\n\r\n")
    assert class_names(config, tmp_path / "windows.txt") == ["a sign"] * 10
    assert "windows.txt: a sign stands in lines 1, 2, 3, 4, 5 and 5 more: nothing tells" in caplog.text
    (tmp_path / "cranes.txt").write_text("crane\n" * 2 + "".join(f"{index}\n" for index in range(8)))
    class_names(config, tmp_path / "cranes.txt")
    assert "cranes.txt: crane stands in lines 1, 2: nothing tells" in caplog.text
    with pytest.raises(UserError, match="^-class_names: .*hole.txt:2: is empty"):
        (tmp_path / "hole.txt").write_text("a\n \n" + "b\n" * 8)
        class_names(config, tmp_path / "hole.txt")
    with pytest.raises(UserError, match="has 1 lines, the model has 10 classes"):
        (tmp_path / "short.txt").write_text("one\n")
        class_names(config, tmp_path / "short.txt")
    with pytest.raises(UserError, match="^-class_names: .*gone.txt: cannot be read: No such file"):
        class_names(config, tmp_path / "gone.txt")
    assert class_names(config)[3] == "3"
