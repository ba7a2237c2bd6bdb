"""``vinoreward label``: opens the page, and says at the end what was labelled."""

from __future__ import annotations

import contextlib
import getpass
import os
import shlex
import socket
import sys
import tempfile
import threading
import webbrowser
from pathlib import Path

import numpy as np

from vinoreward.errors import ConfigError, needed_for
from vinoreward_training.configs import LabelConfig
from vinoreward_training.data.dataset_files import inside
from vinoreward_training.labelling.labels import (
    ANSWERS,
    LABELS,
    Label,
    LabelLog,
    agreement,
    contradictions,
    counts,
    is_labeller,
    standing,
)
from vinoreward_training.labelling.order import (
    most_useful_first,
    recorded,
    scored,
    with_duplicates,
)
from vinoreward_training.labelling.server import HOST, Door, application, listening, serve
from vinoreward_training.labelling.session import Session
from vinoreward_training.labelling.sources import Source, of_folder, of_run
from vinoreward_training.runs.next_command import after_labelling
from vinoreward_training.runs.settings import non_default_options

DUPLICATES = 0.05
"""Share of the images that are shown a second time."""
SEED = 0
"""Of the random order and of which images are shown twice: the same after a restart."""


def run(config: LabelConfig) -> int:
    """Serve the page until Ctrl-C; return 0."""
    _check(config)
    with needed_for("vinoreward label", "label"):
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    source, out = _source(config), _out(config)
    by = config.labeller or _login()
    if source.left_out:
        print(f"{source.left_out} images with unprintable or overlong names are left out.")
    with (
        LabelLog(out) as log,
        listening() as server,
        tempfile.TemporaryDirectory() as private,
    ):
        session = _session(config, source, log, by)
        if session.left:
            port = int(server.getsockname()[1])
            door = Door(port)
            app = application(session, door, port, lambda: _following(config, session))
            print(f"{session.left} images to label, as {by}. Labels: {out}")
            address, redirect = f"http://{HOST}:{port}/#{door.token}", Path(private, "label.html")
            with contextlib.suppress(KeyboardInterrupt):
                serve(app, server, lambda: invite(config, address, port, redirect))
            print(f"\n{session.given} labelled now, {session.unlabelled} left. Labels: {out}")
        else:
            print(f"{by} has labelled all {len(source.names)} images. Labels: {out}")
        _print_counts(session.labels, by)
        print(f"next: {_following(config, session)}")
    return 0


def _check(config: LabelConfig) -> None:
    sources = [name for name in ("run", "data") if getattr(config, name) is not None]
    if len(sources) != 1:
        raise ConfigError(
            f"found {' and '.join(f'`{name}`' for name in sources) or 'nothing to label'}. "
            "Expected one of `run` and `data`; name what to label.",
            field=(*sources, "run")[0],
        )
    if config.labeller is not None and not is_labeller(config.labeller):
        raise ConfigError(
            field="labeller",
            value=config.labeller,
            expected="a printable name of at most 100 characters",
        )


def _login() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in some containers
        name = ""
    return name if is_labeller(name) else "somebody"


def _source(config: LabelConfig) -> Source:
    if config.run is not None:
        return of_run(config.run)
    return of_folder(Path(config.data or ""))


def _out(config: LabelConfig) -> Path:
    if config.out is not None:
        return config.out
    # A link in somebody's folder must not have us write elsewhere.
    return inside(config.run or Path(config.data or ""), LABELS)


def _session(config: LabelConfig, source: Source, log: LabelLog, by: str) -> Session:
    """Return a sitting with what this labeller has not labelled yet."""
    labels = standing(log.entries)
    places = {name: index for index, name in enumerate(source.names)}
    mine = [label for label in labels if label.by == by and label.image in places]
    done = {places[label.image] for label in mine if not label.duplicate}
    repeated = {places[label.image] for label in mine if label.duplicate}
    known = config.bundle is None or len(done) == len(places)  # what is not asked: no scores
    opinion = recorded(source) if known else scored(source, str(config.bundle))
    if config.bundle is None and "drawn" in source.numbers:
        drawn = source.numbers["drawn"], source.numbers["block"]  # unknown ones last
        order = np.lexsort(drawn).tolist()
    else:
        order = most_useful_first(source, opinion, labels, by, SEED)
    order = [index for index in order if index not in done][: config.limit]
    skipped = {places[label.image] for label in mine if label.label == "skip"}
    plan = with_duplicates(source.names, order, done - skipped, repeated, DUPLICATES, SEED)
    return Session(source, opinion, log, by, plan)


def invite(config: LabelConfig, address: str, port: int, redirect: Path) -> None:
    """Print the address, and open the browser if there is one here.

    It is given the file ``redirect``, which leads to the address: other users of the machine can
    read command lines, and the address has the token.
    """
    print(f"open  {address}")
    remote = bool(os.environ.get("SSH_CONNECTION"))
    screen = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if remote or not (screen or sys.platform in {"darwin", "win32"}):
        print(
            "no browser can be opened here. From another machine, first run there:\n"
            f"      ssh -L {port}:{HOST}:{port} {shlex.quote(f'{_login()}@{socket.gethostname()}')}"
        )
    elif config.open:
        redirect.touch(mode=0o600)
        redirect.write_text(f'<meta http-equiv="refresh" content="0; url={address}">')
        file = redirect.as_uri()
        threading.Thread(target=webbrowser.open, args=(file,), daemon=True).start()
    print("The address works once. Ctrl-C ends; every label is on the disk at once.", flush=True)


def _print_counts(labels: list[Label], by: str) -> None:
    """Print what the labels of this labeller are."""
    mine = [label for label in labels if label.by == by]
    found = counts(mine)
    print("in all " + ", ".join(f"{found[answer]} {answer}" for answer in ANSWERS) + ".")
    if any(label.duplicate for label in mine):
        print(f"{agreement(mine)}.")
    if torn := contradictions(labels):
        print(f"{len(torn)} images have contradicting labels and will not be used.")


def _following(config: LabelConfig, session: Session) -> str:
    of_sitting = ("limit", "labeller") if session.unlabelled else ()
    names = ("run", "data", "bundle", *of_sitting, "out")
    return after_labelling(non_default_options(config, names), session.left, session.unlabelled)
