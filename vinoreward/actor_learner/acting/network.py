"""One network of an actor: its weights, what runs them, and which of them could not be run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from vinoreward.actor_learner.transport.link import NONE
from vinoreward.actor_learner.transport.trajectory import COMPRESSED
from vinoreward.policies.backends.base import PolicyBackend
from vinoreward.policies.backends.registry import make_backend
from vinoreward.policies.distributions import Acted
from vinoreward.policies.policy import Floats, Policy


@dataclass(frozen=True)
class Refused:
    """Compressed weights that an actor could not act with; it reports them as ``"refused"``.

    Attributes:
        version: learner's, that they were made of.
        why: in words.
    """

    version: int
    why: str

    @classmethod
    def of(cls, version: int, error: Exception) -> Refused:
        """Say what a backend found, without what it advises: that is for the learner's own."""
        found = str(error).split(" Expected ")[0].split("\n")[0].rstrip(". ")
        return cls(version, found or type(error).__name__)


class ActorNetwork:
    """One network's weights and what runs them.

    Args:
        kind: ``FULL_PRECISION`` or ``COMPRESSED``.
        backend: of full-precision weights; compressed ones say theirs.
        environments: B, observations of one call.
        steps: of a trajectory; how often weights that have never come are looked for.
    """

    def __init__(self, kind: int, backend: str, environments: int, steps: int) -> None:
        self.kind = kind
        self._usual = backend
        self._environments = environments
        self._steps = steps
        self._backends: dict[str, PolicyBackend] = {}
        self.policy: Policy | None = None
        self._refused = NONE
        self._looked = NONE

    @property
    def version(self) -> int:
        """Of the weights in use, -1 for none."""
        return NONE if self.policy is None else self.policy.version

    @property
    def have(self) -> int:
        """Version than which newer weights are looked for: in use, or refused."""
        return max(self.version, self._refused)

    @property
    def backend(self) -> PolicyBackend:
        """What runs the weights in use."""
        return self._backends[self._backend()]

    def _backend(self) -> str:
        if self.kind == COMPRESSED and self.policy is not None:
            return self.policy.backend
        return self._usual

    def prepare(self) -> None:
        """Make what will run the weights: importing a backend takes seconds."""
        name = self._backend()
        if name not in self._backends:
            self._backends[name] = make_backend(name, self._environments)

    def use(self, policy: Policy) -> None:
        """Act with other weights from now on.

        Raises:
            VinorewardError: they cannot be loaded; :meth:`refuse` them, nothing else can act here.
        """
        self.policy = policy
        self.prepare()
        self.backend.refresh(policy)

    def refuse(self, version: int) -> None:
        """Have no weights until there are some of a later version."""
        # Not those before: where they lay may be written to by now.
        self.policy = None
        self._refused = max(self._refused, version)

    def due(self, step: int, pull_period: int) -> bool:
        """Whether it is time to look for newer weights; counts as a look if it is."""
        # Weights that have never come are looked for more often than those that are there.
        period = pull_period if self.policy else min(pull_period, self._steps)
        if self._looked != NONE and step - self._looked < period:
            return False
        self._looked = step
        return True

    def close(self) -> None:
        """Let all backends go."""
        for backend in self._backends.values():
            backend.close()


class Acting(NamedTuple):
    """What was chosen for a step.

    Attributes:
        network: that chose.
        outputs: (B, K) its head's.
        acted: actions, and their log probabilities under that network.
    """

    network: ActorNetwork
    outputs: Floats
    acted: Acted
