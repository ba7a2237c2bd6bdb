"""Examples that an environment labels itself, for vinoreward mend."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from vinoreward.errors import ConfigError, ModelCorruptError
from vinoreward.rewards.interventions import Axis, SearchSpace
from vinoreward_training.audit.states import StateScores, StateTable, climb
from vinoreward_training.data.dataset import Dataset
from vinoreward_training.mending.examples import (
    FILE,
    HARD,
    MOST,
    OTHERS,
    REPEATED,
    SAMPLED,
    Examples,
    ExampleSource,
)
from vinoreward_training.mending.refit import passes_over, shares_of, with_examples

HOLE = (0.7, 0.3)
RADIUS = 0.04
SQUARE = (Axis("x", 0.0, 1.0, "m"), Axis("y", 0.0, 1.0, "m"))


class Table:
    """A hand on a table whose image is its place. Success is at the left edge."""

    def __init__(self) -> None:
        self.at = np.zeros(2)
        self.images = 0

    def place(self, state: np.ndarray) -> bool | None:
        self.at = state
        return True if state[0] < 0.1 else None if state[0] < 0.15 else False

    def image(self) -> np.ndarray:
        self.images += 1
        high, low = np.divmod(np.round(self.at * 65535).astype(np.int64), 256)
        return np.stack([high, low], axis=-1).astype(np.uint8).reshape(1, 4, 1).repeat(3, axis=2)

    @property
    def space(self) -> SearchSpace:
        return SearchSpace("hand", SQUARE, self.place)


def places(images: np.ndarray) -> np.ndarray:
    """Read the places (N, 2) of images."""
    numbers = images[:, 0, :, 0].astype(np.float64).reshape(-1, 2, 2)
    return (numbers[..., 0] * 256 + numbers[..., 1]) / 65535


def with_hole(images: np.ndarray) -> np.ndarray:
    """A network that is right, but for a hole that it is nearly sure is none until it is close."""
    at = places(images)
    apart = np.hypot(*(at - HOLE).T)
    return np.where(at[:, 0] < 0.12, 6.0, np.where(apart < RADIUS, 5.0, -4.5 - 4 * apart))


def right(images: np.ndarray) -> np.ndarray:
    return np.where(places(images)[:, 0] < 0.12, 6.0, -6.0)


LogOdds = Callable[[np.ndarray], np.ndarray]


def drawn_by(
    log_odds: LogOdds = with_hole, last: Examples | None = None, *, seed: int = 0, part: int = 0,
    space: SearchSpace | None = None, table: Table | None = None,
) -> ExampleSource:  # fmt: skip
    """A source after it has drawn the examples of one part."""
    table = table or Table()
    source = ExampleSource((space or table.space,), table.image, seed, last=last)
    with tempfile.TemporaryDirectory() as folder:
        source.draw(log_odds, Path(folder), part)
    return source


def drawn(*arguments, **options) -> Examples:
    return drawn_by(*arguments, **options).last


def test_most_examples_are_where_the_network_is_wrong() -> None:
    source = drawn_by()
    found = source.last
    at = places(found.images)
    in_hole = np.hypot(*(at - HOLE).T) < RADIUS
    assert 200 < in_hole.sum() <= MOST, "of a space of which the hole is half a hundredth"
    assert np.array_equal(found.labels, (at[:, 0] < 0.1).astype(np.int64)), "the truth, not a claim"
    assert not ((at[:, 0] > 0.101) & (at[:, 0] < 0.149)).any(), "what is left out is not used"
    assert found.labels.sum() > 10 and (found.labels[in_hole] == 0).all()
    others = ~in_hole & (found.labels == 0)
    assert 50 < others.sum() <= OTHERS
    remembered = np.hypot(*(found.hard[0] - HOLE).T)
    assert len(remembered) > 200 and (remembered < RADIUS + 1e-4).all()
    assert source.claimed["hand"] >= in_hole.sum()


def test_the_same_seed_draws_the_same_examples() -> None:
    one, same, other, later = drawn(), drawn(), drawn(seed=1), drawn(part=1)
    assert np.array_equal(one.images, same.images) and np.array_equal(one.labels, same.labels)
    for different in (other, later):
        assert one.images.shape != different.images.shape or (one.images != different.images).any()


def test_of_earlier_examples_those_stay_that_are_still_hard() -> None:
    before = drawn()
    hard = (before.labels == 0) & (with_hole(before.images) > HARD)
    kept = drawn(last=before, part=1)
    fresh = drawn(part=1, last=Examples(before.images[:0], before.labels[:0], before.hard))
    repeated = len(kept.labels) - len(fresh.labels)
    easy = len(before.labels) - hard.sum()
    assert hard.sum() + REPEATED * easy / 2 < repeated < hard.sum() + 2 * REPEATED * easy
    mended = drawn_by(right, before, part=1)
    assert len(mended.last.labels) < len(fresh.labels), "nothing is hard any more"
    assert mended.claimed == {"hand": 0}
    assert len(mended.last.hard[0]) == len(before.hard[0]), "their states are remembered"


def test_successes_that_a_network_doubts_stay() -> None:
    """A network that is blind between success and failure."""

    def unsure(images: np.ndarray) -> np.ndarray:
        return np.where(places(images)[:, 0] < 0.25, 1.0, -6.0)

    before = drawn(unsure)
    assert before.labels.sum() > 2 * 0.1 * SAMPLED, "more than the sample can have"
    kept = {image.tobytes() for image in drawn(unsure, before, part=1).images}
    assert all(image.tobytes() in kept for image in before.images[before.labels == 1])


def test_no_state_outside_its_space_is_visited() -> None:
    """Not even near a hole at its edge."""
    table = Table()

    def place(state: np.ndarray) -> bool | None:
        assert (state >= (0.0, 0.0)).all() and (state <= (1.0, 0.5)).all(), state
        return table.place(state)

    def edge(images: np.ndarray) -> np.ndarray:
        return np.where(places(images)[:, 0] > 0.99, 5.0, 5 * places(images)[:, 0] - 9)

    space = SearchSpace("hand", (Axis("x", 0.0, 1.0), Axis("y", 0.0, 0.5)), place)
    assert (places(drawn(edge, space=space, table=table).images)[:, 0] == 1.0).sum() > 5


def test_climbs_start_from_several_states() -> None:
    """Four peaks that are apart, each too narrow for the sample to meet its top."""
    peaks = np.array([(0.2, 0.2), (0.8, 0.2), (0.2, 0.8), (0.8, 0.8)])
    table = Table()

    def score(images: np.ndarray, truth: np.ndarray) -> StateScores:
        apart = np.linalg.norm(places(images)[:, np.newaxis] - peaks, axis=2).min(axis=1)
        none = np.zeros(len(images), bool)
        return StateScores(none.astype(np.float32), -100 * apart, none)

    space = SearchSpace("peaks", SQUARE, lambda state: bool(table.place(state)) and False)
    states = StateTable(space, table.image, score)
    nearest = []
    for steps in (
        states.add(states.sample(64, 0), ""),
        climb(states, np.random.default_rng(0), 1024),
    ):
        list(steps)
        away = np.linalg.norm(states.states[:, np.newaxis] - peaks, axis=2)
        nearest.append(away.min(axis=0))
    assert (nearest[1] < 0.01).all() and (nearest[1] < nearest[0]).all()


def test_it_draws_near_the_states_that_were_hard() -> None:
    """A network that is right all over draws no climb to the hole, which is too small to meet."""
    visited: list[np.ndarray] = []

    def scored(images: np.ndarray) -> np.ndarray:
        visited.append(places(images))
        return right(images)

    def in_hole(last: Examples | None) -> int:
        visited.clear()
        drawn(scored, last, part=1)
        return int((np.hypot(*(np.concatenate(visited) - HOLE).T) < 2 * RADIUS).sum())

    first = drawn()
    nothing = Examples(first.images[:0], first.labels[:0], first.hard)
    assert in_hole(nothing) > 20 * max(1, in_hole(None))


def test_a_label_is_of_the_same_visit_as_its_image() -> None:
    """A space may draw at random what a state leaves open: here whether it is a success."""
    table, random = Table(), np.random.default_rng(0)

    def place(state: np.ndarray) -> bool | None:
        table.at = random.uniform(size=2)
        return None if table.at[0] < 0.3 else bool(table.at[0] > 0.6)

    found = drawn(space=SearchSpace("any", (Axis("x", 0.0, 1.0),), place), table=table)
    at = places(found.images)[:, 0]
    assert len(at) > 100 and (at > 0.299).all()
    np.testing.assert_array_equal(found.labels, at > 0.6)


def test_spaces_without_states_give_none_and_those_that_fail_are_named() -> None:
    found = drawn(space=SearchSpace("nothing", SQUARE, lambda state: None))
    assert found.images.shape == (0, 1, 4, 3) and found.labels.shape == (0,)

    def place(state: np.ndarray) -> bool:
        raise ValueError("no such place")

    with pytest.raises(ConfigError, match=r"search space 'broken' fails: .*no such place"):
        drawn(space=SearchSpace("broken", (Axis("x", 0.0, 1.0),), place))


def test_a_resumed_training_gets_the_examples_of_the_first(tmp_path: Path) -> None:
    """Those of a part are written once drawn, as the checkpoint is of a training with them."""

    def source(table: Table, *, resume: bool) -> ExampleSource:
        return ExampleSource((table.space,), table.image, seed=3, resume=resume)

    first = source(Table(), resume=False)
    (tmp_path / "part1").mkdir()
    one = first.draw(with_hole, tmp_path / "part1", 0)
    two = first.draw(with_hole, tmp_path, 1)
    (tmp_path / FILE).unlink()  # stopped while it drew the second part
    table = Table()
    resumed = source(table, resume=True)
    same = resumed.draw(right, tmp_path / "part1", 0)
    assert table.images == 0 and np.array_equal(same.images, one.images)
    assert np.array_equal(same.labels, one.labels) and np.array_equal(same.hard[0], one.hard[0])
    assert np.array_equal(resumed.draw(with_hole, tmp_path, 1).images, two.images)
    new = source(table, resume=False).draw(with_hole, tmp_path / "part1", 0)
    assert table.images > 1000 and np.array_equal(new.images, one.images)
    (tmp_path / FILE).write_bytes((tmp_path / FILE).read_bytes()[:-500])
    with pytest.raises(ModelCorruptError, match="Expected a whole file"):
        Examples.load(tmp_path / FILE)


def test_a_part_of_a_training_has_its_images_and_examples_alone() -> None:
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (9, 1, 4, 3), dtype=np.uint8)
    dataset = Dataset(
        images=images, labels=np.arange(9) % 2, episodes=np.arange(9), scene={}, sha256="a",
        categories=np.array(list("abcdefghi")), distances=np.arange(9.0), folder=Path("d"),
        files=tuple("abcdefghi"),
    )  # fmt: skip
    examples = Examples(images[:2] + np.uint8(1), np.array([1, 0]), ())
    parts = np.array([1, 4, 7]), np.array([8]), np.array([0, 2])
    found, indices = with_examples(dataset, parts, examples)
    assert len(found.labels) == 8 and [len(one) for one in indices] == [3, 1, 2, 2]
    for part, where in zip(parts, indices, strict=False):
        for name in ("images", "labels", "episodes", "categories", "distances"):
            np.testing.assert_array_equal(
                getattr(found, name)[where], getattr(dataset, name)[part], name
            )
        assert [found.files[one] for one in where] == [dataset.files[one] for one in part]
    np.testing.assert_array_equal(found.images[indices[3]], examples.images)
    np.testing.assert_array_equal(found.labels[indices[3]], examples.labels)
    other, _ = with_examples(dataset, (parts[0], parts[1], np.array([0, 3])), examples)
    assert len({dataset.sha256, found.sha256, other.sha256}) == 3, "a checkpoint is of one of them"


def test_examples_get_a_share_of_their_own_and_parts_as_many_passes_as_one_training() -> None:
    old, ours, examples = np.arange(10), np.arange(10, 14), np.arange(14, 34)
    shares = shares_of((old, ours, examples), 0.2)
    assert shares.shape == (34,) and shares.sum() == pytest.approx(1.0)
    for part, share in ((old, 0.56), (ours, 0.2), (examples, 0.24)):
        assert shares[part].sum() == pytest.approx(share) and np.ptp(shares[part]) == 0
    for kinds in ((old, ours), (old, ours, examples[:0])):
        shares = shares_of(kinds, 0.2)
        assert shares[old].sum() == pytest.approx(0.8) and shares[ours].sum() == pytest.approx(0.2)
    assert [passes_over(count) for count in (100_000, 12_051, 4_285, 1_000)] == [1, 1, 5, 24]
    assert [passes_over(count, 3) for count in (100_000, 8_001, 4_000, 1_000)] == [1, 1, 2, 8]
