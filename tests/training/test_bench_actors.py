"""The rows about compressed actors: pairs are pairs, and what did not arrive is not a figure."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from vinoreward.errors import ConfigError, RunFolderError
from vinoreward_actors.actor_learner.acting.profile import PARTS, Breakdown
from vinoreward_actors.command.config import ActorsConfig
from vinoreward_actors.command.settings import presets
from vinoreward_actors.policies.policy import random_policy
from vinoreward_actors.policies.spec import mlp
from vinoreward_actors.policies.wire import encode
from vinoreward_training.bench import actor_bits as bench_actor_bits
from vinoreward_training.bench import actor_trainings as rows
from vinoreward_training.bench.actor_bits import Variant, draw, verdict
from vinoreward_training.bench.actor_steps import actor_refresh_rows, actor_wire_rows, task_arms
from vinoreward_training.bench.actor_trainings import (
    COMPILED,
    EAGER,
    INT8,
    MANY,
    PRESETS,
    Curve,
    Trained,
    bound,
    cached,
    curve_row,
    draw_curves,
    preset,
    time_row,
    train,
)
from vinoreward_training.bench.command import check
from vinoreward_training.cli import main
from vinoreward_training.configs import BenchConfig

QUIET = Breakdown(dict.fromkeys(PARTS, 1e-4), dict.fromkeys(PARTS, 1e-4), 100)


def trained(arm: str, seconds: float | None, seed: int = 0, learner_ms: float = 0.5) -> Trained:
    return Trained(arm, seed, seconds, 1000, 200.0, 1.0, QUIET, learner_ms, 0.7)


def found(*times: tuple[float | None, float | None]) -> dict[str, list[Trained]]:
    return {
        EAGER: [trained(EAGER, slow, seed) for seed, (slow, _) in enumerate(times)],
        INT8: [trained(INT8, fast, seed) for seed, (_, fast) in enumerate(times)],
    }


def test_a_ratio_is_the_median_of_pairs_of_one_seed() -> None:
    row = time_row("name", "task", found((90, 30), (80, 20), (50, 25)), INT8, 3.0)
    assert row.value == pytest.approx(3.0) and row.met is True
    assert row.details["ratios"] == pytest.approx([3.0, 4.0, 2.0])


def test_a_training_that_did_not_arrive_leaves_no_figure() -> None:
    row = time_row("name", "task", found((90, 30), (80, None)), INT8, 3.0)
    assert row.value is None and row.met is False
    assert "1 of 2 pairs did not arrive" in row.note and "not reached" in row.note


def test_the_wire_is_counted_not_computed() -> None:
    found = actor_wire_rows(BenchConfig(), bits=(32, 4))
    spec = mlp(24, 6, head="tanh", hidden=(2048,) * 3, activation="tanh")
    policy = random_policy(spec, BenchConfig().seed)
    for row, bits in zip(found, (32, 4), strict=True):
        assert row.value == pytest.approx(encode(policy, bits=bits).nbytes / 1e6)
    assert found[0].value is not None and found[1].value is not None
    assert found[1].value < found[0].value / 7.5


def test_what_limits_is_said() -> None:
    # An actor's step takes 0.1 ms in each of its parts.
    assert "an actor's 0.70" in bound([trained(INT8, 1.0)])
    assert "the actor limits" in bound([trained(INT8, 1.0)])
    assert "the learner limits" in bound([trained(INT8, 1.0, learner_ms=9.0)])


def batched() -> dict[str, str]:
    """Return every preset of a bench row's arm of eight environments, with that of one."""
    assert MANY in rows.ARMS and MANY in rows.PONG
    one, many = PRESETS[COMPILED], PRESETS[MANY]
    names = ["actorq/cartpole", *rows.CLASSIC, *rows.SAMPLES]
    found = {f"{name}-{many}": f"{name}-{one}" for name in names}
    found |= {f"{name}-{many}-spi1": f"{name}-fp32-spi1" for name in rows.SAMPLES}
    # These have no arm that is compiled and nothing else: eager apart from its backend.
    found |= {f"actorq/{task}-curve-{many}": f"actorq/{task}-curve-fp32" for task in rows.CURVES}
    return {**found, rows.PONG[MANY]: rows.PONG[COMPILED]}


def test_batching_is_an_arm_of_every_training_and_differs_in_nothing_else() -> None:
    assert len(batched()) == 10
    for many, one in batched().items():
        left, right = presets()[many].copy(), presets()[one].copy()
        assert (left.pop("environments"), right.pop("environments", 1)) == (8, 1), many
        assert left.pop("backend") == "openvino" and right.pop("backend") in ("openvino", "torch")
        if left["algorithm"] == "impala":
            # An update takes as many steps as of one environment.
            for side, environments in ((left, 8), (right, 1)):
                learner = dict(side["learner"])
                rows = learner.pop("trajectories") * side["trajectory"] * environments
                side.update(learner=learner, rows=rows)
        if "lag" not in left:
            # Weights are looked for about as often, counted in steps of any environment.
            assert 0.9 <= 8 * left.pop("pull_period") / right.pop("pull_period") <= 1.0, many
        assert left == right, many


@pytest.mark.parametrize(
    ("task", "of_what"), [("CartPole-v0", "3x2048"), ("cartpole-balance", "3x2048")]
)
def test_batching_is_an_arm_of_whole_actor_steps(task: str, of_what: str) -> None:
    arms = task_arms(task, of_what)
    (many,) = (arm for arm in arms.values() if arm.batch > 1)
    assert (many.backend, many.precision, many.batch) == ("openvino", "fp32", 8)
    assert many.spec == arms["eager"].spec and arms["eager"].batch == 1


def curves(*finals: float) -> list[Curve]:
    steps = np.array([100, 200])
    return [Curve(steps, np.array([0.0, value]), value, 1.0) for value in finals]


def test_return_lost_is_judged_by_the_error_of_the_difference() -> None:
    near = curve_row("cartpole-balance", {EAGER: curves(9, 11), INT8: curves(8.5, 10.5)}, "p.png")
    # Means 10 and 9.5; each has a variance of 2, so that the error is root (2/2 + 2/2).
    assert near.value == pytest.approx(0.5) and near.met is True
    assert near.high is not None and near.high - 0.5 == pytest.approx(2**0.5)
    far = curve_row("cartpole-balance", {EAGER: curves(9, 11), INT8: curves(1, 3)}, "p.png")
    assert far.value == pytest.approx(8.0) and far.met is False


def test_one_seed_has_no_error_to_judge_by() -> None:
    one = curve_row("cartpole-balance", {EAGER: curves(10), INT8: curves(4)}, "p.png")
    assert one.value == pytest.approx(6.0)
    assert one.low is one.high is one.met is None


def test_the_batch_of_environments_is_in_the_note_and_not_in_the_criterion() -> None:
    arms = {EAGER: curves(9, 11), INT8: curves(8.5, 10.5), MANY: curves(1.24, 2)}
    one = curve_row("cartpole-balance", arms, "p.png")
    assert one.value == pytest.approx(0.5) and one.met is True
    assert MANY in one.note and "[1.2, 2]" in one.note
    assert len(one.details["seconds"][MANY]) == 2


def test_curves_are_drawn(tmp_path: Path) -> None:
    arms = {EAGER: curves(1, 2), INT8: curves(3, 4), MANY: curves(2, 3)}
    path = draw_curves(tmp_path / "curves.png", {"a": arms})
    assert path.read_bytes()[:4] == b"\x89PNG"


def test_the_monitor_lets_the_same_policy_act_and_says_what_it_does_to_another() -> None:
    spec = mlp(3, 1, head="tanh_gaussian", hidden=(16,))
    teacher = random_policy(spec, 0)
    seen = np.random.default_rng(0).standard_normal((600, 3)).astype(np.float32)
    assert verdict(teacher, teacher, seen) == ""
    # Half precision, which would be safer, is slower than no compression.
    assert verdict(teacher, random_policy(spec, 1, gain=4.0), seen) == "disables compression"


def test_the_plot_is_written_whole(tmp_path: Path) -> None:
    one = Variant("8 bits", 72_000, 0.0, 0.0, 0.1, bits=8)
    other = dataclasses.replace(one, kl_max=3.0, verdict="moves it to 16 bits", bits=None)
    path = draw(tmp_path / "new" / "bits.png", [one, other], -150.0, "bits")
    assert path.read_bytes()[:4] == b"\x89PNG"
    assert [file.name for file in path.parent.iterdir()] == ["bits.png"]


@pytest.mark.slow
def test_variants_of_a_policy_are_all_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_actor_bits, "TRAINING_STEPS", 200)
    monkeypatch.setattr(bench_actor_bits, "EPISODES", 2)
    rows = bench_actor_bits.actor_bits_rows(BenchConfig(out=tmp_path))
    assert len(rows) == len(bench_actor_bits._variants())
    assert rows[0].value == 0.0 and rows[0].details["kl_max"] < 1e-9
    widths = [row.details for row in rows if row.details["bits"] is not None]
    assert [one["bits"] for one in widths] == [32, 16, 8, 6, 4, 3, 2]
    sizes = [one["nbytes"] for one in widths]
    assert sizes == sorted(set(sizes), reverse=True)
    for row in rows:
        assert row.details["kl_max"] >= 0 and np.isfinite(row.details["mean_return"])
        assert row.details["mean_return"] + (row.value or 0.0) == pytest.approx(
            rows[0].details["mean_return"]
        )
        assert row.details["verdict"] or "lets it act" in row.note
        assert "trained with seed 100" in row.note
    assert (tmp_path / "actor-bits.png").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("arm", [EAGER, INT8])  # MANY is trained below
def test_every_arm_trains(arm: str) -> None:
    settings = preset(f"actorq/cartpole-{PRESETS[arm]}", 0, network="2x32", steps=800)
    one = train(arm, settings)
    assert one.steps >= 800 or one.seconds is not None
    assert 8 <= one.evaluated <= 200 and one.profile.step_cpu > 0 and one.step_ms > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "actorq/cartpole-dqn-fp32-8-environments-spi1",
        "actorq/cartpole-balance-fp32-8-environments",
    ],
)
def test_batches_of_environments_train(name: str) -> None:
    if "balance" in name:
        pytest.importorskip("shimmy")
    settings = preset(name, 0, network="2x32", steps=1600, actors=1, target=None, final_episodes=2)
    one = train(MANY, settings)
    # A trajectory more than was asked for at most: all eight environments count.
    assert 1600 <= one.steps <= 1600 + 8 * settings.trajectory * 4
    assert one.seconds is not None and one.profile.step_cpu > 0


@pytest.mark.slow
def test_samples_per_insert_are_presets() -> None:
    for name in ("cartpole-dqn", "cartpole-balance"):
        for suffix, ratio in (("fp32", 16), ("int8-spi1", 1)):
            assert presets()[f"actorq/{name}-{suffix}"]["samples_per_insert"] == ratio
    settings = preset(
        "actorq/cartpole-dqn-int8-spi1",
        0,
        network="2x32",
        steps=1500,
        actors=1,
        target=None,
        final_episodes=2,
    )
    assert settings.samples_per_insert == 1
    one = train("int8-spi1", settings)
    assert one.seconds is not None and one.learner_ms > 0


@pytest.mark.slow
@pytest.mark.parametrize(("target", "arrives"), [(1.0, True), (1e6, False)])
def test_a_policy_arrives_in_an_evaluation_of_its_own(target: float, arrives: bool) -> None:
    settings = preset(
        "actorq/cartpole-dqn-fp32-compiled",
        0,
        network="1x8",
        actors=1,
        steps=1300,
        evaluate_every=600,
        evaluation_episodes=2,
        final_episodes=2,
        target=target,
        learner={"learning_starts": 100},
    )
    one = train("greedy", settings, greedy=True)
    assert (one.seconds is not None) == arrives
    assert 600 <= one.steps < 1200 if arrives else one.steps >= 1300


def test_a_training_that_was_done_is_not_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[int] = []

    def counted(arm: str, settings: ActorsConfig, *, greedy: bool = False) -> Trained:
        done.append(settings.steps)
        return dataclasses.replace(trained(arm, 1.0), steps=settings.steps)

    monkeypatch.setattr(rows, "train", counted)
    settings = preset("actorq/cartpole-fp32-compiled", 0, network="1x8", steps=600)
    bench = BenchConfig(out=tmp_path, resume=True)
    first = cached(bench, "actorq/x", EAGER, settings)
    assert cached(bench, "actorq/x", EAGER, settings) == first and done == [600]
    # Other settings, or no word of going on: trained anew.
    other = dataclasses.replace(settings, steps=1200)
    assert cached(bench, "actorq/x", EAGER, other).steps == 1200
    cached(BenchConfig(out=tmp_path), "actorq/x", EAGER, other)
    assert done == [600, 1200, 1200]
    (file,) = (tmp_path / "actor-trainings").iterdir()
    for damaged in ("", "[]", '{"trained": 3}', file.read_text()[:200]):
        file.write_text(damaged)
        with pytest.raises(RunFolderError, match="remove it"):
            cached(bench, "actorq/x", EAGER, other)


@pytest.mark.slow
def test_too_few_steps_to_learn_from_are_said() -> None:
    settings = preset("actorq/cartpole-dqn-fp32-compiled", 0, network="2x32", steps=20, actors=1)
    with pytest.raises(ConfigError, match=r"20 steps.*Expected"):
        train("few", settings)


@pytest.mark.parametrize("name", ["seeds", "actor_seeds", "samples_steps", "rounds"])
def test_numbers_that_measure_nothing_are_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    option = f"--{name.replace('_', '-')}"
    arguments = ["bench", "--rows", "actor-wire", option, "0", "--out", str(tmp_path / "bench")]
    assert main(arguments) == 1
    assert f"found {option} 0. Expected" in capsys.readouterr().err
    assert not (tmp_path / "bench").exists()
    check(BenchConfig(seed=0, first_seed=0, cnn_steps=0))


@pytest.mark.slow
def test_refreshes_are_timed() -> None:
    rows = actor_refresh_rows(BenchConfig(rounds=2))
    assert len(rows) == 2 and all(row.value is not None for row in rows)
