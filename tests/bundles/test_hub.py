"""Bundles of the Hugging Face Hub, from a server on this machine that answers as the Hub does."""

from __future__ import annotations

import contextlib
import functools
import json
import re
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from vinoreward.bundles.bundle import Bundle, resolve_bundle
from vinoreward.bundles.hub import download
from vinoreward.errors import (
    BundleEditedError,
    BundleError,
    ConfigError,
    MissingExtraError,
    ModelNotFoundError,
)
from vinoreward_training.cli import main, with_folders

constants = pytest.importorskip("huggingface_hub.constants")

COMMIT = "0123456789abcdef0123456789abcdef01234567"
MINE = "me/tiny.reward-1"


class Hub(ThreadingHTTPServer):
    """Serves one repository's files under its branch and its commit."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.folder = folder
        self.asked: list[str] = []
        """Files, with the method."""
        self.sizes: dict[str, int] = {}
        """Stated instead of the files' own."""
        self.cut: str | None = None
        """A file of which half is sent."""
        self.endless: str | None = None
        """A file that does not end, or at 200 MB, whatever was stated."""
        self.sent = 0
        """Bytes of it."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Answers(BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        hub = self.server
        match = re.fullmatch(rf"/{MINE}/resolve/(main|v1|{COMMIT})/([^?]+)(\?.*)?", self.path)
        hub.asked.append(f"{self.command} {match[2] if match else self.path}")
        if match is None or not (hub.folder / match[2]).is_file():
            self.send_response(404)
            self.send_header("X-Error-Code", "EntryNotFound" if match else "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        data = (hub.folder / match[2]).read_bytes()
        size = hub.sizes.get(match[2], len(data))
        self.send_response(200)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{abs(hash(data)):040x}"')
        endless = self.command == "GET" and hub.endless == match[2]
        if not endless:
            self.send_header("Content-Length", str(size))
        self.end_headers()
        if endless:
            with contextlib.suppress(ConnectionError):
                while hub.sent < 200e6:
                    hub.sent += self.wfile.write(bytes(1 << 20))
        elif self.command == "GET":
            self.wfile.write(data[: len(data) // 2] if hub.cut == match[2] else data)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def hub(bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    (bundle.path / "evil.py").write_text("raise SystemExit")
    monkeypatch.setattr(constants, "HF_HOME", str(tmp_path / "home"))
    with Hub(bundle.path) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        pointed_to(server.url, monkeypatch)
        yield server
        server.shutdown()
        thread.join()


def pointed_to(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Do what HF_ENDPOINT does when huggingface_hub is imported."""
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "ENDPOINT", url)


def kept(tmp_path: Path) -> list[str]:
    """What lies in the cache of bundles."""
    home = tmp_path / "home" / "vinoreward"
    return sorted(str(path.relative_to(home)) for path in home.glob("*/*"))


@pytest.mark.parametrize("name", [f"hf://{MINE}@v1", f"{MINE}@{COMMIT}"])
def test_a_bundle_is_downloaded_by_its_name(hub: Hub, bundle: Bundle, name: str) -> None:
    found = Bundle.from_hub(name)
    assert found.path.name == COMMIT and found.spec == bundle.spec
    with found.backend("onnxruntime") as backend:  # runs its golden frames
        assert np.allclose(backend.infer(bundle.golden.images), bundle.golden.logits, atol=1e-4)
    # Its own files and no others.
    files = {path.name for path in found.path.iterdir()}
    assert files == {"bundle.json", "bundle.sha256", *bundle.spec.files}
    fetched = {line.split()[1] for line in hub.asked}
    assert fetched == files


def test_what_was_downloaded_is_not_downloaded_again(hub: Hub, bundle: Bundle) -> None:
    path = Bundle.from_hub(MINE).path
    hub.asked.clear()
    assert Bundle.from_hub(MINE).path == path
    assert hub.asked == ["HEAD bundle.json"]  # which commit main is now
    hub.asked.clear()
    assert Bundle.from_hub(f"{MINE}@{COMMIT}", sha256=bundle.sha256).path == path
    assert resolve_bundle(str(path)).path == path
    assert hub.asked == []


def test_nothing_but_an_explicit_wish_asks_the_hub(hub: Hub, tmp_path: Path) -> None:
    for ask in (Bundle.load, resolve_bundle):
        with pytest.raises(ModelNotFoundError, match=r"not asked here.*Bundle\.from_hub"):
            ask(f"hf:{MINE}")
    # A run of somebody else's that names one.
    run = tmp_path / "run"
    run.mkdir()
    settings = {"env": "PandaHover-v0", "bundle": f"hf:{MINE}", "out": str(run)}
    (run / "config.yaml").write_text(yaml.safe_dump(settings))
    assert main(["train", "--resume", "--out", str(run), "--timesteps", "10"]) == 1
    assert hub.asked == []


def test_a_command_takes_the_name(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from PIL import Image

    data = tmp_path / "data"
    for label in ("success", "failure"):
        (data / label).mkdir(parents=True)
        Image.new("RGB", (8, 6), (200, 9, 9)).save(data / label / "a.png")
    assert main(["score", "--data", str(data), "--bundle", f"hf:{MINE}"]) == 0
    assert re.search(rf"hf:{MINE} is in .*{COMMIT}\n", capsys.readouterr().out)
    assert len((data / "scores" / "tiny" / "scores.csv").read_text().splitlines()) == 3
    (word,) = with_folders("train", [f"--encoder=hf://{MINE}@v1"])
    assert word == f"--encoder={Bundle.from_hub(MINE).path}"
    assert with_folders("capture", ["--out", f"hf:{MINE}"]) == ["--out", f"hf:{MINE}"]
    hub.asked.clear()
    assert main(["calibrate", "--data", str(data), "--bundle", f"hf:{MINE}@v1"]) == 1
    said = capsys.readouterr().err
    assert f"hf download {MINE} --revision v1 --local-dir my-bundle" in said
    assert hub.asked == []


def replaced(hub: Hub, **changes: Any) -> None:
    """Change ``bundle.json``, with its hash, as its maker can."""
    from vinoreward.files import sha256

    path = hub.folder / "bundle.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    (hub.folder / "bundle.sha256").write_text(sha256(path) + "\n")


def with_file(name: str, hub: Hub) -> None:
    files = json.loads((hub.folder / "bundle.json").read_text())["files"]
    replaced(hub, files={**files, name: "ab" * 32})


def changed(hub: Hub) -> None:
    path = hub.folder / "model.onnx"
    path.write_bytes(path.read_bytes() + b" ")


@pytest.mark.parametrize(
    ("harm", "error", "says"),
    [
        (functools.partial(with_file, "evil.py"), BundleError, "lists 'evil.py'. Expected a"),
        (functools.partial(with_file, "../model.onnx"), BundleError, "plain relative name"),
        (lambda hub: hub.sizes.update({"model.onnx": 600 << 20}), BundleError, "model.onnx of me/"),
        (changed, BundleEditedError, "SHA-256"),
        (lambda hub: setattr(hub, "cut", "model.onnx"), ModelNotFoundError, "cannot be had from"),
        (lambda hub: (hub.folder / "bundle.json").unlink(), ModelNotFoundError, "cannot be had"),
    ],
)
def test_what_is_no_bundle_is_refused_and_not_kept(
    hub: Hub, tmp_path: Path, harm: Any, error: type[Exception], says: str
) -> None:
    harm(hub)
    with pytest.raises(error, match=re.escape(says)):
        Bundle.from_hub(MINE)
    assert kept(tmp_path) == []
    assert "GET evil.py" not in hub.asked
    if hub.sizes:
        assert f"GET {next(iter(hub.sizes))}" not in hub.asked  # not even begun


def test_a_body_that_is_longer_than_stated_is_cut_off(hub: Hub, tmp_path: Path) -> None:
    hub.endless = file = "model.onnx"
    with pytest.raises(ModelNotFoundError, match=rf"{file} has more than the \d+ bytes that were"):
        Bundle.from_hub(MINE)
    assert kept(tmp_path) == []
    assert hub.sent < 100e6


def test_a_name_that_is_none() -> None:
    for name in ("hf:tiny", "hf:a/b/c", "hf:../tiny", "hf:me/tiny@", "https://huggingface.co/a/b"):
        with pytest.raises(ConfigError, match="Expected hf:owner/name or hf:owner/name@revision"):
            Bundle.from_hub(name)


def test_a_hub_that_has_it_not_or_cannot_be_reached(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ModelNotFoundError, match=r"hf:me/other cannot be had.*Expected a repos"):
        Bundle.from_hub("hf:me/other")
    path = Bundle.from_hub(MINE).path
    pointed_to("http://127.0.0.1:9", monkeypatch)  # nobody listens there
    with pytest.raises(ModelNotFoundError, match=r"name a commit that was downloaded before"):
        Bundle.from_hub(MINE)
    assert download(f"{MINE}@{COMMIT}") == path


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtraError, match=r"Hub needs huggingface_hub.*\[hub\]"):
        Bundle.from_hub(MINE)
