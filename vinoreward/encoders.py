"""Encoders: from pictures to latent vectors."""

from __future__ import annotations

import functools
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from vinoreward.bundles.runner import Runner
from vinoreward.bundles.schema import Encoding
from vinoreward.errors import ConfigError

_LOG_VARIANCE = 60.0
"""Limit of log variances, whose exponentials would overflow in float32."""


class Encoder(Runner):
    """A bundle on a backend: a latent vector for every picture.

    Nothing is loaded until the first picture. An encoder can be pickled; each process builds its
    own network and checks it with the bundle's golden frames.

    Args:
        bundle: a loaded bundle, its folder, or the name of an installed one.
        backend: ``"openvino"``, ``"torch"``, ``"onnxruntime"`` or another registered name.
        device: device name of that backend, e.g. ``"CPU"``.
        precision: ``"auto"`` (INT8 if it passed the bundle's gate), ``"fp32"``, ``"int8"``, …
        threads: threads that one inference may use.

    Raises:
        ConfigError: the bundle is a classifier's, or the backend does not support the arguments.
        ModelNotFoundError: no such bundle.
    """

    kind = "encoder"

    @functools.cached_property
    def low(self) -> NDArray[np.float32]:
        """(D,) Lower bounds, to which vectors are clipped."""
        return np.array(self.encoding.low, np.float32)

    @functools.cached_property
    def high(self) -> NDArray[np.float32]:
        """(D,) Upper bounds, to which vectors are clipped."""
        return np.array(self.encoding.high, np.float32)

    @property
    def encoding(self) -> Encoding:
        """The bundle's description of its vectors."""
        return cast("Encoding", self.bundle.spec.encoding)  # which every encoder's spec has

    @property
    def latent_size(self) -> int:
        """D, the length of a vector."""
        return len(self.encoding.low)

    def encode(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the latent vectors, or the posterior's means of a variational encoder.

        Args:
            images: ``(N, H, W, 3)`` uint8 RGB. Other sizes are resized if the bundle says so.

        Returns:
            ``(N, D)`` float32, clipped to :attr:`low` and :attr:`high`.

        Raises:
            InputError: wrong shape, size or dtype.
            OutputError: the network returned NaN, infinity or another shape.
        """
        return self.clip(self._outputs(images)[:, : self.latent_size])

    def posterior(
        self, images: NDArray[np.uint8]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
        """Return means and standard deviations ``(N, D)``, unclipped; None for an autoencoder's."""
        outputs = self._outputs(images)
        size = self.latent_size
        if not self.encoding.posterior:
            return outputs, None
        log_variance = np.clip(outputs[:, size:], -_LOG_VARIANCE, _LOG_VARIANCE)
        return outputs[:, :size], np.exp(0.5 * log_variance)

    def sample(self, images: NDArray[np.uint8], random: np.random.Generator) -> NDArray[np.float32]:
        """Return one draw from each picture's posterior, ``(N, D)`` float32, clipped.

        Raises:
            ConfigError: a plain autoencoder has no posterior.
        """
        self.check_samples()
        mean, std = self.posterior(images)
        if std is not None:
            mean = mean + std * random.standard_normal(mean.shape, np.float32)
        return self.clip(mean)

    def check_samples(self) -> None:
        """Raise ConfigError unless the encoder has a posterior to draw from."""
        if not self.encoding.posterior:
            raise ConfigError(
                f"a sample was requested from the bundle {self.bundle.spec.name!r}, a plain "
                "autoencoder without a posterior. Expected a variational encoder; use the vector "
                "itself (encode, or sample=False)."
            )

    def clip(self, vectors: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
        """Return a copy of ``(N, D)`` vectors, clipped to the bounds."""
        clipped: NDArray[np.float32] = np.clip(vectors, self.low, self.high)
        return clipped

    def _outputs(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        pictures = self.prepare(images)
        if pictures is None:
            return np.zeros((0, self.bundle.spec.width), np.float32)
        return self.backend.infer(pictures)
