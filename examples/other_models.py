"""Networks that are no classifiers of this zoo, in plain Paddle, as their users write them; for the example beside.

Each function returns (a model, a function of the batch size that returns its inputs). None knows of number formats.
"""

import paddle
import paddle.nn.functional as F
from paddle import nn
from paddle.vision.models import resnet50


def images(side, channels=3):
    return lambda batch: [paddle.randn([batch, channels, side, side])]


def words(length, vocabulary):
    return lambda batch: [paddle.randint(0, vocabulary, [batch, length])]


def conv_norm_relu(inputs, outputs, window=3, **options):
    conv = nn.Conv2D(inputs, outputs, window, padding=options.pop("padding", window // 2), bias_attr=False, **options)
    return nn.Sequential(conv, nn.BatchNorm2D(outputs), nn.ReLU())


def resnet_stages():
    """Return the stem and the four stages of ResNet-50: [B, 3, H, W] to [B, 2048, H / 32, W / 32]."""
    net = resnet50()
    stem = nn.Sequential(net.conv1, net.bn1, net.relu, net.maxpool)
    return nn.LayerList([stem, net.layer1, net.layer2, net.layer3, net.layer4])


class UNet(nn.Layer):
    """U-Net (arXiv:1505.04597) with padding, normalisation and bilinear upsampling, as PaddleSeg has it."""

    def __init__(self, num_classes=19, widths=(64, 128, 256, 512, 512)):
        super().__init__()
        inputs = (3, *widths[:-1])
        self.down = nn.LayerList([self.pair(a, b) for a, b in zip(inputs, widths, strict=True)])
        self.up, below = nn.LayerList(), widths[-1]
        for skipped, outputs in zip(widths[-2::-1], (*widths[-3::-1], widths[0]), strict=True):
            self.up.append(self.pair(below + skipped, outputs))
            below = outputs
        self.head = nn.Conv2D(widths[0], num_classes, 3, padding=1)

    @staticmethod
    def pair(inputs, outputs):
        return nn.Sequential(conv_norm_relu(inputs, outputs), conv_norm_relu(outputs, outputs))

    def forward(self, x):
        kept = []
        for index, block in enumerate(self.down):
            x = block(x if index == 0 else F.max_pool2d(x, 2))
            kept.append(x)
        for block, skipped in zip(self.up, kept[-2::-1], strict=True):
            x = block(paddle.concat([skipped, F.interpolate(x, skipped.shape[2:], mode="bilinear")], axis=1))
        return self.head(x)


class DeepLabV3(nn.Layer):
    """Atrous pyramid pooling (arXiv:1706.05587) on ResNet-50's last stage."""

    def __init__(self, num_classes=19, width=256, dilations=(6, 12, 18)):
        super().__init__()
        self.stages = resnet_stages()
        self.branches = nn.LayerList([conv_norm_relu(2048, width, 1)])
        self.branches.extend([conv_norm_relu(2048, width, padding=step, dilation=step) for step in dilations])
        self.pooled = nn.Sequential(nn.AdaptiveAvgPool2D(1), conv_norm_relu(2048, width, 1))
        self.fuse = nn.Sequential(conv_norm_relu(width * (len(dilations) + 2), width, 1), nn.Dropout(0.1))
        self.head = nn.Conv2D(width, num_classes, 1)

    def forward(self, x):
        size = x.shape[2:]
        for stage in self.stages:
            x = stage(x)
        seen = [branch(x) for branch in self.branches] + [F.interpolate(self.pooled(x), x.shape[2:], mode="bilinear")]
        return F.interpolate(self.head(self.fuse(paddle.concat(seen, axis=1))), size, mode="bilinear")


class FeaturePyramid(nn.Layer):
    """A detector's backbone: ResNet-50 with a feature pyramid (arXiv:1612.03144), four maps of 256 channels."""

    def __init__(self, width=256):
        super().__init__()
        self.stages = resnet_stages()
        self.lateral = nn.LayerList([nn.Conv2D(channels, width, 1) for channels in (256, 512, 1024, 2048)])
        self.smooth = nn.LayerList([nn.Conv2D(width, width, 3, padding=1) for _ in self.lateral])

    def forward(self, x):
        x = self.stages[0](x)
        maps = []
        for stage, lateral in zip(self.stages[1:], self.lateral, strict=True):
            x = stage(x)
            maps.append(lateral(x))
        for index in (2, 1, 0):
            maps[index] = maps[index] + F.interpolate(maps[index + 1], maps[index].shape[2:], mode="nearest")
        return [smooth(found) for smooth, found in zip(self.smooth, maps, strict=True)]


class CRNN(nn.Layer):
    """A recogniser of lines of text: convolutions, then two bidirectional LSTMs along the line (arXiv:1507.05717)."""

    def __init__(self, characters=97, hidden=256):
        super().__init__()
        half, flat = nn.MaxPool2D(2), nn.MaxPool2D((2, 1))
        self.convolutions = nn.Sequential(
            conv_norm_relu(1, 64), half, conv_norm_relu(64, 128), half, conv_norm_relu(128, 256),
            conv_norm_relu(256, 256), flat, conv_norm_relu(256, 512), conv_norm_relu(512, 512), flat,
            conv_norm_relu(512, 512, 2, padding=0),
        )  # fmt: skip
        self.lstm = nn.LSTM(512, hidden, num_layers=2, direction="bidirect")
        self.head = nn.Linear(2 * hidden, characters)

    def forward(self, x):
        columns = self.convolutions(x).squeeze(2).transpose([0, 2, 1])
        return self.head(self.lstm(columns)[0])


class GPT(nn.Layer):
    """A decoder of words (GPT-2's blocks, smaller), head and embedding of one weight."""

    def __init__(self, vocabulary=8192, length=256, width=384, depth=6, heads=6):
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.LayerList([GPTBlock(width, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)

    def forward(self, indices):
        x = self.words(indices) + self.places(paddle.arange(indices.shape[1]))
        for block in self.blocks:
            x = block(x)
        return paddle.matmul(self.norm(x), self.words.weight, transpose_y=True)


class GPTBlock(nn.Layer):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        queries, keys, values = self.qkv(self.norm1(x)).reshape([batch, length, 3, self.heads, -1]).unbind(2)
        seen = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.out(seen.reshape([batch, length, width]))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x)), approximate=True))


class BERT(nn.Layer):
    """An encoder of words of Paddle's own layers (arXiv:1810.04805), six blocks of BERT base."""

    def __init__(self, vocabulary=8192, length=128, width=768, depth=6, heads=12):
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.norm, self.dropout = nn.LayerNorm(width), nn.Dropout(0.1)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.1, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, depth)
        self.head = nn.Linear(width, 2)

    def forward(self, indices):
        x = self.words(indices) + self.places(paddle.arange(indices.shape[1]))
        return self.head(self.encoder(self.dropout(self.norm(x)))[:, 0])


MODELS = {
    "unet": lambda: (UNet(), images(128)),
    "deeplabv3": lambda: (DeepLabV3(), images(224)),
    "fpn": lambda: (FeaturePyramid(), images(224)),
    "crnn": lambda: (CRNN(), lambda batch: [paddle.randn([batch, 1, 32, 160])]),
    "gpt": lambda: (GPT(), words(256, 8192)),
    "bert": lambda: (BERT(), words(128, 8192)),
}
