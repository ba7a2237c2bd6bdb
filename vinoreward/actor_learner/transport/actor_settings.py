"""What the learner tells actors and compressor while training runs: small, versioned, JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from vinoreward.errors import InputError
from vinoreward.policies.action_noise import ActionNoise
from vinoreward.policies.distributions import Exploration


@dataclass(frozen=True)
class ActorSettings:
    """How to act and how to compress from now on.

    Attributes:
        alpha: probability that an actor uses the compressed network for its next block of steps.
        pull_period: steps of one environment between two looks for newer weights.
        enabled: whether anything is compressed at all.
        since: learner's version from which ``enabled`` is so; for those before it was the opposite.
        bits: of a weight; None for full precision.
        sparsity: share of neurons removed.
        epsilon: see :class:`~vinoreward.policies.distributions.Exploration`.
        sigma: likewise; that of the actor that explores most.
        uniform: likewise.
        noise: likewise; the same for all actors.
        save: counts requests to the compressor to write its state down.
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
        """Whether weights of that version of the learner's are, or were, compressed."""
        return self.enabled == (version >= self.since)

    def exploration(self, actor: int, actors: int) -> Exploration:
        """Return an actor's exploration.

        Sigmas are spread evenly over the actors, the last one's the largest, as ActorQ has it.
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
        """Read settings.

        Raises:
            InputError: not what :meth:`to_json` writes.
        """
        try:
            told = json.loads(text)
            if told["noise"] is not None:
                lists = {name: tuple(told["noise"][name]) for name in ("mean", "sigma", "start")}
                told["noise"] = ActionNoise(**{**told["noise"], **lists})
            return cls(**told)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"settings cannot be read ({error!r}). Expected the JSON of the same version of "
                "vinoreward."
            ) from error
