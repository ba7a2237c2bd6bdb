"""The interface of inference backends, the checks they share, and finding one by name."""

from __future__ import annotations

import abc
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from vinoreward.backends.network import NetworkSpec
from vinoreward.backends.runtime import PerProcess
from vinoreward.entry_points import Registry
from vinoreward.errors import (
    ConfigError,
    InputError,
    MissingExtraError,
    OutputError,
    UnknownBackendError,
    install_command,
)

PRECISIONS = ("fp32", "bf16", "int8")
MAX_THREADS = 512

# Batches are split into these sizes: a backend compiles at most three static shapes, memory stays
# flat, and no image is padded. An image costs about the same alone as in a batch of 16.
CHUNKS = (16, 4, 1)
MAX_BATCH = 256
"""Images of a batch that a network declares."""


class Backend(PerProcess):
    """Runs one network on batches of images.

    Nothing is read or compiled until :meth:`load` or the first :meth:`infer`. Each process has its
    own network, see :class:`~vinoreward.backends.runtime.PerProcess`; threads take turns.

    A new backend subclasses this and writes :meth:`_infer`; one with resources also writes
    :meth:`_load` and names them in :attr:`resources`.

    Args:
        spec: the network.
        device: device name as the backend's library spells it, in capitals (``"CPU"``).
        precision: ``"fp32"``, ``"bf16"`` or ``"int8"``, with PyTorch also ``"fp16"``. INT8 is a
            property of the file in ``spec``.
        threads: threads that one inference may use, at least 1.

    Raises:
        ConfigError: an argument that cannot work.
    """

    name: ClassVar[str] = ""
    library: ClassVar[str] = ""
    extra: ClassVar[str | None] = None
    precisions: ClassVar[tuple[str, ...]] = PRECISIONS

    def __init__(
        self,
        spec: NetworkSpec,
        *,
        device: str = "CPU",
        precision: str = "fp32",
        threads: int = 1,
    ) -> None:
        if precision not in self.precisions:
            raise ConfigError(
                f"the {self.name} backend was given precision {precision!r}. Expected one of "
                f"{', '.join(self.precisions)}; choose one of these or another backend."
            )
        if type(threads) is not int or not 1 <= threads <= MAX_THREADS:
            raise ConfigError(
                f"threads is {threads!r:.80}. Expected a whole number, at least 1 and at most "
                f"{MAX_THREADS}; more than there are cores only costs time."
            )
        if not isinstance(device, str) or not device.isprintable() or not device.strip():
            raise ConfigError(
                f"device is {device!r:.80}. Expected a name such as 'CPU'; leave it out for that."
            )
        super().__init__()
        self.spec = spec
        self.device = device.upper()
        self.precision = precision
        self.threads = threads

    def infer(self, batch: NDArray[Any]) -> NDArray[np.float32]:
        """Run the network on a batch; loads it first.

        Args:
            batch: ``(N, H, W, 3)`` uint8 RGB images of the network's size, N at least 1.

        Returns:
            ``(N, K)`` float32, a new array.

        Raises:
            InputError: wrong shape or dtype.
            OutputError: the network returned NaN, infinity or another shape.
            ModelNotFoundError: the file is missing.
            ModelCorruptError: the file cannot be read.
            BundleEditedError: the file has another hash than recorded.
            UnknownDeviceError: the device is not present.
            MissingExtraError: the library is not installed.
            ConfigError: the network contradicts its specification, or the backend is closed.
        """
        _check_images(batch, self.spec)
        return self.infer_prepared(batch)

    def infer_prepared(self, batch: NDArray[Any]) -> NDArray[np.float32]:
        """As :meth:`infer`, for images that ``vinoreward.images.prepare`` checked and returned."""
        self.load()
        with self._lock:
            self._check_open()  # another thread may have closed it meanwhile
            # Copied inside the lock, because the next call may overwrite a backend's buffer.
            result = np.array(self._infer(batch), dtype=np.float32, order="C")
        _check_output(result, self.spec, len(batch), self.name)
        return result

    @abc.abstractmethod
    def _infer(self, batch: NDArray[Any]) -> NDArray[Any]:
        """Run a checked batch of N; return outputs (N, ...), possibly a view."""

    def __repr__(self) -> str:
        state = "closed" if self._closed else "loaded" if self._loaded_by else "not loaded"
        return f"<{type(self).__name__} {self.spec.path.name} on {self.device}, {state}>"


def batch_sizes(path: Path, declared: int | None) -> tuple[int, ...]:
    """Return the batch sizes to run a network with: the one that it declares, or ``CHUNKS``.

    ConfigError for a batch without images, or one that wastes memory and time on every call.
    """
    if declared is None:
        return CHUNKS
    if not 1 <= declared <= MAX_BATCH:
        raise ConfigError(
            f"{path} takes batches of {declared}. Expected 1 to {MAX_BATCH} images; export it "
            "with a dynamic batch."
        )
    return (declared,)


def in_pieces(
    batch: NDArray[Any], sizes: tuple[int, ...], run: Callable[[NDArray[Any]], NDArray[Any]]
) -> NDArray[Any]:
    """Return the results of ``run`` for a batch in pieces of these falling ``sizes``."""
    results, start, count = [], 0, len(batch)
    while start < count:
        size = next((size for size in sizes if size <= count - start), sizes[-1])
        piece = batch[start : start + size]
        rows = len(piece)
        if rows < size:  # the model's batch is fixed
            piece = np.concatenate([piece, np.repeat(piece[-1:], size - rows, axis=0)])
        results.append(run(piece)[:rows].copy())
        start += size
    return np.concatenate(results) if len(results) > 1 else results[0]


def _check_images(batch: NDArray[Any], spec: NetworkSpec) -> None:
    if not isinstance(batch, np.ndarray):
        found, hint = f"a {type(batch).__name__}", "use numpy.asarray or numpy.stack"
    elif batch.dtype != np.uint8:
        found = str(batch.dtype)
        hint = "pass the image as uint8 from 0 to 255: the network normalises it"
    elif batch.shape[1:] != spec.shape or len(batch) == 0:
        found = f"an array of shape {batch.shape}"
        hint = "give images of the size the network was trained on"
        if batch.shape == spec.shape:
            hint = "add the batch axis with image[None]"
    else:
        return
    raise InputError(
        f"the network was given {found}. Expected {spec.images}, a numpy array with N at least 1; "
        f"{hint}."
    )


def _check_output(result: NDArray[Any], spec: NetworkSpec, count: int, name: str) -> None:
    if result.shape != (count, spec.columns):
        raise OutputError(
            f"the {name} backend returned an array of shape {result.shape} for a batch of {count}. "
            f"Expected ({count}, {spec.columns}); the model file and its description do not belong "
            "together, make a new description."
        )
    if not np.isfinite(result).all():
        bad = int(np.count_nonzero(~np.isfinite(result).all(axis=1)))
        raise OutputError(
            f"the network returned NaN or infinity for {bad} of {count} inputs. Expected finite "
            "numbers; the weights are broken or overflow, train or export the network again."
        )


# mypy wants a concrete class where an abstract one is passed as a type.
BACKENDS = Registry("vinoreward.backends", Backend, "backend", UnknownBackendError)  # type: ignore[type-abstract]


def load_backend(
    name: str,
    spec: NetworkSpec,
    *,
    device: str = "CPU",
    precision: str = "fp32",
    threads: int = 1,
) -> Backend:
    """Make a backend for a network. The network is read on first use, or by ``.load()``.

    ``device``, ``precision`` and ``threads`` are as in :class:`Backend`.

    Args:
        name: ``"openvino"``, ``"onnxruntime"``, ``"torch"``, or one that another package registers
            in the entry-point group ``vinoreward.backends``.
        spec: the network.

    Raises:
        UnknownBackendError: no backend of that name.
        MissingExtraError: its library is not installed.
        ConfigError: the backend does not support the arguments.
    """
    backend = BACKENDS.find(name)
    problem = missing_library(backend)
    if problem is not None:
        raise MissingExtraError(problem)
    return backend(spec, device=device, precision=precision, threads=threads)


def missing_library(backend: type[Backend]) -> str | None:
    """Return that a backend's library is missing and how to install it; None if it is there."""
    if not backend.library or importlib.util.find_spec(backend.library) is not None:
        return None
    extra = backend.extra
    command = install_command(extra) if extra else f"pip install '{backend.library}'"
    return (
        f"the {backend.name} backend needs {backend.library}, which is not installed. "
        f"Install it with: {command}"
    )
