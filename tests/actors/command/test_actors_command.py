"""vinoreward actors: what its command leaves, for every suite of tasks."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path

import pytest
import yaml
from actor_runs import FEW, SMALL, rows_of, trained

from vinoreward_actors.command.report import share_words
from vinoreward_actors.policies import load_policy
from vinoreward_actors.tasks.networks import network
from vinoreward_training.cli import main

# The command


def test_an_error_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert main(["actors", *SMALL, "--compress", "prune: 0.5", "--out", str(out)]) == 1
    said = capsys.readouterr().err
    assert said.startswith("vinoreward actors: ") and "distill" in said.lower()
    assert not (out / "config.yaml").exists()


def test_presets_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["actors", "--list-presets"]) == 0
    assert "actorq/cartpole-int8" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("share", "staleness", "said"),
    [(0.0, math.nan, "0% of the steps"), (0.02, 60.0, "2% of the steps since the first")],
)
def test_a_compressed_share_near_zero_is_said(share: float, staleness: float, said: str) -> None:
    words = share_words(share, staleness)
    assert said in words and ("60 pushes old" in words) == (staleness == 60.0)
    assert "use a cheaper compression" in words and "--max-staleness" in words


def test_a_usual_compressed_share_needs_no_advice() -> None:
    words = share_words(0.95, 3.0)
    assert "95% of the steps" in words and "3 pushes old" in words and "cheaper" not in words
    assert share_words(math.nan, math.nan) == ""


def test_a_truth_key_that_the_task_lacks_is_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert main(["actors", *SMALL, "--truth", "at_goal", "--out", str(out)]) == 1
    said = capsys.readouterr().err
    assert "without 'at_goal'" in said and "--truth" in said


@pytest.mark.slow
def test_a_training_reads_the_truth_that_is_named(tmp_path: Path) -> None:
    """Where it acts and where it is evaluated; the run records the name."""
    out = tmp_path / "run"
    task = ["--task", "faulty_environments:NumberedTelling-v0", "--network", "1x8", *FEW]
    steps = ["--steps", "600", "--evaluate-every", "0", "--backend", "numpy", "--no-progress"]
    assert main(["actors", *task, *steps, "--truth", "at_goal", "--out", str(out)]) == 0
    assert yaml.safe_load((out / "config.yaml").read_text())["truth"] == "at_goal"
    assert rows_of(out, "final")[0]["full"]["true"] is not None
    assert any(row["true"] is not None for row in rows_of(out, "train"))


@pytest.mark.slow
def test_a_training_without_compression(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    arguments = ["actors", *SMALL, *FEW, "--steps", "900", "--evaluate-every", "300"]
    assert main([*arguments, "--environments", "2", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert f"play:   vinoreward play --run {out}" in said
    assert "next:   vinoreward actors" in said and "an actor's step" in said
    assert {"config.yaml", "metrics.jsonl", "policy.json", "policy.safetensors", "returns.png",
            "profile.png", "lag.png", "report.html", "summary.json", "checkpoint.pt"} <= {
        path.name for path in out.iterdir()
    }  # fmt: skip
    assert load_policy(out).spec == network("CartPole-v0", "2x32")
    evaluations = rows_of(out, "evaluation")
    assert evaluations and all(row["compressed"] is None for row in evaluations)
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
    stages = "{prune: 0.5}, {distill: {steps: 3, cold_steps: 20}}, {quantize: int8}"
    chain = f"[{stages}, {{compile: openvino}}]"
    arguments = ["actors", *SMALL, *FEW, "--steps", "640", "--evaluate-every", "160"]
    # With a fixed lag nothing depends on how soon the compressor's process has started.
    assert main([*arguments, "--compress", chain, "--lag", "1", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "the same 3 episodes" in said and "compressed: return" in said
    summary = json.loads((out / "summary.json").read_text())
    assert f"acted compressed: {summary['compressed_share']:.0%} of the steps" in said
    assert summary["compressed_share"] > 0.5 and summary["staleness"] >= 0
    assert "steps that acted compressed" in (out / "report.html").read_text()
    evaluations = rows_of(out, "evaluation")
    assert len(evaluations) == 4
    for row in evaluations:
        assert row["seeds"] == [1_000_000, 1_000_001]
        assert row["full"]["version"] == row["compressed"]["version"]
        assert len(row["full"]["returns"]) == len(row["compressed"]["returns"]) == 2
    small = load_policy(out / "compressed.json")
    assert small.spec.layers[0].outputs == 16 and small.backend == "openvino"  # type: ignore[union-attr]
    trained = rows_of(out, "train")
    assert trained[-1]["setting"]["sparsity"] == 0.5
    assert any(row["learner"]["compressed_share"] > 0.9 for row in trained)
    # The monitor got the paired evaluations.
    assert any("return_gap_mean" in row["readings"] for row in trained)
    assert (out / "readings.png").is_file() and (out / "compression.png").is_file()
    assert (out / "report.html").read_text().count("data:image/png") == 5


@pytest.mark.slow
def test_a_short_profile_says_whether_compression_can_pay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    arguments = ["actors", *SMALL, "--compress", "quantize: int8", "--profile-only", "6000"]
    assert main([*arguments, "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "step: network" in said and "deserialize" in said
    assert "With quantize: int8 an actor's step takes" in said
    assert "The compressor takes" in said and "the learner alone could make" in said
    assert "Acted compressed: " in said and "pushes old (median)." in said
    found = json.loads((out / "profile.json").read_text())
    assert set(found["breakdowns"]) == {"openvino", "compressed"}
    assert (out / "profile.png").is_file()


@pytest.mark.slow
def test_a_profile_says_when_every_update_would_wait_for_the_student(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chain = [
        "--compress",
        "[{prune: 0.5}, {distill: {steps: 150}}, {compile: openvino}]",
        "--lag",
        "1",
    ]
    arguments = ["actors", *SMALL, *chain, "--profile-only", "200", "--no-progress"]
    assert main([*arguments, "--out", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().out
    assert "with --lag 1 every update waits for that" in said
    assert "more than learning and acting together: leave out --lag" in said


@pytest.mark.slow
def test_the_pull_study_is_one_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "study"
    arguments = ["actors", *SMALL, *FEW, "--steps", "600", "--evaluate-every", "0"]
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


# Other suites


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("shimmy") is None, reason="needs shimmy")
def test_a_task_of_dm_control(tmp_path: Path) -> None:
    arguments = ["actors", "--task", "cartpole-balance", "--algorithm", "d4pg", "--network", "2x16",
                 "--learner", "learning_starts", "100", "batch_size", "16",
                 "--env-kwargs", "max_steps", "50",
                 "--compress", "quantize: int8", "--steps", "300", "--evaluate-every", "0",
                 "--samples-per-insert", "2", "--no-progress", "--out", str(tmp_path / "run"),
                 *FEW]  # fmt: skip
    assert main(arguments) == 0
    final = rows_of(tmp_path / "run", "final")[0]
    assert final["compressed"] is not None and final["full"]["mean_length"] == 50


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ale_py") is None, reason="needs ale_py")
def test_a_game_of_atari(tmp_path: Path) -> None:
    arguments = ["actors", "--task", "pong", "--network", "net3", "--compress", "quantize: int8",
                 "--env-kwargs", "max_steps", "60", "clip_reward", "true", "--steps", "200",
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
                 "--learner", "learning_starts", "50", "batch_size", "16", "--trajectory", "10",
                 "--actors", "1", "--steps", "60", "--evaluate-every", "0", "--no-progress", *FEW,
                 "--out", str(out)]  # fmt: skip
    assert main(arguments) == 0
    said = capsys.readouterr().out
    assert "claimed success: " in said and "true success: " in said
    assert "Claimed and true success" in (out / "report.html").read_text()
    trained = [row for row in rows_of(out, "train") if row["true"] is not None]
    assert trained and all(row["claimed"] is not None for row in trained)


@pytest.mark.slow
def test_a_training_too_short_for_an_update_recommends_nothing_but_more_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert trained(tmp_path, 60, "--algorithm", "dqn", "--actors", "1")["updates"] == 0
    said = capsys.readouterr().out
    assert "it was not measured" in said
    assert (
        said.splitlines()[-1] == f"next:   vinoreward actors --resume --out {tmp_path} --steps 600"
    )
