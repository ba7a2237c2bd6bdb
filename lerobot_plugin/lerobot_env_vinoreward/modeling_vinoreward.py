"""The reward model of LeRobot's factory: a bundle for batches of observations."""

from typing import Any

import torch
from lerobot.rewards.pretrained import PreTrainedRewardModel

from lerobot_env_vinoreward.configuration_vinoreward import VinorewardConfig
from lerobot_env_vinoreward.processor_vinoreward import images_of
from vinoreward.rewards.classifier import Classifier, Prediction


class VinorewardRewardModel(PreTrainedRewardModel):
    """Claims success for batches of images, guarded by the bundle's OOD detector.

    ``save_pretrained`` writes the configuration, with the bundle's place; the bundle stays there.
    Errors are those of :class:`vinoreward.Classifier`.
    """

    config_class = VinorewardConfig
    name = "vinoreward"

    def __init__(self, config: VinorewardConfig, **_: Any) -> None:
        super().__init__(config)
        self.classifier = Classifier(
            config.bundle,
            backend=config.backend,
            precision=config.precision,
            threshold=config.success_threshold,
        )

    def predict(self, batch: dict[str, Any]) -> Prediction:
        """Return what the bundle says of a batch's images, which are as for :func:`images_of`."""
        image = self.classifier.image
        return self.classifier.predict(images_of(batch, image, self.config.image_keys))

    def compute_reward(self, batch: dict[str, Any]) -> torch.Tensor:
        """Return 1.0 where success is claimed, else 0.0: ``(N,)`` float32; as :meth:`predict`."""
        found = self.predict(batch)
        claimed = found.probability >= self.classifier.threshold
        if found.ood_score is not None:
            claimed &= found.ood_score <= 1.0
        return torch.from_numpy(claimed).float().to(self.config.device)
