"""``vinoreward audit``: tries to cheat a classifier."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError, TooFewNegativesError, needed_for
from vinoreward.files import write_json
from vinoreward.images import prepare
from vinoreward.machine import usable_cores
from vinoreward.rewards.classifier import Classifier
from vinoreward.rewards.judge import Judge
from vinoreward_training.audit.checks import FalsePositive, Subject
from vinoreward_training.audit.corruptions import (
    EVERY,
    FAILING_CAMERAS,
    FROZEN,
    corrupt,
    fail_camera,
    freeze_camera,
)
from vinoreward_training.audit.env import AuditEnv, open_env, open_learner
from vinoreward_training.audit.interventions import CLAIMS, InterventionReport, intervene
from vinoreward_training.audit.interventions import STEPS as INTERVENED_STEPS
from vinoreward_training.audit.learned_policy import LearnedPolicy, learn
from vinoreward_training.audit.pairs import compare_pairs
from vinoreward_training.audit.progress import compare_progress
from vinoreward_training.audit.replays import REPLAYS, ReplayReport, replay_claims
from vinoreward_training.audit.replays import STEPS as REPLAYED_STEPS
from vinoreward_training.audit.report import AuditReport, sections_of
from vinoreward_training.audit.search import STATES, SearchReport, search
from vinoreward_training.configs import AuditConfig
from vinoreward_training.data.dataset import Dataset, episode_identities, load_dataset, size_for
from vinoreward_training.data.dataset_files import Indices, images_below, save_image
from vinoreward_training.data.provenance import LEAST_AUDITED, find_new_frames
from vinoreward_training.data.tables import write_table
from vinoreward_training.judges import open_judge
from vinoreward_training.labelling.labels import LABELS, Label, LabelLog, now
from vinoreward_training.labelling.sources import digest_of
from vinoreward_training.runs.next_command import (
    after_audit,
    after_judge,
    bundle_name,
    to_train,
    unique_path,
)
from vinoreward_training.runs.report import Row, write_report
from vinoreward_training.runs.run_folder import ensure_dir
from vinoreward_training.runs.settings import Settings, refuse_ignored
from vinoreward_training.tasks.recorded import success_label_of, task_of_audit

UNSAFE = 3
"""Exit status where a failure is rewarded."""
MOST_THREADS = 8
"""Threads of the network: a small one gains nothing from more."""
OF_JUDGE = (
    "Nothing says what a judge was made with: images that it was chosen by make it look better."
)
FINDINGS = "findings"
"""Folder of the false positives, with the labels that the audit knows."""
PRINTED = 5
"""Faults, and misses, that are printed; all are in the report."""


@dataclass(frozen=True)
class AuditOptions:
    """How an audit runs."""

    played: AuditEnv | None = None
    """An environment, in which claims lose their cause; None for none."""
    pairs: Path | None = None
    """A folder of images before and after a change, see :func:`compare_pairs`."""
    precision: str = "auto"
    """As the classifier will run."""
    frames: int = 300
    """At most so many images of each label, one of each episode."""
    failing_frames: int = 3000
    """Fewest frames of a failing camera."""
    states: int = STATES
    """To score in each space, about; 0 for no search."""
    seed: int = 0
    threads: int = 0
    """Of the network; 0 for one per core, ``MOST_THREADS`` at most."""
    progress: bool = False
    """Show a bar."""


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
    return find_new_frames(spec, dataset.episodes, dataset.origin, sha256, identities)


def sample_per_episode(
    dataset: Dataset, allowed: npt.NDArray[np.bool_], limit: int, seed: int
) -> Indices:
    """Return the indices of at most ``limit`` frames of each label, one of each episode."""
    random = np.random.default_rng([seed, 0xA0D2])
    chosen: list[int] = []
    for label, name in enumerate(("failure", "success")):
        candidates = random.permutation(np.flatnonzero(allowed & (dataset.labels == label)))
        _, first = np.unique(dataset.episodes[candidates], return_index=True)
        chosen += random.permutation(candidates[first])[:limit].tolist()
        if len(first) < LEAST_AUDITED:
            raise TooFewNegativesError(
                f"{dataset.folder} has {len(first)} episodes with a {name} that are new to the "
                f"network. Expected at least {LEAST_AUDITED}: frames of one episode resemble each "
                "other. Add images (to a capture: vinoreward capture --resume --frames N; each "
                "stays in its part), or give others with `data`, such as a capture with another "
                "seed."
            )
    return np.sort(np.array(chosen, dtype=np.int64))


def audit(
    scorer: Bundle | str | Path | Judge, data: Path, options: AuditOptions | None = None
) -> AuditReport:
    """Try to cheat a classifier or a judge with labelled images, and in an environment if given.

    Raises:
        TooFewNegativesError: too few episodes of a label that are new to the network.
        DatasetError: a folder that is not as it should be.
        ConfigError: an option that cannot work, a bundle that is no classifier, or an intervention
            that is not undone.
    """
    options = AuditOptions() if options is None else options
    with needed_for("an audit", "train"):
        import matplotlib  # noqa: F401  # before the work
        import scipy  # noqa: F401
    threads = options.threads or min(usable_cores(), MOST_THREADS)
    with contextlib.ExitStack() as closing:
        classifier: Classifier | Judge
        if isinstance(scorer, Judge):
            classifier, name = scorer, scorer.name
            dataset = load_dataset(data, skip_broken=True)
            allowed, note = np.ones(len(dataset.images), np.bool_), OF_JUDGE
        else:
            classifier = closing.enter_context(
                Classifier(scorer, precision=options.precision, threads=threads)
            )
            bundle, name = classifier.bundle, classifier.bundle.spec.name
            label, size = success_label_of(bundle.spec), size_for(bundle.spec.image)
            dataset = load_dataset(data, size=size, success_label=label, skip_broken=True)
            allowed, note = unseen_frames(bundle, dataset)
        sample = sample_per_episode(dataset, allowed, options.frames, options.seed)
        report = AuditReport(name, note)
        subject = Subject(classifier, options.seed, report.false_positives)
        if isinstance(scorer, Judge):
            print(f"{name} scores {_calls(dataset.labels[sample] == 1, options)}")
        elif bundle.spec.progress is not None:
            report.progress = compare_progress(
                subject, dataset, allowed, sample, bundle.spec.progress.horizon
            )
        if options.pairs is not None:
            report.pairs = compare_pairs(subject, options.pairs, report.progress)
        if options.played is not None:
            _show(_in_environment(subject, options.played, report, options.states), options)
        images = _on_images(subject, dataset, sample, report, options)
        # How many tests come is known, so the bar says how long they take.
        _show(images, options, len(EVERY) + len(FAILING_CAMERAS) + len(FROZEN))
    return report


def _calls(success: npt.NDArray[np.bool_], options: AuditOptions) -> str:
    """Say about how many images a judge scores at most, as those of before are kept."""
    failing = -(-options.failing_frames // len(FAILING_CAMERAS)) * len(FAILING_CAMERAS)
    images = len(EVERY) * len(success) + len(FROZEN) * int((~success).sum()) + failing
    if options.pairs is not None and options.pairs.is_dir():
        images += 2 * len(images_below(options.pairs))
    if options.played is None:
        return f"at most {images} images"
    played, changes = options.played, len(options.played.interventions)
    steps = REPLAYED_STEPS + REPLAYS + (INTERVENED_STEPS + CLAIMS * changes) * bool(changes)
    # Under corruptions as many states again are scored about three times.
    steps += 4 * options.states * len(played.spaces)
    steps += 0 if played.learner is None else played.learner.steps
    return f"at most {images} images, and {steps} of the environment"


def _in_environment(
    subject: Subject, played: AuditEnv, report: AuditReport, states: int
) -> Iterator[str]:
    """Test the classifier in an environment; yield what is done next."""
    report.interventions, report.replays = InterventionReport(), ReplayReport()
    yield from intervene(subject, played, report.interventions, report.progress)
    yield from replay_claims(subject, played, report.replays)
    observation, _ = played.env.reset(seed=subject.seed)
    take = partial(played.take, observation)
    for space in played.spaces if states else ():
        report.searches.append(SearchReport(space.name, space.axes))
        yield from search(subject, space, take, report.searches[-1], states=states)
    if played.learner is not None:
        report.learned_policy = LearnedPolicy(played.learner.algorithm)
        yield from learn(played.learner, report.learned_policy, subject.seed)


def _on_images(
    subject: Subject, dataset: Dataset, sample: Indices, report: AuditReport, options: AuditOptions
) -> Iterator[str]:
    """Test the classifier on a sample of the dataset; yield each test."""
    images, success, found = dataset.images[sample], dataset.labels[sample] == 1, report.corruptions
    frames, views = options.failing_frames, dataset.views
    yield from corrupt(subject, images, success, found, views)
    yield from freeze_camera(subject, images, success, found)
    yield from fail_camera(subject, images, success, found, views, frames=frames)


def _show(steps: Iterable[str], options: AuditOptions, total: int | None = None) -> None:
    """Run steps, under a bar."""
    from tqdm import tqdm

    with tqdm(steps, "audit", total, unit="test", disable=not options.progress) as bar:
        for name in bar:
            bar.set_postfix_str(name)


SETTINGS = Settings(AuditConfig, task=task_of_audit)


def run(config: AuditConfig) -> int:
    """Audit, write the report; return 0, or ``UNSAFE``."""
    with contextlib.ExitStack() as closing:
        scorer = _scorer(config, closing)
        own = scorer.name if isinstance(scorer, Judge) else scorer.spec.name
        name = Path(own).name.replace(".py:", "-")
        out = config.out or unique_path(Path("runs") / bundle_name(Path(name), "audit"))
        if (out / "audit.json").exists():
            raise ConfigError(field="out", value=str(out), expected="a folder without an audit")
        played = open_env(config, scorer, closing)
        if played is not None and config.learn_steps > 0:
            played = dataclasses.replace(played, learner=open_learner(config, scorer, closing))
        options = AuditOptions(played, config.pairs, seed=config.seed, progress=True)
        report = audit(scorer, config.data, options)
    ensure_dir(out)
    write_report(out / "report.html", f"Audit of {report.bundle}", sections_of(report, config, out))
    write_findings(out / FINDINGS, report.false_positives.images)
    write_json(out / "audit.json", report.as_dict())
    print("\n".join(report.notes))
    for verdict, sentences in ((report.verdict, report.faults), (report.robustness, report.misses)):
        print(verdict)
        for one in sentences[1:PRINTED]:  # the verdict has the first
            print(f"- {one}")
        if len(sentences) > PRINTED:
            print(f"- and {len(sentences) - PRINTED} more, in the report")
    print(f"report {out / 'report.html'}")
    found = len(report.false_positives.images)
    if isinstance(scorer, Judge):
        print(f"next: {after_judge(scorer.name, out / FINDINGS if report.faults else None)}")
    elif not report.faults:
        print(f"next: {to_train(scorer.path, scorer.spec)}")
    elif found:
        print(f"next: {after_audit(str(config.bundle), out / FINDINGS, found)}")
    return UNSAFE if report.faults else 0


def _scorer(config: AuditConfig, closing: contextlib.ExitStack) -> Bundle | Judge:
    """Return what is audited; ConfigError unless it is a bundle or a judge."""
    if (config.bundle is None) == (config.judge is None):
        raise ConfigError(
            f"found {'nothing to audit' if config.judge is None else '`bundle` and `judge`'}. "
            "Expected one of `bundle` and `judge`; name what to audit.",
            field="bundle",
        )
    if config.judge is not None:
        return open_judge(config.judge, config.max_calls, closing)
    refuse_ignored(config, ("max_calls",), "a bundle")
    return Bundle.load(str(config.bundle))


def write_findings(folder: Path, images: Sequence[FalsePositive]) -> None:
    """Write the false positives, the most certain first, their causes, and their labels."""
    if not images:
        return
    rows: list[Row] = []
    for number, one in enumerate(images):
        name = f"{number:02d}.png"
        save_image(folder / name, one.image)
        rows.append({"image": name, "probability": one.probability, "cause": one.cause})
    write_table(folder / "findings.csv", ("image", "probability", "cause"), rows)
    with LabelLog(folder / LABELS) as log:
        for row, one in zip(rows, images, strict=True):
            name = str(row["image"])
            log.add(Label(name, digest_of(one.image), "failure", "truth", now(), 0.0))
