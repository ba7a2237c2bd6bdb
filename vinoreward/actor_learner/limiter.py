"""How often the learner may use what actors insert: a limit on both sides.

The rule of Reverb's ``SampleToInsertRatio`` (Cassirer et al. 2021, arXiv:2102.04736): the surplus
``inserts · ratio - samples`` stays within ``error_buffer`` of what it is when the learner may
begin. A learner that is too fast waits, and so do actors that are too fast, so that the ratio is a
setting and not an accident of the machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from vinoreward.errors import ConfigError

ROUNDING = 1e-9
"""Samples that either side may be over: at the very limit, rounding must not stop both."""


@dataclass(frozen=True)
class SamplesPerInsert:
    """A two-sided rate limit; pure arithmetic on two counters, wherever they are kept.

    Attributes:
        ratio: samples the learner takes of each insert, on average; above 0.
        min_size: inserts before the first sample.
        error_buffer: how far the surplus may be from its value at the start, in samples.
        insert_size: the most that is inserted at once. Where several actors look at the counters
            before any of them inserts, what all of them insert together.
        sample_size: the most that is sampled at once (a batch).

    Raises:
        ConfigError: not positive, or an error buffer so small that both sides could end up waiting
            for each other.
    """

    ratio: float
    min_size: int
    error_buffer: float
    insert_size: int = 1
    sample_size: int = 1

    def __post_init__(self) -> None:
        finite = math.isfinite(self.ratio) and math.isfinite(self.error_buffer)
        if not finite or self.ratio <= 0 or self.min_size < 1:
            raise ConfigError(
                f"ratio {self.ratio}, min_size {self.min_size} and error_buffer "
                f"{self.error_buffer} were given. Expected finite numbers, a ratio above 0 and a "
                "min_size of at least 1."
            )
        if self.insert_size < 1 or self.sample_size < 1:
            raise ConfigError(
                f"insert_size {self.insert_size} and sample_size {self.sample_size} were given. "
                "Expected at least 1 each."
            )
        needed = self.smallest_buffer(self.ratio, self.insert_size, self.sample_size)
        if self.error_buffer < needed:
            raise ConfigError(
                f"error_buffer {self.error_buffer} was given. Expected at least {needed:g} for "
                f"ratio {self.ratio:g}, inserts of {self.insert_size} and samples of "
                f"{self.sample_size}; with less, actors and learner can wait for each other."
            )

    @staticmethod
    def smallest_buffer(ratio: float, insert_size: int = 1, sample_size: int = 1) -> float:
        """Return the smallest error buffer that cannot block both sides."""
        # Blocked both: surplus > offset + buffer - insert·ratio and < offset - buffer + sample.
        # Blocked before the first sample: an insert that passes min_size by insert_size - 1.
        return max(ratio * insert_size, (ratio * insert_size + sample_size) / 2)

    def surplus(self, inserts: int, samples: int) -> float:
        """Return ``inserts · ratio - samples``, less what it is when sampling may begin."""
        return (inserts - self.min_size) * self.ratio - samples

    def can_insert(self, inserts: int, samples: int, count: int = 1) -> bool:
        """Whether ``count`` more may be inserted after so many inserts and samples."""
        if inserts + count <= self.min_size:
            return True
        return self.surplus(inserts + count, samples) <= self.error_buffer + ROUNDING

    def can_sample(self, inserts: int, samples: int, count: int = 1) -> bool:
        """Whether ``count`` more may be sampled after so many inserts and samples."""
        if inserts < self.min_size:
            return False
        return self.surplus(inserts, samples + count) >= -self.error_buffer - ROUNDING
