"""Run a program and see every address that it or its children connect to, native code included.

Python's audit hook sees nothing of what a library of C++ does. The kernel does: a seccomp filter
hands each ``connect``, ``sendto`` and ``sendmmsg`` of the process and of all that it starts to us,
who write it down and let it pass. No privileges and no tools are needed.
"""

from __future__ import annotations

import array
import ctypes
import errno
import fcntl
import ipaddress
import json
import os
import platform
import select
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

_CALLS = {  # seccomp, connect, sendto, sendmmsg
    "x86_64": (317, 42, 44, 307),
    "aarch64": (277, 203, 206, 269),
}
_RECEIVE, _CONTINUE = 0xC0502100, 0xC0182101
_ALLOW, _NOTIFY = 0x7FFF0000, 0x7FC00000


@dataclass
class Seen:
    """What a program did.

    Attributes:
        returncode: of the program itself.
        output: what it wrote, both streams.
        addresses: that it connected to; those of this machine are left out.
        names: that it asked a name server for.
    """

    returncode: int = 0
    output: str = ""
    addresses: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)


def watch(command: Sequence[str], environment: Mapping[str, str]) -> Seen:
    """Run ``command`` to its end, and until nothing that it started is left."""
    # In an interpreter of its own: a fork of one with threads is warned about.
    done = subprocess.run(
        [sys.executable, __file__, *command],
        env=dict(environment),
        stdout=subprocess.PIPE,
        check=True,
        timeout=600,
    )
    found = json.loads(done.stdout)
    if "skip" in found:
        pytest.skip(found["skip"])
    found |= {name: set(found[name]) for name in ("addresses", "names")}
    return Seen(**found)


def _main(command: Sequence[str]) -> dict[str, object]:
    calls = _CALLS.get(platform.machine())
    if sys.platform != "linux" or calls is None:
        return {"skip": f"no seccomp filter for {sys.platform} on {platform.machine()}"}
    ours, theirs = socket.socketpair()
    seen = Seen()
    with ours, theirs, tempfile.TemporaryFile() as output:
        process = os.fork()
        if process == 0:
            _become(command, theirs, output.fileno(), calls)
        theirs.close()
        message, ancillary, _, _ = ours.recvmsg(16, socket.CMSG_SPACE(4))
        if not ancillary:
            os.waitpid(process, 0)
            return {"skip": f"the kernel lends no seccomp listener: {message.decode()}"}
        listener = array.array("i", ancillary[0][2])[0]
        _listen(listener, calls, seen)
        seen.returncode = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        output.seek(0)
        seen.output = output.read().decode(errors="replace")
    outside = sorted(address for address in seen.addresses if not _ours(address))
    return {**vars(seen), "addresses": outside, "names": sorted(seen.names)}


def _become(
    command: Sequence[str],
    channel: socket.socket,
    output: int,
    calls: tuple[int, ...],
) -> None:
    """Install the filter and become ``command``; does not return."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
        load = struct.pack("HBBI", 0x20, 0, 0, 0)
        jumps = b"".join(
            struct.pack("HBBI", 0x15, 3 - place, 0, call) for place, call in enumerate(calls[1:])
        )
        ends = b"".join(struct.pack("HBBI", 6, 0, 0, verdict) for verdict in (_ALLOW, _NOTIFY))
        program = ctypes.create_string_buffer(load + jumps + ends)
        told = struct.pack("HxxxxxxQ", 6, ctypes.addressof(program))
        listener = libc.syscall(calls[0], 1, 8, told)  # SET_MODE_FILTER, NEW_LISTENER
        if listener < 0:
            channel.send(errno.errorcode[ctypes.get_errno()].encode())
            os._exit(1)
        passed = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [listener]))
        channel.sendmsg([b"here"], [passed])
        os.close(listener)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.execvp(command[0], list(command))
    finally:
        os._exit(1)


def _listen(listener: int, calls: tuple[int, ...], seen: Seen) -> None:
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    while not poll.poll()[0][1] & select.POLLHUP:
        notice = bytearray(80)
        try:
            fcntl.ioctl(listener, _RECEIVE, notice)
        except OSError:  # the caller was killed meanwhile
            continue
        number, process = struct.unpack_from("QI", notice)
        call = struct.unpack_from("i", notice, 16)[0]
        arguments = struct.unpack_from("6Q", notice, 32)
        try:
            with Path(f"/proc/{process}/mem").open("rb", buffering=0) as memory:
                _note(memory, calls.index(call), arguments, seen)
        except OSError:
            pass
        try:
            fcntl.ioctl(listener, _CONTINUE, struct.pack("QqiI", number, 0, 0, 1))
        except OSError:
            continue


def _note(memory: object, call: int, arguments: tuple[int, ...], seen: Seen) -> None:
    def read(address: int, size: int) -> bytes:
        memory.seek(address)  # type: ignore[attr-defined]
        found: bytes = memory.read(size)  # type: ignore[attr-defined]
        return found

    if call == 3:  # sendmmsg, with which a resolver asks
        vector = struct.unpack("QQQ", read(arguments[1], 24))[2]
        _note_name(read(*struct.unpack("QQ", read(vector, 16))), seen)
        return
    if call == 2:
        _note_name(read(arguments[1], min(arguments[2], 512)), seen)
    place, size = (arguments[1], arguments[2]) if call == 1 else (arguments[4], arguments[5])
    address = read(place, min(size, 28)) if place else b""
    family = struct.unpack("H", address[:2])[0] if len(address) >= 2 else 0
    if family == socket.AF_INET:
        seen.addresses.add(str(ipaddress.IPv4Address(address[4:8])))
    elif family == socket.AF_INET6:
        found = ipaddress.IPv6Address(address[8:24])
        seen.addresses.add(str(found.ipv4_mapped or found))


def _note_name(question: bytes, seen: Seen) -> None:
    """Write down the name that a DNS question is about; anything else is not one."""
    if len(question) < 17 or question[2:6] != b"\x01\x00\x00\x01":
        return
    parts, place = [], 12
    while place < len(question) and (size := question[place]):
        parts.append(question[place + 1 : place + 1 + size].decode(errors="replace"))
        place += 1 + size
    seen.names.add(".".join(parts))


def _ours(address: str) -> bool:
    """Whether this machine itself has the address: one can bind to it."""
    found = ipaddress.ip_address(address)
    try:
        kind = socket.AF_INET if found.version == 4 else socket.AF_INET6
        with socket.socket(kind) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


if __name__ == "__main__":
    print(json.dumps(_main(sys.argv[1:])))
