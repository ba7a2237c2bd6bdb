"""The PyTorch backend, the baseline of every speed comparison."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from vinoreward.backends.base import Backend
from vinoreward.backends.network import read_bytes
from vinoreward.errors import ConfigError, ModelCorruptError, UnknownDeviceError, needed_for
from vinoreward.files import check_header


class TorchBackend(Backend):
    """Runs a known architecture with safetensors weights in PyTorch.

    In FP32 it runs eager mode in N, C, H, W under ``inference_mode``, as users write it, so that
    comparisons are fair. As ``torch.set_num_threads`` acts on the whole process, which may have a
    learner too, ``threads`` is set only during an inference. PyTorch may hang in a forked child if
    the parent used it with several threads.

    With precision ``"fp16"``, which is for CUDA, weights and activations are of half precision in
    N, H, W, C, and rectifiers are part of the convolutions.
    """

    name: ClassVar[str] = "torch"
    library: ClassVar[str] = "torch"
    extra: ClassVar[str | None] = "train"
    precisions: ClassVar[tuple[str, ...]] = ("fp32", "fp16")
    resources: ClassVar[tuple[str, ...]] = ("_module",)

    def _load(self) -> None:
        architecture, weights = self.spec.architecture, self.spec.weights
        if architecture is None or weights is None:
            raise ConfigError(
                f"{self.spec.path} has no architecture and weights for PyTorch: an .onnx "
                "alone cannot run there. Expected a bundle with model.safetensors; use "
                "backend='openvino' or 'onnxruntime'."
            )
        content = read_bytes(weights, self.spec.weights_sha256)
        with needed_for("the torch backend", "train"):
            import safetensors
            import safetensors.torch
            import torch

            from vinoreward.backends.torch_classifiers import rebuild
            from vinoreward.backends.torch_networks import (
                ENCODERS,
                InHalf,
                WithPreprocess,
                build_encoder,
            )
        self._device = self._find_device(torch)
        columns = self.spec.columns
        try:
            check_header(content)
            state = safetensors.torch.load(content)
            if architecture in ENCODERS:
                network = build_encoder(architecture, *self.spec.size, columns)
                network.load_state_dict(state, strict=True)
            else:
                network = rebuild(architecture, columns, state, self.spec.views)
        except ConfigError as error:
            raise ConfigError(
                f"{weights} cannot become a network: {error} The ONNX file of the same bundle runs "
                "without: backend='openvino' or 'onnxruntime'."
            ) from error
        except (safetensors.SafetensorError, RuntimeError, ValueError) as error:
            raise ModelCorruptError(
                f"{weights} does not hold the weights of {architecture} with {columns} outputs. "
                f"Expected its complete state dict in safetensors form; save it again. {error}"
            ) from error
        kind = InHalf if self.precision == "fp16" else WithPreprocess
        module = kind(network.eval(), self.spec.mean, self.spec.std)
        self._module = module.eval().to(self._device)

    @property
    def module(self) -> Any:
        """The network with its preprocessing, a ``torch.nn.Module`` from uint8 images ``(N, H, W,
        3)`` on its device to ``(N, K)`` float32. Loads it, see :meth:`load`."""
        self.load()
        return self._module

    def _find_device(self, torch: Any) -> str:
        present = ["CPU", *(["CUDA"] if torch.cuda.is_available() else [])]
        if self.device not in present:
            raise UnknownDeviceError(
                f"PyTorch has no device {self.device!r} here. Expected one of "
                f"{', '.join(present)}; choose one of these."
            )
        return self.device.lower()

    def _infer(self, batch: NDArray[Any]) -> NDArray[Any]:
        import torch

        # torch accepts neither negative strides nor read-only arrays.
        owned = np.require(batch, requirements=["C", "W"])
        with torch.inference_mode(), _threads(torch, self.threads):
            result = self._module(torch.from_numpy(owned).to(self._device))
            array: NDArray[Any] = result.cpu().numpy()
        return array


# Never locked at a fork: forks wait for inferences.
_setting = threading.Lock()
_replaced: list[int] = []


@contextlib.contextmanager
def _threads(torch: Any, count: int) -> Iterator[None]:
    """Set the process's number of threads for a block; the last block to end restores it."""
    with _setting:
        _replaced.append(torch.get_num_threads())
        if _replaced[-1] != count:
            torch.set_num_threads(count)
    try:
        yield
    finally:
        with _setting:
            before = _replaced.pop()
            if not _replaced and torch.get_num_threads() != before:
                torch.set_num_threads(before)
