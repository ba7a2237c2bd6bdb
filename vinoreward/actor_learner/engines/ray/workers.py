"""What Ray runs in a process of its own: the loop of an actor or of the compressor, in a thread.

The process's event loop answers the learner meanwhile. torch is not imported by an actor's.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from vinoreward.actor_learner.acting.actor import Actor, ActorConfig
from vinoreward.actor_learner.compressor import Compressor, CompressorConfig
from vinoreward.actor_learner.engines.error_report import error_report
from vinoreward.actor_learner.engines.ray.message_queue import Message, MessageQueue
from vinoreward.actor_learner.engines.ray.state import Identity
from vinoreward.actor_learner.transport.trajectory import TrajectorySpec
from vinoreward.policies.backends.registry import BackendOutputs


class _Worker:
    """A loop in a thread, and a message queue.

    Args:
        paths: where the learner's process finds modules. Those that this one lacks are looked at
            last, so that an environment beside the user's script is found on a shared file system.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        sys.path.extend(path for path in paths if path not in sys.path)
        self._messages = MessageQueue()

    def _start(self, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001  (nothing is swallowed: told)
                self._messages.end(error_report(error))
            else:
                self._messages.end("")

        threading.Thread(target=run, name="vinoreward loop", daemon=True).start()

    async def placed(self) -> None:
        """Return as soon as there is a process to do so."""

    async def next(self) -> Message:
        """Return what the loop has next for the learner."""
        return await self._messages.next()

    async def ended(self) -> str:
        """Return the last words of the loop when it ends, empty if it ended by itself."""
        return await self._messages.ended()


class ActorWorker(_Worker):
    """One actor.

    Args:
        paths: see above.
        identity: of this process.
        config: what it does.
        trajectory: sizes of what it sends.
    """

    def __init__(
        self,
        paths: Sequence[str],
        identity: Identity,
        config: ActorConfig,
        trajectory: TrajectorySpec,
    ) -> None:
        super().__init__(paths)

        def work() -> None:
            from vinoreward.actor_learner.engines.ray.links import RayActorLink

            link = RayActorLink(identity, self._messages, trajectory)
            me = identity
            Actor(config, link, me.process, me.generation, me.rollouts).run()

        self._start(work)


class CompressorWorker(_Worker):
    """The compressor.

    Args:
        paths: see above.
        identity: of this process.
        config: a reference to a CompressorConfig, in a list.
        batch: of the actors' backends.
    """

    def __init__(
        self, paths: Sequence[str], identity: Identity, config: Sequence[Any], batch: int
    ) -> None:
        super().__init__(paths)

        def work() -> None:
            import ray

            from vinoreward.actor_learner.engines.ray.links import RayCompressorLink

            link = RayCompressorLink(identity, self._messages)
            told: CompressorConfig = ray.get(config[0])
            with BackendOutputs(batch) as outputs:
                Compressor(told, link, batch, outputs).run()

        self._start(work)
