"""``vinoreward reward``: from an environment, or photographs, to a reward that was tested.

Runs our own commands with one task; each stage continues where it was stopped.
"""

from __future__ import annotations

import dataclasses
import shutil
import time
from pathlib import Path
from typing import Any

from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError, TooFewNegativesError
from vinoreward.rewards.calibration import rate_supported
from vinoreward_training.audit.command import run as run_audit
from vinoreward_training.capture.command import SETTINGS as CAPTURE
from vinoreward_training.capture.command import run as run_capture
from vinoreward_training.classifier.finetune import USELESS
from vinoreward_training.classifier.finetune import run as run_finetune
from vinoreward_training.configs import AuditConfig, FinetuneConfig, MendConfig, RewardConfig
from vinoreward_training.configs.task import Task
from vinoreward_training.data.dataset_files import read_about
from vinoreward_training.data.provenance import HELD_OUT_SHARES
from vinoreward_training.labelling.sources import CLAIMS, TABLE, labels_by_truth
from vinoreward_training.mending.command import run as run_mend
from vinoreward_training.policy.train import SETTINGS as TRAIN
from vinoreward_training.policy.train import train
from vinoreward_training.runs.next_command import bundle_name, command, resume_command
from vinoreward_training.runs.report import Section, configuration, write_report
from vinoreward_training.runs.run_folder import RunFolder
from vinoreward_training.runs.settings import Settings
from vinoreward_training.runs.stages import Facts, Stages, resumed
from vinoreward_training.tasks.environments import has_own_reward
from vinoreward_training.tasks.trust import trust_args

PILOT_EPISODES = 20
PILOT_IMAGES = 4 * PILOT_EPISODES
"""A capture keeps at most eight images of an episode; of most it keeps about four."""
CAPTURE_SHARE, FINETUNE_SHARE, TRAIN_SHARE = 0.25, 0.25, 0.3
"""Of the time, for the capture, for a training of the classifier, and for that of a policy."""
PIXELS_A_SECOND = 60 * 96 * 128
"""Of images that two cores train on; a classifier sees each once an epoch."""
EPOCHS = (3, 12)
FRAMES = (1_000, 20_000)
"""Fewest images that a threshold can be chosen by, and most that pay in such a time."""
STEPS = (2_000, 20_000)
"""Fewest steps that show something of a learner, and most."""
EVALUATIONS = {"eval_episodes": 5, "final_episodes": 20}
"""Few, as an episode of some environments takes longer than all of the learning."""
LEARNER_SECONDS = 0.03
"""Of a step of training, beside the environment's: its image, a gradient step, evaluations."""
FALSE_CLAIMS = 10
"""Fewest false claims from which a classifier is mended."""


def _checked(config: RewardConfig, before: RewardConfig | None) -> RewardConfig:
    if config.data is not None and config.policy is not None:
        raise ConfigError(
            field="policy",
            value=config.policy,
            expected="none with `data`, as photographs are not played",
            remedy="leave one of them out",
        )
    return config


SETTINGS = Settings(
    RewardConfig,
    fixed=("env", "env_kwargs", "truth", "image_source", "data", "policy", "seed"),
    check=_checked,
    place=lambda config: Path("runs") / bundle_name(config.data or config.env, ""),
)


class Reward:
    """The stages; each returns facts for the report and for the stages after it."""

    def __init__(self, config: RewardConfig, folder: Path) -> None:
        self.config, self.folder = config, folder
        self.data = config.data or folder / "data"
        self.classifier, self.policy = folder / "classifier", folder / "policy"
        self.mended = folder / "mended"

    @property
    def task(self) -> dict[str, Any]:
        """The task, by the options of every command that plays it."""
        return {one.name: getattr(self.config, one.name) for one in dataclasses.fields(Task)}

    def capture(self, frames: int) -> None:
        """Take so many images in all."""
        given = {**resumed(self.data), "trust_run": True}
        task = {} if given["resume"] else {**self.task, "policy": self.config.policy}
        run_capture(CAPTURE.of(**given, **task, frames=frames, seed=self.config.seed))

    def pilot(self) -> Facts:
        """Play a few episodes; tell what the time allows."""
        began = time.perf_counter()
        self.capture(PILOT_IMAGES)
        seconds = time.perf_counter() - began
        about = read_about(self.data)
        images, episodes = int(about["frames"]), int(about["episodes"])
        counts, steps = about["counts"], int(about.get("episode_steps") or 0)
        each = seconds / images
        low, high = FRAMES
        captured = 60 * self.config.minutes * CAPTURE_SHARE / each
        frames = int(max(low, min(high, captured, self._passes() / EPOCHS[0])))
        failing = episodes / images * frames * HELD_OUT_SHARES[0]
        rate = rate_supported(max(1, round(failing)))
        size = about["image"]
        lines = (
            f"{counts.get('success', 0)} of {images} images of {episodes} episodes are successes",
            f"{1000 * each:.0f} ms an image, {size['height']}x{size['width']} pixels",
            f"{frames} images in about {each * frames / 60:.0f} minutes; without an error they "
            f"support a false-positive rate of {rate:.2g} per episode",
        )
        print("\n".join(f"  {line}" for line in lines), flush=True)
        step = seconds / max(1, episodes * steps)
        return {"frames": frames, "step_seconds": step, "pilot": [*lines]}

    def _passes(self) -> float:
        """Return how many images a training of the classifier has time for."""
        size = read_about(self.data).get("image", {"height": 96, "width": 128})
        pixels = 60 * self.config.minutes * FINETUNE_SHARE * PIXELS_A_SECOND
        return pixels / (int(size["height"]) * int(size["width"]))

    def images(self, frames: int) -> Facts:
        """Take the images."""
        self.capture(frames)
        about = read_about(self.data)
        return {"images": about["frames"], "counts": about["counts"]}

    def finetune(self) -> Facts:
        """Train the classifier, and once more on more images if its verdict asks for them."""
        verdict = self._finetuned(self.classifier)
        first = {"verdict": verdict, "classifier": str(self.classifier)}
        wanted = verdict.get("frames")
        if verdict["level"] == "usable" or self.config.data is not None or not wanted:
            return first
        frames = int(read_about(self.data)["frames"])
        more = int(min(wanted, 3 * frames, self._passes() / EPOCHS[0]))
        if more <= frames:
            print(f"the verdict asks for {wanted} images, more than there is time for: --minutes")
            return first
        print(f"the verdict asks for {wanted} images: {more} are captured, then a second training")
        self.capture(more)
        second = self.folder / "classifier-2"
        return {"verdict": self._finetuned(second), "classifier": str(second)}

    def _finetuned(self, out: Path) -> dict[str, Any]:
        """Return the verdict on a classifier trained in ``out``."""
        name = bundle_name(self.config.out, "classifier")
        images = int(read_about(self.data).get("frames") or FRAMES[0])
        epochs = self._passes() / images
        common = {**resumed(out), "data": self.data, "name": name, "seed": self.config.seed}
        common["epochs"] = int(min(EPOCHS[1], max(EPOCHS[0], epochs)))
        try:
            run_finetune(FinetuneConfig(**common))
        except TooFewNegativesError as error:
            print(f"{error}\nThe rate that these images support is taken.")
            failing = sum(dict(read_about(self.data).get("counts", {})).values()) or 100
            rate = min(0.5, 2 * rate_supported(max(1, round(failing * HELD_OUT_SHARES[0] / 2))))
            run_finetune(FinetuneConfig(**common, target_fpr=rate))
        verdict: dict[str, Any] = Bundle.load(out / "bundle").spec.metrics["verdict"]
        return verdict

    def audit(self, bundle: Path) -> Facts:
        """Try to cheat the classifier."""
        out = self.folder / "audit"
        shutil.rmtree(out, ignore_errors=True)  # an audit that was stopped
        played: dict[str, Any] = {}
        if self.config.data is None:
            # The next stage learns.
            played = {**self.task, "policy": self.config.policy, "learn_steps": 0}
        try:
            status = run_audit(AuditConfig(bundle=str(bundle), data=self.data, out=out, **played))
        except TooFewNegativesError as error:
            print(error)
            return {"audit": "not made: too few failures are new to the network"}
        return {"audit": "safe" if status == 0 else "not safe: see audit/report.html"}

    def train(self, bundle: Path, step_seconds: float) -> Facts:
        """Let a policy learn from the reward for a short time."""
        seconds = 60 * self.config.minutes * TRAIN_SHARE
        low, high = STEPS
        steps = int(min(high, max(low, seconds / (step_seconds + LEARNER_SECONDS))))
        given = {**resumed(self.policy), "trust_run": True}
        if not given["resume"]:
            given |= {**self.task, "bundle": str(bundle), "timesteps": steps, **EVALUATIONS}
            given["eval_every"] = max(500, steps // 4)
        # The useless ones ended before.
        result = train(TRAIN.of(**given, seed=self.config.seed, force=True))
        claimed = (self.policy / CLAIMS / TABLE).is_file()  # no file where nothing was claimed
        labels = labels_by_truth(self.policy) if claimed else []
        false = sum(label.label == "failure" for label in labels)
        final = result.final
        return {
            "steps": result.steps,
            "claimed": str(final.claimed or "not known"),
            "true": str(final.true or "not known"),
            "false_claims": false,
        }

    def mend(self, bundle: Path, false_claims: int) -> Facts:
        """Train the classifier on its false claims, if there are enough."""
        if false_claims < FALSE_CLAIMS:
            print(f"{false_claims} false claims are too few to mend by; the classifier stays.")
            return {"bundle": str(bundle), "mended": "not needed"}
        status = run_mend(
            MendConfig(
                **resumed(self.mended),
                bundle=str(bundle),
                data=self.data,
                labels=(self.policy,),
                seed=self.config.seed,
            )
        )
        if status != 0:
            return {"bundle": str(bundle), "mended": "tried; the old one is better and stays"}
        return {"bundle": str(self.mended / "bundle"), "mended": f"by {false_claims} false claims"}

    def report(self, stages: Stages, lines: str) -> Facts:
        """Write the page."""
        facts = stages.facts
        verdict = facts["verdict"]
        words = "; ".join([verdict["level"], *verdict["reasons"]])
        shown = {"verdict on held-out images": words, "audit": facts.get("audit", "not made")}
        for name in ("steps", "claimed", "true", "false_claims", "mended"):
            if name in facts:
                shown[f"training: {name}".replace("_", " ")] = facts[name]
        spent = {name: f"{seconds:.0f} s" for name, seconds in stages.seconds.items()}
        sections = [
            Section("Result", facts=shown),
            Section("Pilot", " ".join(facts.get("pilot", ["none: labelled photographs"]))),
            Section("Use it", lines),
            Section("Time", facts=spent),
            configuration(self.config),
        ]
        write_report(self.folder / "report.html", f"Reward: {self.config.out.name}", sections)
        return {}


def run(config: RewardConfig) -> int:
    """Run what is left of the stages; return 0, or ``USELESS`` after that verdict."""
    photographs = config.data is not None
    names = ["finetune", "audit", "report"]
    if not photographs:
        if has_own_reward(config.env):
            print(f"{config.env} has a learned reward of its own; another one is made for it.")
        names = ["pilot", "capture", "finetune", "audit", "train", "mend", "report"]
    again = resume_command("reward", config.out, *trust_args(config.env))
    with RunFolder(config.out, config, resume=config.resume, again=again) as folder:
        reward, stages = Reward(config, folder), Stages(folder, names)
        if not photographs:
            frames = stages.stage("pilot", reward.pilot)["frames"]
            stages.stage("capture", lambda: reward.images(frames))
        found = stages.stage("finetune", reward.finetune)
        bundle = Path(found["classifier"]) / "bundle"
        useless = found["verdict"]["level"] == "useless"
        if not useless:
            stages.stage("audit", lambda: reward.audit(bundle))
        if not useless and not photographs:
            step = stages.facts["step_seconds"]
            false = stages.stage("train", lambda: reward.train(bundle, step))["false_claims"]
            bundle = Path(stages.stage("mend", lambda: reward.mend(bundle, false))["bundle"])
        if not useless:
            shutil.rmtree(folder / "bundle", ignore_errors=True)
            shutil.copytree(bundle, folder / "bundle")
        lines = _program(config)
        stages.stage("report", lambda: reward.report(stages, lines), keep=False)
        if useless:
            why, advice = found["verdict"]["reasons"], found["verdict"]["advice"]
            tries = "".join(f"\ntry: {one}" for one in advice)
            print(f"no reward: {'; '.join(why)}\nreport: {folder}/report.html{tries}")
            return USELESS
        print(f"bundle: {folder / 'bundle'}\nreport: {folder / 'report.html'}\n\n{lines}")
        if not photographs:
            code = (*trust_args(config.env), *trust_args(config.truth, "--truth"))
            words = command("train", "--bundle", folder, *code, "--out", f"{folder}-policy")
            print(f"\nnext: {words}")
    return 0


def _program(config: RewardConfig) -> str:
    """Return the lines of Python that use the bundle."""
    bundle = str(config.out / "bundle")
    if config.data is not None:
        return (
            "from pathlib import Path\n"
            "from vinoreward import Classifier\n"
            "from vinoreward.images import read_image\n"
            f"model = Classifier({bundle!r})\n"
            f"for path in sorted(Path({str(config.data)!r}).rglob('*.png')):\n"
            "    print(path, model.predict(read_image(path)[None]))"
        )
    return (
        "import gymnasium as gym\n"
        "from vinoreward import LearnedReward\n"
        f"env = gym.make({config.env!r}, render_mode='rgb_array')\n"
        f"env = LearnedReward(env, {bundle!r})\n"
        "env.reset(seed=0)\n"
        "print(env.step(env.action_space.sample())[1])"
    )
