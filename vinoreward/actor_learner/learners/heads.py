"""Distributions of a head's outputs in torch: the differentiable part of policies.distributions."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from vinoreward.policies.distributions import EDGE, LOG_STD
from vinoreward.policies.spec import PolicySpec

HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


def gaussian(spec: PolicySpec, outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return means and log standard deviations (N, A), before the tanh, of a Gaussian head."""
    return outputs[:, : spec.actions], outputs[:, spec.actions :].clamp(*LOG_STD)


def log_prob(spec: PolicySpec, outputs: Tensor, actions: Tensor) -> Tensor:
    """Return the log probability (N,) of executed actions.

    Args:
        spec: with a ``logits`` or ``tanh_gaussian`` head.
        outputs: (N, K).
        actions: (N,) int64, or (N, A) in [-1, 1].
    """
    if spec.discrete:
        return functional.log_softmax(outputs, -1).gather(-1, actions[:, None])[:, 0]
    mean, log_std = gaussian(spec, outputs)
    bounded = actions.clamp(-EDGE, EDGE)
    before = torch.atanh(bounded)
    normal = -0.5 * ((before - mean) * torch.exp(-log_std)) ** 2 - log_std - HALF_LOG_TWO_PI
    return (normal - torch.log1p(-(bounded**2))).sum(-1)


def entropy(spec: PolicySpec, outputs: Tensor) -> Tensor:
    """Return the entropy (N,) in nats; of the Gaussian before the tanh for continuous actions."""
    if spec.discrete:
        logs = functional.log_softmax(outputs, -1)
        return -(logs.exp() * logs).sum(-1)
    _, log_std = gaussian(spec, outputs)
    return (log_std + HALF_LOG_TWO_PI + 0.5).sum(-1)


def sample(spec: PolicySpec, outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return actions (N, A) in [-1, 1] and their log densities (N,), differentiable.

    Args:
        spec: with a ``tanh_gaussian`` head.
        outputs: (N, 2 A).
        noise: (N, A), normally distributed.
    """
    mean, log_std = gaussian(spec, outputs)
    before = mean + log_std.exp() * noise
    normal = -0.5 * noise**2 - log_std - HALF_LOG_TWO_PI
    # log(1 - tanh(u)^2), without cancellation where tanh is near 1.
    bent = 2.0 * (math.log(2.0) - before - functional.softplus(-2.0 * before))
    return torch.tanh(before), (normal - bent).sum(-1)
