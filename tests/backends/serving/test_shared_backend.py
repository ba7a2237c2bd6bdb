"""A service's answers and errors are those of the backend that it runs."""

from __future__ import annotations

import dataclasses
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from service_children import (
    PIXELS,
    nothing_left,
    own_folder,
    pictures,
    save_network,
    services,
    sums,
)

from vinoreward.backends.base import Backend, load_backend
from vinoreward.backends.network import NetworkSpec, TensorSpec
from vinoreward.backends.serving.client import SharedBackend, shared
from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError, InputError, VinorewardError
from vinoreward.rewards.classifier import Classifier


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedBackend]:
    """One for all tests that leave it as it is."""
    path = tmp_path_factory.mktemp("one")
    with (
        pytest.MonkeyPatch.context() as patch,
        own_folder(path, patch),
        SharedBackend(save_network(path / "sums.onnx")) as backend,
    ):
        backend.load()
        yield backend


@pytest.mark.parametrize("inner", ["openvino", "onnxruntime"])
def test_answers_are_those_of_the_network(folder: Path, spec: NetworkSpec, inner: str) -> None:
    with SharedBackend(spec, backend=inner) as asked, load_backend(inner, spec) as plain:
        for count in (1, 3, 16, 21, 2, 600):  # above a slot's most, and a smaller one afterwards
            batch = pictures(count, count)
            found = asked.infer(batch)
            np.testing.assert_array_equal(found, sums(batch))
            np.testing.assert_array_equal(found, plain.infer(batch))
            assert found.dtype == np.float32


def test_the_shipped_classifier_answers_bit_for_bit(folder: Path) -> None:
    bundle = Bundle.load("panda-hover-classifier")
    images = bundle.golden.images
    with Classifier(bundle) as plain, Classifier(bundle, service="shared") as asked:
        for count in (1, 2, len(images)):
            for one, other in zip(
                plain.judge(images[:count]), asked.judge(images[:count]), strict=True
            ):
                np.testing.assert_array_equal(one, other)
        assert asked.second_looks == plain.second_looks > 0
        first, second = asked.backends  # INT8, and FP32 for second looks
        assert first.info()["service_pid"] == second.info()["service_pid"]
        assert (first.precision, second.precision) == ("int8", "fp32")
        assert len(services(folder)) == 1


def test_outputs_belong_to_the_caller(backend: SharedBackend) -> None:
    first = backend.infer(pictures(2, 1))
    kept = first.copy()
    backend.infer(pictures(2, 2))
    np.testing.assert_array_equal(first, kept)
    first[:] = 0
    np.testing.assert_array_equal(backend.infer(pictures(2, 1)), kept)


def test_input_is_left_alone_and_any_memory_layout_works(backend: SharedBackend) -> None:
    batch = pictures(2)
    before = batch.copy()
    batch.flags.writeable = False
    np.testing.assert_array_equal(backend.infer(np.flip(np.flip(batch, 1).copy(), 1)), sums(before))
    np.testing.assert_array_equal(batch, before)


def error_of(make: Callable[[], Backend], batch: Any) -> VinorewardError:
    with make() as backend, pytest.raises(VinorewardError) as caught:
        backend.infer(batch)
    return caught.value


def edited(path: Path) -> NetworkSpec:
    return dataclasses.replace(save_network(path), sha256="0" * 64)


def corrupt(path: Path) -> NetworkSpec:
    spec = save_network(path)
    path.write_bytes(path.read_bytes()[:-40])
    return spec


CASES: dict[str, Callable[[Path], NetworkSpec]] = {
    "missing": lambda path: dataclasses.replace(save_network(path), path=path.with_name("no.onnx")),
    "edited": edited,
    "corrupt": corrupt,
    "not finite": lambda path: save_network(path, operator="Sqrt"),
    "other input": lambda path: dataclasses.replace(
        save_network(path), input=TensorSpec((None, 3, 4, 3), "uint8")
    ),
    "other output": lambda path: dataclasses.replace(
        save_network(path), output=TensorSpec((None, 5), "float32")
    ),
}


@pytest.mark.parametrize("case", list(CASES))
def test_errors_are_those_of_the_backend(folder: Path, tmp_path: Path, case: str) -> None:
    spec = CASES[case](tmp_path / "case.onnx")
    shape = [2 if size is None else size for size in spec.input.shape]
    batch = np.zeros(shape, np.uint8)
    plain = error_of(lambda: load_backend("openvino", spec), batch)
    asked = error_of(lambda: SharedBackend(spec), batch)
    assert (type(asked), str(asked)) == (type(plain), str(plain))


def test_an_unknown_device_is_the_same_error(folder: Path, spec: NetworkSpec) -> None:
    plain = error_of(lambda: load_backend("openvino", spec, device="TPU"), pictures(1))
    asked = error_of(lambda: SharedBackend(spec, device="TPU"), pictures(1))
    assert (type(asked), str(asked)) == (type(plain), str(plain))


@pytest.mark.parametrize(
    "wrong", [pictures(1).astype(np.float32), pictures(1)[0], pictures(0), pictures(1)[:, 1:], None]
)
def test_wrong_inputs_are_refused_here(backend: SharedBackend, wrong: Any) -> None:
    with load_backend("openvino", backend.spec) as plain:
        again = SharedBackend(backend.spec)
        assert str(error_of(lambda: again, wrong)) == str(error_of(lambda: plain, wrong))
    assert backend.infer(pictures(1)).shape == (1, 3)


def test_an_error_of_a_request_leaves_the_service(folder: Path, tmp_path: Path) -> None:
    spec = save_network(tmp_path / "roots.onnx", operator="Sqrt")
    dark, light = np.zeros((1, *PIXELS), np.uint8), np.full((1, *PIXELS), 104, np.uint8)
    with SharedBackend(spec) as backend:
        pid = backend.pid
        for _ in range(3):
            with pytest.raises(VinorewardError, match="NaN or infinity for 1 of 1"):
                backend.infer(dark)
            np.testing.assert_array_equal(backend.infer(light), [[24, 24, 48]])
        assert backend.pid == pid


def test_the_error_of_one_caller_is_not_the_others(folder: Path, tmp_path: Path) -> None:
    """Also where their requests are run as one batch."""
    spec = save_network(tmp_path / "roots.onnx", operator="Sqrt")
    dark, light = np.zeros((1, *PIXELS), np.uint8), np.full((1, *PIXELS), 104, np.uint8)
    failed, wrong = [], []

    def work(number: int) -> None:
        with SharedBackend(spec) as backend:
            for _ in range(100):
                try:
                    answer = backend.infer(light if number else dark)
                    wrong.append(not np.array_equal(answer, [[24, 24, 48]]))
                except VinorewardError as error:
                    failed.append((number, "for 1 of 1 inputs" in str(error)))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == [(0, True)] * 100
    assert wrong == [False] * 400


def test_what_is_waiting_is_run_together(folder: Path, spec: NetworkSpec) -> None:
    right = []

    def work(number: int) -> None:
        with SharedBackend(spec) as backend:
            for step in range(200):
                batch = pictures(number, step)
                right.append(np.array_equal(backend.infer(batch), sums(batch)))

    with SharedBackend(spec) as watcher:
        watcher.load()
        threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        info = watcher.info()
    assert right == [True] * 1600
    assert info["service_answers"] == 1600
    assert info["service_batches"] < 1600


def test_threads_may_share_one_backend(backend: SharedBackend) -> None:
    right = []

    def work(number: int) -> None:
        for step in range(50):
            batch = pictures(1 + number, step)
            right.append(np.array_equal(backend.infer(batch), sums(batch)))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == [True] * 200


def test_closing_and_pickling(folder: Path, spec: NetworkSpec) -> None:
    backend = SharedBackend(spec)
    copy = pickle.loads(pickle.dumps(backend))  # before first use
    assert not services(folder)
    backend.infer(pictures(1))
    other = pickle.loads(pickle.dumps(backend))  # and after it
    np.testing.assert_array_equal(copy.infer(pictures(1)), other.infer(pictures(1)))
    assert copy.pid == other.pid == backend.pid
    assert "loaded" in repr(backend)
    for one in (copy, other, backend, backend):
        one.close()
    with pytest.raises(ConfigError, match="closed"):
        backend.infer(pictures(1))


def test_info_is_that_of_the_backend_and_more(folder: Path, spec: NetworkSpec) -> None:
    with load_backend("openvino", spec) as plain:
        expected = plain.info()
    with SharedBackend(spec) as backend:
        info, pid = backend.info(), backend.pid
    assert {name: info[name] for name in expected} == expected
    assert (info["service"], info["service_pid"]) == ("shared", pid)
    assert (info["threads"], info["service_callers"]) == (1, 1)


@pytest.mark.parametrize("wrong", ["other", "shared:", "shared:a b", "shared:" + 65 * "a", 1, ""])
def test_a_mistyped_service_is_refused_at_once(folder: Path, spec: NetworkSpec, wrong: Any) -> None:
    with pytest.raises(ConfigError, match="'shared'"):
        SharedBackend(spec, service=wrong)
    with pytest.raises(ConfigError, match="'shared'"):
        Classifier("panda-hover-classifier", service=wrong)


def test_open_sizes_are_refused(folder: Path, spec: NetworkSpec) -> None:
    with pytest.raises(ConfigError, match="fixed sizes"):
        SharedBackend(dataclasses.replace(spec, input=TensorSpec((None, None, 4, 3), "uint8")))


def test_a_backend_that_nobody_closes_does_not_keep_the_service(
    folder: Path, spec: NetworkSpec
) -> None:
    backend = SharedBackend(spec)
    backend.infer(pictures(1))
    assert services(folder)
    del backend  # and no ResourceWarning, which would be an error here
    assert nothing_left(folder)


def test_float_inputs(folder: Path, spec: NetworkSpec) -> None:
    vectors = dataclasses.replace(spec, input=TensorSpec((None, 2), "float32"))
    with pytest.raises(InputError, match="NaN or infinity"):
        SharedBackend(vectors).infer(np.array([[1.0, np.nan]], np.float32))


def test_it_is_registered_like_other_backends(
    folder: Path, spec: NetworkSpec, tmp_path: Path, project_root: Path, monkeypatch: Any
) -> None:
    """By the project's own entry point, also where an installation does not know it yet."""
    lines = (project_root / "pyproject.toml").read_text(encoding="utf-8").splitlines()
    (line,) = (line for line in lines if line.endswith(':SharedBackend"'))
    record = tmp_path / "site" / "more-1.dist-info"
    record.mkdir(parents=True)
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: more\nVersion: 1\n")
    (record / "entry_points.txt").write_text(f"[vinoreward.backends]\n{line}\n".replace('"', ""))
    monkeypatch.syspath_prepend(tmp_path / "site")
    with load_backend("shared", spec) as backend:
        assert isinstance(backend, SharedBackend)
        np.testing.assert_array_equal(backend.infer(pictures(3)), sums(pictures(3)))
        assert backend.info()["backend"] == "openvino"


def test_several_networks_of_one_service(folder: Path, tmp_path: Path) -> None:
    specs = [save_network(tmp_path / f"{scale}.onnx", scale) for scale in (1.0, 2.0)]
    one, two = shared("openvino", [(spec, "fp32") for spec in specs])
    with one, two:
        batch = pictures(5)
        np.testing.assert_array_equal(one.infer(batch), sums(batch, 1.0))
        np.testing.assert_array_equal(two.infer(batch), sums(batch, 2.0))
        assert one.pid == two.pid
