"""An actor with a fixed lag, and the compressor that it waits for, in the test's own process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from plain_links import CARTPOLE, PlainLink, acted, policy_of

from vinoreward_actors.actor_learner.compressor import Compressor, CompressorConfig
from vinoreward_actors.actor_learner.transport.link import ActorSettings, CompressorLink, Weights
from vinoreward_actors.actor_learner.transport.trajectory import (
    COMPRESSED,
)
from vinoreward_actors.compression.chain import CompressorChain
from vinoreward_actors.compression.distill import Distill
from vinoreward_actors.compression.prune import Prune
from vinoreward_actors.compression.quantize import Quantize
from vinoreward_actors.policies.policy import Policy, forward
from vinoreward_actors.policies.wire import encode


class TestFixedLag:
    @pytest.mark.parametrize("lag", [0, 1, 3])
    @pytest.mark.parametrize("per_update", [1, 2])
    @pytest.mark.parametrize("first", [0, 40])
    def test_versions_are_exact(self, lag: int, per_update: int, first: int) -> None:
        def begin(link: PlainLink) -> None:
            def after(done: int) -> None:
                # A learner as fast as may be: an update for each share of rollouts, a push as soon
                # as the actor has pulled the one before.
                pulled = int(link.done[-1].versions[0, 0])
                ready = first + done // per_update
                link.publish(policy_of(CARTPOLE, min(ready, pulled + 1)))

            link.after = after

        link = acted(
            begin=begin,
            lag=lag,
            rollouts=12,
            rollouts_per_update=per_update,
            first_version=first,
        )
        versions = [np.unique(one.versions).tolist() for one in link.done]
        assert versions == [[first + max(0, r // per_update - lag)] for r in range(12)]

    def test_a_switch_takes_effect_at_its_version(self) -> None:
        """Whatever the actor reads when: settings say from which version on they hold."""

        def begin(link: PlainLink) -> None:
            link.publish(policy_of(CARTPOLE, 0), COMPRESSED)

            def after(done: int) -> None:
                link.told = ActorSettings(enabled=done < 4, since=4 if done >= 4 else 0)
                if done >= 8:
                    link.told = ActorSettings(enabled=True, since=8)
                if link.told.enabled_at(done):
                    link.publish(policy_of(CARTPOLE, done), COMPRESSED)
                link.publish(policy_of(CARTPOLE, done))

            link.after = after

        link = acted(begin=begin, lag=0, compressed=True, rollouts=12)
        assert [int(one.network[0, 0]) for one in link.done] == [1] * 4 + [0] * 4 + [1] * 4
        assert [int(one.versions[0, 0]) for one in link.done] == list(range(12))

    def test_a_successor_goes_on_where_the_other_died(self) -> None:
        link = acted(
            begin=lambda link: link.publish(policy_of(CARTPOLE, 7)), lag=1, rollouts=1, prior=8
        )
        assert int(link.done[0].versions[0, 0]) == 7

    def test_a_successor_whose_version_is_gone_takes_the_next(self) -> None:
        link = acted(
            begin=lambda link: link.publish(policy_of(CARTPOLE, 8)), lag=1, rollouts=1, prior=8
        )
        assert int(link.done[0].versions[0, 0]) == 8


class PlainCompressorLink(CompressorLink):
    """The learner publishes the versions it was given, one at each look."""

    def __init__(self, teachers: list[Policy], settings: list[ActorSettings]) -> None:
        self._teachers = teachers
        self._told = settings
        self.published: list[Policy] = []
        self.reports: list[dict[str, Any]] = []
        self._at = -1

    @property
    def stopped(self) -> bool:
        return self._at >= len(self._teachers)

    def settings(self) -> ActorSettings:
        return self._told[min(max(self._at, 0), len(self._told) - 1)]

    def report(self, kind: str, value: Any) -> None:
        assert kind == "compressor"
        self.reports.append(value)

    def pull(self, store: int, have: int, *, wait: bool = False) -> Weights | None:
        self._at += 1
        if self.stopped:
            return None
        encoded = encode(self._teachers[self._at])
        return Weights(encoded.header, encoded.payload())

    def observations(self) -> Any:
        return np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)

    def publish(self, policy: Policy) -> None:
        self.published.append(policy)


class TestCompressor:
    def test_compresses_every_version_it_gets_to(self) -> None:
        link = PlainCompressorLink([policy_of(CARTPOLE, v) for v in (0, 3)], [ActorSettings()])
        Compressor(CompressorConfig(CompressorChain().add(Quantize("int8"))), link).run()
        assert [policy.version for policy in link.published] == [0, 3]
        assert [report["version"] for report in link.reports] == [0, 3]
        assert link.reports[0]["quality"]["kl_max"] < 0.5
        assert link.published[0].ranges

    def test_judges_by_what_the_engine_gives(self) -> None:
        teacher = policy_of(CARTPOLE, 0)
        link = PlainCompressorLink([teacher], [ActorSettings()])
        chain = CompressorChain().add(Quantize("int8"))
        Compressor(
            CompressorConfig(chain), link, outputs=lambda policy, seen: forward(teacher, seen)
        ).run()
        assert link.reports[0]["quality"]["kl_max"] == 0.0

    def test_versions_before_a_switch_are_left_as_it_found_them(self) -> None:
        teachers = [policy_of(CARTPOLE, v) for v in range(4)]
        settings = [ActorSettings(enabled=True, since=2)]  # read late: 0 and 1 were of before
        link = PlainCompressorLink(teachers, settings)
        Compressor(CompressorConfig(CompressorChain().add(Quantize("int8"))), link).run()
        assert [policy.version for policy in link.published] == [2, 3]

    def test_bits_are_turned(self) -> None:
        teachers = [policy_of(CARTPOLE, v) for v in range(2)]
        link = PlainCompressorLink(teachers, [ActorSettings(bits=8), ActorSettings(bits=None)])
        Compressor(CompressorConfig(CompressorChain().add(Quantize("int8"))), link).run()
        assert [bool(policy.ranges) for policy in link.published] == [True, False]

    def test_sparsity_is_turned(self) -> None:
        teachers = [policy_of(CARTPOLE, v) for v in range(3)]
        told = [
            ActorSettings(sparsity=0.25),
            ActorSettings(sparsity=0.5),
            ActorSettings(sparsity=0.0),
        ]
        link = PlainCompressorLink(teachers, told)
        chain = CompressorChain().add(Prune(0.75)).add(Distill(1, cold_steps=1))
        Compressor(CompressorConfig(chain), link).run()
        widths = [[layer.outputs for layer in policy.spec.weighted] for policy in link.published]
        assert widths == [[12, 12, 2], [8, 8, 2], [16, 16, 2]]

    def test_an_error_is_told_and_the_next_version_tried(self) -> None:
        broken = policy_of(CARTPOLE, 0)
        weights = dict(broken.float_parameters())
        weights["head.weight"] = weights["head.weight"] * np.float32(np.inf)
        teachers = [broken.replace(parameters=weights), policy_of(CARTPOLE, 1)]
        link = PlainCompressorLink(teachers, [ActorSettings()])
        Compressor(CompressorConfig(CompressorChain().add(Quantize("int8"))), link).run()
        assert [policy.version for policy in link.published] == [1]
        assert "has NaN or infinite values" in link.reports[0]["error"]

    def test_state_is_saved_when_asked_and_taken_up(self, tmp_path: Any) -> None:
        from faulty_environments import Remembers, pushes_counted

        teachers = [policy_of(CARTPOLE, v) for v in range(3)]
        config = CompressorConfig(CompressorChain().add(Remembers()), folder=tmp_path)
        Compressor(
            config, PlainCompressorLink(teachers, [ActorSettings(), ActorSettings(save=1)])
        ).run()
        assert [path.name for path in tmp_path.iterdir()] == ["compressor.npz"]
        again = CompressorConfig(CompressorChain().add(Remembers()), folder=tmp_path, resume=True)
        link = PlainCompressorLink([policy_of(CARTPOLE, 3)], [ActorSettings()])
        Compressor(again, link).run()
        # Saved on being asked, after the second push of three.
        assert pushes_counted(link.published[0]) == 3
