"""The backend that asks a service; it starts one where there is none."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from vinoreward.backends.base import Backend, load_backend
from vinoreward.backends.network import NetworkSpec
from vinoreward.backends.serving import SHARED, service_name, wire
from vinoreward.backends.serving.places import Place, runtime_folder
from vinoreward.backends.serving.settings import Network, ServiceSettings
from vinoreward.backends.serving.start import START_TIMEOUT, start
from vinoreward.backends.serving.wire import Frame, Gone, Layout, Slot
from vinoreward.errors import ServiceError, VinorewardError

ANSWER_TIMEOUT = 300
"""Seconds without an answer after which the service counts as stopped."""
DEATHS = 10
"""Deaths of services within one call, after which it fails."""
_PAUSE = 0.005
_Answer = TypeVar("_Answer")


class Link:
    """A connection to a service, and the slot that it knows."""

    def __init__(self, connection: socket.socket, layout: Layout) -> None:
        self._connection = connection
        self._layout = layout
        self._slot: Slot | None = None
        self._sequence = 0
        self._buffer = bytearray(wire.MAX_PACKET)
        self.busy = False
        """Whether a request was left without its answer: then this link is of no more use."""
        self.version = 0
        """Of the networks that gave the last answer."""
        _links.add(self)
        weakref.finalize(self, connection.close)  # of a backend that nobody closed

    @property
    def pid(self) -> int:
        """Of the service."""
        return wire.peer(self._connection)[0]

    def hello(self, key: bytes, network: int, alone: bool) -> None:
        """Introduce the caller; wait until the service has loaded the network."""
        self._exchange(wire.HELLO, wire.WELCOME, (int(alone), network, 0), rest=key)

    def infer(self, batch: NDArray[Any]) -> NDArray[np.float32]:
        """Return the answer, a view that the next request overwrites."""
        count = len(batch)
        slot = self._slot
        if slot is None or slot.rows < count:
            slot = self._new_slot(count)
        slot.batch[:count] = batch
        self._exchange(wire.REQUEST, wire.ANSWER, (0, count, slot.rows), slot)
        return slot.answer[:count]

    def ask(self, kind: int, rest: bytes = b"") -> bytes:
        """Return what the service tells about itself, or does."""
        return self._exchange(kind, wire.DESCRIBED, rest=rest).rest

    def _new_slot(self, count: int) -> Slot:
        # Forgotten before it is closed: Ctrl-C in between must leave no half slot to the next call.
        old, self._slot = self._slot, None
        if old is not None:
            old.close()
        rows = 1
        while rows < count:
            rows *= 2
        self._slot = Slot.create(self._layout, min(rows, self._layout.most))
        return self._slot

    def _exchange(
        self,
        kind: int,
        expected: int,
        numbers: tuple[int, int, int] = (0, 0, 0),
        slot: Slot | None = None,
        rest: bytes = b"",
    ) -> Frame:
        """Send a frame and return the answer; raise the error that comes instead."""
        self._sequence += 1
        packet = Frame(kind, self._sequence, *numbers, rest).to_bytes()
        self.busy = True
        try:
            if slot is not None and slot.descriptor is not None:
                socket.send_fds(self._connection, [packet], [slot.descriptor])
                slot.sent()
            else:
                self._connection.send(packet)
            size = self._connection.recv_into(self._buffer)
            answer = Frame.from_bytes(self._buffer, size)
        except BlockingIOError as error:
            raise ServiceError(
                f"the service (process {self.pid}) has not answered for {ANSWER_TIMEOUT} s. "
                "Expected an answer; if it is stopped or hangs, end it with kill -9, and the next "
                "call starts another."
            ) from error
        except OSError as error:
            raise Gone from error
        if answer.sequence != self._sequence or answer.kind not in (expected, wire.ERROR):
            raise Gone
        self.busy = False
        self.version = answer.version
        if answer.kind == wire.ERROR:
            raise wire.raised(answer.rest)
        return answer

    def close(self) -> None:
        """Close the connection in this process; a parent's copy of it goes on."""
        self._connection.close()
        if self._slot is not None:
            self._slot.close()


# Global because Python's fork hooks are.
_links: weakref.WeakSet[Link] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    # Else the service would take the parent for alive as long as a child lives.
    for link in list(_links):
        link.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


class SharedBackend(Backend):
    """Answers through a service: one process that runs the network for all workers of a machine.

    The first call that needs it starts the service; others with the same settings find it. If it
    dies, the next call starts another and asks again. Inputs, outputs and errors are those of the
    backend that the service runs.

    Args:
        spec: the network.
        device: as for the backend that the service runs.
        precision: likewise.
        threads: threads of the service's inferences, for all callers together.
        cache_dir: as for that backend.
        backend: registered name of that backend.
        service: ``"shared"``, or ``"shared:NAME"`` for callers that follow :meth:`swap`.

    Raises:
        ConfigError: an argument that cannot work.
    """

    name: ClassVar[str] = SHARED
    resources: ClassVar[tuple[str, ...]] = ("_link", "_place")

    def __init__(
        self,
        spec: NetworkSpec,
        *,
        device: str = "CPU",
        precision: str = "fp32",
        threads: int = 1,
        cache_dir: Path | None = None,
        backend: str = "openvino",
        service: str = SHARED,
    ) -> None:
        inner = load_backend(
            backend, spec, device=device, precision=precision, threads=threads, cache_dir=cache_dir
        )
        super().__init__(
            spec,
            device=inner.device,
            precision=inner.precision,
            threads=inner.threads,
            cache_dir=inner.cache_dir,
        )
        service_name(service)
        self.service = service
        """``"shared"`` or ``"shared:NAME"``."""
        self.backend = backend
        """Name of the backend that the service runs."""
        self.name = inner.name  # type: ignore[misc]  # in messages; they are the same
        self._all: tuple[Backend, ...] = (inner,)
        self._number = 0
        self._settings: ServiceSettings | None = None
        self._layout = Layout(self.input, self.output)

    @property
    def pid(self) -> int:
        """Process id of the service. Connects to it."""
        with self._lock:
            self.load()
            return self._link.pid

    def swap(self, specs: Sequence[NetworkSpec], note: Mapping[str, Any]) -> int:
        """Let the service answer with other networks from the next batch on; return their version.

        All callers of the service are answered by them, each request wholly by one version.

        Args:
            specs: one for each network of the service, with its inputs and outputs.
            note: plain JSON for the callers; they read it with :meth:`note`.

        Raises:
            ConfigError: the service has no name, or a network does not fit.
            VinorewardError: one cannot be loaded, as for :meth:`load`; nothing was changed.
        """
        networks = [
            Network.of(
                load_backend(
                    self.backend,
                    spec,
                    device=self.device,
                    precision=old.precision,
                    threads=self.threads,
                    cache_dir=self.cache_dir,
                )
            ).to_dict()
            for spec, old in zip(specs, self._all, strict=True)
        ]
        asked = wire.message({"networks": networks, "note": dict(note)})
        with self._lock:
            self._again(lambda: self._link.ask(wire.SWAP, asked))
            return self.version

    def note(self) -> tuple[dict[str, Any], int]:
        """Return what :meth:`swap` noted, empty before any, and the version of the networks."""
        with self._lock:
            return dict(self._told()["note"]), self.version

    def _told(self) -> dict[str, Any]:
        with self._lock:
            return wire.read_message(self._again(lambda: self._link.ask(wire.DESCRIBE)))

    def _describe(self) -> dict[str, str | int | float | bool]:
        told = self._told()
        rest = {f"service_{name}": told[name] for name in ("pid", "callers", "batches", "answers")}
        return {**told["info"], "service": self.service, **rest}

    def _load(self) -> None:
        settings = self._settings or self._describe_service()
        self._place = Place(runtime_folder(), settings.stem)
        try:
            with _reaching(self._place):
                self._alone = self._place.join() if settings.name else False
            self._link = self._connected()
        except BaseException:
            self._place.leave()
            raise

    def _describe_service(self) -> ServiceSettings:
        # Once: a service that is started again must run the files that the first one ran.
        self._settings = ServiceSettings.of(self.backend, self._all, self.service)
        return self._settings

    def _drop(self) -> None:
        link, place = self.__dict__.pop("_link", None), self.__dict__.pop("_place", None)
        if link is not None:
            link.close()
        if place is not None:
            place.leave()
        self._loaded = False

    def _infer(self, batch: NDArray[Any]) -> NDArray[Any]:
        most = self._layout.most
        if len(batch) <= most:
            return self._again(lambda: self._link.infer(batch))
        pieces = [batch[start : start + most] for start in range(0, len(batch), most)]
        while True:
            answers = [self._piece(piece) for piece in pieces]
            if len({version for _, version in answers}) == 1:
                return np.concatenate([answer for answer, _ in answers])

    def _piece(self, piece: NDArray[Any]) -> tuple[NDArray[Any], int]:
        answer = self._again(lambda: self._link.infer(piece))
        return answer.copy(), self.version

    def _again(self, call: Callable[[], _Answer]) -> _Answer:
        """Call; if the service dies meanwhile, connect to another and call again."""
        self.load()
        if self._link.busy:  # Ctrl-C: the answer to that request must not be taken for this one's
            self._renew()
        for death in range(DEATHS):
            try:
                answer = call()
                self.version = self._link.version
                return answer
            except Gone:
                time.sleep(_PAUSE * death)
                self._renew()
        raise self._hopeless()

    def _renew(self) -> None:
        self._link.close()
        try:
            self._link = self._connected()
        except BaseException:
            self._drop()
            raise

    def _connected(self) -> Link:
        """Return a link to the service; start one if there is none."""
        runtime_folder()  # it may have been removed, or opened to others, meanwhile
        with _reaching(self._place):
            return self._find(self._place, self._settings or self._describe_service())

    def _find(self, place: Place, settings: ServiceSettings) -> Link:
        deadline = time.monotonic() + START_TIMEOUT
        deaths = 0
        while deaths < DEATHS:
            connection = place.connect()
            if connection is None:
                with place.starting() as mine:
                    if mine:
                        connection = place.connect()
                        if connection is None:
                            deaths += not start(settings, place)
                            connection = place.connect()
            if connection is not None:
                link = Link(_checked(connection), self._layout)
                try:
                    link.hello(settings.key, self._number, self._alone)
                except Gone:  # it ended, or was killed
                    link.close()
                    deaths += 1
                    continue
                except BaseException:
                    link.close()
                    raise
                self._alone = False
                self.version = link.version
                return link
            if time.monotonic() > deadline:
                break
            time.sleep(_PAUSE)
        raise self._hopeless()

    def _hopeless(self) -> ServiceError:
        return ServiceError(
            f"the service for {self.spec.path} ended {DEATHS} times, or was not there after "
            f"{START_TIMEOUT:.0f} s. Expected it to live; look for a lack of memory (dmesg), and "
            "try without service, where an error of the network is seen in this process."
        )


def shared(
    backend: str,
    networks: Sequence[tuple[NetworkSpec, str]],
    *,
    device: str = "CPU",
    threads: int = 1,
    service: str = SHARED,
) -> list[SharedBackend]:
    """Return backends for several networks, with their precisions, that one service runs."""
    made = [
        SharedBackend(
            spec,
            device=device,
            precision=precision,
            threads=threads,
            backend=backend,
            service=service,
        )
        for spec, precision in networks
    ]
    together = tuple(one for each in made for one in each._all)
    for number, one in enumerate(made):
        one._all, one._number = together, number
    return made


@contextlib.contextmanager
def _reaching(place: Place) -> Iterator[None]:
    """Turn an error of the system in the block into a ServiceError."""
    try:
        yield
    except VinorewardError:
        raise
    except OSError as error:
        raise ServiceError(
            f"the service in {place.folder} cannot be reached: {error.strerror or error}. Expected "
            "a folder of this user with free space, and few enough open files; correct that, or "
            "leave service out."
        ) from error


def _checked(connection: socket.socket) -> socket.socket:
    """Return the connection if its other side is this user's; it waits for a limited time."""
    user = wire.peer(connection)[1]
    if user != os.geteuid():
        connection.close()
        raise ServiceError(
            f"the service belongs to user {user}. Expected this user's own, {os.geteuid()}."
        )
    limit = struct.pack("ll", ANSWER_TIMEOUT, 0)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    return connection
