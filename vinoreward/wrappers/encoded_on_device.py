"""EncodedObservation for pictures that are torch tensors, where they are.

Importing this imports torch.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vinoreward.backends.cuda_graph import FiniteCheck, Replayed, equal_pieces
from vinoreward.backends.torch import TorchBackend
from vinoreward.encoders import Encoder
from vinoreward.errors import InputError

PIECE: Final = 1024
"""Pictures that are encoded at once."""


class DeviceEncoding:
    """Encodes pictures of many environments, and stacks their vectors, without leaving a device.

    On CUDA the work on one piece of them is recorded once (a CUDA graph) and then replayed.

    Args:
        encoder: of the torch backend, on the pictures' device. It stays open.
        num_envs: N.
        frames: vectors of so many steps that an observation holds.
    """

    @torch.inference_mode(mode=False)  # a caller's mode can come and go
    def __init__(self, encoder: Encoder, num_envs: int, frames: int) -> None:
        backend: Any = encoder.backend
        device = torch.device(backend.device.lower())
        self._module = backend.module
        self._size = encoder.latent_size
        self._low = torch.tensor(encoder.low, device=device)
        self._high = torch.tensor(encoder.high, device=device)
        self._check = FiniteCheck(device)
        self._stacks = torch.zeros(num_envs, frames, self._size, device=device)
        picture = encoder.bundle.spec.picture
        self._shape = (num_envs, picture.height, picture.width, 3)
        self._pieces = equal_pieces(num_envs, PIECE)
        self._encoded: Replayed[Tensor] = Replayed((self._pieces[0].stop, *self._shape[1:]))

    @torch.inference_mode(mode=False)
    @torch.no_grad()
    def begin(self, pictures: Tensor, mask: NDArray[np.bool_]) -> Tensor:
        """Start episodes where ``mask``, ``(N,)`` bool, is True; return what the learner sees.

        Args:
            pictures: ``(N, H, W, 3)`` uint8, of all environments.
            mask: where they are first ones.

        Returns:
            ``(N, frames * D)`` float32 in new memory.

        Raises:
            InputError: pictures of another shape or type.
            OutputError: the network gave NaN or infinity since the last call. To look in each step
                the host would have to wait for the device.
        """
        self._check.check("encoder", "the learner was shown zeros")
        first = self._look(pictures)[:, None]
        begun = torch.from_numpy(mask).to(first.device)
        self._stacks = torch.where(begun[:, None, None], first, self._stacks)
        return self._stacks.flatten(1).clone()

    @torch.inference_mode(mode=False)
    @torch.no_grad()
    def step(self, pictures: Tensor, last: Any, ended: Any) -> tuple[Tensor, Tensor | None]:
        """Return what the learner sees after a step, and what the episodes ended with.

        Args:
            pictures: ``(N, H, W, 3)`` uint8; where an episode ended, the next one's first.
            last: those that the episodes ended with, valid where ``ended``: a tensor, or as
                Gymnasium has them ``(N,)`` objects; None: none ended.
            ended: ``(N,)`` bool.

        Raises:
            InputError: pictures of another shape or type, or none of an episode that ended.
        """
        ended = torch.as_tensor(ended, device=pictures.device)
        if not isinstance(last, Tensor):  # then the host knows which ended
            last = _rows_of(last, ended, pictures)
        latents = self._look(pictures)
        if last is None:
            self._push(latents)
            return self._stacks.flatten(1).clone(), None
        rows = ended[:, None]
        self._push(torch.where(rows, self._look(last), latents))
        seen = self._stacks.flatten(1)
        self._stacks = torch.where(rows[..., None], latents[:, None], self._stacks)
        return self._stacks.flatten(1).clone(), seen

    def _push(self, latents: Tensor) -> None:
        self._stacks = torch.cat([self._stacks[:, 1:], latents[:, None]], 1)

    def _look(self, pictures: Tensor) -> Tensor:
        """Return ``(N, D)`` float32 within the bundle's bounds; zeros for what is no number."""
        if pictures.dtype != torch.uint8 or tuple(pictures.shape) != self._shape:
            raise InputError(
                f"the pictures are {pictures.dtype} of shape {tuple(pictures.shape)}. Expected "
                f"torch.uint8 of shape {self._shape}, as the observation space says."
            )
        outputs = torch.empty(len(pictures), self._size, device=pictures.device)
        for piece in self._pieces:
            outputs[piece] = self._encoded(self._encode, pictures[piece])
        finite = self._check.of(outputs)
        return torch.clamp(outputs.masked_fill(~finite, 0.0), self._low, self._high)

    @torch.no_grad()
    def _encode(self, pictures: Tensor) -> Tensor:
        encoded: Tensor = self._module(pictures)[:, : self._size].float()
        return encoded


def _rows_of(last: Any, ended: Tensor, pictures: Tensor) -> Tensor | None:
    """Return last pictures that are given as objects as a tensor like ``pictures``."""
    chosen = torch.nonzero(ended)[:, 0].tolist()
    if not chosen:
        return None
    if last is None or any(last[i] is None for i in chosen):
        raise InputError(
            "environments ended their episodes in SAME_STEP mode without infos['final_obs']. "
            "Expected their last observations there, as Gymnasium's vector environments give them; "
            "without them the picture that an episode ended with is lost."
        )
    rows = pictures.clone()
    for i in chosen:
        rows[i] = torch.as_tensor(last[i], device=pictures.device)
    return rows


def encodes_on(encoder: Encoder, pictures: Any) -> bool:
    """Return whether an encoder takes a batch of observations as it is, on its device."""
    if not isinstance(pictures, Tensor) or encoder.backend_name != TorchBackend.name:
        return False
    picture = encoder.bundle.spec.picture
    fits = tuple(pictures.shape[1:]) == (picture.height, picture.width, 3) and picture.crop is None
    return fits and str(pictures.device) in (encoder.device.lower(), f"{encoder.device.lower()}:0")
