"""vinoreward audit: claims under corruptions, from failing cameras, and without a cause."""

from __future__ import annotations

import contextlib
import dataclasses
import html
import json
import re
import shutil
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from safetensors.numpy import save_file
from scipy.stats import beta, binomtest
from tiny_network import rewrite
from toy_environments import (
    HEIGHT,
    WIDTH,
    Corridor,
    save_toy_bundle,
    save_views_bundle,
)  # fmt: skip

from vinoreward.bundles.bundle import Bundle
from vinoreward.bundles.save import save_bundle
from vinoreward.bundles.schema import BundleSpec, Decision
from vinoreward.errors import DatasetError
from vinoreward.files import sha256
from vinoreward.images import View
from vinoreward.rewards.interventions import Intervention
from vinoreward_envs.camera.spec import CameraSpec
from vinoreward_envs.constants import FIXED_OBJECT, MAX_MOVE, WORKSPACE_HIGH, WORKSPACE_LOW
from vinoreward_envs.panda_hover import PandaHoverEnv
from vinoreward_envs.scene import HoverScene
from vinoreward_training.audit.checks import KEPT_IMAGES, FalsePositives, share_check
from vinoreward_training.audit.command import AuditOptions, audit
from vinoreward_training.audit.corruptions import CorruptionReport, CorruptionRow
from vinoreward_training.audit.env import AuditEnv
from vinoreward_training.audit.interventions import Change, InterventionReport
from vinoreward_training.audit.pairs import PairRow
from vinoreward_training.audit.replays import ReplayReport
from vinoreward_training.audit.report import AuditReport
from vinoreward_training.audit.states import offered_by
from vinoreward_training.classifier.corruptions import CORRUPTIONS, Corruption, corrupted
from vinoreward_training.classifier.evaluation import Rates, rates
from vinoreward_training.classifier.training import record_of
from vinoreward_training.cli import main
from vinoreward_training.data.dataset import Dataset, load_dataset, split_by_episode
from vinoreward_training.labelling.labels import read_labels

EACH = [(one.name, strength) for one in CORRUPTIONS for strength in one.strengths]
NAMED = {one.name: one for one in CORRUPTIONS}
SHORT = AuditOptions(failing_frames=22)


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


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("audit") / "data")


# --- corruptions -------------------------------------------------------------------------------


@pytest.mark.parametrize("one", CORRUPTIONS, ids=lambda one: one.name)
def test_a_corruption_depends_on_the_seed_and_is_the_same_in_each_view(one: Corruption) -> None:
    images = np.random.default_rng(2).integers(0, 256, (2, 24, 30, 3), dtype=np.uint8)
    both, before = np.concatenate([images, images], axis=1), images.copy()
    views = (View(name="front", height=24, age=1), View(name="front", height=24))
    for strength in one.strengths:
        found = corrupted(one, strength, images, seed=3)
        assert found.dtype == np.uint8 and not np.array_equal(found, images)
        assert np.array_equal(images, before)
        assert np.array_equal(found, corrupted(one, strength, images, seed=3))
        of_views = corrupted(one, strength, both, seed=3, views=views)
        assert np.array_equal(of_views, np.concatenate([found, found], axis=1))


def test_what_the_corruptions_of_light_and_place_do() -> None:
    images = np.random.default_rng(1).integers(0, 256, (1, 50, 60, 3), dtype=np.uint8)
    for name, strength, gains in (
        ("less light", 0.5, 0.5), ("more light", 1.6, 1.6), ("colder light", -0.4, [0.6, 1, 1.4]),
    ):  # fmt: skip
        found = corrupted(NAMED[name], strength, images, seed=0)
        assert np.abs(found - np.minimum(images * np.array(gains), 255)).max() <= 0.51
    swapped = corrupted(NAMED["red and blue swapped"], 1, images, seed=0)
    assert np.array_equal(swapped, images[..., ::-1])
    noisy = corrupted(NAMED["noise"], 12, np.full((1, 90, 90, 3), 128, np.uint8), seed=0)
    assert np.std(noisy) == pytest.approx(12, rel=0.05)
    covered = corrupted(NAMED["occlusion"], 0.12, images, seed=0) != images
    assert covered.any(axis=-1).mean() == pytest.approx(0.12, rel=0.15)
    moved = corrupted(NAMED["camera moved"], 0.08, images, seed=0)[0]
    reach, inner = range(-5, 6), images[0, 5:-5, 5:-5]
    places = [(y, x) for y in reach for x in reach if np.hypot(y, x) == pytest.approx(4.8, abs=0.8)]
    found = [np.array_equal(moved[5 - y : 45 - y, 5 - x : 55 - x], inner) for y, x in places]
    assert any(found)


# --- false positives that are kept -------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 255), st.floats(0, 1, width=32)), max_size=150))
@settings(deadline=None)
def test_the_most_certain_images_are_kept_and_none_twice(found: list[tuple[int, float]]) -> None:
    kept = FalsePositives()
    for start in range(0, len(found), 40):
        part = found[start : start + 40]
        images = np.concatenate([red(level) for level, _ in part])
        kept.add(images, np.array([each for _, each in part], np.float32), "toy")
    certain = [one.probability for one in kept.images]
    assert certain == sorted(certain, reverse=True) and len(certain) <= KEPT_IMAGES
    levels = [int(one.image[0, 0, 0]) for one in kept.images]
    assert all(abs(a - b) > 12 for n, a in enumerate(levels) for b in levels[:n])
    assert not found or certain[0] == max(each for _, each in found)


# --- what fails --------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 101, 200, 3014])
def test_a_share_fails_where_its_whole_interval_is_above_the_bar(count: int) -> None:
    limit = round(share_check("", 0, count, 0.01).limit * count)

    def low(claimed: int) -> float:
        test = binomtest(claimed, count, alternative="greater")
        return float(test.proportion_ci(0.95, "exact").low)

    assert low(limit) <= 0.01 and not share_check("", limit, count, 0.01).failed
    assert limit == count or (
        low(limit + 1) > 0.01 and share_check("", limit + 1, count, 0.01).failed
    )


def counted(claimed: int, wrong: int) -> Rates:
    claims = np.repeat([True, False, True, False], [claimed, 300 - claimed, wrong, 300 - wrong])
    return rates(claims, np.repeat([1, 0], 300))


def row(name: str, claimed: int, wrong: int, strength: float | None = 1.0) -> CorruptionRow:
    found = counted(claimed, wrong)
    return CorruptionRow(name, strength, "", found, found)


def guarded(name: str, claimed: int, withheld: int) -> CorruptionRow:
    """Of 300 successes and 300 failures the network claims that many successes and 20 failures."""
    return CorruptionRow(name, 1.0, "", counted(0, 0), counted(claimed, 20), withheld=withheld)


def reported(*rows: CorruptionRow, **failing: tuple[int, int]) -> AuditReport:
    return AuditReport("toy", corruptions=CorruptionReport(list(rows), failing))


def test_what_is_significantly_beyond_a_bar_is_a_fault_and_nothing_else() -> None:
    good = reported(row("", 290, 1, None), row("a", 280, 5), black=(0, 2000), grey=(4, 1000))
    assert good.faults == good.misses == []
    bad = reported(
        row("", 290, 1, None), row("a", 200, 1), row("b", 280, 9), black=(900, 1000), grey=(0, 2000)
    )
    (camera, corruption), (blind,) = bad.faults, bad.misses
    assert re.search("900 of 3000 .*failing camera.*'black': 900 of 1000", camera)
    assert "9 of 300 failures under b" in corruption
    assert "under a it claims 200 of 300 successes, 290 on clean" in blind
    (alarms,) = reported(dataclasses.replace(row("", 290, 1, None), withheld=20)).misses
    assert "finds 20 of 600 clean images out of distribution; at most 1%" in alarms


@pytest.mark.parametrize(
    ("corrupted", "missed"),
    [(row("a", 280, 5), 20), (row("a", 100, 5), 200), (guarded("a", 10, 540), 290),
     (guarded("a", 10, 590), 0)],
)  # fmt: skip
def test_successes_missed_without_a_sign_are_a_measure(
    corrupted: CorruptionRow, missed: int
) -> None:
    report = reported(row("", 290, 1, None), corrupted)
    measure = report.measures["successes missed under a without a sign"]
    assert (measure.value, measure.of) == (missed / 300, 300)
    assert measure.limit == pytest.approx(0.16, abs=0.02)  # 0.13, as far as 300 can tell
    assert (measure.value > measure.limit) == any("no sign" in one for one in report.misses)


def test_what_did_not_lose_its_cause_is_never_called_safe() -> None:
    alone = reported(row("", 290, 1, None), black=(0, 2000))
    assert not alone.faults and not alone.safe
    assert "no test found too many false claims, but whether claims depend on" in alone.verdict
    removed, painted = Change("removed", False, 100, 1), Change("painted", True, 100, 99)
    for changes, claims, safe in (
        ([removed], 5, False), ([painted], 100, False), ([], 0, False), ([removed], 100, True),
    ):  # fmt: skip
        report = dataclasses.replace(alone, interventions=InterventionReport(changes, claims))
        assert report.safe is safe
    assert report.verdict == "toy is safe: no test found too many false claims."
    replays = ReplayReport(replayed=50, stay=3, failures=40, truth_known=True)
    assert dataclasses.replace(alone, replays=replays).safe
    assert dataclasses.replace(alone, pairs=[PairRow("removed", 20, 15, 0)]).safe
    assert not dataclasses.replace(report, pairs=[PairRow("removed", 20, 15, 15)]).safe


def test_a_change_that_should_not_matter_and_does_is_a_miss() -> None:
    good, bad = Change("repainted", True, 100, 99), Change("repainted", True, 100, 60)
    report = AuditReport("toy", interventions=InterventionReport([good, bad], claims=100))
    (miss,) = report.misses
    assert report.faults == [] and "only 60 stay" in miss
    few = InterventionReport([Change("removed", False, 9, 9)], claims=9, steps=500)
    assert not list(few.checks()) and "Only 9 claims were met in 500 steps" in few.note


# --- the command -------------------------------------------------------------------------------


def test_the_command_reports_how_it_was_cheated(
    bundle: Bundle, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, before = tmp_path / "audit", sha256(bundle.path / "bundle.json")
    words = ["audit", "--bundle", str(bundle.path), "--data", str(data), "--out", str(out)]
    assert main(words) == 3
    assert sha256(bundle.path / "bundle.json") == before
    said = capsys.readouterr().out
    assert "toy-corridor is not safe: " in said and "Nothing says whether" in said
    assert "toy-corridor is not robust: under less light (0.85" in said
    report = json.loads((out / "audit.json").read_text())
    assert not report["safe"] and not report["robust"] and report["verdict"] in said
    rows = {(one["corruption"], one["strength"]): one for one in report["corruptions"]}
    assert len(rows) == 1 + len(EACH) + 6 and list(rows)[: 1 + len(EACH)] == [("", None), *EACH]
    # A frozen camera shows an earlier success: the network claims it, the frozen check does not.
    frozen = rows["frozen", 1.0]
    assert frozen["network"]["false_positives"] > 30 and frozen["rates"]["false_positives"] == 0
    # It claims from 178 of red on: 200 is a success, half of it is none; 60 never is one.
    clean = rows["", None]["rates"]
    assert (clean["true_positives"], clean["false_positives"]) == (40, 0)
    assert clean["recall_low"] == pytest.approx(beta.ppf(0.025, 40, 1))
    assert rows["less light", 0.5]["rates"]["true_positives"] == 0
    failing = report["failing_camera"]
    assert failing["frames"] == 3014 and failing["by_family"]["black"] == [0, 137]
    assert failing["claimed"] == sum(one for one, _ in failing["by_family"].values()) > 0
    page = (out / "report.html").read_text()
    assert html.escape(report["verdict"]) in page and page.count("<img") == 1
    findings = (out / "findings" / "findings.csv").read_text().splitlines()
    assert len(findings) == 1 + len(list((out / "findings").glob("*.png"))) > 5
    labels = read_labels(out / "findings" / "labels.jsonl")
    assert [label.label for label in labels] == ["failure"] * (len(findings) - 1)
    assert main(words) == 1, "an audit is not overwritten"


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


def test_an_honest_classifier_is_safe_and_its_report_says_what_it_misses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, data = honest(tmp_path)
    words = ["audit", "--bundle", str(made.path), "--data", str(data)]
    words += ["--pairs", str(tmp_path / "pairs"), "--out", str(tmp_path / "audit")]
    assert main(words) == 0
    assert "posed is safe: no test found too many false claims." in capsys.readouterr().out
    report = json.loads((tmp_path / "audit" / "audit.json").read_text())
    assert report["safe"] and not report["robust"] and report["faults"] == []
    assert any("under JPEG (8 quality) it claims 0 of 40" in miss for miss in report["misses"])
    page = (tmp_path / "audit" / "report.html").read_text()
    assert "posed is safe" in page and "under JPEG (8 quality)" in page


def test_a_seed_gives_the_same_audit_on_any_threads(bundle: Bundle, tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data", 60)
    first, same, other = (
        audit(bundle, data, AuditOptions(frames=30, failing_frames=44, seed=seed, threads=threads))
        for seed, threads in ((1, 1), (1, 2), (2, 0))
    )
    assert first.as_dict() == same.as_dict() != other.as_dict()
    clean = first.corruptions.rows[0]
    assert (clean.successes, clean.failures) == (30, 30)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--interventions", "a.py:b"], "--interventions"),
        (["--truth", "done"], "--truth"),
        (["--env", "NoSuch-v0"], "NoSuch-v0"),
        (["--pairs", "nowhere"], "nowhere has no folders"),
        (["--env", "Toy-v0", "--bundle", "views"], "found --env"),  # of several images
        (["--data", "few"], "29 episodes with a failure.*at least 30"),
    ],
)
def test_what_cannot_be_audited_is_refused(
    bundle: Bundle, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch, words: list[str], said: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    if "views" in words:
        save_views_bundle(tmp_path / "views")
    if "few" in words:
        write_folder(tmp_path / "few", 29)
    of_all = ["audit", "--bundle", str(bundle.path), "--data", str(data), "--out", "out"]
    assert main([*of_all, *words]) == 1
    assert re.search(said, capsys.readouterr().err) and not (tmp_path / "out").exists()


# --- which images are used ---------------------------------------------------------------------


def test_claims_that_stay_without_their_cause(bundle: Bundle, data: Path, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs"
    levels = {"success": 220, "removed": 220, "moved": 20}
    names = [f"{folder}/{index}" for folder in levels for index in range(8)]
    # Of another scene with the same name, and without the other one of the pair.
    for name in {*names, "success/tuesday/0", "moved/monday/0"} - {"moved/7"}:
        (pairs / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(red(levels[name.partition("/")[0]])[0]).save(pairs / f"{name}.png")
    report = audit(bundle, data, dataclasses.replace(SHORT, pairs=pairs))
    assert report.pairs == [PairRow("moved", 7, 7, 0), PairRow("removed", 8, 8, 8)]
    assert report.faults[0] == "of 8 claims 8 stay when the cause is removed"
    assert report.false_positives.images[0].probability > 0.9
    shutil.rmtree(pairs / "success")
    with pytest.raises(DatasetError, match="has the folders"):
        audit(bundle, data, dataclasses.replace(SHORT, pairs=pairs))


def test_an_episode_gives_one_image_of_each_label(bundle: Bundle, tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data", 120)
    rows = ["file,label,episode"]
    for label in ("success", "failure"):
        rows += [f"{label}/{n:03d}.png,{label},{n // 3}" for n in range(120)]
    (data / "metadata.csv").write_text("\n".join(rows) + "\n")
    clean = audit(bundle, data, SHORT).corruptions.rows[0]
    assert (clean.successes, clean.failures) == (40, 40)


def test_of_an_own_folder_the_content_says_what_was_kept_for_the_test(
    bundle: Bundle, tmp_path: Path
) -> None:
    """A stranger's bundle has no record."""
    data = write_folder(tmp_path / "data", 250)
    dataset = load_dataset(data)
    train, _, test = split_by_episode(dataset)
    record = record_of(dataset, train, started=False, before=None)
    weights = tmp_path / "model.safetensors"
    save_file({"one": np.zeros(1, np.float32)}, weights, {"trained_on": record.to_text()})
    shutil.copytree(bundle.path, made := tmp_path / "made")
    shutil.copy(weights, made)
    rewrite(Bundle.load(made), lambda spec: spec["files"].update({weights.name: sha256(weights)}))
    rewrite(Bundle.load(made), lambda spec: spec["dataset"].update({"trained_on": record.facts()}))
    report = audit(Bundle.load(made), data, SHORT)
    assert f"only the {len(test)} that were kept for the test" in report.note
    kept = int(dataset.labels[test].sum())
    assert report.corruptions.rows[0].successes == kept
    assert "Nothing says whether" in audit(bundle, data, SHORT).note


# --- an environment ----------------------------------------------------------------------------


MODULE = """
from vinoreward import Intervention

def paints(env):
    def paint(random):
        blue, env.blue = env.blue, int(random.integers(256))
        def undo():
            env.blue = blue
        return undo
    def back(random):
        cell, env.cell = env.cell, 0
        def undo():
            env.cell = cell
        return undo
    return [Intervention("painted", paint, success=True), Intervention("cause gone", paint),
            Intervention("moved back", back)]

def forgetful(env):
    def lost(random):
        env.cell = 0
        return lambda: None
    return [Intervention("lost", lost)]

def broken(env):
    return env.no_such_part

def breaks(env):
    return [Intervention("breaks", lambda random: random.no_such_number())]
"""


def words_for(bundle: Bundle, data: Path, tmp_path: Path, function: str | None) -> list[str]:
    (tmp_path / "changes.py").write_text(MODULE)
    words = ["audit", "--bundle", str(bundle.path), "--data", str(data), "--out",
             str(tmp_path / "out"), "--env", "toy_environments:ToyCorridor-v0"]  # fmt: skip
    offer = [] if function is None else ["--interventions", f"{tmp_path}/changes.py:{function}"]
    return [*words, *offer]


def test_claims_that_do_not_need_their_cause_are_a_fault(
    bundle: Bundle, data: Path, tmp_path: Path
) -> None:
    """The toy sees red alone: what changes blue leaves every claim."""
    words = words_for(bundle, data, tmp_path, "paints")
    assert main([*words, "--learn-steps", "100"]) == 3
    report = json.loads((tmp_path / "out" / "audit.json").read_text())
    assert report["learned_policy"]["steps"] >= 100
    changes = report["interventions"]["changes"]
    found = {one["name"]: one["stay"] for one in changes}
    assert found == {"painted": 100, "cause gone": 100, "moved back": 0}
    assert all(one["claimed"] == report["interventions"]["claims"] == 100 for one in changes)
    named = [fault for fault in report["faults"] if "stay after this" in fault]
    assert named == ["of 100 claims 100 stay after this: cause gone"]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("forgetful", "'lost' does not undo what it did: the image differs by"),
        ("broken", "broken fails.*no_such_part"),
        ("breaks", "'breaks' fails.*no_such_number"),
    ],
)
def test_interventions_that_cannot_work_are_named(
    bundle: Bundle, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    function: str, message: str,
) -> None:  # fmt: skip
    assert main([*words_for(bundle, data, tmp_path, function), "--learn-steps", "0"]) == 1
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "out").exists()


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
def test_a_classifier_of_the_arms_pose_alone_is_caught(tmp_path: Path) -> None:
    """Trained where the object never moves, as the article's was."""
    data = tmp_path / "fixed"
    random = np.random.default_rng(0)
    rows = ["file,label,episode"]
    with contextlib.closing(HoverScene(camera=CameraSpec())) as scene:
        scene.place_object((FIXED_OBJECT[0], FIXED_OBJECT[1]))
        for number in range(200):
            spread = 0.25 if number % 2 else 0.02
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
    options: dict[str, Any] = {"backend": "oracle", "bundle": made, "render_mode": "rgb_array"}
    env = gym.make("PandaHoverRandom-v0", **options).unwrapped

    def act(observation: np.ndarray) -> np.ndarray:
        """Go to where the object was in training, or past it."""
        away = np.array(FIXED_OBJECT[:2]) - observation[:2] + random.normal(0, 0.02, 2)
        return np.clip(away, -MAX_MOVE, MAX_MOVE).astype(np.float32)

    changes: tuple[Intervention, ...] = offered_by(env)[0]
    played = AuditEnv(env, lambda observation: env.render(), act, changes, offered_by(env)[1][:1])
    report = audit(
        made, data, AuditOptions(played, frames=30, failing_frames=22, states=256, seed=1)
    )
    env.close()
    assert report.interventions is not None
    stay = {one.name: one.stay / one.claimed for one in report.interventions.changes}
    assert stay["object removed"] > 0.9 and stay["object moved"] > 0.9 and stay["arm moved"] < 0.2
    assert any("stay after this: object removed" in fault for fault in report.faults)
    (searched,) = report.searches
    assert searched.failures > 200 and searched.claimed > 0


def save_linear_bundle(folder: Path, dataset: Dataset) -> Bundle:
    """Save a bundle of a linear network, fitted to a dataset by ridge regression."""
    pixels = dataset.images.reshape(len(dataset.images), -1) / 255.0
    mean = pixels.mean(axis=0)
    kernel = (pixels - mean) @ (pixels - mean).T
    wanted = np.where(dataset.labels == 1, 4.0, -4.0)
    weights = (pixels - mean).T @ np.linalg.solve(kernel + 1.0 * np.eye(len(kernel)), wanted)
    height, width = dataset.images.shape[1:3]
    planes = weights.reshape(height, width, 3).transpose(2, 0, 1).reshape(-1, 1)
    matrix = np.hstack([0 * planes, planes]).astype(np.float32)
    bias = np.array([0, -weights @ mean], np.float32)
    model = folder.parent / "linear.onnx"
    nodes = [
        helper.make_node("Flatten", ["input"], ["flat"]),
        helper.make_node("Gemm", ["flat", "weights", "bias"], ["logits"]),
    ]
    constants = [
        numpy_helper.from_array(one, name) for one, name in ((matrix, "weights"), (bias, "bias"))
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("input", ["N", 3, height, width]), ("logits", ["N", 2]))
    ]
    graph = helper.make_graph(nodes, "linear", ends[:1], ends[1:], constants)
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), model)
    spec = BundleSpec(
        name="posed",
        image=dataset.image(mean=(0, 0, 0), std=(1, 1, 1), in_graph=False, layout="NCHW"),
        decision=Decision(threshold=0.5, chosen_for={"target_fpr": 0.1}),
    )
    odds = (pixels[:4] - mean) @ weights
    logits = np.stack([np.zeros(4), odds], axis=1).astype(np.float32)
    return Bundle.load(save_bundle(folder, spec, {"model.onnx": model}, dataset.images[:4], logits))
