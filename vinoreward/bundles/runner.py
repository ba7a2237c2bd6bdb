"""A bundle on a backend: what classifiers and encoders share."""

from __future__ import annotations

import contextlib
import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from vinoreward.arrays import is_tensor
from vinoreward.backends.base import BACKENDS
from vinoreward.backends.runtime import PerProcess
from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError
from vinoreward.images import ImageSpec, prepare

if TYPE_CHECKING:
    from typing_extensions import Self

    from vinoreward.backends.base import Backend

_COMMANDS = {"classifier": "vinoreward finetune", "encoder": "vinoreward train-vae"}


class Runner(PerProcess):
    """Base of classifiers and encoders: runs a bundle of one kind; loads on first use.

    Each process builds its own networks and checks them with the golden images. Runners share
    nothing, so each can be closed on its own.
    """

    kind: ClassVar[Literal["classifier", "encoder"]]
    """What the bundle must be."""
    resources: ClassVar[tuple[str, ...]] = ("_backends",)

    def __init__(
        self,
        bundle: Bundle | str | Path,
        *,
        backend: str = "openvino",
        device: str = "CPU",
        precision: str = "auto",
        threads: int = 1,
    ) -> None:
        super().__init__()
        self.bundle: Bundle = bundle if isinstance(bundle, Bundle) else Bundle.load(bundle)
        """The bundle that is run."""
        spec = self.bundle.spec
        if spec.kind != self.kind:
            article = {"classifier": "a", "encoder": "an"}
            raise ConfigError(
                f"the bundle {spec.name!r} is {article[spec.kind]} {spec.kind}. Expected "
                f"{article[self.kind]} {self.kind}'s bundle; train one with: {_COMMANDS[self.kind]}"
            )
        BACKENDS.find(backend)  # a mistyped name is an error now, not at the first image
        self.backend_name = backend
        """The backend's registered name."""
        self.device = device
        """The backend's device."""
        self.threads = threads
        """Threads that one inference may use."""
        self.precision = self.bundle.resolve_precision(backend, precision)
        """The resolved precision."""
        self.band = self.bundle.second_look_band(self.precision)
        """Within this many log-odds of the threshold FP32 decides; None: nowhere."""
        self._backends: list[Backend]
        self._original: Runner | None = None

    @property
    def image(self) -> ImageSpec:
        """The image that the network was trained on."""
        return self.bundle.spec.image

    @property
    def backend(self) -> Backend:
        """The first of :attr:`backends`."""
        return self.backends[0]

    @property
    def backends(self) -> list[Backend]:
        """The backend and, if there is a band, the FP32 one for the second look.

        Both are built and checked with the bundle's golden images on first use.

        Raises:
            BundleParityError: the golden images give other outputs than recorded.
            ConfigError: the runner is closed.
        """
        self.load()
        with self._lock:
            self._check_open()  # another thread may have closed it meanwhile
            return self._backends

    def _load(self) -> None:
        original = self._original
        precisions = (self.precision, *(["fp32"] if self.band is not None else []))
        with contextlib.ExitStack() as on_error:
            self._backends = [
                on_error.enter_context(
                    self.bundle.backend(
                        self.backend_name,
                        device=self.device,
                        precision=precision,
                        threads=self.threads,
                        verify=original is None or original._loaded_by is None,
                    )
                )
                for precision in precisions
            ]
            on_error.pop_all()

    def _drop(self) -> None:
        for backend in self.__dict__.get("_backends", ()):
            backend.close()
        super()._drop()

    def clone(self) -> Self:
        """Return another of the same bundle, for another thread of this process.

        Its networks are its own. It skips golden images that this one's have passed.
        """
        other = copy.copy(self)
        other._original = self
        return other

    def prepare(self, images: NDArray[Any]) -> NDArray[np.uint8] | None:
        """Return images ``(N, H, W, 3)`` as the network takes them; None for an empty batch."""
        if isinstance(images, np.ndarray) and images.ndim == 4 and len(images) == 0:
            return None
        return prepare(images, self.bundle.spec.image)

    def takes(self, images: object) -> bool:
        """Return whether images are tensors that the network takes where they are."""
        if not is_tensor(images) or self.backend_name != "torch" or self.image.crop is not None:
            return False
        tensor: Any = images
        device = self.device.lower()
        shape = (self.image.height, self.image.width, 3)
        return tuple(tensor.shape[1:]) == shape and str(tensor.device) in (device, f"{device}:0")

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_original": None}

    def __repr__(self) -> str:
        name, spec = type(self).__name__, self.bundle.spec
        return f"<{name} {spec.name} on {self.backend_name}, {self.precision}>"
