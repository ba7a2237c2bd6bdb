"""Training in processes whose pictures a shared service judges; their threads."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import toy_environments
from many_runs import TOY, assert_equal, one_by_one, together, toy_config
from service_children import kill, nothing_left, own_folder, services
from train_runs import config

from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError
from vinoreward_training.configs import PlayConfig
from vinoreward_training.play.command import play
from vinoreward_training.policy.train import SETTINGS, crowd, train
from vinoreward_training.tasks.many import make_envs

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the service needs Linux"),
    # Python warns of every fork of a process with threads, which this one may have by now.
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return toy_environments.save_toy_bundle(tmp_path_factory.mktemp("bundle") / "toy")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with own_folder(tmp_path, monkeypatch) as folder:
        yield folder


@pytest.mark.slow
def test_environments_that_ask_a_service_pay_what_single_ones_pay(
    folder: Path, bundle: Bundle
) -> None:
    given = {"bundle": str(bundle.path), "wrap_bundle": True, "hold": 2, "step_reward": -0.5}
    actions = (np.random.default_rng(3).random((20, 3)) < 0.65).astype(int)
    found = together(3, actions, TOY, start_method="forkserver", service="shared", **given)
    assert_equal(found, one_by_one(3, actions, TOY, **given))
    assert any(step[3] for steps in found for step in steps)


@pytest.mark.slow
def test_a_service_that_is_killed_changes_no_reward(folder: Path, bundle: Bundle) -> None:
    given = {"bundle": str(bundle.path), "wrap_bundle": True}
    rewards = []
    for killed in (False, True):
        chosen = {"service": "shared"} if killed else {"processes": False}
        with contextlib.closing(make_envs(2, TOY, **chosen, **given)) as env:
            env.seed(1)
            env.reset()
            rows = []
            for index in range(8):
                if killed and index in (2, 5):
                    for pid in services(folder):
                        kill(pid)
                rows.append(env.step(np.array([1, 0]))[1].tolist())
            rewards.append(rows)
    assert rewards[0] == rewards[1]


@pytest.mark.slow
def test_a_training_through_a_service_ends_resumes_and_plays(
    folder: Path, tmp_path: Path, bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    chosen = {"vec_env": "subproc", "service": "shared", "start_method": "fork"}
    result = train(toy_config(out, bundle, **chosen))
    assert result.steps == 120 and result.final.claimed is not None
    said = capsys.readouterr().out
    assert "3 environments in processes of their own, each of which computes on 1 thread" in said
    assert "one service runs the network for all" in said
    assert train(SETTINGS.of(out=out, resume=True, timesteps=180, progress=False)).steps == 180
    assert nothing_left(folder, 30)
    played = play(PlayConfig(run=out, env=TOY, episodes=2, film=0, progress=False))
    assert played.evaluation.claimed is not None
    assert not services(folder)  # which belongs to the training, not to its policy


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "by_user"), [("forkserver", None), ("spawn", "2"), ("fork", None)]
)
def test_each_process_computes_on_one_thread_unless_the_user_says_otherwise(
    method: str, by_user: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    if by_user is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", by_user)
    before = torch.get_num_threads()
    torch.set_num_threads(3)  # which a forked process would inherit
    try:
        made = make_envs(2, "counting_threads:CountsThreads-v0", start_method=method)
        with contextlib.closing(made) as env:
            expected = by_user or "1"
            assert env.env_method("threads") == [(int(expected), expected, expected)] * 2
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_what_is_said_of_processes_and_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert crowd(2, 4, service=False).endswith("computes on 1 thread.")
    said = crowd(16, 2, service=True)
    assert "one service runs the network for all" in said and "share 2 cores" in said
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert "4 threads, as OMP_NUM_THREADS says" in crowd(2, 4, service=False)


def test_a_service_without_a_network_is_refused(tmp_path: Path, bundle: Bundle) -> None:
    with pytest.raises(ConfigError, match=r"--service shared.*no network.*leave --service out"):
        train(toy_config(tmp_path / "a", bundle, service="shared", backend="oracle"))
    with pytest.raises(ConfigError, match=r"--service shared.*no network"):
        train(config(tmp_path / "b", env=TOY, algorithm="DQN", service="shared"))
    with pytest.raises(ConfigError, match="share"):
        train(toy_config(tmp_path / "c", bundle, service="share"))
