"""``vinoreward label`` in a process of its own, a client of its page, and kills in its middle."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import signal
import subprocess
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from vinoreward.errors import RunFolderError
from vinoreward.processes import python_command
from vinoreward_training.labelling.labels import LABELS, read_labels

SCRIPT = """
import sys
from vinoreward_training.cli import main
sys.exit(main(["label", *sys.argv[1:]]))
"""
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
QUIET = (
    "--no-sandbox",  # Chromium has none for root
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--no-first-run", "--disable-quic", "--disable-gpu",
)  # fmt: skip
"""Options with which Chromium asks nobody but the page."""
MOST_LABELS = 40
MOST_SECONDS = 0.01
"""A kill comes at most so many seconds after one of the first ``MOST_LABELS`` labels."""


class Labelling:
    """``vinoreward label`` in a process of its own; use it in a ``with`` block."""

    def __init__(self, arguments: Sequence[str], *, limit_bytes: int | None = None) -> None:
        script = SCRIPT
        if limit_bytes is not None:  # no file may hold more, as if the disk were full
            limit = f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit_bytes}, {limit_bytes}))"
            # Python would leave half of a module's .pyc, and others would load it.
            script = f"import resource, sys\nsys.dont_write_bytecode = True\n{limit}\n{SCRIPT}"
        self._command = python_command(script, *arguments, "--no-open")
        self.address = ""
        """With the token."""
        self.process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Labelling:
        """Start it and wait for its address."""
        self.process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        lines = []
        for line in cast(IO[str], self.process.stdout):
            lines.append(line)
            if found := re.match(r"open +(http://\S+)", line):
                self.address = found[1]
            if self.address and "Ctrl-C" in line:
                return self
        self.process.communicate()
        raise RunFolderError(
            f"vinoreward label ended with {self.process.returncode}. Expected its page. It wrote:\n"
            f"{''.join(lines)[-2000:]}"
        )

    def __exit__(self, *error: object) -> None:
        """Kill it if it still runs."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()

    def stop(self) -> str:
        """End it by Ctrl-C; return what it printed since its address."""
        process = cast("subprocess.Popen[str]", self.process)
        process.send_signal(signal.SIGINT)
        return process.communicate(timeout=30)[0]

    @property
    def port(self) -> int:
        """Of its page."""
        return int(self.address.partition("#")[0].rstrip("/").rpartition(":")[2])

    @property
    def token(self) -> str:
        """What the address opens with, once."""
        return self.address.partition("#")[2]


class Client:
    """Says what the page says, without a browser."""

    def __init__(self, port: int) -> None:
        self.port, self.cookie = port, ""

    def ask(
        self,
        path: str,
        body: object = None,
        *,
        method: str | None = None,
        headers: dict[str, str | None] | None = None,
    ) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body of an answer; a header of None is left out."""
        own = f"127.0.0.1:{self.port}"
        given: dict[str, str | None] = {"Host": own, "Cookie": self.cookie or None}
        data = b""
        if body is not None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            given |= {"Origin": f"http://{own}", "Content-Type": "application/json"}
            given["Content-Length"] = str(len(data))
        given |= headers or {}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            verb = method or ("GET" if body is None else "POST")
            connection.putrequest(verb, path, skip_host=True, skip_accept_encoding=True)
            for name, value in given.items():
                if value is not None:
                    connection.putheader(name, value)
            connection.endheaders(data)
            answer = connection.getresponse()
            names = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, names, answer.read()
        finally:
            connection.close()

    def enter(self, token: str) -> int:
        """Exchange the token for the cookie; return the status."""
        status, headers, _ = self.ask("/api/enter", {"token": token})
        if status == 200:
            self.cookie = headers["set-cookie"].partition(";")[0]
        return status

    def value(self, path: str, body: object = None) -> tuple[int, dict[str, Any]]:
        """Return the status and the JSON of an answer."""
        status, _, data = self.ask(path, body)
        return status, json.loads(data)

    def label(self, image: int, answer: str) -> tuple[int, dict[str, Any]]:
        """Label an image."""
        return self.value("/api/label", {"image": image, "label": answer, "seconds": 0.5})


def chromium() -> str | None:
    """Return the path of an installed Chromium; None if there is none, or nothing to drive it."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return None
    return next(filter(None, map(shutil.which, CHROMIUM)), None)


def labels_lost(folder: Path, kills: int, seed: int) -> tuple[int, int, int]:
    """Kill the program with SIGKILL at random moments while a client labels.

    Args:
        folder: with at least ``2 * MOST_LABELS`` images, or a client may end before its kill.
        kills: how often.
        seed: of the moments.

    Returns:
        How many labels were acknowledged, how many of them are not in the log, and how many kills
        came before the client had labelled all.
    """
    random = np.random.default_rng([seed, 0x9])
    acknowledged: set[float] = set()
    sent = 0
    interrupted = 0
    for kill in range(kills):
        arguments = ["--data", str(folder), "--labeller", f"labeller {kill}"]
        with Labelling(arguments) as running:
            process = cast("subprocess.Popen[str]", running.process)
            client = Client(running.port)
            client.enter(running.token)
            _, state = client.value("/api/state")
            last = sent + int(random.integers(MOST_LABELS))
            timer = threading.Timer(float(random.uniform(0.0, MOST_SECONDS)), process.kill)
            try:
                while state["image"] is not None:
                    if sent == last:
                        timer.start()
                    sent += 1
                    # Each label takes another time, by which it is found in the log.
                    body = {"image": state["image"], "label": "success", "seconds": sent / 100}
                    status, state = client.value("/api/label", body)
                    if status != 200:
                        raise RunFolderError(f"a label was answered with {status}, {state}.")
                    acknowledged.add(sent / 100)
            except (OSError, http.client.HTTPException, ValueError):
                interrupted += 1
            if timer.ident is not None:
                timer.join()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the last line may be cut off
        found = {label.seconds for label in read_labels(folder / LABELS)}
    return len(acknowledged), len(acknowledged - found), interrupted
