"""A bundle on a backend: what classifiers and encoders share."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from vinoreward.backends.base import find_backend
from vinoreward.backends.runtime import building
from vinoreward.bundles.bundle import Bundle
from vinoreward.bundles.picture import check_pictures
from vinoreward.closing import Closing
from vinoreward.errors import ConfigError

if TYPE_CHECKING:
    from vinoreward.backends.base import Backend

_COMMANDS = {"classifier": "vinoreward finetune", "encoder": "vinoreward train-vae"}


class Runner:
    """Runs a bundle of one kind; loads on first use, in whatever process that is.

    It can be pickled: each process builds its own networks, and checks them on the bundle's golden
    frames. Threads may share it; the first that needs the networks builds them. Nothing is shared
    with another runner, so that closing one is safe.

    Args:
        bundle: a loaded bundle, the folder of one, or the name of an installed one.
        kind: what the bundle must be.
        backend: name of a registered backend.
        device: device name of that backend.
        precision: ``"auto"``, ``"fp32"``, ``"int8"``, …
        threads: threads that one inference may use.

    Raises:
        ConfigError: a bundle of another kind, or the backend cannot do what is asked.
        UnknownBackendError: no backend of that name.
        ModelNotFoundError: there is no such bundle.
    """

    def __init__(
        self,
        bundle: Bundle | str | Path,
        kind: Literal["classifier", "encoder"],
        *,
        backend: str,
        device: str,
        precision: str,
        threads: int,
    ) -> None:
        self.bundle = bundle if isinstance(bundle, Bundle) else Bundle.load(bundle)
        spec = self.bundle.spec
        if spec.kind != kind:
            article = {"classifier": "a", "encoder": "an"}
            raise ConfigError(
                f"the bundle {spec.name!r} is {article[spec.kind]} {spec.kind}. Expected "
                f"{article[kind]} {kind}'s bundle; train one with: {_COMMANDS[kind]}"
            )
        find_backend(backend)  # a mistyped name is said now, not at the first picture
        self.backend_name = backend
        self.device = device
        self.threads = threads
        self.precision = self.bundle.resolve_precision(backend, precision)
        self.band = self.bundle.second_look_band(self.precision)
        """Not None: the FP32 network is built too, for second looks."""
        self._backends: list[Backend] = []
        self._closed = False

    @property
    def backends(self) -> list[Backend]:
        """The backend and, where there is a band, the FP32 one that looks again.

        They are built together, so that no later picture waits for it; none is left open where one
        cannot be built.

        Raises:
            BundleParityError: the golden frames give other outputs than recorded.
            ConfigError: the runner is closed.
        """
        found = self._backends
        if not found:
            with building():
                found = self._build()
        return found

    def _build(self) -> list[Backend]:
        if self._closed:
            kind = self.bundle.spec.kind
            raise ConfigError(
                f"this {kind} is closed. Expected an open one; make a new {kind.capitalize()}."
            )
        if not self._backends:
            with contextlib.ExitStack() as stack:
                self._backends = [
                    stack.enter_context(
                        self.bundle.backend(
                            self.backend_name,
                            device=self.device,
                            precision=precision,
                            threads=self.threads,
                        )
                    )
                    for precision in (self.precision, *(["fp32"] if self.band is not None else []))
                ]
                stack.pop_all()
        return self._backends

    def prepare(self, images: NDArray[Any]) -> NDArray[np.uint8] | None:
        """Return pictures ``(N, H, W, 3)`` as the network takes them; None for a batch of none.

        Raises:
            InputError, PictureMismatchError: pictures that the bundle does not take.
        """
        if isinstance(images, np.ndarray) and images.ndim == 4 and len(images) == 0:
            return None
        check_pictures(images)
        return self.bundle.prepare(images)

    def close(self) -> None:
        """Free the networks; may be called more than once."""
        with building():  # not while another thread builds them
            self._closed = True
            backends, self._backends = self._backends, []
        for backend in backends:
            backend.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_backends": []}

    def __str__(self) -> str:
        return f"{self.bundle.spec.name} on {self.backend_name}, {self.precision}"


class Runs(Closing):
    """Base of the classes that hold one :class:`Runner`: its facts, closing, context."""

    _runner: Runner

    @property
    def runner(self) -> Runner:
        """What prepares the pictures and runs the networks."""
        return self._runner

    @property
    def bundle(self) -> Bundle:
        """The bundle that is run."""
        return self._runner.bundle

    @property
    def backend_name(self) -> str:
        """The backend's registered name."""
        return self._runner.backend_name

    @property
    def device(self) -> str:
        """The backend's device."""
        return self._runner.device

    @property
    def threads(self) -> int:
        """Threads that one inference may use."""
        return self._runner.threads

    @property
    def precision(self) -> str:
        """The precision that ``"auto"`` stands for here."""
        return self._runner.precision

    @property
    def backend(self) -> Backend:
        """The backend; built and checked on the bundle's golden frames on first use."""
        return self._runner.backends[0]

    def close(self) -> None:
        """Free the networks; may be called more than once."""
        self._runner.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._runner}>"
