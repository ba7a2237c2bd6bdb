"""One service on each node of a Ray cluster: workers ask that of their own node.

A picture never travels between nodes. What travels is the bundle, once to each node, through Ray's
object store.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vinoreward.backends.serving import SHARED, service_name
from vinoreward.backends.serving.places import Lock, runtime_folder
from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError, ServiceError, VinorewardError, needed_for
from vinoreward.files import write_bytes
from vinoreward.rewards.classifier import Classifier

_OF_BUNDLE = ("bundle.json", "bundle.sha256")
"""Files of a bundle beside those that it lists."""
_PREFIX = "cluster-"
_HELD = "held"
"""A lock in the folder of a node's bundles, as long as its holder lives."""


@dataclass(frozen=True)
class _Packed:
    """A bundle's files, as they travel."""

    files: dict[str, bytes]
    sha256: str
    trusted: bool

    @classmethod
    def of(cls, bundle: Bundle) -> _Packed:
        if bundle.path is None:
            raise ConfigError("the bundle was never saved. Expected one in a folder; save it.")
        folder = bundle.path
        names = [name for name in _OF_BUNDLE if (folder / name).is_file()]
        files = {name: (folder / name).read_bytes() for name in (*names, *bundle.spec.files)}
        return cls(files, bundle.sha256, bundle.trusted)

    def unpack(self, parent: Path) -> Bundle:
        """Write the files into a folder that is named by their hash, unless they are there.

        Whatever does not have the hash is refused. A service may read files that are there.
        """
        folder = parent / self.sha256
        with contextlib.suppress(VinorewardError):
            return self._loaded(folder)
        fresh = Path(tempfile.mkdtemp(dir=parent))
        try:
            for name, content in self.files.items():
                if Path(name).name != name:
                    raise ConfigError(
                        f"the bundle lists the file {name!r}. Expected the name of a file beside "
                        "bundle.json; make the bundle again."
                    )
                write_bytes(fresh / name, content)
            self._loaded(fresh)
            shutil.rmtree(folder, ignore_errors=True)
            fresh.rename(folder)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        return self._loaded(folder)

    def _loaded(self, folder: Path) -> Bundle:
        return Bundle.load(folder, sha256=self.sha256, trusted=self.trusted)


class _Holder:
    """Lives on a node: keeps its service alive until the handle is closed, or its program ends."""

    def __init__(
        self, service: str, options: Mapping[str, Any], first: _Packed, latest: _Packed | None
    ) -> None:
        runtime = runtime_folder()
        self._folder = runtime / service_name(service)
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._held = Lock(self._folder / _HELD)
        self._held.take(wait=True)  # its predecessor may not be quite dead
        _sweep(runtime)
        # Workers find the service by the first bundle and its place, also after a swap.
        self._first = first.unpack(self._folder)
        self._classifier = Classifier(self._first, service=service, guarded=False, **options)
        self._classifier.backend.load()
        if latest is not None and self._classifier.backend.version == 0:
            self.swap(latest)

    def bundle(self) -> str:
        return str(self._first.path)

    def swap(self, packed: _Packed) -> bool:
        self._classifier.swap(packed.unpack(self._folder))
        return True

    def status(self) -> dict[str, Any]:
        backend = self._classifier.backend
        return {**backend.info(), "version": backend.version, "holder_pid": os.getpid()}

    def close(self) -> bool:
        self._classifier.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._held.release()
        return True


def _sweep(runtime: Path) -> None:
    """Remove the bundles of holders that were killed: their programs have ended."""
    for folder in runtime.glob(f"{_PREFIX}*"):
        lock = Lock(folder / _HELD)
        with contextlib.suppress(OSError):
            if lock.take():
                shutil.rmtree(folder, ignore_errors=True)
        lock.release()


class _Keeper:
    """Knows the holder of each node and the latest bundle; nodes do not wait for each other."""

    def __init__(self, service: str, options: Mapping[str, Any], packed: _Packed) -> None:
        self._service, self._options = service, options
        self._first = packed
        self._latest: _Packed | None = None
        self._holders: dict[str, Any] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def bundle_on(self, node: str) -> str:
        """Return the place of the bundle on a node; make its holder if there is none that lives."""
        async with self._locks[node]:
            path: str | None = await self._asked(node, "bundle")
            return await self._start(node) if path is None else path

    async def swap(self, packed: _Packed) -> list[str]:
        """Swap on every node that has a service; later ones begin with it. Return the nodes."""
        done: dict[str, bool | BaseException] = {}
        while nodes := [node for node in self._holders if node not in done]:
            asked = (self._swap_on(node, packed) for node in nodes)
            found = await asyncio.gather(*asked, return_exceptions=True)
            done |= dict(zip(nodes, found, strict=True))
        # Nothing is awaited since the last look at the holders: no node can have been missed.
        refused = [one for one in done.values() if isinstance(one, BaseException)]
        if len(refused) < len(done) or not done:
            self._latest = packed
        if refused:
            raise refused[0]
        return [node for node, swapped in done.items() if swapped]

    async def status(self) -> dict[str, dict[str, Any]]:
        nodes = list(self._holders)
        told = await asyncio.gather(*(self._asked(node, "status") for node in nodes))
        return {node: one for node, one in zip(nodes, told, strict=True) if one is not None}

    async def close(self) -> None:
        await asyncio.gather(*(self._asked(node, "close") for node in list(self._holders)))
        self._holders.clear()

    async def _swap_on(self, node: str, packed: _Packed) -> bool:
        async with self._locks[node]:
            return await self._asked(node, "swap", packed) is not None

    async def _asked(self, node: str, method: str, *arguments: Any) -> Any:
        """Return a holder's answer; None, and forget the holder, if it or its node has died."""
        from ray.exceptions import RayActorError

        holder = self._holders.get(node)
        if holder is None:
            return None
        try:
            return await getattr(holder, method).remote(*arguments)
        except RayActorError:
            if self._holders.get(node) is holder:
                del self._holders[node]
            return None

    async def _start(self, node: str) -> str:
        import ray

        latest = self._latest
        made: Any = ray.remote(_Holder).options(num_cpus=0, scheduling_strategy=_on(node))
        holder = made.remote(self._service, self._options, self._first, latest)
        path: str = await holder.bundle.remote()
        while self._latest is not latest:  # all others were swapped meanwhile
            latest = self._latest
            await holder.swap.remote(latest)
        self._holders[node] = holder
        return path


class NodeServices:
    """A classifier's service on each node of a Ray cluster, started where a worker first asks.

    ::

        services = NodeServices("my-bundle")


        @ray.remote
        def rollout(services):
            env = gym.make("my_package:MyEnv-v0", render_mode="rgb_array")
            env = LearnedReward(env, image_source="render", **services.here())
            ...

    The handle may be given to any task or actor of the cluster. All that it keeps ends with
    :meth:`close`, or with the program that made it.

    A service that dies is started again by its node's next caller. A node that is lost takes its
    own service along and no other; one that joins later gets a service when a worker there asks.

    Args:
        bundle: a saved classifier; it need not be on the other machines.
        backend: registered name of the backend that the services run.
        precision: as :class:`~vinoreward.Classifier` takes it.
        threads: threads of an inference, on each node.

    Raises:
        ConfigError: Ray is not initialised.
        MissingExtraError: Ray is not installed.
        ModelNotFoundError: no such bundle.
    """

    def __init__(
        self,
        bundle: Bundle | str | Path,
        *,
        backend: str = "openvino",
        precision: str = "auto",
        threads: int = 1,
    ) -> None:
        with needed_for("vinoreward.serving.ray", "ray"):
            import ray
        if not ray.is_initialized():
            raise ConfigError(
                "services were asked for on a cluster, and Ray is not initialised. Expected a "
                "cluster; call ray.init() first."
            )
        loaded = bundle if isinstance(bundle, Bundle) else Bundle.load(bundle)
        loaded.resolve_precision(backend, precision)  # an error is that of this line
        self.service = f"{SHARED}:{_PREFIX}{secrets.token_hex(6)}"
        """``"shared:NAME"``, which workers' classifiers are made with."""
        self._options = {"backend": backend, "precision": precision, "threads": threads}
        # On this node: then no other node that is lost takes the others' services along.
        here = ray.get_runtime_context().get_node_id()
        keeper: Any = ray.remote(_Keeper).options(num_cpus=0, scheduling_strategy=_on(here))
        self._keeper: Any = keeper.remote(self.service, self._options, _Packed.of(loaded))
        with _told("the services cannot be kept"):
            ray.get(self._keeper.status.remote())

    def here(self) -> dict[str, Any]:
        """Return arguments for ``LearnedReward`` or ``Classifier`` on the node that this runs on.

        They name the node's copy of the bundle and its service, which is started if needed.

        Raises:
            ServiceError: the handle was closed, or the node cannot run the service.
        """
        import ray

        node = ray.get_runtime_context().get_node_id()
        with _told(f"the node {node[:8]} has no service"):
            bundle = ray.get(self._keeper.bundle_on.remote(node))
        return {"bundle": bundle, "service": self.service, **self._options}

    def nodes(self) -> dict[str, dict[str, Any]]:
        """Return of each node that has a service what that tells about itself, and its version."""
        import ray

        with _told("the services cannot be asked"):
            found: dict[str, dict[str, Any]] = ray.get(self._keeper.status.remote())
        return found

    def swap(self, bundle: Bundle | str | Path) -> list[str]:
        """Let all workers be judged by another bundle from now on; return the nodes swapped.

        On each node from one batch to the next, see :meth:`~vinoreward.Classifier.swap`; nodes that
        get a service later begin with it.

        Raises:
            ServiceError: a node refused it, with the reason; the others are swapped.
        """
        import ray

        loaded = bundle if isinstance(bundle, Bundle) else Bundle.load(bundle)
        with _told(f"the bundle {loaded.spec.name!r} was not swapped on all nodes"):
            nodes: list[str] = ray.get(self._keeper.swap.remote(_Packed.of(loaded)))
        return nodes

    def close(self) -> None:
        """End what keeps the services, and remove the nodes' copies; may be called again.

        Call it after the workers have ended: a service that dies later cannot be started again.
        """
        import ray
        from ray.exceptions import RayActorError

        with contextlib.suppress(RayActorError):
            ray.get(self._keeper.close.remote())
            ray.kill(self._keeper)

    def __enter__(self) -> NodeServices:
        """Return the handle."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close it."""
        self.close()


def _on(node: str) -> Any:
    """Return Ray's strategy that places an actor on a node and on no other."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node_id=node, soft=False)


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    """Turn Ray's errors within the block into a ServiceError that begins with ``what``."""
    from ray.exceptions import RayError, RayTaskError

    try:
        yield
    except RayTaskError as error:
        cause = error.cause if error.cause is not None else error
        raise ServiceError(
            f"{what}: {cause}. Expected a node on which the bundle runs as on this machine."
        ) from error
    except RayError as error:
        raise ServiceError(
            f"{what}: {type(error).__name__} of Ray. Expected a handle that is open, and a cluster "
            "that runs; look at it with `ray status`."
        ) from error
