"""vinoreward audit: claims under shifts, from dead cameras, and without a cause."""

from __future__ import annotations

import contextlib
import dataclasses
import html
import itertools
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import onnx
import pytest
import tiny_network as tiny
from hypothesis import example, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from safetensors.numpy import save_file
from scipy.stats import beta, binomtest
from tiny_network import rewrite
from toy_environments import HEIGHT, WIDTH, Corridor, save_toy_bundle, save_views_bundle

from vinoreward.bundles.bundle import Bundle
from vinoreward.bundles.save import save_bundle
from vinoreward.bundles.schema import BundleSpec, Decision
from vinoreward.errors import ConfigError, DatasetError
from vinoreward.files import sha256
from vinoreward.images import ImageSpec, View
from vinoreward.rewards.classifier import Classifier
from vinoreward.rewards.interventions import offered_by
from vinoreward_envs.camera.spec import CameraSpec
from vinoreward_envs.constants import FIXED_OBJECT, MAX_MOVE, WORKSPACE_HIGH, WORKSPACE_LOW
from vinoreward_envs.panda_hover import PandaHoverEnv
from vinoreward_envs.scene import HoverScene
from vinoreward_training.audit import command
from vinoreward_training.audit import report as report_module
from vinoreward_training.audit.bands import BANDS, bands, nice_step
from vinoreward_training.audit.battery import (
    SHOWN,
    Battery,
    Row,
    faults,
    misses,
    not_surely_above,
    shift_rows,
    strongest_first,
)
from vinoreward_training.audit.causes import Causes, Change
from vinoreward_training.audit.command import audit, environment_of
from vinoreward_training.audit.pairs import PairRow
from vinoreward_training.audit.replays import Replays
from vinoreward_training.audit.report import AuditReport, sections_of
from vinoreward_training.classifier.corruptions import CORRUPTIONS as SHIFTS
from vinoreward_training.classifier.corruptions import Corruption as Shift
from vinoreward_training.classifier.corruptions import corrupted as shifted
from vinoreward_training.classifier.evaluation import Rates, rates
from vinoreward_training.classifier.training import record_of
from vinoreward_training.cli import main
from vinoreward_training.configs import AuditConfig
from vinoreward_training.data.dataset import Dataset, load_dataset, split_by_episode
from vinoreward_training.runs.bundles import MAX_CARD_BYTES

CHANGES = [(shift, strength) for shift in SHIFTS for strength in shift.strengths]
NAMES = {shift.name: shift for shift in SHIFTS}


def red(level: int, count: int = 1) -> np.ndarray:
    images = np.zeros((count, HEIGHT, WIDTH, 3), np.uint8)
    images[..., 0] = level
    return images


def write_folder(folder: Path, count: int = 40, *, success: int = 200, failure: int = 60) -> Path:
    """Images of the toy's corridor: it claims what is redder than 178."""
    for label, level in (("success", success), ("failure", failure)):
        (folder / label).mkdir(parents=True)
        for index in range(count):
            image = red(level)[0]
            image[0, 0] = (0, index % 256, index // 256)  # no two alike
            Image.fromarray(image).save(folder / label / f"{index:03d}.png")
    return folder


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return save_toy_bundle(tmp_path_factory.mktemp("audit") / "toy")


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report of an audit without its two figures, which take longer than the audit of a toy."""

    def draw(path: Path, found: Battery) -> Path:
        Image.new("RGB", (1, 1)).save(path)
        return path

    monkeypatch.setattr(report_module, "_draw_fooled", draw)
    monkeypatch.setattr(report_module, "_draw_shifts", draw)


@pytest.mark.parametrize("count", [0, 1, 101, 200, 3014])
def test_a_rate_that_surely_misses_a_bar_is_above_it_with_its_whole_interval(count: int) -> None:
    rate = not_surely_above(0.01, count)
    claimed = round(rate * count)

    def low(successes: int) -> float:
        test = binomtest(successes, count, alternative="greater")
        return float(test.proportion_ci(0.95, "exact").low)

    assert rate <= 1 and (count == 0 or low(claimed) <= 0.01)
    assert claimed == count or low(claimed + 1) > 0.01


@pytest.mark.filterwarnings("ignore:the bundle .* is not calibrated")
def test_a_policy_learns_from_a_bundle_of_images_from_elsewhere(tmp_path: Path) -> None:
    """Whether it suits them is what an audit finds out."""
    pytest.importorskip("pybullet")
    size = (96, 128)
    images = np.random.default_rng(0).integers(0, 256, (4, *size, 3), dtype=np.uint8)
    weights = np.array([[0.0, -4.0], [0.0, 4.0], [0.0, 0.0]], np.float32)
    spec = dataclasses.replace(
        tiny.SPEC, image=ImageSpec(*size, mean=tiny.MEAN, std=tiny.STD), decision=Decision(0.5)
    )
    tiny.network(tmp_path / "m.onnx", weights=weights, size=size)
    outputs = tiny.expected_logits(images, weights)
    files = {"model.onnx": tmp_path / "m.onnx"}
    saved = save_bundle(tmp_path / "foreign", spec, files, images, outputs, "# tiny")
    config = AuditConfig(bundle=str(saved), data=tmp_path, env="PandaHover-v0")
    with contextlib.ExitStack() as closing:
        learning = environment_of(config, Bundle.load(saved), closing)["learning"]
        learning.env.reset(seed=0)
        assert "reward_prob" in learning.env.step(learning.env.action_space.sample())[-1]


# --- the images that are shown ---------------------------------------------------------------


def test_the_images_that_are_kept_look_different() -> None:
    """Of a crowd and a few others, the others stay, and so does the most certain."""
    random, shown = np.random.default_rng(0), Battery()
    crowd = np.full((300, 48, 64, 3), 100, np.uint8)
    crowd[np.arange(300), :, :, 0] += np.arange(300, dtype=np.uint8)[:, None, None] % 30
    crowd[:, :6, :8] = random.integers(60, 140, (300, 1, 1, 3), dtype=np.uint8)
    others = random.integers(0, 256, (40, 8, 8, 3), dtype=np.uint8).repeat(6, 1).repeat(8, 2)
    certain = random.uniform(0.9, 1.0, 300).astype(np.float32)
    shown.show(crowd[:150], certain[:150], "crowd")
    shown.show(others, np.full(40, 0.6, np.float32), "other")
    shown.show(crowd[150:], certain[150:], "crowd")
    assert len(shown.fooled) == SHOWN
    assert sum(one.by == "other" for one in shown.fooled) == 40
    probabilities = [one.probability for one in shown.fooled]
    assert probabilities == sorted(probabilities, reverse=True)
    assert probabilities[0] == pytest.approx(certain.max())


# --- shifts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shift", "strength"), CHANGES, ids=lambda one: getattr(one, "name", one))
def test_a_shift_depends_on_the_seed_alone(shift: Shift, strength: float) -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 20, 30, 3), dtype=np.uint8)
    before = images.copy()
    found = shifted(shift, strength, images, seed=3)
    assert found.shape == images.shape and found.dtype == np.uint8
    assert np.array_equal(images, before)
    assert np.array_equal(found, shifted(shift, strength, images, seed=3))
    assert not np.array_equal(found, images)


def test_what_the_shifts_of_light_and_place_do() -> None:
    images = np.random.default_rng(1).integers(0, 256, (1, 50, 60, 3), dtype=np.uint8)
    values = images.astype(np.float64)
    less = shifted(NAMES["less light"], 0.5, images, seed=0)
    assert np.abs(less - values * 0.5).max() <= 0.51
    more = shifted(NAMES["more light"], 1.6, images, seed=0)
    assert np.abs(more - np.minimum(values * 1.6, 255)).max() <= 0.51
    cold = shifted(NAMES["colder light"], -0.4, images, seed=0)
    assert np.abs(cold - np.minimum(values * [0.6, 1, 1.4], 255)).max() <= 0.51
    assert np.array_equal(
        shifted(NAMES["red and blue swapped"], 1, images, seed=0), images[..., ::-1]
    )
    noisy = shifted(NAMES["noise"], 12, np.full((1, 90, 90, 3), 128, np.uint8), seed=0)
    assert np.std(noisy) == pytest.approx(12, rel=0.05)
    covered = shifted(NAMES["occlusion"], 0.12, images, seed=0) != images
    assert covered.any(axis=-1).mean() == pytest.approx(0.12, rel=0.15)
    moved = shifted(NAMES["camera moved"], 0.08, images, seed=0)[0]
    reach = range(-5, 6)
    inner = images[0, 5:-5, 5:-5]
    places = [(y, x) for y in reach for x in reach if np.hypot(y, x) == pytest.approx(4.8, abs=0.8)]
    assert any(
        np.array_equal(moved[5 - y : 45 - y, 5 - x : 55 - x], inner)
        for y, x in places
    )  # fmt: skip


@pytest.mark.parametrize(("shift", "strength"), CHANGES, ids=lambda one: getattr(one, "name", one))
def test_a_shift_befalls_each_view_alike(shift: Shift, strength: float) -> None:
    one = np.random.default_rng(2).integers(0, 256, (2, 24, 30, 3), dtype=np.uint8)
    both = np.concatenate([one, one], axis=1)
    views = (View(name="front", height=24, age=1), View(name="front", height=24))
    found = shifted(shift, strength, both, seed=0, views=views)
    assert np.array_equal(found[:, :24], found[:, 24:])
    assert np.array_equal(found[:, :24], shifted(shift, strength, one, seed=0))


# --- bands -------------------------------------------------------------------------------------


@given(st.floats(1e-6, 1e6))
def test_a_step_is_a_nice_number_of_about_the_right_size(span: float) -> None:
    step = nice_step(span)
    assert span / BANDS * (1 - 1e-6) <= step <= 2.51 * span / BANDS
    assert float(f"{step:.6e}".partition("e")[0]) in (1, 2, 5)


@given(
    st.lists(
        st.tuples(
            st.booleans(),
            st.booleans(),
            st.floats(0, 9) | st.integers(0, 900).map(lambda one: one / 100),
        ),
        min_size=1,
        max_size=60,
    )
)
@example([(False, True, tenth / 10) for tenth in range(30)])
@example([(False, True, 0.0), (False, True, 1.0), (False, True, 5e-324)])
@example([(False, True, 1.7e12), (False, True, 1.7e12 + 0.0005)])
@example([(False, True, 1e17), (False, True, 1e17 + 16)])
@example([(False, True, -1e308), (False, True, 1e308)])
@settings(deadline=None)
def test_bands_of_distance_hold_each_failure_once(rows: list[tuple[bool, bool, float]]) -> None:
    claims, failed = (np.array([row[i] for row in rows], np.bool_) for i in (0, 1))
    distances = np.array([row[2] for row in rows])
    kinds = np.array(["near" if row[2] < 1 else "far" for row in rows])
    found = bands(claims, failed, kinds, distances)
    total, *rest = found
    assert (total["frames"], total["claimed"]) == (failed.sum(), (claims & failed).sum())
    groups = [
        [row for row in rest if str(row["failures"]).endswith(("m", "more"))],
        [row for row in rest if row["failures"] in ("near", "far")],
    ]
    for group in groups:
        if group:
            assert sum(int(str(row["frames"])) for row in group) == failed.sum()
            assert sum(int(str(row["claimed"])) for row in group) == (claims & failed).sum()


def test_a_band_shows_what_the_pooled_rate_hides() -> None:
    distances = np.repeat([0.04, 0.3], [50, 950])
    claims = np.zeros(1000, np.bool_)
    claims[:10] = True
    everything = np.ones(1000, np.bool_)
    found = bands(claims, everything, np.full(1000, "x"), np.append(distances[:-1], 0.5))
    assert [row["claimed"] for row in found] == [10, 10, 0]
    assert found[0]["rate at most"] == pytest.approx(beta.ppf(0.95, 11, 990))
    assert found[1]["rate at most"] == pytest.approx(beta.ppf(0.95, 11, 40))


# --- what is shown -----------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 255), st.floats(0, 1, width=32)), max_size=150))
@settings(deadline=None)
def test_the_most_certain_images_are_shown_and_none_twice(found: list[tuple[int, float]]) -> None:
    battery = Battery()
    for start in range(0, len(found), 40):
        part = found[start : start + 40]
        images = np.concatenate([red(level) for level, _ in part])
        battery.show(images, np.array([each for _, each in part], np.float32), "toy")
    shown = [one.probability for one in battery.fooled]
    assert shown == sorted(shown, reverse=True) and len(shown) <= 64
    levels = [int(one.image[0, 0, 0]) for one in battery.fooled]
    assert all(abs(a - b) > 12 for n, a in enumerate(levels) for b in levels[:n])
    if found:
        assert shown[0] == max(each for _, each in found)


def test_something_small_makes_an_image_another() -> None:
    white = np.full((1, 48, 60, 3), 255, np.uint8)
    here, there, nearly = white.copy(), white.copy(), white.copy()
    here[0, 10:18, 20:24], there[0, 30:38, 20:24], nearly[0, 10:18, 20:24] = 60, 60, 62
    battery = Battery()
    for images in (white, here, there, nearly):
        battery.show(images, np.array([0.9], np.float32), "toy")
    assert len(battery.fooled) == 3


# --- what fails --------------------------------------------------------------------------------


def counted(claimed: int, wrong: int) -> Rates:
    claims = np.repeat([True, False, True, False], [claimed, 300 - claimed, wrong, 300 - wrong])
    return rates(claims, np.repeat([1, 0], 300))


def row(shift: str, claimed: int, wrong: int, strength: float | None = 1.0) -> Row:
    found = counted(claimed, wrong)
    return Row(shift, strength, "", found, found, None)


def guarded(shift: str, claimed: int, ood: int, strength: float | None = 1.0) -> Row:
    """Of 300 successes and 300 failures the network claims that many successes and 20 failures."""
    alone = counted(claimed, 20)
    return Row(shift, strength, "", counted(0, 0), alone, None, withheld=ood)


def test_what_is_surely_beyond_a_bar_is_a_fault_and_nothing_else() -> None:
    good = Battery(
        [row("", 290, 1, None), row("a", 280, 5)], {"black": (0, 2000), "grey": (4, 1000)}
    )
    assert faults(good) == misses(good) == []
    bad = Battery(
        [row("", 290, 1, None), row("a", 200, 1), row("b", 280, 9)],
        {"black": (900, 1000), "grey": (0, 2000)},
    )
    (dead, shift), (blind,) = faults(bad), misses(bad)
    assert re.search("900 of 3000 .*dead camera.*'black': 900 of 1000", dead)
    assert re.search("9 of 300 failures under b", shift)
    assert re.search("under a it claims 200 of 300 successes, 290 on clean", blind)
    (unused,) = misses(Battery([row("", 150, 0, None)], {}))
    assert "150 of 300 successes on clean images" in unused


def test_what_the_guard_must_notice() -> None:
    """What the network no longer sees; if it does see it, the guard may be silent or not."""
    clean = row("", 290, 1, None)
    assert misses(Battery([clean, guarded("a", 10, 590), guarded("b", 280, 100)], {})) == []
    (blind,) = misses(Battery([clean, guarded("a", 10, 540)], {}))
    assert re.search("under a it claims 10 of 300 successes, 290 on clean .* no sign of it", blind)
    alarmed = dataclasses.replace(clean, withheld=20)
    (alarms,) = misses(Battery([alarmed], {}))
    assert "finds 20 of 600 clean images out of distribution; at most 1%" in alarms


@pytest.mark.parametrize(
    ("shifted", "missed"),
    [
        (row("a", 280, 5), 20),
        (row("a", 100, 5), 200),
        (guarded("a", 10, 540), 290),  # the guard finds too few of them out of distribution
        (guarded("a", 10, 590), 0),  # it tells
    ],
)
def test_successes_missed_without_a_sign_are_a_measure(shifted: Row, missed: int) -> None:
    """With the bar of the fault: KEPT of the recall on clean images."""
    battery = Battery([row("", 290, 1, None), shifted])
    report = AuditReport("toy", (), "", battery, [], tuple(misses(battery)))
    measure = report.measures["successes missed under a without a sign"]
    assert (measure.value, measure.of) == (missed / 300, 300)
    assert measure.bar == pytest.approx(0.16, abs=0.02)  # 0.13, as far as 300 can tell
    assert (measure.value > measure.bar) == any("no sign" in one for one in report.misses)
    assert "successes missed under nothing done without a sign" not in report.measures


def test_what_did_not_lose_its_cause_is_never_called_safe() -> None:
    clean = Battery([row("", 290, 1, None)], {"black": (0, 2000)})
    alone = AuditReport("toy", (), "", clean, [])
    assert not alone.faults and not alone.safe
    assert "no test found too many false claims, but whether claims depend on" in alone.verdict
    removed = [Change("removed", False, 100, 1)]
    few, enough = Causes(removed, claims=5), Causes(removed, claims=100)
    painted = Causes([Change("painted", True, 100, 99)], claims=100)
    for causes in (few, painted, Causes()):
        assert not dataclasses.replace(alone, causes=causes).safe
    known = dataclasses.replace(alone, causes=enough)
    assert known.safe and known.verdict == "toy is safe: no test found too many false claims."
    again = Replays(replayed=50, stay=3, failures=40, told=True)
    assert dataclasses.replace(alone, replays=again).safe
    pairs = (PairRow("removed", 20, 15, 0, 0.0),)
    assert dataclasses.replace(alone, pairs=pairs).safe
    assert not dataclasses.replace(known, faults=("it claims",)).safe


# --- the command -------------------------------------------------------------------------------


def test_the_command_reports_how_it_was_fooled(
    bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out = write_folder(tmp_path / "data"), tmp_path / "audit"
    before = sha256(bundle.path / "bundle.json")
    words = ["audit", "--bundle", str(bundle.path), "--data", str(data), "--out", str(out)]
    assert main([*words, "--dead-frames", "220"]) == 3
    assert sha256(bundle.path / "bundle.json") == before
    said = capsys.readouterr().out
    assert "toy-corridor is not safe: " in said and "Nothing says whether" in said
    assert "toy-corridor is not robust: under less light (0.85" in said
    report = json.loads((out / "audit.json").read_text())
    assert not report["safe"] and report["verdict"] in said
    assert not report["robust"] and report["robustness"] in said
    rows = {(one["shift"], one["strength"]): one for one in report["shifts"]}
    stale = [one for name, one in rows.items() if name[0].startswith(("frozen", "stale", "ghost"))]
    assert len(rows) == 1 + len(CHANGES) + len(stale) and len(stale) == 6
    # What a camera shows of an earlier success: the network claims it, the frozen check does not.
    frozen = rows["frozen", 1.0]
    assert frozen["alone"]["false_positives"] > 30 and frozen["rates"]["false_positives"] == 0
    # It claims from 178 of red on: 200 is a success, half of it is none; 60 never is one.
    clean = rows["", None]["rates"]
    assert (clean["true_positives"], clean["false_positives"]) == (40, 0)
    assert clean["recall_low"] == pytest.approx(beta.ppf(0.025, 40, 1))
    assert rows["less light", 0.5]["rates"]["true_positives"] == 0
    assert rows["more light", 1.6]["rates"]["false_positives"] == 0
    assert rows["red and blue swapped", 1]["rates"]["true_positives"] == 0
    assert all(one["flips"] is None for one in report["shifts"]), "FP32 decides here"
    dead = report["dead_camera"]
    assert dead["frames"] == 220 and dead["by_family"]["black"] == [0, 10]
    assert dead["claimed"] == sum(one for one, _ in dead["by_family"].values()) > 0
    page = (out / "report.html").read_text()
    assert html.escape(report["verdict"]) in page and page.count("<img") == 2
    assert all(html.escape(miss) in page for miss in report["misses"])
    assert main(words) == 1, "an audit is not overwritten"
    assert "already holds an audit" in capsys.readouterr().err


def honest(folder: Path) -> tuple[Bundle, Path]:
    """A bundle of a fine pattern of colours, which JPEG and blur destroy, and its images."""
    random = np.random.default_rng(0)
    pattern = random.permutation(np.repeat([0, 255], 24 * 16)).reshape(24, 32)
    plain = np.full((24, 32), 128)
    wanted, other = (np.stack(one, -1) for one in ((pattern, plain, 255 - pattern), [plain] * 3))
    for label, image in (("success", wanted), ("failure", other)):
        (folder / "data" / label).mkdir(parents=True)
        for number in range(40):
            noisy = np.clip(image + random.normal(0, 3, image.shape), 0, 255).astype(np.uint8)
            Image.fromarray(noisy).save(folder / "data" / label / f"{number:02d}.png")
    for name, label in (("success", "success"), ("removed", "failure")):
        shutil.copytree(folder / "data" / label, folder / "pairs" / name)
    return save_linear_bundle(folder / "posed", load_dataset(folder / "data")), folder / "data"


def test_an_honest_classifier_that_misses_successes_is_safe_and_not_robust(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], undrawn: None
) -> None:
    made, data = honest(tmp_path)
    words = ["audit", "--bundle", str(made.path), "--data", str(data), "--dead-frames", "220"]
    words += ["--pairs", str(tmp_path / "pairs"), "--out", str(tmp_path / "audit"), "--card"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "posed is safe: no test found too many false claims." in said
    report = json.loads((tmp_path / "audit" / "audit.json").read_text())
    assert report["safe"] and not report["robust"] and report["faults"] == []
    assert any("under JPEG (8 quality) it claims 0 of 40" in miss for miss in report["misses"])
    for page in (tmp_path / "audit" / "report.html", made.path / "README.md"):
        assert "posed is safe" in page.read_text() and "under JPEG (8 quality)" in page.read_text()


def test_what_finds_faults_comes_first_and_the_report_keeps_its_order(bundle: Bundle) -> None:
    order = strongest_first()
    assert order[0] == (None, None) and len(order) == 1 + len(CHANGES)
    first = [(shift.name, strength) for shift, strength in order[1 : 1 + len(SHIFTS)] if shift]
    assert first == [(shift.name, shift.strengths[-1]) for shift in SHIFTS]
    found, success = Battery(), np.array([True, False])
    images = np.concatenate([red(200), red(60)])
    with Classifier(bundle, precision="fp32") as classifier:
        steps = shift_rows(classifier, None, images, success, found, changes=order, seed=0)
        assert [count for _, count in steps] == [2] * len(order)
    rows = [(one.shift, one.strength) for one in found.rows]
    assert rows == [("", None), *((shift.name, strength) for shift, strength in CHANGES)]


def test_a_long_audit_says_what_it_found_so_far_and_how_long_it_takes(
    bundle: Bundle,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    undrawn: None,
) -> None:
    """Before the last of the images: only cameras that are dead, which come first, are known."""
    moments = itertools.count()
    monkeypatch.setattr(command.time, "monotonic", lambda: 10.0 * next(moments))
    words = ["audit", "--bundle", str(bundle.path), "--data", str(write_folder(tmp_path / "data"))]
    assert main([*words, "--dead-frames", "220", "--out", str(tmp_path / "audit")]) == 3
    said, shown = capsys.readouterr()
    (first,) = re.findall("so far, the rest goes on: toy-corridor is not safe: (.*)", said)
    assert re.match(r"it claims \d+ of \d+ frames of a dead camera .*", first)
    assert "robust" not in first, "no shift has been tried"
    assert said.count("toy-corridor is not safe") == 2
    assert re.search(r"(\d{4})/\1 \[", shown), "a bar that knows its end says when it comes"


def test_a_card_says_what_the_last_audit_found(
    bundle: Bundle, tmp_path: Path, undrawn: None
) -> None:
    """What else the card says stays, and the bundle is the same to whoever loads it."""
    copy = tmp_path / "copy"
    shutil.copytree(bundle.path, copy)
    (copy / "README.md").write_text("# mine\n\nWords.\n\n## In INT8\n\n- flips: 0\n")
    data = write_folder(tmp_path / "data")
    words = ["audit", "--bundle", str(copy), "--data", str(data), "--dead-frames", "22", "--card"]
    for number in range(2):
        out = tmp_path / f"audit{number}"
        assert main([*words, "--seed", str(number), "--out", str(out)]) == 3
    card = (copy / "README.md").read_text()
    assert card.startswith(
        "# mine\n\nWords.\n\n## In INT8\n\n- flips: 0\n\n## Audit\n\n**toy-corridor is not safe"
    )
    assert card.count("## Audit") == 1 and "seed 1, FP32" in card and "seed 0" not in card
    assert "of 22 frames are claimed" in card and "toy-corridor is not safe: " in card
    assert "**toy-corridor is not robust: " in card and "\n- under less light (0.5" in card
    (copy / "README.md").write_text(card + "\n## Mine\n\nLast.\n")
    assert main([*words, "--out", str(tmp_path / "audit2")]) == 3
    assert (copy / "README.md").read_text().endswith("\n\n## Mine\n\nLast.\n")
    assert Bundle.load(copy).spec == bundle.spec
    (copy / "README.md").write_bytes(card.replace("\n", "\r\n").encode())  # as some editors save
    assert main([*words, "--out", str(tmp_path / "audit4")]) == 3
    assert (copy / "README.md").read_text().count("## Audit") == 1
    (copy / "README.md").write_text("x" * (MAX_CARD_BYTES + 1))
    assert main([*words, "--out", str(tmp_path / "audit5")]) == 1
    assert not (tmp_path / "audit5").exists(), "refused before the audit, not after it"
    (tmp_path / "card.md").write_text(card)
    (copy / "README.md").unlink()
    (copy / "README.md").symlink_to(tmp_path / "card.md")
    assert main([*words, "--out", str(tmp_path / "audit3")]) == 1
    assert (tmp_path / "card.md").read_text() == card and not (tmp_path / "audit3").exists()


def test_a_seed_gives_the_same_audit_on_any_threads(bundle: Bundle, tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data", 60)
    first, again, other = (
        audit(bundle, data, frames=30, dead=44, seed=seed, threads=threads).as_dict()
        for seed, threads in ((1, 1), (1, 2), (2, 0))
    )
    assert first == again != other
    clean = first["shifts"][0]["rates"]
    assert clean["true_positives"] + clean["false_negatives"] == 30
    assert clean["false_positives"] + clean["true_negatives"] == 30


@pytest.mark.parametrize(("asked", "cores", "given"), [(0, 2, 2), (0, 600, 8), (3, 2, 3)])
def test_the_network_runs_on_all_cores_or_on_as_many_threads_as_asked(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: int, cores: int,
    given: int,
) -> None:  # fmt: skip
    threads = []

    class Noted(Classifier):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            threads.append(self.threads)

    monkeypatch.setattr(command, "Classifier", Noted)
    monkeypatch.setattr(command, "usable_cores", lambda: cores)
    audit(bundle, write_folder(tmp_path / "data", 60), frames=30, dead=44, threads=asked)
    assert threads == [given]


def test_claims_that_stay_without_their_cause(bundle: Bundle, tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data")
    pairs = tmp_path / "pairs"
    # Of another scene with the same name, and without the other one of the pair.
    for place, level in (("success/tuesday", 220), ("moved/monday", 220)):
        (pairs / place).mkdir(parents=True)
        Image.fromarray(red(level)[0]).save(pairs / place / "0.png")
    for folder, level in (("success", 220), ("removed", 220), ("moved", 20)):
        (pairs / folder).mkdir(parents=True, exist_ok=True)
        for index in range(8):
            Image.fromarray(red(level)[0]).save(pairs / folder / f"{index}.png")
    (pairs / "moved" / "7.png").unlink()
    (pairs / "removed" / "7.png").rename(pairs / "removed" / "$\\frac{.png")
    (pairs / "success" / "7.png").rename(pairs / "success" / "$\\frac{.png")
    report = audit(bundle, data, pairs=pairs, dead=22)
    assert sections_of(report, AuditConfig("toy", data), tmp_path), "a name is no formula"
    found = [(one.change, one.pairs, one.claimed, one.stay) for one in report.pairs]
    assert found == [("moved", 7, 7, 0), ("removed", 8, 8, 8)]
    assert report.faults[0] == "of 8 claims 8 stay when the cause is removed"
    assert report.battery.fooled[0].probability > 0.9


def test_an_episode_gives_one_image_of_each_label(bundle: Bundle, tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data", 120)
    rows = ["file,label,episode"]
    for label in ("success", "failure"):
        rows += [f"{label}/{n:03d}.png,{label},{n // 3}" for n in range(120)]
    (data / "metadata.csv").write_text("\n".join(rows) + "\n")
    clean = audit(bundle, data, dead=22).battery.rows[0].rates
    assert (clean.true_positives, clean.true_negatives) == (40, 40)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        ([], "the folders none"),
        (["success"], "the folders success. Expected success"),
        (["removed"], "the folders removed"),
        (["success", "removed"], "no image in .*removed has the name"),
    ],
)
def test_pairs_that_are_none_are_refused(
    bundle: Bundle, tmp_path: Path, make: list[str], message: str
) -> None:
    for number, name in enumerate(make):
        (tmp_path / "pairs" / name).mkdir(parents=True)
        Image.fromarray(red(9)[0]).save(tmp_path / "pairs" / name / f"{number}.png")
    with pytest.raises(DatasetError, match=message):
        audit(bundle, write_folder(tmp_path / "data"), pairs=tmp_path / "pairs")


def test_two_images_of_one_name_are_no_pair(bundle: Bundle, tmp_path: Path) -> None:
    for name in ("success/1.png", "success/1.jpg", "moved/1.png"):
        (tmp_path / "pairs" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(red(9)[0]).save(tmp_path / "pairs" / name)
    with pytest.raises(DatasetError, match=r"1\.jpg and success/1\.png\. Expected one"):
        audit(bundle, write_folder(tmp_path / "data"), pairs=tmp_path / "pairs")


def test_too_few_images_are_refused(bundle: Bundle, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"29 episodes with a failure.*at least 30"):
        audit(bundle, write_folder(tmp_path / "data", 29))
    for wrong in ({"frames": 3}, {"dead": 0}, {"seed": -1}):
        with pytest.raises(ConfigError, match="at least 30 frames"):
            audit(bundle, tmp_path / "data", **wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"threads=-1.*0 for one per core"):
        audit(bundle, tmp_path / "nowhere", threads=-1)


def test_only_what_training_kept_for_the_test_is_looked_at(bundle: Bundle, tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data", 400)
    rows = ["file,label,episode"]
    for label in ("success", "failure"):
        rows += [
            f"{label}/{n:03d}.png,{label},{n + 400 * (label == 'failure')}" for n in range(400)
        ]
    (data / "metadata.csv").write_text("\n".join(rows) + "\n")
    about = {"env": "Toy-v0", "seed": 5}
    (data / "dataset.json").write_text(json.dumps(about))
    spec = dataclasses.replace(bundle.spec, dataset=about)
    report = audit(dataclasses.replace(bundle, spec=spec), data, dead=22)
    assert "that were kept for the test" in report.note
    assert 30 <= report.battery.rows[0].rates.true_positives < 100  # 15 % of 400
    other = audit(
        dataclasses.replace(bundle, spec=dataclasses.replace(spec, dataset=about | {"seed": 6})),
        data,
        dead=22,
    )
    assert "other episodes" in other.note and other.battery.rows[0].rates.true_positives == 300


@pytest.mark.parametrize("grown", [False, True])
def test_of_an_own_folder_only_what_its_training_kept_for_the_test_is_looked_at(
    bundle: Bundle, tmp_path: Path, grown: bool
) -> None:
    """By the content of each image, also once images were added; a stranger's has no record."""
    dataset = load_dataset(write_folder(tmp_path / "data", 250))
    train, _, test = split_by_episode(dataset)
    record = record_of(dataset, train, started=False, before=None)
    weights = tmp_path / "model.safetensors"
    save_file({"one": np.zeros(1, np.float32)}, weights, {"trained_on": record.to_text()})
    shutil.copytree(bundle.path, made := tmp_path / "made")
    shutil.copy(weights, made)
    rewrite(Bundle.load(made), lambda spec: spec["files"].update({weights.name: sha256(weights)}))
    rewrite(Bundle.load(made), lambda spec: spec["dataset"].update({"trained_on": record.facts()}))
    if grown:
        Image.fromarray(red(250)[0]).save(tmp_path / "data" / "success" / "zzz.png")
    report = audit(Bundle.load(made), tmp_path / "data", dead=22)
    assert f"only the {len(test)} that were kept for the test" in report.note or grown
    assert "that were kept for the test" in report.note
    clean = report.battery.rows[0].rates
    kept = int(dataset.labels[test].sum())
    assert clean.true_positives in ((kept, kept + 1) if grown else (kept,))
    strangers = audit(bundle, tmp_path / "data", dead=22)
    assert "Nothing says whether" in strangers.note
    assert strangers.battery.rows[0].rates.true_positives > 240


# --- causes ------------------------------------------------------------------------------------

MODULE = """
from vinoreward import Intervention

def moved(env):
    def back(random):
        cell, env.cell = env.cell, 0
        def undo():
            env.cell = cell
        return undo
    return [Intervention("moved back", back)]

def painted(env):
    def paint(random):
        blue, env.blue = env.blue, int(random.integers(256))
        def undo():
            env.blue = blue
        return undo
    return [Intervention("painted", paint, success=True), Intervention("cause gone", paint)]

def forgetful(env):
    def lost(random):
        env.cell = 0
        return lambda: None
    return [Intervention("lost", lost)]

def none(env):
    return 3

def broken(env):
    return env.no_such_part

def breaks(env):
    return [Intervention("breaks", lambda random: random.no_such_number())]

def silent(env):
    return [Intervention("silent", lambda random: None)]
"""


def words_for(bundle: Bundle, tmp_path: Path, function: str) -> list[str]:
    (tmp_path / "changes.py").write_text(MODULE)
    gym.register("AuditCorridor-v0", Corridor)
    return [
        "audit", "--bundle", str(bundle.path), "--data", str(write_folder(tmp_path / "data")),
        "--env", "AuditCorridor-v0", "--interventions", f"{tmp_path / 'changes.py'}:{function}",
        "--out", str(tmp_path / "out"), "--dead-frames", "22",
    ]  # fmt: skip


NOBODY_LEARNS = ("--learn-steps", "0")
"""Keeps an audit short that is about something else."""


@pytest.fixture(autouse=True)
def no_environment_stays() -> Iterator[None]:
    yield
    gym.registry.pop("AuditCorridor-v0", None)


@pytest.mark.parametrize(
    ("function", "found", "learn"),
    [
        ("moved", [("moved back", 0)], 100),
        # The toy looks at red alone: what changes blue leaves every claim.
        ("painted", [("painted", 100), ("cause gone", 100)], 0),
    ],
)
def test_claims_that_do_not_need_their_cause_are_a_fault(
    bundle: Bundle, tmp_path: Path, undrawn: None, function: str,
    found: list[tuple[str, int]], learn: int,
) -> None:  # fmt: skip
    assert main([*words_for(bundle, tmp_path, function), "--learn-steps", str(learn)]) == 3
    report = json.loads((tmp_path / "out" / "audit.json").read_text())
    assert report["learned"] is None if learn == 0 else report["learned"]["steps"] >= learn
    changes = report["causes"]["changes"]
    assert [(one["name"], one["stay"]) for one in changes] == found
    assert all(one["claimed"] == report["causes"]["claims"] == 100 for one in changes)
    named = [fault for fault in report["faults"] if "stay after this" in fault]
    wanted = ["of 100 claims 100 stay after this: cause gone"] if function == "painted" else []
    assert named == wanted
    page = (tmp_path / "out" / "report.html").read_text()
    assert all(name in page for name, _ in found)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("forgetful", "'lost' does not undo what it did: the image differs by"),
        ("none", "none gives 3"),
        ("broken", "broken fails.*no_such_part"),
        ("breaks", "'breaks' fails.*no_such_number"),
        ("silent", "'silent' fails.*not callable"),
        ("missing", "missing"),
    ],
)
def test_interventions_that_cannot_work_are_named(
    bundle: Bundle,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    function: str,
    message: str,
) -> None:
    assert main([*words_for(bundle, tmp_path, function), *NOBODY_LEARNS]) == 1
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "out").exists()


def test_without_interventions_it_says_what_is_not_known(
    bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str], undrawn: None
) -> None:
    words = words_for(bundle, tmp_path, "moved")
    at = words.index("--interventions")
    assert main([*words[:at], *words[at + 2 :], *NOBODY_LEARNS]) == 3
    said = capsys.readouterr().out
    assert "offers no interventions, so nothing says whether claims depend on their cause" in said
    at = words.index("--env")
    words[words.index("--out") + 1] += "-2"
    assert main(words[:at] + words[at + 2 :]) == 1
    assert "--interventions, which an audit without --env would ignore" in capsys.readouterr().err


def test_an_environment_for_a_bundle_of_several_images_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    several = save_views_bundle(tmp_path / "views")
    words = ["audit", "--bundle", str(several.path), "--data", str(tmp_path), "--env", "Toy-v0"]
    assert main([*words, "--out", str(tmp_path / "out")]) == 1
    assert "looks at several images" in capsys.readouterr().err


def test_an_environment_that_is_not_there_is_named(
    bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["audit", "--bundle", str(bundle.path), "--data", str(tmp_path), "--env", "NoSuch-v0"]
    assert main([*words, "--out", str(tmp_path / "out")]) == 1
    assert "no environment 'NoSuch-v0'" in capsys.readouterr().err


def test_a_change_that_should_not_matter_and_does_is_a_miss() -> None:
    good, bad = Change("repainted", True, 100, 99), Change("repainted", True, 100, 60)
    assert good.fault() is None and "only 60 stay" in str(bad.fault())
    causes = Causes([good, bad], claims=100)
    assert causes.faults() == [] and causes.faults(success=True) == [bad.fault()]
    few = Causes([Change("removed", False, 9, 9)], claims=9, steps=500)
    assert few.faults() == [] and "Only 9 claims were met in 500 steps" in few.note


def test_the_hover_scene_undoes_what_it_offers() -> None:
    env = PandaHoverEnv(object_position="random", render_mode="rgb_array")
    env.reset(seed=4)
    before, place = env.render(), env.scene.object_xy
    random = np.random.default_rng(0)
    for one in offered_by(env)[0]:
        undo = one.apply(random)
        assert env.scene.distance() > 0.1, one.name
        assert not np.array_equal(env.render(), before)
        undo()
        assert np.array_equal(env.render(), before) and env.scene.object_xy == place
    assert len(offered_by(env)[0]) == 3 and offered_by(Corridor()) == ((), ())
    env.close()


@pytest.mark.slow
def test_a_classifier_of_the_arms_pose_alone_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trained where the object never moves, as the article's was."""

    def first_space(env: Any) -> Any:
        changes, spaces = offered_by(env)
        return changes, spaces[:1]

    monkeypatch.setattr(command, "offered_by", first_space)
    data = tmp_path / "fixed"
    random = np.random.default_rng(0)
    rows = ["file,label,episode"]
    with contextlib.closing(HoverScene(camera=CameraSpec())) as scene:
        scene.place_object((FIXED_OBJECT[0], FIXED_OBJECT[1]))
        for number in range(200):
            near = number % 2 == 0
            spread = 0.02 if near else 0.25
            x, y = np.array(FIXED_OBJECT[:2]) + random.uniform(-spread, spread, 2)
            scene.move_gripper(tuple(np.clip((x, y), WORKSPACE_LOW, WORKSPACE_HIGH).tolist()))
            label = "success" if scene.distance() < 0.035 else "failure"
            file = data / label / f"{number:03d}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(scene.render()).save(file)
            rows.append(f"{label}/{file.name},{label},{number}")
        about = {"scene": scene.camera_spec.as_dict(), "seed": 0}
    (data / "metadata.csv").write_text("\n".join(rows) + "\n")
    (data / "dataset.json").write_text(json.dumps(about))
    made = save_linear_bundle(tmp_path / "posed", load_dataset(data))
    options = {"backend": "oracle", "bundle": made, "render_mode": "rgb_array"}
    env = gym.make("PandaHoverRandom-v0", **options).unwrapped

    def act(observation: np.ndarray) -> np.ndarray:
        """Go to where the object was in training, or past it."""
        away = np.array(FIXED_OBJECT[:2]) - observation[:2] + random.normal(0, 0.02, 2)
        return np.clip(away, -MAX_MOVE, MAX_MOVE).astype(np.float32)

    report = audit(made, data, env=env, act=act, frames=30, dead=22, states=256, seed=1)
    env.close()
    assert report.causes is not None
    stay = {one.name: one.stay / one.claimed for one in report.causes.changes}
    assert stay["object removed"] > 0.9 and stay["object moved"] > 0.9 and stay["arm moved"] < 0.2
    assert any("stay after this: object removed" in fault for fault in report.faults)
    (searched,) = report.searched
    assert searched.failures > 200 and searched.claimed > 0


def save_linear_bundle(folder: Path, dataset: Dataset) -> Bundle:
    """Save a bundle of a linear network, fitted to a dataset by ridge regression."""
    pixels = dataset.images.reshape(len(dataset.images), -1) / 255.0
    mean = pixels.mean(axis=0)
    kernel = (pixels - mean) @ (pixels - mean).T
    wanted = np.where(dataset.labels == 1, 4.0, -4.0)
    weights = (pixels - mean).T @ np.linalg.solve(kernel + 1.0 * np.eye(len(kernel)), wanted)
    height, width = dataset.images.shape[1:3]
    planes = weights.reshape(height, width, 3).transpose(2, 0, 1)[None].astype(np.float32)
    model = folder.parent / "linear.onnx"
    nodes = [
        helper.make_node("Conv", ["input", "weights", "bias"], ["map"]),
        helper.make_node("Flatten", ["map"], ["one"]),
        helper.make_node("Mul", ["one", "zero"], ["none"]),
        helper.make_node("Concat", ["none", "one"], ["logits"], axis=1),
    ]
    constants = [
        numpy_helper.from_array(planes, "weights"),
        numpy_helper.from_array(np.array([-weights @ mean], np.float32), "bias"),
        numpy_helper.from_array(np.zeros(1, np.float32), "zero"),
    ]
    shapes = ["N", 3, height, width], ["N", 2]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in zip(("input", "logits"), shapes, strict=True)
    ]
    graph = helper.make_graph(nodes, "linear", ends[:1], ends[1:], constants)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), model
    )
    spec = BundleSpec(
        name="posed",
        image=dataset.image(mean=(0, 0, 0), std=(1, 1, 1), in_graph=False, layout="NCHW"),
        decision=Decision(threshold=0.5, chosen_for={"target_fpr": 0.1}),
    )
    odds = (pixels[:4] - mean) @ weights
    logits = np.stack([np.zeros(4), odds], axis=1).astype(np.float32)
    return Bundle.load(save_bundle(folder, spec, {"model.onnx": model}, dataset.images[:4], logits))


# --- INT8 --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_int8_is_compared_with_fp32_where_it_decides(tmp_path: Path) -> None:
    data = tmp_path / "hover"
    assert main(["capture", "--frames", "120", "--seed", "77", "--out", str(data)]) == 0
    report = audit("panda-hover-classifier", data, frames=30, dead=22)
    flips = [one.flips for one in report.battery.rows]
    assert all(one is not None for one in flips)
    assert flips[0] == 0, "on the images it was checked on"
    assert {"all", "near_miss", "absent"} <= {str(one["failures"]) for one in report.bands}
