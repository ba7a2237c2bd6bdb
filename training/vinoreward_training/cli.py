"""The one console command: ``vinoreward COMMAND [options]``."""

from __future__ import annotations

import atexit
import dataclasses
import gc
import importlib
import importlib.metadata
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vinoreward.bundles.hub import download
from vinoreward.bundles.locate import SPEC_FILE
from vinoreward.errors import ConfigError, VinorewardError, install_command
from vinoreward.images import shown_name
from vinoreward_training import configs
from vinoreward_training.interrupts import terminated_like_interrupted
from vinoreward_training.runs.machine import extra_of

_OWN = "vinoreward_training"
COMMANDS: dict[str, tuple[str, type[Any]]] = {
    "reward": (f"{_OWN}.reward.command", configs.RewardConfig),
    "capture": (f"{_OWN}.capture.command", configs.CaptureConfig),
    "finetune": (f"{_OWN}.classifier.finetune", configs.FinetuneConfig),
    "import": (f"{_OWN}.importing", configs.ImportConfig),
    "calibrate": (f"{_OWN}.classifier.calibrate", configs.CalibrateConfig),
    "label": (f"{_OWN}.labelling.command", configs.LabelConfig),
    "score": (f"{_OWN}.classifier.score", configs.ScoreConfig),
    "audit": (f"{_OWN}.audit.command", configs.AuditConfig),
    "mend": (f"{_OWN}.mending.command", configs.MendConfig),
    "train-vae": (f"{_OWN}.encoder.train_vae", configs.TrainVaeConfig),
    "train": (f"{_OWN}.policy.train", configs.TrainConfig),
    "play": (f"{_OWN}.play.command", configs.PlayConfig),
    "watch": (f"{_OWN}.watch.command", configs.WatchConfig),
    "profile": (f"{_OWN}.profile", configs.ProfileConfig),
    "doctor": (f"{_OWN}.doctor", configs.DoctorConfig),
    "demo": (f"{_OWN}.demo.command", configs.DemoConfig),
}
"""Command name to the module with its ``run``, and its options."""


BUNDLES = ("--bundle", "--encoder")
"""Options whose value may be a bundle on the Hugging Face Hub, or a run with a bundle."""
WRITING = ("calibrate",)
"""Commands that write into the bundle."""


def with_folders(name: str, words: Sequence[str]) -> list[str]:
    """Return a command's words with the folders of bundles that are named otherwise.

    A run stands for the bundle in it. What is named as on the Hub is downloaded, and only here: a
    name that a run or a preset records downloads nothing.
    """
    given: list[str] = []
    for word in words:
        option, equals, value = word.partition("=")
        if not equals:
            option, value = (given or [""])[-1], word
        if option in BUNDLES and value.startswith("hf:") and not os.path.isdir(value):
            if name in WRITING:
                repository, _, revision = value.removeprefix("hf:").strip("/").partition("@")
                more = f" --revision {revision}" if revision else ""
                raise ConfigError(
                    f"{name} writes into the bundle, and {value} is on the Hugging Face Hub. "
                    "Expected a folder of your own; get a copy with: hf download "
                    f"{repository}{more} --local-dir my-bundle"
                )
            folder = str(download(value))
            print(f"{value} is in {folder}")
            word = f"{option}={folder}" if equals else folder
        elif option in BUNDLES and (Path(value) / "bundle" / SPEC_FILE).is_file():
            word = f"{option}={value}/bundle" if equals else f"{value}/bundle"
        given.append(word)
    return given


def commands() -> dict[str, tuple[str, type[Any]]]:
    """Return ``COMMANDS`` and those that packages add in the entry-point group of that name."""
    added = importlib.metadata.entry_points(group="vinoreward.commands")
    return {**COMMANDS, **{entry.name: entry.load() for entry in added}}


def usage() -> str:
    """Return the top-level help text."""
    lines = ["usage: vinoreward COMMAND [options]", "", "commands:"]
    for name, (_, config) in commands().items():
        lines.append(f"  {name:<17} {(config.__doc__ or '').splitlines()[0]}")
    lines += ["", "vinoreward COMMAND --help shows a command's options with examples."]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    That is 0, 1 (an error the message explains), 2 (usage), 3 (finetune or calibrate found the
    classifier useless, audit that it fails, or mend that the old one is better) or 130 (Ctrl-C).
    """
    if argv is None:
        # The process ends with the command. To look for garbage among all that PyTorch makes takes
        # Python an eighth of the time of PyTorch's import, and a second at the end.
        gc.set_threshold(50_000, 20, 20)
        atexit.register(gc.freeze)
    try:
        status = _run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()  # raises BrokenPipeError here and not when Python exits
        return status
    except BrokenPipeError:
        # The reader has closed the pipe ("| head"); Python would raise again when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in {"-h", "--help", "help"}:
        print(usage())
        return 0 if arguments else 2
    name = arguments[0]
    if name in {"--version", "-V"}:
        print(f"vinoreward {importlib.metadata.version('vinoreward')}")
        return 0
    known = commands()
    if name not in known:
        print(f"vinoreward: no command {name!r}\n\n{usage()}", file=sys.stderr)
        return 2
    try:
        arguments = [name, *with_folders(name, arguments[1:])]
        # Imported here, so that the top-level help appears at once.
        from vinoreward_training.runs.settings import Settings

        place, kind = known[name]
        module = importlib.import_module(place)
        prog = f"vinoreward {name}"
        settings: Settings[Any] = getattr(module, "SETTINGS", None) or Settings(kind)
        config = settings.parse(arguments[1:], prog=prog)
        with terminated_like_interrupted():
            return int(module.run(config))
    except VinorewardError as error:
        # It may quote a file, whose control characters must not reach the terminal.
        options = {field.name for field in dataclasses.fields(known[name][1])}
        lines = [shown_name(line) for line in error.as_options(options).splitlines()]
        print(f"vinoreward {name}: " + "\n".join(lines), file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        extra = extra_of(str(error.name))
        if extra is None:
            raise
        print(
            f"vinoreward {name}: needs {error.name}, which is not installed. Install it with: "
            f"{install_command(extra)}",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        print(f"\nvinoreward {name}: stopped. What was written is valid.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
