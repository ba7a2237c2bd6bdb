"""The service: a process that answers the callers of one machine in turn.

It takes what is waiting, runs it as one batch and never waits for more. It ends soon after its last
caller.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vinoreward.backends.base import Backend
from vinoreward.backends.serving import wire
from vinoreward.backends.serving.places import Place
from vinoreward.backends.serving.settings import Network, ServiceSettings
from vinoreward.backends.serving.wire import Frame, Gone, Layout, Slot
from vinoreward.errors import ConfigError, VinorewardError

LINGER = 1.0
"""Seconds without callers after which the service ends."""
FIRST = 30.0
"""Seconds in which the first caller must come."""
STARTED, ANOTHER = b"listening", b"another"
_ROOM = socket.CMSG_SPACE(4)
"""Of one descriptor that comes with a frame."""
_HOPELESS = select.EPOLLERR | select.EPOLLHUP


class Caller:
    """One connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.network: int | None = None
        """Its number; None before HELLO."""
        self.slot: Slot | None = None
        self.asked = Frame(0)
        """The request that waits for an answer."""

    def batch(self) -> NDArray[Any]:
        """Return what is asked about; the caller does not touch it before the answer."""
        if self.slot is None:
            raise Gone
        return self.slot.batch[: self.asked.size]

    def send(self, frame: Frame) -> None:
        """Send, never wait; Gone if the caller has ended or does not read."""
        try:
            self.connection.send(frame.to_bytes(), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError as error:
            raise Gone from error

    def close(self) -> None:
        """Close the connection and let the slot go."""
        self.connection.close()
        if self.slot is not None:
            self.slot.close()


class Service:
    """Runs the networks of ``settings`` for everybody who connects to ``listener``."""

    def __init__(self, settings: ServiceSettings, place: Place, listener: socket.socket) -> None:
        self._settings = settings
        self._place = place
        self._listener = listener
        self._key = settings.key
        self._version = 0
        self._note: dict[str, Any] = {}
        self._networks = settings.networks
        state = place.read_swapped() if settings.name else None
        if state is not None:
            self._version = int(state["version"])
            self._note = dict(state["note"])
            self._networks = tuple(Network.from_dict(one) for one in state["networks"])
        self._backends = settings.make(self._networks)
        self._layouts = [Layout(one.input, one.output) for one in self._backends]
        self._callers: dict[int, Caller] = {}
        self._waiting: list[Caller] = []
        self._batches = self._answers = 0
        self._ends = 0.0
        self._buffer = bytearray(wire.MAX_PACKET)
        self._poll = select.epoll()
        self._poll.register(listener.fileno(), select.EPOLLIN)

    def run(self) -> None:
        """Answer until nobody is connected."""
        self._ends = time.monotonic() + FIRST
        while self._callers or time.monotonic() < self._ends:
            left = None if self._callers else max(0.0, self._ends - time.monotonic())
            if self._waiting:  # more than one batch: go on, and hear who came meanwhile
                left = 0.0
            for descriptor, event in self._poll.poll(left):
                if descriptor == self._listener.fileno():
                    self._accept()
                elif descriptor in self._callers:
                    self._hear(self._callers[descriptor], event)
            if self._waiting:
                self._answer()

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):
            connection, _ = self._listener.accept()
            if wire.peer(connection)[1] != os.geteuid():
                connection.close()
                return
            self._callers[connection.fileno()] = Caller(connection)
            self._poll.register(connection.fileno(), select.EPOLLIN)

    def _drop(self, caller: Caller) -> None:
        descriptor = caller.connection.fileno()
        if self._callers.pop(descriptor, None) is not None:
            self._poll.unregister(descriptor)
            caller.close()
            self._waiting = [other for other in self._waiting if other is not caller]
            self._ends = time.monotonic() + LINGER

    def _hear(self, caller: Caller, event: int) -> None:
        """Read one frame; a caller has at most one request under way."""
        descriptors: list[int] = []
        try:
            if event & _HOPELESS and not event & select.EPOLLIN:
                raise Gone
            size, extra, _, _ = caller.connection.recvmsg_into(
                [self._buffer], _ROOM, socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
            )
            for level, kind, data in extra:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    descriptors += struct.unpack(f"{len(data) // 4}i", data[: len(data) // 4 * 4])
            self._take(caller, Frame.from_bytes(self._buffer, size), descriptors)
        except BlockingIOError:
            pass
        except (Gone, OSError):
            self._drop(caller)
        finally:
            for descriptor in descriptors:
                with contextlib.suppress(OSError):
                    os.close(descriptor)

    def _take(self, caller: Caller, frame: Frame, descriptors: list[int]) -> None:
        if frame.kind == wire.HELLO:
            self._greet(caller, frame)
            return
        if caller.network is None:
            raise Gone
        if frame.kind == wire.REQUEST:
            caller.asked = frame
            try:
                if descriptors:
                    if caller.slot is not None:
                        caller.slot.close()
                        caller.slot = None
                    layout = self._layouts[caller.network]
                    caller.slot = Slot.attach(descriptors.pop(), layout, frame.rows)
            except VinorewardError as error:
                self._fail(caller, error)
                return
            if caller.slot is None or not 1 <= frame.size <= caller.slot.rows:
                raise Gone
            self._waiting.append(caller)
        elif frame.kind in (wire.DESCRIBE, wire.SWAP):
            caller.asked = frame
            try:
                told = b""
                if frame.kind == wire.SWAP:
                    self._swap(wire.read_message(frame.rest))
                else:
                    told = self._described(caller.network)
            except Exception as error:  # noqa: BLE001  # of any library; the caller raises it
                self._fail(caller, error)
                return
            caller.send(Frame(wire.DESCRIBED, frame.sequence, self._version, rest=told))
        else:
            raise Gone

    def _described(self, number: int) -> bytes:
        return wire.message(
            {
                "info": self._backends[number].info(),
                "note": self._note,
                "callers": len(self._callers),
                "pid": os.getpid(),
                "batches": self._batches,
                "answers": self._answers,
            }
        )

    def _greet(self, caller: Caller, frame: Frame) -> None:
        known = frame.rest == self._key and frame.size < len(self._backends)
        if not known or caller.network is not None:
            raise Gone
        if frame.version and self._version:
            # The caller is the first of its name, so that these networks are of others, who ended.
            raise SystemExit
        caller.asked = frame
        try:
            self._backends[frame.size].load()
        except Exception as error:  # noqa: BLE001  # of any library; the caller raises it
            self._fail(caller, error)
            return
        caller.network = frame.size
        caller.send(Frame(wire.WELCOME, frame.sequence, self._version))

    def _fail(self, caller: Caller, error: BaseException) -> None:
        """Tell a caller the error of its request."""
        frame = Frame(wire.ERROR, caller.asked.sequence, self._version, rest=wire.told(error))
        with contextlib.suppress(Gone):
            caller.send(frame)
            return
        self._drop(caller)

    def _answer(self) -> None:
        """Run what is waiting, in the order in which it came, a batch for each network."""
        waiting, self._waiting = self._waiting, []
        groups: dict[int, list[Caller]] = {}
        rows: dict[int, int] = {}
        for caller in waiting:
            number = caller.network or 0
            most = self._layouts[number].most
            if rows.get(number, 0) + caller.asked.size > most and number in groups:
                self._waiting.append(caller)
                rows[number] = most  # nobody overtakes it
                continue
            groups.setdefault(number, []).append(caller)
            rows[number] = rows.get(number, 0) + caller.asked.size
        for number, callers in groups.items():
            self._run(self._backends[number], callers)

    def _run(self, backend: Backend, callers: list[Caller]) -> None:
        try:
            batches = [caller.batch() for caller in callers]
            batch = batches[0] if len(batches) == 1 else np.concatenate(batches)
            results = backend.infer(batch)
        except Exception as error:  # noqa: BLE001  # of any library; the caller raises it
            if len(callers) == 1:
                self._fail(callers[0], error)
                return
            for caller in callers:  # the error of one is not the others'
                self._run(backend, [caller])
            return
        self._batches += 1
        start = 0
        for caller in callers:
            count = caller.asked.size
            if caller.slot is not None:
                caller.slot.answer[:count] = results[start : start + count]
            start += count
            self._answers += 1
            try:
                caller.send(Frame(wire.ANSWER, caller.asked.sequence, self._version, count))
            except Gone:
                self._drop(caller)

    def _swap(self, asked: dict[str, Any]) -> None:
        """Load other networks and answer with them from now on; or nothing is changed."""
        if not self._settings.name:
            raise ConfigError(
                "a swap was asked of a service without a name, which any program of this user may "
                "share. Expected service='shared:NAME' with a name of this training's own."
            )
        networks = tuple(Network.from_dict(one) for one in asked["networks"])
        if len(networks) != len(self._backends):
            raise ConfigError(
                f"a swap brings {len(networks)} networks. Expected {len(self._backends)}, as the "
                "service runs."
            )
        with contextlib.ExitStack() as on_error:
            backends = self._settings.make(networks)
            for new, old in zip(backends, self._backends, strict=True):
                on_error.callback(new.close)
                if (new.input, new.output) != (old.input, old.output):
                    raise ConfigError(
                        f"a swap brings a network of {new.input} to {new.output}. Expected "
                        f"{old.input} to {old.output}, as the one before."
                    )
                new.load()
            state: dict[str, Any] = {
                "version": self._version + 1,
                "note": dict(asked["note"]),
                "networks": [network.to_dict() for network in networks],
            }
            self._place.write_swapped(state)  # before the first answer, for a successor
            on_error.pop_all()
        self._version += 1
        self._note, self._networks = state["note"], networks
        before, self._backends = self._backends, backends
        for old in before:
            old.close()


def main() -> None:
    """Read settings and place from the standard input and serve; say on the output that it does."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    # Ctrl-C is meant for the callers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    given = json.loads(sys.stdin.buffer.read())
    settings = ServiceSettings.from_dict(given["settings"])
    place = Place(Path(given["folder"]), settings.stem)
    if not place.lock.take():
        _say(ANOTHER)
        return
    place.sweep()
    listener = place.listen()
    try:
        service = Service(settings, place, listener)
        _say(STARTED)
        service.run()
    finally:
        place.clear()
    os._exit(0)  # at once: to take the libraries down in order takes a second


def _say(what: bytes) -> None:
    """Tell the starter, and let go of its pipes, which would keep it waiting."""
    with contextlib.suppress(OSError):
        os.write(1, what)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)
