"""Finds a Ray cluster, or starts one on this machine for the time of a training."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vinoreward.errors import needed_for
from vinoreward.processes import THREADS, environment_variables, searches_current_folder
from vinoreward_actors.actor_learner.engines.base import EngineError

ADDRESS = "RAY_ADDRESS"
CONNECT_TIMEOUT = 5.0
# The second one avoids a tip about a future release on every start.
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
# No idle processes beside those that are asked for; they share the processors.
_OWN = {"RAY_prestart_worker_first_driver": "0", **dict.fromkeys(THREADS, "1")}


def import_ray() -> Any:
    """Return the module ``ray``, or raise MissingExtraError."""
    with needed_for("the engine 'ray'", "ray"):
        import ray
    return ray


@contextlib.contextmanager
def sigterm_kept() -> Iterator[None]:
    """Restore a handler of SIGTERM that the block replaces, as Ray does."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    main = threading.current_thread() is threading.main_thread()
    if main and before not in (signal.SIG_DFL, None):
        signal.signal(signal.SIGTERM, before)


def _unset(settings: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in settings.items() if name not in os.environ}


def _without_current_folder() -> Any:
    """Return a job whose processes get the learner's own path.

    Ray would search the current folder first, whatever is in it.
    """
    from ray.job_config import JobConfig

    class Job(JobConfig):
        def _runtime_env_has_working_dir(self) -> bool:
            return True  # Ray does not give such a job the current folder

    return Job()


def reason_of(error: BaseException) -> str:
    """Return the sentence of Ray's message with the reason, without a full stop."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    because = [line for line in lines if "because" in line]
    line = (because or lines or [type(error).__name__])[0]
    return line.split(". ")[0].rstrip(".")


@contextlib.contextmanager
def ray_errors(what: str) -> Iterator[None]:
    """Turn Ray's errors within the block into an EngineError that begins with ``what``."""
    ray = import_ray()
    try:
        yield
    except ray.exceptions.RayError as error:
        raise EngineError(
            f"{what}: {reason_of(error)} ({type(error).__name__}). Expected a Ray cluster that "
            "runs; look at it with `ray status`, then go on from the last checkpoint."
        ) from error


def found_address() -> str | None:
    """Return the address of the cluster to join, or None to start one.

    EngineError: nothing answers at ``RAY_ADDRESS``.
    """
    # Not Ray's own "auto", nor the note of ``ray start`` in /tmp: who can write it decides whose
    # code runs here.
    named = os.environ.get(ADDRESS, "")
    if named in ("", "local"):
        return None
    if named != "auto" and not _answers(named):
        raise EngineError(
            f"nothing answers at {ADDRESS}={named}. Expected HOST:PORT of a Ray cluster: run `ray "
            "start --head` there, or unset the variable to train on this machine alone."
        )
    return named


@contextlib.contextmanager
def _for_this_user_alone() -> Iterator[None]:
    """Within the block Ray starts on the loopback address, and its token is this user's alone.

    Otherwise its processes listen on all interfaces, and others on this machine read the token:
    who has both runs code as this user.
    """
    from ray._private import ray_constants

    folder = Path.home() / ".ray"
    before = ray_constants.ENABLE_RAY_CLUSTER
    try:
        # Ray's own switch for a machine that joins no others; its address option takes no loopback.
        ray_constants.ENABLE_RAY_CLUSTER = False
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)  # the token is readable by all while Ray writes it
        yield
        with contextlib.suppress(FileNotFoundError):  # RAY_AUTH_TOKEN or RAY_AUTH_MODE is set
            (folder / "auth_token").chmod(0o600)
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def _answers(address: str) -> bool:
    """Return whether a port is open there; Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), CONNECT_TIMEOUT).close()
    except (OSError, ValueError):
        return False
    return True


class Cluster:
    """A connection to Ray; ends what it has started and nothing else.

    The cluster is, in this order: the one that this process is connected to already; the one that
    ``RAY_ADDRESS`` names; a new one on this machine, reachable from it alone, with a processor for
    each of so many processes.
    """

    def __init__(self, processes: int) -> None:
        self.ray = import_ray()
        self._connected = False
        if not self.ray.is_initialized():
            with environment_variables(_unset(_QUIET)), sigterm_kept():
                self._connect(processes)
            self._connected = True

    def _connect(self, processes: int) -> None:
        quiet: dict[str, Any] = {
            "namespace": "vinoreward",
            "log_to_driver": False,
            "logging_level": logging.ERROR,
        }
        if not searches_current_folder():
            quiet["job_config"] = _without_current_folder()
        address = found_address()
        if address is None:
            with (
                environment_variables(_unset(_OWN)),
                _for_this_user_alone(),
                ray_errors("Ray cannot be started on this machine"),
            ):
                self.ray.init(
                    address="local",
                    num_cpus=max(os.cpu_count() or 1, processes),
                    include_dashboard=False,
                    **quiet,
                )
            return
        try:
            self.ray.init(address=address, **quiet)
        except (ConnectionError, RuntimeError, self.ray.exceptions.RayError) as error:
            raise EngineError(
                f"the Ray cluster at {address} cannot be used: {error} Expected one with the same "
                "versions of Python and Ray, and the same token if it asks for one."
            ) from error

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
