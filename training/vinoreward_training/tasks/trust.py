"""Code that a file names is run only if the user agrees: the file may come from somebody else."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from vinoreward.errors import ConfigError

_OURS = ("vinoreward", "vinoreward_envs", "vinoreward_training", "vinoreward_actors")
_NAME = re.compile(r"[\w.:/+-]+")


def names_function(text: str) -> bool:
    """Return whether a text is ``FILE.py:FUNCTION`` or ``PACKAGE.MODULE:FUNCTION``, and no path."""
    where, _, name = text.rpartition(":")
    return bool(where) and name.isidentifier() and not os.path.exists(text)


def agree_to_run(
    named: object, named_by: Path, *, trust_run: bool | None = False, field: str
) -> None:
    """Raise ConfigError unless the user agrees to run the code of what a file names.

    For ``package:Id-v0`` Gymnasium imports the package; a function's module or file is run. Asked
    on a terminal only; elsewhere the answer is no. A package that is imported already, or one of
    ours, needs no agreement. ``trust_run`` is None where there is no such option.
    """
    if named in (None, "") or (isinstance(named, str) and os.path.exists(named)):
        return
    if not isinstance(named, str) or not _NAME.fullmatch(named):
        raise ConfigError(
            field=field,
            value=named,
            expected=f"a name or package:name in {named_by}",
            remedy="restore the file, or leave it out",
        )
    module = named.rpartition(":")[0]
    ours = module.partition(".")[0] in _OURS and not module.endswith(".py")
    if trust_run or not module or module in sys.modules or ours:
        return
    asked = (
        f"{named_by} names {named} as `{field}`, for which Python would import {module} and run "
        "its code."
    )
    if sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty():
        print(f"{asked} Import it? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() in ("y", "yes"):
            return
    option = "" if trust_run is None else ", or add --trust-run"
    raise ConfigError(
        f"{asked} Expected your agreement, as the file may come from somebody else; if you trust "
        f"it, name it yourself, `{field}={named}`{option}."
    )


def trust_args(name: str | None, option: str = "--env") -> list[str]:
    """Return the option by which the user agrees to an import, if what is named needs one."""
    return [option, name] if name is not None and ":" in name else []
