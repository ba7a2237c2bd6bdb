"""The allowed ONNX operators: how many inputs and which attributes each has, by version.

A runtime passes over an attribute that it does not expect, so a file could show one size to a
reader that believes it and another to the runtime. What a version of an operator does not have is
therefore refused.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from vinoreward.backends.onnx_graph import Graph, Node
from vinoreward.errors import ModelRefusedError

MIN_OPSET, MAX_OPSET = 11, 28
"""Versions of the standard operators that are known here."""

# Operators: most inputs, by version where that changes, and attributes. `@18` means since version
# 18, `<13` before 13. This is as ONNX has it. GatherElements and ScatterElements are left out:
# OpenVINO reads and writes wherever their indices point, outside of the tensor too.
_TABLE = """
Abs Acos Acosh Asin Asinh Atan Atanh Ceil Cos Cosh DynamicQuantizeLinear Erf Exp Floor
GlobalAveragePool GlobalMaxPool HardSwish@14 Identity IsNaN Log Mish@18 Neg Not Reciprocal Relu
Round Sigmoid Sign Sin Sinh Size Softplus Softsign Sqrt Tan Tanh: 1;
Add And Div Equal Expand Greater GreaterOrEqual@12 Less LessOrEqual@12 MatMul Mul Or PRelu Pow Sub
Tile Xor: 2;
Max Mean Min Sum: any;
Where: 3;
MatMulInteger: 4;
QLinearMatMul: 8;
ArgMax ArgMin: 1 axis keepdims select_last_index@12;
AveragePool: 1 auto_pad ceil_mode count_include_pad dilations@19 kernel_shape pads strides;
BatchNormalization: 5 epsilon momentum training_mode@14;
Cast: 1 round_mode@24 saturate@19 to;
CastLike@15: 2 round_mode@24 saturate@19;
Celu@12 Elu LeakyRelu Swish@24 ThresholdedRelu: 1 alpha;
Clip: 3;
Concat: any axis;
Constant: 0 value value_float@12 value_floats@12 value_int@12 value_ints@12;
ConstantOfShape: 1 value;
Conv: 3 auto_pad dilations group kernel_shape pads strides;
ConvInteger: 4 auto_pad dilations group kernel_shape pads strides;
ConvTranspose: 3 auto_pad dilations group kernel_shape output_padding output_shape pads strides;
CumSum: 2 exclusive reverse;
DepthToSpace: 1 blocksize mode;
DequantizeLinear: 3 axis@13 block_size@21 output_dtype@23;
Dropout: 1 3@12 ratio<12 seed@12;
Einsum@12: any equation;
Flatten Hardmax LogSoftmax Softmax: 1 axis;
Gather: 2 axis;
GatherND: 2 batch_dims@12;
Gelu@20: 1 approximate;
Gemm: 3 alpha beta transA transB;
GlobalLpPool: 1 p;
GroupNormalization@21: 3 epsilon num_groups stash_type;
HardSigmoid: 1 alpha beta;
InstanceNormalization: 3 epsilon;
IsInf: 1 detect_negative detect_positive;
LRN: 1 alpha beta bias size;
LayerNormalization@17: 3 axis epsilon stash_type;
LpNormalization: 1 axis p;
LpPool: 1 auto_pad ceil_mode@18 dilations@18 kernel_shape p pads strides;
MaxPool: 1 auto_pad ceil_mode dilations kernel_shape pads storage_order strides;
MeanVarianceNormalization: 1 axes;
Mod: 2 fmod;
Pad: 3 4@18 mode;
QLinearConv: 9 auto_pad dilations group kernel_shape pads strides;
QuantizeLinear: 3 axis@13 block_size@21 output_dtype@21 precision@23 saturate@19;
RMSNormalization@23: 2 axis epsilon stash_type;
Range: 3 stash_type@27;
ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd
ReduceSumSquare: 1 2@18 axes<18 keepdims noop_with_empty_axes@18;
ReduceSum: 1 2@13 axes<13 keepdims noop_with_empty_axes@13;
Reshape: 2 allowzero@14;
Resize: 4 antialias@18 axes@18 coordinate_transformation_mode cubic_coeff_a exclude_outside
extrapolation_value keep_aspect_ratio_policy@18 mode nearest_mode;
ScatterND: 3 reduction@16;
Selu: 1 alpha gamma;
Shape: 1 end@15 start@15;
Slice: 5;
SpaceToDepth: 1 blocksize;
Split: 1 2@13 axis num_outputs@18 split<13;
Squeeze Unsqueeze: 1 2@13 axes<13;
TopK: 2 axis largest sorted;
Transpose: 1 perm;
Trilu@14: 2 upper;
"""


class Operator(NamedTuple):
    """One operator.

    Attributes:
        since: the version that first has it.
        inputs: most inputs, with the version since which they are so many.
        attributes: by name, the versions that have them.
    """

    since: int
    inputs: list[tuple[float, int]]
    attributes: dict[str, range]


def _versions(word: str) -> tuple[str, range]:
    word, _, before = word.partition("<")
    name, _, since = word.partition("@")
    return name, range(int(since or MIN_OPSET), int(before or MAX_OPSET + 1))


def _operators() -> dict[str, Operator]:
    found = {}
    for row in _TABLE.split(";"):
        names, _, form = row.partition(":")
        inputs: list[tuple[float, int]] = []
        attributes = {}
        for word in form.split():
            name, versions = _versions(word)
            if name == "any" or name.isdigit():
                inputs.append((math.inf if name == "any" else int(name), versions.start))
            else:
                attributes[name] = versions
        for word in names.split():
            name, versions = _versions(word)
            found[name] = Operator(versions.start, inputs, attributes)
    return found


OPERATORS = _operators()


def check_operators(graph: Graph) -> None:
    """Raise unless every node is of an allowed operator, in the form that its version has.

    Raises:
        ModelRefusedError: another operator, attribute or input, or an unknown version.
    """
    if not MIN_OPSET <= graph.opset <= MAX_OPSET:
        raise ModelRefusedError(
            f"it is of ONNX's operator version {graph.opset}; known are {MIN_OPSET} to {MAX_OPSET}"
        )
    ops = {node.op for node in graph.nodes}
    unknown = sorted(op for op in ops if op not in OPERATORS or OPERATORS[op].since > graph.opset)
    if unknown:
        names = ", ".join(repr(name[:40]) for name in unknown[:5])
        raise ModelRefusedError(f"it has the operators {names}, which are not among those allowed")
    for node in graph.nodes:
        _check_node(node, graph.opset)


def _check_node(node: Node, opset: int) -> None:
    operator = OPERATORS[node.op]
    for name in node.attributes:
        if opset not in operator.attributes.get(name, ()):
            raise ModelRefusedError(
                f"its operator {node.op} has the attribute {name[:40]!r}, which version {opset} "
                "does not have"
            )
    most = max(count for count, since in operator.inputs if since <= opset)
    if len(node.inputs) > most:
        raise ModelRefusedError(
            f"its operator {node.op} has {len(node.inputs)} inputs; version {opset} takes {most}"
        )
