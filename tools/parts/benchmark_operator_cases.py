"""The operators and shapes of vision models that tools/benchmark_operators.py measures."""


def cases(batch):
    """Return {name: (function, shapes of its inputs)}; an input is an image batch if its shape has four numbers and the
    first is the batch."""
    import paddle
    import paddle.nn.functional as F

    from image_classification import layers

    def conv(**options):
        return lambda x, w: F.conv2d(x, w, **options)

    def batch_norm(x, scale, shift):
        mean, variance = paddle.zeros(scale.shape), paddle.ones(scale.shape)
        return F.batch_norm(x, mean, variance, scale, shift, training=True)

    def rotate(x, sine, cosine):
        left, right = x.chunk(2, axis=-1)
        return x * cosine + paddle.concat([-right, left], axis=-1) * sine

    def rms_norm(x, weight):
        return x * paddle.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight

    def shuffle(x):
        pairs = x.reshape([batch, 2, x.shape[1] // 2, *x.shape[2:]])
        return pairs.transpose([0, 2, 1, 3, 4]).reshape(x.shape)

    def dot_product(*operands, **options):
        operands = (operand.reshape([batch, -1, 12, 64]) for operand in operands)
        return F.scaled_dot_product_attention(*operands, **options)

    def drop(x):
        return F.dropout(x, 0.1)

    tokens, hidden, maps, gated = (batch, 197, 768), (batch, 197, 3072), (batch, 64, 56, 56), (batch, 240, 28, 28)
    heads, pyramid, one = (batch, 197, 12, 64), (batch, 256, 28, 28), (batch, 240, 1, 1)
    signal = (batch, 64, 1000)
    found = {
        "linear 768 to 3072": (F.linear, [tokens, (768, 3072), (3072,)]),
        "linear 3072 to 768": (F.linear, [hidden, (3072, 768), (768,)]),
        "linear 4096 to 4096 of one row each": (F.linear, [(batch, 4096), (4096, 4096), (4096,)]),
        "linear 2048 to 1000 of one row each": (F.linear, [(batch, 2048), (2048, 1000), (1000,)]),
        "scaled_dot_product_attention": (dot_product, [tokens] * 3),
        "scaled_dot_product_attention, causal, 1024 tokens": (
            lambda *operands: dot_product(*operands, is_causal=True), [(batch, 1024, 768)] * 3),
        "rotary embedding": (rotate, [(batch, 12, 197, 64), (197, 64), (197, 64)]),
        "gelu": (F.gelu, [hidden]),
        "layer_norm": (lambda x, w, b: F.layer_norm(x, 768, w, b), [tokens, (768,), (768,)]),
        "rms_norm of single operators": (rms_norm, [tokens, (768,)]),
        "softmax": (F.softmax, [(12 * batch, 197, 197)]),
        "softmax over tokens": (lambda x: F.softmax(x, axis=1), [tokens]),
        "softmax over channels": (lambda x: F.softmax(x, axis=1), [maps]),
        "add": (lambda x, y: x + y, [tokens, tokens]),
        "subtract": (lambda x, y: x - y, [tokens, tokens]),
        "multiply": (lambda x, y: x * y, [tokens, tokens]),
        "divide by the norm": (lambda x, y: x / y, [tokens, (batch, 197, 1)]),
        "layer scale": (lambda x, y: x * y, [tokens, (768,)]),
        "dropout": (drop, [tokens]),
        "mean over tokens": (lambda x: x.mean(1), [tokens]),
        "sum over channels": (lambda x: x.sum(1), [maps]),
        "mean over places": (lambda x: x.mean([2, 3]), [pyramid]),
        "mean of all": (lambda x: x.mean(), [tokens]),
        "repeat_interleave of numbers": (lambda x: x.repeat_interleave(2, -1), [tokens]),
        "transpose of heads": (lambda x: x.transpose([0, 2, 1, 3]).reshape([batch, 12 * 197, 64]), [heads]),
        "conv 7x7 stride 2": (conv(stride=2, padding=3), [(batch, 3, 224, 224), (64, 3, 7, 7)]),
        "conv 3x3 64": (conv(padding=1), [maps, (64, 64, 3, 3)]),
        "conv 3x3 256": (conv(padding=1), [(batch, 256, 14, 14), (256, 256, 3, 3)]),
        "conv 1x1 64 to 256": (conv(), [maps, (256, 64, 1, 1)]),
        "conv 1x1 256 to 512 stride 2": (conv(stride=2), [(batch, 256, 56, 56), (512, 256, 1, 1)]),
        "conv 1x1 24 to 72": (conv(), [(batch, 24, 56, 56), (72, 24, 1, 1)]),
        "conv grouped 32": (conv(padding=1, groups=32), [pyramid, (256, 8, 3, 3)]),
        "conv 3x3 64 to 128 of one each": (conv(padding=1, groups=64), [maps, (128, 1, 3, 3)]),
        "conv transposed 4x4 stride 2": (
            lambda x, w: F.conv2d_transpose(x, w, stride=2, padding=1), [(batch, 128, 28, 28), (128, 64, 4, 4)]),
        "batch_norm": (batch_norm, [(batch, 256, 56, 56), (256,), (256,)]),
        "group_norm": (lambda x, w, b: F.group_norm(x, 32, 1e-5, w, b), [pyramid, (256,), (256,)]),
        "instance_norm": (lambda x, w, b: F.instance_norm(x, weight=w, bias=b), [pyramid, (256,), (256,)]),
        "conv 1d of 9": (lambda x, w: F.conv1d(x, w, padding=4), [signal, (64, 64, 9)]),
        "max_pool 1d": (lambda x: F.max_pool1d(x, 2), [signal]),
        "avg_pool 1d": (lambda x: F.avg_pool1d(x, 2), [signal]),
        "max_pool 3x3 stride 2": (lambda x: F.max_pool2d(x, 3, 2, 1), [(batch, 64, 112, 112)]),
        "avg_pool 3x3": (lambda x: F.avg_pool2d(x, 3, 1, 1), [pyramid]),
        "avg_pool 2x2 stride 2": (lambda x: F.avg_pool2d(x, 2), [(batch, 256, 56, 56)]),
        "avg_pool whole": (lambda x: F.adaptive_avg_pool2d(x, 1), [(batch, 2048, 7, 7)]),
        "avg_pool to 7x7": (lambda x: F.adaptive_avg_pool2d(x, 7), [pyramid]),
        "max_pool whole": (lambda x: F.adaptive_max_pool2d(x, 1), [pyramid]),
        "gate of squeeze-and-excitation": (lambda x, gate: x * gate, [gated, one]),
        "sigmoid gate": (lambda x, y: x * F.sigmoid(y), [gated, gated]),
        "concat": (lambda x, y: paddle.concat([x, y], axis=1), [pyramid, (batch, 32, 28, 28)]),
        "split and product": (lambda x: paddle.multiply(*x.split(2, axis=1)), [pyramid]),
        "channel shuffle": (shuffle, [pyramid]),
        "pixel shuffle": (lambda x: F.pixel_shuffle(x, 2), [pyramid]),
        "pad": (lambda x: F.pad(x, [1, 1, 1, 1]), [maps]),
        "pad reflect": (lambda x: F.pad(x, [1, 1, 1, 1], mode="reflect"), [maps]),
        "interpolate nearest": (lambda x: F.interpolate(x, scale_factor=2), [pyramid]),
        "interpolate bilinear": (lambda x: F.interpolate(x, [56, 56], mode="bilinear"), [pyramid]),
        "interpolate bicubic": (lambda x: F.interpolate(x, [40, 40], mode="bicubic"), [pyramid]),
    }  # fmt: skip
    rows, labels = (64 * batch, 1000), paddle.randint(0, 1000, [64 * batch])
    turned = paddle.to_tensor([[[0.9, 0.2, 0.0], [-0.2, 0.9, 0.0]]] * batch)
    grid = F.affine_grid(turned, [batch, 1, 28, 28])
    index, order = paddle.randint(0, 197, [100]), paddle.randperm(197)
    chosen, mask = paddle.rand([batch, 197, 768]) < 0.5, paddle.rand([batch, 197, 1]) < 0.5
    found |= {
        "prelu": (F.prelu, [gated, (240,)]),
        "softplus": (F.softplus, [gated]),
        "log_softmax": (F.log_softmax, [rows]),
        "log_sigmoid": (F.log_sigmoid, [gated]),
        "celu": (F.celu, [gated]),
        "selu": (F.selu, [gated]),
        "softsign": (F.softsign, [gated]),
        "hardtanh": (F.hardtanh, [gated]),
        "glu": (F.glu, [hidden]),
        "group_norm of one group": (lambda x, w, b: F.group_norm(x, 1, 1e-5, w, b), [pyramid, (256,), (256,)]),
        "layer_norm of channels": (
            lambda x, w, b: F.layer_norm(x.transpose([0, 2, 3, 1]), 256, w, b).transpose([0, 3, 1, 2]),
            [pyramid, (256,), (256,)]),
        "local_response_norm": (lambda x: F.local_response_norm(x, 5), [pyramid]),
        "normalize": (lambda x: F.normalize(x, axis=-1), [tokens]),
        "unfold 3x3": (lambda x: F.unfold(x, 3, paddings=1), [maps]),
        "fold 3x3": (lambda x: F.fold(x, 28, 3, paddings=1), [(batch, 576, 784)]),
        "grid_sample": (lambda x: F.grid_sample(x, grid.astype(x.dtype)), [pyramid]),
        "roll": (lambda x: x.roll([3, 3], axis=[1, 2]), [(batch, 56, 56, 96)]),
        "flip": (lambda x: x.flip(3), [pyramid]),
        "expand": (lambda x, y: x.expand([batch, 197, 768]) + y, [(1, 1, 768), tokens]),
        "tile": (lambda x: x.tile([1, 4, 1]), [tokens]),
        "stack": (lambda x, y: paddle.stack([x, y], axis=1), [tokens, tokens]),
        "index_select": (lambda x: x.index_select(index, axis=1), [tokens]),
        "gather": (lambda x: paddle.gather(x, order, axis=1), [tokens]),
        "take_along_axis": (
            lambda x: paddle.take_along_axis(x, order.reshape([1, 197, 1]).expand([batch, 197, 768]), 1), [tokens]),
        "embedding": (lambda w: F.embedding(order, w), [(197, 768)]),
        "cumsum": (lambda x: x.cumsum(1), [tokens]),
        "argmax": (lambda x: x.argmax(-1), [rows]),
        "topk": (lambda x: x.topk(5)[0], [rows]),
        "sort": (lambda x: x.sort(-1), [rows]),
        "max over tokens": (lambda x: x.max(1), [tokens]),
        "min over channels": (lambda x: x.min(-1), [tokens]),
        "norm": (lambda x: x.norm(axis=-1), [tokens]),
        "variance": (lambda x: x.var(-1), [tokens]),
        "maximum": (paddle.maximum, [tokens, tokens]),
        "where": (lambda x, y: paddle.where(chosen, x, y), [tokens, tokens]),
        "masked_fill": (lambda x: x.masked_fill(mask, 0.0), [tokens]),
        "einsum": (lambda x, y: paddle.einsum("bnd,bmd->bnm", x, y), [tokens, tokens]),
        "bmm": (paddle.bmm, [(12 * batch, 197, 64), (12 * batch, 64, 197)]),
        "outer": (paddle.outer, [(768,), (3072,)]),
        "cross_entropy": (lambda x: F.cross_entropy(x, labels), [rows]),
        "cross_entropy of soft labels": (
            lambda x: F.cross_entropy(x, F.label_smooth(F.one_hot(labels, 1000)).astype(x.dtype), soft_label=True),
            [rows]),
        "binary_cross_entropy_with_logits": (
            lambda x: F.binary_cross_entropy_with_logits(x, F.one_hot(labels, 1000).astype(x.dtype)), [rows]),
        "mse_loss": (F.mse_loss, [tokens, tokens]),
        "exp": (paddle.exp, [tokens]),
        "log": (lambda x: paddle.log(x * x + 1), [tokens]),
        "sin": (paddle.sin, [tokens]),
        "pow": (lambda x: (x * x + 1) ** 3.0, [tokens]),
    }  # fmt: skip
    for length in (197, 577, 1025):
        found[f"attention 12 heads, {length} tokens"] = (
            lambda qkv: layers.attention(qkv, 12, 0.125),
            [(batch, length, 2304)],
        )
    activations = ("relu", "relu6", "leaky_relu", "hardswish", "hardsigmoid", "silu", "sigmoid", "tanh", "elu", "mish")
    found |= {name: (getattr(F, name), [gated]) for name in activations}
    for channels, size, window, stride in (
        (16, 112, 3, 1), (64, 112, 3, 2), (96, 56, 3, 2), (72, 28, 5, 1), (480, 14, 3, 1), (960, 7, 5, 1),
        (96, 56, 7, 1),
    ):  # fmt: skip
        function = conv(padding=window // 2, stride=stride, groups=channels)
        name = f"conv depthwise {channels} of {size}x{size}, {window}x{window} stride {stride}"
        found[name] = function, [(batch, channels, size, size), (channels, 1, window, window)]
    return found
