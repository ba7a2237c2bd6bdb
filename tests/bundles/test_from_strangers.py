"""A stranger's bundle: only what it lists is used, as it was hashed, and at a bounded cost."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from task_runs import run_python
from tiny_network import (
    HEIGHT,
    WIDTH,
    expected_logits,
    forge,
    golden_images,
    rewrite,
)

from vinoreward.backends import probe
from vinoreward.backends.runtime import import_openvino
from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import (
    BundleEditedError,
    BundleError,
    ConfigError,
    ModelCorruptError,
    ModelNotFoundError,
    ModelRefusedError,
)

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

GRAPH_BACKENDS = ("openvino", "onnxruntime")
FACTS: dict[str, Any] = {"labels": ["failure", "success"], "success_label": "success"}


def graph(nodes: Sequence[Any], constants: dict[str, Any] | None = None, **more: Any) -> bytes:
    """A network whose scores are the mean colour's, plus ``extra``, which the nodes make."""
    every = [
        *nodes,
        helper.make_node("Cast", ["images"], ["float"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["float"], ["mean"], axes=[1, 2, 3], keepdims=0),
        helper.make_node("Reshape", ["mean", "column"], ["rows"]),
        helper.make_node("ReduceMax", ["extra"], ["one"], keepdims=0),
        helper.make_node("Add", ["rows", "one"], ["sum"]),
        helper.make_node("Concat", ["sum", "rows"], ["logits"], axis=1),
    ]
    arrays = {"column": np.array([-1, 1], np.int64), **(constants or {})}
    made = helper.make_graph(
        every,
        "strange",
        [helper.make_tensor_value_info("images", TensorProto.UINT8, ["N", HEIGHT, WIDTH, 3])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", 2])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in arrays.items()],
    )
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("strange.domain", 1)]
    model = helper.make_model(made, opset_imports=domains, ir_version=9, **more)
    content: bytes = model.SerializeToString()
    return content


def loop(turns: int) -> bytes:
    """Adds 1 so many times."""
    body = helper.make_graph(
        [
            helper.make_node("Add", ["before", "step"], ["after"]),
            helper.make_node("Identity", ["go"], ["on"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("turn", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("before", TensorProto.FLOAT, [1]),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("after", TensorProto.FLOAT, [1]),
        ],
        [numpy_helper.from_array(np.ones(1, np.float32), "step")],
    )
    node = helper.make_node("Loop", ["turns", "always", "start"], ["extra"], body=body)
    constants = {
        "turns": np.array(turns, np.int64),
        "always": np.array(True),
        "start": np.zeros(1, np.float32),
    }
    return graph([node], constants)


def function(*own: Any) -> bytes:
    """Calls a function of another domain, which the file may bring along."""
    node = helper.make_node("Twice", ["start"], ["extra"], domain="strange.domain")
    return graph([node], {"start": np.zeros(1, np.float32)}, functions=own)


def twice() -> Any:
    add, opset = helper.make_node("Add", ["x", "x"], ["y"]), helper.make_opsetid("", 17)
    return helper.make_function("strange.domain", "Twice", ["x"], ["y"], [add], [opset])


def enlarged() -> bytes:
    """One operator that makes one number a terabyte."""
    node = helper.make_node("Resize", ["start", "", "size"], ["extra"])
    size = np.float32([1, 1, 1e6, 1e6])
    return graph([node], {"start": np.zeros((1, 1, 1, 1), np.float32), "size": size})


def lying() -> bytes:
    """Sixteen bytes that say they are a terabyte."""
    tensor = numpy_helper.from_array(np.zeros(4, np.float32), "start")
    tensor.dims[:] = [1 << 38]
    model = onnx.load_model_from_string(graph([helper.make_node("Identity", ["start"], ["extra"])]))
    model.graph.initializer.append(tensor)
    content: bytes = model.SerializeToString()
    return content


COSTLY: dict[str, Callable[[], bytes]] = {
    "loop": lambda: loop(10**12),
    "function": lambda: function(twice()),
    "another domain": function,
    "Resize": enlarged,
}


@pytest.mark.parametrize("kind", COSTLY)
def test_a_graph_without_bounds_is_refused(kind: str, bundle: Bundle, tmp_path: Path) -> None:
    content = COSTLY[kind]()
    (tmp_path / "costly.onnx").write_bytes(content)
    with pytest.raises(ModelRefusedError, match="trusted=True"):
        Bundle.from_model(tmp_path / "costly.onnx", **FACTS)
    forge(bundle, "model.onnx", content)
    for name in GRAPH_BACKENDS:
        with pytest.raises(ModelRefusedError, match="trusted=True"):
            Bundle.load(bundle.path).backend(name)


@pytest.mark.parametrize("name", GRAPH_BACKENDS)
def test_a_loop_of_someone_trusted_runs(bundle: Bundle, name: str, tmp_path: Path) -> None:
    path = tmp_path / "loop.onnx"
    path.write_bytes(loop(3))
    own = Bundle.from_model(path, **FACTS, trusted=True)
    image = np.full((1, HEIGHT, WIDTH, 3), 100, np.uint8)
    with own.backend(name) as backend:
        np.testing.assert_allclose(backend.infer(image), [[103.0, 100.0]])
    own.save(tmp_path / "saved", image)
    with pytest.raises(ModelRefusedError, match="'Loop'"):
        Bundle.load(tmp_path / "saved").backend(name)
    Bundle.load(tmp_path / "saved", trusted=True).backend(name).close()


def test_what_claims_to_be_large_is_not_made_large(bundle: Bundle) -> None:
    forge(bundle, "model.onnx", lying())
    with pytest.raises(ModelCorruptError, match="does not match the number of elements"):
        Bundle.load(bundle.path).backend()


def test_weights_in_another_file_are_not_read(bundle: Bundle) -> None:
    path = bundle.path / "model.onnx"
    external = {"save_as_external_data": True, "location": "secret.data", "size_threshold": 0}
    onnx.save(onnx.load(path), path, **external)
    forge(bundle, "model.onnx", path.read_bytes())
    with pytest.raises(ModelRefusedError, match="external data"):
        Bundle.load(bundle.path).backend()


def test_an_openvino_ir_is_refused_with_the_way_out(bundle: Bundle, tmp_path: Path) -> None:
    path = tmp_path / "model.xml"
    path.write_text("<net/>")
    for read in (Bundle.from_model, Bundle.from_encoder):
        with pytest.raises(ConfigError, match=r"OpenVINO IR.*export the network as ONNX"):
            read(path)
    forge(bundle, "model.onnx", b"<?xml version='1.0'?><net name='n' version='11'/>")
    with pytest.raises(ModelCorruptError, match="Expected an ONNX file"):
        Bundle.load(bundle.path).backend()


def ir_of_another_network() -> bytes:
    """OpenVINO's own format, without weights: it reads wherever the image tells it to."""
    ov = import_openvino()
    ops = ov.opset13
    images = ops.parameter([-1, HEIGHT, WIDTH, 3], ov.Type.u8, name="images")
    places = ops.multiply(ops.convert(images, "i32"), ops.convert(images, "i32"))
    floats = ops.convert(images, "f32")
    read = ops.gather_elements(floats, ops.multiply(places, places), 3)
    network = ov.Model([ops.result(read)], [images], "another")
    with tempfile.TemporaryDirectory() as folder:
        ov.save_model(network, Path(folder) / "model.xml", False)
        return (Path(folder) / "model.xml").read_bytes()


def field(number: int, value: bytes) -> bytes:
    """One field of protobuf."""
    size = len(value)
    length = bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])
    return bytes([number << 3 | 2]) + length + value


def test_a_network_that_is_a_file_of_another_kind_too_is_the_onnx_that_was_checked(
    bundle: Bundle, tmp_path: Path
) -> None:
    """In a process of its own: OpenVINO took the doc string of this one, and could crash."""
    onnx_file = (bundle.path / "model.onnx").read_bytes()
    forge(bundle, "model.onnx", field(6, ir_of_another_network()) + onnx_file)
    shown = tmp_path / "shown.npy"
    np.save(shown, golden_images())
    code = (
        "import numpy as np\nfrom vinoreward.bundles.bundle import Bundle\n"
        f"bundle, images = Bundle.load({str(bundle.path)!r}), np.load({str(shown)!r})\n"
        f"for name in {GRAPH_BACKENDS}:\n"
        "    with bundle.backend(name) as backend:\n"
        "        print(backend.infer(images).tolist())\n"
    )
    lines = run_python(code).splitlines()
    assert len(lines) == len(GRAPH_BACKENDS)
    for line in lines:
        np.testing.assert_allclose(json.loads(line), expected_logits(golden_images()), atol=1e-4)


def seeing(*nodes: Any, **constants: Any) -> Callable[[], bytes]:
    """Makes ``extra`` out of ``seen``, the image as floats, or ``counted``, its mean."""

    def build() -> bytes:
        see = [
            helper.make_node("Cast", ["images"], ["seen"], to=TensorProto.FLOAT),
            helper.make_node("ReduceMean", ["seen"], ["bright"], keepdims=0),
            helper.make_node("Cast", ["bright"], ["counted"], to=TensorProto.INT64),
        ]
        return graph([*see, *nodes], constants)

    return build


# OpenVINO reads or divides here without a look.
HARMFUL: dict[str, Callable[[], bytes]] = {
    "GatherND": seeing(
        helper.make_node("GatherND", ["seen", "at"], ["extra"]), at=np.array([[0, 1 << 28, 0, 0]])
    ),
    "GatherElements": seeing(
        helper.make_node("Flatten", ["seen"], ["row"]),
        helper.make_node("GatherElements", ["row", "at"], ["extra"], axis=1),
        at=np.array([[-(1 << 28)]]),
    ),
    "Mod": seeing(
        helper.make_node("Mod", ["one1", "counted"], ["rest"]),
        helper.make_node("Cast", ["rest"], ["extra"], to=TensorProto.FLOAT),
        one1=np.array([1]),
    ),
}


@pytest.mark.parametrize("name", HARMFUL)
def test_a_network_that_harms_the_process_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "network.onnx"
    path.write_bytes(HARMFUL[name]())
    with pytest.raises((ModelRefusedError, ModelCorruptError)):
        Bundle.from_model(path, **FACTS)


@pytest.mark.parametrize("name", GRAPH_BACKENDS)
def test_a_file_is_read_once(bundle: Bundle, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who changes it after it was hashed comes too late: here it is gone by then."""
    read = probe.read_bytes

    def once(path: Path, *more: Any) -> bytes:
        content = read(path, *more)
        path.unlink()
        return content

    loaded = Bundle.load(bundle.path)
    monkeypatch.setattr(probe, "read_bytes", once)
    images = golden_images()
    with loaded.backend(name, verify=False) as backend:
        np.testing.assert_allclose(backend.infer(images), expected_logits(images), atol=1e-4)
    assert not (bundle.path / "model.onnx").exists()


def test_golden_frames_that_change_after_loading_are_not_used(bundle: Bundle) -> None:
    loaded = Bundle.load(bundle.path)
    (bundle.path / "golden.npz").write_bytes(b"other")
    with pytest.raises(BundleEditedError, match="was recorded"):
        _ = loaded.golden


def test_a_pinned_bundle_is_that_one_or_refused(bundle: Bundle) -> None:
    """Every file of it, even without verify."""
    pin = (bundle.path / "bundle.sha256").read_text().strip()
    assert Bundle.load(bundle.path, sha256=pin) == Bundle.load(bundle.path, sha256=pin.upper())
    assert Bundle.load(bundle.path).sha256 == pin
    # Somebody who changes a file and all hashes that are written down cannot change the pin.
    forge(bundle, "model.onnx", (bundle.path / "model.onnx").read_bytes() + b"\x32\x01x")
    Bundle.load(bundle.path)
    with pytest.raises(BundleEditedError, match="not the bundle that was asked for"):
        Bundle.load(bundle.path, sha256=pin)
    with pytest.raises(BundleEditedError, match=r"Expected 'abc'.*copy all 64 digits"):
        Bundle.load(bundle.path, sha256="abc")
    pin = Bundle.load(bundle.path).sha256
    (bundle.path / "golden.npz").write_bytes(b"other")
    Bundle.load(bundle.path, verify=False)
    with pytest.raises(BundleEditedError, match=r"golden\.npz"):
        Bundle.load(bundle.path, verify=False, sha256=pin)


def test_files_that_are_large_together_are_not_hashed(bundle: Bundle) -> None:
    names = [f"{number}.bin" for number in range(4)]
    for name in names:
        with (bundle.path / name).open("wb") as stream:
            stream.truncate(512 << 20)  # takes no room on the disk
    rewrite(bundle, lambda spec: spec["files"].update(dict.fromkeys(names, 64 * "0")))
    with pytest.raises(BundleError, match=r"all its files of .* bytes\. Expected at most"):
        Bundle.load(bundle.path)


def test_files_that_cannot_be_read_are_told(bundle: Bundle) -> None:
    (bundle.path / "loop").symlink_to("loop")
    rewrite(bundle, lambda spec: spec["files"].update({"loop": 64 * "0"}))
    with pytest.raises(BundleError, match=r"is a link to .*loop\. Expected"):
        Bundle.load(bundle.path)
    for name in ("long" * 2000, "zero\0", "half\ud800"):
        with pytest.raises(ModelNotFoundError, match=r"no bundle .{1,100}\. Expected"):
            Bundle.load(name)
