"""Which images are labelled, the most useful first, and how labels become a training set."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from label_logs import TIME, label, write_images
from PIL import Image

from vinoreward.errors import ConfigError, DatasetError
from vinoreward.images import read_image
from vinoreward.rewards.classifier import Classifier, logit
from vinoreward_envs.camera.spec import resized
from vinoreward_training.labelling.labels import Answer, Label
from vinoreward_training.labelling.order import (
    GAP,
    Opinion,
    most_useful_first,
    scored,
    with_duplicates,
)
from vinoreward_training.labelling.sources import (
    Source,
    digest_of,
    labelled_images,
    of_folder,
    of_run,
    read_named,
)

HOSTILE = (
    "<img src=x onerror=alert(1)>.png", "a\nb.png", "tab\there.png", "bell\a.png", "\x1b[31m.png",
    "\u202egnp.exe.png", "'; drop.png", "%2e%2e%2f.png", "a b&c.png",
)  # fmt: skip
PRINTABLE = {name for name in HOSTILE if name.isprintable()}


def said(name: str, image: np.ndarray, answer: Answer = "success", by: str = "ann") -> Label:
    return Label(name, digest_of(image), answer, by, TIME, 1.0)


def test_a_capture_tells_episodes_and_labels(tmp_path: Path) -> None:
    write_images(tmp_path, ["a.png", "b.png", "c.png", "unlisted.png"])
    rows = "file,label,episode\na.png,success,3\nb.png,,4\nc.png,{},4\n"
    (tmp_path / "metadata.csv").write_text(rows.format("failure"), encoding="utf-8-sig")
    source = of_folder(tmp_path)
    assert (source.names, source.episodes) == (["a.png", "b.png", "c.png"], [3, 4, 4])
    # What is not labelled yet has no true label.
    np.testing.assert_array_equal(source.numbers["true"], [1, np.nan, 0])
    (tmp_path / "metadata.csv").write_text(rows.format("Success"))
    with pytest.raises(DatasetError, match="'Success' and 'success'"):
        of_folder(tmp_path)


def test_hostile_names_are_shown_or_left_out(tmp_path: Path) -> None:
    write_images(tmp_path, [*HOSTILE, "good.png"])
    source = of_folder(tmp_path)
    assert set(source.names) == PRINTABLE | {"good.png"}
    assert source.left_out == len(HOSTILE) - len(PRINTABLE) > 3
    assert len(dict(source.images())) == len(source.names)


@pytest.mark.parametrize("name", ["../secret.png", "/etc/hostname", "a\n.png", ".", "link.png"])
def test_no_name_or_link_reaches_out_of_the_folder(tmp_path: Path, name: str) -> None:
    write_images(tmp_path, ["secret.png", "inner/a.png"])
    (tmp_path / "inner" / "link.png").symlink_to(tmp_path / "secret.png")
    with pytest.raises(DatasetError):
        read_named(tmp_path / "inner", name)
    assert [index for index, _ in of_folder(tmp_path / "inner").images()] == [0]


def test_a_runs_claims(tmp_path: Path) -> None:
    claims = write_images(tmp_path / "claims", ["0.png", "1.png"])
    table = claims / "claims.csv"
    table.write_text(
        "image,step,episode,probability,ood_score,true\n0.png,10,1,0.9,1.5,0\n1.png,20,,,,\n"
    )
    source = of_run(tmp_path)
    assert source.names == ["0.png", "1.png"] and source.folder == claims and source.claimed
    assert source.episodes == [1, -2]
    assert source.numbers["ood_score"][0] == 1.5 and np.isnan(source.numbers["ood_score"][1])
    table.write_text("image\n0.png\n")
    assert of_run(tmp_path).names == ["0.png"]


def test_a_run_without_claims_or_with_damaged_ones_is_refused(tmp_path: Path) -> None:
    for run in (tmp_path, tmp_path / "none"):
        with pytest.raises(ConfigError) as refused:
            of_run(run)
        assert refused.value.field == "run"
    table = write_images(tmp_path / "claims", ["0.png"]) / "claims.csv"
    for rows in ("file\n0.png", "image,step\n0.png,many", "\xff", "image\n../../out.png"):
        table.write_bytes(rows.encode("latin-1"))
        with pytest.raises(DatasetError):
            of_run(tmp_path)


def test_the_digest_is_of_pixels_and_shape(tmp_path: Path) -> None:
    image = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    assert digest_of(image) == hashlib.sha256(b"2x3x3 " + bytes(range(18))).hexdigest()
    assert digest_of(image) != digest_of(image.reshape(3, 2, 3))
    for level in (0, 9):
        Image.fromarray(image).save(tmp_path / "a.png", compress_level=level)
        assert digest_of(read_image(tmp_path / "a.png")) == digest_of(image)


def test_labelled_images_are_those_that_were_seen(tmp_path: Path) -> None:
    write_images(tmp_path, ["a.png", "b.png", "changed.png", "gone.png", "torn.png"])
    source = of_folder(tmp_path)
    images = {source.names[index]: image for index, image in source.images()}
    labels = [
        said("a.png", images["a.png"]),
        said("b.png", images["b.png"], "failure"),
        said("changed.png", images["a.png"]),
        said("gone.png", images["gone.png"]),
        said("torn.png", images["torn.png"]),
        said("torn.png", images["torn.png"], "failure", "bob"),
    ]  # fmt: skip
    (tmp_path / "gone.png").unlink()
    with pytest.warns(UserWarning, match=r"2 of 4 labelled images.*changed\.png"):
        found = labelled_images(tmp_path, labels, (6, 8))
    assert found.names == ["a.png", "b.png"] and found.labels.tolist() == [1, 0]
    assert found.images.shape == (2, 6, 8, 3) and found.labels.dtype == np.int64
    assert np.array_equal(found.images[1], resized(images["b.png"], 6, 8))


# --- the order -----------------------------------------------------------------------------------


NAN = float("nan")


def source_of(count: int, episodes: list[int] | None = None) -> Source:
    return Source(folder=Path(), names=[f"{n}.png" for n in range(count)], episodes=episodes)


def opinion_of(
    log_odds: list[float], ood_score: list[float] | None = None, true: list[float] | None = None
) -> Opinion:
    nothing = [NAN] * len(log_odds)
    return Opinion(
        *(np.array(each or nothing) for each in (log_odds, ood_score, true)), threshold=1.0
    )


def test_ood_claims_and_contradicted_answers_come_first_and_then_the_uncertain() -> None:
    opinion = opinion_of([9.0, 1.2, NAN, -3.0, 0.9])
    assert most_useful_first(source_of(5), opinion, [], "ann", 0) == [4, 1, 3, 0, 2]
    opinion = opinion_of(
        [1.0, 5.0, 6.0, -9.0, -9.0], [0.5, 2.0, 0.5, 2.0, 0.1], [NAN, NAN, 0.0, 0.0, 1.0]
    )
    # 1 is out of distribution and claimed; 2 and 4 contradict what is recorded; 3 is out of
    # distribution and not claimed.
    assert most_useful_first(source_of(5), opinion, [], "ann", 0) == [1, 2, 4, 0, 3]
    # One image of an episode comes before a second.
    opinion = opinion_of([1.0, 1.1, 1.2, 5.0, 4.0, 3.0])
    source = source_of(6, [0, 0, 0, 1, 1, 2])
    assert most_useful_first(source, opinion, [], "ann", 0) == [0, 5, 4, 1, 3, 2]


def test_disagreement_comes_first_and_what_others_labelled_last() -> None:
    said = [
        label("2.png", by="bob"), label("2.png", "failure", by="cy"), label("0.png", by="bob"),
    ]  # fmt: skip
    opinion = opinion_of([1.0, 2.0, 9.0, 3.0])
    assert most_useful_first(source_of(4), opinion, said, "ann", 0) == [2, 1, 3, 0]


def test_without_scores_the_seed_draws_the_order() -> None:
    nothing = opinion_of([NAN] * 50)
    orders = [most_useful_first(source_of(50), nothing, [], "ann", seed) for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == list(range(50)) != orders[0]


@given(st.integers(0, 80), st.integers(0, 80), st.floats(0, 0.5), st.integers(0, 5))
def test_every_image_comes_once_and_some_twice(
    left: int, done: int, share: float, seed: int
) -> None:
    names = [f"{n}.png" for n in range(left + done)]
    order = np.random.default_rng(seed).permutation(left).tolist()
    before = list(range(left, left + done))
    repeated = before[: done // 4]
    plan = with_duplicates(names, order, before, repeated, share, seed)
    assert [index for index, twice in plan if not twice] == order
    twice = [index for index, twice in plan if twice]
    assert len(set(twice)) == len(twice) <= max(0, round(share * (left + done)) - len(repeated))
    assert not set(twice) & set(repeated)
    for index in set(twice) & set(order):
        assert plan.index((index, True)) - plan.index((index, False)) > GAP
    if done == 0 and left > 2 * GAP + 10:
        assert len(twice) == round(share * left)


def test_a_bundle_and_its_guard_are_asked(tmp_path: Path) -> None:
    from vinoreward_training.data.dataset_files import save_image

    random = np.random.default_rng(0)
    images = random.integers(0, 256, (3, 96, 128, 3), dtype=np.uint8)
    for index, image in enumerate(images):
        save_image(tmp_path / f"{index}.png", image)
    (tmp_path / "broken.png").write_bytes(b"no image")
    opinion = scored(of_folder(tmp_path), "panda-hover-classifier")
    with Classifier("panda-hover-classifier", precision="fp32") as classifier:
        expected = classifier.predict(images)
        threshold = classifier.threshold
    assert np.allclose(opinion.log_odds[:3], expected.log_odds, atol=1e-4)
    assert expected.ood_score is not None and np.allclose(opinion.ood_score[:3], expected.ood_score)
    assert np.isnan(opinion.log_odds[3]) and opinion.threshold == logit(threshold)
