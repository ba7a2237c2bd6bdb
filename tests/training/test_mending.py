"""vinoreward mend: labels in, a bundle that is no worse out."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import shutil
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.numpy import save_file
from tiny_network import rewrite
from toy_environments import HEIGHT, WIDTH, Corridor, save_toy_bundle

from vinoreward.bundles.bundle import Bundle
from vinoreward.bundles.schema import Decision
from vinoreward.errors import ConfigError, DatasetError
from vinoreward.files import sha256
from vinoreward.images import View
from vinoreward.rewards.interventions import Axis, SearchSpace
from vinoreward_training.audit.command import audit
from vinoreward_training.audit.report import AuditReport, Measure
from vinoreward_training.audit.search import Hole, Searched
from vinoreward_training.cli import main
from vinoreward_training.configs import MendConfig
from vinoreward_training.data.dataset import Dataset, load_dataset, split_by_episode
from vinoreward_training.labelling.labels import Label, LabelLog, now
from vinoreward_training.labelling.sources import digest_of
from vinoreward_training.mending import command
from vinoreward_training.mending.command import both_audited
from vinoreward_training.mending.examples import ExampleSource
from vinoreward_training.mending.judgement import (
    chance_of_fewer,
    chance_of_worse,
    judged,
    surely,
)
from vinoreward_training.mending.labelled import CATEGORY, Labelled, joined, keep_held_out, read_all
from vinoreward_training.mending.refit import WEIGHTS, passes, share_of_labels


def corridors(folder: Path, count: int = 40) -> Path:
    """Images of the toy's corridor, which claims what is redder than 178, or than 247."""
    for name, levels in (("success", (200, 255)), ("failure", (40, 160))):
        (folder / name).mkdir(parents=True)
        for number, level in enumerate(np.linspace(*levels, count)):
            image = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
            image[..., 0] = level
            image[0, 0, 2] = number % 256  # no two alike
            Image.fromarray(image).save(folder / name / f"{number:03d}.png")
    return folder


def toy(folder: Path, threshold: float = 0.5) -> Bundle:
    """Save a bundle that reads the corridor, with weights as if a training had written them."""
    decision = Decision(threshold=threshold, chosen_for={"target_fpr": 0.1})
    bundle = save_toy_bundle(folder, decision=decision)
    save_file({"weights": np.zeros(1, np.float32)}, bundle.path / WEIGHTS)
    digest = sha256(bundle.path / WEIGHTS)

    def trained(spec: dict[str, Any]) -> None:
        spec["architecture"] = "squeezenet1_1"
        spec["files"][WEIGHTS] = digest

    rewrite(bundle, trained)
    return Bundle.load(bundle.path)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corridors(tmp_path_factory.mktemp("mend") / "data", 230)


@pytest.fixture(scope="module")
def dataset(data: Path) -> Dataset:
    return load_dataset(data)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return toy(tmp_path_factory.mktemp("bundle") / "toy")


def label(folder: Path, images: np.ndarray, answers: list[str]) -> Path:
    """Write images and their labels."""
    folder.mkdir(parents=True, exist_ok=True)
    with LabelLog(folder / "labels.jsonl") as log:
        for number, (image, answer) in enumerate(zip(images, answers, strict=True)):
            Image.fromarray(image).save(folder / f"{number:02d}.png")
            log.add(Label(f"{number:02d}.png", digest_of(image), answer, "ann", now(), 1.0))  # type: ignore[arg-type]
    return folder


def noise(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, HEIGHT, WIDTH, 3), dtype=np.uint8)


# --- labels ------------------------------------------------------------------------------------


def test_claims_that_carry_the_truth_need_no_labels(tmp_path: Path, bundle: Bundle) -> None:
    images, run = noise(14), tmp_path / "run"
    (run / "claims").mkdir(parents=True)
    rows = ["image,true"]
    for number, image in enumerate(images):
        Image.fromarray(image).save(run / "claims" / f"{number:02d}.png")
        rows.append(f"{number:02d}.png,{('0', '1', '')[min(2, number // 6)]}")
    (run / "claims" / "claims.csv").write_text("\n".join(rows) + "\n")
    found = read_all([run], bundle)
    assert found.labels.tolist() == [0] * 6 + [1] * 6, "of the others nobody knows"
    assert np.array_equal(found.images, images[:12])
    # What somebody has labelled counts instead.
    with LabelLog(run / "labels.jsonl") as log:
        for number, image in enumerate(images):
            log.add(Label(f"{number:02d}.png", digest_of(image), "failure", "ann", now(), 1.0))
    assert read_all([run], bundle).labels.tolist() == [0] * 14


def test_labels_of_several_folders_are_read_once_each(tmp_path: Path, bundle: Bundle) -> None:
    images = noise(14)
    first = label(tmp_path / "a", images[:12], ["failure"] * 12)
    second = label(tmp_path / "b", images[10:], ["success", "success", "failure", "skip"])
    found = read_all([first, second], bundle)
    assert len(found.labels) == 13 and found.labels.sum() == 2, "the last label of an image counts"
    assert "12 labels, 0 of them successes" in found.sentence
    again = read_all([first, second], bundle)
    assert np.array_equal(found.train, again.train)
    with pytest.raises(DatasetError, match=r"hold 3 labelled images\. Expected at least 10"):
        read_all([second], bundle)
    with pytest.raises(DatasetError, match="vinoreward label"):
        read_all([tmp_path / "none"], bundle)


def test_about_a_fifth_of_the_labels_is_kept_back(tmp_path: Path, bundle: Bundle) -> None:
    found = read_all([label(tmp_path / "a", noise(300), ["failure"] * 300)], bundle)
    assert 0.12 < (~found.train).mean() < 0.28


def test_labelled_images_are_episodes_of_their_own(dataset: Dataset) -> None:
    images, labels = noise(5), np.array([0, 1, 0, 0, 1])
    both = joined(dataset, images, labels)
    count = len(dataset.labels)
    assert np.array_equal(both.images[count:], images)
    assert np.array_equal(both.labels[count:], labels)
    assert not set(both.episodes[count:]) & set(dataset.episodes)
    assert len(set(both.episodes[count:])) == 5 and set(both.categories[count:]) == {CATEGORY}
    assert np.isnan(both.distances[count:]).all() and both.sha256 != dataset.sha256
    assert len(both.files) == len(both.labels)


def test_labels_get_a_larger_share_the_more_the_bundle_gets_wrong(
    dataset: Dataset, bundle: Bundle
) -> None:
    """40 % for labels all of which it gets wrong; those kept back do not count."""
    images = dataset.images[dataset.labels == 1][:50]  # it claims them all
    trained = np.arange(50) < 40
    for wrong, share in ((40, 0.4), (10, 0.1), (1, 0.02), (0, 0.02)):
        labels = (np.arange(50) >= wrong).astype(np.int64) * trained
        assert share_of_labels(bundle, Labelled(images, labels, trained, "")) == share


def test_a_training_on_few_images_goes_over_them_more_often() -> None:
    assert [passes(count) for count in (100_000, 12_051, 4_285, 1_000)] == [1, 1, 5, 24]


# --- the verdict -------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Measured:
    """What judged() reads of an audit."""

    measures: dict[str, Measure]
    faults: tuple[str, ...] = ()


@pytest.mark.parametrize(
    ("before", "after", "worse"),
    [
        (0.0, 0.0009, False),  # within the bar
        (0.5, 0.4, False),  # better, though beyond the bar
        (0.0005, 0.002, True),
        (0.01, 0.02, True),
    ],
)
def test_an_audit_that_is_worse_beyond_its_bar_is_refused(
    dataset: Dataset, bundle: Bundle, before: float, after: float, worse: bool
) -> None:
    kept = Labelled(noise(12), np.zeros(12, np.int64), np.arange(12) > 3, "")
    audits = tuple(
        Measured({"dead-camera frames claimed": Measure(one, 0.001, 20000)})
        for one in (before, after)
    )
    found = judged(bundle, bundle, audits, dataset, kept)  # type: ignore[arg-type]
    assert [row["worse"] for row in found.rows] == [False, False, False, worse, False]
    assert found.rows[0]["before"] == found.rows[0]["after"] == 1.0
    assert ("dead-camera" in " ".join(found.worse)) is worse


@pytest.mark.parametrize(
    ("old", "new", "worse"),
    [
        (Measured({}), Measured({}, ("under less light it claims 0 of 200",)), "faults that the"),
        (Measured({}, ("one",)), Measured({}, ("one", "two")), None),
        (Measured({"stay": Measure(0.5, 0.05, 20)}), Measured({}), None),
        (Measured({}), Measured({"stay": Measure(0.04, 0.05, 20)}), None),
        (Measured({}), Measured({"stay": Measure(0.1, 0.05, 20)}), None),
        (Measured({}), Measured({"stay": Measure(0.5, 0.05, 20)}), "stay"),
    ],
    ids=[
        "a first fault",
        "one more",
        "not measured any more",
        "new, fine",
        "new, by chance",
        "new, misses its bar",
    ],
)
def test_what_only_one_audit_found(
    dataset: Dataset, bundle: Bundle, old: Measured, new: Measured, worse: str | None
) -> None:
    kept = Labelled(noise(12), np.zeros(12, np.int64), np.arange(12) > 3, "")
    audits = old, new
    found = judged(bundle, bundle, audits, dataset, kept)  # type: ignore[arg-type]
    assert len(found.worse) == (worse is not None)
    assert worse is None or found.worse[0].startswith(worse)


def test_labels_of_held_out_images_are_not_trained_on(dataset: Dataset) -> None:
    train, validation, test = split_by_episode(dataset)
    some = np.concatenate([train[:6], validation[:3], test[:2]])
    labelled = Labelled(dataset.images[some], dataset.labels[some], np.arange(11) != 0, "")
    assert keep_held_out(labelled, dataset).train.tolist() == [False] + [True] * 5 + [False] * 5
    few = dataclasses.replace(labelled, train=np.arange(11) > 1)
    with pytest.raises(DatasetError, match=r"4 of 11 labelled.*: 5 are in .* 2 are kept"):
        keep_held_out(few, dataset)


def test_a_new_bundle_that_claims_less_or_claims_failures_is_refused(
    dataset: Dataset, bundle: Bundle
) -> None:
    """And not the other way round: fewer false claims are no fault."""

    def at(threshold: float) -> Bundle:
        decision = dataclasses.replace(bundle.spec.decision, threshold=threshold)
        return dataclasses.replace(bundle, spec=dataclasses.replace(bundle.spec, decision=decision))

    careless, blind = at(1e-6), at(0.9999)
    failures = dataset.images[dataset.labels == 0][:60]
    audits = Measured({}), Measured({})
    for count in (60, 2):
        kept = Labelled(failures[:count], np.zeros(count, np.int64), np.zeros(count, np.bool_), "")
        for old, new, worse in ((bundle, careless, True), (careless, bundle, False)):
            found = judged(old, new, audits, dataset, kept)  # type: ignore[arg-type]
            said = " ".join(found.worse)
            assert ("false claims on the test part" in said) is worse, found.rows
            # Two labels are too few to tell.
            assert ("labels kept back" in said) is (worse and count > 2), found.rows
    found = judged(bundle, blind, audits, dataset, kept)  # type: ignore[arg-type]
    assert [one.partition(":")[0] for one in found.worse] == ["recall on the test part"]


def test_the_chance_of_fewer_claims_is_that_of_the_images_that_differ() -> None:
    before = np.ones(400, np.bool_)
    few, many, mixed = before.copy(), before.copy(), before.copy()
    few[:3], many[:12], mixed[:12] = False, False, False
    assert chance_of_fewer(before, before) == 1.0 and chance_of_fewer(before, few) == 1 / 8
    assert chance_of_fewer(before, many) == 2**-12 and chance_of_fewer(many, before) == 1.0
    before[20:30] = False
    chance = sum(math.comb(22, k) for k in range(12, 23)) / 2**22
    assert chance_of_fewer(before, mixed) == pytest.approx(chance), "12 lost, 10 gained"


@example([0.0499, 1.0 - 1e-9])
@example([0.0501])
@example([0.0249, 0.9])
@example([0.0251, 0.9])
@given(st.lists(st.none() | st.floats(0.0, 1.0), max_size=60))
def test_of_many_measures_some_are_worse_by_chance(chances: list[float | None]) -> None:
    """The oracle is Benjamini and Hochberg's own rule: the largest k with p(k) <= k q / m."""
    found = surely(chances)
    tests = sorted(one for one in chances if one is not None)
    for rank, one in enumerate(tests, 1):
        assume(abs(one - 0.05 * rank / len(tests)) > 1e-12)
    below = [one for rank, one in enumerate(tests, 1) if one < 0.05 * rank / len(tests)]
    limit = below[-1] if below else -1.0
    assert found == [one is None or one <= limit for one in chances]


def test_a_bundle_that_is_no_worse_is_rarely_refused() -> None:
    """Fifty measures by the same network, of different frames: nine in ten have one below 5 %."""
    random = np.random.default_rng(0)
    refused = [0, 0]
    for _ in range(200):
        claims = random.random((50, 2, 400)) < 0.1
        chances = [chance_of_fewer(before, after) for before, after in claims]
        refused[0] += min(chances) < 0.05
        refused[1] += any(surely(chances))
    assert refused[0] > 160 and refused[1] < 20


def test_a_search_gives_measures_of_the_same_states() -> None:
    """In a plane its area; of a larger space, whose planes differ, the spread states, and holes."""
    from vinoreward_training.audit.battery import Battery

    axes = tuple(Axis(name, 0.0, 1.0, "m") for name in "xyz")
    plane = Searched("table", axes[:2], plane=2e-4, cell=1e-4)
    larger = Searched("room", axes, failures=1000, claimed=3, plane=2e-4, cell=1e-4)
    report = AuditReport("toy", (), "", Battery(), [], searched=(plane, larger))
    measures = report.measures
    assert measures["area claimed in the space 'table'"] == Measure(2e-4, 1e-4)
    share = measures["failures claimed in the space 'room'"]
    assert (share.value, share.of) == (0.003, 1000) and 0.01 < share.bar < 0.02
    assert measures["a hole in the space 'room'"] == Measure(0.0, 0.0)
    assert "area claimed in the space 'room'" not in measures
    for around, claimed, found in ((32, 16, 0.0), (32, 17, 1.0), (0, 0, 0.0)):
        larger.holes = [Hole((0.0, 0.0, 0.0), 0.9, around, claimed)]
        assert report.measures["a hole in the space 'room'"] == Measure(found, 0.0)
    # A hole where none was found is worse; one where there was one is not.
    none, one = Measure(0.0, 0.0), Measure(1.0, 0.0)
    assert surely([chance_of_worse(none, one), chance_of_worse(one, one)]) == [True, False]


@given(st.integers(1, 400), st.integers(1, 400), st.data())
@settings(max_examples=60, deadline=None)
def test_the_chance_of_a_higher_share_is_a_binomial_one(
    old_of: int, new_of: int, data: st.DataObject
) -> None:
    """The oracle is the binomial sum itself."""
    old, new = data.draw(st.integers(0, old_of)), data.draw(st.integers(0, new_of))
    p = new_of / (old_of + new_of)
    chance = sum(
        math.comb(old + new, k) * p**k * (1 - p) ** (old + new - k)
        for k in range(new, old + new + 1)
    )
    found = chance_of_worse(Measure(old / old_of, 0.0, old_of), Measure(new / new_of, 0.0, new_of))
    assert found == pytest.approx(chance if new / new_of > old / old_of else 1.0)


@given(st.integers(1, 400), st.floats(0.001, 0.5), st.data())
@settings(max_examples=60, deadline=None)
def test_a_share_that_was_not_measured_before_is_compared_with_its_bar(
    of: int, bar: float, data: st.DataObject
) -> None:
    """The chance of so many claims or more, where as many are right as the bar says."""
    claimed = data.draw(st.integers(0, of))
    chance = sum(math.comb(of, k) * bar**k * (1 - bar) ** (of - k) for k in range(claimed, of + 1))
    found = chance_of_worse(Measure(0.0, bar), Measure(claimed / of, bar, of))
    assert found == pytest.approx(chance if claimed / of > bar else 1.0)


def test_an_area_is_worse_where_it_is_larger() -> None:
    """A search of the same states finds it or not; there is no chance in that."""
    small, large = Measure(1e-4, 2e-4), Measure(3e-4, 2e-4)
    assert chance_of_worse(small, large) is None and chance_of_worse(large, small) == 1.0
    assert chance_of_worse(Measure(0.0, 2e-4), small) == 1.0, "within the bar"
    assert surely([1.0, None]) == [False, True]


# --- the command -------------------------------------------------------------------------------


def test_a_mended_bundle_is_kept_if_it_is_no_worse(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the old one is, and its file is not touched; see test_crop.py for a real training."""
    thresholds = iter((0.5, 1e-6))

    def refitted(
        config: MendConfig, old: Bundle, dataset: Dataset, labelled: Labelled, folder: Path,
        source: ExampleSource | None,
    ) -> Bundle:  # fmt: skip
        assert source is None
        assert labelled.labels.tolist() == [1] * 12 and 0 < labelled.train.sum() < 12
        return toy(folder / "bundle", next(thresholds))

    def shortly(*arguments: Any, **options: Any) -> AuditReport:
        return audit(*arguments, **{**options, "dead": 220, "frames": 30})

    monkeypatch.setattr(command, "refit", refitted)
    monkeypatch.setattr(command, "audit", shortly)
    old = toy(tmp_path / "old").path
    rewrite(Bundle.load(old), lambda spec: spec["decision"].update(translation_band=1.0))
    before = sha256(old / "bundle.json")
    images = noise(12) // 8 + np.uint8(220)  # the bundle is right about them
    labels = label(tmp_path / "labels", images, ["success"] * 12)
    words = ["mend", "--bundle", str(old), "--data", str(data), "--labels", str(labels)]
    for name in ("kept", "refused"):
        out = tmp_path / name
        status = main([*words, "--threads", "1", "--out", str(out)])
        said = capsys.readouterr().out
        told = json.loads((out / "mend.json").read_text())
        shown = re.findall(r"^.*: (\S+) -> (\S+?)(?:  worse)?$", said, re.MULTILINE)
        changed = [row for row in told["rows"] if row["before"] != row["after"]]
        assert bool(shown) is (name == "refused"), "the same bundle measures the same"
        assert all(before != after for before, after in shown)
        same = int(re.findall(r"(\d+) other measures are the same", said)[0])
        assert same >= len(told["rows"]) - len(changed) and same + len(shown) == len(told["rows"])
        assert told["labels"] == 12 and {"before", "after"} <= set(told)
        if name == "kept":
            assert status == 0 and told["kept"] == "new", said
            assert said.count("next:") == 1 and "next: vinoreward audit" in said
            assert "note: near its threshold the old bundle scored translation averages" in said
            assert Bundle.load(out / "bundle").spec.decision.translation_band is None
        else:
            assert status == 3 and told["kept"] == "old", said
            assert not (out / "bundle").exists() and (out / "candidate" / "bundle").is_dir()
            assert "kept the old bundle, as the new one is worse:" in said and "next:" not in said
    assert sha256(old / "bundle.json") == before


NOTHING = """
import os, signal

def nothing(env):
    if os.getpid() != int(os.environ["PARENT_OF_THE_TEST"]):
        os.kill(os.getpid(), signal.SIGKILL)
    return []
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "dies"),
    [
        ("toy_environments:ToyCorridor-v0", False),
        ("toy_environments:ToyCorridor-v0", True),
        ("MendCorridor-v0", False),
    ],
)
def test_two_audits_side_by_side_are_those_of_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: str, dies: bool
) -> None:
    """Also where the second process is killed, or does not know the environment."""
    (tmp_path / "changes.py").write_text(NOTHING)
    monkeypatch.setenv("PARENT_OF_THE_TEST", str(os.getpid()))
    monkeypatch.setitem(
        gym.registry, "MendCorridor-v0", EnvSpec("MendCorridor-v0", entry_point=Corridor)
    )
    bundles = [toy(tmp_path / name, one) for name, one in (("old", 0.5), ("new", 0.9))]
    config = MendConfig(
        bundle=str(bundles[0].path),
        data=corridors(tmp_path / "data"),
        labels=(),
        env=environment,
        interventions=f"{tmp_path / 'changes.py'}:nothing" if dies else None,
        seed=4,
        threads=2,
    )
    here: list[str] = []

    def noted(bundle: Bundle, *arguments: Any, **options: Any) -> AuditReport:
        here.append(bundle.path.name)
        return audit(bundle, *arguments, **options)

    monkeypatch.setattr(command, "audit", noted)
    found = both_audited(config, *bundles)
    alone = dies or environment == "MendCorridor-v0"
    assert here == (["new", "old"] if alone else ["new"])
    in_turn = dataclasses.replace(config, interventions=None, threads=1)
    for report, other in zip(found, both_audited(in_turn, *bundles), strict=True):
        assert report.replays is not None and report.replays.claims > 10
        assert report.as_dict() == other.as_dict()
    assert found[0].battery.rows != found[1].battery.rows


class Undrawable(Corridor):
    """Lacks a package to draw with."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012

    def render(self) -> Any:
        raise gym.error.DependencyNotInstalled('run `pip install "gymnasium[drawing_board]"`')


gym.register("UndrawableCorridor-v0", entry_point=Undrawable)


class Searchable(Corridor):
    """Offers its cells to be searched; its images may be larger than the network's."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012

    def __init__(self, times: int = 1, **options: Any) -> None:
        super().__init__(**options)
        self.times = times

    def render(self) -> Any:
        return super().render().repeat(self.times, axis=0)

    def audit_spaces(self) -> list[SearchSpace]:
        return [SearchSpace("cells", (Axis("cell", 0.0, 9.0),), lambda state: False)]


gym.register("SearchableCorridor-v0", entry_point=Searchable)


def test_what_cannot_be_mended_is_refused(
    data: Path,
    tmp_path: Path,
    bundle: Bundle,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    labels = label(tmp_path / "labels", noise(12), ["failure"] * 12)
    words = ["mend", "--data", str(data), "--labels", str(labels), "--out", str(tmp_path / "out")]
    assert main([*words, "--bundle", "panda-hover-encoder"]) == 1
    assert "Expected a classifier of vinoreward finetune" in capsys.readouterr().err
    old = ["--bundle", str(bundle.path)]
    assert main([*words, *old, "--share", "1"]) == 1
    assert "share" in capsys.readouterr().err
    assert main([*words, *old, "--truth-key", "done"]) == 1
    assert "--truth-key, which mending without --env would ignore" in capsys.readouterr().err
    assert main([*words, *old, "--no-examples"]) == 1
    assert "--no-examples, which mending without --env would ignore" in capsys.readouterr().err
    with monkeypatch.context() as patch:  # what no audit could judge is not trained first
        patch.setattr("vinoreward_training.audit.command.LEAST", 10_000)
        assert main([*words, *old]) == 1
    assert re.search("Expected at least 10000: .*--resume", capsys.readouterr().err)
    assert not (tmp_path / "out").exists()
    lacks = ["--env", "UndrawableCorridor-v0", "--truth-key", "success"]
    for command_words in ([*words, *old], ["audit", *words[1:3], *words[5:], *old]):
        assert main([*command_words, *lacks]) == 1
        assert re.search(r"UndrawableCorridor-v0 lacks.*\[drawing-board\]", capsys.readouterr().err)
    assert not (tmp_path / "out").exists()
    env = ["--env", "SearchableCorridor-v0", "--truth-key", "is_success"]
    for more, told in (
        (
            ["--image-source", "obs", "--env-kwargs", "observation", "image"],
            "that are rendered",
        ),
        (["--env-kwargs", "times", "2"], rf"{2 * HEIGHT}x{WIDTH} .*Expected {HEIGHT}x{WIDTH}"),
    ):
        assert main([*words, *old, *env, *more]) == 1
        assert re.search(told, capsys.readouterr().err), "before a training"
    assert not (tmp_path / "out").exists()
    both = (View("wrist", 2), View("front", 4))
    image = dataclasses.replace(bundle.spec.image, views=both)
    views = dataclasses.replace(bundle, spec=dataclasses.replace(bundle.spec, image=image))
    with pytest.raises(ConfigError, match="looks at several images"):
        read_all([labels], views)
    shutil.rmtree(labels)
    assert main([*words, *old]) == 1
    assert "Expected labels" in capsys.readouterr().err
