"""Small messages of child processes: lines of JSON through a pipe.

Not the framing of ``Connection.send_bytes``: a child that is stopped in the middle of a message
would then stop whoever waits for the rest of it, and that is the thread that should notice.
"""

from __future__ import annotations

import json
import os
from multiprocessing.connection import Connection
from typing import Any

CHUNK = 1 << 16


def send(pipe: Connection, kind: str, value: Any) -> None:
    """Write a message; waits while the pipe is full.

    Args:
        pipe: writing end.
        kind: such as ``"episodes"``.
        value: plain data.

    Raises:
        OSError: nobody reads any more.
    """
    data = memoryview(json.dumps({"kind": kind, "value": value}).encode() + b"\n")
    while data:
        data = data[os.write(pipe.fileno(), data) :]


class Inbox:
    """Reads messages; never waits.

    Args:
        pipe: reading end; closed by :meth:`close`, or when there can be no more.
    """

    def __init__(self, pipe: Connection) -> None:
        os.set_blocking(pipe.fileno(), False)
        self._pipe: Connection | None = pipe
        self._rest = b""

    @property
    def pipe(self) -> Connection | None:
        """What to wait for, None when there can be no more."""
        return self._pipe

    def read(self) -> list[dict[str, Any]]:
        """Return the messages that are complete; what a dead child cut off is dropped."""
        while self._pipe is not None:
            try:
                data = os.read(self._pipe.fileno(), CHUNK)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self.close()
                break
            self._rest += data
        *lines, self._rest = self._rest.split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """Read no more."""
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
