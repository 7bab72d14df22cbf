"""Run by export.py, in a process of its own: paddle2onnx aborts its process at an operator that it does not know.

    python export_onnx.py convert <prefix of the Paddle files> <ONNX file> <epsilon> <erf or tanh>
    python export_onnx.py halve <ONNX file> <ONNX file in float16>
"""

import math
import sys

import onnx


def convert(prefix, path, epsilon, gelu):
    """Write a Paddle model as ONNX, and mend in it what paddle2onnx 2.1 leaves wrong.

    Args:
        epsilon: that of the GroupNorms.
        gelu: the form of all GELUs, which are written with erf.
    """
    import paddle2onnx

    # the default optimize_tool would install further packages from another index at run time
    files = f"{prefix}.json", f"{prefix}.pdiparams", path
    paddle2onnx.export(*files, opset_version=17, optimize_tool="None", verbose=False)
    model = onnx.load(path)
    graph = model.graph
    old = graph.output[0].name
    borders = {node.input[2] for node in graph.node if node.op_type == "Pad" and len(node.input) > 2}
    nodes = []
    for node in graph.node:
        for attribute in node.attribute:  # in both of these the converter leaves what was in its memory
            if node.op_type == "InstanceNormalization" and attribute.name == "epsilon":
                attribute.f = float(epsilon)
            if node.op_type == "Constant" and node.output[0] in borders:
                attribute.t.raw_data = bytes(len(attribute.t.raw_data))  # 0, with which models pad
        if node.op_type == "Resize" and len(node.input) == 4:  # empty ones, which float16 would take for given
            node.input[1] = node.input[2] = ""
        for names in (node.input, node.output):
            names[:] = ["logits" if name == old else name for name in names]
        nodes += tanh_for_erf(node) if node.op_type == "Erf" and gelu == "tanh" else [node]
    del graph.node[:]
    graph.node.extend(nodes)
    graph.output[0].name = "logits"
    for value in (graph.input[0], graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.checker.check_model(model)
    onnx.save(model, path)


def tanh_for_erf(node):
    """Return the nodes of tanh(2 / sqrt(pi) (u + 0.08943 u^3)), with which GELU's erf(u), u = x / sqrt(2), is written
    as tanh(sqrt(2 / pi) (x + 0.044715 x^3))."""
    (u,), (result,) = node.input, node.output
    make, tensor = onnx.helper.make_node, onnx.helper.make_tensor
    numbers = {"cubic": 2 * 0.044715, "slope": 2 / math.sqrt(math.pi)}
    constants = [
        make("Constant", [], [f"{result}.{name}"], value=tensor(name, onnx.TensorProto.FLOAT, [], [value]))
        for name, value in numbers.items()
    ]  # fmt: skip
    square, cube, bent, total, steep = (f"{result}.{number}" for number in range(5))
    steps = [
        ("Mul", [u, u], square), ("Mul", [square, u], cube), ("Mul", [cube, f"{result}.cubic"], bent),
        ("Add", [u, bent], total), ("Mul", [total, f"{result}.slope"], steep), ("Tanh", [steep], result),
    ]  # fmt: skip
    return constants + [make(kind, inputs, [output], name=output) for kind, inputs, output in steps]


def halve(path, half_path):
    """Write an ONNX model with half weights and arithmetic, float32 images and logits."""
    from onnxconverter_common import float16

    model, kind = onnx.load(path), onnx.TensorProto
    casts = {node.name for node in model.graph.node if node.op_type == "Cast" and node.attribute[0].i == kind.FLOAT}
    # the converter's own limits would clip weights at 1e4 and raise small ones to 1e-7
    limits = {"min_positive_val": 2.0**-24, "max_finite_val": 65504.0}
    half = float16.convert_float_to_float16(model, keep_io_types=True, **limits)
    for node in half.graph.node:
        if node.name in casts:  # the model's own, which the converter leaves as they are between halves
            node.attribute[0].i = kind.FLOAT16
    onnx.save(half, half_path)


if __name__ == "__main__":
    {"convert": convert, "halve": halve}[sys.argv[1]](*sys.argv[2:])
