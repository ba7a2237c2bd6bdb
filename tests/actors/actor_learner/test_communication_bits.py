"""Pushes with few bits: what actors make of them is watched, evaluated and stopped like any other
compression."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from actor_learner_parts import CARTPOLE, impala, settings
from actor_runs import rows_of, summary_of, trained
from engine_runs import check_nothing_left, random_policy

from vinoreward_actors.actor_learner import controller
from vinoreward_actors.actor_learner.controller import Controller, Pushed
from vinoreward_actors.actor_learner.learners.impala import Impala, ImpalaConfig
from vinoreward_actors.actor_learner.trainer import ActorLearner, Progress
from vinoreward_actors.actor_learner.transport.trajectory import (
    COMPRESSED,
    FULL_PRECISION,
    TrajectorySpec,
)
from vinoreward_actors.compression.chain import CompressorChain
from vinoreward_actors.compression.quantize import Quantize
from vinoreward_actors.monitoring.indicators import KL
from vinoreward_actors.monitoring.monitor import Monitor, default_monitor
from vinoreward_actors.monitoring.strategy import CompressionSetting, Strategy
from vinoreward_actors.policies.distributions import kl
from vinoreward_actors.policies.policy import QuantizedArray, forward
from vinoreward_actors.policies.wire import lowered
from vinoreward_training.cli import main


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    check_nothing_left()


class Sharp(Impala):
    """Its weights decide, so that rounding them coarsely is felt."""

    def __init__(self) -> None:
        super().__init__(CARTPOLE, ImpalaConfig(trajectories=2, seed=0, precision="fp32"))
        with torch.no_grad():
            for parameter in self.actor.parameters():
                parameter.mul_(40.0)


class Ladder(Strategy):
    """Sixteen bits at the third look, none of it from the sixth."""

    def __init__(self) -> None:
        self.looks = 0

    def decide(self, readings: Any, setting: CompressionSetting) -> CompressionSetting:
        self.looks += 1
        if self.looks == 3:
            return setting.changed({"bits": 16})
        return setting.changed({"enabled": False}) if self.looks >= 6 else setting


@pytest.mark.parametrize("bits", [16, 4])
def test_the_last_policy_is_told_as_actors_got_it(bits: int) -> None:
    seen: list[Progress] = []
    summary = ActorLearner("CartPole-v1", impala(), settings(bits=bits)).learn(
        300, lambda progress: seen.append(progress)
    )
    assert np.isfinite(seen[-1].metrics["loss"])
    assert summary.compressed is not None
    assert summary.compressed.version == summary.policy.version
    rows = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    np.testing.assert_array_equal(
        forward(summary.compressed, rows), forward(lowered(summary.policy, bits), rows)
    )


def test_nothing_is_lost_with_32_bits() -> None:
    assert ActorLearner("CartPole-v1", impala(), settings()).learn(100).compressed is None


def test_a_monitor_sees_what_is_lost() -> None:
    """Held against the weights that were pushed, in full precision."""
    found: list[float] = []
    probe = np.random.default_rng(0).normal(0, 0.1, size=(2000, 4)).astype(np.float32)

    def progressed(progress: Progress) -> bool:
        name = "compression_kl_mu_pi_max"
        if name in progress.readings:
            full, narrow = trainer.policies()
            assert narrow is not None
            most = float(kl(CARTPOLE, forward(narrow, probe), forward(full, probe)).max())
            found.extend([progress.readings[name], most])
        return bool(found)

    monitor = Monitor([KL("max", against="source")])
    trainer = ActorLearner(
        "CartPole-v1", impala(), settings(bits=2, monitor_period=1), monitor=monitor
    )
    trainer.learn(5000, progressed)
    reading, probed = found
    assert monitor.setting.bits == 2
    # Not the same observations, but the same loss.
    assert 0.1 * probed < reading < 10 * probed + 1e-3


@pytest.mark.parametrize("chained", [False, True])
def test_a_strategy_turns_the_bits_of_pushes_and_stops_them(chained: bool) -> None:
    """Those of a chain are its own; stopped is all of it."""
    pushed: list[tuple[int | None, bool, bool]] = []

    def progressed(progress: Progress) -> bool:
        setting = monitor.setting
        pushed.append((setting.bits, setting.enabled, trainer.policies()[1] is None))
        return len(pushed) > 60

    chain = CompressorChain().add(Quantize("int8")) if chained else None
    monitor = Monitor([KL("max")], Ladder())
    trainer = ActorLearner(
        "CartPole-v1",
        impala(),
        settings(bits=4, monitor_period=5),
        compressor=chain,
        monitor=monitor,
    )
    trainer.learn(100_000, progressed)
    settled = [bits for bits, *_ in pushed]
    assert settled[0] == (8 if chained else 4)
    assert settled[-1] == 16
    assert not pushed[-1][1]
    if not chained:
        # The push after the decision is whole again.
        assert pushed[0][2] is False
        assert pushed[-1][2] is True


def test_a_resumed_training_pushes_what_the_monitor_had_settled_from_its_first_push_on(
    tmp_path: Path,
) -> None:
    monitor = Monitor([KL("max")], Ladder())
    config = settings(bits=2, monitor_period=2)
    ActorLearner("CartPole-v1", impala(), config, monitor=monitor, folder=tmp_path).learn(400)
    assert not monitor.setting.enabled
    again = Monitor([KL("max")], Ladder())
    trainer = ActorLearner(
        "CartPole-v1", impala(), config, monitor=again, folder=tmp_path, resume=True
    )
    # Nothing is left to do: what is told is its first push.
    assert trainer.learn(trainer.steps).compressed is None


def test_rows_of_narrow_weights_that_are_not_kept_are_not_taken_for_full_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(controller, "MIN_VERSIONS", 1)
    monkeypatch.setattr(controller, "MAX_BYTES", 1)
    found = Controller(impala(), settings(bits=2), None, Monitor([KL("max")]))
    for version in range(3):
        found.cache_pushed(Pushed(random_policy(CARTPOLE, version), 2))
    given = TrajectorySpec(2, 1, (4,), "float32", (), 2).empty()
    given.versions[:, 0] = [0, 2]
    given.network[:] = FULL_PRECISION
    rows = found._rows([given])
    assert (rows["network"].tolist(), rows["versions"].tolist()) == ([COMPRESSED], [2])


def test_bits_changed_between_two_runs_are_the_new_ones(tmp_path: Path) -> None:
    first = Monitor([KL("max")])
    ActorLearner("CartPole-v1", impala(), settings(bits=4), monitor=first, folder=tmp_path).learn(
        100
    )
    assert first.setting.bits == 4
    for bits, expected in ((4, 4), (8, 8)):
        again = Monitor([KL("max")])
        ActorLearner(
            "CartPole-v1",
            impala(),
            settings(bits=bits),
            monitor=again,
            folder=tmp_path,
            resume=True,
        )
        assert again.setting.bits == expected


def test_the_default_monitor_does_not_let_harmful_pushes_act() -> None:
    """They are whole again: sixteen bits are no faster for an actor."""
    changes: list[str] = []
    pushed: list[int] = []

    def progressed(progress: Progress) -> bool:
        changes.extend(progress.changes)
        narrow = trainer.policies()[1]
        weights = None if narrow is None else narrow.parameters["dense0.weight"]
        pushed.append(weights.bits if isinstance(weights, QuantizedArray) else 32)
        return bool(changes)

    trainer = ActorLearner(
        "CartPole-v1", Sharp(), settings(bits=2), monitor=default_monitor("logits")
    )
    assert trainer.learn(20_000, progressed).stopped
    assert "enabled True -> False" in changes[0]
    assert (pushed[0], pushed[-1]) == (2, 32)


@pytest.mark.slow
def test_the_command_evaluates_and_reports_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(tmp_path, 1400, "--bits", "2", every=700)
    said = capsys.readouterr().out
    assert "compressed: return" in said
    assert "Nothing was compressed" not in said
    for row in rows_of(tmp_path, "evaluation"):
        assert len(row["compressed"]["returns"]) == 2
    assert any("kl_mu_pi_max" in row["readings"] for row in rows_of(tmp_path, "train"))
    assert (tmp_path / "compressed.safetensors").is_file()
    assert summary_of(tmp_path)["steps"] >= 1400
    # Gone on with in full precision, nothing older lies beside the new policy.
    more = ["--steps", "1500", "--bits", "32", "--evaluate-every", "0"]
    assert main(["actors", "--resume", "--out", str(tmp_path), *more, "--no-progress"]) == 0
    assert not (tmp_path / "compressed.json").exists()
    assert not (tmp_path / "compressed.safetensors").exists()
