"""Finding a Ray cluster, or starting one on this machine for as long as a training runs."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from vinoreward.actor_learner.engines.base import EngineError
from vinoreward.actor_learner.engines.local.processes import THREADS
from vinoreward.child_python import searches_current_folder
from vinoreward.errors import needed_for
from vinoreward.interrupts import sigterm_kept

ADDRESS = "RAY_ADDRESS"
NAMESPACE = "vinoreward"
CONNECT_TIMEOUT = 5.0
HEAD_EVERY = 1.0
HEAD_PATIENCE = 30.0
"""Seconds for which nobody answers at the cluster's head until it counts as lost; one that is
started again meanwhile, as Ray can with Redis, costs nothing."""
_STARTED = Path(os.environ.get("RAY_TMPDIR", "/tmp")) / "ray" / "ray_current_cluster"
"""Where ``ray start`` notes the address."""
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # No tip about a future release on every start.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
_JOINED = {
    # Ray ends the whole process without a word when it has not reached the head for 60 s, which
    # may be shorter than one update. HeadWatch lets the learner save what it has.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "3600",
}
_OWN = {
    # Processes are started when they are asked for, and no others that would idle beside them.
    "RAY_prestart_worker_first_driver": "0",
    # They share the processors.
    **dict.fromkeys(THREADS, "1"),
}


def import_ray() -> Any:
    """Return the module ``ray``.

    Raises:
        MissingExtraError: it is not installed.
    """
    with needed_for("the engine 'ray'", "ray"):
        import ray
    return ray


@contextlib.contextmanager
def _environment(settings: Mapping[str, str]) -> Iterator[None]:
    """Set variables that are not set, while Ray reads them and hands them to its processes."""
    mine = {name: value for name, value in settings.items() if name not in os.environ}
    os.environ.update(mine)
    try:
        yield
    finally:
        for name in mine:
            os.environ.pop(name, None)


def _without_current_folder() -> Any:
    """Return a job whose processes do not look for modules in the current folder.

    Ray puts it first, whatever is in it. The workers get the learner's own path.
    """
    from ray.job_config import JobConfig

    class Job(JobConfig):
        def _runtime_env_has_working_dir(self) -> bool:
            return True  # for all that Ray asks this: such a job is not given the current folder

    return Job()


def reason_of(error: BaseException) -> str:
    """Return the sentence of Ray's explanation that says why, without a full stop."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    because = [line for line in lines if "because" in line]
    line = (because or lines or [type(error).__name__])[0]
    return line.split(". ")[0].rstrip(".")


@contextlib.contextmanager
def ray_told(what: str) -> Iterator[None]:
    """Turn Ray's errors within the block into ours.

    Args:
        what: could not be done; the beginning of the sentence.

    Raises:
        EngineError: Ray raised an error of its own, which is the cause.
    """
    ray = import_ray()
    try:
        yield
    except ray.exceptions.RayError as error:
        raise EngineError(
            f"{what}: {reason_of(error)} ({type(error).__name__}). Expected a Ray cluster that "
            "runs; look at it with `ray status`, then go on from the last checkpoint."
        ) from error


def found_address() -> str | None:
    """Return where a cluster runs that is meant to be found; None if there is none.

    Raises:
        EngineError: nothing answers at ``RAY_ADDRESS``.
    """
    told = os.environ.get(ADDRESS, "")
    if told:
        if told != "auto" and told != "local" and not _answers(told):
            raise EngineError(
                f"nothing answers at {ADDRESS}={told}. Expected HOST:PORT of a Ray cluster: run "
                "`ray start --head` there, or unset the variable to train on this machine alone."
            )
        return None if told == "local" else told
    # Not Ray's own "auto", which would also join what another training has started for itself.
    try:
        started = _STARTED.read_text().strip()
    except OSError:
        return None
    return started if _answers(started) else None


def _answers(address: str) -> bool:
    """Whether somebody listens there; Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), CONNECT_TIMEOUT).close()
    except (OSError, ValueError):
        return False
    return True


class HeadWatch:
    """A thread that looks whether somebody answers at the cluster's head.

    Without the head actors and learner work on for a while, until Ray ends their processes.

    Args:
        address: HOST:PORT of the head.
        lost: is told, once, in words.
    """

    def __init__(self, address: str, lost: Callable[[str], None]) -> None:
        self._address, self._lost = address, lost
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="vinoreward head", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        answered = time.monotonic()
        while not self._closing.wait(HEAD_EVERY):
            if _answers(self._address):
                answered = time.monotonic()
            elif time.monotonic() - answered > HEAD_PATIENCE:
                self._lost(
                    f"the head of the Ray cluster at {self._address} is lost: nobody has answered "
                    f"for {HEAD_PATIENCE:g} s. Expected it to run as long as the training; start "
                    "it again with `ray start --head`, then go on from the last checkpoint."
                )
                return

    def close(self) -> None:
        """End the thread."""
        self._closing.set()
        self._thread.join()


class Cluster:
    """A connection to Ray; ends what it has begun and nothing else.

    The cluster is, in this order: the one that this process is connected to already; the one that
    ``RAY_ADDRESS`` names; one that was started on this machine with ``ray start``; a new one on
    this machine, with a processor for each process that will ask for one, idle or not.

    Args:
        processes: that will run on it.

    Raises:
        EngineError: nothing answers at ``RAY_ADDRESS``, or nothing that can be used.
        MissingExtraError: Ray is not installed.
    """

    def __init__(self, processes: int) -> None:
        self.ray = import_ray()
        self._connected = False
        if not self.ray.is_initialized():
            with _environment(_QUIET), sigterm_kept():
                self._connect(processes)
            self._connected = True

    def _connect(self, processes: int) -> None:
        quiet: dict[str, Any] = {
            "namespace": NAMESPACE,
            "log_to_driver": False,
            "logging_level": logging.ERROR,
        }
        if not searches_current_folder():
            quiet["job_config"] = _without_current_folder()
        address = found_address()
        if address is None:
            with _environment(_OWN), ray_told("Ray cannot be started on this machine"):
                self.ray.init(
                    address="local",
                    num_cpus=max(os.cpu_count() or 1, processes),
                    include_dashboard=False,
                    **quiet,
                )
            return
        try:
            with _environment(_JOINED):
                self.ray.init(address=address, **quiet)
        except (ConnectionError, RuntimeError, self.ray.exceptions.RayError) as error:
            raise EngineError(
                f"the Ray cluster at {address} cannot be used: {error} Expected one with the same "
                "versions of Python and Ray, and the same token if it asks for one."
            ) from error

    @property
    def head(self) -> str:
        """HOST:PORT of the cluster's head."""
        return str(self.ray.get_runtime_context().gcs_address)

    @property
    def processors(self) -> int:
        """Processors of all machines together."""
        return int(self.ray.cluster_resources().get("CPU", 0))

    def remote(self, kind: type, **options: Any) -> Any:
        """Return a class that Ray runs in a process of its own."""
        return self.ray.remote(**options)(kind)

    def beside_us(self) -> Any:
        """Return the scheduling strategy for a process on this machine."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = self.ray.get_runtime_context().get_node_id()
        return NodeAffinitySchedulingStrategy(here, soft=False)

    def close(self) -> None:
        """Disconnect, and end the cluster if it was started here."""
        if self._connected:
            self._connected = False
            self.ray.shutdown()
