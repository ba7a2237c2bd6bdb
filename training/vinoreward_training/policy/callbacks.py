"""The callback of a training: tables, evaluations, checkpoints, progress, a clean stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
from tqdm import tqdm

from vinoreward.errors import DatasetError
from vinoreward.rewards.alarms import TESTS, Ended, RateAlarm, TrustMonitor
from vinoreward.rewards.precision import PrecisionBound, PrecisionCertificate
from vinoreward.wrappers.sb3 import ClaimedVsTrue
from vinoreward_training.configs import TrainConfig
from vinoreward_training.data.tables import write_table
from vinoreward_training.policy.checkpoint import resume_train, save_checkpoint
from vinoreward_training.policy.claims import ClaimSample
from vinoreward_training.policy.evaluate import Evaluation, evaluate, evaluate_batch
from vinoreward_training.runs.next_command import command
from vinoreward_training.runs.report import (
    EPISODE_COLUMNS,
    EVALUATION_COLUMNS,
    Row,
    read_table,
)
from vinoreward_training.sb3 import BatchedVecEnv
from vinoreward_training.tasks.environments import truth_reader

EVAL_SEED = 10_000
"""First seed of evaluations, far from those of training."""
ALARMS = "alarms.csv"
"""Steps at which alarms were raised, with a 1 in the column of the test."""
LABELS_EVERY = 20.0
"""Seconds between two readings of the labels."""


class TrainingEnded(Exception):
    """Ends a training whose task is solved, or by an alarm."""


class RunCallback(ClaimedVsTrue):
    """Writes the run folder while an SB3 model learns.

    ``start`` is the steps before a resume, ``clock`` the seconds of training and of evaluating.
    The final evaluation is in ``final_env``, by default where all are.
    ``check_interrupt`` comes from :func:`~vinoreward.processes.interrupt_between`.
    """

    def __init__(
        self,
        folder: Path,
        evaluation_env: gym.Env[Any, Any] | BatchedVecEnv,
        config: TrainConfig,
        *,
        check_interrupt: Callable[[Callable[[], None]], None],
        start: int = 0,
        clock: tuple[float, float] = (0.0, 0.0),
        final_env: gym.Env[Any, Any] | BatchedVecEnv | None = None,
    ) -> None:
        tested = config.on_alarm != "off"
        super().__init__(truth_reader(config.truth).key)
        self.folder = folder
        self._config = config
        self.trust = TrustMonitor(
            false=RateAlarm() if tested else None,
            ood=RateAlarm() if tested else None,
            precision=config.min_precision,
        )
        self.claims = ClaimSample(
            folder,
            config.seed,
            until=start,
            every=config.label_every,
            last=config.last_claims,
        )
        self._claim_count = 0
        self._paused = False
        """Whether the reward abstains."""
        self._next_labels = 0.0
        self._take_over(start)
        self._alarms_before = self.alarm_count
        self.evaluations: list[Row] = []
        self.evaluations += read_table(folder / "evaluations.csv", EVALUATION_COLUMNS, until=start)
        self.solved_at: int | None = None
        self.final: Evaluation | None = None
        self._seconds_before, self.evaluation_seconds = clock
        self._began: float | None = None
        self._evaluation_env = evaluation_env
        self._final_env = evaluation_env if final_env is None else final_env
        self._check_interrupt = check_interrupt
        self._next_evaluation = _next_multiple(start, config.eval_every)
        self._checkpoint_every = max(1000, (config.timesteps or 0) // 20)
        self._next_checkpoint = _next_multiple(start, self._checkpoint_every)
        self._last_checkpoint: int | None = start if start else None
        self.truth = truth_reader(config.truth)
        self._bar = tqdm(
            total=config.timesteps, initial=start, unit="step", desc="train", disable=None
        )

    def _take_over(self, start: int) -> None:
        """Bring the alarms to where they were when the run was stopped."""
        self.episodes += read_table(self.folder / "episodes.csv", EPISODE_COLUMNS, until=start)
        for row in self.episodes:
            self._claim_count += bool(row["claimed"])
            length = None if row["length"] is None else int(row["length"])
            ended = Ended(row["claimed"], row["true"], row["ood"], length)
            for alarm in self.trust.add(ended):
                self.raised[alarm.test].append(int(row["step"] or 0))
        for row in read_table(self.folder / ALARMS, ("step", "precision"), until=start):
            if row["precision"]:
                self.raised["precision"].append(int(row["step"] or 0))
        self.trust.raised["precision"] = len(self.raised["precision"])
        if self.raised["precision"] and (found := self._labelled()) is not None:
            # Printed before: the same labels are no new alarm.
            self.trust.labelled(found)
            self.trust.raised["precision"] = len(self.raised["precision"])

    @property
    def seconds(self) -> float:
        """Wall time of the training with its evaluations, including earlier processes."""
        now = 0.0 if self._began is None else time.perf_counter() - self._began
        return self._seconds_before + now

    def _on_training_start(self) -> None:
        self._began = time.perf_counter()
        self._pause_or_not()

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
        if len(self.claims):
            self.claims.write()
            # In this order few labels say much of all claims.
            line = command("label", "--run", self.folder)
            self.say(f"Images of the claims: {line}")

    def _on_rollout_start(self) -> None:
        """Evaluate, write a checkpoint or stop when due; every transition is in the buffer now."""
        if self.num_timesteps >= self._next_evaluation:
            self._next_evaluation = _next_multiple(self.num_timesteps, self._config.eval_every)
            self.evaluate_now()
        if self.num_timesteps >= self._next_checkpoint:
            self._next_checkpoint = _next_multiple(self.num_timesteps, self._checkpoint_every)
            self.checkpoint_now()
        self._check_interrupt(self._stopped)
        self.read_labels()
        if self.solved_at is not None:
            raise TrainingEnded
        if self.alarm_count > self._alarms_before:
            self._alarmed()

    def _alarmed(self) -> None:
        """Stop after an alarm, if configured."""
        self._alarms_before = self.alarm_count
        if self._config.on_alarm == "stop":
            line = resume_train(self.folder, self._config.env, self._config.truth)
            self.say(f"Stopped at step {self.num_timesteps} by the alarm. Continue with: {line}")
            raise TrainingEnded

    def read_labels(self, *, now: bool = False) -> None:
        """Read what people have labelled meanwhile, every few seconds or ``now``."""
        if not now and time.perf_counter() < self._next_labels:
            return
        self._next_labels = time.perf_counter() + LABELS_EVERY
        found = self._labelled()
        if found is None or self._config.on_alarm == "off":
            return
        self.tell(self.trust.labelled(found))
        for name, value in self.trust.readings().items():
            self.logger.record(f"trust/{name}", value)
        for line in self.precision_facts().items():
            self.say(": ".join(line))
        self._pause_or_not()

    def precision_facts(self) -> dict[str, str]:
        """Return what the labels say of the claims, to be shown; empty without labels."""
        named = {"precision": "all", "last_precision": "the last"}
        return {
            f"successes among {named[name]} claims": f"{bound.low:.0%} to {bound.high:.0%} with "
            f"95 % confidence, as {bound.successes} of {bound.labels} labelled ones are"
            for name, bound in self.trust.bounds.items()
        }

    def _pause_or_not(self) -> None:
        """Have the reward abstain while the claims' precision is too low, if configured."""
        paused = self._config.on_low_precision == "pause" and self.trust.low_precision
        if paused == self._paused:
            return
        self._paused = paused
        _pause(self.training_env, paused)
        self.say(
            f"The reward abstains from step {self.num_timesteps} on: no success is claimed, until "
            "labels show a higher precision."
            if paused
            else f"The reward claims successes again from step {self.num_timesteps} on."
        )

    def _labelled(self) -> PrecisionBound | PrecisionCertificate | None:
        """Return what the labels say, None if they say nothing new; tell of damaged ones."""
        try:
            if self._config.label_every is None:
                return self.claims.labelled()
            return self.claims.certificate(self._claim_count)
        except DatasetError as error:
            self.say(str(error))
            return None

    def _note(self, info: Mapping[str, Any], ood: bool | None = None) -> None:
        super()._note(info, ood)
        # Keep the image of the episode's claim if the sample wants it.
        row, episode = self.episodes[-1], len(self.episodes) - 1
        if not row["claimed"]:
            return
        claim = self._claim_count
        self._claim_count += 1
        drawn = self.claims.wants(episode, claim)
        if drawn is None:
            return
        infos = self.locals["infos"]
        number = next(at for at, one in enumerate(infos) if one is info)
        image = _claimed_image(self.training_env, number)
        if image is not None and image.ndim == 3:
            self.claims.add(
                image,
                drawn,
                step=self.num_timesteps,
                episode=episode,
                number=claim,
                probability=info.get("reward_prob"),
                ood_score=info.get("reward_ood"),
                true=None if row["true"] is None else int(row["true"]),
            )

    def _stopped(self) -> None:
        self.checkpoint_now()
        print(f"\nStopped at step {self.num_timesteps}; the checkpoint is written.")

    def evaluate_now(self) -> None:
        """Evaluate; if it reaches the goal, confirm it over the final number of episodes."""
        began = time.perf_counter()
        result = self._evaluated(self._evaluation_env, self._config.eval_episodes, EVAL_SEED)
        if self.reaches_goal(result):
            result = self.evaluate_finally()
            if self.reaches_goal(result):
                self.solved_at, self.final = self.num_timesteps, result
        self._note_evaluation(result)
        self.evaluation_seconds += time.perf_counter() - began

    def evaluate_finally(self, *, note: bool = False) -> Evaluation:
        """Evaluate over the final number of episodes, with seeds that no other evaluation uses.

        ``note`` adds it to the table of evaluations.
        """
        seed = EVAL_SEED + self._config.eval_episodes
        result = self._evaluated(self._final_env, self._config.final_episodes, seed)
        if note:
            self._note_evaluation(result)
        return result

    def _evaluated(self, env: Any, episodes: int, seed: int) -> Evaluation:
        def show(done: int) -> None:
            self._bar.set_description(f"evaluate {done} of {episodes}")

        show(0)
        run: Any = evaluate_batch if isinstance(env, BatchedVecEnv) else evaluate
        found: Evaluation = run(self.model, env, episodes, seed, truth=self.truth, ended=show)
        self._bar.set_description("train")
        return found

    def reaches_goal(self, result: Evaluation) -> bool:
        """Return whether the true success is high enough to stop."""
        goal = self._config.stop_when_solved
        return goal is not None and result.true is not None and result.true.value >= goal

    def _note_evaluation(self, result: Evaluation) -> None:
        row: dict[str, Any] = dict.fromkeys(EVALUATION_COLUMNS)
        row["step"] = self.num_timesteps
        for name, rate in (("claimed", result.claimed), ("true", result.true)):
            if rate is not None:
                row |= {"episodes": rate.trials, name: rate.value}
                self.logger.record(f"eval/{name}_success", rate.value)
        row |= {"mean_return": result.mean_return, "mean_length": result.mean_length}
        self.evaluations.append(row)
        self.logger.record("eval/mean_return", result.mean_return)
        self.logger.dump(self.num_timesteps)
        self.write_tables()

    def checkpoint_now(self) -> None:
        """Write the tables, then the checkpoint that refers to them."""
        if self._last_checkpoint == self.num_timesteps:
            return
        self.write_tables()
        self.claims.write()  # not more often: the sample would soon replace them
        clock = self.seconds, self.evaluation_seconds
        save_checkpoint(self.folder / "checkpoint.pt", self.model, clock)
        self._last_checkpoint = self.num_timesteps

    def write_tables(self) -> None:
        """Write ``episodes.csv``, ``evaluations.csv`` and ``alarms.csv``."""
        write_table(self.folder / "episodes.csv", EPISODE_COLUMNS, self.episodes)
        write_table(self.folder / "evaluations.csv", EVALUATION_COLUMNS, self.evaluations)
        raised = sorted((step, test) for test, steps in self.raised.items() for step in steps)
        if raised:
            rows: list[Row] = [{"step": step, test: 1} for step, test in raised]
            write_table(self.folder / ALARMS, ("step", *TESTS), rows)

    def close(self) -> None:
        """Close the progress bar."""
        self._bar.close()


def _next_multiple(value: int, step: int) -> int:
    return (value // step + 1) * step


def _claimed_image(env: Any, index: int) -> Any:
    """Return the image of an environment's last claim, ``(H, W, 3)`` RGB; None without any.

    It may be that of an earlier episode if the last one claimed nothing.
    """
    own = getattr(env, "claimed_image", None)  # a wrapper finds that of wrappers inside
    if own is not None:
        return own(index)
    known = env.has_attr("claimed_image")
    return env.env_method("claimed_image", indices=[index])[0] if known else None


def _pause(env: Any, paused: bool) -> None:
    """Have the learned reward of all environments abstain, or no longer."""
    # A wrapper finds that of wrappers inside; a batch is one.
    own = getattr(env, "pause", None)
    if own is None and isinstance(env, BatchedVecEnv):
        own = env.get_attr("pause", 0)[0]
    if own is None:
        env.env_method("pause", paused)
    else:
        own(paused)
