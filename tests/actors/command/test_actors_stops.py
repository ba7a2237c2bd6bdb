"""vinoreward actors goes on after any stop."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
import yaml
from actor_runs import FEW, SMALL, rows_of, summary_of, trained
from waiting import until

from vinoreward_actors.command.run import read_rows
from vinoreward_training.cli import main

pytestmark = pytest.mark.slow
Capture = pytest.CaptureFixture[str]


def begin(out, *more):
    options = ["--steps", "400000", "--evaluate-every", "0", "--checkpoint-seconds", "0.5"]
    command = [sys.executable, "-m", "vinoreward_training.cli", "actors", *SMALL, *FEW, *options]
    return subprocess.Popen(
        [*command, "--compress", "quantize: int8", "--out", str(out), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )


def wait_for_checkpoint(out, run, seconds=120.0):
    """Wait for a checkpoint that was written after something had been learned and compressed."""
    limit = time.monotonic() + seconds
    checkpoint = out / "checkpoint.pt"
    learned = None
    while run.poll() is None and time.monotonic() < limit:
        # A compressor that still starts has no state to write down.
        if learned is None and any(row["compressor"] for row in rows_of(out, "train")):
            learned = time.time()
        if learned is not None and checkpoint.is_file() and checkpoint.stat().st_mtime > learned:
            return
        time.sleep(0.05)
    run.kill()
    pytest.fail(run.communicate(timeout=10)[0])


@pytest.mark.parametrize("engine", ["local", "ray"])
def test_it_goes_on_after_being_killed_and_after_ctrl_c(engine, tmp_path, capsys):
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
        children = psutil.Process(run.pid).children(recursive=True)
        os.killpg(run.pid, signal.SIGINT)
    said = run.communicate(timeout=60)[0]
    assert run.returncode == 130, said
    assert f"Continue with: vinoreward actors --resume --out {out}" in said
    assert "Traceback" not in said
    assert (out / "compressor.npz").is_file()
    if engine == "local":
        assert "resuming from step" in said
        assert psutil.wait_procs(children, timeout=60)[1] == []
    before = read_rows(out)[-1]["step"]
    assert before > 0
    steps = str(before + 400)
    assert main(["actors", "--resume", "--out", str(out), "--steps", steps]) == 0
    assert "resuming from step" in capsys.readouterr().out
    rows = rows_of(out, "train")
    seen = [row["step"] for row in rows]
    assert seen == sorted(set(seen)) and seen[-1] >= before
    assert [row["seconds"] for row in rows] == sorted(row["seconds"] for row in rows)


def test_it_goes_on_after_ctrl_c_in_the_last_evaluation(tmp_path, capsys):
    run = begin(tmp_path, "--steps", "300", "--evaluation-episodes", "30000")
    until((tmp_path / "compressed.json").is_file, 120.0)
    run.send_signal(signal.SIGINT)
    said = run.communicate(timeout=60)[0]
    assert run.returncode == 130, said
    assert f"Continue with: vinoreward actors --resume --out {tmp_path}" in said
    assert "Traceback" not in said
    again = ["actors", "--resume", "--out", str(tmp_path), "--evaluation-episodes", "2"]
    assert main(again) == 0
    assert "full precision: return" in capsys.readouterr().out
    assert len(rows_of(tmp_path, "final")[-1]["seeds"]) == 6


def test_a_resumed_run_keeps_what_it_was(tmp_path, capsys):
    trained(tmp_path, 500)
    capsys.readouterr()
    go_on = ["actors", "--resume", "--out", str(tmp_path), "--steps", "800"]
    for options, said in (
        (("--network", "2x64"), "--network '2x64'"),
        (("--learner", "gamma", "0.5"), "'gamma': 0.5"),
    ):
        assert main([*go_on, *options]) == 1
        assert said in capsys.readouterr().err
    # As an error that says "lower the learning rate" tells its reader to.
    assert main([*go_on, "--learner", "learning_rate", "0.00001"]) == 0
    config = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert config["learner"] == {"learning_rate": 1e-5}
    assert summary_of(tmp_path)["steps"] >= 800


def test_a_run_that_arrived_only_evaluates_when_it_is_gone_on_with(tmp_path, capsys):
    """As after Ctrl-C in the last evaluation: it has no summary, and the row that says so."""
    again = ["actors", "--resume", "--out", str(tmp_path)]
    before = trained(tmp_path, 100_000, "--target", "5", every=500)
    # Of the weights that reached it; what was learned while they were evaluated comes on top.
    assert 500 <= before["reached_at"] <= before["steps"] < 100_000
    (tmp_path / "summary.json").unlink()
    capsys.readouterr()
    assert main(again) == 0
    assert "There is no breakdown" in capsys.readouterr().out
    after = summary_of(tmp_path)
    assert (after["steps"], after["reached_at"]) == (before["steps"], before["reached_at"])
    # And what it says then leads on.
    assert main(again) == 0
    said = capsys.readouterr().out
    assert "without its --target, which it reached" in said
    following = said.split("next:")[1].split()[1:]
    assert following[-2:] == ["--target", "None"]
    steps = ["--steps", str(before["steps"] + 300)]
    assert main([*following[:-4], *steps, "--target", "None"]) == 0
    assert summary_of(tmp_path)["steps"] > before["steps"]


def test_a_target_is_looked_at_in_the_last_evaluation_too(tmp_path):
    summary = trained(tmp_path, 500, "--target", "5")
    assert summary["reached_at"] == summary["steps"]


def test_the_same_weights_are_evaluated_once(tmp_path):
    """Of 45 updates the 23rd is pushed, after 460 steps; only the second evaluation has news."""
    one = "--learner", "trajectories", "1"
    trained(tmp_path, 900, "--push-period", "23", *one, every=300)
    assert [row["step"] for row in rows_of(tmp_path, "evaluation")] == [460]
