"""The contract that every backend keeps: one suite, three libraries."""

from __future__ import annotations

import copy
import dataclasses
import multiprocessing
import pickle
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import safetensors.torch
import torch
from onnx import TensorProto, helper

from vinoreward.backends.base import Backend, load_backend
from vinoreward.backends.convert import export_onnx
from vinoreward.backends.network import IMAGENET_MEAN, IMAGENET_STD, NetworkSpec
from vinoreward.backends.runtime import import_openvino
from vinoreward.backends.torch_classifiers import build
from vinoreward.backends.torch_networks import WithPreprocess
from vinoreward.errors import (
    BundleEditedError,
    ConfigError,
    InputError,
    ModelCorruptError,
    ModelNotFoundError,
    OutputError,
    UnknownBackendError,
    UnknownDeviceError,
)
from vinoreward_training.classifier.networks import build_for
from vinoreward_training.configs import FinetuneConfig

NAMES = ("openvino", "onnxruntime", "torch")
GRAPH_NAMES = ("openvino", "onnxruntime")
HEIGHT, WIDTH = 72, 96


def make_images(count: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, HEIGHT, WIDTH, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> NetworkSpec:
    folder = tmp_path_factory.mktemp("network")
    torch.manual_seed(0)
    network = build_for(FinetuneConfig(network="squeezenet1_1"), HEIGHT, WIDTH)
    for parameter in network.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, std=0.1)
    torch.nn.init.normal_(network.classifier[0].weight, std=0.1)  # type: ignore[index, union-attr]
    path, weights = folder / "model.onnx", folder / "model.safetensors"
    export_onnx(WithPreprocess(network, IMAGENET_MEAN, IMAGENET_STD), path, HEIGHT, WIDTH)
    safetensors.torch.save_file(network.state_dict(), weights)
    return NetworkSpec(path, (HEIGHT, WIDTH), 2, architecture="squeezenet1_1", weights=weights)


@pytest.fixture(params=NAMES)
def backend(request: pytest.FixtureRequest, spec: NetworkSpec) -> Backend:
    return load_backend(request.param, spec)


@pytest.fixture(scope="module")
def expected(spec: NetworkSpec) -> Callable[[np.ndarray], np.ndarray]:
    """The answer worked out without any backend: PyTorch on images normalised by numpy."""
    network = build("squeezenet1_1").eval()
    assert spec.weights is not None
    network.load_state_dict(safetensors.torch.load_file(spec.weights))

    def answer(batch: np.ndarray) -> np.ndarray:
        normal = (batch / 255.0 - np.array(IMAGENET_MEAN)) / np.array(IMAGENET_STD)
        with torch.inference_mode():
            return network(torch.from_numpy(normal.transpose(0, 3, 1, 2)).float()).numpy()

    return answer


def tiny_onnx(path: Path, operator: str, batch: int | str = "n") -> NetworkSpec:
    """A network that applies ``operator`` to -1 - pixel, for images of 2x2 pixels."""
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["images"], ["floats"], to=TensorProto.FLOAT),
            helper.make_node("Flatten", ["floats"], ["flat"]),
            helper.make_node("Sub", ["minus_one", "flat"], ["negative"]),
            helper.make_node(operator, ["negative"], ["out"]),
        ],
        "tiny",
        [helper.make_tensor_value_info("images", TensorProto.UINT8, [batch, 2, 2, 3])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, [batch, 12])],
        [helper.make_tensor("minus_one", TensorProto.FLOAT, [1], [-1.0])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, str(path))
    return NetworkSpec(path, (2, 2), 12)


def infer_in_child(backend: Backend, batch: np.ndarray, answers: Any) -> None:
    answers.put(backend.infer(batch))


@pytest.mark.parametrize("count", [1, 21])  # pieces of 1, of 16, 4 and 1
def test_answers_are_those_of_the_plain_network(
    backend: Backend, expected: Callable[[np.ndarray], np.ndarray], count: int
) -> None:
    batch = make_images(count)
    result = backend.infer(batch)
    assert result.shape == (count, 2)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, expected(batch), atol=1e-4)


def test_an_image_has_the_same_answer_in_every_batch(backend: Backend) -> None:
    batch = make_images(23)
    whole = backend.infer(batch)
    for count in (1, 2, 5, 17, 1, 16):
        np.testing.assert_allclose(backend.infer(batch[:count]), whole[:count], atol=1e-4)


def test_outputs_belong_to_the_caller(backend: Backend) -> None:
    first = backend.infer(make_images(1, seed=1))
    kept = first.copy()
    backend.infer(make_images(1, seed=2))
    np.testing.assert_array_equal(first, kept)
    first[:] = 0
    assert not np.array_equal(backend.infer(make_images(1, seed=1)), first)


def test_any_memory_layout_works(backend: Backend) -> None:
    batch = make_images(2)
    batch.flags.writeable = False
    mirrored = np.flip(np.flip(batch, 2).copy(), 2)
    np.testing.assert_array_equal(backend.infer(mirrored), backend.infer(batch))


def test_wrong_inputs_are_refused(backend: Backend) -> None:
    one = make_images(1)
    for wrong, message in (
        (one.astype(np.float32) / 255, "pass the image as uint8"),
        (one[0], r"image\[None\]"),
        (make_images(0), "at least 1"),
        (one[:, :71], "size the network was trained on"),
        (one.transpose(0, 3, 1, 2), r"shape \(1, 3, 72, 96\)"),
        (one.tolist(), "numpy.asarray"),
    ):
        with pytest.raises(InputError, match=message):
            backend.infer(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", GRAPH_NAMES)
def test_nan_from_a_graph_is_an_error(name: str, tmp_path: Path) -> None:
    backend = load_backend(name, tiny_onnx(tmp_path / "nan.onnx", "Sqrt"))
    with pytest.raises(OutputError, match="NaN or infinity for 2 of 2"):
        backend.infer(np.ones((2, 2, 2, 3), np.uint8))


@pytest.mark.parametrize("name", GRAPH_NAMES)
def test_output_of_another_shape_is_an_error(name: str, spec: NetworkSpec) -> None:
    wrong = dataclasses.replace(spec, columns=3)
    with pytest.raises(OutputError, match="do not belong together"):
        load_backend(name, wrong).infer(make_images(1))


@pytest.mark.parametrize("name", GRAPH_NAMES)
def test_a_model_with_a_fixed_batch_takes_any_batch(name: str, tmp_path: Path) -> None:
    backend = load_backend(name, tiny_onnx(tmp_path / "fixed.onnx", "Identity", batch=3))
    batch = np.arange(7 * 12, dtype=np.uint8).reshape(7, 2, 2, 3)
    np.testing.assert_array_equal(
        backend.infer(batch), -1.0 - batch.reshape(7, 12).astype(np.float32)
    )


def test_close_may_be_repeated_and_ends_use(backend: Backend) -> None:
    with backend as same:
        assert same is backend
        backend.infer(make_images(1))
    backend.close()
    with pytest.raises(ConfigError, match="closed"):
        backend.infer(make_images(1))
    assert "closed" in repr(backend)


def test_pickle_and_copy_before_and_after_use(backend: Backend) -> None:
    batch = make_images(1)
    early = pickle.loads(pickle.dumps(backend))
    result = backend.infer(batch)
    late = pickle.loads(pickle.dumps(backend))
    for other in (early, late, copy.deepcopy(backend)):
        assert "not loaded" in repr(other)
        np.testing.assert_array_equal(other.infer(batch), result)


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork here")
def test_fork_waits_for_an_inference_of_another_thread(spec: NetworkSpec) -> None:
    backend, batch = load_backend("openvino", spec).load(), make_images(16)
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            backend.infer(batch)

    thread = threading.Thread(target=work)
    thread.start()
    context = multiprocessing.get_context("fork")
    try:
        for _ in range(3):
            answers = context.SimpleQueue()
            child = context.Process(target=infer_in_child, args=(backend, batch[:1], answers))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                child.start()
            child.join(60)
            assert child.exitcode == 0
            assert answers.get().shape == (1, 2)
    finally:
        stop.set()
        thread.join()


def test_two_threads_get_their_own_answers(backend: Backend) -> None:
    batches = [make_images(1, seed=seed) for seed in range(2)]
    right = [backend.infer(batch) for batch in batches]
    wrong: list[int] = []

    def work(index: int) -> None:
        for _ in range(30):
            if not np.array_equal(backend.infer(batches[index]), right[index]):
                wrong.append(index)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not np.array_equal(right[0], right[1])
    assert wrong == []


def test_files_that_are_not_right_are_refused(
    backend: Backend, spec: NetworkSpec, tmp_path: Path
) -> None:
    edited = dataclasses.replace(spec, sha256="0" * 64, weights_sha256="0" * 64)
    with pytest.raises(BundleEditedError, match="was recorded"):
        load_backend(backend.name, edited).load()
    other = dataclasses.replace(spec, path=tmp_path / "m.onnx", weights=tmp_path / "m.safetensors")
    with pytest.raises(ModelNotFoundError):
        load_backend(backend.name, other).load()
    assert spec.weights is not None and other.weights is not None
    other.path.write_bytes(spec.path.read_bytes()[:-100_000])
    other.weights.write_bytes(spec.weights.read_bytes()[:-100_000])
    with pytest.raises(ModelCorruptError):
        load_backend(backend.name, other).load()


def test_options_that_cannot_be_are_refused(backend: Backend, spec: NetworkSpec) -> None:
    with pytest.raises(UnknownDeviceError):
        load_backend(backend.name, spec, device="NPU").load()
    with pytest.raises(ConfigError, match="precision"):
        load_backend(backend.name, spec, precision="fp8")
    with pytest.raises(ConfigError, match="threads"):
        load_backend(backend.name, spec, threads=0)
    with pytest.raises(UnknownBackendError, match="onnxruntime, openvino, torch"):
        load_backend("tensorflow", spec)


def test_precisions_and_networks_run_only_where_they_are_real(spec: NetworkSpec) -> None:
    with pytest.raises(ConfigError, match="int8"):
        load_backend("torch", spec, precision="int8")
    with pytest.raises(ConfigError, match="bf16"):
        load_backend("onnxruntime", spec, precision="bf16")
    bare = dataclasses.replace(spec, architecture=None, weights=None)
    with pytest.raises(ConfigError, match="backend='openvino'"):
        load_backend("torch", bare).load()
    offered = import_openvino().Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    backend = load_backend("openvino", spec, precision="bf16")
    if "BF16" not in offered:
        with pytest.raises(ConfigError, match="emulate"):
            backend.load()


@pytest.mark.parametrize("name", GRAPH_NAMES)
def test_a_description_that_is_not_the_networks(name: str, spec: NetworkSpec) -> None:
    other = dataclasses.replace(spec, size=(32, 96))
    with pytest.raises(ConfigError, match="its description says"):
        load_backend(name, other).load()
    with pytest.raises(ConfigError, match="output"):
        load_backend(name, dataclasses.replace(spec, output_index=1)).load()


@pytest.mark.full
def test_memory_stays_flat_with_varied_batches(backend: Backend) -> None:
    psutil = pytest.importorskip("psutil")
    if backend.name == "torch":
        pytest.skip("torch's own allocator is not ours to bound")
    process, batch = psutil.Process(), make_images(21)
    rng = np.random.default_rng(0)

    def calls(count: int) -> None:
        for size in rng.integers(1, 22, count):
            backend.infer(batch[:size])

    calls(40)
    growth = []
    for _ in range(4):
        before = process.memory_info().rss
        calls(30)
        growth.append(process.memory_info().rss - before)
    # A leak grows in every stretch; an allocator that takes a block now and then does not.
    assert min(growth) < 3e5, growth  # 10 kB a call
