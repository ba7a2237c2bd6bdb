"""A reward beside a camera: what is scored, what is said, what keys do, and how it ends."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from fake_cameras import fake_camera, grey_levels, noisy
from label_logs import write_film
from PIL import Image
from tiny_network import brightness_bundle

from vinoreward import RewardModel, RewardOptions
from vinoreward.errors import ConfigError, DatasetError, InputError, RunFolderError
from vinoreward.rewards.frozen import FROZEN
from vinoreward_training.cli import main
from vinoreward_training.data.dataset import load_dataset
from vinoreward_training.data.dataset_files import read_metadata
from vinoreward_training.watch.cameras import Camera, open_camera
from vinoreward_training.watch.claims import ClaimCommand
from vinoreward_training.watch.clicks import Clicks
from vinoreward_training.watch.repeats import RepeatCheck
from vinoreward_training.watch.session import Status, watch

SHIPPED = "panda-hover-classifier"


@pytest.fixture
def model(tmp_path: Path) -> Iterator[RewardModel]:
    """Claims success of bright images, of 6 x 8 pixels or resized to that."""
    bundle = brightness_bundle(tmp_path / "model.onnx", 6, 8)
    made = RewardModel(bundle, RewardOptions(success_threshold=0.8))
    yield made
    made.close()


def folder_of(path: Path, images: Any) -> Path:
    path.mkdir(parents=True)
    for index, image in enumerate(images):
        Image.fromarray(image).save(path / f"{index:04d}.png")
    return path


def pressed(*plan: tuple[int, str], shown: list[Status]) -> Callable[[], str]:
    """Return keys: each once that many images were shown."""
    left = list(plan)

    def keys() -> str:
        return left.pop(0)[1] if left and len(shown) >= left[0][0] else ""

    return keys


def test_every_image_of_a_folder_is_scored_as_the_classifier_does(tmp_path: Path) -> None:
    scored = RewardModel(SHIPPED, RewardOptions())
    images = scored.classifier.bundle.golden.images
    claims: list[tuple[float, float]] = []
    camera = open_camera(str(folder_of(tmp_path / "images", images)), 200.0)
    status = watch(camera, scored, on_claim=lambda *claim: claims.append(claim))
    expected = scored.classifier.compute_reward(images) > 0
    probability = scored.classifier.predict(images).probability
    scored.close()
    begins = expected & ~np.append(False, expected[:-1])
    assert status.scored == status.images == len(images) and not status.dropped
    assert status.claims == len(claims) == begins.sum() > 0
    found = [probability for _, probability in claims]
    np.testing.assert_allclose(found, probability[begins], atol=1e-6)
    assert abs(claims[-1][0] - time.time()) < 60
    assert status.false_positives == "false positives <= 0.29% of images"


def test_a_video_is_played_at_its_own_speed_and_wholly(tmp_path: Path, model: RewardModel) -> None:
    images = grey_levels(*[60] * 20, *[230] * 20, size=(48, 64))
    film = write_film(tmp_path / "film.mp4", images, 50)
    camera = open_camera(str(film))
    assert camera.hz == 50
    begun = time.perf_counter()
    status = watch(camera, model)
    assert status.scored == 40 and status.claims == 1 and not status.dropped
    assert time.perf_counter() - begun >= 39 / 50


def test_a_damaged_video_is_an_error(tmp_path: Path, model: RewardModel) -> None:
    images = np.random.default_rng(0).integers(0, 256, (60, 48, 64, 3), dtype=np.uint8)
    film = write_film(tmp_path / "film.mkv", images)
    content = film.read_bytes()
    film.write_bytes(content[: len(content) // 2])
    with pytest.raises(DatasetError, match="cannot be read as a video"):
        watch(open_camera(str(film), 1000.0), model)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("97", "a camera that answers"),
        ("/dev/video97", "a camera that answers"),
        ("rtsp://me:secret@127.0.0.1:9/x", "a camera that answers"),
        ("nothing-there", "a video or folder of images that is there"),
        ("x" * 5000, "a video or folder of images that is there"),
    ],
)
def test_a_camera_that_is_not_there(name: str, expected: str, tmp_path: Path) -> None:
    pytest.importorskip("cv2")
    with pytest.raises(ConfigError, match=expected) as caught:
        open_camera(name)
    assert "secret" not in str(caught.value)
    with pytest.raises(DatasetError, match="holds no images"):
        open_camera(str(tmp_path))


def test_a_camera_that_stalls_drops_and_ends(model: RewardModel) -> None:
    said: list[str] = []
    images, waits, closed = grey_levels(*range(40, 240, 2)), {20: 1.4, 60: 0.1}, list[bool]()
    camera = fake_camera(images, hz=50, waits=waits, closed=lambda: closed.append(True))
    status = watch(camera, model, say=said.append)
    text = "\n".join(said)
    assert "the camera stalls: no image for 1." in text
    assert "dropped" in text and status.dropped >= 70  # 70 and 5 that were never made
    assert "gives no more images" in said[-1]
    assert closed and status.images + status.dropped >= 170


def test_a_live_camera_that_is_too_fast_shows_the_newest_image(model: RewardModel) -> None:
    camera = fake_camera(grey_levels(*range(40, 140)), hz=100)
    status = watch(camera, model, show=lambda status: time.sleep(0.05))
    assert status.images < 100 and status.images + status.dropped >= 99
    assert status.missed > 0  # an image that waited for the one before
    assert status.image[3, 3, 0] == 139


def test_images_that_come_late_all_at_once_are_dropped_once(model: RewardModel) -> None:
    def images() -> Iterator[Any]:
        for first in range(40, 45):
            time.sleep(0.2)
            yield from grey_levels(*range(first, first + 20))

    begun = time.perf_counter()
    status = watch(Camera(images(), hz=100), model)
    due = 100 * (time.perf_counter() - begun)
    assert status.images < 100 <= status.images + status.dropped <= 1.1 * due + 10


def test_a_camera_that_changes_its_size(tmp_path: Path, model: RewardModel) -> None:
    images = [*grey_levels(50, 51), *grey_levels(230, 60, size=(12, 16))]
    said: list[str] = []
    status = watch(fake_camera(images, live=False), model, say=said.append)
    assert status.scored == 4 and status.claims == 1
    assert "changed from 6 x 8 to 12 x 16" in said[0]

    fixed = RewardModel(SHIPPED, RewardOptions())
    whole = grey_levels(90, 90, size=(96, 128))
    images = [whole[0], *grey_levels(90, size=(48, 64)), whole[1]]
    status = watch(fake_camera(images, live=False), fixed, say=said.append)
    assert (status.scored, status.unscored) == (2, 1)
    assert any("cannot be scored" in one and "96 x 128" in one for one in said)
    with pytest.raises(ConfigError, match="96 x 128"):
        watch(fake_camera(images[1:], live=False), fixed, say=said.append)
    fixed.close()


@pytest.mark.parametrize(
    ("image", "sentence"),
    [
        (grey_levels(90)[0][..., 0], "grey images"),
        (grey_levels(90)[0][..., :1], "grey images"),
        (np.full((6, 8, 3), 90, np.uint8), "one colour only"),
    ],
)
def test_an_image_without_colour(image: Any, sentence: str, model: RewardModel) -> None:
    said: list[str] = []
    status = watch(fake_camera([image] * 3, live=False), model, say=said.append)
    assert status.scored == 3
    assert len([one for one in said if sentence in one]) == 1


def test_what_is_no_image_is_said_and_passed_over(tmp_path: Path, model: RewardModel) -> None:
    folder = folder_of(tmp_path / "images", grey_levels(230, 231, 232))
    (folder / "0001.png").write_bytes(b"no image")
    said: list[str] = []
    status = watch(open_camera(str(folder), 100.0), model, say=said.append)
    assert (status.images, status.scored, status.unscored) == (3, 2, 1)
    assert "0001.png cannot be read as an image" in said[0]
    assert status.claims == 2  # a success that is not seen has ended
    with pytest.raises(InputError, match="float64"):
        watch(fake_camera([np.zeros((6, 8, 3))], live=False), model)


def test_a_camera_with_noise_that_repeats_an_image_is_frozen(model: RewardModel) -> None:
    said: list[str] = []
    bright = noisy(60, 230)
    still = [bright[-1]] * 130
    status = watch(fake_camera([*bright, *still], hz=100, live=False), model, say=said.append)
    assert status.repeated == 130
    assert status.out_of_distribution >= 20 and not status.claimed
    assert any("frozen, and its claims do not count" in one for one in said)


def test_images_without_noise_may_stand_still() -> None:
    claims, mask = np.ones(1, np.bool_), np.ones(1, np.bool_)
    check, image = RepeatCheck(), np.zeros((6, 8, 3), np.uint8)

    def score(shown: Any, second: float) -> float:
        return float(check.ood_score(mask, shown[None], np.full((1, 1), second), claims)[0])

    for step in range(100):
        image[step % 6, step % 8] += 1
        assert score(image, step / 30) == 0
    assert [score(image, 100.0 + step) for step in range(5)] == [0.0] * 5
    assert check.repeated == 5 and check.shown_for > 1
    for step, one in enumerate(noisy(60)):
        score(one, 200.0 + step / 30)
    assert score(one, 202.5) == 0 and score(one, 203.5) == FROZEN


def test_keys_label_the_image_that_is_shown(tmp_path: Path, model: RewardModel) -> None:
    out, shown, said = tmp_path / "clicks", list[Status](), list[str]()
    plan = (1, "s"), (2, "f"), (3, "nx"), (4, "s"), (5, "f"), (6, "s"), (7, "u"), (8, "q")
    clicks = Clicks(out, "here")
    status = watch(
        fake_camera(grey_levels(*range(20, 220)), hz=20, live=False),
        model,
        clicks=clicks,
        keys=pressed(*plan, shown=shown),
        show=shown.append,
        say=said.append,
    )
    clicks.close()
    assert status.labels == clicks.counts == (2, 2) and status.images < 20
    assert "took back success/000001-000003.png" in "\n".join(said)
    data = load_dataset(out)
    by_image = dict(zip(data.images[:, 3, 3, 0].tolist(), data.labels.tolist(), strict=True))
    levels = [int(one.image[3, 3, 0]) for one in shown]
    expected = {0: 1, 1: 0, 3: 1, 4: 0}
    assert by_image == {levels[index]: label for index, label in expected.items()}
    assert sorted(data.episodes.tolist()) == [0, 0, 1, 1]


def test_labels_resume_change_and_are_locked(tmp_path: Path) -> None:
    out, (image,) = tmp_path / "clicks", grey_levels(90)
    first = Clicks(out, "here")
    assert not out.exists()
    assert first.add(image, True, 0, 7) == "labelled success"
    assert first.add(image, False, 0, 7) == "labelled failure"
    assert first.counts == (0, 1) and [row["label"] for row in read_metadata(out)] == ["failure"]
    with pytest.raises(RunFolderError, match="in use"):
        Clicks(out, "here")
    first.close()
    second = Clicks(out, "there")
    assert second.first_episode == 1 and second.counts == (0, 1)
    assert second.undo() == "no label of this session is left to undo"
    second.add(image, True, 1, 1)
    assert second.undo() == "took back success/000001-000001.png" and second.counts == (0, 1)
    assert [file.name for file in out.rglob("*.png")] == ["000000-000007.png"]
    second.close()
    new, other = Clicks(tmp_path / "new", "a"), Clicks(tmp_path / "new", "b")
    new.add(image, True, 0, 1)
    new.close()
    with pytest.raises(RunFolderError, match="another process has labelled"):
        other.add(image, True, 0, 1)
    other.close()


def test_labels_do_not_go_into_another_dataset(tmp_path: Path) -> None:
    folder_of(tmp_path / "mine" / "success", grey_levels(90))
    with pytest.raises(ConfigError, match="labels of vinoreward watch"):
        Clicks(tmp_path / "mine", "here")


def test_a_command_runs_for_each_claim_one_at_a_time(tmp_path: Path) -> None:
    seen, said = tmp_path / "seen", list[str]()
    line = f"echo $VINOREWARD_TIME $VINOREWARD_PROBABILITY >> {seen}; sleep 0.5; exit 3"
    run = ClaimCommand(f"sh -c '{line}'", said.append)
    run(1.25, 0.75)
    run(2.25, 0.8)  # while the command runs
    run.close()
    run(3.25, 0.875)
    run.close()
    assert seen.read_text().split() == ["1.250", "0.75", "3.250", "0.875"]
    assert said == ["sh ended with the status 3"] * 2


def test_a_command_that_cannot_run(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ("no-such-program now", "'unfinished", ""):
        with pytest.raises(ConfigError, match="a program that is there"):
            ClaimCommand(words, print)
    assert main(["watch", "--camera", "0", "--on-claim", "true"]) == 1
    assert "--on-claim 'true'" in capsys.readouterr().err


def test_a_window_shows_the_status_and_takes_keys(
    model: RewardModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    pygame = pytest.importorskip("pygame")
    from vinoreward_training.watch.screens import Window

    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    drawn: list[np.ndarray] = []
    with Window("a camera") as window:

        def show(status: Status) -> None:
            window.show(status)
            drawn.append(pygame.surfarray.array3d(pygame.display.get_surface()))
            if status.claimed:
                pygame.event.post(pygame.event.Event(pygame.KEYDOWN, unicode="n", key=0))
                pygame.event.post(pygame.event.Event(pygame.QUIT))

        camera = fake_camera(grey_levels(*[20] * 4, *[230] * 96), hz=50, live=False)
        status = watch(camera, model, keys=window.keys, show=show, say=str)
    assert status.images < 100
    assert drawn[0][320, 240].tolist() == [20, 20, 20]
    assert drawn[-1][320, 240].tolist() == [230, 230, 230]
    green = [one[1, 240].tolist() == [110, 200, 120] for one in drawn]
    assert not green[0] and green[-1]


@contextlib.contextmanager
def started(*words: str, tty: bool) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Start the command; yield it and what reads its output and, of a terminal, writes keys."""
    ours, theirs = pty.openpty() if tty else os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "vinoreward_training.cli", "watch", "--no-window", *words],
        stdin=theirs if tty else subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def read_until(ours: int, pattern: str) -> str:
    """Return the output up to a pattern in it, or the end."""
    text = ""
    while not re.search(pattern, text) and select.select([ours], [], [], 60)[0]:
        with contextlib.suppress(OSError):  # a terminal's end
            if piece := os.read(ours, 4096):
                text += piece.decode()
                continue
        break
    return text


def test_keys_in_a_terminal(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "images", grey_levels(*range(20, 220), size=(96, 128)))
    words = ("--camera", str(folder), "--out", str(tmp_path / "clicks"), "--hz", "20")
    with started(*words, tty=True) as (process, ours):
        text = read_until(ours, r"image \d+ ")
        os.write(ours, b"s")
        text += read_until(ours, "labelled success; 1 . 0 in ")
        os.write(ours, b"q")
        text += read_until(ours, "next: .*\n")
        assert process.wait(30) == 0
    assert "\x1b[K" in text and "labels: 1 success, 0 failure" in text
    assert "next: vinoreward finetune --data" in text
    assert len(list(read_metadata(tmp_path / "clicks"))) == 1


def test_ctrl_c_ends_with_a_summary(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "images", grey_levels(*range(20, 220), size=(96, 128)))
    out = tmp_path / "clicks"
    words = ("--camera", str(folder), "--bundle", SHIPPED, "--hz", "10", "--out", str(out))
    with started(*words, tty=False) as (process, ours):
        text = read_until(ours, r"image \d+ ")
        process.send_signal(signal.SIGINT)
        text += read_until(ours, "repeated\\.\n")
        assert process.wait(30) == 0
    assert re.search(r"\d+ images, \d+ scored", text) and "p99" in text
    assert "\x1b" not in text and not out.exists()


@pytest.mark.full
def test_memory_is_flat_over_3000_images() -> None:
    scored = RewardModel(SHIPPED, RewardOptions())
    images = np.random.default_rng(0).integers(0, 256, (64, 96, 128, 3), dtype=np.uint8)
    process, used = psutil.Process(), list[int]()

    def endless() -> Iterator[Any]:
        for index in range(3000):
            if index % 500 == 0:
                used.append(process.memory_info().rss)
            yield images[index % 64]

    camera = fake_camera(endless(), hz=1000, live=False)
    status = watch(camera, scored, show=str)
    scored.close()
    assert status.scored == 3000
    assert used[-1] - used[1] < 4 * 2**20
