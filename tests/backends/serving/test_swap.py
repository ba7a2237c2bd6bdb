"""A named service changes its networks between two batches, for all of its callers at once."""

from __future__ import annotations

import dataclasses
import gc
import pickle
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from service_children import (
    ask_versions,
    child,
    kill,
    nothing_left,
    pictures,
    save_network,
    services,
    sums,
)
from toy_environments import (
    HEIGHT,
    WIDTH,
    Corridor,
    save_column_bundle,
    save_toy_bundle,
    save_toy_encoder,
    with_int8,
)
from waiting import until

from vinoreward import LearnedReward
from vinoreward.backends.network import NetworkSpec, TensorSpec
from vinoreward.backends.serving.client import SharedBackend
from vinoreward.bundles.bundle import Bundle
from vinoreward.bundles.schema import Decision
from vinoreward.encoders import Encoder
from vinoreward.errors import BundleError, ConfigError, ModelNotFoundError
from vinoreward.rewards.classifier import Classifier

SCALES = (1.0, 2.0, -3.0, 5.0)
NAMED = "shared:one"


@pytest.fixture
def specs(tmp_path: Path) -> list[NetworkSpec]:
    return [save_network(tmp_path / f"{i}.onnx", scale) for i, scale in enumerate(SCALES)]


def test_every_answer_is_of_one_version(folder: Path, specs: list[NetworkSpec]) -> None:
    """Under load, and where the service is killed after a swap."""
    with ExitStack() as stack:
        boss = stack.enter_context(SharedBackend(specs[0], service=NAMED))
        boss.load()
        workers = [
            stack.enter_context(
                child("spawn", ask_versions, SharedBackend(specs[0], service=NAMED), SCALES)
            )[1]
            for _ in range(2)
        ]
        until(lambda: boss.info()["service_callers"] == 3)
        for version, spec in enumerate(specs[1:], 1):
            before = boss.info()["service_answers"]
            until(lambda least=before: boss.info()["service_answers"] > least + 20)
            assert boss.swap([spec], {"number": version}) == version
            if version == 2:
                kill(boss.pid)
            batch = pictures(600, version)  # several pieces
            np.testing.assert_array_equal(boss.infer(batch), sums(batch, SCALES[version]))
            assert boss.note() == ({"number": version}, version)
        before = boss.info()["service_answers"]
        until(lambda: boss.info()["service_answers"] > before + 20)
        for worker in workers:
            worker.send("stop")
            met, mixed = worker.recv()
            assert mixed == 0
            assert met == sorted(met) and met[-1] == 3


def test_a_later_caller_is_answered_by_the_latest(folder: Path, specs: list[NetworkSpec]) -> None:
    with SharedBackend(specs[0], service=NAMED) as first:
        first.swap([specs[1]], {})
        kill(first.pid)
        with SharedBackend(specs[0], service=NAMED) as later:
            np.testing.assert_array_equal(later.infer(pictures(2)), sums(pictures(2), SCALES[1]))
        np.testing.assert_array_equal(first.infer(pictures(2)), sums(pictures(2), SCALES[1]))


@pytest.mark.parametrize("killed", [False, True])
def test_a_swap_ends_with_its_callers(folder: Path, specs: list[NetworkSpec], killed: bool) -> None:
    """Also if all are killed: the next training of that name begins with its own bundle."""
    first = SharedBackend(specs[0], service=NAMED)
    first.swap([specs[1]], {})
    pid = first.pid
    if killed:
        kill(pid)
        until(lambda: not services(folder))
    first.close()
    with SharedBackend(specs[0], service=NAMED) as second:  # within the service's last second
        np.testing.assert_array_equal(second.infer(pictures(2)), sums(pictures(2), SCALES[0]))
        assert second.version == 0


def test_a_swap_that_fails_changes_nothing(folder: Path, specs: list[NetworkSpec]) -> None:
    other = dataclasses.replace(specs[1], output=TensorSpec((None, 4), "float32"))
    gone = dataclasses.replace(specs[1], path=specs[1].path.with_name("gone.onnx"))
    with SharedBackend(specs[0], service=NAMED) as backend:
        pid = backend.pid
        with pytest.raises(ConfigError, match="as the one before"):
            backend.swap([other], {})
        with pytest.raises(ModelNotFoundError):
            backend.swap([gone], {})
        np.testing.assert_array_equal(backend.infer(pictures(2)), sums(pictures(2)))
        assert (backend.version, backend.pid) == (0, pid)


def test_nobody_elses_networks_are_swapped(folder: Path, specs: list[NetworkSpec]) -> None:
    with SharedBackend(specs[0]) as plain, SharedBackend(specs[0], service="shared:two") as two:
        with pytest.raises(ConfigError, match="shared:NAME"):
            plain.swap([specs[1]], {})
        with SharedBackend(specs[0], service=NAMED) as one:
            one.swap([specs[1]], {})
            for backend in (plain, two):
                np.testing.assert_array_equal(backend.infer(pictures(1)), sums(pictures(1)))


def test_other_networks_under_the_same_name_are_apart(
    folder: Path, specs: list[NetworkSpec]
) -> None:
    """Two trainings that chose one name, each with a bundle of its own, do not meet."""
    with (
        SharedBackend(specs[0], service=NAMED) as first,
        SharedBackend(specs[1], service=NAMED) as second,
    ):
        second.swap([specs[2]], {})
        for backend, scale in ((first, SCALES[0]), (second, SCALES[2])):
            np.testing.assert_array_equal(backend.infer(pictures(2)), sums(pictures(2), scale))
        assert len({first.pid, second.pid}) == 2
        assert (first.version, second.version) == (0, 1)


# Classifiers


def bundle(folder: Path, threshold: float, temperature: float = 1.0, **more: Any) -> Bundle:
    decision = Decision(
        threshold=threshold, temperature=temperature, chosen_for={"target_fpr": 0.1}
    )
    return save_toy_bundle(folder, decision=decision, **more)


def cells(*reds: int) -> np.ndarray:
    images = np.zeros((len(reds), HEIGHT, WIDTH, 3), np.uint8)
    images[..., 0] = np.array(reds)[:, None, None]
    return images


def test_classifiers_follow_with_threshold_and_calibration(folder: Path, tmp_path: Path) -> None:
    lax, strict = bundle(tmp_path / "lax", 0.5), bundle(tmp_path / "strict", 0.97, 2.0)
    images = cells(*range(0, 256, 5))
    with (
        Classifier(lax) as plain_lax,
        Classifier(strict) as plain_strict,
        Classifier(lax, service=NAMED) as boss,
        Classifier(lax, service=NAMED) as worker,
        Classifier(lax, service=NAMED, threshold=0.8) as own,
    ):
        for one in (boss, worker):
            np.testing.assert_array_equal(one.log_odds(images), plain_lax.log_odds(images))
        boss.swap(strict)
        late = pickle.loads(pickle.dumps(worker))  # of the bundle before, as a new worker is
        for one in (late, worker, boss, pickle.loads(pickle.dumps(boss))):
            np.testing.assert_array_equal(one.log_odds(images), plain_strict.log_odds(images))
            np.testing.assert_array_equal(
                one.compute_reward(images), plain_strict.compute_reward(images)
            )
            assert one.threshold == 0.97
            if one not in (worker, boss):
                one.close()
        assert (plain_lax.compute_reward(images) != plain_strict.compute_reward(images)).any()
        np.testing.assert_array_equal(own.log_odds(images), plain_strict.log_odds(images))
        assert own.threshold == 0.8


def test_an_own_exit_threshold_comes_back_with_a_threshold_above_it(
    folder: Path, tmp_path: Path
) -> None:
    first, lower = bundle(tmp_path / "first", 0.9), bundle(tmp_path / "lower", 0.5)
    with Classifier(first, exit_threshold=0.8, service=NAMED) as classifier:
        classifier.backend.load()
        for swapped, threshold, leave in ((lower, 0.5, 0.5), (first, 0.9, 0.8)):
            classifier.swap(swapped)
            assert (classifier.threshold, classifier.exit_threshold) == (threshold, leave)


def test_a_bundle_with_second_looks_may_come_back(folder: Path, tmp_path: Path) -> None:
    """After one without: the service still runs both networks."""
    banded = with_int8(bundle(tmp_path / "banded", 0.5), 0.1, 1.0)
    alone = with_int8(bundle(tmp_path / "alone", 0.6), 0.1, None)
    with Classifier(banded, service=NAMED) as classifier:
        for swapped, band in ((alone, None), (banded, 1.0)):
            classifier.swap(swapped)
            assert classifier.band == band and classifier.bundle.spec == swapped.spec


def test_a_caller_that_was_never_closed_ends_with_its_object(folder: Path, tmp_path: Path) -> None:
    first, other = bundle(tmp_path / "first", 0.9), bundle(tmp_path / "other", 0.5)
    classifier = Classifier(first, service=NAMED)
    classifier.swap(other)
    del classifier
    gc.collect()
    assert nothing_left(folder)
    with Classifier(first, service=NAMED) as again:
        again.backend.load()
        assert again.threshold == 0.9


def test_both_looks_follow(folder: Path) -> None:
    """INT8 and FP32 of the shipped classifier are swapped together."""
    name = "panda-hover-classifier"
    with Classifier(name) as plain, Classifier(name, service=NAMED) as asked:
        images = plain.bundle.golden.images
        for version in range(2):
            for one, other in zip(plain.judge(images), asked.judge(images), strict=True):
                np.testing.assert_array_equal(one, other)
            assert [backend.version for backend in asked.backends] == [version, version]
            asked.swap(name)
        assert asked.second_looks == plain.second_looks > 0


def test_means_over_shifts_follow(folder: Path, tmp_path: Path) -> None:
    """From INT8 that FP32 checks to INT8 that decides alone and averages itself."""

    def quantized(name: str, *, shift_band: float | None, int8_band: float | None) -> Bundle:
        decision = Decision(threshold=0.7, shift_band=shift_band, chosen_for={"target_fpr": 0.1})
        return with_int8(save_column_bundle(tmp_path / name, decision=decision), 0.4, int8_band)

    checked = quantized("checked", shift_band=None, int8_band=1.5)
    alone = quantized("alone", shift_band=0.8, int8_band=None)
    images = np.random.default_rng(0).integers(0, 256, (200, HEIGHT, WIDTH, 3), np.uint8)
    with (
        Classifier(alone) as plain,
        Classifier(checked) as before,
        Classifier(checked, service=NAMED) as asked,
    ):
        np.testing.assert_allclose(asked.log_odds(images), before.log_odds(images), atol=1e-5)
        asked.swap(alone)
        np.testing.assert_allclose(asked.log_odds(images), plain.log_odds(images), atol=1e-5)
        assert (plain.log_odds(images) != before.log_odds(images)).any()


def test_an_encoder_does_not_follow(folder: Path, tmp_path: Path) -> None:
    saved = save_toy_encoder(tmp_path / "toy")
    with Encoder(saved, service=NAMED) as encoder:
        images = saved.golden.images
        encoder.encode(images)
        backend = encoder.backend
        assert isinstance(backend, SharedBackend)
        backend.swap([saved.network("fp32")], {})
        with pytest.raises(ConfigError, match="this encoder cannot follow"):
            encoder.encode(images)


def test_rewards_follow(folder: Path, tmp_path: Path) -> None:
    lax, strict = bundle(tmp_path / "lax", 0.01), bundle(tmp_path / "strict", 0.999)
    env = LearnedReward(
        Corridor("picture", first_cells=(4,)),
        lax,
        image_source="obs",
        terminate_on_success=False,
        service=NAMED,
    )

    def rewards() -> list[float]:
        env.reset(seed=0)
        return [float(env.step(1)[1]) for _ in range(3)]

    before = rewards()
    env.classifier.swap(strict)
    after = rewards()
    env.close()
    expected = []
    for one in (lax, strict):
        with Classifier(one) as plain:
            reds = [round(255 * cell / 7) for cell in (5, 6, 7)]
            expected.append(plain.compute_reward(cells(*reds)).tolist())
    assert [before, after] == expected
    assert before != after


def test_a_bundle_of_another_kind_is_not_swapped_in(folder: Path, tmp_path: Path) -> None:
    ours = bundle(tmp_path / "ours", 0.5)
    other = bundle(tmp_path / "other", 0.5, scene={"height": HEIGHT})
    with Classifier(ours, service=NAMED) as classifier:
        with pytest.raises(ConfigError, match="whose picture differs"):
            classifier.swap(other)
        with pytest.raises(ConfigError, match="whose output differs"):
            classifier.swap(save_toy_bundle(tmp_path / "soft", probabilities=True))
        with pytest.raises(ConfigError, match="whose kind differs"):
            classifier.swap("panda-hover-encoder")
        damaged = bundle(tmp_path / "damaged", 0.9)
        (damaged.path / "golden.npz").write_bytes(b"")
        with pytest.raises(BundleError):
            classifier.swap(damaged)
        assert classifier.threshold == 0.5
    for service in ("shared", None):
        with (
            Classifier(ours, service=service) as classifier,
            pytest.raises(ConfigError, match="shared:NAME"),
        ):
            classifier.swap(ours)
    assert nothing_left(folder)
