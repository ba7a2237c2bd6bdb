"""The callback of a training: tables, evaluations, checkpoints, progress, a clean stop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
from tqdm import tqdm

from vinoreward.errors import RunFolderError
from vinoreward.files import read_json, write_json
from vinoreward.rewards.alarms import FalseClaimAlarm, RateAlarm
from vinoreward.saved_state import shown
from vinoreward.wrappers.sb3 import ClaimedVsTrue
from vinoreward_training.configs import TrainConfig
from vinoreward_training.policy.checkpoint import save_checkpoint
from vinoreward_training.policy.evaluate import Evaluation, evaluate
from vinoreward_training.runs.next_command import again
from vinoreward_training.runs.report import (
    EPISODE_COLUMNS,
    EVALUATION_COLUMNS,
    Row,
    read_table,
    write_table,
)
from vinoreward_training.tasks.environments import naming, truth_reader

EVAL_SEED = 10_000
"""First seed of evaluations, far from those of training."""
LONG_EVALUATIONS = 60.0
"""Seconds of evaluations without which nothing is said about them."""
CLOCK = "clock.json"
"""Seconds of a run up to its checkpoint."""


def read_clock(folder: Path) -> tuple[float, float]:
    """Return the seconds of learning and of evaluating up to the checkpoint; 0 if not recorded."""
    try:
        clock = read_json(folder / CLOCK)
        learning, evaluating = float(clock["seconds"]), float(clock["evaluation_seconds"])
        if not (0 <= learning < math.inf and 0 <= evaluating < math.inf):
            raise ValueError(f"found {learning} and {evaluating} seconds")
        return learning, evaluating
    except FileNotFoundError:
        return 0.0, 0.0
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise RunFolderError(
            f"{folder / CLOCK} cannot be read ({shown(error)}). Expected the seconds that a run "
            "has learned; remove the file to continue without them."
        ) from error


class Solved(Exception):
    """Ends a training whose task is solved."""


class Alarmed(Exception):
    """Ends a training whose claims are no longer true successes."""


class RunCallback(ClaimedVsTrue):
    """Writes the run folder while an SB3 model learns; ``start`` is the steps before a resume.

    ``check_interrupt`` comes from :func:`~vinoreward.processes.interrupt_between`.
    """

    def __init__(
        self,
        folder: Path,
        evaluation_env: gym.Env[Any, Any],
        config: TrainConfig,
        *,
        check_interrupt: Callable[[Callable[[], None]], None],
        start: int = 0,
    ) -> None:
        alarm = None if config.on_alarm == "off" else FalseClaimAlarm()
        odd_alarm = None if alarm is None else RateAlarm()
        super().__init__(config.truth_key, alarm=alarm, odd_alarm=odd_alarm)
        self.folder = folder
        self.episodes += read_table(folder / "episodes.csv", EPISODE_COLUMNS, until=start)
        if alarm is not None and odd_alarm is not None:  # as they were when the run was stopped
            for row in self.episodes:
                if alarm.update(row["claimed"], row["true"]):
                    self.alarms.append(int(row["step"] or 0))
                if odd_alarm.update(row["odd"]):
                    self.odd_alarms.append(int(row["step"] or 0))
        self._alarms_before = len(self.alarms) + len(self.odd_alarms)
        self.evaluations: list[Row] = []
        self.evaluations += read_table(folder / "evaluations.csv", EVALUATION_COLUMNS, until=start)
        self._advised = False
        self.solved_at: int | None = None
        self.final: Evaluation | None = None
        self._seconds_before, self.evaluation_seconds = read_clock(folder) if start else (0.0, 0.0)
        self._began: float | None = None
        self._evaluation_env = evaluation_env
        self._config = config
        self._check_interrupt = check_interrupt
        self._next_evaluation = _next_multiple(start, config.eval_every)
        self._next_checkpoint = _next_multiple(start, config.checkpoint_every)
        self._last_checkpoint: int | None = start if start else None
        self.truth = truth_reader(config.truth_key, config.truth)
        self._bar = tqdm(
            total=config.timesteps, initial=start, unit="step", disable=not config.progress,
            desc="train",
        )  # fmt: skip

    @property
    def seconds(self) -> float:
        """Wall time of the training with its evaluations, including earlier processes."""
        now = 0.0 if self._began is None else time.perf_counter() - self._began
        return self._seconds_before + now

    def _on_training_start(self) -> None:
        self._began = time.perf_counter()

    def _on_step(self) -> bool:
        """Note finished episodes; stopping here would lose the step, which SB3 stores later."""
        self._bar.update(self.training_env.num_envs)
        before = len(self.episodes)
        super()._on_step()
        if len(self.episodes) > before:
            rates = {name: f"{value:.0%}" for name, value in self.rates().items()}
            self._bar.set_postfix(rates, refresh=False)
        return True

    def say(self, text: str) -> None:
        """Print above the progress bar."""
        tqdm.write(text)

    def warn(self, text: str) -> None:
        """Tell of an alarm above the progress bar."""
        self.say(text)

    def _on_rollout_start(self) -> None:
        """Evaluate, write a checkpoint or stop when due; every transition is in the buffer now."""
        if self.num_timesteps >= self._next_evaluation:
            self._next_evaluation = _next_multiple(self.num_timesteps, self._config.eval_every)
            self.evaluate_now()
        if self.num_timesteps >= self._next_checkpoint:
            self._next_checkpoint = _next_multiple(
                self.num_timesteps, self._config.checkpoint_every
            )
            self.checkpoint_now()
        self._check_interrupt(self._stopped)
        if self.solved_at is not None:
            raise Solved
        raised = len(self.alarms) + len(self.odd_alarms)
        if self._config.on_alarm == "stop" and raised > self._alarms_before:
            line = again("train", self.folder, *naming(self._config.env))
            self.say(f"Stopped at step {self.num_timesteps} by the alarm. Continue with: {line}")
            raise Alarmed

    def _stopped(self) -> None:
        self.checkpoint_now()
        print(f"\nStopped at step {self.num_timesteps}; the checkpoint is written.")

    def evaluate_now(self) -> None:
        """Evaluate; if the task looks solved, confirm it over the final number of episodes."""
        began = time.perf_counter()
        result = self._evaluated(self._config.eval_episodes, EVAL_SEED)
        if self.reaches_goal(result):
            result = self.evaluate_finally()
            if self.reaches_goal(result):
                self.solved_at, self.final = self.num_timesteps, result
        self._note_evaluation(result)
        self.evaluation_seconds += time.perf_counter() - began
        self._advise_on_evaluations()

    def _advise_on_evaluations(self) -> None:
        """Say once that long episodes make the evaluations take most of the time."""
        learning = self.seconds - self.evaluation_seconds
        if self._advised or self.evaluation_seconds < max(LONG_EVALUATIONS, learning):
            return
        self._advised = True
        self.say(
            f"Evaluations took {self.evaluation_seconds:.0f} s, learning {learning:.0f} s. "
            f"Fewer of them, or of fewer episodes: --eval-every {10 * self._config.eval_every}, "
            f"--eval-episodes {max(1, self._config.eval_episodes // 4)}."
        )

    def evaluate_finally(self, *, note: bool = False) -> Evaluation:
        """Evaluate over the final number of episodes, with seeds that no other evaluation uses.

        ``note`` adds it to the table of evaluations.
        """
        seed = EVAL_SEED + self._config.eval_episodes
        result = self._evaluated(self._config.final_episodes, seed)
        if note:
            self._note_evaluation(result)
        return result

    def _evaluated(self, episodes: int, seed: int) -> Evaluation:
        def show(done: int) -> None:
            self._bar.set_description(f"evaluate {done} of {episodes}")

        show(0)
        try:
            return evaluate(
                self.model, self._evaluation_env, episodes, seed, truth=self.truth, ended=show
            )
        finally:
            self._bar.set_description("train")

    def reaches_goal(self, result: Evaluation) -> bool:
        """Return whether the true success is high enough to stop."""
        goal = self._config.stop_when_solved
        return goal is not None and result.true is not None and result.true.value >= goal

    def _note_evaluation(self, result: Evaluation) -> None:
        rates = {"claimed": result.claimed, "true": result.true}
        known = {name: rate for name, rate in rates.items() if rate is not None}
        self.evaluations.append(
            {
                "step": self.num_timesteps,
                "episodes": next((rate.trials for rate in known.values()), None),
                **{name: None if rate is None else rate.value for name, rate in rates.items()},
                "mean_return": result.mean_return,
                "mean_length": result.mean_length,
            }
        )
        for name, rate in known.items():
            self.logger.record(f"eval/{name}_success", rate.value)
        self.logger.record("eval/mean_return", result.mean_return)
        self.logger.dump(self.num_timesteps)
        self.write_tables()

    def checkpoint_now(self) -> None:
        """Write the tables, then the checkpoint that refers to them."""
        if self._last_checkpoint == self.num_timesteps:
            return
        self.write_tables()
        save_checkpoint(self.folder / "checkpoint.pt", self.model, replay=self._config.save_replay)
        # After the checkpoint: steps that are repeated must not be timed twice.
        write_json(
            self.folder / CLOCK,
            {"seconds": self.seconds, "evaluation_seconds": self.evaluation_seconds},
        )
        self._last_checkpoint = self.num_timesteps

    def write_tables(self) -> None:
        """Write ``episodes.csv`` and ``evaluations.csv``."""
        write_table(self.folder / "episodes.csv", EPISODE_COLUMNS, self.episodes)
        write_table(self.folder / "evaluations.csv", EVALUATION_COLUMNS, self.evaluations)

    def close(self) -> None:
        """Close the progress bar."""
        self._bar.close()


def _next_multiple(value: int, step: int) -> int:
    return (value // step + 1) * step
