"""Features of images by all layers of a network but the last, each computed once."""

from __future__ import annotations

import hashlib
import sqlite3
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from vinoreward.backends.torch_classifiers import head_of
from vinoreward.errors import ConfigError, RunFolderError
from vinoreward.files import cache_folder, open_plain, reason_of
from vinoreward_training.classifier.training import ChannelsLast
from vinoreward_training.runs.fit import predict
from vinoreward_training.runs.run_folder import ensure_dir

FULL = 1 << 30
"""Bytes of a file to which no features are added."""
BATCH = 32
_TABLE = """CREATE TABLE IF NOT EXISTS features
(image BLOB PRIMARY KEY, features BLOB, checksum INTEGER) WITHOUT ROWID"""

Floats = npt.NDArray[np.float32]
Images = npt.NDArray[np.uint8]


class FeatureFile:
    """Features of one network, by the hashes of images, in a file of the user's cache folder.

    Processes may share it. Where it is harmed it is made anew, and where it cannot be written
    features are kept in memory; either is printed.

    Args:
        network: hash that names the file.
        width: D, features of an image.
    """

    def __init__(self, network: str, width: int) -> None:
        self.path = cache_folder("embeddings") / f"{network}.sqlite"
        self._width = width
        self._database = self._opened()

    def read(self, keys: Sequence[bytes]) -> dict[bytes, Floats]:
        """Return the features (D,) of those images that are known."""
        found = {}
        try:
            for key in keys:
                row = self._run("SELECT features, checksum FROM features WHERE image = ?", key)
                if row is not None:
                    if len(row[0]) != 4 * self._width or zlib.crc32(row[0]) != row[1]:
                        raise sqlite3.DatabaseError("a checksum is wrong")
                    found[key] = np.frombuffer(row[0], "<f4")
        except (sqlite3.Error, TypeError) as error:
            self._replace(error)
            return {}
        return found

    def add(self, keys: Sequence[bytes], features: Floats) -> None:
        """Keep features (N, D) of images."""
        values = [row.astype("<f4").tobytes() for row in features]
        rows = [(key, one, zlib.crc32(one)) for key, one in zip(keys, values, strict=True)]
        try:
            if not self.path.is_file() or self.path.stat().st_size < FULL:
                with self._database:  # one transaction: all of them or none
                    insert = "INSERT OR REPLACE INTO features VALUES (?, ?, ?)"
                    self._database.executemany(insert, rows)
        except sqlite3.Error as error:
            self._replace(error)

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def _run(self, statement: str, *values: object) -> Any:
        return self._database.execute(statement, values).fetchone()

    def _opened(self) -> sqlite3.Connection:
        try:
            ensure_dir(self.path.parent)
            open_plain(self.path, "ab").close()  # through no link
            return self._connected(str(self.path))
        except sqlite3.OperationalError as error:
            return self._in_memory(error)
        except (OSError, RunFolderError) as error:
            return self._in_memory(error)
        except sqlite3.DatabaseError as error:
            return self._remade(error)

    def _connected(self, name: str) -> sqlite3.Connection:
        database = sqlite3.connect(name, timeout=30)
        try:
            database.execute(_TABLE)
        except sqlite3.Error:
            database.close()
            raise
        return database

    def _replace(self, error: Exception) -> None:
        """Go on with a new file where the present one is harmed, in memory where it is not."""
        self._database.close()
        unusable = isinstance(error, sqlite3.OperationalError)
        self._database = self._in_memory(error) if unusable else self._remade(error)

    def _remade(self, error: Exception) -> sqlite3.Connection:
        print(f"{self.path} is harmed ({reason_of(error)}): its features are computed again")
        try:
            self.path.unlink(missing_ok=True)
            Path(f"{self.path}-journal").unlink(missing_ok=True)
            return self._connected(str(self.path))
        except (OSError, sqlite3.Error) as again:
            return self._in_memory(again)

    def _in_memory(self, error: Exception) -> sqlite3.Connection:
        print(f"{self.path} cannot be used ({reason_of(error)}): features are kept in memory only")
        return self._connected(":memory:")


class Change(NamedTuple):
    """A change of an image that depends on nothing but the image."""

    name: str
    """Part of the key: another one where it changes images in another way."""
    apply: Callable[[Images], Images]
    """Takes and returns an image (H, W, 3) uint8."""


class Embeddings:
    """Turns images into the inputs of a network's last layer, from a file where they are known.

    Args:
        module: the network.
        architecture: its name.
        size: (height, width) of the images.

    Raises:
        ConfigError: the logits are not linear in what the last layer is given.
    """

    def __init__(self, module: ChannelsLast, architecture: str, size: tuple[int, ...]) -> None:
        names = head_of(architecture, module.inner.net)
        network: Any = module.inner.net
        self._layer = network.get_submodule(names[0])
        self._features = _Features(module, self._layer).eval()
        self._check(module, architecture, size)
        sha256 = _hash_of(module, architecture, names[0])
        self._file = FeatureFile(sha256, self._layer.weight.shape[1])
        self.computed = self.reused = 0
        """Features so far that were computed, and that were known."""

    def compute(self, images: Images) -> Floats:
        """Return the features (N, D) float32 of images (N, H, W, 3) uint8, and keep none."""
        return predict(self._features, images, batch_size=BATCH)

    def __call__(self, images: Images, change: Change | None = None) -> Floats:
        """Return the features (N, D) float32 of images (N, H, W, 3) uint8, after a change."""
        name = "" if change is None else change.name
        keys = [hashlib.sha256(f"{name} {one.shape} ".encode() + one.tobytes()) for one in images]
        digests = [key.digest() for key in keys]
        known = self._file.read(digests)
        new = {key: row for row, key in enumerate(digests) if key not in known}
        for start in range(0, len(new), BATCH):
            batch = list(new.items())[start : start + BATCH]
            shown = [
                images[row] if change is None else change.apply(images[row]) for _, row in batch
            ]
            features, found = self.compute(np.stack(shown)), [key for key, _ in batch]
            self._file.add(found, features)
            known |= dict(zip(found, features, strict=True))
        self.computed += len(new)
        self.reused += len(images) - len(new)
        return np.stack([known[key] for key in digests])

    def set_layer(self, weight: npt.NDArray[np.float64], bias: float) -> None:
        """Make the network's log-odds ``features @ weight + bias``; ``weight`` is (D,)."""
        halves = torch.from_numpy(np.stack([-weight / 2, weight / 2]).astype(np.float32))
        with torch.no_grad():
            self._layer.weight.copy_(halves.reshape(self._layer.weight.shape))
            self._layer.bias.copy_(torch.tensor([-bias / 2, bias / 2]))

    def close(self) -> None:
        """Close the file; the network is as it was before."""
        self._features.close()
        self._file.close()

    def _check(self, module: ChannelsLast, architecture: str, size: tuple[int, ...]) -> None:
        """Raise ConfigError unless the last layer alone turns features into logits."""
        images = np.random.default_rng(0).integers(0, 256, (2, *size, 3), dtype=np.uint8)
        weight, bias = self._layer.weight, self._layer.bias
        with torch.inference_mode():
            features = torch.from_numpy(self.compute(images))
            linear = bias is not None and features.shape == (2, weight.shape[1])
            if linear:
                logits = features @ weight.flatten(1).T + bias
                linear = torch.allclose(
                    logits, torch.from_numpy(predict(module, images)), 1e-3, 1e-3
                )
        if not linear:
            self._features.close()
            raise ConfigError(
                f"the last layer of {architecture} is not the only one behind its features. "
                "Expected one linear layer to fit; choose another `network`, or leave `freeze` "
                "out.",
                field="network",
            )


class _Features(nn.Module):
    """Returns what a layer of a network is given, (N, D), for uint8 images (N, H, W, 3).

    Where that is an image of features, its mean, to which the convolutions of a last layer come.
    """

    def __init__(self, module: nn.Module, layer: nn.Module) -> None:
        super().__init__()
        self._module, self._given = module, torch.zeros(0)
        self._hook = layer.register_forward_pre_hook(self._take)

    def _take(self, _: nn.Module, given: tuple[Tensor, ...]) -> None:
        self._given = given[0]

    def forward(self, images: Tensor) -> Tensor:
        """Return the features (N, D) float32."""
        self._module(images)
        return self._given.mean((2, 3)) if self._given.ndim == 4 else self._given

    def close(self) -> None:
        """Leave the network alone."""
        self._hook.remove()


def _hash_of(module: ChannelsLast, architecture: str, head: str) -> str:
    """Return the SHA-256 of all that features depend on but the image."""
    digest = hashlib.sha256(f"{architecture} torch {torch.__version__}".encode())
    tensors = module.inner.net.state_dict() | dict(module.inner.named_buffers(recurse=False))
    for name, tensor in tensors.items():
        if not name.startswith(f"{head}."):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()
