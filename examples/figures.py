"""The figures of a walk: how good its classifier and its policy are, on seeds of your choice.

``python examples/figures.py docs/pendulum.md`` runs the page's own commands for each seed, fresh
episodes for the classifier, and the same training on the environment's own truth. It prints counts
over all seeds. Run it again after a stop: what is finished is not repeated.

``--parts mend``, on a page that mends its classifier, labels by the simulator's truth, mends, and
trains again: what the first policy was paid for, and what is left of it.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PARTS = ("classifier", "policy", "time", "mend")
LABELS = 100
"""Claims that are labelled for one mending."""
PLAYED = 200
"""Fresh episodes of the first policy."""
CLI = (sys.executable, "-m", "vinoreward_training.cli")
FRESH = 10_000
"""Fresh episodes are of the seed and this."""


def commands_of(page: Path) -> list[list[str]]:
    """Return the commands in a page's console blocks, without the program's name."""
    blocks = re.findall(r"```console\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    lines = re.sub(r"\\\n\s*", "", "\n".join(blocks)).splitlines()
    start = "$ vinoreward "
    return [shlex.split(line.removeprefix(start)) for line in lines if line.startswith(start)]


def changed(words: Sequence[str], **options: Any) -> list[str]:
    """Return a command with other values of some options."""
    words = list(words)
    for name, value in options.items():
        option = "--" + name.replace("_", "-")
        if option in words:
            del words[words.index(option) : words.index(option) + 2]
        words += [option, str(value)]
    return words


def value_of(words: Sequence[str], option: str) -> str:
    """Return the value of an option."""
    return words[list(words).index(option) + 1]


def within(words: Sequence[str], folder: Path) -> list[str]:
    """Return a command whose ``data/`` and ``runs/`` are in a folder."""
    return [str(folder / word) if word.startswith(("data/", "runs/")) else word for word in words]


class Seed:
    """One seed of a walk, in a folder of its own."""

    def __init__(self, page: Path, seed: int, folder: Path) -> None:
        self.seed, self.folder = seed, folder
        every = [within(words, folder) for words in commands_of(page)]
        # What comes after a person's labels is for the part "mend".
        commands = list(itertools.takewhile(lambda words: words[0] != "label", every))
        self.after = every[len(commands) :]
        self.capture, self.finetune = (
            next(words for words in commands if words[0] == name)
            for name in ("capture", "finetune")
        )
        trainings = [words for words in commands if words[0] == "train"]
        self.claims = next(words for words in trainings if "oracle" not in words)
        self.truth = next((words for words in trainings if "oracle" in words), [])

    def run(self, *commands: Sequence[str]) -> None:
        """Run commands beside each other, but for those that were finished before."""
        self.folder.mkdir(parents=True, exist_ok=True)
        started = []
        for words in commands:
            name = shlex.join(words)
            done = self.folder / f"{zlib.crc32(name.encode()):08x}.done"
            if not done.exists():
                print(f"seed {self.seed}: vinoreward {name}", file=sys.stderr, flush=True)
                log = (self.folder / f"{done.stem}.log").open("w")
                environment = {"OMP_NUM_THREADS": "1", **os.environ}
                started.append(
                    (
                        subprocess.Popen(
                            [*CLI, *words], stdout=log, stderr=subprocess.STDOUT, env=environment
                        ),
                        name,
                        done,
                    )
                )
        for process, name, done in started:
            code = process.wait()
            if code not in (0, 3):  # 3: finetune doubts the classifier
                raise SystemExit(f"vinoreward {name} ended with {code}: see {done.stem}.log")
            done.write_text(name)

    def classifier(self, fresh: int) -> list[int]:
        """Train a classifier; return the counts of one frame of each label per fresh episode."""
        self.run(changed(self.capture, seed=self.seed))
        self.run(changed(self.finetune, seed=self.seed))
        return self.scored(f"{value_of(self.finetune, '--out')}/bundle", fresh, "scores")

    def scored(self, bundle: str, fresh: int, name: str) -> list[int]:
        """Return a bundle's counts of one frame of each label per fresh episode."""
        data = self.folder / "fresh"
        self.run(
            changed(self.capture, seed=self.seed + FRESH, out=data, frames=fresh, per_episode=1)
        )
        out = f"{data}-{name}"
        self.run(["score", "--data", str(data), "--bundle", bundle, "--out", out])
        figures: dict[str, Any] = json.loads(Path(out, "scores.json").read_text())["figures"]
        return counts_of(figures["by episode"])

    def policies(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Train on claims and on the truth; return both summaries."""
        steps = value_of(self.claims, "--timesteps")
        settings = {"seed": self.seed, "final_episodes": 100, "eval_every": steps}
        claims, truth = (
            [*changed(words, **settings, stop_when_solved=None), "--force"]
            for words in (self.claims, self.truth)
        )
        self.run(claims, truth)
        first, second = (
            json.loads(Path(value_of(words, "--out"), "summary.json").read_text())
            for words in (claims, truth)
        )
        return first, second

    def mended(self, fresh: int) -> dict[str, Any]:
        """Train, label by the truth, mend, train again; return what changed."""
        from label_by_truth import label_by_truth

        before = self.classifier(fresh)
        first = changed(self.claims, seed=self.seed)
        self.run(first)
        run = Path(value_of(first, "--out"))
        labels = label_by_truth(run, LABELS)
        mend = changed(next(w for w in self.after if w[0] == "mend"), seed=self.seed, threads=1)
        began = time.perf_counter()
        self.run(mend)
        told = json.loads(Path(value_of(mend, "--out"), "mend.json").read_text())
        found = {
            "fresh": (before, before), "labels": labels, "kept": told["kept"],
            "seconds": time.perf_counter() - began, "policies": [training_of(run)],
        }  # fmt: skip
        if told["kept"] == "new":
            again = next(words for words in self.after if words[0] == "train")
            self.run(changed(again, seed=self.seed))
            found["policies"].append(training_of(Path(value_of(again, "--out"))))
            bundle = value_of(again, "--bundle")
            found["fresh"] = (before, self.scored(bundle, fresh, "mended"))
            found["paid"] = still_paid(run, bundle, self.seed + FRESH)
        return found


def counts_of(rates: dict[str, int]) -> list[int]:
    """Return false claims, failures, claimed successes and successes."""
    wrong, right = rates["false_positives"], rates["true_positives"]
    return [wrong, wrong + rates["true_negatives"], right, right + rates["false_negatives"]]


def training_of(run: Path) -> dict[str, int]:
    """Return the counts of a run: of its training episodes, and of its last policy's."""
    summary = json.loads((run / "summary.json").read_text())
    with (run / "episodes.csv").open(newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["claimed"] == "1"]
    return {
        "claims": len(rows),
        "false claims": sum(row["true"] == "0" for row in rows),
        "claimed": summary["final"]["claimed"]["successes"],
        "true": summary["final"]["true"]["successes"],
        "steps": summary["steps"],
        "alarms": len(summary["alarms"]),
    }


def still_paid(run: Path, bundle: str, seed: int) -> dict[str, tuple[int, int]]:
    """Let a run's policy play fresh episodes in its own environment and show another bundle them.

    Return how many of its claims, false ones and true ones, there are, and are claimed by it too.
    """
    import numpy as np

    from vinoreward.rewards.classifier import Classifier
    from vinoreward_training.audit.checks import score_images
    from vinoreward_training.policy.checkpoint import load_policy, read_description
    from vinoreward_training.policy.evaluate import EvalStep, evaluate
    from vinoreward_training.tasks.environments import find_bundle, make_env

    env = make_env(read_description(run))
    by_truth: dict[bool, list[Any]] = {False: [], True: []}

    def watch(step: EvalStep) -> None:
        if step.last and step.claimed:
            by_truth[bool(step.true)].append(env.render())

    evaluate(load_policy(run, env), env, PLAYED, seed, watch)
    env.close()
    with Classifier(find_bundle(bundle), precision="fp32") as classifier:
        kept = {
            true: int(score_images(classifier, np.stack(some)).rewarded.sum()) if some else 0
            for true, some in by_truth.items()
        }
    return {
        name: (len(by_truth[true]), kept[true]) for name, true in (("false", False), ("true", True))
    }


def time_ratio(claims: Sequence[str], truth: Sequence[str], seed: int, rounds: int) -> list[float]:
    """Return the wall time of training on claims over that on the truth, for each of the rounds.

    They learn in turns, 200 steps each (PPO: a rollout), and both environments draw an image at
    each step.
    """
    from stable_baselines3.common.base_class import BaseAlgorithm

    from vinoreward import ImageInInfo
    from vinoreward_training.policy.checkpoint import OFF_POLICY, build_model, discount
    from vinoreward_training.policy.train import SETTINGS
    from vinoreward_training.tasks.environments import make_env

    models: list[BaseAlgorithm] = []
    for words in (claims, truth):
        config = SETTINGS.parse([*words[1:], "--force"], prog="vinoreward train")
        gamma = discount(config.algorithm_kwargs)
        mode = "rgb_array" if words is truth else None  # the learned reward asks for it itself
        env = make_env(config, gamma=gamma, render_mode=mode)
        env = ImageInInfo(env) if words is truth else env
        early = {"learning_starts": 100} if config.algorithm in OFF_POLICY else {}
        kwargs = {**early, **config.algorithm_kwargs}
        models.append(build_model(config.algorithm, env, kwargs, seed=seed, replay_size=100_000))
    found = []
    for turn in range(rounds + 1):
        seconds = []
        for model in models:
            began = time.perf_counter()
            model.learn(200, reset_num_timesteps=turn == 0)
            seconds.append(time.perf_counter() - began)
        if turn:  # the first has steps without learning
            found.append(seconds[0] / seconds[1])
    for model in models:
        model.get_env().close()
    return found


def main() -> None:
    """Print the counts of each seed and of all."""
    import numpy as np

    from vinoreward.rewards.calibration import clopper_pearson

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path, help="the walk's page, such as docs/pendulum.md")
    parser.add_argument("--seeds", type=int, nargs="+", default=[101, 102, 103])
    parser.add_argument("--fresh", type=int, default=500, help="fresh images per seed")
    parser.add_argument("--rounds", type=int, default=8, help="of 200 steps, for the wall time")
    parser.add_argument("--out", type=Path, default=Path("runs/figures"))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS[:3]))
    options = parser.parse_args()
    seeds = [
        Seed(options.page, seed, options.out / options.page.stem / str(seed))
        for seed in options.seeds
    ]
    if "classifier" in options.parts:
        counts = np.zeros(4, int)
        for each in seeds:
            own = each.classifier(options.fresh)
            print(
                f"seed {each.seed}: false claims {own[0]} of {own[1]}, recall {own[2]} of {own[3]}"
            )
            counts += own
        wrong, failing, claimed, successful = map(int, counts)
        low, high = clopper_pearson(claimed, successful)
        print(
            f"classifier, fresh episodes: false claims {wrong} of {failing} "
            f"(<= {clopper_pearson(wrong, failing, 0.95, 'upper')[1]:.2%}); recall "
            f"{claimed / successful:.1%} ({low:.1%} to {high:.1%}), {claimed} of {successful}",
            flush=True,
        )
    if "policy" in options.parts:
        shares = []
        for each in seeds:
            claims, truth = each.policies()
            shares.append(
                (claims["final"]["true"]["successes"], truth["final"]["true"]["successes"])
            )
            print(
                f"seed {each.seed}: true success {shares[-1][0]} of 100, "
                f"{claims['final']['claimed']['successes']} claimed; "
                f"trained on the truth {shares[-1][1]} of 100",
                flush=True,
            )
        ours, theirs = np.sum(shares, axis=0)
        part = f"{ours / theirs:.1%}" if theirs else "no"
        print(f"policy: {ours} and {theirs} of {100 * len(shares)}: {part} part of it", flush=True)
    if "mend" in options.parts:
        for each in seeds:
            found = each.mended(options.fresh)
            said = [f"{name} {value}" for name, value in found.items() if name != "fresh"]
            for name, rates in zip(("before", "after"), found["fresh"], strict=True):
                wrong, failing, claimed, successful = rates
                said.append(f"{name}: recall {claimed} of {successful}, false {wrong} of {failing}")
            print("\n  ".join([f"seed {each.seed}:", *said]), flush=True)
    if "time" in options.parts:
        ratios = [
            ratio
            for each in seeds
            for ratio in time_ratio(each.claims, each.truth, each.seed, options.rounds)
        ]
        low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
        print(f"wall time of training: {middle:.2f}x ({low:.2f} to {high:.2f})", flush=True)


if __name__ == "__main__":
    main()
