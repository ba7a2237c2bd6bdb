"""Reading weights and checkpoints: tensors and plain data, never code.

A file of weights says what they were trained on (:class:`TrainedOn`), so that a later training
can tell whether its held-out frames are new to them.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from vinoreward.errors import DatasetError, ModelCorruptError, ModelNotFoundError
from vinoreward_training.data.dataset import SPLIT, Dataset
from vinoreward_training.runs.run_folder import read_tensors

RECORD = "trained_on"
"""Key in the metadata of a ``.safetensors`` file."""
SAMPLE = 4096
"""Pictures that a record names at most: those of the lowest hashes, 32 KiB."""
MOST_DATASETS = 32
TOLERATED = 0.01
"""Share of held-out pictures that weights may have seen: environments repeat some pictures."""

Keys = npt.NDArray[np.uint64]


def load_weights(net: nn.Module, path: Path) -> list[str]:
    """Load weights from a ``.safetensors`` or ``.pt`` file; return the names left untrained.

    Layers whose shape differs (a head for other classes) keep their fresh values.

    Raises:
        ModelNotFoundError: there is no such file.
        ModelCorruptError: it is not a plain state dict, or nothing in it fits.
    """
    path = Path(path)
    if not path.is_file():
        raise ModelNotFoundError(
            f"there are no weights at {path}. Expected a .safetensors or .pt file; correct "
            "--weights or leave it out to train from scratch."
        )
    state = read_tensors(path)
    inner = state.get("state_dict", state)
    values = inner.items() if isinstance(inner, dict) else ()
    given = {name: value for name, value in values if isinstance(value, Tensor)}
    if not given:
        raise ModelCorruptError(f"{path} holds no tensors. Expected a state dict; save one anew.")
    own = net.state_dict()
    # torchvision's head is a Sequential with dropout first, ours starts with the convolution.
    renamed = {
        name.replace("classifier.1.", "classifier.0.").removeprefix("net."): value
        for name, value in given.items()
    }
    fits = {
        name: value
        for name, value in renamed.items()
        if name in own and own[name].shape == value.shape
    }
    if not fits:
        raise ModelCorruptError(
            f"nothing in {path} fits the network ({len(given)} tensors, {len(own)} wanted). "
            "Expected a state dict of the same architecture; choose it with --architecture."
        )
    net.load_state_dict({**own, **fits})
    return sorted(set(own) - set(fits))


@dataclass(frozen=True)
class TrainedOn:
    """What weights were trained on, in bounded size.

    Pictures are named by hashes of their content. Of many, the lowest hashes are kept: a
    sample that can be compared with any other set of pictures, and merged with another record.

    Attributes:
        datasets: SHA-256 of each dataset, the oldest first; the last ``MOST_DATASETS``.
        sample: (K,) uint64, sorted: the hashes up to ``limit``.
        limit: highest hash that would have been kept.
        complete: whether everything since random weights is covered; False where the training
            began with weights that carried no record.
        split: name of the way the datasets were split, see ``dataset.SPLIT``.
    """

    datasets: tuple[str, ...]
    sample: Keys
    limit: int = 2**64 - 1
    complete: bool = True
    split: str = SPLIT

    def to_text(self) -> str:
        """Return the record as it stands in a file of weights."""
        sample = base64.b64encode(self.sample.astype(">u8").tobytes()).decode("ascii")
        return json.dumps(self.facts() | {"limit": self.limit, "sample": sample})

    def facts(self) -> dict[str, Any]:
        """Return what a bundle says about it."""
        return {"split": self.split, "datasets": list(self.datasets), "complete": self.complete}

    def share_of(self, keys: Keys) -> float:
        """Return the share of the pictures (K,) that were trained on, as the sample shows it."""
        judged = np.unique(keys[keys <= np.uint64(self.limit)])
        return float(np.isin(judged, self.sample).mean()) if len(judged) else 0.0


def _picture_keys(images: npt.NDArray[np.uint8]) -> Keys:
    """Return a hash (N,) uint64 of the content of each picture (N, H, W, 3)."""
    size = repr(images.shape[1:]).encode()
    digests = [
        hashlib.blake2b(np.ascontiguousarray(image).data, digest_size=8, key=size).digest()
        for image in images
    ]
    return np.frombuffer(b"".join(digests), dtype=">u8").astype(np.uint64)


def record_of(
    dataset: Dataset, train: npt.NDArray[np.int64], *, started: bool, before: TrainedOn | None
) -> TrainedOn:
    """Return the record of a training on the frames with the indices ``train``.

    ``started`` is whether it began with weights rather than at random, ``before`` their record.
    """
    keys = np.unique(_picture_keys(dataset.images[train]))
    datasets = [dataset.sha256]
    limit = 2**64 - 1
    if before is not None:
        keys, limit = np.union1d(keys, before.sample), before.limit
        datasets = [name for name in before.datasets if name != dataset.sha256] + datasets
    keys = keys[keys <= np.uint64(limit)]
    if len(keys) > SAMPLE:
        keys = keys[:SAMPLE]
        limit = int(keys[-1])
    complete = not started or (before is not None and before.complete)
    return TrainedOn(tuple(datasets[-MOST_DATASETS:]), keys, limit, complete)


def read_record(path: Path) -> TrainedOn | None:
    """Return what the weights at ``path`` were trained on; None where they do not say.

    Raises:
        ModelCorruptError: the record is not one.
    """
    if path.suffix != ".safetensors":
        return None
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as opened:
            text = (opened.metadata() or {}).get(RECORD)
        if text is None:
            return None
        value = json.loads(text)
        sample = np.frombuffer(base64.b64decode(value["sample"], validate=True), dtype=">u8")
        if len(sample) > SAMPLE:
            raise ValueError(f"a sample of {len(sample)}")
        return TrainedOn(
            tuple(str(name) for name in value["datasets"])[-MOST_DATASETS:],
            np.unique(sample.astype(np.uint64)),
            int(np.uint64(value["limit"])),
            value["complete"] is True,
            str(value["split"]),
        )
    except (SafetensorError, OSError, ValueError, TypeError, KeyError, OverflowError) as error:
        raise ModelCorruptError(
            f"{path} does not say what it was trained on in a way that can be read "
            f"({type(error).__name__}: {error}). Expected weights written by vinoreward finetune; "
            "copy or make them again."
        ) from error


def check_unseen(
    record: TrainedOn | None,
    path: Path,
    dataset: Dataset,
    parts: Sequence[npt.NDArray[np.int64]],
) -> str:
    """Return a sentence on whether the held-out frames are new to the weights at ``path``.

    Held-out pictures that turn up in the dataset's own training part too (an arm at rest looks
    the same in every episode) say nothing about the weights and are left out.

    Args:
        record: of the weights.
        path: of the weights.
        dataset: of the new training.
        parts: numbers of its frames for (train, validation, test).

    Raises:
        DatasetError: the weights were trained on held-out frames.
    """
    if record is None:
        return (
            f"not known: {path.name} carries no record of what it was trained on. If it has seen "
            "these pictures, the rates here are too good"
        )
    held = _picture_keys(dataset.images[np.concatenate(parts[1:])])
    own = _picture_keys(dataset.images[parts[0]])
    share = record.share_of(held[~np.isin(held, own)])
    if share > TOLERATED:
        raise DatasetError(
            f"{path} was trained on {share:.0%} of the pictures that {dataset.folder} holds out "
            "for validation and test, so their rates would not be those of new pictures. Expected "
            "weights that have not seen them: give the capture that the weights were trained on "
            "(the split is the same however it grows), capture with another --seed, or leave "
            "--weights out."
        )
    if not record.complete:
        return (
            f"of the trainings that {path.name} has a record of, none has seen these pictures; it "
            "began with weights that carry none"
        )
    return f"yes, {path.name} has seen none of these pictures"
