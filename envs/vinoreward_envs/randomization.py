"""What may differ between episodes of the hover task, and within which ranges.

Ranges are plain data; an environment draws one set of values from them at each reset, with its own
random numbers.
"""

# Fields are made by a function that keeps their limits.
# ruff: noqa: RUF009

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from vinoreward.errors import ConfigError

Range = tuple[float, float]
"""Least and greatest value; equal ones do not vary."""
MAX_DELAY: Final = 9
"""Steps; an episode has ten."""
_ALWAYS: Final = {"another_colour": 3, "image_noise_at": 1, "action_noise_at": 1}
"""What is drawn in [0, 1) whatever the ranges are, and how many values: the colour that is mixed
into the object's, and where in the tables of noise an episode begins."""

NOISE_STARTS: Final = 1 << 16
"""Places in the table of the sensor's noise where an image may begin."""
NEXT_NOISE: Final = 7919
"""Numbers further on begins the noise of the next image."""
NOISE_UNIT, NOISE_STEPS = 32, 8
"""Noise is fixed-point, the same on every device: in 1/32 of a standard deviation, and deviations
in 1/8 of a grey level."""
NOISE_ROUNDED: Final = NOISE_UNIT * NOISE_STEPS // 2
"""Added to a product of both before it is shifted: it is rounded, and an image's mean stays."""
NOISE_SHIFTED: Final = (NOISE_UNIT * NOISE_STEPS).bit_length() - 1
"""Bits by which it is shifted to whole grey levels."""


def _within(least: float, most: float, unit: str, default: float, *, values: int = 1) -> Any:
    """Return a dataclass field whose metadata has its limits and its values per episode."""
    limits = {"limits": (least, most, unit), "values": values}
    return dataclasses.field(default=(default, default), metadata=limits)


def _range(name: str, value: Any, least: float, most: float, unit: str) -> tuple[Any, Any]:
    """Return a checked pair: of whole numbers for whole steps, else of floats."""
    whole = unit == "whole steps"
    try:
        low, high = (float(end) for end in value)
    except (TypeError, ValueError):
        low = high = math.nan
    # NaN compares false, so this refuses it as well.
    fits = least <= low <= high <= most and not isinstance(value, str | Mapping)
    if not fits or (whole and not (low.is_integer() and high.is_integer())):
        raise ConfigError(
            f"Found {name}={value!r} in randomization; expected (low, high), {unit} from {least:g} "
            f"to {most:g}, with low at most high. Pass such a pair."
        )
    return (int(low), int(high)) if whole else (low, high)


@dataclass(frozen=True)
class DomainRandomization:
    """Ranges from which each episode draws its own light, camera, object, table and noise.

    Each is ``(low, high)``, drawn uniformly; by default nothing varies. A pair of lists, as JSON
    has them, will do as well.

    Raises:
        ConfigError: a low above its high, no finite number, or a value beyond what can be drawn.
    """

    light: Range = _within(0.0, 4.0, "a factor", 1.0)
    """Brightness of the image, a factor from 0 to 4."""
    light_direction: Range = _within(-60.0, 60.0, "degrees", 0.0, values=2)
    """Degrees by which the light is turned about the vertical, and, drawn apart, lowered towards
    the horizon; ±60."""
    colour_cast: Range = _within(-1.0, 1.0, "a share", 0.0)
    """Share by which red is up and blue is down, as under a warmer lamp; ±1."""
    camera_position: Range = _within(-0.2, 0.2, "metres", 0.0, values=3)
    """Metres by which the camera is moved along x, y and z, each drawn apart; ±0.2."""
    camera_rotation: Range = _within(-30.0, 30.0, "degrees", 0.0, values=3)
    """Degrees by which the camera is panned, tilted and rolled, each drawn apart; ±30."""
    field_of_view: Range = _within(20.0, 120.0, "degrees", 60.0)
    """The camera's vertical field of view in degrees, 20 to 120."""
    object_size: Range = _within(0.25, 2.0, "a factor", 1.0)
    """Size of the object, a factor from 0.25 to 2; it still lies on the table."""
    object_colour: Range = _within(0.0, 1.0, "a share", 0.0)
    """Share of another colour in the object's, from 0 (blue) to 1; any colour is as likely."""
    object_yaw: Range = _within(-360.0, 360.0, "degrees", 0.0)
    """Degrees by which the object is turned about the vertical through its base; ±360."""
    table_tint: Range = _within(-1.0, 1.0, "a share", 0.0, values=3)
    """Share by which red, green and blue of table and floor are up, each drawn apart; ±1."""
    table_shift: Range = _within(-1.0, 1.0, "metres", 0.0, values=2)
    """Metres by which the table's grain is moved along x and y, each drawn apart; ±1."""
    sensor_noise: Range = _within(0.0, 25.0, "grey levels", 0.0)
    """Standard deviation of the noise in each colour of each pixel, 0 to 25 grey levels."""
    action_noise: Range = _within(0.0, 0.05, "metres", 0.0)
    """Standard deviation of where a move ends, along x and along y, 0 to 0.05 metres."""
    action_delay: tuple[int, int] = _within(0, MAX_DELAY, "whole steps", 0)
    """Steps after which a move is made, 0 to 9; until the first the arm waits."""

    def __post_init__(self) -> None:
        """Take lists too, and refuse what cannot be drawn."""
        for field in dataclasses.fields(self):
            pair = _range(field.name, getattr(self, field.name), *field.metadata["limits"])
            object.__setattr__(self, field.name, pair)

    @property
    def varies(self) -> bool:
        """Whether anything is not as it is by default."""
        return self != DomainRandomization()

    def scaled(self, share: float) -> DomainRandomization:
        """Return ranges brought towards the default: 0 is the default, 1 these ranges.

        Raises:
            ConfigError: a share below 0, no number, or so much above 1 that a limit is passed.
        """
        if not (isinstance(share, int | float | np.number) and 0 <= share < math.inf):
            raise ConfigError(
                f"Found {share!r} as a share of ranges; expected a number of at least 0, such as "
                "0.5. Pass one."
            )
        scaled: dict[str, Any] = {}
        for name, field in _FIELDS.items():
            pair: Any = field.default
            usual = pair[0]
            ends = (usual + share * (end - usual) for end in getattr(self, name))
            kind = round if isinstance(usual, int) else float
            scaled[name] = tuple(map(kind, ends))
        return DomainRandomization(**scaled)

    def as_dict(self) -> dict[str, list[float]]:
        """Return plain data: what varies, for ``gym.make_vec(..., randomization=...)``."""
        pairs = {name: getattr(self, name) for name in _FIELDS}
        return {name: list(pair) for name, pair in pairs.items() if pair != _FIELDS[name].default}

    def draw(self, uniform: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the values of K episodes, ``(K, DRAWS)``, from numbers in [0, 1) of that shape."""
        values: NDArray[np.float64] = spread(uniform, *self.spans())
        return values

    def spans(self) -> NDArray[np.float64]:
        """Return ``(2, DRAWS)``: the least of each value, and by how much it can be more."""
        spans = np.zeros((2, DRAWS))
        for name, at in COLUMNS.items():
            low, high = getattr(self, name, (0.0, 1.0))
            whole = 1 if name == "action_delay" else 0
            spans[0, at], spans[1, at] = low, high - low + whole
        return spans


_FIELDS: Final = {each.name: each for each in dataclasses.fields(DomainRandomization)}
_COUNTS: Final = {name: each.metadata["values"] for name, each in _FIELDS.items()} | _ALWAYS
_VALUES: Final = np.dtype(
    [(name, np.float64, (many,) if many > 1 else ()) for name, many in _COUNTS.items()]
)
DRAWS: Final = _VALUES.itemsize // 8
"""Values, and random numbers, of one episode: of each of the ranges, and what is always drawn."""
COLUMNS: Final[Mapping[str, int | slice]] = {
    name: at // 8 if kind.base == kind else slice(at // 8, (at + kind.itemsize) // 8)
    for name, (kind, at, *_) in (_VALUES.fields or {}).items()
}
"""Where each field is among the ``DRAWS`` values of an episode."""


def spread(uniform: Any, least: Any, span: Any) -> Any:
    """Return ``(K, DRAWS)`` values for numbers in [0, 1), arrays or tensors; see ``spans``."""
    numbers = least + span * uniform
    numbers[:, COLUMNS["action_delay"]] //= 1  # whole steps
    return numbers


def by_name(values: NDArray[np.float64]) -> NDArray[np.void]:
    """Return ``(K, DRAWS)`` values as ``(K,)`` with a field each, in their memory if it can."""
    named: NDArray[np.void] = np.ascontiguousarray(values).view(_VALUES)[:, 0]
    return named


def nominal(count: int) -> NDArray[np.float64]:
    """Return the ``(count, DRAWS)`` values of episodes in which nothing differs."""
    return DomainRandomization().draw(np.zeros((count, DRAWS)))


LAB: Final = DomainRandomization(
    light=(0.7, 1.3),
    light_direction=(-20.0, 20.0),
    colour_cast=(-0.1, 0.1),
    camera_position=(-0.01, 0.01),
    camera_rotation=(-1.0, 1.0),
    field_of_view=(59.0, 61.0),
    object_size=(0.9, 1.1),
    object_colour=(0.0, 0.3),
    object_yaw=(-180.0, 180.0),
    table_tint=(-0.1, 0.1),
    table_shift=(-0.2, 0.2),
    sensor_noise=(0.0, 6.0),
    action_noise=(0.0, 0.003),
    action_delay=(0, 1),
)
"""What a working day brings to a real lab: lamps and daylight, a camera that was bumped, other
objects of a kind, any way round, another table, a cheap sensor, a slow link. ``"lab"`` names it."""


def checked_randomization(
    value: DomainRandomization | Mapping[str, Any] | str | None,
) -> DomainRandomization:
    """Return the ranges that are given as such, as plain data, or as ``"lab"``; None: no variation.

    Raises:
        ConfigError: something else, an unknown field, or ranges that cannot be.
    """
    if isinstance(value, DomainRandomization):
        return value
    if value is None:
        return DomainRandomization()
    if value == "lab":
        return LAB
    if not isinstance(value, Mapping):
        raise ConfigError(
            f'Found randomization={value!r}; expected "lab", a DomainRandomization, or a table of '
            "its fields such as {'light': (0.7, 1.3)}. Pass one of them."
        )
    unknown = sorted(set(map(str, value)) - set(_FIELDS))
    if unknown:
        raise ConfigError(
            f"Found {', '.join(unknown)} in randomization; expected some of {', '.join(_FIELDS)}. "
            "Correct the name, or leave it out."
        )
    return DomainRandomization(**value)


@functools.lru_cache(maxsize=4)
def normals(count: int) -> NDArray[np.float64]:
    """Return a table of ``count`` standard normal numbers, always the same.

    Noise is read from it, beginning where an episode drew: to draw it anew for each pixel would
    cost more than to draw the image.
    """
    return np.random.default_rng(0x0153).standard_normal(count)


@functools.lru_cache(maxsize=4)
def noise_table(count: int) -> NDArray[np.int16]:
    """Return ``count`` normal numbers in parts of their deviation, at most four of it."""
    return np.rint(NOISE_UNIT * np.clip(normals(count), -4.0, 4.0)).astype(np.int16)
