"""vinoreward audit: progress that does not fall without its cause, or rises on its own."""

from __future__ import annotations

import html
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from toy_environments import HEIGHT, WIDTH, Corridor, save_progress_bundle, save_toy_bundle

from vinoreward.rewards.classifier import Classifier, Prediction
from vinoreward.rewards.interventions import Intervention
from vinoreward_training.audit.checks import Subject, score_images
from vinoreward_training.audit.command import AuditOptions, audit
from vinoreward_training.audit.env import AuditEnv
from vinoreward_training.audit.interventions import InterventionReport, intervene
from vinoreward_training.audit.pairs import compare_pairs
from vinoreward_training.audit.progress import ProgressReport, compare_progress
from vinoreward_training.cli import main
from vinoreward_training.data.dataset import load_dataset

FAR, NEAR = 60, 200
"""Red, the cause, and blue, a clock, of a failure and of a success; 178 of red is claimed."""
REMOVED = "8 of 8 claims have as much progress when the cause is removed; at most 5% may"
BACKWARDS = "40 of 40 episodes have as much progress where they are farther from success"


def write(path: Path, red: int, blue: int, number: int) -> None:
    image = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    image[..., 0], image[..., 2], image[0, 0, 1] = red, blue, number  # no two alike
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path)


def write_episodes(folder: Path, *steps: str) -> Path:
    """40 episodes of failures so many steps before success; with one, each has the success too."""
    rows = ["file,label,episode,to_success"]
    for number in range(40):
        frames = [("failure", FAR, number, left) for left in steps]
        frames.append(("success", NEAR, number if len(steps) == 1 else 40 + number, "0"))
        for index, (label, level, episode, left) in enumerate(frames):
            write(folder / label / f"{number}-{index}.png", level, level, 4 * number + index)
            rows.append(f"{label}/{number}-{index}.png,{label},{episode},{left}")
    (folder / "metadata.csv").write_text("\n".join(rows) + "\n")
    return folder


def write_pairs(folder: Path) -> Path:
    for name, red in (("success", NEAR), ("removed", 20)):
        for number in range(8):
            write(folder / name / f"{number}.png", red, NEAR, number)
    return folder


def compared(classifier: Classifier, folder: Path, new: bool = True) -> ProgressReport:
    dataset = load_dataset(folder)
    every, allowed = np.arange(len(dataset.images)), np.full(len(dataset.images), new)
    return compare_progress(Subject(classifier), dataset, allowed, every, 5.0)


@pytest.mark.parametrize(
    ("gains", "expected"),
    [((1, 0, 0), []), ((0, 0, 1), [REMOVED]), ((0, 0, 0), [BACKWARDS, REMOVED]),
     ((3, 0, 0), ["of 40 still images gain more than 0.1 progress"])],
    ids=["good", "clock", "nothing", "brightness"],
)  # fmt: skip
def test_progress_that_is_none_is_a_fault(gains: Any, expected: list[str], tmp_path: Path) -> None:
    with Classifier(save_progress_bundle(tmp_path / "toy", gains)) as classifier:
        report = compared(classifier, write_episodes(tmp_path / "data", "5"))
        compare_pairs(Subject(classifier), write_pairs(tmp_path / "pairs"), report)
    faults = [check.sentence for check in report.checks() if check.failed]
    pairs = zip(expected, faults, strict=True)
    assert report.episodes == 40 and all(one in fault for one, fault in pairs)


def test_an_episode_that_says_nothing_is_not_compared(tmp_path: Path) -> None:
    """Of 5 steps 0.4 are less than a tenth; beyond 5 progress is 0 anyway."""
    with Classifier(save_progress_bundle(tmp_path / "toy")) as classifier:
        for steps, episodes in ((("",), 0), (("0.4",), 0), (("9", "6"), 0), (("9", "2"), 40)):
            folder = write_episodes(tmp_path / "-".join(steps) / "data", *steps)
            assert compared(classifier, folder).episodes == episodes
        assert compared(classifier, folder, new=False).episodes == 0


def test_the_command_reports_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, out = write_episodes(tmp_path / "data", "5"), tmp_path / "out"
    bundle, pairs = save_progress_bundle(tmp_path / "toy", (0, 0, 1)), write_pairs(tmp_path / "two")
    words = {"bundle": bundle.path, "data": data, "pairs": pairs, "out": out}
    assert main(["audit", *(f"--{name}={path}" for name, path in words.items())]) == 3
    said, page = capsys.readouterr().out, (out / "report.html").read_text()
    assert REMOVED in said and "compared in 40 episodes" in said
    assert html.escape(REMOVED) in page and "<h2>Progress</h2>" in page
    found = json.loads((out / "audit.json").read_text())["progress"]
    assert [(row["of"], row["wrong"]) for row in found["rows"]] == [(40, 0), (40, 0), (8, 8)]
    plain = audit(save_toy_bundle(tmp_path / "plain"), data, AuditOptions(failing_frames=22))
    assert plain.as_dict()["progress"] is None and "progress" not in str(plain.notes)


def test_claims_lose_it_with_their_cause(tmp_path: Path) -> None:
    env = Corridor("image", render_mode="rgb_array")

    def sets(name: str, value: int, success: bool = False) -> Intervention:
        def change(random: np.random.Generator) -> Callable[[], None]:
            before = getattr(env, name)
            setattr(env, name, value)
            return lambda: setattr(env, name, before)

        return Intervention(f"{name} {value}", change, success=success)

    offer = (sets("blue", 0), sets("cell", 3), sets("blue", 9, success=True))
    played = AuditEnv(env, lambda observation: env.render(), interventions=offer)
    found = ProgressReport(0, [])
    with Classifier(save_progress_bundle(tmp_path / "toy")) as classifier:
        list(intervene(Subject(classifier), played, InterventionReport(), found))
    assert [(row.of, row.wrong) for row in found.rows] == [(100, 100), (100, 0)]
    assert found.rows[0].test == "claims have as much progress after this: blue 0"


def test_what_the_guard_withholds_has_no_progress() -> None:
    seen = Prediction(half := np.full(2, 0.5, np.float32), half, np.array([0.9, 1.1]), half)
    guarded: Any = SimpleNamespace(threshold=0.5, predict=lambda images: seen)
    assert score_images(guarded, np.zeros((2, 1, 1, 3), np.uint8)).progress.tolist() == [0.5, 0]
