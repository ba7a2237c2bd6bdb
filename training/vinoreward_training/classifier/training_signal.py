"""What a training step is shown and what it is asked for: augmentation and the loss."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

MARGIN_SCALE = 0.003
"""Metres beyond the success distance that one unit of log-odds stands for."""
MARGIN_LIMIT = 6.0
"""Log-odds asked for far from the boundary; more would only train confidence."""

Floats = npt.NDArray[np.float32]


def augment(pictures: Tensor, strength: float, random: torch.Generator) -> Tensor:
    """Jitter uint8 pictures (N, H, W, 3): light, contrast, colour, noise, a shift of one pixel.

    No crops, flips, turns or scaling: where things stand in the picture is the label.
    """
    if strength <= 0:
        return pictures
    count = len(pictures)

    def uniform(*shape: int) -> Tensor:
        return (torch.rand(shape, generator=random) * 2 - 1) * strength

    values = pictures.to(torch.float32)
    mean = values.mean(dim=(1, 2, 3), keepdim=True)
    contrast = 1 + 0.2 * uniform(count, 1, 1, 1)
    gain = 1 + 0.2 * uniform(count, 1, 1, 1) + 0.06 * uniform(count, 1, 1, 3)
    values = ((values - mean) * contrast + mean) * gain
    values += torch.randn(values.shape, generator=random) * (4.0 * strength)
    rows, columns = torch.randint(-1, 2, (2,), generator=random).tolist()
    if rows or columns:
        # One shift per batch, repeating the edge; the picture moves as a whole.
        values = values.permute(0, 3, 1, 2)
        values = nn.functional.pad(values, (1, 1, 1, 1), mode="replicate")
        height, width = pictures.shape[1:3]
        values = values[:, :, 1 + rows : 1 + rows + height, 1 + columns : 1 + columns + width]
        values = values.permute(0, 2, 3, 1)
    return values.round().clamp(0, 255).to(torch.uint8)


def loss_of(logits: Tensor, labels: Tensor, targets: Tensor, margin: float) -> Tensor:
    """Cross-entropy, plus the error of the log-odds against ``targets`` where they are known.

    Args:
        logits: (N, 2), column 1 is success.
        labels: (N,) int64.
        targets: (N,) float log-odds, NaN where unknown. At ``MARGIN_LIMIT`` either way they are
            one-sided: more is not wrong there, only less.
        margin: weight of the second part.
    """
    loss = nn.functional.cross_entropy(logits, labels)
    known = ~torch.isnan(targets)
    if margin > 0 and bool(known.any()):
        log_odds, wanted = (logits[:, 1] - logits[:, 0])[known], targets[known]
        # A plateau would cost the network capacity that the boundary needs.
        error = log_odds - wanted
        error = torch.where(wanted >= MARGIN_LIMIT, error.clamp(max=0), error)
        error = torch.where(wanted <= -MARGIN_LIMIT, error.clamp(min=0), error)
        loss = loss + margin * nn.functional.smooth_l1_loss(error, torch.zeros_like(error))
    return loss


def margin_targets(
    distances: npt.NDArray[np.float64], labels: npt.NDArray[np.int64], success_distance: float
) -> Floats:
    """Return the log-odds that a frame's distance asks for; NaN where it has none.

    A frame's distance says more than its label: every near miss shows how near.
    """
    margin = (success_distance - distances) / MARGIN_SCALE
    targets = np.clip(margin, -MARGIN_LIMIT, MARGIN_LIMIT)
    # A distance that contradicts the label (an arm that is not at hover height) says nothing.
    agrees = np.isnan(distances) | ((distances <= success_distance) == (labels == 1))
    return np.where(agrees, targets, np.nan).astype(np.float32)


def sampling_shares(targets: Floats, boost: float) -> npt.NDArray[np.float64]:
    """Return how often (N,) each frame is drawn, as shares that sum to 1.

    Frames short of ``MARGIN_LIMIT`` are the boundary. Together they weigh ``boost`` times their
    number, half of it inside the success distance and half outside: an area holds far fewer near
    misses at the boundary than its disc holds successes, and false positives come from those.

    Args:
        targets: (N,) of :func:`margin_targets`.
        boost: at least 1; 1 draws all frames alike.
    """
    near = np.abs(np.nan_to_num(targets, nan=MARGIN_LIMIT)) < MARGIN_LIMIT
    weights = np.ones(len(targets))
    inside, outside = near & (targets >= 0), near & (targets < 0)
    if boost > 1 and inside.any() and outside.any():
        for side in (inside, outside):
            weights[side] = boost * near.sum() / (2 * side.sum())
    shares: npt.NDArray[np.float64] = weights / weights.sum()
    return shares
