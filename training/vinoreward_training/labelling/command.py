"""``vinoreward label``: opens the page, and says at the end what was labelled."""

from __future__ import annotations

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
from vinoreward.images import shown_name
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
    judged,
    most_useful_first,
    recorded,
    with_duplicates,
)
from vinoreward_training.labelling.server import HOST, Door, application, listening, serve
from vinoreward_training.labelling.session import Session
from vinoreward_training.labelling.sources import Source, of_folder, of_run, of_videos
from vinoreward_training.runs.next_command import after_labelling
from vinoreward_training.runs.settings import non_default_options

MOST_DUPLICATES = 0.5


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
        listening(config.port) as server,
        tempfile.TemporaryDirectory() as private,
    ):
        session = _session(config, source, log, by)
        if not session.left:
            print(f"{by} has labelled all {len(source.names)} images. Labels: {out}")
            _say(session.labels, by)
            print(f"next: {_following(config, session)}")
            return 0
        port = int(server.getsockname()[1])
        door = Door(port)
        app = application(session, door, port, lambda: _following(config, session))
        print(f"{session.left} images to label, as {by}. Labels: {out}")
        address, redirect = f"http://{HOST}:{port}/#{door.token}", Path(private, "label.html")
        try:
            serve(app, server, lambda: _invite(config, address, port, redirect))
        except KeyboardInterrupt:
            print()
        print(f"{session.given} labelled now, {session.unlabelled} left. Labels: {out}")
        _say(session.labels, by)
        print(f"next: {_following(config, session)}")
    return 0


def _check(config: LabelConfig) -> None:
    given = [name for name in ("run", "data", "video") if getattr(config, name) is not None]
    if len(given) != 1:
        found = ", ".join(f"--{name}" for name in given) or "none of them"
        raise ConfigError(
            f"found {found}. Expected one of --run, --data and --video; name what to label."
        )
    if config.order == "drawn" and config.run is None:
        raise ConfigError(
            "found --order drawn without --run. Expected a run of vinoreward train, which draws a "
            "sample of its claims; name one with --run, or leave --order out."
        )
    if not 0 <= config.duplicates <= MOST_DUPLICATES or config.seed < 0:
        raise ConfigError(
            f"found --duplicates {config.duplicates} and --seed {config.seed}. Expected a share "
            f"from 0 to {MOST_DUPLICATES}, and a seed of at least 0."
        )
    if (config.limit is not None and config.limit < 1) or not 0 <= config.port < 2**16:
        raise ConfigError(
            f"found --limit {config.limit} and --port {config.port}. Expected at least 1 image, "
            "and a port from 0 to 65535."
        )
    if config.labeller is not None and not is_labeller(config.labeller):
        raise ConfigError(
            f"found --labeller {shown_name(config.labeller)!r}. Expected a printable name of at "
            "most 100 characters."
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
    if config.data is not None:
        return of_folder(config.data)
    return of_videos(Path(config.video or ""), config.video_fps)


def _out(config: LabelConfig) -> Path:
    if config.out is not None:
        return config.out
    folder = config.run or config.data or Path(config.video or "")
    # A link in somebody's folder must not have us write elsewhere.
    return inside(folder if folder.is_dir() else folder.parent, LABELS)


def _session(config: LabelConfig, source: Source, log: LabelLog, by: str) -> Session:
    """Return a sitting with what this labeller has not labelled yet."""
    labels = standing(log.entries)
    places = {name: index for index, name in enumerate(source.names)}
    mine = [label for label in labels if label.by == by and label.image in places]
    done = {places[label.image] for label in mine if not label.again}
    again = {places[label.image] for label in mine if label.again}
    drawn = config.order == "drawn"
    if config.bundle is None or drawn or len(done) == len(places):  # what is not asked: no scores
        opinion = recorded(source)
    else:
        opinion = judged(source, config.bundle)
    if drawn:
        order = np.argsort(source.numbers["drawn"], kind="stable").tolist()  # unknown ones last
    else:
        order = most_useful_first(source, opinion, labels, by, config.seed)
    order = [index for index in order if index not in done][: config.limit]
    skipped = {places[label.image] for label in mine if label.label == "skip"}
    plan = with_duplicates(
        source.names, order, done - skipped, again, config.duplicates, config.seed
    )
    return Session(source, opinion, log, by, plan)


def _invite(config: LabelConfig, address: str, port: int, redirect: Path) -> None:
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


def _say(labels: list[Label], by: str) -> None:
    """Print what the labels of this labeller are."""
    mine = [label for label in labels if label.by == by]
    found = counts(mine)
    print("in all " + ", ".join(f"{found[answer]} {answer}" for answer in ANSWERS) + ".")
    if any(label.again for label in mine):
        print(f"{agreement(mine)}.")
    if torn := contradictions(labels):
        print(f"{len(torn)} images have contradicting labels and will not be used.")


def _following(config: LabelConfig, session: Session) -> str:
    of_sitting = ("limit", "labeller") if session.unlabelled else ()
    names = (
        "run", "data", "video", "video_fps", "bundle", "order", *of_sitting, "duplicates", "seed",
        "out",
    )  # fmt: skip
    return after_labelling(non_default_options(config, names), session.left, session.unlabelled)
