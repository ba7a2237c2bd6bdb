"""vinoreward mend: labels in, a bundle that is no worse out."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.numpy import save_file
from tiny_network import rewrite
from toy_environments import HEIGHT, WIDTH, save_toy_bundle

from vinoreward.bundles.bundle import Bundle
from vinoreward.bundles.schema import Decision
from vinoreward.errors import ConfigError, DatasetError
from vinoreward.files import sha256
from vinoreward.images import View
from vinoreward.rewards.interventions import Axis
from vinoreward_training.audit.checks import Check, share_check
from vinoreward_training.audit.report import AuditReport
from vinoreward_training.audit.search import Hole, SearchReport
from vinoreward_training.cli import main
from vinoreward_training.configs import MendConfig
from vinoreward_training.data.dataset import Dataset, load_dataset, split_by_episode
from vinoreward_training.labelling.labels import Label, LabelLog, now
from vinoreward_training.labelling.sources import digest_of
from vinoreward_training.mending.command import CANDIDATE, keep_better
from vinoreward_training.mending.comparison import (
    Comparison,
    compare_bundles,
    increase_pvalue,
    reject_nulls_bh,
    sign_test_pvalue,
)
from vinoreward_training.mending.labelled import Labelled, keep_held_out, read_all
from vinoreward_training.mending.refit import WEIGHTS, passes_over, share_of_labels, shares_of


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
    assert np.array_equal(found.train, read_all([first, second], bundle).train)
    with pytest.raises(DatasetError, match=r"hold 3 labelled images\. Expected at least 10"):
        read_all([second], bundle)
    with pytest.raises(DatasetError, match="vinoreward label"):
        read_all([tmp_path / "none"], bundle)


def test_a_fifth_of_the_labels_and_held_out_images_are_not_trained_on(
    tmp_path: Path, bundle: Bundle, dataset: Dataset
) -> None:
    found = read_all([label(tmp_path / "a", noise(300), ["failure"] * 300)], bundle)
    assert 0.12 < (~found.train).mean() < 0.28
    train, validation, test = split_by_episode(dataset)
    some = np.concatenate([train[:6], validation[:3], test[:2]])
    labelled = Labelled(dataset.images[some], dataset.labels[some], np.arange(11) != 0, "")
    assert keep_held_out(labelled, dataset).train.tolist() == [False] + [True] * 5 + [False] * 5
    few = dataclasses.replace(labelled, train=np.arange(11) > 1)
    with pytest.raises(DatasetError, match=r"4 of 11 labelled.*: 5 are in .* 2 are held out"):
        keep_held_out(few, dataset)


def test_old_images_and_labels_have_their_shares_of_a_step() -> None:
    shares = shares_of(10, 4, 0.2)
    assert shares[:10].sum() == pytest.approx(0.8) and shares[10:].sum() == pytest.approx(0.2)
    assert np.ptp(shares[:10]) == np.ptp(shares[10:]) == 0
    assert [passes_over(count) for count in (100_000, 12_051, 4_285, 1_000)] == [1, 1, 5, 24]


def test_labels_get_a_larger_share_the_more_the_bundle_gets_wrong(
    dataset: Dataset, bundle: Bundle
) -> None:
    """40 % for labels all of which it gets wrong; those held out do not count."""
    images = dataset.images[dataset.labels == 1][:50]  # it claims them all
    trained = np.arange(50) < 40
    for wrong, share in ((40, 0.4), (10, 0.1), (1, 0.02), (0, 0.02)):
        labels = (np.arange(50) >= wrong).astype(np.int64) * trained
        assert share_of_labels(bundle, Labelled(images, labels, trained, "")) == share


# --- the comparison ----------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Audited:
    """What a comparison reads of an audit."""

    measures: dict[str, Check]
    faults: tuple[str, ...] = ()


def share(value: float, bar: float, of: int) -> Check:
    return share_check("", round(value * of), of, bar)


def worse_rows(old: Audited, new: Audited, dataset: Dataset, bundle: Bundle) -> list[Comparison]:
    held_out = Labelled(noise(12), np.zeros(12, np.int64), np.arange(12) > 3, "")
    rows = compare_bundles(bundle, bundle, (old, new), dataset, held_out)  # type: ignore[arg-type]
    assert rows[0].before == rows[0].after == 1.0
    return [row for row in rows if row.worse]


STAY = {"stay": share(0.5, 0.05, 20)}


@pytest.mark.parametrize(
    ("old", "new", "worse"),
    [
        (Audited({"x": share(0, 0.001, 20000)}), Audited({"x": share(0.0009, 0.001, 20000)}), None),
        (Audited({"x": share(0, 0.001, 20000)}), Audited({"x": share(0.002, 0.001, 20000)}), "x"),
        (Audited({"x": share(0.01, 0.001, 20000)}), Audited({"x": share(0.02, 0.001, 20000)}),
         "x"),
        (Audited({}), Audited({}, ("under less light it claims 0 of 200",)), "faults that the"),
        (Audited({}), Audited({"stay": share(0.1, 0.05, 20)}), None),
        (Audited({}), Audited(STAY), "stay"),
    ],
    ids=["within the bar", "misses the bar", "worse beyond the bar", "a first fault",
         "new, by chance", "new, misses its bar"],
)  # fmt: skip
def test_an_audit_that_is_worse_beyond_its_bar_is_refused(
    dataset: Dataset, bundle: Bundle, old: Audited, new: Audited, worse: str | None
) -> None:
    found = worse_rows(old, new, dataset, bundle)
    assert len(found) == (worse is not None)
    assert worse is None or found[0].measure.startswith(worse)


def test_a_new_bundle_that_claims_less_or_claims_failures_is_refused(
    dataset: Dataset, bundle: Bundle
) -> None:
    """And not the other way round: fewer false claims are no fault."""

    def at(threshold: float) -> Bundle:
        decision = dataclasses.replace(bundle.spec.decision, threshold=threshold)
        return dataclasses.replace(bundle, spec=dataclasses.replace(bundle.spec, decision=decision))

    def worse(old: Bundle, new: Bundle, count: int) -> list[str]:
        images, none = dataset.images[dataset.labels == 0][:count], np.zeros(count, np.int64)
        held_out = Labelled(images, none, none == 1, "")
        audits = Audited({}), Audited({})
        rows = compare_bundles(old, new, audits, dataset, held_out)  # type: ignore[arg-type]
        return [row.measure for row in rows if row.worse]

    careless, blind = at(1e-6), at(0.9999)
    false, labels = "false claims on the test part", "held-out labels that it gets wrong"
    assert worse(bundle, careless, 60) == [false, labels]
    assert worse(bundle, careless, 2) == [false], "two labels are too few to tell"
    assert worse(careless, bundle, 60) == []
    assert worse(bundle, blind, 2) == ["recall on the test part"]


def test_the_sign_test_is_of_the_images_that_differ() -> None:
    before = np.ones(400, np.bool_)
    few, many, mixed = before.copy(), before.copy(), before.copy()
    few[:3], many[:12], mixed[:12] = False, False, False
    assert sign_test_pvalue(before, before) == 1.0 and sign_test_pvalue(before, few) == 1 / 8
    assert sign_test_pvalue(before, many) == 2**-12 and sign_test_pvalue(many, before) == 1.0
    before[20:30] = False
    chance = sum(math.comb(22, k) for k in range(12, 23)) / 2**22
    assert sign_test_pvalue(before, mixed) == pytest.approx(chance), "12 lost, 10 gained"


@example([0.0499, 1.0 - 1e-9])
@example([0.0501])
@example([0.0249, 0.9])
@example([0.0251, 0.9])
@given(st.lists(st.none() | st.floats(0.0, 1.0), max_size=60))
def test_of_many_measures_some_are_worse_by_chance(p_values: list[float | None]) -> None:
    """The oracle is Benjamini and Hochberg's own rule: the largest k with p(k) <= k q / m."""
    tests = sorted(one for one in p_values if one is not None)
    for rank, one in enumerate(tests, 1):
        assume(abs(one - 0.05 * rank / len(tests)) > 1e-12)
    below = [one for rank, one in enumerate(tests, 1) if one < 0.05 * rank / len(tests)]
    limit = below[-1] if below else -1.0
    assert reject_nulls_bh(p_values) == [one is None or one <= limit for one in p_values]


def test_a_search_gives_the_measures_of_its_sample_and_of_holes() -> None:
    search = SearchReport("room", (Axis("x", 0.0, 1.0, "m"),), failures=1000, claimed=3)
    report = AuditReport("toy", searches=[search])
    rate = report.measures["failures claimed in the space 'room'"]
    assert (rate.value, rate.of) == (0.003, 1000) and 0.01 < rate.limit < 0.02
    for around, claimed, found in ((32, 16, 0.0), (32, 17, 1.0), (0, 0, 0.0)):
        search.holes = [Hole((0.0,), 0.9, around, claimed)]
        hole = report.measures["a hole in the space 'room'"]
        assert (hole.value, hole.limit, hole.of) == (found, 0.0, 0)
    # A first hole is worse: both audits score the same states, so chance has no part in it.
    none, hole = Check("", False), Check("", True, value=1.0)
    assert increase_pvalue(none, hole) is None
    assert increase_pvalue(hole, hole) == increase_pvalue(hole, none) == 1.0


@given(st.integers(1, 400), st.integers(1, 400), st.data())
@settings(max_examples=60, deadline=None)
def test_the_p_value_of_a_higher_share_is_binomial(
    old_of: int, new_of: int, data: st.DataObject
) -> None:
    """The oracle is the binomial sum itself."""
    old, new = data.draw(st.integers(0, old_of)), data.draw(st.integers(0, new_of))
    p, rising = new_of / (old_of + new_of), range(new, old + new + 1)
    chance = sum(math.comb(old + new, k) * p**k * (1 - p) ** (old + new - k) for k in rising)
    before, after = (share_check("", n, of, 0.0) for n, of in ((old, old_of), (new, new_of)))
    # A bar of 0 is exceeded by any claim.
    expected = chance if new / new_of > old / old_of else 1.0
    assert increase_pvalue(before, after) == pytest.approx(expected)


@given(st.integers(1, 400), st.floats(0.001, 0.5), st.data())
@settings(max_examples=60, deadline=None)
def test_a_share_that_was_not_measured_before_is_compared_with_its_limit(
    of: int, bar: float, data: st.DataObject
) -> None:
    """The probability of so many claims or more, where as many are right as the limit says."""
    claimed = data.draw(st.integers(0, of))
    after = share_check("", claimed, of, bar)
    p, rising = after.limit, range(claimed, of + 1)
    chance = sum(math.comb(of, k) * p**k * (1 - p) ** (of - k) for k in rising)
    found = increase_pvalue(dataclasses.replace(after, value=0.0, of=0), after)
    assert found == pytest.approx(chance if claimed / of > p else 1.0)


# --- the command -------------------------------------------------------------------------------


@pytest.mark.parametrize(("threshold", "kept"), [(0.5, "new"), (1e-6, "old")])
def test_a_mended_bundle_is_kept_if_it_is_no_worse(
    tmp_path: Path, data: Path, dataset: Dataset, capsys: pytest.CaptureFixture[str],
    threshold: float, kept: str,
) -> None:  # fmt: skip
    """Else the old one is, and its file is not touched; see test_crop.py for a real training."""
    old = toy(tmp_path / "old")
    rewrite(old, lambda spec: spec["decision"].update(translation_band=1.0))
    old, before = Bundle.load(old.path), sha256(old.path / "bundle.json")
    out = tmp_path / "out"
    (out / CANDIDATE).mkdir(parents=True)
    new = toy(out / CANDIDATE / "bundle", threshold)
    images = noise(12) // 8 + np.uint8(220)  # the bundle is right about them
    labelled = Labelled(images, np.ones(12, np.int64), np.arange(12) > 3, "")
    config = MendConfig(bundle=str(old.path), data=data, labels=(tmp_path,), out=out)
    status = keep_better(config, old, new, dataset, labelled, out)
    said = capsys.readouterr().out
    report = json.loads((out / "mend.json").read_text())
    printed = re.findall(r"^.*: (\S+) -> (\S+?)(?:  worse)?$", said, re.MULTILINE)
    assert bool(printed) is (kept == "old"), "the same bundle measures the same"
    assert all(one != other for one, other in printed)
    assert report["labels"] == 12 and report["kept"] == kept
    assert {"before", "after"} <= set(report) and sha256(old.path / "bundle.json") == before
    if kept == "new":
        assert status == 0 and said.count("next:") == 1 and "next: vinoreward audit" in said
        assert f"{len(report['rows'])} other measures are the same" in said
        assert "note: near its threshold the old bundle scored translation averages" in said
        assert Bundle.load(out / "bundle").spec.decision.translation_band is None
    else:
        assert status == 3 and "next:" not in said
        assert not (out / "bundle").exists() and (out / CANDIDATE / "bundle").is_dir()
        assert "kept the old bundle, as the new one is worse:" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--bundle", "panda-hover-encoder"], "--bundle"),
        (["--truth", "done"], "--truth.*without --env would ignore"),
        (["--labels", "nowhere"], "Expected labels"),
        (["--data", "few"], "Expected at least 30: .*--resume"),
    ],
)
def test_what_cannot_be_mended_is_refused_before_the_training(
    data: Path, tmp_path: Path, bundle: Bundle, capsys: pytest.CaptureFixture[str],
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    if "few" in words:
        corridors(tmp_path / "few", 29)
    labels = label(tmp_path / "labels", noise(12), ["failure"] * 12)
    of_all = {"--bundle": bundle.path, "--data": data, "--labels": labels, "--out": "out"}
    given = [str(word) for pair in of_all.items() if pair[0] not in words for word in pair]
    assert main(["mend", *given, *words]) == 1
    assert re.search(said, capsys.readouterr().err)
    assert not (tmp_path / "out").exists()


def test_a_bundle_of_several_images_is_refused(tmp_path: Path, bundle: Bundle) -> None:
    image = dataclasses.replace(bundle.spec.image, views=(View("wrist", 2), View("front", 4)))
    views = dataclasses.replace(bundle, spec=dataclasses.replace(bundle.spec, image=image))
    with pytest.raises(ConfigError) as found:
        read_all([label(tmp_path / "labels", noise(12), ["failure"] * 12)], views)
    assert found.value.field == "bundle"
