"""Examples that an environment labels itself, for vinoreward mend."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from vinoreward.errors import ConfigError, ModelCorruptError
from vinoreward.rewards.interventions import Axis, SearchSpace
from vinoreward_training.audit.states import Looked, StateScores, climb
from vinoreward_training.data.dataset import Dataset
from vinoreward_training.mending.examples import (
    AGAIN,
    FILE,
    HARD,
    MOST,
    OTHERS,
    SPREAD,
    Examples,
    ExampleSource,
    draw,
)
from vinoreward_training.mending.refit import passes, shares_of, with_examples

HOLE = (0.7, 0.3)
RADIUS = 0.04


class Table:
    """A hand on a table whose image is its place. Success is at the left edge."""

    def __init__(self) -> None:
        self.at = np.zeros(2)
        self.looked = 0

    def place(self, state: np.ndarray) -> bool | None:
        self.at = state
        return True if state[0] < 0.1 else None if state[0] < 0.15 else False

    def image(self) -> np.ndarray:
        self.looked += 1
        high, low = np.divmod(np.round(self.at * 65535).astype(np.int64), 256)
        return np.stack([high, low], axis=-1).astype(np.uint8).reshape(1, 4, 1).repeat(3, axis=2)

    @property
    def space(self) -> SearchSpace:
        return SearchSpace("hand", (Axis("x", 0.0, 1.0, "m"), Axis("y", 0.0, 1.0, "m")), self.place)


def places(images: np.ndarray) -> np.ndarray:
    """Read the places (N, 2) of images."""
    numbers = images[:, 0, :, 0].astype(np.float64).reshape(-1, 2, 2)
    return (numbers[..., 0] * 256 + numbers[..., 1]) / 65535


def fooled(images: np.ndarray) -> np.ndarray:
    """A network that is right, but for a hole that it is nearly sure is none until it is close."""
    at = places(images)
    apart = np.hypot(*(at - HOLE).T)
    return np.where(at[:, 0] < 0.12, 6.0, np.where(apart < RADIUS, 5.0, -4.5 - 4 * apart))


def right(images: np.ndarray) -> np.ndarray:
    return np.where(places(images)[:, 0] < 0.12, 6.0, -6.0)


def drawn(log_odds=fooled, before=None, *, seed=0, part=0, space=None, wrong=None) -> Examples:
    table, found = Table(), []
    steps = list(draw([space or table.space], table.image, log_odds, before, found,
                      {} if wrong is None else wrong, seed=seed, part=part))  # fmt: skip
    assert steps and len(found) == 1
    return found[0]


def test_most_examples_are_where_the_network_is_fooled() -> None:
    wrong: dict[str, int] = {}
    found = drawn(wrong=wrong)
    at = places(found.images)
    in_hole = np.hypot(*(at - HOLE).T) < RADIUS
    assert 200 < in_hole.sum() <= MOST, "of a space of which the hole is half a hundredth"
    assert np.array_equal(found.labels, (at[:, 0] < 0.1).astype(np.int64)), "the truth, not a claim"
    assert not ((at[:, 0] > 0.101) & (at[:, 0] < 0.149)).any(), "what is left out is not shown"
    assert found.labels.sum() > 10 and (found.labels[in_hole] == 0).all()
    others = ~in_hole & (found.labels == 0)
    assert 50 < others.sum() <= OTHERS
    remembered = np.hypot(*(found.hard[0] - HOLE).T)
    assert len(remembered) > 200 and (remembered < RADIUS + 1e-4).all()
    assert wrong["hand"] >= in_hole.sum()


def test_the_same_seed_draws_the_same_examples() -> None:
    one, same, other, later = drawn(), drawn(), drawn(seed=1), drawn(part=1)
    assert np.array_equal(one.images, same.images) and np.array_equal(one.labels, same.labels)
    for different in (other, later):
        assert one.images.shape != different.images.shape or (one.images != different.images).any()


def test_of_earlier_examples_those_stay_that_are_still_hard() -> None:
    before = drawn()
    hard = before.labels == 0
    hard &= fooled(before.images) > HARD
    kept = drawn(before=before, part=1)
    fresh = drawn(part=1, before=Examples(before.images[:0], before.labels[:0], before.hard))
    again = len(kept.labels) - len(fresh.labels)
    easy = len(before.labels) - hard.sum()
    assert hard.sum() + AGAIN * easy / 2 < again < hard.sum() + 2 * AGAIN * easy
    wrong: dict[str, int] = {}
    mended = drawn(right, before, part=1, wrong=wrong)
    assert len(mended.labels) < len(fresh.labels), "nothing is hard any more"
    assert wrong == {"hand": 0}
    assert len(mended.hard[0]) == len(before.hard[0]), "their places are kept in mind"


def test_successes_that_a_network_doubts_stay_and_those_beside_hard_failures_are_shown() -> None:
    """A network that is blind between success and failure."""

    def unsure(images: np.ndarray) -> np.ndarray:
        return np.where(places(images)[:, 0] < 0.25, 1.0, -6.0)

    before = drawn(unsure)
    assert before.labels.sum() > 2 * 0.1 * SPREAD, "more than the spread states can have"
    found = drawn(unsure, before, part=1)
    kept = {image.tobytes() for image in found.images}
    doubted = before.images[before.labels == 1]
    assert all(image.tobytes() in kept for image in doubted)


def test_no_state_outside_its_space_is_looked_at() -> None:
    """Not even beside a hole at its edge."""
    table = Table()

    def place(state: np.ndarray) -> bool | None:
        assert (state >= (0.0, 0.0)).all() and (state <= (1.0, 0.5)).all(), state
        return table.place(state)

    def edge(images: np.ndarray) -> np.ndarray:
        return np.where(places(images)[:, 0] > 0.99, 5.0, 5 * places(images)[:, 0] - 9)

    space = SearchSpace("hand", (Axis("x", 0.0, 1.0), Axis("y", 0.0, 0.5)), place)
    found: list[Examples] = []
    list(draw([space], table.image, edge, None, found, {}, seed=0, part=0))
    assert (places(found[0].images)[:, 0] == 1.0).sum() > 5


def test_climbs_start_from_several_places() -> None:
    """Four peaks that are apart, each too narrow for the sample to meet its top."""
    peaks = np.array([(0.2, 0.2), (0.8, 0.2), (0.2, 0.8), (0.8, 0.8)])
    table = Table()

    def near(images: np.ndarray) -> np.ndarray:
        apart = np.linalg.norm(places(images)[:, np.newaxis] - peaks, axis=2).min(axis=1)
        return -100 * apart

    def judge(images: np.ndarray, truth: np.ndarray) -> StateScores:
        return StateScores(
            np.zeros(len(images), np.float32), near(images), np.zeros(len(images), bool)
        )

    axes = (Axis("x", 0.0, 1.0), Axis("y", 0.0, 1.0))
    looked = Looked(SearchSpace("peaks", axes, lambda state: bool(table.place(state)) and False),
                    table.image, judge)  # fmt: skip
    list(looked.at(looked.spread(64, 0), ""))
    first = np.linalg.norm(looked.states[:, np.newaxis] - peaks, axis=2).min(axis=0)
    list(climb(looked, np.random.default_rng(0), 1024))
    last = np.linalg.norm(looked.states[:, np.newaxis] - peaks, axis=2).min(axis=0)
    assert (last < 0.01).all() and (last < first).all()


def test_it_looks_again_near_the_places_that_were_hard() -> None:
    """A network that is right all over draws no climb to the hole, which is too small to meet."""
    seen: list[np.ndarray] = []

    def looked(images: np.ndarray) -> np.ndarray:
        seen.append(places(images))
        return right(images)

    def in_hole(before: Examples | None) -> int:
        seen.clear()
        drawn(looked, before, part=1)
        return int((np.hypot(*(np.concatenate(seen) - HOLE).T) < 2 * RADIUS).sum())

    first = drawn()
    nothing = Examples(first.images[:0], first.labels[:0], first.hard)
    assert in_hole(nothing) > 20 * max(1, in_hole(None))


def test_a_label_is_of_the_same_look_as_its_image() -> None:
    """A space may draw at random what a state leaves open: here whether it is a success."""
    table, random = Table(), np.random.default_rng(0)

    def place(state: np.ndarray) -> bool | None:
        table.at = random.uniform(size=2)
        return None if table.at[0] < 0.3 else bool(table.at[0] > 0.6)

    space = SearchSpace("any", (Axis("x", 0.0, 1.0),), place)
    found: list[Examples] = []
    list(draw([space], table.image, fooled, None, found, {}, seed=0, part=0))
    at = places(found[0].images)[:, 0]
    assert len(at) > 100 and (at > 0.299).all()
    np.testing.assert_array_equal(found[0].labels, at > 0.6)


def test_a_space_that_leaves_all_states_out_gives_none() -> None:
    axes = (Axis("x", 0.0, 1.0), Axis("y", 0.0, 1.0))
    found = drawn(space=SearchSpace("nothing", axes, lambda state: None))
    assert found.images.shape == (0, 1, 4, 3) and found.labels.shape == (0,)


def test_a_set_state_that_fails_is_told() -> None:
    def place(state: np.ndarray) -> bool:
        raise ValueError("no such place")

    with pytest.raises(ConfigError, match=r"search space 'broken' fails: .*no such place"):
        drawn(space=SearchSpace("broken", (Axis("x", 0.0, 1.0),), place))


def test_a_resumed_training_gets_the_examples_of_the_first(tmp_path: Path) -> None:
    """Those of a part are written once drawn, as the checkpoint is of a training with them."""

    def source(table: Table, *, resume: bool) -> ExampleSource:
        return ExampleSource([table.space], table.image, seed=3, resume=resume)

    first = source(Table(), resume=False)
    (tmp_path / "part1").mkdir()
    one = first.examples(fooled, tmp_path / "part1", 0)
    two = first.examples(fooled, tmp_path, 1)
    (tmp_path / FILE).unlink()  # stopped while it drew the second part
    table = Table()
    resumed = source(table, resume=True)
    again = resumed.examples(right, tmp_path / "part1", 0)
    assert table.looked == 0 and np.array_equal(again.images, one.images)
    assert np.array_equal(again.labels, one.labels)
    assert np.array_equal(again.hard[0], one.hard[0])
    assert np.array_equal(resumed.examples(fooled, tmp_path, 1).images, two.images)
    anew = source(table, resume=False).examples(fooled, tmp_path / "part1", 0)
    assert table.looked > 1000 and np.array_equal(anew.images, one.images)


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"arrays": 3},
        {"arrays": [torch.zeros(3, 1, 4, 3, dtype=torch.uint8)]},
        {"arrays": [torch.zeros(3, 1, 4, 3), torch.zeros(3, dtype=torch.int64), torch.zeros(0, 2)]},
        {
            "arrays": [
                torch.zeros(3, 1, 4, 3, dtype=torch.uint8),
                torch.zeros(2, dtype=torch.int64),
                torch.zeros(0, 2),
            ]
        },
    ],
    ids=["nothing", "a number", "no labels", "no images", "too few labels"],
)
def test_other_files_are_no_examples(tmp_path: Path, state: dict[str, object]) -> None:
    torch.save(state, tmp_path / FILE)
    with pytest.raises(ModelCorruptError, match=r"has no examples of 1 spaces .*with --out"):
        Examples.load(tmp_path / FILE, 1)


@pytest.mark.parametrize("damage", ["cut", "other", "code", "spaces"])
def test_damaged_examples_are_refused(tmp_path: Path, damage: str) -> None:
    path = tmp_path / FILE
    drawn().save(path)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-500])
    elif damage == "other":
        path.write_bytes(b"no archive")
    elif damage == "code":
        torch.save({"arrays": [Path]}, path)
    with pytest.raises(ModelCorruptError, match=r"Expected (a whole file|those that this mending)"):
        Examples.load(path, 2 if damage == "spaces" else 1)


def test_a_part_of_a_training_has_its_images_and_examples_alone() -> None:
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (9, 1, 4, 3), dtype=np.uint8)
    dataset = Dataset(
        images=images, labels=np.arange(9) % 2, episodes=np.arange(9), scene={}, sha256="a",
        categories=np.array(list("abcdefghi")), distances=np.arange(9.0), folder=Path("d"),
        files=tuple("abcdefghi"),
    )  # fmt: skip
    drawn = Examples(images[:2] + np.uint8(1), np.array([1, 0]), ())
    parts = np.array([1, 4, 7]), np.array([8]), np.array([0, 2])
    found, indices = with_examples(dataset, parts, drawn)
    assert len(found.labels) == 8 and [len(one) for one in indices] == [3, 1, 2, 2]
    for part, where in zip(parts, indices, strict=False):
        for name in ("images", "labels", "episodes", "categories", "distances"):
            np.testing.assert_array_equal(
                getattr(found, name)[where], getattr(dataset, name)[part], name
            )
        assert [found.files[one] for one in where] == [dataset.files[one] for one in part]
    np.testing.assert_array_equal(found.images[indices[3]], drawn.images)
    np.testing.assert_array_equal(found.labels[indices[3]], drawn.labels)
    other, _ = with_examples(dataset, (parts[0], parts[1], np.array([0, 3])), drawn)
    assert len({dataset.sha256, found.sha256, other.sha256}) == 3, "a checkpoint is of one of them"


def test_examples_get_a_share_of_their_own() -> None:
    old, ours, drawn = np.arange(10), np.arange(10, 14), np.arange(14, 34)
    shares = shares_of((old, ours, drawn), 0.2)
    assert shares.shape == (34,) and shares.sum() == pytest.approx(1.0)
    for part, share in ((old, 0.56), (ours, 0.2), (drawn, 0.24)):
        assert shares[part].sum() == pytest.approx(share) and np.ptp(shares[part]) == 0
    for kinds in ((old, ours), (old, ours, drawn[:0])):
        shares = shares_of(kinds, 0.2)
        assert shares[old].sum() == pytest.approx(0.8) and shares[ours].sum() == pytest.approx(0.2)


def test_parts_together_train_on_as_many_as_one_training() -> None:
    assert [passes(count, 3) for count in (100_000, 8_001, 4_000, 1_000)] == [1, 1, 2, 8]
