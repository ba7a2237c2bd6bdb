"""Shapes followed without running a network are those that ONNX itself infers."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vinoreward.backends import onnx_check
from vinoreward.backends.onnx_graph import read_graph
from vinoreward.backends.onnx_rules import Value
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


def inferred(path: Path, batch: int) -> dict[str, tuple[int | None, ...]]:
    """Return the shape of each result as the onnx package infers it."""
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = batch
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    del model.graph.value_info[:]
    found = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    return {
        value.name: tuple(
            size.dim_value if size.HasField("dim_value") else None
            for size in value.type.tensor_type.shape.dim
        )
        for value in [*found.value_info, *found.output]
        if value.type.tensor_type.HasField("shape")
    }


@pytest.mark.slow
@pytest.mark.parametrize("build", [convnext, vit, swin, inverted_residual])
def test_networks_that_people_export_are_followed(
    build: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vinoreward.backends.export import export_onnx
    from vinoreward.backends.spec import IMAGENET_MEAN, IMAGENET_STD
    from vinoreward.backends.torch_networks import WithPreprocess

    path = tmp_path / "network.onnx"
    export_onnx(WithPreprocess(build().eval(), IMAGENET_MEAN, IMAGENET_STD), path, SIDE, SIDE)
    wanted = inferred(path, 4)
    followed: list[tuple[int, ...]] = []
    keep = onnx_check._bounded

    def noting(value: Value, limit: int, what: str) -> Value:
        followed.append(value.shape)
        return keep(value, limit, what)

    monkeypatch.setattr(onnx_check, "_bounded", noting)
    graph = read_graph(path.read_bytes())
    onnx_check.check_graph(graph, (SIDE, SIDE, 3), (4,))
    names = [name for node in graph.nodes for name in node.outputs]
    shapes = dict(zip(names, followed[1:], strict=True))  # the first is the input
    assert len(wanted) > 0.8 * len(names)
    for name, shape in wanted.items():
        assert len(shapes[name]) == len(shape)
        assert all(b in (None, a) for a, b in zip(shapes[name], shape, strict=True)), name


def test_the_limits_are_those_that_the_documentation_states(project_root: Path) -> None:
    text = (project_root / "SECURITY.md").read_text(encoding="utf-8")
    assert f"2^{int(math.log2(onnx_check.MAX_ELEMENTS))} numbers in one result" in text
    assert f"2^{int(math.log2(onnx_check.MAX_TOTAL))} in all" in text
    assert f"10^{int(math.log10(onnx_check.MAX_WORK))} operations" in text


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
