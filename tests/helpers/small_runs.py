"""A training of some steps in this process, built from a configuration as a program builds it."""

from paddle import nn

from image_classification.build import build_parts, build_trainer
from image_classification.config import build_config
from image_classification.model import Block, Model
from image_classification.parallel.single import SingleProcess

MODES = [
    ("fp32", None), ("auto", "float16"), ("auto", "bfloat16"), ("O1", "float16"), ("O2", "float16"), ("O3", "float16"),
    ("naive", "float16"),
]  # fmt: skip


class Net(Model):
    """Convolution, batch norm, dropout and a head: running statistics and random draws."""

    head_names = ("fc",)

    def __init__(self, num_classes, in_channels, batch_norm, dropout):
        super().__init__()
        self.conv = nn.Conv2D(in_channels, 8, 3, stride=2, padding=1)
        self.bn = nn.BatchNorm2D(8) if batch_norm else nn.Identity()
        self.drop = nn.Dropout(dropout)
        self.fc = nn.Linear(8, num_classes)

    def forward(self, images):
        return self._head(self._stem(images))

    def _stem(self, images):
        return nn.functional.relu(self.bn(self.conv(images)))

    def _head(self, features):
        return self.fc(self.drop(features.mean(axis=[2, 3])))

    def sequential_blocks(self):
        return [Block("stem", self._stem, ("conv.", "bn.")), Block("head", self._head, ("fc.",))]


def build_net(num_classes: int = 4, in_channels: int = 3):
    return Net(num_classes, in_channels, batch_norm=True, dropout=0.3)


def build_plain_net(num_classes: int = 4, in_channels: int = 3):
    """Return a model whose gradients do not depend on how images are put into micro-batches."""
    return Net(num_classes, in_channels, batch_norm=False, dropout=0.0)


def config_of(data=None, train=None, amp=None, **sections):
    """Return a configuration of 20 images of noise, 5 batches an epoch, with changes."""
    data = {"DATASET": "synthetic", "SYNTHETIC_IMAGES": 20, "IMAGE_SIZE": 8, "BATCH_SIZE": 4} | (data or {})
    train = {"WARMUP_EPOCHS": 0, "BASE_LR": 0.01} | (train or {})
    defaults = {"MODEL": {"NUM_CLASSES": 4}, "SEED": 3, "DEVICE": "cpu"}
    return build_config([("test", defaults | {"DATA": data, "TRAIN": train, "AMP": amp or {}} | sections)])


def trainer_of(config, build_model=build_net, parallel=None, hooks=()):
    """Return the trainer of a configuration in one process, with hooks beside its own."""
    trainer = build_trainer(build_parts(config, build_model, parallel or SingleProcess()))
    trainer.add_hooks(hooks)
    return trainer


RUNS = {}  # a global variable, at which recorded trainings do not look: the model does not change itself by counting


def runs_of(layer):
    """Return a list to which each forward pass of a layer adds how many rows it got."""
    place, forward = len(RUNS), layer.forward
    RUNS[place] = []
    layer.forward = lambda *inputs: RUNS[place].append(inputs[0].shape[0]) or forward(*inputs)
    return RUNS[place]
