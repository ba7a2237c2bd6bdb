"""Which image comes first: the one whose label tells most.

In this order: images on which labellers disagree; claims of images that the guard finds out of
distribution, and answers of the network that contradict what is recorded; then those whose log-odds
are closest to the threshold. What nothing is known of comes last, in random order. One image of
an episode comes before a second of it. None of this is shown before the label is given.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from vinoreward.errors import DatasetError, ImageMismatchError, InputError
from vinoreward.rewards.classifier import Classifier, logit
from vinoreward_training.classifier.score import batches
from vinoreward_training.labelling.labels import Label, contradictions
from vinoreward_training.labelling.sources import Floats, Source

GAP = 10
"""Images between one and its blind duplicate, at least."""
SPREAD = 20
"""And up to so many more."""


@dataclass(frozen=True)
class Opinion:
    """What is known of each of N images before anybody labels them; NaN where nothing is."""

    log_odds: Floats
    """Of success."""
    ood_score: Floats
    """Above 1 the image is out of distribution."""
    true: Floats
    """1 for a recorded success, 0 for a failure."""
    threshold: float
    """Log-odds from which success is claimed."""
    claimed: bool = False
    """Whether all were claimed, whatever the log-odds say."""

    @property
    def claims(self) -> Floats:
        """``(N,)`` 1 where the network claims a success, 0 where not, NaN where it said nothing."""
        if self.claimed:
            return np.ones(len(self.log_odds))
        known = (self.log_odds >= self.threshold).astype(np.float64)
        return np.where(np.isnan(self.log_odds), np.nan, known)


def recorded(source: Source) -> Opinion:
    """Return what the source's own table says."""
    nothing = np.full(len(source.names), np.nan)
    probability = source.numbers.get("probability", nothing)
    inside = np.where((probability >= 0) & (probability <= 1), probability, np.nan)
    return Opinion(
        log_odds=np.array([logit(p) if math.isfinite(p) else math.nan for p in inside.tolist()]),
        ood_score=source.numbers.get("ood_score", nothing),
        true=source.numbers.get("true", nothing),
        threshold=0.0,
        claimed=source.claimed,
    )


def scored(source: Source, bundle: str) -> Opinion:
    """Return the scores of a classifier and its guard, with a progress bar."""
    from tqdm import tqdm

    before = recorded(source)
    log_odds, ood_score = before.log_odds.copy(), before.ood_score.copy()
    with (
        Classifier(bundle, precision="fp32") as classifier,
        tqdm(total=len(source.names), desc="score", unit="image") as bar,
    ):
        for indices, images in batches(source.images()):
            try:
                said = classifier.predict(images)
            except (InputError, ImageMismatchError) as error:
                raise DatasetError(
                    f"{source.folder / source.names[indices[0]]}: {error} Or leave --bundle out: "
                    "images then come in random order."
                ) from error
            log_odds[indices] = said.log_odds
            if said.ood_score is not None:
                ood_score[indices] = said.ood_score
            bar.update(len(indices))
        threshold = logit(classifier.threshold)
    return Opinion(log_odds, ood_score, before.true, threshold)


def most_useful_first(
    source: Source, opinion: Opinion, labels: Sequence[Label], by: str, seed: int
) -> list[int]:
    """Return the indices of all images in the order in which ``by`` should label them."""
    count = len(source.names)
    disagreed = {name for name, _ in contradictions(labels)}
    others = {label.image for label in labels if label.by != by}
    claims = opinion.claims
    with np.errstate(invalid="ignore"):
        far = np.abs(opinion.log_odds - opinion.threshold)
        ood_claims = (claims == 1) & (opinion.ood_score > 1)
        wrong = ~np.isnan(claims) & np.isin(opinion.true, (0, 1)) & (claims != opinion.true)
    kinds = np.select(
        [
            np.isin(source.names, list(disagreed)),
            np.isin(source.names, list(others)),
            ood_claims | wrong,
            ~np.isnan(far),
        ],
        [0, 4, 1, 2],
        3,
    )
    shuffled = np.random.default_rng([seed, 0x1ABE]).permutation(count)
    order: list[int] = np.lexsort((shuffled, np.nan_to_num(far, nan=np.inf), kinds)).tolist()
    if source.episodes is None:
        return order
    counts = Counter[int]()
    rounds = {}
    for index in order:
        rounds[index] = counts[source.episodes[index]]
        counts[source.episodes[index]] += 1
    return sorted(order, key=rounds.__getitem__)  # stable


def with_duplicates(
    names: Sequence[str],
    order: Sequence[int],
    done: Collection[int],
    repeated: Collection[int],
    share: float,
    seed: int,
) -> list[tuple[int, bool]]:
    """Return the images to show, each with whether it is a blind duplicate.

    ``order`` are the images to show, ``done`` those that the labeller has labelled, ``repeated``
    those of them whose duplicate is labelled too. A ``share`` is shown twice, which depends on
    names and seed, so that it stays mostly the same after a restart.
    """
    random = np.random.default_rng([seed, 0xD0B1])
    shown = {index: place for place, index in enumerate(order)}
    # One at the very end would be shown twice in a row.
    able = [index for index in done if index not in repeated]
    able += [index for index in order if shown[index] < len(order) - GAP]
    able.sort(key=lambda index: hashlib.sha256(f"{seed}\0{names[index]}".encode()).digest())
    wanted = round(share * (len(done) + len(order))) - len(repeated)
    places = [(float(place), index, False) for index, place in shown.items()]
    for index in sorted(able[: max(0, wanted)]):
        after = shown.get(index, 0) + GAP + int(random.integers(SPREAD + 1)) + 0.5
        places.append((after, index, True))
    return [(index, twice) for _, index, twice in sorted(places)]
