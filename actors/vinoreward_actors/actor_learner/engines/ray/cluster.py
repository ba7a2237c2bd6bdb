"""Finds a Ray cluster, or starts one on this machine for the time of a training."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from vinoreward.errors import needed_for
from vinoreward.processes import THREADS, environment_variables, searches_current_folder
from vinoreward_actors.actor_learner.engines.base import EngineError

ADDRESS = "RAY_ADDRESS"
NAMESPACE = "vinoreward"
CONNECT_TIMEOUT = 5.0
HEAD_EVERY = 1.0
HEAD_PATIENCE = 30.0
"""Seconds without an answer after which the cluster's head counts as lost; it may restart earlier,
as Ray can with Redis."""
_STARTED = Path(os.environ.get("RAY_TMPDIR", "/tmp")) / "ray" / "ray_current_cluster"
"""Where ``ray start`` notes the address."""
# The second one avoids a tip about a future release on every start.
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
# By default Ray ends this process without a word after 60 s without the head, which may be shorter
# than one update. HeadWatch lets the learner save its state.
_JOINED = {"RAY_gcs_rpc_server_reconnect_timeout_s": "3600"}
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
    """Return the address of a cluster to join, or None.

    EngineError: nothing answers at ``RAY_ADDRESS``; or it is unset, and other users can write
    where ``ray start`` noted a cluster of this user's.
    """
    named = os.environ.get(ADDRESS, "")
    if named:
        if named not in ("auto", "local") and not _answers(named):
            raise EngineError(
                f"nothing answers at {ADDRESS}={named}. Expected HOST:PORT of a Ray cluster: run "
                "`ray start --head` there, or unset the variable to train on this machine alone."
            )
        return None if named == "local" else named
    # Not Ray's own "auto", which would also join what another training has started for itself.
    # Who can write the note decides whose code runs here.
    try:
        if _STARTED.stat().st_uid != os.getuid():
            return None
        started = _STARTED.read_text().strip()
    except OSError:
        return None
    if not _answers(started):
        return None
    if not _in_private_folder(_STARTED):
        raise EngineError(
            f"{_STARTED} names the Ray cluster at {started}, in a folder where other users can "
            f"write. Expected you to say which cluster to trust: set {ADDRESS}={started} to join "
            f"this one, or {ADDRESS}=local to train on this machine alone."
        )
    return started


def _in_private_folder(file: Path) -> bool:
    """Return whether only this user can reach a file: one of its folders is closed to others."""
    folders = [folder.stat() for folder in file.resolve().parents]
    return any(each.st_uid == os.getuid() and not each.st_mode & 0o077 for each in folders)


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


class HeadWatch:
    """A thread that looks whether the cluster's head answers; calls ``lost`` once if not.

    Not the supervisor's thread: each look may wait for seconds, and so may Ray's own calls. Without
    the head, actors and learner continue for a while, until Ray ends their processes.
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
    """A connection to Ray; ends what it has started and nothing else.

    The cluster is, in this order: the one that this process is connected to already; the one that
    ``RAY_ADDRESS`` names; one that this user started on this machine with ``ray start``, noted in
    a private folder; a new one on this machine, reachable from it alone, with a processor for each
    of so many processes.
    """

    def __init__(self, processes: int) -> None:
        self.ray = import_ray()
        self._connected = False
        if not self.ray.is_initialized():
            with environment_variables(_unset(_QUIET)), sigterm_kept():
                self._connect(processes)
            self._connected = True
        self.head = str(self.ray.get_runtime_context().gcs_address)
        """HOST:PORT of the cluster's head."""
        self.lost = False
        """Whether the head is lost: to end a process unknown to it, Ray would wait for it."""

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
            with environment_variables(_unset(_JOINED)):
                self.ray.init(address=address, **quiet)
        except (ConnectionError, RuntimeError, self.ray.exceptions.RayError) as error:
            raise EngineError(
                f"the Ray cluster at {address} cannot be used: {error} Expected one with the same "
                "versions of Python and Ray, and the same token if it asks for one."
            ) from error

    @property
    def processors(self) -> int:
        """Processors of all machines together."""
        return int(self.ray.cluster_resources().get("CPU", 0))

    def remote(self, kind: type, **options: Any) -> Any:
        """Return a class whose instances Ray runs in processes of their own."""
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
