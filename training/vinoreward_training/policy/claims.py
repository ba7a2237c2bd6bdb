"""Images of a random sample of a training's claims, for people to label."""

from __future__ import annotations

import io
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from vinoreward.errors import DatasetError, InputError
from vinoreward.files import write_bytes
from vinoreward.images import read_image
from vinoreward.rewards.precision import LAST_CLAIMS, Answer, PrecisionBound, PrecisionCertificate
from vinoreward_training.data.tables import write_table
from vinoreward_training.labelling.labels import LABELS, Label, agreed_labels, read_labels
from vinoreward_training.labelling.sources import CLAIMS, TABLE, digest_of
from vinoreward_training.runs.report import read_table

COLUMNS = ("image", "step", "episode", "probability", "ood_score", "true", "drawn", "block")
NUMBERS = COLUMNS[1:]
SIZE = 200
"""Claims that a training keeps."""
MAX_WAITING = 32 << 20
"""Bytes of images that wait in memory to be written."""


@dataclass(frozen=True)
class Claim:
    """A claim of the sample; None where nobody knows."""

    image: str
    """The file's name."""
    step: int
    """Of the training."""
    episode: int
    """Of the training, from 0."""
    probability: float | None
    ood_score: float | None
    """Of the OOD detector; above 1 the image is out of distribution."""
    true: int | None
    drawn: float
    """A random number from 0 to 1. The sample is the claims with the smallest ones; in this order
    they are a random sample of any size."""
    block: int | None = None
    """Of the certificate, from 0, if the claim was drawn for it; these are labelled first."""


class ClaimSample:
    """Keeps some claims of a training in its folder, each claim as likely as any other.

    Each episode's claim draws a number, from the seed and the episode alone; the smallest ones are
    kept (reservoir sampling by random keys). A training that is killed and repeats episodes so
    draws the same again. Images wait in memory until :meth:`write`; the table is written after
    the images that it names, and what it no longer names is removed after that. What somebody has
    labelled is never removed.

    For a certificate one claim of each block of ``every`` is drawn, too, from the seed and the
    block, and never removed.

    Args:
        run: folder of the run.
        seed: of the draws.
        until: step of the checkpoint that the run goes on from; later claims are dropped.
        size: of the sample.
        every: claims in a block; None: no certificate.
        last: claims behind the certificate of the last ones.
    """

    def __init__(
        self,
        run: Path,
        seed: int,
        until: int = 0,
        size: int = SIZE,
        every: int | None = None,
        last: int = LAST_CLAIMS,
    ) -> None:
        self.folder = run / CLAIMS
        self.size = size
        self.every, self.last = every, last
        self._labels_path = run / LABELS
        self._seed = seed
        self._claims: dict[str, Claim] = {}
        self._digests: dict[str, str] = {}
        self._waiting: dict[str, npt.NDArray[np.uint8]] = {}
        self._labelled_later: set[str] = set()
        """Labelled images of later steps than the checkpoint; no other image takes their names."""
        self._state: tuple[int, ...] | None = None
        self._changed = False
        self._limit = 1.0
        """Numbers below it belong to the sample."""
        self._read(until)
        self._find_limit()

    def __len__(self) -> int:
        return len(self._claims)

    def wants(self, episode: int, number: int | None = None) -> float | None:
        """Return the number that an episode's claim draws; None if its image is not kept.

        ``number`` is the claim's own in the run, from 0; a certificate needs it.
        """
        drawn = float(np.random.default_rng([self._seed, 0xC1A1, episode]).random())
        return drawn if drawn < self._limit or self._block(number) is not None else None

    def _block(self, number: int | None) -> int | None:
        """Return the block that a claim was drawn for; None if it was not."""
        if number is None or self.every is None:
            return None
        block, place = divmod(number, self.every)
        drawn = np.random.default_rng([self._seed, 0xB10C, block]).integers(self.every)
        return block if place == drawn else None

    def add(
        self,
        image: npt.NDArray[np.uint8],
        drawn: float,
        *,
        step: int,
        episode: int,
        number: int | None = None,
        probability: float | None = None,
        ood_score: float | None = None,
        true: int | None = None,
    ) -> None:
        """Take a claim that :meth:`wants` wants, with its ``(H, W, 3)`` RGB image."""
        name = f"{episode:06d}.png"
        if name in self._labelled_later:
            return
        known = probability, ood_score, true, drawn, self._block(number)
        self._claims[name] = Claim(name, step, episode, *known)
        self._digests[name] = digest_of(image)
        self._waiting[name] = image
        self._changed = True
        for claim in self._ordered()[self.size :]:
            if claim.image in self._waiting:  # else somebody may have labelled it by now
                self._drop(claim.image)
        self._find_limit()
        if sum(one.nbytes for one in self._waiting.values()) > MAX_WAITING:
            self.write()

    def write(self) -> None:
        """Write what is new: images, then the table; then remove what left the sample."""
        if not self._changed:
            return
        labelled = self._labelled_names()
        if labelled is not None:
            for claim in self._ordered()[self.size :]:
                if claim.image not in labelled:
                    self._drop(claim.image)
        for name, image in self._waiting.items():
            stream = io.BytesIO()
            Image.fromarray(image).save(stream, format="PNG", compress_level=1)
            write_bytes(self.folder / name, stream.getvalue())
        self._waiting.clear()
        rows = sorted(self._claims.values(), key=lambda claim: claim.episode)
        write_table(self.folder / TABLE, COLUMNS, [asdict(row) for row in rows])
        if labelled is not None:
            for file in self.folder.glob("*.png"):
                if file.name not in self._claims and file.name not in labelled:
                    file.unlink(missing_ok=True)
        self._changed = False

    def labelled(self) -> PrecisionBound | None:
        """Return what the labels say of the precision; None if nothing new was labelled.

        Only labels of a random part count. People label what is most doubtful first, and doubtful
        claims alone would make a good classifier seem bad. So the claims are taken in the order of
        their random numbers, up to the first that nobody has labelled; those newer than the newest
        with a label are left out. Claims that were skipped, or called both, count as unclear.

        Raises:
            DatasetError: the log is damaged.
        """
        answers = self._answers()
        if not answers:
            return None
        newest = max(self._claims[name].episode for name in answers)
        counts = {"success": 0, "failure": 0, "unclear": 0}
        for claim in self._ordered()[: self.size]:
            if claim.episode <= newest:
                answer = answers.get(claim.image)
                if answer is None:
                    break
                counts[answer] += 1
        return PrecisionBound(counts["success"], counts["failure"], counts["unclear"])

    def certificate(self, claims: int) -> PrecisionCertificate | None:
        """Return what the labels say after so many claims of the run; None if that is nothing new.

        The blocks count up to the first whose claim nobody has labelled. Claims that were skipped,
        called both, or have no image count as unclear.

        Raises:
            DatasetError: the log is damaged.
        """
        every = self.every or 1
        answers = self._answers(claims // every)
        if not answers:
            return None
        drawn = {claim.block: claim.image for claim in self._claims.values()}
        counted: list[Answer] = []
        for block in range(claims // every):
            if block in drawn and drawn[block] not in answers:
                break
            counted.append(answers.get(drawn.get(block, ""), "unclear"))
        return PrecisionCertificate.of(counted, every, self.last)

    def _answers(self, blocks: int = 0) -> dict[str, Answer] | None:
        """Return the answer to each labelled image; None if nothing is new since the last time."""
        if not self._labels_path.is_file():
            return None
        status = self._labels_path.stat()
        state, before = (status.st_mtime_ns, status.st_size, blocks), self._state
        self._state = state
        if state == before:
            return None
        known = self._digests
        labels = [one for one in self._read_labels() if one.sha256 == known.get(one.image)]
        answers: dict[str, Answer] = {label.image: "unclear" for label in labels}
        agreed = agreed_labels(labels)
        return answers | {
            one.image: "success" if one.label == "success" else "failure" for one in agreed
        }

    def _ordered(self) -> list[Claim]:
        sample = (claim for claim in self._claims.values() if claim.block is None)
        return sorted(sample, key=lambda claim: claim.drawn)

    def _find_limit(self) -> None:
        kept = self._ordered()[: self.size]
        self._limit = 1.0 if len(kept) < self.size else kept[-1].drawn

    def _labelled_names(self) -> set[str] | None:
        """Return the names of the images with a label; None if the log cannot be read."""
        try:
            return {label.image for label in self._read_labels()}
        except (DatasetError, OSError):
            return None

    def _read_labels(self) -> list[Label]:
        if not self._labels_path.is_file():
            return []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # somebody may be writing the last line
            return read_labels(self._labels_path)

    def _drop(self, name: str) -> None:
        del self._claims[name], self._digests[name]
        self._waiting.pop(name, None)

    def _read(self, until: int) -> None:
        """Take over what the run has kept up to its checkpoint."""
        labelled = self._labelled_names()
        for row in read_table(self.folder / TABLE, NUMBERS) if until else []:
            step, episode = int(row["step"] or 0), int(row["episode"] or 0)
            name = f"{episode:06d}.png"
            if step > until:
                self._changed = True
                if labelled is None or name in labelled:
                    self._labelled_later.add(name)
                continue
            try:
                digest = digest_of(read_image(self.folder / name))
            except (InputError, OSError):
                continue  # removed by somebody
            true = None if row["true"] is None else int(row["true"])
            block = None if row["block"] is None else int(row["block"])
            known = row["probability"], row["ood_score"], true, float(row["drawn"] or 0), block
            self._claims[name] = Claim(name, step, episode, *known)
            self._digests[name] = digest
