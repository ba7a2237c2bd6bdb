"""Settings that the learner sends to actors and compressor during training, as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from vinoreward.errors import InputError
from vinoreward.policies.action_noise import ActionNoise
from vinoreward.policies.distributions import Exploration


@dataclass(frozen=True)
class ActorSettings:
    """How to act and how to compress.

    Attributes:
        alpha: probability that an actor uses the compressed network for its next block of steps.
        pull_period: steps of one environment between two checks for newer weights.
        enabled: whether there is any compression.
        since: first version with the current ``enabled``; before it, the opposite.
        bits: per weight; None for full precision.
        sparsity: fraction of neurons removed.
        epsilon: see :class:`~vinoreward.policies.distributions.Exploration`.
        sigma: likewise; of the actor that explores most.
        uniform: likewise.
        noise: likewise; the same for all actors.
        save: number of requests to the compressor to save its state.
    """

    alpha: float = 1.0
    pull_period: int = 100
    enabled: bool = True
    bits: int | None = 8
    sparsity: float = 0.0
    epsilon: float = 0.0
    sigma: float = 0.0
    uniform: bool = False
    noise: ActionNoise | None = None
    save: int = 0
    since: int = 0

    def enabled_at(self, version: int) -> bool:
        """Return whether weights of that learner version are compressed."""
        return self.enabled == (version >= self.since)

    def exploration(self, actor: int, actors: int) -> Exploration:
        """Return an actor's exploration.

        Sigmas are spread evenly over the actors, increasing, as in ActorQ.
        """
        return Exploration(
            epsilon=self.epsilon,
            sigma=self.sigma * (actor + 1) / actors,
            uniform=self.uniform,
            noise=self.noise,
        )

    def to_json(self) -> bytes:
        """Return the settings as JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, text: bytes) -> ActorSettings:
        """Return settings from JSON.

        Raises:
            InputError: not what :meth:`to_json` writes.
        """
        try:
            told = json.loads(text)
            if told["noise"] is not None:
                lists = {name: tuple(told["noise"][name]) for name in ("mean", "sigma", "start")}
                noise: dict[str, Any] = {**told["noise"], **lists}
                told["noise"] = ActionNoise(**noise)
            return cls(**told)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"cannot read the settings ({error!r}). Expected JSON of the same version of "
                "vinoreward."
            ) from error
