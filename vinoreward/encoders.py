"""Encoders: from images to latent vectors."""

from __future__ import annotations

import functools
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from vinoreward.arrays import Array, Arrays, is_tensor
from vinoreward.bundles.runner import Runner
from vinoreward.bundles.schema import Encoding
from vinoreward.errors import InputError

PIECE = 1024
"""Images on a device that are encoded at once."""


class Encoder(Runner):
    """A bundle on a backend: a latent vector for every image; loads at the first one.

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
    resources: ClassVar[tuple[str, ...]] = ("_on_device", *Runner.resources)
    _on_device: Any = None

    @functools.cached_property
    def low(self) -> NDArray[np.float32]:
        """(D,) lower bounds, to which vectors are clipped."""
        return np.array(self.encoding.low, np.float32)

    @functools.cached_property
    def high(self) -> NDArray[np.float32]:
        """(D,) upper bounds, likewise."""
        return np.array(self.encoding.high, np.float32)

    @property
    def encoding(self) -> Encoding:
        """The bundle's description of its vectors."""
        return cast("Encoding", self.bundle.spec.encoding)  # every encoder's has one

    @property
    def latent_size(self) -> int:
        """D, the length of a vector."""
        return len(self.encoding.low)

    def encode(self, images: Array) -> Array:
        """Return the latent vectors, or the posterior's means of a variational encoder.

        Args:
            images: ``(N, H, W, 3)`` uint8 RGB. Other sizes are resized if the bundle says so.
                Tensors that :meth:`takes` are encoded on their device, without waiting for it.

        Returns:
            ``(N, D)`` float32, clipped to :attr:`low` and :attr:`high`, in the images' library.

        Raises:
            InputError: wrong shape, size or dtype.
            OutputError: the network returned NaN, infinity or another shape; on a device these
                become zeros, and :meth:`check` tells.
        """
        vectors = self._outputs(images)[:, : self.latent_size]
        low, high = self._on_device[2] if is_tensor(vectors) else (self.low, self.high)
        return Arrays.like(vectors).xp.clip(vectors, low, high)

    def check(self) -> None:
        """Raise OutputError, once, if the network gave NaN or infinity on a device."""
        if self._on_device is not None:
            self._on_device[0].check("encoder", "the learner was shown zeros")

    def _outputs(self, images: Array) -> Array:
        if is_tensor(images):
            return self._outputs_on_device(images)
        prepared = self.prepare(images)
        if prepared is None:
            return np.zeros((0, self.bundle.spec.width), np.float32)
        return self.backend.infer_prepared(prepared)

    def _outputs_on_device(self, images: Array) -> Array:
        """Return ``(N, width)`` float32 in new memory; zeros for what is no number."""
        import torch

        from vinoreward.backends.cuda_graph import FiniteCheck, Replayed, equal_pieces

        network: Any = self.backend
        shape = (self.image.height, self.image.width, 3)
        if images.dtype != torch.uint8 or tuple(images.shape[1:]) != shape:
            raise InputError(
                f"the images are {images.dtype} of shape {tuple(images.shape)}. Expected "
                f"torch.uint8 of shape (N, *{shape}), as the observation space says."
            )
        pieces, device = equal_pieces(len(images), PIECE), images.device
        # A caller's inference mode can come and go.
        with torch.inference_mode(mode=False), torch.no_grad():
            if self._on_device is None:
                bounds = [torch.tensor(bound, device=device) for bound in (self.low, self.high)]
                replayed = Replayed[Any]((pieces[0].stop, *shape))
                self._on_device = FiniteCheck(device), replayed, bounds
            finite, replayed, _ = self._on_device
            outputs = torch.empty(len(images), self.bundle.spec.width, device=device)
            for piece in pieces:
                outputs[piece] = replayed(network.module, images[piece])
            return outputs.masked_fill(~finite.of(outputs), 0.0)
