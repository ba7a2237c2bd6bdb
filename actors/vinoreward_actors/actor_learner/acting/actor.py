"""An actor's loop: pull weights, act, step, write. Never imports torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np

from vinoreward.closing import Closing
from vinoreward.errors import InputError, OutputError, VinorewardError
from vinoreward_actors.actor_learner.acting.config import EngineConfig
from vinoreward_actors.actor_learner.acting.environments import Environments, Episode
from vinoreward_actors.actor_learner.acting.profile import COUNTERS as PROFILE_COUNTERS
from vinoreward_actors.actor_learner.acting.profile import Stopwatch
from vinoreward_actors.actor_learner.transport.link import NONE, Link
from vinoreward_actors.actor_learner.transport.trajectory import (
    COMPRESSED,
    FULL_PRECISION,
    Trajectory,
)
from vinoreward_actors.policies.backends.base import PolicyBackend, make_backend
from vinoreward_actors.policies.distributions import Acted, act
from vinoreward_actors.policies.policy import Floats, Policy

COUNTERS = ("steps", "trajectories", "pulls", "compressed_steps", *PROFILE_COUNTERS)


@dataclass(frozen=True)
class Refused:
    """Compressed weights that an actor could not use; reported as ``"refused"``."""

    version: int  # of the learner's policy from which they were made
    why: str  # as a clause

    @classmethod
    def of(cls, version: int, error: Exception) -> Refused:
        """Take the reason from a backend's error, without its advice for the learner's weights."""
        reason = str(error).split(" Expected ")[0].split("\n")[0].rstrip(". ")
        return cls(version, reason or type(error).__name__)


class ActorNetwork:
    """An actor's ``FULL_PRECISION`` or ``COMPRESSED`` weights, and their backend."""

    def __init__(self, kind: int, config: EngineConfig) -> None:
        self.kind = kind
        self._config = config
        self._backends: dict[str, PolicyBackend] = {}
        self.policy: Policy | None = None
        self._refused = NONE
        self.checked = NONE  # step of the last check for newer weights

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
        """Backend of the current weights; made at its first use, which takes seconds."""
        name = self._config.run.backend
        if self.kind == COMPRESSED and self.policy is not None:
            name = self.policy.backend
        if name not in self._backends:
            self._backends[name] = make_backend(name, self._config.run.environments)
        return self._backends[name]

    def use(self, policy: Policy) -> None:
        """Replace the weights; on an error call :meth:`refuse`."""
        self.policy = policy
        self.backend.refresh(policy)

    def refuse(self, version: int) -> None:
        """Drop the weights until a later version arrives."""
        # The previous weights cannot return: their memory may be reused by now.
        self.policy = None
        self._refused = max(self._refused, version)

    def close(self) -> None:
        """Close all backends."""
        for backend in self._backends.values():
            backend.close()


class Acting(NamedTuple):
    """The choice for one step: the network, its head outputs (B, K), and the actions."""

    network: ActorNetwork
    outputs: Floats
    acted: Acted


class Actor(Closing):
    """Fills trajectories when it is called.

    Compressed weights that cannot be loaded, or that give NaN or infinity as outputs, do not end
    the actor. It reports them as :class:`Refused` and does not load that version again; the
    learner's own weights act from that step to the end of the block.

    Args:
        config: its settings.
        link: to the learner.
        number: of this actor, from 0.
        generation: number of replacements before it.
    """

    def __init__(self, config: EngineConfig, link: Link, number: int, generation: int = 0) -> None:
        self._config = config
        self._link = link
        self._number = number
        entropy = [config.run.seed, number, generation, config.first_version]
        self._random = np.random.default_rng(entropy)
        first = int(np.random.default_rng([*entropy, 1]).integers(2**31 - config.run.environments))
        self._envs = Environments(
            config.environment, config.policy, config.run.environments, first, link.resetting
        )
        self._networks = [ActorNetwork(kind, config) for kind in (FULL_PRECISION, COMPRESSED)]
        # Make its backend before the first heartbeat: later a missing one counts as hanging.
        _ = self._networks[FULL_PRECISION].backend
        self._watch = Stopwatch()
        self._steps = self._pulls = 0
        self._block = 0  # steps until the next choice of a network
        self._kind = FULL_PRECISION
        self._episodes: list[Episode] = []

    def close(self) -> None:
        """Close environments and backends."""
        self._envs.close()
        for network in self._networks:
            network.close()

    def rollout(self) -> bool:
        """Fill one trajectory; return whether there is one: False if training is over."""
        link, watch = self._link, self._watch
        trajectory = link.begin()
        watch.mark("wait")
        for step in range(self._config.run.steps):
            if link.stopped:
                return False
            self._step(trajectory, step, self._act(self._newest()))
        counts = {
            "steps": trajectory.network.size,
            "compressed_steps": int(np.count_nonzero(trajectory.network == COMPRESSED)),
            "trajectories": 1,
            "pulls": self._pulls,
            **watch.take(),
        }
        link.commit(counts, [asdict(episode) for episode in self._episodes])
        self._pulls, self._episodes = 0, []
        watch.mark("write")
        return True

    def _act(self, network: ActorNetwork) -> Acting:
        """Choose actions with a network, or the learner's own if it fails."""
        try:
            return self._choose(network)
        except OutputError as error:
            if network.kind == FULL_PRECISION:
                raise
            self._refuse(network, network.version, error)
        return self._choose(self._full())

    def _choose(self, network: ActorNetwork) -> Acting:
        outputs = network.backend.infer(self._envs.observations)
        exploration = self._link.settings.exploration(self._number, self._config.run.actors)
        acted = act(self._config.policy, outputs, self._random, exploration)
        self._watch.mark("infer")
        return Acting(network, outputs, acted)

    def _refuse(self, network: ActorNetwork, version: int, error: VinorewardError) -> None:
        """Stop using these compressed weights, and report them."""
        network.refuse(version)
        self._kind = FULL_PRECISION
        self._link.report("refused", asdict(Refused.of(version, error)))

    def _step(self, trajectory: Trajectory, step: int, acting: Acting) -> None:
        watch, network, acted = self._watch, acting.network, acting.acted
        seen = self._envs.observations
        stepped = self._envs.step(acted.actions)
        watch.mark("env")
        trajectory.observations[step] = seen
        trajectory.actions[step] = acted.actions
        trajectory.rewards[step] = stepped.rewards
        trajectory.terminated[step] = stepped.terminated
        trajectory.truncated[step] = stepped.truncated
        trajectory.next_observations[step] = stepped.next_observations
        trajectory.log_mu[step] = acted.log_mu
        trajectory.behaviour[step] = acting.outputs
        trajectory.versions[step] = network.version
        trajectory.network[step] = network.kind
        self._episodes += stepped.episodes
        watch.mark("write")
        self._steps += 1

    def _newest(self) -> ActorNetwork:
        """Return the network for the next step, pulling weights if due."""
        if self._block == 0:
            # One network per block: alternating at each step would evict the small one from cache.
            self._kind = self._draw()
            self._block = self._config.run.steps
        self._block -= 1
        if self._kind == COMPRESSED:
            network = self._networks[COMPRESSED]
            self._update(network)
            if not self._stale(network):
                return network
        return self._full()

    def _full(self) -> ActorNetwork:
        """Return the learner's own network, pulling weights if due."""
        network = self._networks[FULL_PRECISION]
        self._update(network)
        if network.policy is None:
            raise InputError("there are no weights of the learner. Expected those it published.")
        return network

    def _draw(self) -> int:
        """Choose a network at random."""
        draw, settings = self._random.random(), self._link.settings
        wanted = self._config.compressed and settings.enabled and draw < settings.alpha
        return COMPRESSED if wanted else FULL_PRECISION

    def _update(self, network: ActorNetwork) -> None:
        """Pull newer weights if due."""
        period = self._link.settings.pull_period
        if self._stale(network):
            # These are not used, so check for new ones every trajectory.
            period = min(period, self._config.run.steps)
        due = network.checked == NONE or self._steps - network.checked >= period
        if due:
            network.checked = self._steps
        # The learner would drop steps made with older weights.
        too_old = self._config.fresh and self._behind(network) > self._config.run.max_lag
        if due or (network.kind == FULL_PRECISION and too_old):
            self._pull(network)

    def _stale(self, network: ActorNetwork) -> bool:
        return network.policy is None or self._behind(network) > self._config.max_staleness

    def _behind(self, network: ActorNetwork) -> int:
        return self._link.learner_version - network.have

    def _pull(self, network: ActorNetwork) -> None:
        """Pull newer weights, if there are any, and use them."""
        watch = self._watch
        weights = self._link.pull(network.kind, network.have)
        watch.mark("pull")
        if weights is None:
            return
        try:
            policy = weights.policy()
            watch.mark("decode")
            network.use(policy)
        except VinorewardError as error:
            if network.kind == FULL_PRECISION:
                raise
            self._refuse(network, weights.version, error)
            return
        watch.mark("load")
        self._pulls += 1
