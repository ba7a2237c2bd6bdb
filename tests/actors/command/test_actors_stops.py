"""vinoreward actors goes on after any stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from actor_runs import FEW, SMALL, rows_of, summary_of, trained
from waiting import until

from vinoreward_actors.command.run import read_rows
from vinoreward_training.cli import main


def begin(out: Path, *more: str) -> subprocess.Popen[str]:
    arguments = [
        sys.executable, "-m", "vinoreward_training.cli", "actors", *SMALL, *FEW,
        "--steps", "400000", "--evaluate-every", "0", "--compress", "quantize: int8",
        "--checkpoint-seconds", "0.5",
    ]  # fmt: skip
    return subprocess.Popen(
        [*arguments, "--out", str(out), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )


def wait_for_checkpoint(out: Path, run: subprocess.Popen[str], seconds: float = 120.0) -> None:
    """Wait for a checkpoint that was written after something had been learned and compressed."""
    limit = time.monotonic() + seconds
    checkpoint = out / "checkpoint.pt"
    learned: float | None = None
    while run.poll() is None and time.monotonic() < limit:
        # A compressor that still starts has no state to write down.
        if learned is None and any(row["compressor"] for row in rows_of(out, "train")):
            learned = time.time()
        if learned is not None and checkpoint.is_file() and checkpoint.stat().st_mtime > learned:
            return
        time.sleep(0.05)
    run.kill()
    pytest.fail(run.communicate(timeout=10)[0])


def finish(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = read_rows(out)[-1]["step"]
    assert before > 0
    steps = str(before + 400)
    assert main(["actors", "--resume", "--no-progress", "--out", str(out), "--steps", steps]) == 0
    said = capsys.readouterr().out
    assert "resuming from step" in said
    rows = read_rows(out)
    steps_seen = [row["step"] for row in rows if row["kind"] == "train"]
    assert steps_seen == sorted(set(steps_seen)) and steps_seen[-1] >= before
    seconds = [row["seconds"] for row in rows if row["kind"] == "train"]
    assert seconds == sorted(seconds)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local", "ray"])
def test_it_goes_on_after_being_killed_and_after_ctrl_c(
    engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C is sent to all processes, as terminals do it.

    Ray has a handler of its own for SIGTERM, which job schedulers send.
    """
    out = tmp_path / "run"
    if engine == "ray":
        pytest.importorskip("ray")
        run = begin(out, "--engine", engine)
        wait_for_checkpoint(out, run)
        run.send_signal(signal.SIGTERM)
    else:
        run = begin(out)
        wait_for_checkpoint(out, run)
        time.sleep(0.7)  # into what no checkpoint holds yet
        run.kill()
        run.communicate(timeout=60)
        run = begin(out, "--resume")
        wait_for_checkpoint(out, run)
        os.killpg(run.pid, signal.SIGINT)
    said = run.communicate(timeout=60)[0]
    assert run.returncode == 130, said
    assert engine == "ray" or "resuming from step" in said
    assert f"Continue with: vinoreward actors --resume --out {out}" in said
    assert "Traceback" not in said
    assert (out / "compressor.npz").is_file()
    finish(out, capsys)


@pytest.mark.slow
def test_it_goes_on_after_ctrl_c_in_the_last_evaluation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    run = begin(out, "--steps", "300", "--final-episodes", "100000")
    until((out / "compressed.json").is_file, 120.0)
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
def test_a_resumed_run_keeps_what_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    trained(out, 500)
    capsys.readouterr()
    assert main(["actors", "--resume", "--out", str(out), "--network", "2x64"]) == 1
    assert "network='2x64'" in capsys.readouterr().err
    go_on = ["actors", "--resume", "--out", str(out), "--steps", "800"]
    assert main([*go_on, "--learner", "gamma", "0.5"]) == 1
    assert "'gamma': 0.5" in capsys.readouterr().err
    # As an error that says "lower the learning rate" tells its reader to.
    assert main([*go_on, "--learner", "learning_rate", "0.00001"]) == 0
    assert yaml.safe_load((out / "config.yaml").read_text())["learner"] == {"learning_rate": 1e-5}
    assert summary_of(out)["steps"] >= 800


@pytest.mark.slow
def test_a_run_that_arrived_only_evaluates_when_it_is_gone_on_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As after Ctrl-C in the last evaluation: it has no summary, and the row that says so."""
    out = tmp_path / "run"
    before = trained(out, 100_000, "--target", "5", every=500)
    # Of the weights that reached it; what was learned while they were evaluated comes on top.
    assert 500 <= before["reached_at"] <= before["steps"] < 100_000
    assert main(["actors", "--resume", "--out", str(out)]) == 0
    (out / "summary.json").unlink()
    capsys.readouterr()
    assert main(["actors", "--resume", "--out", str(out)]) == 0
    assert "There is no breakdown" in capsys.readouterr().out
    after = summary_of(out)
    assert (after["steps"], after["reached_at"]) == (before["steps"], before["reached_at"])
    # And what it says then leads on.
    assert main(["actors", "--resume", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "without its --target, which it reached" in said
    following = said.split("next:")[1].split()[1:]
    assert following[-2:] == ["--target", "None"]
    steps = ["--steps", str(before["steps"] + 300)]
    assert main([*following[:-4], *steps, "--target", "None"]) == 0
    assert summary_of(out)["steps"] > before["steps"]


@pytest.mark.slow
def test_a_target_is_looked_at_in_the_last_evaluation_too(tmp_path: Path) -> None:
    out = tmp_path / "run"
    summary = trained(out, 500, "--target", "5")
    assert summary["reached_at"] == summary["steps"]


@pytest.mark.slow
def test_a_replay_of_stable_baselines3_takes_more_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    trained(out, 600, "--algorithm", "sb3-dqn")
    capsys.readouterr()
    assert main(["actors", "--resume", "--out", str(out)]) == 0
    following = capsys.readouterr().out.split("next:")[1].split()[1:]
    assert main(following) == 0
    assert summary_of(out)["steps"] >= 1200


@pytest.mark.slow
def test_evaluations_do_not_wait_for_an_update_that_never_comes(tmp_path: Path) -> None:
    """The updates of Stable-Baselines3 jump over the multiples of a push period."""
    pendulum = ["--task", "Pendulum-v1", "--algorithm", "sb3-sac", "--network", "1x8"]
    trained(tmp_path, 800, *pendulum, "--trajectory", "8", "--push-period", "8", every=200)
    assert rows_of(tmp_path, "evaluation")


@pytest.mark.slow
def test_the_same_weights_are_evaluated_once(tmp_path: Path) -> None:
    """Here nothing is pushed after the first; the step is that at which it was."""
    trained(tmp_path, 900, "--push-period", "1000", every=300)
    assert [row["step"] for row in rows_of(tmp_path, "evaluation")] == [0]
