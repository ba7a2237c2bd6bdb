"""``vinoreward capture``: labelled images from any environment whose success is known."""

from __future__ import annotations

import contextlib
import math
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from vinoreward.errors import ConfigError
from vinoreward.files import write_json
from vinoreward.images import MAX_PIXELS, MAX_VIEWS, read_image
from vinoreward.rewards.calibration import episode_rate, negatives_needed, rate_supported
from vinoreward.wrappers.true_success import Truth
from vinoreward_envs.making import ORACLE
from vinoreward_training.capture.hover import hover_frame
from vinoreward_training.capture.play import Play
from vinoreward_training.capture.policies import open_policy
from vinoreward_training.capture.views import SeveralViews
from vinoreward_training.configs import CaptureConfig
from vinoreward_training.data.dataset import find_label_leakage
from vinoreward_training.data.dataset_files import (
    ABOUT,
    METADATA,
    Table,
    chosen_size,
    image_reader,
    make_row,
    read_about,
    read_metadata,
)
from vinoreward_training.data.lerobot import LeRobotFolder, is_lerobot
from vinoreward_training.data.provenance import HELD_OUT_SHARES
from vinoreward_training.data.recordings import choose_frames, fill, labels_of, plan_images
from vinoreward_training.data.videos import find_videos, read_labels, take_images
from vinoreward_training.judges import Labeller
from vinoreward_training.runs.next_command import (
    after_capture,
    bundle_name,
    command,
    resume_capture,
    resume_command,
)
from vinoreward_training.runs.run_folder import RunFolder
from vinoreward_training.runs.settings import Settings, refuse_ignored
from vinoreward_training.tasks.environments import (
    dependencies_named,
    environment_arguments,
    find_spec,
    has_own_reward,
    is_hover,
    make_plain,
    truth_reader,
    with_truth,
)

FORMAT = "vinoreward image folder 1"
SAVE_EVERY = 500
"""Images between two savings of the table."""
MIX: Mapping[str, float] = {"random": 1.0, "policy": 1.0, "noisy": 2.0}
"""Shares of the episodes by who plays them, where there is a policy."""


def _hover(config: CaptureConfig, env: Any, table: Table) -> Iterator[int]:
    """Place arm and object in a hover environment."""
    done = {int(row["episode"]) for row in table.rows.values()}
    for index in range(config.frames):
        if index in done:
            continue
        frame = hover_frame(env, config.seed, index)
        row = make_row(f"{index:06d}.png", frame.success, frame.category, index, config.seed)
        row["gripper_x"], row["gripper_y"] = (f"{value:.6f}" for value in frame.gripper)
        if frame.object is not None:
            row["object_x"], row["object_y"] = (f"{value:.6f}" for value in frame.object)
        row["distance"] = f"{frame.distance:.6f}"
        table.add([(frame.image, row)])
        yield 1


def _make(config: CaptureConfig) -> Any:
    options = environment_arguments(config)
    if "render" in sources_of(config):
        options = {"render_mode": "rgb_array", **options}
    own = has_own_reward(config.env)
    if config.image_size is not None and is_hover(find_spec(config.env)):
        options["image_size"] = config.image_size
    if own:
        options.setdefault("backend", ORACLE)  # it needs no bundle to take images
    return with_truth(make_plain(config.env, **options), config.truth)


def _is_placed(config: CaptureConfig, env: Any) -> bool:
    """Return whether arm and object are placed: in a hover environment with its own truth."""
    one_view = sources_of(config) == ("render",) and config.stack == 1
    own = config.truth in (None, "true_success") and config.policy is None
    return is_hover(env.spec) and one_view and own


def sources_of(config: CaptureConfig) -> tuple[str, ...]:
    """Return where the images of a capture are."""
    return config.image_source or ("render",)


def _check(config: CaptureConfig, before: CaptureConfig | None) -> CaptureConfig:
    count = config.stack * len(sources_of(config))
    if config.image_size is not None and math.prod(config.image_size) * count > MAX_PIXELS:
        raise ConfigError(
            field="image_size",
            value=config.image_size,
            expected=f"{count} images of at most {MAX_PIXELS} pixels in all",
            remedy="give a smaller `image_size`",
        )
    if config.recordings is None:
        by = "a capture without `recordings`"
        refuse_ignored(config, ("video_fps", "camera", "label_column"), by)
    else:
        refuse_ignored(config, _OF_ENVIRONMENT, "a capture with `recordings`")
    if config.labels_from is None:
        refuse_ignored(config, ("max_calls",), "a capture without `labels_from`")
    else:
        refuse_ignored(config, ("truth",), "a capture with `labels_from`")
    if len(config.image_source) > MAX_VIEWS:
        raise ConfigError(
            field="image_source", value=config.image_source, expected=f"at most {MAX_VIEWS}"
        )
    _mix(config)
    return config


_OF_ENVIRONMENT = (
    "env", "env_kwargs", "image_source", "stack", "truth", "labels_from", "max_calls",
    "per_episode", "policy", "mix", "progress",
)  # fmt: skip


def _mix(config: CaptureConfig) -> dict[str, float]:
    """Return the chances of the players, in their usual order; refuse what cannot be."""
    if config.policy is None:
        refuse_ignored(config, ("mix",), "a capture without `policy`")
        return {"random": 1.0}
    mix = {name: config.mix.get(name, 0.0) for name in MIX} if config.mix else dict(MIX)
    wrong = set(config.mix) - set(MIX) or min(mix.values()) < 0
    if wrong or not math.isfinite(sum(mix.values())) or mix["policy"] + mix["noisy"] <= 0:
        raise ConfigError(
            field="mix",
            value=config.mix,
            expected=f"shares of 0 or more for some of {', '.join(MIX)}, and not of random alone",
        )
    return {name: share for name, share in mix.items() if share > 0}


def _open_judge(config: CaptureConfig, closing: contextlib.ExitStack) -> Labeller | None:
    """Return the judge of the images; refuse another than labelled those that are there."""
    if config.labels_from is None:
        return None
    judge = Labeller(config.labels_from, config.max_calls, closing)
    judge.function.again = resume_capture(config)
    about = {} if _holds_nothing(config.out) else read_about(config.out)
    if about.get("labels_from", judge.facts) != judge.facts:
        raise ConfigError(
            f"the images in {config.out} were labelled by another version of {config.labels_from}, "
            "or at another threshold. Expected one judge for all; restore its file and "
            "calibration, or start another capture with `out`."
        )
    return judge


def _how(config: CaptureConfig, size: tuple[int, int] | None) -> dict[str, Any]:
    """Return how images are made and who plays, as ``dataset.json`` has it, without defaults."""
    one, several = sources_of(config)[0], len(sources_of(config)) > 1
    played = config.policy is not None
    how = {
        "env_kwargs": config.env_kwargs,
        "image_source": [*sources_of(config)] if several else one if one != "render" else None,
        "stack": config.stack if config.stack > 1 else None,
        "image_size": None if size is None else [*size],
        "policy": config.policy,
        "mix": _mix(config) if played else None,
    }
    return {name: value for name, value in how.items() if value}


def _describe(
    config: CaptureConfig,
    table: Table,
    known: Mapping[str, Any],
    truth: Truth | None,
    complete: bool,
) -> None:
    """Write ``dataset.json``; ``known`` is where the images come from."""
    rows = table.rows.values()
    counts = Counter(name for r in rows for name in (r["label"], f"category:{r['category']}"))
    about: dict[str, Any] = {"format": FORMAT}
    if table.rows:
        shape = read_image(config.out / next(iter(table.rows))).shape
        about["image"] = {"height": shape[0], "width": shape[1], "color_order": "RGB"}
    if truth is not None:
        about["per_episode"] = config.per_episode
        if (named := config.truth or truth.key) is not None:
            about["truth"] = named
    about |= {
        **known,
        **table.lengths(),
        "seed": config.seed,
        "frames": len(table.rows),
        "episodes": len({row["episode"] for row in rows}),
        "counts": dict(sorted(counts.items())),
        "complete": complete,
    }
    write_json(config.out / ABOUT, about)


def _holds_nothing(folder: Path) -> bool:
    """Say whether a capture in ``folder`` ended without an image."""
    about = read_about(folder) if folder.is_dir() else {}
    if about.get("format") != FORMAT or about.get("frames") != 0:
        return False
    return not (folder / METADATA).is_file() or not any(read_metadata(folder))


def run(config: CaptureConfig) -> int:
    """Capture; return 0. Ctrl-C saves the images so far and raises KeyboardInterrupt."""
    if is_lerobot(config.out):
        expected = "a new folder, as this one holds a LeRobot dataset"
        raise ConfigError(field="out", value=str(config.out), expected=expected)
    if config.recordings is not None:
        kind = _episodes if is_lerobot(config.recordings) else _videos
        return kind(config, config.recordings)
    mix, policy = _mix(config), config.policy
    line = resume_capture(config)
    with contextlib.ExitStack() as closing, dependencies_named(config.env):
        env = _make(config)
        closing.callback(env.close)
        if placed := _is_placed(config, env):
            refuse_ignored(config, ("labels_from",), "the hover scene, which knows its truth,")
        # What wrappers compare with the bundle's.
        drawn = getattr(env.unwrapped, "image_scene", None)
        scene = dict(drawn) if isinstance(drawn, Mapping) else {"env": config.env}
        own, sizes = _sizes(config, env)
        size = next(iter(sizes.values()), None)
        how = _how(config, None if sizes == own else size)
        begun = _holds_nothing(config.out)
        act = None if policy is None else open_policy(policy, env, closing)
        if (judge := _open_judge(config, closing)) is not None:
            how["labels_from"] = judge.facts
        with RunFolder(config.out, config, resume=config.resume or begun, again=line) as folder:
            for label in ("success", "failure"):
                (folder / label).mkdir(exist_ok=True)
            truth, play = None, None
            table = Table(folder, whole_episodes=not placed)
            if placed:
                work = _hover(config, env, table)
            else:
                truth, sources = truth_reader(config.truth), sources_of(config)
                if len(sources) > 1 or config.stack > 1:
                    env = SeveralViews(env, config.env, sources, config.stack, sizes)
                    how["views"] = [asdict(view) for view in env.views]
                    take: Callable[[Any], Any] = env.image
                else:
                    take = image_reader(env, config.env, sources[0], size)
                play = Play(take, env, config, truth, tqdm.write, act, mix, judge)
                work = play.fill(table)
            known = {"scene": scene, "env": config.env, **how}
            describe = partial(_describe, config, table, known, truth)
            _fill(config, table, work, describe, config.frames, play)
    if play is not None and policy is not None:
        print(play.by_player())
    if judge is not None:
        print(judge)
    return _end(config, table)


def _sizes(config: CaptureConfig, env: Any) -> tuple[dict[str, tuple[int, int]], ...]:
    """Return by source the (height, width) of an environment's images, and that to take them at.

    None of the hover scene, which draws at any size.
    """
    if is_hover(env.spec):
        return {}, {}
    observation, _ = env.reset(seed=0)
    takes = {one: image_reader(env, config.env, one, None) for one in sources_of(config)}
    own = {one: take(observation).shape[:2] for one, take in takes.items()}
    if config.image_size is not None:
        return own, dict.fromkeys(own, config.image_size)
    # One scale for all, as views of one width stay of one width.
    largest = max(own.values(), key=max)
    scale = max(chosen_size([largest])) / max(largest)
    return own, {one: (round(h * scale), round(w * scale)) for one, (h, w) in own.items()}


def _fill(
    config: CaptureConfig,
    table: Table,
    work: Iterator[int],
    describe: Callable[[bool], None],
    total: int,
    play: Play | None = None,
) -> None:
    """Do the work and save now and then; ``describe`` takes whether it is complete."""
    # Written first, so that a capture killed at any moment can be read and resumed.
    describe(False)
    saved, complete = len(table.rows), False
    try:
        with tqdm(total=total, initial=saved, desc="capture", unit="frame", disable=None) as bar:
            if play is not None:
                play.show = bar.set_postfix_str
            for added in work:
                bar.update(added)
                if play is not None:
                    bar.set_postfix_str(play.rate, refresh=added == 0)
                if len(table.rows) >= saved + SAVE_EVERY:
                    table.save()
                    saved = len(table.rows)
        complete = True
    finally:
        table.save()
        describe(complete)


def _episodes(config: CaptureConfig, dataset: Path) -> int:
    """Take the images of a LeRobot dataset; return 0."""
    source = LeRobotFolder(dataset, config.camera)
    labels = labels_of(config, source)
    plan = choose_frames(config.frames, source, labels)
    own = next(source.images([(plan[0][0], [0])]))[2].shape[:2]
    sized = replace(config, image_size=config.image_size or chosen_size([own]))
    known = {
        "scene": source.scene,
        "lerobot": {"labels": str(labels), "fps": source.fps},
        **_how(config, None if sized.image_size == own else sized.image_size),
    }
    print(
        f"{source.frames} images of {len(source.episodes)} episodes in {dataset}, camera "
        f"{source.camera}; a success is {labels or 'not asked for'}.{source.skipped}"
    )
    total = sum(len(chosen) for *_, chosen in plan)
    table = _converted(config, known, partial(fill, sized, source, plan), total)
    if labels is None:
        print(f"{len(table.rows)} images in {config.out}, without labels.")
        print(f"next: {command('train-vae', '--data', config.out)}")
        return 0
    return _end(config, table)


def _videos(config: CaptureConfig, source: Path) -> int:
    """Take the images of videos; return 0."""
    videos = find_videos(source)
    own = [video.size for video in videos]
    size = config.image_size or chosen_size(own)
    known = {
        "scene": {"videos": source.resolve().name},
        "video_fps": config.video_fps,
        **_how(config, None if {*own} == {size} else size),
    }
    marks = read_labels(source, videos, config.video_fps)
    plan = plan_images(config.frames, marks)
    total = sum(map(len, plan))
    seconds = sum(video.seconds for video in videos)
    print(f"{total} images of {len(videos)} videos of {seconds:.0f} seconds in all")
    fps = config.video_fps
    table = _converted(
        config, known, lambda table: take_images(videos, marks, plan, table, fps, size), total
    )
    return _end(config, table)


def _converted(
    config: CaptureConfig,
    known: Mapping[str, Any],
    work: Callable[[Table], Iterator[int]],
    total: int,
) -> Table:
    """Write the images of recordings; return the table of them."""
    line = resume_command("capture", config.out)
    with RunFolder(config.out, config, resume=config.resume, again=line) as folder:
        table = Table(folder)
        describe = partial(_describe, config, table, known, None)
        _fill(config, table, work(table), describe, total)
    return table


def _end(config: CaptureConfig, table: Table) -> int:
    print(_summary(config, table))
    print(f"next: {after_capture(config.out)}")
    return 0


def _summary(config: CaptureConfig, table: Table) -> str:
    """Return what was captured, and the error rate that it supports."""
    free = shutil.disk_usage(config.out).free / 1e9
    episodes = table.episodes("failure")
    deciding = round(HELD_OUT_SHARES[0] * episodes)
    needed = negatives_needed(0.01)
    warnings = [f"warning: {sentence}\n" for sentence in find_label_leakage(table.rows.values())]
    text = "".join(warnings) + (
        f"{len(table.rows)} images in {config.out}: {table.count('success')} successes from "
        f"{table.episodes('success')} episodes, {table.count('failure')} failures from {episodes} "
        f"({free:.0f} GB free).\n"
        f"finetune chooses the threshold on about {deciding} of the episodes with failures: "
    )
    if deciding == 0:
        return text + "too few to support any false-positive rate; capture more with --resume."
    text += (
        f"without one error they support a false-positive rate of {rate_supported(deciding):.1%} "
        "per episode, with 95 % confidence."
    )
    if (steps := table.lengths().get("episode_steps")) is not None:
        seen = table.count("failure") / episodes
        share = episode_rate(rate_supported(deciding), steps, seen)
        text += f" Failing episodes of {steps} steps get a false claim in up to {share:.0%} then."
    if deciding < needed and config.recordings is not None:
        text += f" For 1 % it takes {needed}: record more episodes."
    elif deciding < needed:
        frames = math.ceil(len(table.rows) * needed / deciding / 1000) * 1000
        text += f" For 1 % it takes {needed}: --resume --frames {frames}."
    return text


def _place(config: CaptureConfig) -> Path | None:
    if config.recordings is None and has_own_reward(config.env):
        return None
    return Path("data") / bundle_name(config.recordings or config.env, "")


SETTINGS = Settings(
    CaptureConfig,
    fixed=(
        "env", "env_kwargs", "truth", "labels_from", "image_source", "image_size", "stack",
        "policy", "mix", "per_episode", "progress", "recordings", "video_fps", "camera",
        "label_column", "seed",
    ),
    check=_check,
    place=_place,
)  # fmt: skip
