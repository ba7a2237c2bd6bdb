"""A bundle on a backend: what classifiers and encoders share."""

from __future__ import annotations

import contextlib
import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from vinoreward.backends.base import BACKENDS
from vinoreward.backends.runtime import building
from vinoreward.bundles.bundle import Bundle
from vinoreward.closing import Closing
from vinoreward.errors import ConfigError
from vinoreward.images import ImageSpec, prepare

if TYPE_CHECKING:
    from typing_extensions import Self

    from vinoreward.backends.base import Backend

_COMMANDS = {"classifier": "vinoreward finetune", "encoder": "vinoreward train-vae"}


class Runner(Closing):
    """Base of classifiers and encoders: runs a bundle of one kind; loads on first use.

    It can be pickled: each process builds its own networks and checks them with the golden frames.
    Threads may share it. Runners share nothing, so each can be closed on its own.
    """

    kind: ClassVar[Literal["classifier", "encoder"]]
    """What the bundle must be."""

    def __init__(
        self,
        bundle: Bundle | str | Path,
        *,
        backend: str = "openvino",
        device: str = "CPU",
        precision: str = "auto",
        threads: int = 1,
    ) -> None:
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
        self._backends: list[Backend] = []
        self._closed = False
        self._like: Runner | None = None

    @property
    def image(self) -> ImageSpec:
        """The image that the network was trained on."""
        return self.bundle.spec.image

    @property
    def backend(self) -> Backend:
        """The backend; built and checked with the bundle's golden frames on first use."""
        return self.backends[0]

    @property
    def backends(self) -> list[Backend]:
        """The backend and, if there is a band, the FP32 one for the second look.

        Both are built on first use, or neither.

        Raises:
            BundleParityError: the golden frames give other outputs than recorded.
            ConfigError: the runner is closed.
        """
        backends = self._backends
        if not backends:
            with building():
                backends = self._build()
        return backends

    def _build(self) -> list[Backend]:
        if self._closed:
            raise ConfigError(
                f"this {self.kind} is closed. Expected an open one; make a new "
                f"{type(self).__name__}."
            )
        if not self._backends:
            precisions = (self.precision, *(["fp32"] if self.band is not None else []))
            like = self._like
            verify = like is None or not like._backends
            with contextlib.ExitStack() as stack:
                self._backends = [
                    stack.enter_context(
                        self.bundle.backend(
                            self.backend_name,
                            device=self.device,
                            precision=precision,
                            threads=self.threads,
                            verify=verify,
                        )
                    )
                    for precision in precisions
                ]
                stack.pop_all()
        return self._backends

    def clone(self) -> Self:
        """Return another of the same bundle, for another thread of this process.

        Its networks are its own. Where those of this one have passed the golden frames, the
        clone's, which are built from the same files in the same way, are not asked again.
        """
        other = copy.copy(self)
        other._like = self
        return other

    def prepare(self, images: NDArray[Any]) -> NDArray[np.uint8] | None:
        """Return images ``(N, H, W, 3)`` as the network takes them; None for an empty batch."""
        if isinstance(images, np.ndarray) and images.ndim == 4 and len(images) == 0:
            return None
        return prepare(images, self.bundle.spec.image)

    def close(self) -> None:
        """Free the networks; may be called more than once."""
        with building():  # not while another thread builds them
            self._closed = True
            backends, self._backends = self._backends, []
        for backend in backends:
            backend.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_backends": [], "_like": None}

    def __repr__(self) -> str:
        name, spec = type(self).__name__, self.bundle.spec
        return f"<{name} {spec.name} on {self.backend_name}, {self.precision}>"
