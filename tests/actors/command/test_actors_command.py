"""vinoreward actors: what its command leaves, for every suite of tasks."""

import json
import math
import re

import pytest
import yaml
from actor_runs import FEW, SMALL, rows_of, summary_of, trained

from vinoreward_actors.command.report import share_words
from vinoreward_actors.command.settings import presets
from vinoreward_actors.policies import load_policy
from vinoreward_actors.tasks.networks import network
from vinoreward_training.cli import main

Capture = pytest.CaptureFixture[str]


def test_the_help_names_every_preset(capsys):
    with pytest.raises(SystemExit):
        main(["actors", "--help"])
    said = capsys.readouterr().out
    begins = re.findall(r"(?:actorq|accerl)/[a-z-]+-(?= )", said)
    for name in presets():
        fitting = [begin for begin in begins if name.startswith(begin)]
        assert fitting, name
        arm = name.removeprefix(max(fitting, key=len)).removesuffix("-spi1")
        assert re.search(rf"\b{arm}\b", said), name


def test_a_compressed_share_near_zero_is_said():
    for share, staleness, said in (
        (0.0, math.nan, "0% of the steps"),
        (0.02, 60.0, "2% of the steps since the first"),
    ):
        words = share_words(share, staleness)
        assert said in words and ("60 pushes old" in words) == (staleness == 60.0)
        assert "use a cheaper compression" in words
    words = share_words(0.95, 3.0)
    assert "95% of the steps" in words and "3 pushes old" in words and "cheaper" not in words
    assert share_words(math.nan, math.nan) == ""


@pytest.mark.slow
def test_a_training_reads_the_truth_that_is_named(tmp_path):
    """Where it acts and where it is evaluated; the run records the name."""
    task = ["--task", "faulty_environments:NumberedTelling-v0", "--network", "1x8"]
    trained(tmp_path, 600, *task, "--backend", "numpy", "--truth", "at_goal")
    assert yaml.safe_load((tmp_path / "config.yaml").read_text())["truth"] == "at_goal"
    assert rows_of(tmp_path, "final")[0]["full"]["true"] is not None
    assert any(row["true"] is not None for row in rows_of(tmp_path, "train"))


@pytest.mark.slow
def test_a_training_without_compression(tmp_path, capsys):
    out = tmp_path / "run"
    trained(out, 900, "--environments", "2", every=300)
    said = capsys.readouterr().out
    assert f"play:   vinoreward play --run {out}" in said
    assert "next:   vinoreward actors" in said and "An environment step takes an actor" in said
    written = "config.yaml metrics.jsonl policy.json policy.safetensors returns.png profile.png"
    written += " report.html summary.json checkpoint.pt"
    assert set(written.split()) <= {path.name for path in out.iterdir()}
    assert load_policy(out).spec == network("CartPole-v0", "2x32")
    evaluations = rows_of(out, "evaluation")
    assert evaluations and all(row["compressed"] is None for row in evaluations)
    assert (out / "report.html").read_text().count("data:image/png") == 2
    # The run is there: it is not overwritten, and has nothing left to do.
    assert main(["actors", *SMALL, *FEW, "--steps", "900", "--out", str(out)]) == 1
    capsys.readouterr()
    assert main(["actors", "--resume", "--out", str(out)]) == 0
    assert "is finished" in capsys.readouterr().out


@pytest.mark.slow
def test_a_training_with_compression(tmp_path, capsys):
    stages = "{prune: 0.5}, {distill: {steps: 3, cold_steps: 20}}, {quantize: int8}"
    # Inline, nothing depends on how soon the compressor's process has started.
    more = ["--compress", f"[{stages}, {{compile: openvino}}]", "--engine", "inline"]
    summary = trained(tmp_path, 640, *more, every=160)
    said, report = capsys.readouterr().out, (tmp_path / "report.html").read_text()
    assert "the same 6 episodes" in said and "compressed: return" in said
    assert f"acted compressed: {summary['compressed_share']:.0%} of the steps" in said
    assert summary["compressed_share"] > 0.5 and summary["staleness"] >= 0
    assert "steps that acted compressed" in report and report.count("data:image/png") == 2
    evaluations = rows_of(tmp_path, "evaluation")
    assert len(evaluations) == 4
    for row in evaluations:
        assert row["seeds"] == [1_000_000, 1_000_001]
        assert row["full"]["version"] == row["compressed"]["version"]
        assert len(row["full"]["returns"]) == len(row["compressed"]["returns"]) == 2
    small = load_policy(tmp_path / "compressed.json")
    assert small.spec.layers[0].outputs == 16 and small.backend == "openvino"
    rows = rows_of(tmp_path, "train")
    assert rows[-1]["setting"]["sparsity"] == 0.5
    assert any(row["learner"]["compressed_share"] > 0.9 for row in rows)
    # The monitor got the paired evaluations.
    assert any("return_gap_mean" in row["readings"] for row in rows)


@pytest.mark.slow
def test_a_short_profile_says_whether_compression_can_pay(tmp_path, capsys):
    out = tmp_path / "run"
    arguments = ["actors", *SMALL, "--compress", "quantize: int8", "--profile-only", "4000"]
    assert main([*arguments, "--out", str(out)]) == 0
    said = capsys.readouterr().out
    for words in (
        "backends on this machine",
        "step: network",
        "deserialize",
        "With quantize: int8 an actor's step takes",
        "The compressor takes",
        "Acted compressed: ",
        "pushes old (median).",
    ):
        assert words in said
    found = json.loads((out / "profile.json").read_text())
    assert set(found["breakdowns"]) == {"full precision", "compressed"}
    assert (out / "profile.png").is_file()
    assert main(["actors", *SMALL, "--profile-only", "1", "--out", str(tmp_path / "short")]) == 0
    assert "1000 or more are reliable" in capsys.readouterr().out


@pytest.mark.slow
def test_a_training_too_short_for_an_update_recommends_nothing_but_more_steps(tmp_path, capsys):
    assert trained(tmp_path, 60, "--algorithm", "dqn", "--actors", "1")["updates"] == 0
    said = capsys.readouterr().out
    assert "The learner made no update: run more steps to see what limits." in said
    following = f"next:   vinoreward actors --resume --out {tmp_path} --steps 600"
    assert said.splitlines()[-1] == following


# Other suites

INT8 = "--compress", "quantize: int8"
LEARNS = "--learner", "learning_starts", "50", "batch_size", "16"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("needs", "options", "length"),
    [
        (
            "shimmy",
            "--task cartpole-balance --algorithm d4pg --network 2x16 --steps 300 "
            "--env-kwargs max_steps 50",
            50,
        ),
        (
            "ale_py",
            "--task pong --network net3 --steps 200 --env-kwargs max_steps 60 clip_reward true",
            60,
        ),
    ],
)
def test_a_task_of_another_suite(tmp_path, needs, options, length):
    pytest.importorskip(needs)
    more = LEARNS if "d4pg" in options else ()
    trained(tmp_path, 300, *options.split(), *more, *INT8)
    final = rows_of(tmp_path, "final")[0]
    assert final["compressed"] is not None and final["full"]["mean_length"] == length


@pytest.mark.slow
def test_claimed_success_stands_beside_true_success(tmp_path, capsys):
    pytest.importorskip("warp")
    task = ["--task", "PandaHover-v0", "--algorithm", "d4pg", "--network", "2x16", *LEARNS]
    trained(tmp_path, 60, *task, "--trajectory", "10", "--actors", "1")
    said = capsys.readouterr().out
    assert "claimed success: " in said and "true success: " in said
    assert "Claimed and true success" in (tmp_path / "report.html").read_text()
    rows = [row for row in rows_of(tmp_path, "train") if row["true"] is not None]
    assert rows and all(row["claimed"] is not None for row in rows)
    assert summary_of(tmp_path)["steps"] >= 60
