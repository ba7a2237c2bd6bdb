"""Shapes followed without running a network are those that ONNX itself infers."""

from __future__ import annotations

import itertools
import math
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vinoreward.backends import onnx_check
from vinoreward.backends.onnx_graph import Malformed, Value, read_graph
from vinoreward.backends.onnx_rules import MAX_OPSET, MIN_OPSET, OPERATORS
from vinoreward.errors import ModelRefusedError

onnx = pytest.importorskip("onnx")
torch = pytest.importorskip("torch")
models = pytest.importorskip("torchvision.models")

SIDE = 64


def convnext() -> Any:
    block = models.convnext.CNBlockConfig
    return models.convnext.ConvNeXt([block(8, 16, 1), block(16, None, 1)], num_classes=2)


def vit() -> Any:
    return models.VisionTransformer(SIDE, 16, 1, 2, 32, 64, num_classes=2)


def swin() -> Any:
    return models.SwinTransformer([4, 4], 8, [1, 1], [2, 2], [4, 4], num_classes=2)


def inverted_residual() -> Any:
    """What MobileNetV3 and EfficientNet are made of, once."""
    from torchvision.models.mobilenetv3 import InvertedResidual, InvertedResidualConfig

    setting = InvertedResidualConfig(8, 3, 16, 8, True, "HS", 1, 1, 1.0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, 2),
        InvertedResidual(setting, torch.nn.BatchNorm2d),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(8, 2),
    )


def inferred(path: Path, batch: int) -> dict[str, tuple[int, tuple[int | None, ...]]]:
    """Return type and shape of each result as the onnx package infers them."""
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = batch
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    del model.graph.value_info[:]
    found = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    return {
        value.name: (
            value.type.tensor_type.elem_type,
            tuple(
                size.dim_value if size.HasField("dim_value") else None
                for size in value.type.tensor_type.shape.dim
            ),
        )
        for value in [*found.value_info, *found.output]
        if value.type.tensor_type.HasField("shape")
    }


@pytest.mark.slow
@pytest.mark.parametrize("build", [convnext, vit, swin, inverted_residual])
def test_networks_that_people_export_are_followed(
    build: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vinoreward.backends.convert import export_onnx
    from vinoreward.backends.network import IMAGENET_MEAN, IMAGENET_STD
    from vinoreward.backends.torch_networks import WithPreprocess

    path = tmp_path / "network.onnx"
    export_onnx(WithPreprocess(build().eval(), IMAGENET_MEAN, IMAGENET_STD), path, SIDE, SIDE)
    assert b".py" not in path.read_bytes(), "the file names sources of this machine"
    wanted = inferred(path, 4)
    followed: list[tuple[int, tuple[int, ...]]] = []
    keep = onnx_check._bounded

    def noting(value: Value, limit: int, what: str) -> Value:
        followed.append((value.kind, value.shape))
        return keep(value, limit, what)

    monkeypatch.setattr(onnx_check, "_bounded", noting)
    graph = read_graph(path.read_bytes())
    onnx_check.check_graph(graph, (SIDE, SIDE, 3), (4,))
    names = [name for node in graph.nodes for name in node.outputs]
    shapes = dict(zip(names, followed[1:], strict=True))  # the first is the input
    assert len(wanted) > 0.8 * len(names)
    for name, (kind, shape) in wanted.items():
        assert shapes[name][0] == kind, name
        assert len(shapes[name][1]) == len(shape)
        assert all(b in (None, a) for a, b in zip(shapes[name][1], shape, strict=True)), name


def test_the_limits_are_those_that_the_documentation_states(project_root: Path) -> None:
    text = (project_root / "SECURITY.md").read_text(encoding="utf-8")
    assert f"2^{int(math.log2(onnx_check.MAX_ELEMENTS))} numbers in one result" in text
    assert f"2^{int(math.log2(onnx_check.MAX_TOTAL))} in all" in text
    assert f"10^{int(math.log10(onnx_check.MAX_WORK))} operations" in text
    assert f"more than {onnx_check.MAX_OPERATIONS} operations" in text
    assert f"{onnx_check.MAX_READERS} that read" in text
    assert f"{onnx_check.MAX_CLUSTER} without" in text


def test_work_is_bounded_as_memory_is(tmp_path: Path) -> None:
    """Small results, from a product over a long axis, again and again."""
    from onnx import TensorProto, helper

    side = 1 << 13
    nodes = [
        helper.make_node("Expand", ["pictures", "square"], ["x0"]),
        *[helper.make_node("MatMul", [f"x{n}", f"x{n}"], [f"x{n + 1}"]) for n in range(5)],
    ]
    square = helper.make_tensor("square", TensorProto.INT64, [2], [side, side])
    inputs = [helper.make_tensor_value_info("pictures", TensorProto.FLOAT, [1, 1])]
    outputs = [helper.make_tensor_value_info("x5", TensorProto.FLOAT, [side, side])]
    graph = helper.make_graph(nodes, "work", inputs, outputs, [square])
    content = helper.make_model(graph).SerializeToString()
    with pytest.raises(ModelRefusedError, match="operations per picture"):
        onnx_check.check_graph(read_graph(content), (1,), (1,))


def whole(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


def content(
    nodes: Sequence[Any],
    constants: Mapping[str, Any],
    opset: int = 18,
    domains: Sequence[tuple[str, int]] = (),
    rows: int | str = "N",
) -> bytes:
    """A network of ``x`` (``rows``, 3, 8, 8) float32 whose result is ``y``."""
    from onnx import TensorProto, helper, numpy_helper

    graph = helper.make_graph(
        [
            helper.make_node(op, list(takes), list(gives), **more)
            for op, takes, gives, more in nodes
        ],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    imports = [helper.make_opsetid(*domain) for domain in domains or [("", opset)]]
    made: bytes = helper.make_model(graph, opset_imports=imports).SerializeToString()
    return made


def check(made: bytes) -> None:
    onnx_check.check_graph(read_graph(made), (3, 8, 8), (1, 16))


@pytest.mark.parametrize(
    ("rows", "products", "said"),
    [(1 << 24, 1, "more than 67108864 numbers"), (1 << 20, 200, "its results are more than")],
)
def test_a_file_does_not_raise_the_limits_by_a_larger_batch(
    rows: int, products: int, said: str
) -> None:
    places = ["x", *(f"x{n}" for n in range(1, products)), "y"]
    nodes = [("MatMul", (a, "w"), (b,), {}) for a, b in itertools.pairwise(places)]
    check(content(nodes, {"w": np.ones((8, 8), np.float32)}, rows=16))
    with pytest.raises(ModelRefusedError, match=said):
        check(content(nodes, {"w": np.ones((8, 8), np.float32)}, rows=rows))


ONE = np.float32([1])
NUMBERS = np.float32([1, 2, 3, 4, 5])
PICTURE = np.ones((1, 1, 2, 2), np.float32)
KERNEL = np.ones((3, 1, 2, 2), np.float32)
# What a follower of shapes and a runtime may understand in two ways, what reads or writes out of
# bounds, and what ends the process: nodes, constants, opset.
DOUBTFUL: dict[str, tuple[Any, ...]] = {
    "write by ScatterElements": (
        [("ScatterElements", ("x", "at", "new"), "y", {"axis": 3})],
        {"at": np.full((1, 1, 1, 1), -100_000), "new": PICTURE[..., :1, :1]},
    ),
    "read by GatherElements": (
        [("GatherElements", ("c", "at"), "y", {})], {"c": NUMBERS, "at": whole(-(1 << 28))},
    ),
    "read by GatherND": ([("GatherND", "xi", "y", {})], {"i": whole(0, 1 << 28, 0, 0)}),
    "read by Gather": ([("Gather", "xi", "y", {"axis": 1})], {"i": whole(3)}),
    "read by Gather, many places": (
        [("Gather", "xi", "y", {"axis": 1})], {"i": np.arange(5000) % 4},
    ),
    "places from the picture": (
        [("Cast", "x", "i", {"to": 7}), ("Gather", "ci", "y", {})], {"c": NUMBERS},
    ),
    "write by ScatterND": (
        [("ScatterND", ("x", "at", "new"), "y", {})], {"at": whole(0, -1)[None], "new": PICTURE[0]},
    ),
    "Slice from far before the start": (
        [("Slice", "cseap", "y", {})],
        {"c": NUMBERS, "s": whole(-100), "e": whole(-1000), "a": whole(0), "p": whole(-1)},
    ),
    "Div of 2^53 + 1": (
        [
            ("Div", "ab", "q", {}), ("Sub", "qc", "d", {}),
            ("Mul", "dk", "n", {}), ("Add", "nb", "m", {}), ("Expand", "om", "y", {}),
        ],
        {"a": whole((1 << 53) + 1), "b": whole(1), "c": whole(1 << 53), "k": whole(9), "o": ONE},
    ),
    "Mod as C has it": (
        [("Mod", "ab", "m", {"fmod": 1}), ("Expand", "om", "y", {})],
        {"a": whole(5), "b": whole(3), "o": ONE},
    ),
    "a sum beyond 32 bits": (
        [("ReduceSum", "a", "s", {"keepdims": 1}), ("Cast", "s", "m", {"to": 7}),
         ("Min", "mb", "n", {}), ("Expand", "on", "y", {})],
        {"a": np.array([(1 << 31) - 1, 1], np.int32), "b": whole(1), "o": ONE},
    ),
    "Range beyond 64 bits": (
        [("Range", "abc", "r", {}), ("Cast", "r", "f", {"to": 1}),
         ("Concat", "of", "y", {"axis": 0})],
        {"a": np.int64(1), "b": np.int64(-(1 << 63)), "c": np.int64(1 << 35), "o": ONE},
    ),
    "Pad of an axis twice": (
        [("Pad", ("c", "p", "", "a"), "y", {})],
        {"c": ONE, "p": whole(-(1 << 28), 1 << 28, 0, 0), "a": whole(0, 0)},
    ),
    "Pad with its old attribute": (
        [("Pad", "cp", "y", {"pads": [0, 0]})], {"c": ONE, "p": whole(0, 1 << 28)},
    ),
    "Resize that keeps the aspect ratio": (
        [("Resize", ("c", "", "", "s"), "y", {"keep_aspect_ratio_policy": "not_smaller"})],
        {"c": PICTURE, "s": whole(1, 1, 32768, 1)},
    ),
    "Resize between two sizes": (
        [("Resize", ("c", "", "s"), "y", {})],
        {"c": np.ones((1, 1, 7, 1), np.float32), "s": np.float32([1, 1, 3 / 7 - 5e-8, 1])},
    ),
    "Shape from its end, too early": (
        [("Shape", "x", "s", {"start": 3}), ("Expand", "os", "y", {})], {"o": ONE}, 13,
    ),
    "axes that OpenVINO does not see": ([("ReduceL1", "x", "y", {"axes": [1]})], {}, 17),
    "an axis in an older version": ([("Squeeze", "ca", "y", {})], {"c": ONE, "a": whole(0)}, 11),
    "two versions": ([("Relu", "x", "y", {})], {}, 0, [("", 13), ("ai.onnx", 11)]),
    "a version of the future": ([("Relu", "x", "y", {})], {}, 99),
    "LRN over a million channels": ([("LRN", "x", "y", {"size": (1 << 20) + 1})], {}),
    "LRN over none": ([("LRN", "x", "y", {"size": 0})], {}),
    "Div by 0": ([("Div", "ab", "y", {})], {"a": whole(1), "b": whole(0)}),
    "Div by -1": ([("Div", "ab", "y", {})], {"a": whole(-(1 << 63)), "b": whole(-1)}),
    "Mod by -1": ([("Mod", "ab", "y", {})], {"a": whole(-(1 << 63)), "b": whole(-1)}),
    "Mod by what the picture says": (
        [("Cast", "x", "i", {"to": 7}), ("Mod", "ai", "y", {})], {"a": whole(1)},
    ),
    "ConvTranspose in no groups": ([("ConvTranspose", "xk", "y", {"group": 0})], {"k": KERNEL}),
    "GroupNormalization in no groups": (
        [("GroupNormalization", "xss", "y", {"num_groups": 0})], {"s": np.ones(3, np.float32)}, 21,
    ),
    "pads that auto_pad hides": (
        [("MaxPool", "x", "y", {"kernel_shape": [3, 3], "auto_pad": "VALID", "pads": [1] * 4})], {},
    ),
    "windows beyond auto_pad": (
        [("MaxPool", "x", "y",
          {"kernel_shape": [1, 1], "strides": [3, 3], "auto_pad": "SAME_UPPER", "ceil_mode": 1})],
        {},
    ),
    "a last window of padding": (
        [("MaxPool", "x", "y",
          {"kernel_shape": [2, 2], "strides": [9, 9], "pads": [1] * 4, "ceil_mode": 1})], {},
    ),
    "a bias of more channels": (
        [("Conv", "xkb", "y", {})],
        {"k": np.ones((1, 3, 1, 1), np.float32), "b": np.float32([1] * 4097)},
    ),
    "an offset of more rows": (
        [("Gemm", "oob", "y", {})],
        {"o": np.ones((1, 1), np.float32), "b": np.ones((4097, 1), np.float32)},
    ),
    "a limit for each number": ([("Clip", "cm", "y", {})], {"c": ONE, "m": np.float32([1] * 4097)}),
    "a name given twice": ([("Relu", "c", "d", {}), ("Relu", "x", "c", {})], {"c": ONE}),
    "no numbers in a constant": (
        [("Range", "abc", "r", {}), ("Expand", "rs", "y", {})],
        {"a": np.int64(0), "b": np.int64(-7), "c": np.int64(2), "s": whole(1, 0)},
    ),
    "no numbers": ([("Slice", "xss", "y", {})], {"s": whole(1)}),
}  # fmt: skip


@pytest.mark.parametrize("name", DOUBTFUL)
def test_what_runtimes_may_understand_otherwise_is_refused(name: str) -> None:
    nodes, constants, *more = DOUBTFUL[name]
    with pytest.raises((ModelRefusedError, Malformed)):
        check(content(nodes, constants, *more))


def test_what_ordinary_networks_do_is_followed() -> None:
    """Places, divisions, reversals and versions that are in no doubt."""
    nodes = [
        ("Gather", ("x", "last"), "a", {"axis": 2}),
        ("Shape", "x", ["shape"], {"start": 2}),
        ("Div", ("shape", "two"), ["half"], {}),
        ("Mod", ("half", "two"), ["rest"], {}),
        ("Slice", ("x", "from", "to", "axis", "step"), ["back"], {}),
        ("GatherND", ("back", "corner"), ["b"], {}),
        ("ScatterND", ("back", "corner", "new"), ["c"], {}),
        ("LRN", ["c"], ["d"], {"size": 3}),
        ("Div", "dx", ["e"], {}),
        ("Concat", ("rest", "half"), ["sizes"], {"axis": 0}),
        ("Expand", ("one", "half"), ["f"], {}),
    ]
    constants = {
        "last": whole(-1), "two": whole(2), "from": whole(-1), "to": whole(-(1 << 63)),
        "axis": whole(3), "step": whole(-1), "corner": whole(0, 2)[None], "one": ONE,
        "new": np.ones((1, 8, 8), np.float32),
    }  # fmt: skip
    check(content(nodes, constants))


def chain(op: str, count: int, *second: str, **more: Any) -> list[Any]:
    """``n0 = op(x)``, ``n1 = op(n0)`` and so on, each with the same second input."""
    return [
        (op, (f"n{turn - 1}" if turn else "x", *second), [f"n{turn}"], more)
        for turn in range(count)
    ]


def sizes(count: int) -> list[Any]:
    """A size that is calculated again and again, and used each time."""
    nodes: list[Any] = [("Shape", "x", ["s0"], {})]
    for turn in range(count):
        nodes += [
            ("Max", (f"s{turn}", "one"), [f"s{turn + 1}"], {}),
            ("Reshape", (f"n{turn - 1}" if turn else "x", f"s{turn + 1}"), [f"r{turn}"], {}),
            ("Conv", (f"r{turn}", "kernel"), [f"n{turn}"], {}),
        ]
    return nodes


@pytest.mark.parametrize(
    "nodes",
    [
        pytest.param(chain("Add", 140, "x"), id="the same tensor again"),
        pytest.param(chain("Sigmoid", 140), id="a long row"),
        pytest.param([("Relu", "x", [f"n{turn}"], {}) for turn in range(140)], id="many readers"),
        pytest.param(chain("Conv", 6100, "kernel"), id="many operations"),
        pytest.param(sizes(400), id="many sizes"),
    ],
)
def test_what_takes_long_to_compile_is_refused(nodes: list[Any]) -> None:
    """Compiled by OpenVINO, 600 additions of the same tensor take 42 s."""
    kernel = np.ones((3, 3, 1, 1), np.float32)
    constants = {"one": whole(1, 1, 1, 1), "kernel": kernel}
    check(content(nodes[: len(nodes) // 2], constants))
    with pytest.raises(ModelRefusedError, match=r"128|6000|50000"):
        check(content(nodes, constants))


def test_a_dense_block_and_many_residual_ones_are_followed() -> None:
    """As long as those of DenseNet-264 and three times those of ResNet-152."""
    nodes: list[Any] = []
    for turn in range(64):
        parts = ["x", *[f"c{before}" for before in range(turn)]]
        nodes += [
            ("Concat", parts, [f"d{turn}"], {"axis": 1}),
            ("Conv", (f"d{turn}", f"k{turn}"), [f"e{turn}"], {}),
            ("Relu", (f"e{turn}",), [f"c{turn}"], {}),
        ]
    last = "x"
    for turn in range(150):
        nodes += [
            ("Conv", (last, "k0"), [f"r{turn}"], {}),
            ("Add", (f"r{turn}", last), [f"s{turn}"], {}),
            ("Relu", (f"s{turn}",), [f"t{turn}"], {}),
        ]
        last = f"t{turn}"
    constants = {f"k{n}": np.ones((3, 3 + 3 * n, 1, 1), np.float32) for n in range(64)}
    check(content(nodes, constants))


def test_operators_have_the_inputs_and_attributes_that_onnx_gives_them() -> None:
    for name, operator in OPERATORS.items():
        for opset in range(max(MIN_OPSET, operator.since), MAX_OPSET + 1):
            schema = onnx.defs.get_schema(name, opset, "")
            most = max(count for count, since in operator.inputs if since <= opset)
            assert most == (schema.max_input if schema.max_input < 1000 else math.inf), name
            has = {word for word, versions in operator.attributes.items() if opset in versions}
            assert has <= schema.attributes.keys(), (name, opset)


def field(number: int, value: bytes | int) -> bytes:
    """One protobuf field."""
    kind, data = (0, varint(value)) if isinstance(value, int) else (2, varint(len(value)) + value)
    return varint(number << 3 | kind) + data


def varint(value: int) -> bytes:
    low, rest = value & 127, value >> 7
    return bytes([low | 128]) + varint(rest) if rest else bytes([low])


def in_graph(part: bytes) -> bytes:
    return field(1, 8) + field(7, part) + field(8, field(2, 17))


def test_a_tensor_of_many_sizes_takes_no_time() -> None:
    tensor = field(1, varint((1 << 62) + 1) * 100_000) + field(2, 1) + field(8, b"name")
    started = time.process_time()
    with pytest.raises(Malformed, match="shape"):
        read_graph(in_graph(field(5, tensor)))
    assert time.process_time() - started < 1  # their product takes many times as long


def test_a_tensor_of_more_numbers_than_it_says_takes_no_memory() -> None:
    numbers = field(7, b"\1" * 1_000_000)
    tensor = field(1, b"\1") + field(2, 7) + numbers + field(8, b"name")
    assert most_memory(in_graph(field(5, tensor))) < 1 << 20


def test_long_lists_in_an_attribute_take_no_memory() -> None:
    attribute = field(1, b"a") + field(20, 7) + field(8, b"\x81\x7f" * 4_000_000)
    made = in_graph(field(1, field(4, b"Relu") + field(5, attribute)))
    assert most_memory(made) < 10 << 20


def most_memory(made: bytes) -> int:
    tracemalloc.start()
    try:
        with pytest.raises((Malformed, ModelRefusedError)):
            read_graph(made)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("kind", "field", "numbers"),
    [
        ("UINT8", "int32_data", [3]),
        ("UINT8", "int32_data", [3] * 20),
        ("UINT8", "raw_data", b"\1" * 20),
        ("DOUBLE", "double_data", [1.0] * 7),
        ("FLOAT", "float_data", [1.0] * 9),
        ("INT64", "int64_data", [1] * 7),
    ],
)
def test_a_small_tensor_has_exactly_its_numbers(kind: str, field: str, numbers: Any) -> None:
    tensor = onnx.TensorProto(name="c", data_type=getattr(onnx.TensorProto, kind), dims=[8])
    if isinstance(numbers, bytes):
        tensor.raw_data = numbers
    else:
        getattr(tensor, field).extend(numbers)
    nodes = [onnx.helper.make_node("Identity", ["c"], ["y"])]
    graph = onnx.helper.make_graph(nodes, "g", [], [], [tensor])
    with pytest.raises(Malformed):
        read_graph(onnx.helper.make_model(graph).SerializeToString())


def test_whole_numbers_of_any_type_may_divide() -> None:
    pixels = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.UINT8, ["n", 3, 8, 8])
    two = onnx.numpy_helper.from_array(np.array([2], np.uint8), "two")
    nodes = [onnx.helper.make_node("Div", ["x", "two"], ["y"])]
    graph = onnx.helper.make_graph(nodes, "g", [pixels], [], [two])
    opset = [onnx.helper.make_opsetid("", 17)]
    found = read_graph(onnx.helper.make_model(graph, opset_imports=opset).SerializeToString())
    onnx_check.check_graph(found, (3, 8, 8), (1,))
