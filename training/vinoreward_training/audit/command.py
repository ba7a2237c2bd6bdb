"""``vinoreward audit``: tries to cheat a classifier with what may befall images."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from vinoreward.bundles.bundle import Bundle
from vinoreward.entry_points import named_function
from vinoreward.errors import ConfigError, DatasetError, needed_for
from vinoreward.files import write_json
from vinoreward.images import prepare
from vinoreward.machine import usable_cores
from vinoreward.rewards.classifier import Classifier
from vinoreward.rewards.interventions import (
    Intervention,
    SearchSpace,
    apart,
    offered_by,
)
from vinoreward_actors.actor_learner.acting.environments import as_config_error
from vinoreward_training.audit.bands import bands
from vinoreward_training.audit.battery import (
    KINDS,
    STALE,
    Battery,
    Fooled,
    dead_rows,
    faults,
    look,
    misses,
    shift_rows,
    stale_rows,
    strongest_first,
)
from vinoreward_training.audit.card import own_card, write_card
from vinoreward_training.audit.causes import STAY, Causes, remove_causes
from vinoreward_training.audit.cheating import Cheating, learn
from vinoreward_training.audit.pairs import PairRow, pair_rows
from vinoreward_training.audit.replays import Replays, play_again
from vinoreward_training.audit.report import AuditReport, sections_of
from vinoreward_training.audit.search import STATES, Searched, spaces_searched
from vinoreward_training.configs import AuditConfig
from vinoreward_training.configs.task import RewardedTask
from vinoreward_training.data.dataset import Dataset, episode_identities, load_dataset, size_for
from vinoreward_training.data.dataset_files import Indices, image_reader, save_image
from vinoreward_training.data.seen import LEAST_AUDITED as LEAST
from vinoreward_training.data.seen import unseen
from vinoreward_training.runs.next_command import bundle_name, command, to_train, unique_path
from vinoreward_training.runs.report import Row, write_report, write_table
from vinoreward_training.runs.run_folder import made
from vinoreward_training.runs.settings import refuse_ignored
from vinoreward_training.tasks.environments import (
    dependencies_named,
    has_own_reward,
    make_env,
    make_plain,
    truth_reader,
    with_truth,
)

if TYPE_CHECKING:
    import gymnasium as gym

    from vinoreward.rewards.truth import Truth

UNSAFE = 3
"""Exit status where something is paid that should not be."""
FIRST_VERDICT = 120.0
"""Seconds after which it is said what was found so far."""
MOST_THREADS = 8
"""Threads of the network by default: a small one gains nothing from more."""
FINDINGS = "findings"
"""Folder of the images that fooled it, to be labelled."""
LEAST_STATES = 256
_RETURNS = (
    "a function of the environment that returns a list of vinoreward.Intervention and "
    "vinoreward.SearchSpace; mend it"
)
PRINTED = 5
"""Faults, and misses, that are printed; all are in the report."""


@dataclass(frozen=True)
class Learning:
    """A policy that learns from the reward under audit."""

    env: gym.Env[Any, Any]
    """Pays that reward."""
    algorithm: str
    arguments: Mapping[str, Any]
    steps: int
    truth: Truth | None = None
    """Reads the truth from ``info``; None: from the usual keys."""


def unseen_frames(bundle: Bundle, dataset: Dataset) -> tuple[npt.NDArray[np.bool_], str]:
    """Return which frames (N,) of a dataset are new to a bundle, and a sentence on it.

    Of an own folder the content decides, as in a training, also if images were added since.
    """
    spec, sha256 = bundle.spec, dataset.sha256
    dataset = dataclasses.replace(dataset, images=prepare(dataset.images, spec.image))
    if dataset.origin is None and "model.safetensors" in spec.files:
        from vinoreward_training.classifier import training

        record = training.read_record(bundle.path / "model.safetensors")
        keys = training.image_keys(dataset.images)
        if record is not None and record.share_of(keys) > training.TOLERATED:
            sha256 = record.datasets[-1]
    identities, _ = episode_identities(dataset)
    return unseen(spec, dataset.episodes, dataset.origin, sha256, identities)


def one_each(dataset: Dataset, allowed: npt.NDArray[np.bool_], limit: int, seed: int) -> Indices:
    """Return the indices of at most ``limit`` frames of each label, one of each episode."""
    random = np.random.default_rng([seed, 0xA0D2])
    chosen: list[int] = []
    for label in (0, 1):
        candidates = random.permutation(np.flatnonzero(allowed & (dataset.labels == label)))
        _, first = np.unique(dataset.episodes[candidates], return_index=True)
        chosen += random.permutation(candidates[first])[:limit].tolist()
        if len(first) < LEAST:
            name = ("failure", "success")[label]
            raise DatasetError(
                f"{dataset.folder} has {len(first)} episodes with a {name} that the network has "
                f"not seen. Expected at least {LEAST}: frames of one episode resemble each other. "
                "Add images (to a capture: vinoreward capture --resume --frames N; each stays in "
                "its part), or give others with --data, such as a capture with another --seed."
            )
    return np.sort(np.array(chosen, dtype=np.int64))


def audit(
    bundle: Bundle | str | Path,
    data: Path,
    *,
    pairs: Path | None = None,
    env: gym.Env[Any, Any] | None = None,
    interventions: Sequence[Intervention] | None = None,
    spaces: Sequence[SearchSpace] | None = None,
    act: Callable[[Any], Any] | None = None,
    robot: Sequence[int] = (),
    truth: Truth | None = None,
    learning: Learning | None = None,
    image_source: str = "render",
    success_label: str = "success",
    backend: str = "openvino",
    device: str = "CPU",
    precision: str = "auto",
    frames: int = 300,
    dead: int = 3000,
    states: int = STATES,
    seed: int = 0,
    threads: int = 0,
    progress: bool = False,
) -> AuditReport:
    """Try to cheat a classifier.

    Args:
        bundle: the classifier's bundle.
        data: labelled images, as :func:`load_dataset` reads them.
        pairs: a folder of images before and after a change, see :func:`pair_rows`.
        env: an environment to play, in which claims lose their cause.
        interventions: what changes it; None: what it offers itself.
        spaces: its states to search; None: what it offers itself.
        act: plays, given an observation; None plays at random.
        robot: numbers of the flattened observation that are the robot's own state.
        truth: reads the environment's own truth from ``info``; None: from the usual keys.
        learning: a policy that learns from the reward under audit.
        image_source: of the environment's images: ``"render"``, ``"obs"`` or ``"obs:KEY"``.
        success_label: label or sub-folder of the successes in ``data``.
        backend: runs the network, on ``device``.
        device: of the backend.
        precision: as the classifier will run.
        frames: at most so many images of each label, one of each episode.
        dead: least number of dead-camera frames.
        states: to look at in each space, about; 0 for no search.
        seed: draws images and changes.
        threads: of the network; 0 for one per core, ``MOST_THREADS`` at most.
        progress: show a bar, and after ``FIRST_VERDICT`` seconds what was found so far.

    Raises:
        DatasetError: too few images, or a folder that is not as it should be.
        ConfigError: a number that cannot work, a bundle that is no classifier, or an intervention
            that is not undone.
    """
    from tqdm import tqdm

    if frames < LEAST or dead < 1 or seed < 0 or 0 < states < LEAST_STATES or states < 0:
        raise ConfigError(
            f"found frames={frames}, dead={dead}, states={states} and seed={seed}. Expected at "
            f"least {LEAST} frames of each label, 1 dead-camera frame, {LEAST_STATES} states (or "
            "0) and a seed of at least 0."
        )
    if threads < 0:
        raise ConfigError(f"found threads={threads}. Expected at least 1, or 0 for one per core.")
    with needed_for("an audit", "train"):
        import matplotlib  # noqa: F401  # before the work
        import scipy  # noqa: F401
    with contextlib.ExitStack() as closing:
        opened = partial(
            Classifier,
            backend=backend,
            device=device,
            threads=threads or min(usable_cores(), MOST_THREADS),
        )
        classifier = closing.enter_context(opened(bundle, precision=precision))
        spec = classifier.bundle.spec
        size = size_for(spec.image)
        dataset = load_dataset(data, size=size, success_label=success_label, skip_broken=True)
        allowed, note = unseen_frames(classifier.bundle, dataset)
        some = one_each(dataset, allowed, frames, seed)
        images, success = dataset.images[some], dataset.labels[some] == 1
        found = Battery()
        by_pair: list[PairRow] = []
        if pairs is not None:
            by_pair = pair_rows(classifier, pairs, found)
        exact = None
        if classifier.precision != "fp32":
            exact = closing.enter_context(opened(classifier.bundle, precision="fp32"))
        shifts = partial(
            shift_rows, classifier, exact, images, success, found, seed=seed, views=dataset.views
        )
        order, kept = strongest_first(), np.flatnonzero(allowed)
        looks = itertools.chain(
            shifts(changes=order[:1]),
            dead_rows(
                classifier,
                images,
                np.flatnonzero(~success),
                found,
                count=dead,
                seed=seed,
                views=dataset.views,
            ),
            stale_rows(classifier, exact, images, success, found, seed=seed),
            shifts(changes=order[1:]),
        )
        stale = len(STALE) * int((~success).sum())
        total = (len(images) * len(order) + stale) * (1 if exact is None else 2) + len(kept)
        total += -(-dead // len(KINDS)) * len(KINDS)
        causes = replays = cheating = None
        searched: list[Searched] = []
        steps: Iterable[str] = ()
        if env is not None:
            causes, replays = Causes(), Replays()
            own = env.unwrapped
            offered = offered_by(own)
            changes = offered[0] if interventions is None else interventions
            places = offered[1] if spaces is None else spaces
            name = "env" if env.spec is None else env.spec.id
            check_shown(name, image_source, (*changes, *places))
            take = image_reader(env, name, image_source, size_for(spec.image))
            steps = itertools.chain(
                remove_causes(classifier, env, take, act, changes, causes, found, seed=seed),
                play_again(
                    classifier, env, take, act, replays, found, seed=seed, robot=robot, truth=truth
                ),
                spaces_searched(
                    classifier,
                    env,
                    places if states else (),
                    take,
                    searched,
                    found,
                    seed=seed,
                    states=states,
                ),
            )
        if learning is not None:
            cheating = Cheating(learning.algorithm)
            steps = itertools.chain(
                steps,
                learn(
                    learning.env,
                    learning.algorithm,
                    learning.arguments,
                    cheating,
                    steps=learning.steps,
                    seed=seed,
                    truth=learning.truth,
                ),
            )
        sentences = [
            f"of {row.claimed} claims {row.stay} stay when the cause is {row.change}"
            for row in by_pair
            if row.stay_low > STAY
        ]

        def found_so_far(by_band: list[dict[str, object]]) -> AuditReport:
            return AuditReport(
                bundle=spec.name,
                faults=(
                    *sentences,
                    *(causes.faults() if causes else ()),
                    *(replays.faults() if replays else ()),
                    *(fault for one in searched for fault in one.faults()),
                    *(cheating.faults() if cheating else ()),
                    *faults(found),
                ),
                misses=(*(causes.faults(success=True) if causes else ()), *misses(found)),
                note=note,
                battery=found,
                bands=by_band,
                pairs=tuple(by_pair),
                causes=causes,
                replays=replays,
                searched=tuple(searched),
                cheating=cheating,
            )

        first_at = time.monotonic() + FIRST_VERDICT if progress else math.inf

        def show(bar: Any, name: str) -> None:
            nonlocal first_at
            bar.set_postfix_str(name)
            if time.monotonic() >= first_at:
                first_at = math.inf
                report = found_so_far([])
                missed = f" {report.robustness}" if report.misses else ""
                bar.write(f"so far, the rest goes on: {report.verdict}{missed}")

        with tqdm(steps, desc="audit", unit="test", disable=not progress or env is None) as bar:
            for name in bar:
                show(bar, name)
        # How many images come is known, so the bar says how many minutes they take.
        with tqdm(total=total, desc="audit", unit="image", disable=not progress) as bar:
            for name, count in looks:
                bar.update(count)
                show(bar, name)
            by_band = bands(
                look(classifier, dataset.images[kept]).paid,
                dataset.labels[kept] == 0,
                dataset.categories[kept],
                dataset.distances[kept],
            )
            bar.update(len(kept))
        return found_so_far(by_band)


def run(config: AuditConfig) -> int:
    """Audit, write the report; return 0, or ``UNSAFE``."""
    bundle = Bundle.load(config.bundle)
    out = config.out or unique_path(Path("runs") / bundle_name(Path(bundle.spec.name), "audit"))
    if (out / "audit.json").exists():
        raise ConfigError(
            f"{out} already holds an audit. Expected a new folder; choose another with --out."
        )
    if config.card:
        own_card(bundle.path)
    with contextlib.ExitStack() as closing:
        report = audit(
            bundle,
            config.data,
            pairs=config.pairs,
            **environment_of(config, bundle, closing),
            success_label=config.success_label,
            backend=config.backend,
            device=config.device,
            precision=config.precision,
            frames=config.frames,
            dead=config.dead_frames,
            states=config.states,
            seed=config.seed,
            threads=config.threads,
            progress=True,
        )
    made(out)
    write_report(out / "report.html", f"Audit of {report.bundle}", sections_of(report, config, out))
    write_findings(out / FINDINGS, report.battery.fooled)
    write_json(out / "audit.json", report.as_dict())
    print("\n".join(report.notes))
    for verdict, sentences in ((report.verdict, report.faults), (report.robustness, report.misses)):
        print(verdict)
        for one in sentences[1:PRINTED]:  # the verdict has the first
            print(f"- {one}")
        if len(sentences) > PRINTED:
            print(f"- and {len(sentences) - PRINTED} more, in the report")
    print(f"report {out / 'report.html'}")
    if config.card:
        precision = bundle.resolve_precision(config.backend, config.precision)
        print(f"card {write_card(bundle.path, report, config, precision)}")
    if not report.faults:
        print(f"next: {to_train(bundle.path, bundle.spec)}")
    elif report.battery.fooled:
        line = command("label", "--data", out / FINDINGS, "--bundle", config.bundle)
        print(f"next: {line}")
    return UNSAFE if report.faults else 0


def write_findings(folder: Path, fooled: Sequence[Fooled]) -> None:
    """Write the images of false claims, the most certain first, and what was done to each."""
    for number, one in enumerate(fooled):
        save_image(folder / f"{number:02d}.png", one.image)
    if fooled:
        rows: list[Row] = [
            {"image": f"{number:02d}.png", "probability": one.probability, "by": one.by}
            for number, one in enumerate(fooled)
        ]
        write_table(folder / "findings.csv", ("image", "probability", "by"), rows)


def environment_of(
    config: AuditConfig, bundle: Bundle, closing: contextlib.ExitStack
) -> dict[str, Any]:
    """Return the arguments of :func:`audit` about an environment; none without ``--env``."""
    if config.env is None:
        names = (
            "env_kwargs", "policy", "interventions", "image_source", "robot_state", "truth",
            "states", "learn_steps",
        )  # fmt: skip
        refuse_ignored(config, names, "an audit without --env")
        return {}
    if bundle.spec.image.views:
        raise ConfigError(
            f"found --env with {bundle.spec.name}, which looks at several images. Expected a "
            "bundle of one, as an audit takes one image of an environment; leave --env out, and "
            "give --pairs."
        )
    if config.learn_steps < 0:
        raise ConfigError(
            f"found learn_steps={config.learn_steps}. Expected at least 0; 0 lets no policy learn."
        )
    from vinoreward_training.capture.policies import open_policy

    given: dict[str, Any] = {"render_mode": "rgb_array", **config.env_kwargs}
    if has_own_reward(config.env):
        given = {"backend": "oracle", "bundle": bundle, **given}
    with dependencies_named(config.env):
        env = with_truth(make_plain(config.env, **given), config.truth)
        closing.callback(env.close)
        # What it lacks to draw with is told now, not after minutes.
        observation, _ = env.reset(seed=config.seed)
        image_reader(env, config.env, config.image_source, None)(observation)
    arguments: dict[str, Any] = {
        "env": env,
        "image_source": config.image_source,
        "robot": config.robot_state,
        "truth": truth_reader(config.truth),
    }
    if config.policy is not None:
        arguments["act"] = open_policy(config.policy, env, closing)
    if config.interventions is None:
        changes, spaces = offered_by(env.unwrapped)
    else:
        offer = named_function(
            config.interventions, "interventions", "a function of an environment"
        )
        with as_config_error(f"--interventions {config.interventions} fails", _RETURNS):
            offered = offer(env.unwrapped)
        changes, spaces = apart(offered, config.interventions)
    check_shown(config.env, config.image_source, (*changes, *spaces))
    arguments |= {"interventions": changes, "spaces": spaces}
    if config.learn_steps:
        arguments["learning"] = _learning(config, bundle, closing)
    return arguments


def check_shown(
    name: str, image_source: str, changes: Sequence[Intervention | SearchSpace]
) -> None:
    """Raise ConfigError if an environment's image would not show these changes of it."""
    if image_source != "render" and changes:
        raise ConfigError(
            f"found the image {image_source} of {name} and interventions or search spaces. "
            "Expected images that are rendered, as an observation does not show a change before "
            "the next step; leave --image-source out."
        )


def _learning(config: AuditConfig, bundle: Bundle, closing: contextlib.ExitStack) -> Learning:
    """Return a policy as ``vinoreward train`` would build it, on the reward under audit."""
    from vinoreward_training.policy.train import SETTINGS

    task = RewardedTask(
        env=config.env or "",
        env_kwargs=config.env_kwargs,
        backend=config.backend,
        bundle=str(bundle.path),
        precision=config.precision,
        truth=config.truth,
        image_source=(config.image_source,),
        accept_foreign_images=True,  # whether it suits these is what an audit finds out
    )
    env = make_env(task)
    closing.callback(env.close)
    settings = SETTINGS.of(env=config.env, env_kwargs=config.env_kwargs)
    # A reader of its own: where a learned reward claims, another key has the truth.
    truth = truth_reader(config.truth)
    name, arguments = str(settings.algorithm), settings.algorithm_kwargs
    return Learning(env, name, arguments, config.learn_steps, truth)
