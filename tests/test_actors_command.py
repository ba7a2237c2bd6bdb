"""vinoreward actors: what its options mean, what it leaves, and that it goes on after any stop."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from vinoreward.actor_learner.profile import PARTS, Breakdown
from vinoreward.compression import Compile, Distill, Prune, Quantize
from vinoreward.errors import ConfigError, ModelCorruptError, ModelNotFoundError, RunFolderError
from vinoreward.policies.policy import Policy, quantize_array, random_policy
from vinoreward.policies.spec import mlp
from vinoreward_training.actor_networks import network
from vinoreward_training.actors_build import SB3, build, evaluation_options, settings_of
from vinoreward_training.actors_evaluate import Evaluator, Pair
from vinoreward_training.actors_plugs import chain_of, correctors_of, monitor_of, setting_of
from vinoreward_training.actors_policy import load_policy, save_policy
from vinoreward_training.actors_record import METRICS, read_rows
from vinoreward_training.actors_report import gap_words
from vinoreward_training.actors_resolve import command, presets, resolve
from vinoreward_training.actors_run import difference
from vinoreward_training.actors_settings import ActorsConfig
from vinoreward_training.actors_words import Part, parse
from vinoreward_training.cli import main

SMALL = ("--task", "CartPole-v0", "--network", "2x32", "--no-progress")
FEW = ("--evaluation-episodes", "2", "--final-episodes", "3")


def student(name: str) -> Any:
    return network("pong", name)


# The small language

names = st.from_regex(r"[a-z][a-z0-9-]{0,8}", fullmatch=True).filter(
    lambda name: name not in ("none", "off")
)
keys = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
values = (
    st.booleans()
    | st.integers(-(10**6), 10**6)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.from_regex(r"[b-dg-hj-mo-su-z][a-z0-9]{0,6}", fullmatch=True)
)
parts = st.builds(
    Part,
    names,
    st.lists(values, max_size=3).map(tuple),
    st.dictionaries(keys, values, max_size=3),
)


@given(st.lists(parts, min_size=1, max_size=4))
def test_an_expression_is_read_as_it_is_written(written: list[Part]) -> None:
    assert parse(" | ".join(map(str, written)), "--compress") == written


@given(st.text(alphabet="ab1.|= \t-e", max_size=30))
def test_any_text_is_read_or_refused_in_a_sentence(text: str) -> None:
    try:
        found = parse(text, "--compress")
    except ConfigError as error:
        assert "Expected" in str(error)
    else:
        assert parse(" | ".join(map(str, found)), "--compress") == found


@settings(deadline=None)
@given(st.text(alphabet="prunedistlw48 0.5|=", max_size=24))
def test_any_compression_is_made_or_refused_in_a_sentence(text: str) -> None:
    try:
        chain_of(text, "openvino", student)
    except ConfigError as error:
        assert "Expected" in str(error)


def test_a_compression_is_the_chain_that_it_says() -> None:
    chain = chain_of("prune 0.5 | distill steps=20 | int8 margin=1.5 | openvino", "numpy", student)
    assert chain is not None
    kinds = [type(stage) for stage in chain.stages]
    assert kinds == [Prune, Distill, Quantize, Compile]
    assert chain.knobs() == {"bits": 8.0, "sparsity": 0.5}
    assert setting_of(chain, 7).pull_period == 7


def test_a_student_is_a_network_of_the_task() -> None:
    chain = chain_of("distill net3 | int8", "openvino", student)
    assert chain is not None
    stage = chain.stages[0]
    assert isinstance(stage, Distill) and stage.student == network("pong", "net3")


@pytest.mark.parametrize(("executor", "engine"), [("numpy", "numpy"), ("torch", "openvino")])
def test_without_an_engine_the_executors_is_taken(executor: str, engine: str) -> None:
    chain = chain_of("int8", executor, student)
    assert chain is not None and isinstance(last := chain.stages[-1], Compile)
    assert last.engine == engine


@pytest.mark.parametrize("text", ["none", "", "off", " None "])
def test_nothing_may_be_compressed(text: str) -> None:
    assert chain_of(text, "openvino", student) is None
    assert monitor_of("default", "logits", None, 10) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prune 0.5", "not followed by Distill"),
        ("prune 1.5 | distill", "sparsity of 1.5"),
        ("prune | distill", "sparsity"),
        ("int9", "int9"),
        ("int8 | int8", "two Quantize"),
        ("openvino | int8", "after a stage"),
        ("int8 margin=0.1", "margin"),
        ("int8 colour=red", "colour"),
        ("distill net9", "net9"),
        ("low-rank", "low-rank"),
        ("int8 | | openvino", "the part ''"),
        ("int8 margin=1 margin=2", "margin=2"),
    ],
)
def test_a_compression_that_cannot_be_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match="Expected") as error:
        chain_of(text, "openvino", student)
    assert said in str(error.value)


def test_correctors_are_named() -> None:
    found = correctors_of("vtrace rho=2 c=1 | importance mix=ess")
    assert found is not None
    assert [type(one).__name__ for one in found] == ["VTrace", "ImportanceSampling"]
    assert correctors_of(None) is None
    for text in ("vtrac", "none", "vtrace rho=0"):
        with pytest.raises(ConfigError, match=r"[Ee]xpected"):
            correctors_of(text)


@pytest.mark.parametrize(
    "text", ["default", "watch", "kl 14", "kl threshold=5 good=1", "alpha 0.02 0.3", "staged",
             "sparsity", "sparsity 0.5 good=0.2", "kl 14 | staged"],
)  # fmt: skip
def test_monitors_begin_with_the_chains_own_settings(text: str) -> None:
    chain = chain_of("prune 0.25 | distill | w5", "openvino", student)
    monitor = monitor_of(text, "logits", chain, 33)
    assert monitor is not None
    assert (monitor.setting.bits, monitor.setting.sparsity) == (5, 0.25)
    assert monitor.setting.pull_period == 33


@pytest.mark.parametrize(
    ("text", "chain", "head"),
    [
        ("kl 14", "distill net3", "logits"),
        ("sparsity", "int8", "logits"),
        ("alpha 0.1 0.2", "int8", "q"),
        ("alpha 0.3 0.2", "int8", "logits"),
        ("dfault", "int8", "logits"),
        ("default 3", "int8", "logits"),
    ],
)
def test_a_monitor_that_could_do_nothing_is_refused(text: str, chain: str, head: Any) -> None:
    with pytest.raises(ConfigError, match="Expected"):
        monitor_of(text, head, chain_of(chain, "openvino", student), 10)


# Settings


def test_every_preset_is_settled_and_fits_its_task() -> None:
    found = presets()
    assert {"actorq/cartpole-int8", "actorq/humanoid-walk-int8", "accerl/pong-alpha",
            "accerl/seaquest-int8", "hover/fixed-int8"} <= set(found)  # fmt: skip
    for name in found:
        config = resolve(ActorsConfig(preset=name))
        spec = network(config.task, config.network, config.algorithm)
        learner, _ = settings_of(config)
        assert learner.__name__.lower() == config.algorithm
        chain = chain_of(
            config.compress,
            config.executor,
            lambda name, config=config: network(config.task, name, config.algorithm),
        )
        monitor_of(config.monitor, spec.head, chain, config.pull_period)
        assert (chain is None) == ("int8" not in name and config.compress == "none")


def test_what_is_given_wins_over_file_and_preset(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("steps: 777\nactors: 3\nlearner: {gamma: 0.9}\n")
    found = resolve(
        ActorsConfig(
            preset="actorq/cartpole-int8", config=file, actors=1, explicit=("actors", "preset")
        )
    )
    assert (found.steps, found.actors, found.compress) == (777, 1, "int8 | openvino")
    assert found.learner["gamma"] == 0.9
    assert found.learner["learning_rate"] == 0.0003


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"preset": "actorq/nothing"}, "no preset"),
        ({"steps": 0}, "steps=0"),
        ({"final_episodes": 1}, "final_episodes"),
        ({"pull_study": (10, 10)}, "different periods"),
        ({"pull_study": (10,), "profile_only": 5}, "one of them"),
        ({"profile_only": 0}, "profile_only"),
        ({"samples_per_insert": 0.0}, "samples_per_insert"),
    ],
)
def test_settings_that_cannot_be_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match="Expected") as error:
        resolve(ActorsConfig(**options, explicit=tuple(options)))
    assert said in str(error.value)


@pytest.mark.parametrize(
    "text", ["steps: many\n", "unknown: 1\n", "learner: 3\n", "actors: true\n"]
)
def test_a_file_that_cannot_be_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match="Expected"):
        resolve(ActorsConfig(config=file))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"algorithm": "ppo"}, "algorithm"),
        ({"algorithm": "dqn", "task": "Pendulum-v1"}, "dqn"),
        ({"network": "resnet"}, "resnet"),
        ({"engine": "spark"}, "engine"),
        ({"executor": "tensorrt"}, "executor"),
        ({"task": "NoSuch-v0"}, "NoSuch-v0"),
        ({"learner": {"gama": 0.9}}, "gama"),
        ({"learner": {"gamma": "high"}}, "gamma"),
        ({"learner": {"correctors": "vtrace"}}, "--correctors"),
        ({"learner": {"gamma": 2.0}}, "gamma"),
        ({"correctors": "retrace"}, "Retrace"),
        ({"algorithm": "sb3-dqn", "correctors": "vtrace"}, "Stable-Baselines3"),
        ({"algorithm": "sb3-sac"}, "sb3-sac"),
    ],
)
def test_parts_that_do_not_fit_are_refused(options: dict[str, Any], said: str) -> None:
    config = ActorsConfig(**{"task": "CartPole-v0", "network": "1x8", **options})
    with pytest.raises(ConfigError) as error:
        build(config)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("task", "algorithm"),
    [("CartPole-v0", "impala"), ("CartPole-v0", "dqn"), ("Pendulum-v1", "d4pg"),
     ("Pendulum-v1", "sac"), ("Pendulum-v1", "sb3-td3"), ("CartPole-v0", "sb3-dqn")],
)  # fmt: skip
def test_every_algorithm_is_made_by_its_name(task: str, algorithm: str) -> None:
    parts = build(ActorsConfig(task=task, algorithm=algorithm, network="2x16", compress="int8"))
    assert parts.learner.spec.actions == (2 if task == "CartPole-v0" else 1)
    assert parts.chain is not None and parts.monitor is not None
    parts.close()
    assert algorithm in SB3 or settings_of(ActorsConfig(algorithm=algorithm))[1].seed == 0


def test_a_command_says_what_differs_from_its_preset() -> None:
    config = resolve(ActorsConfig(preset="actorq/cartpole-int8", actors=2, explicit=("preset",)))
    words = command(config)
    assert words == "vinoreward actors --preset actorq/cartpole-int8 --actors 2"
    assert "--compress none" in command(config, compress="none")


def test_evaluations_play_the_game_itself() -> None:
    given = {"clip_reward": True, "episodic_life": True, "press_fire": True, "sticky": 0.1}
    assert evaluation_options(ActorsConfig(env_kwargs=given)) == {"sticky": 0.1}


# Files


@pytest.mark.parametrize("quantized", [False, True])
def test_a_policy_comes_back_as_it_was(tmp_path: Path, quantized: bool) -> None:
    policy = random_policy(mlp(4, 2, head="logits", hidden=(8, 8), value=True), 3)
    policy = policy.replace(version=17, engine="openvino")
    if quantized:
        some = {"dense1.weight": quantize_array(policy.float_parameters()["dense1.weight"], 5)}
        policy = policy.replace(parameters={**policy.parameters, **some})
    path = save_policy(tmp_path, policy)
    found = load_policy(tmp_path)
    assert path.name == "policy.json" and load_policy(path).spec == policy.spec
    assert (found.spec, found.version, found.engine) == (policy.spec, 17, "openvino")
    for name, value in policy.float_parameters().items():
        np.testing.assert_array_equal(found.float_parameters()[name], value)


def test_policies_that_are_not_whole_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="Expected"):
        load_policy(tmp_path)
    policy = random_policy(mlp(4, 2, head="q", hidden=(8,)), 3)
    path = save_policy(tmp_path, policy)
    weights = tmp_path / "policy.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0")
    with pytest.raises(ModelCorruptError, match="belong together"):
        load_policy(tmp_path)
    path.write_text("{}")
    with pytest.raises(ModelCorruptError, match="Expected"):
        load_policy(tmp_path)
    weights.unlink()
    with pytest.raises((ModelNotFoundError, ModelCorruptError)):
        load_policy(tmp_path)


def test_a_half_written_last_row_is_no_row(tmp_path: Path) -> None:
    file = tmp_path / METRICS
    file.write_text('{"kind": "train", "step": 1}\n{"kind": "train", "step": 5}\n{"ste')
    assert [row["step"] for row in read_rows(tmp_path)] == [1, 5]
    assert [row["step"] for row in read_rows(tmp_path, until=4)] == [1]
    file.write_text('{"kind": "train", "step": 1}\nnonsense\n{"kind": "train", "step": 5}\n')
    with pytest.raises(RunFolderError, match="line 2"):
        read_rows(tmp_path)


# Evaluation and profile


def cartpole(seed: int, version: int = 1) -> Policy:
    return random_policy(network("CartPole-v0", "1x8"), seed).replace(version=version)


def test_both_policies_play_the_same_episodes() -> None:
    seeds = range(100, 113)  # more than are played side by side
    with Evaluator("CartPole-v0", {}, "numpy") as evaluator:
        pair = evaluator.pair(cartpole(0), cartpole(0), seeds)
        again = evaluator.pair(cartpole(0), cartpole(5), seeds)
    assert pair.compressed is not None and pair.seeds == tuple(seeds)
    np.testing.assert_array_equal(pair.full.returns, pair.compressed.returns)
    np.testing.assert_array_equal(pair.full.returns, again.full.returns)
    assert len(set(pair.full.returns)) > 1
    assert "not certainly worse" in gap_words(pair)


def test_policies_of_different_versions_are_no_pair_for_the_monitor() -> None:
    with Evaluator("CartPole-v0", {}, "numpy") as evaluator:
        pair = evaluator.pair(cartpole(0, 9), cartpole(0, 7), range(3))
    assert pair.returns is None
    assert "2 pushes older" in gap_words(pair)
    assert Pair((1,), pair.full, None).returns is None


def test_success_is_that_of_the_last_state() -> None:
    pytest.importorskip("warp")
    spec = network("PandaHover-v0", "1x8", "sac")
    with Evaluator("PandaHover-v0", {"backend": "oracle"}, "numpy") as evaluator:
        played = evaluator.play(random_policy(spec, 0), range(2), "numpy")
    assert played.true is not None and played.true.trials == 2


def test_the_profile_leaves_starting_out() -> None:
    def breakdown(seconds: float, steps: int) -> Breakdown:
        each = dict.fromkeys(PARTS, seconds / steps)
        return Breakdown(each, each, steps)

    found = difference(breakdown(3.0, 300), breakdown(2.0, 100))
    assert found.steps == 200
    assert found.cpu["infer"] == pytest.approx(1.0 / 200)
    assert difference(breakdown(3.0, 300), None).steps == 300


# The command


def rows_of(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [row for row in read_rows(folder) if row["kind"] == kind]


def test_an_error_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert main(["actors", *SMALL, "--compress", "prune 0.5", "--out", str(out)]) == 1
    said = capsys.readouterr().err
    assert said.startswith("vinoreward actors: ") and "distill" in said.lower()
    assert not (out / "config.yaml").exists()


def test_presets_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["actors", "--list-presets"]) == 0
    assert "actorq/cartpole-int8" in capsys.readouterr().out


@pytest.mark.slow
def test_a_training_without_compression(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    arguments = ["actors", *SMALL, *FEW, "--steps", "3000", "--evaluate-every", "1000"]
    assert main([*arguments, "--environments", "2", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "next:   vinoreward actors" in said and "an actor's step" in said
    assert {"config.yaml", "metrics.jsonl", "policy.json", "policy.safetensors", "returns.png",
            "profile.png", "lag.png", "report.html", "summary.json", "checkpoint.pt"} <= {
        path.name for path in out.iterdir()
    }  # fmt: skip
    assert load_policy(out).spec == network("CartPole-v0", "2x32")
    assert [row["compressed"] for row in rows_of(out, "evaluation")] == [None, None, None]
    assert (out / "report.html").read_text().count("data:image/png") == 3
    assert yaml.safe_load((out / "config.yaml").read_text())["task"] == "CartPole-v0"
    # The run is there: it is not overwritten, and has nothing left to do.
    assert main([*arguments, "--out", str(out)]) == 1
    capsys.readouterr()
    assert main(["actors", "--resume", "--out", str(out)]) == 0
    assert "is finished" in capsys.readouterr().out


@pytest.mark.slow
def test_a_training_with_compression(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    chain = "prune 0.5 | distill steps=20 cold_steps=20 | int8 | openvino"
    arguments = ["actors", *SMALL, *FEW, "--steps", "4000", "--evaluate-every", "1000"]
    assert main([*arguments, "--compress", chain, "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "the same 3 episodes" in said and "compressed: return" in said
    evaluations = rows_of(out, "evaluation")
    assert len(evaluations) == 4
    for row in evaluations:
        assert row["seeds"] == [1_000_000, 1_000_001]
        assert row["full"]["version"] == row["compressed"]["version"]
        assert len(row["full"]["returns"]) == len(row["compressed"]["returns"]) == 2
    small = load_policy(out / "compressed.json")
    assert small.spec.layers[0].outputs == 16 and small.engine == "openvino"  # type: ignore[union-attr]
    trained = rows_of(out, "train")
    assert trained[-1]["setting"]["sparsity"] == 0.5
    assert any(row["learner"]["compressed_share"] > 0.9 for row in trained)
    # The monitor got the paired evaluations.
    assert any("return_gap_mean" in row["readings"] for row in trained)
    assert (out / "readings.png").is_file() and (out / "compression.png").is_file()
    assert (out / "report.html").read_text().count("data:image/png") == 5


@pytest.mark.slow
def test_training_stops_at_its_target(tmp_path: Path) -> None:
    out = tmp_path / "run"
    arguments = ["actors", *SMALL, *FEW, "--steps", "100000", "--evaluate-every", "500"]
    assert main([*arguments, "--target", "5", "--out", str(out)]) == 0
    summary = json.loads((out / "summary.json").read_text())
    assert summary["reached_at"] < 2000 and summary["steps"] == summary["reached_at"]
    assert main(["actors", "--resume", "--out", str(out)]) == 0


@pytest.mark.slow
def test_a_short_profile_says_whether_compression_can_pay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    arguments = ["actors", *SMALL, "--compress", "int8", "--profile-only", "2000"]
    assert main([*arguments, "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "step: network" in said and "deserialize" in said
    assert "With int8 an actor's step takes" in said
    found = json.loads((out / "profile.json").read_text())
    assert set(found["breakdowns"]) == {"openvino", "compressed"}
    assert (out / "profile.png").is_file()


@pytest.mark.slow
def test_the_pull_study_is_one_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "study"
    arguments = ["actors", *SMALL, *FEW, "--steps", "1000", "--evaluate-every", "0"]
    study = ["--pull-study", "10", "200", "--study-seeds", "1"]
    assert main([*arguments, *study, "--seed", "4", "--out", str(out)]) == 0
    found = json.loads((out / "pull_study.json").read_text())
    assert [row["pull period"] for row in found["table"]] == [10, 200]
    assert found["seeds"] == [4]
    assert found["table"][0]["mean lag"] < found["table"][1]["mean lag"]
    assert (out / "pull_study.png").is_file()
    assert "--pull-period" in capsys.readouterr().out
    # Runs that are there are kept.
    before = (out / "pull-10" / "seed-4" / "policy.json").stat().st_mtime_ns
    assert main(["actors", "--resume", "--out", str(out)]) == 0
    assert (out / "pull-10" / "seed-4" / "policy.json").stat().st_mtime_ns == before


# Stops


def begin(out: Path, *more: str) -> subprocess.Popen[str]:
    arguments = [
        sys.executable, "-m", "vinoreward_training.cli", "actors", *SMALL, *FEW,
        "--steps", "400000", "--evaluate-every", "0", "--compress", "int8",
        "--checkpoint-seconds", "0.5",
    ]  # fmt: skip
    return subprocess.Popen(
        [*arguments, "--out", str(out), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def wait_for_checkpoint(out: Path, run: subprocess.Popen[str], seconds: float = 120.0) -> None:
    """Wait for a checkpoint that was written after something had been learned."""
    limit = time.monotonic() + seconds
    checkpoint = out / "checkpoint.pt"
    learned: float | None = None
    while run.poll() is None and time.monotonic() < limit:
        if learned is None and rows_of(out, "train"):
            learned = time.time()
        if learned is not None and checkpoint.is_file() and checkpoint.stat().st_mtime > learned:
            return
        time.sleep(0.05)
    run.kill()
    pytest.fail(run.communicate(timeout=10)[0])


def finish(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = read_rows(out)[-1]["step"]
    assert before > 0
    steps = str(before + 2000)
    assert main(["actors", "--resume", "--no-progress", "--out", str(out), "--steps", steps]) == 0
    said = capsys.readouterr().out
    assert "going on from step" in said
    rows = read_rows(out)
    steps_seen = [row["step"] for row in rows if row["kind"] == "train"]
    assert steps_seen == sorted(set(steps_seen)) and steps_seen[-1] >= before
    seconds = [row["seconds"] for row in rows if row["kind"] == "train"]
    assert seconds == sorted(seconds)


@pytest.mark.slow
def test_it_goes_on_after_ctrl_c(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    run = begin(out)
    wait_for_checkpoint(out, run)
    run.send_signal(signal.SIGINT)
    said = run.communicate(timeout=60)[0]
    assert run.returncode == 130, said
    assert f"Continue with: vinoreward actors --resume --out {out}" in said
    assert "Traceback" not in said
    finish(out, capsys)


@pytest.mark.slow
def test_it_goes_on_after_ctrl_c_in_the_last_evaluation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    run = begin(out, "--steps", "300", "--final-episodes", "100000")
    limit = time.monotonic() + 120
    while not (out / "compressed.json").is_file() and time.monotonic() < limit:
        time.sleep(0.05)
    run.send_signal(signal.SIGINT)
    said = run.communicate(timeout=60)[0]
    assert run.returncode == 130, said
    assert f"Continue with: vinoreward actors --resume --out {out}" in said
    assert "Traceback" not in said
    again = ["actors", "--resume", "--out", str(out), "--final-episodes", "3", "--no-progress"]
    assert main(again) == 0
    assert "full precision: return" in capsys.readouterr().out
    assert len(rows_of(out, "final")[-1]["seeds"]) == 3


@pytest.mark.slow
def test_it_goes_on_after_being_killed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    run = begin(out)
    wait_for_checkpoint(out, run)
    time.sleep(0.7)  # into what no checkpoint holds yet
    run.kill()
    run.communicate(timeout=60)
    finish(out, capsys)


@pytest.mark.slow
def test_a_resumed_run_keeps_what_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    arguments = ["actors", *SMALL, *FEW, "--steps", "500", "--evaluate-every", "0"]
    assert main([*arguments, "--out", str(out)]) == 0
    capsys.readouterr()
    assert main(["actors", "--resume", "--out", str(out), "--network", "2x64"]) == 1
    assert "network='2x64'" in capsys.readouterr().err


# Other suites


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("dm_control") is None, reason="needs dm_control")
def test_a_task_of_dm_control(tmp_path: Path) -> None:
    arguments = ["actors", "--task", "cartpole-balance", "--algorithm", "d4pg", "--network", "2x16",
                 "--learner", "minimum", "100", "batch", "16", "--env-kwargs", "max_steps", "50",
                 "--compress", "int8", "--steps", "600", "--evaluate-every", "0",
                 "--samples-per-insert", "2", "--no-progress", "--out", str(tmp_path / "run"),
                 *FEW]  # fmt: skip
    assert main(arguments) == 0
    final = rows_of(tmp_path / "run", "final")[0]
    assert final["compressed"] is not None and final["full"]["mean_length"] == 50


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ale_py") is None, reason="needs ale_py")
def test_a_game_of_atari(tmp_path: Path) -> None:
    arguments = ["actors", "--task", "pong", "--network", "net3", "--compress", "int8",
                 "--env-kwargs", "max_steps", "60", "clip_reward", "true", "--steps", "400",
                 "--evaluate-every", "0", "--no-progress", "--out", str(tmp_path / "run"),
                 *FEW]  # fmt: skip
    assert main(arguments) == 0
    final = rows_of(tmp_path / "run", "final")[0]
    assert final["compressed"] is not None and final["full"]["mean_length"] == 60


@pytest.mark.slow
def test_claimed_success_stands_beside_true_success(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("warp")
    out = tmp_path / "run"
    arguments = ["actors", "--task", "PandaHover-v0", "--algorithm", "sac", "--network", "2x16",
                 "--learner", "minimum", "50", "batch", "16", "--trajectory", "10",
                 "--steps", "200", "--evaluate-every", "0", "--no-progress", *FEW,
                 "--out", str(out)]  # fmt: skip
    assert main(arguments) == 0
    said = capsys.readouterr().out
    assert "claimed success: " in said and "true success: " in said
    assert "Claimed and true success" in (out / "report.html").read_text()
    trained = [row for row in rows_of(out, "train") if row["true"] is not None]
    assert trained and all(row["claimed"] is not None for row in trained)


def test_settings_are_all_recorded() -> None:
    assert {field.name for field in dataclasses.fields(ActorsConfig)} >= {
        "task", "algorithm", "network", "compress", "correctors", "monitor", "engine", "target",
    }  # fmt: skip
