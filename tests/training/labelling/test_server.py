"""The program in a process of its own: attacks, resuming, full disks, SIGKILL."""

from __future__ import annotations

import io
import json
import queue
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
from label_logs import write_images
from labelling_client import Client, Labelling
from PIL import Image

from vinoreward.errors import ConfigError, RunFolderError
from vinoreward.images import read_image
from vinoreward_training.configs import LabelConfig
from vinoreward_training.labelling.command import invite, run
from vinoreward_training.labelling.labels import read_labels
from vinoreward_training.labelling.server import HEADERS, MAX_BODY
from vinoreward_training.labelling.sources import digest_of
from vinoreward_training.policy.claims import ClaimSample
from vinoreward_training.runs.settings import Settings

NAMES = [f"{number:02d}.png" for number in range(30)]
FILES = ("/", "/page.js", "/page.css")
ANSWERED = ("/api/state", "/api/summary", "/image/0")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_images(tmp_path / "images", NAMES)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Labelling]:
    """A page that nobody has entered."""
    folder = write_images(tmp_path_factory.mktemp("images"), NAMES)
    with Labelling(["--data", str(folder)]) as running:
        yield running


def entered(running: Labelling) -> Client:
    client = Client(running.port)
    assert client.enter(running.token) == 200
    return client


def label_all(client: Client, answer: str = "success", most: int = 1000) -> list[int]:
    """Label until nothing is left; return the numbers of the images."""
    _, state = client.value("/api/state")
    numbers = []
    while state["image"] is not None and len(numbers) < most:
        numbers.append(state["image"])
        status, state = client.label(state["image"], answer)
        assert status == 200, state
    return numbers


# Who may ask


@pytest.mark.parametrize(
    "host",
    [None, "evil.example:{port}", "127.0.0.1:1", "127.0.0.1:{port}.x", "0.0.0.0:{port}"],
)  # fmt: skip
def test_another_host_is_refused(running: Labelling, host: str | None) -> None:
    given = None if host is None else host.replace("{port}", str(running.port))
    for path in ("/", "/api/state", "/image/0"):
        status, _, body = Client(running.port).ask(path, headers={"Host": given})
        assert status in (400, 421)  # without a host it is not even HTTP
        assert b"<html" not in body


@pytest.mark.parametrize(
    "origin",
    [None, "null", "https://127.0.0.1:{port}", "http://127.0.0.1:1",
     "http://127.0.0.1:{port}.evil.example"],
)  # fmt: skip
def test_another_origin_is_refused(running: Labelling, origin: str | None) -> None:
    given = None if origin is None else origin.replace("{port}", str(running.port))
    body = {"token": running.token}  # and the token is not spent by it
    for path in ("/api/enter", "/api/label", "/api/undo"):
        status, headers, _ = Client(running.port).ask(path, body, headers={"Origin": given})
        assert status == 403
        assert "set-cookie" not in headers


def test_without_the_cookie_nothing_is_told(running: Labelling) -> None:
    client = Client(running.port)
    for cookie in (None, "", f"vinoreward-label-{running.port}=", "a=b", "vinoreward-label=x"):
        for path in ANSWERED:
            status, _, body = client.ask(path, headers={"Cookie": cookie})
            assert status == 401 and b"png" not in body.lower()
        for path in ("/api/label", "/api/undo"):
            status, _, _ = client.ask(path, {}, headers={"Cookie": cookie})
            assert status == 401


def test_every_answer_forbids_what_the_page_does_not_need(running: Labelling) -> None:
    policy = {part.strip() for part in HEADERS["Content-Security-Policy"].split(";")}
    assert policy >= {
        "default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self' blob:",
        "connect-src 'self'", "frame-ancestors 'none'",
    }  # fmt: skip
    assert "unsafe" not in str(policy)
    client = Client(running.port)
    asked = [client.ask(path) for path in (*FILES, *ANSWERED, "/none", "/favicon.ico")]
    asked += [client.ask("/", headers={"Host": "evil.example"})]
    asked += [client.ask("/", method=verb) for verb in ("OPTIONS", "HEAD")]
    for _, headers, _ in asked:
        assert headers.items() >= {name.lower(): value for name, value in HEADERS.items()}.items()
        assert not [name for name in headers if name.startswith("access-control")]


def test_only_small_json_is_read(running: Labelling) -> None:
    client = Client(running.port)
    assert client.ask("/api/enter", b"x" * (MAX_BODY + 1))[0] == 413
    plain: dict[str, str | None] = {"Content-Type": "text/plain"}
    assert client.ask("/api/label", {}, headers=plain)[0] == 415
    # Without a length, in pieces.
    with socket.create_connection(("127.0.0.1", running.port), timeout=10) as raw:
        own = f"127.0.0.1:{running.port}"
        raw.sendall(
            f"POST /api/enter HTTP/1.1\r\nHost: {own}\r\nOrigin: http://{own}\r\n"
            "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        )
        for _ in range(MAX_BODY // 1024 + 1):
            raw.sendall(b"400\r\n" + b"x" * 1024 + b"\r\n")
        assert b" 413 " in raw.recv(100)  # before the end of it


def test_it_listens_on_this_machine_alone(running: Labelling) -> None:
    hexadecimal = f"{running.port:04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    own = [row[1] for row in rows if row[1].endswith(f":{hexadecimal}") and row[3] == "0A"]
    assert own == [f"0100007F:{hexadecimal}"]
    six = [line.split() for line in Path("/proc/net/tcp6").read_text().splitlines()[1:]]
    assert not [row for row in six if row[1].endswith(f":{hexadecimal}") and row[3] == "0A"]


def test_the_door(folder: Path) -> None:
    """The token works once; the cookie is for this page alone; nonsense labels nothing."""
    with Labelling(["--data", str(folder)]) as running:
        client = Client(running.port)
        status, headers, body = client.ask("/api/enter", {"token": running.token})
        assert status == 200 and running.token.encode() not in body
        cookie = headers["set-cookie"].lower()
        assert "httponly" in cookie and "samesite=strict" in cookie and "path=/" in cookie
        assert str(running.port) in cookie.partition("=")[0]
        assert running.token.lower() not in cookie
        for token in (running.token, "", None, [], "\ud800", "x" * 2000):
            status, found, _ = Client(running.port).ask("/api/enter", {"token": token})
            assert status in (400, 403) and "set-cookie" not in found
        client.cookie = headers["set-cookie"].partition(";")[0]
        _, state = client.value("/api/state")
        # An image that is far ahead is not given, nor by a name.
        for name in (
            "29",
            "00.png",
            "../../etc/passwd",
            "..%2f00.png",
            "9" * 5000,
            "-1",
            quote("²"),
        ):
            assert client.ask(f"/image/{name}")[0] == 404
        number = state["image"]
        for body_of in (
            {"image": number, "label": "maybe", "seconds": 1},
            {"image": "0", "label": "success", "seconds": 1},
            {"image": number, "label": "success", "seconds": -1},
            {"image": number, "label": "success", "seconds": float("nan")},
            {"image": number, "label": "success"},
            [], "x", 1, None, {"image": "../00.png"},
        ):  # fmt: skip
            body = json.dumps(body_of).encode()
            assert client.ask("/api/label", body)[0] == 400, body_of
        assert client.ask("/api/label", b"[" * 4000)[0] == 400
        assert client.ask("/api/label", b"\xff")[0] == 400
        assert client.value("/api/label", {"image": 7, "label": "skip", "seconds": 1})[0] == 409
        assert client.value("/api/undo", {"done": 0})[0] == 409
        assert client.value("/api/undo", {})[0] == 400
        assert client.value("/api/state")[1] == state
        assert (folder / "labels.jsonl").read_bytes() == b""
        assert "Traceback" not in running.stop()


# Labelling


def test_images_and_labels_belong_together(folder: Path) -> None:
    with Labelling(["--data", str(folder), "--labeller", "Zoë 李"]) as running:
        client = entered(running)
        digests, answers = [], []
        _, state = client.value("/api/state")
        assert state["total"] == 32 and state["done"] == 0  # two of thirty come twice
        shown = set(state)
        assert "duplicate" not in shown
        while state["image"] is not None:
            status, headers, data = client.ask(f"/image/{state['image']}")
            assert status == 200 and headers["content-type"] == "image/png"
            with Image.open(io.BytesIO(data)) as opened:
                digests.append(digest_of(np.asarray(opened)))
            for ahead in state["ahead"]:
                assert client.ask(f"/image/{ahead}")[0] == 200
            answers.append(("success", "failure", "skip")[len(answers) % 3])
            assert set(state) == shown, "nothing tells a duplicate apart"
            number = state["image"]
            status, state = client.label(number, answers[-1])
            assert status == 200
            if len(answers) == 1:  # a repeated label counts once
                assert client.label(number, answers[0]) == (200, state)
                assert client.label(number, "failure")[0] == 409
        _, summary = client.value("/api/summary")
        said = running.stop()
    labels = read_labels(folder / "labels.jsonl")
    assert [label.label for label in labels] == answers
    assert [label.sha256 for label in labels] == digests
    for label in labels:
        assert digest_of(read_image(folder / label.image)) == label.sha256
        assert label.by == "Zoë 李" and label.seconds == 0.5
    first = [label.image for label in labels if not label.duplicate]
    assert sorted(first) == NAMES != first
    skipped = {label.image for label in labels if label.label == "skip" and not label.duplicate}
    twice = [label.image for label in labels if label.duplicate]
    assert not set(twice) & skipped  # what nobody can say is not asked again
    counted = Counter(label.label for label in labels if not label.duplicate)
    assert summary["counts"] == counted and counted.total() == 30
    assert f"{len(labels)} labelled now, 0 left" in said
    assert "next: vinoreward label --data" in said and "--labeller SOMEBODY-ELSE" in said


def test_a_second_start_goes_on(folder: Path) -> None:
    command = ["--data", str(folder), "--labeller", "ann"]
    with Labelling([*command, "--limit", "12"]) as running:
        client = entered(running)
        label_all(client)
        _, summary = client.value("/api/summary")
        assert summary["unlabelled"] == 18 and summary["classifier"] is None
        assert summary["counts"]["success"] == 12
    with Labelling(command) as running:
        client = entered(running)
        _, state = client.value("/api/state")
        assert state["done"] >= 12 and state["undo"]
        # Undo reaches into the earlier sitting.
        assert client.value("/api/undo", {"done": state["done"]})[1]["done"] == state["done"] - 1
        label_all(client, "failure")
    labels = read_labels(folder / "labels.jsonl")
    first = [label.image for label in labels if not label.duplicate]
    assert sorted(first) == NAMES
    answers = [label.label for label in labels if not label.duplicate]
    assert answers.count("success") in (11, 12)
    # Everything is labelled: there is no page to open.
    with pytest.raises(RunFolderError, match="has labelled all 30"), Labelling(command):
        pass


def test_images_that_cannot_be_read_are_passed_over(folder: Path) -> None:
    (folder / "00.png").write_bytes(b"no image")
    (folder / "01.png").unlink()
    (folder / "01.png").mkdir()
    bomb = Image.new("1", (20000, 20000))
    bomb.save(folder / "02.png")
    write_images(folder, ["03.png"], (100, 3000))  # shown smaller, labelled whole
    with Labelling(["--data", str(folder)]) as running:
        client = entered(running)
        _, state = client.value("/api/state")
        sizes = set()
        while state["image"] is not None:
            with Image.open(io.BytesIO(client.ask(f"/image/{state['image']}")[2])) as opened:
                sizes.add(opened.size)
            _, state = client.label(state["image"], "success")
        assert state["unreadable"] == 2 and state["done"] == state["total"] >= 27
    assert sizes == {(16, 12), (2048, 68)}
    digests = {label.image: label.sha256 for label in read_labels(folder / "labels.jsonl")}
    assert set(digests) == set(NAMES[3:])
    assert digests["03.png"] == digest_of(read_image(folder / "03.png"))


# What may go wrong


def test_a_full_disk_while_labelling(folder: Path) -> None:
    with Labelling(["--data", str(folder)], limit_bytes=1200) as running:
        client = entered(running)
        _, state = client.value("/api/state")
        acknowledged = 0
        while True:
            status, answer = client.label(state["image"], "success")
            if status != 200:
                break
            acknowledged, state = acknowledged + 1, answer
        assert status == 507 and 2 < acknowledged < 10
        assert "cannot write" in answer["error"] and "free some space" in answer["error"]
        # The same image is still to be labelled, and nothing is lost.
        assert client.value("/api/state")[1] == state
        assert client.value("/api/undo", {"done": acknowledged})[0] in (200, 507)
    whole = (folder / "labels.jsonl").read_bytes()
    assert whole.endswith(b"\n") and len(whole) <= 1200
    lines = [json.loads(line) for line in whole.splitlines()]
    assert sum("label" in line for line in lines) == acknowledged


# Where images come from


def test_claims_come_in_the_order_of_the_draw_however_doubtful(tmp_path: Path) -> None:
    sample = ClaimSample(tmp_path, 1, size=20)
    random = np.random.default_rng(0)
    draws = {}
    for episode in range(20):
        drawn = sample.wants(episode)
        assert drawn is not None
        draws[f"{episode:06d}.png"] = drawn
        image = random.integers(0, 256, (6, 8, 3), dtype=np.uint8)
        sample.add(image, drawn, step=episode, episode=episode, probability=0.5 + episode / 50)
    sample.write()
    order = sorted(draws, key=lambda name: draws[name])
    assert order != sorted(order), "the draw is not the order of the episodes"
    for limit in (7, 5):  # and a second sitting goes on
        words = ["--run", str(tmp_path)]
        with Labelling([*words, "--limit", str(limit)]) as running:
            label_all(entered(running))
    labels = read_labels(tmp_path / "labels.jsonl")
    assert [label.image for label in labels if not label.duplicate] == order[:12]
    bound = sample.labelled()
    assert bound is not None and bound.successes == bound.labels == 12


# The command


REFUSALS = [
    ([], "run"),
    (["--data", "a", "--run", "b"], "run"),
    (["--data", "a", "--limit", "0"], "limit"),
    (["--data", "a", "--labeller", "a\nb"], "labeller"),
]


@pytest.mark.parametrize(("words", "field"), REFUSALS)
def test_what_cannot_work_is_refused(words: list[str], field: str) -> None:
    with pytest.raises(ConfigError) as refused:
        run(Settings(LabelConfig).parse(words, prog="vinoreward label"))
    assert refused.value.field == field


def test_where_there_is_no_browser_the_way_over_ssh_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    opened: queue.Queue[str] = queue.Queue()
    monkeypatch.setattr("webbrowser.open", opened.put)
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("WAYLAND_DISPLAY", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DISPLAY", ":0")
    page, redirect = "http://127.0.0.1:5000/#token", tmp_path / "label.html"
    invite(LabelConfig(data=Path("x")), page, 5000, redirect)
    # Every user can read the browser's command line.
    assert opened.get(timeout=5) == redirect.as_uri()
    assert page in redirect.read_text() and redirect.stat().st_mode & 0o777 == 0o600
    said = capsys.readouterr().out
    assert page in said and "ssh" not in said
    monkeypatch.setenv("SSH_CONNECTION", "1 2 3 4")
    invite(LabelConfig(data=Path("x")), page, 5000, redirect)
    said = capsys.readouterr().out
    assert page in said and "ssh -L 5000:127.0.0.1:5000" in said
    assert opened.empty()
