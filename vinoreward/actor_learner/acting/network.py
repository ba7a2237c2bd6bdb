"""One network of an actor: its weights, its backend, and versions that it refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from vinoreward.actor_learner.transport.link import NONE
from vinoreward.actor_learner.transport.trajectory import COMPRESSED
from vinoreward.policies.backends.base import PolicyBackend, make_backend
from vinoreward.policies.distributions import Acted
from vinoreward.policies.policy import Floats, Policy


@dataclass(frozen=True)
class Refused:
    """Compressed weights that an actor could not use; reported as ``"refused"``.

    Attributes:
        version: of the learner's policy from which they were made.
        why: as a clause.
    """

    version: int
    why: str

    @classmethod
    def of(cls, version: int, error: Exception) -> Refused:
        """Take the finding from a backend's error; its advice is for the learner's own weights."""
        found = str(error).split(" Expected ")[0].split("\n")[0].rstrip(". ")
        return cls(version, found or type(error).__name__)


class ActorNetwork:
    """One network's weights and backend.

    Args:
        kind: ``FULL_PRECISION`` or ``COMPRESSED``.
        backend: for full-precision weights; compressed ones name their own.
        environments: B, observations per call.
        steps: of a trajectory; the interval of checks until the first weights arrive.
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
        """Version of the current weights; -1 for none."""
        return NONE if self.policy is None else self.policy.version

    @property
    def have(self) -> int:
        """Newest version in use or refused; only newer ones are pulled."""
        return max(self.version, self._refused)

    @property
    def backend(self) -> PolicyBackend:
        """Backend of the current weights."""
        return self._backends[self._backend()]

    def _backend(self) -> str:
        if self.kind == COMPRESSED and self.policy is not None:
            return self.policy.backend
        return self._usual

    def prepare(self) -> None:
        """Create the backend; importing its library takes seconds."""
        name = self._backend()
        if name not in self._backends:
            self._backends[name] = make_backend(name, self._environments)

    def use(self, policy: Policy) -> None:
        """Replace the weights.

        Raises:
            VinorewardError: they cannot be loaded; call :meth:`refuse`, which leaves no weights.
        """
        self.policy = policy
        self.prepare()
        self.backend.refresh(policy)

    def refuse(self, version: int) -> None:
        """Drop the weights until a later version arrives."""
        # The previous weights cannot return: their memory may be reused by now.
        self.policy = None
        self._refused = max(self._refused, version)

    def due(self, step: int, pull_period: int) -> bool:
        """Return whether to check for newer weights now, and note the check."""
        # Check more often until the first weights arrive.
        period = pull_period if self.policy else min(pull_period, self._steps)
        if self._looked != NONE and step - self._looked < period:
            return False
        self._looked = step
        return True

    def close(self) -> None:
        """Close all backends."""
        for backend in self._backends.values():
            backend.close()


class Acting(NamedTuple):
    """The choice for one step.

    Attributes:
        network: that chose.
        outputs: (B, K) of its head.
        acted: actions, and their log probabilities under that network.
    """

    network: ActorNetwork
    outputs: Floats
    acted: Acted
