"""A classifier that learns from clicks: its last layer is fitted again after each label."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from vinoreward.errors import DatasetError, InputError, TooFewNegativesError
from vinoreward.images import ImageSpec, prepare
from vinoreward.rewards.calibration import negatives_needed
from vinoreward.rewards.classifier import sigmoid
from vinoreward.rewards.decision import RewardOptions
from vinoreward.rewards.judge import Judge
from vinoreward.rewards.reward_model import RewardModel
from vinoreward_training.classifier.evaluation import (
    LOWEST_THRESHOLD,
    RATES,
    Scored,
    evaluate_scored,
)
from vinoreward_training.configs import FinetuneConfig
from vinoreward_training.data.dataset import Dataset, load_dataset

if TYPE_CHECKING:
    from vinoreward_training.classifier.embeddings import Embeddings
    from vinoreward_training.classifier.last_layer import LastLayer

NOTHING = "it learns from your labels: give at least one success and one failure"


class Learner:
    """Fits the last layer of a frozen network on the labels of a folder, as ``finetune`` does.

    A ``with`` block closes its file of features.

    Args:
        config: data, network and initial weights.

    Raises:
        ConfigError: no such network.
        ModelNotFoundError, ModelCorruptError: no initial weights.
    """

    def __init__(self, config: FinetuneConfig) -> None:
        from vinoreward_training.classifier import networks

        self.config = config = replace(config, freeze=True)
        networks.check_network(config)
        if config.weights is not None:  # that they are there is said before an image comes
            networks.read_weights(config.weights)
        else:
            networks.pretrained_weights(config.network)
        self.rate = NOTHING
        """Which rates the labels support, in words."""
        self._size: tuple[int, int] | None = None
        self._embeddings: Embeddings | None = None

    def fit(self) -> RewardModel | None:
        """Return the classifier that the labels make; None where they make none, and why is said.

        ConfigError or ModelCorruptError: the network does not take the images, or the weights are
        not its own.
        """
        from vinoreward_training.classifier.last_layer import fit_last_layer

        folder = self.config.data
        try:
            dataset = load_dataset(folder, size=self._size, choose_size=True, skip_broken=True)
        except DatasetError:  # only one of the labels, or none
            self.rate = NOTHING
            return None
        self._size = dataset.images.shape[1], dataset.images.shape[2]
        if self._embeddings is None:
            self._embeddings = self._opened(dataset)
        layer = fit_last_layer(self._embeddings, dataset.images, dataset.labels, dataset.episodes)
        threshold, heat = self._calibrate(dataset, layer)
        embeddings, (height, width) = self._embeddings, self._size
        spec = ImageSpec(height=height, width=width, resize="pil_bilinear")

        def score(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
            return sigmoid(layer.score(embeddings.compute(prepare(images, spec))) / heat)

        return RewardModel(Judge(score, threshold, name=self.config.network), RewardOptions())

    def __enter__(self) -> Learner:
        return self

    def __exit__(self, *error: object) -> None:
        if self._embeddings is not None:
            self._embeddings.close()

    def _opened(self, dataset: Dataset) -> Embeddings:
        from vinoreward_training.classifier.embeddings import Embeddings
        from vinoreward_training.classifier.networks import module_for
        from vinoreward_training.runs.fit import prepare_torch

        prepare_torch(self.config.seed)
        module = module_for(self.config, dataset)
        return Embeddings(module, self.config.network, dataset.images.shape[1:3])

    def _calibrate(self, dataset: Dataset, layer: LastLayer) -> tuple[float, float]:
        """Return threshold and temperature; say which rates the labels support."""
        labels, episodes = dataset.labels, dataset.episodes
        failing = len(np.unique(episodes[labels == 0]))
        try:
            scored = Scored(layer.logits, labels, episodes)
            decision = evaluate_scored(scored, scored, None, frames=len(labels)).decision
        except (DatasetError, TooFewNegativesError, InputError):
            self.rate = (
                f"false positives unknown: {failing} failing episodes of at least "
                f"{negatives_needed(RATES[-1])}"
            )
            return LOWEST_THRESHOLD, 1.0
        found = decision.chosen_for
        recall = found.get("at_raised", found)["recall"]
        self.rate = (
            f"false positives <= {found['episode_fpr_upper']:.0%} of {failing} failing episodes, "
            f"recall {recall:.0%}; no OOD detector"
        )
        return decision.threshold, decision.temperature
