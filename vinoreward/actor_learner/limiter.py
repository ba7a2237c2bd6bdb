"""Limits how often the learner samples what actors insert, on both sides.

The rule of Reverb's ``SampleToInsertRatio`` (Cassirer et al. 2021, arXiv:2102.04736): the surplus
``inserts · ratio - samples`` stays within ``error_buffer`` of its value when sampling may begin.
The faster side waits, so the ratio is a setting and does not depend on the machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from vinoreward.errors import ConfigError

ROUNDING = 1e-9
"""Tolerance in samples, so that rounding cannot block both sides at the limit."""


@dataclass(frozen=True)
class SamplesPerInsert:
    """A two-sided rate limit: pure arithmetic on two counters.

    Attributes:
        ratio: mean number of samples per insert; above 0.
        min_size: inserts before the first sample.
        error_buffer: maximum deviation of the surplus from its initial value, in samples.
        insert_size: maximum inserted at once. If several actors read the counters before any of
            them inserts, the sum over those actors.
        sample_size: maximum sampled at once (a batch).

    Raises:
        ConfigError: values that are not positive, or an error buffer with which both sides could
            wait for each other.
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
                f"the limiter has ratio {self.ratio}, min_size {self.min_size} and error_buffer "
                f"{self.error_buffer}. Expected finite numbers, a ratio above 0 and a min_size of "
                "at least 1."
            )
        if self.insert_size < 1 or self.sample_size < 1:
            raise ConfigError(
                f"the limiter has insert_size {self.insert_size} and sample_size "
                f"{self.sample_size}. Expected at least 1 each."
            )
        needed = self.smallest_buffer(self.ratio, self.insert_size, self.sample_size)
        if self.error_buffer < needed:
            raise ConfigError(
                f"the limiter has error_buffer {self.error_buffer}. Expected at least {needed:g} "
                f"for ratio {self.ratio:g}, inserts of {self.insert_size} and samples of "
                f"{self.sample_size}; with less, actors and learner can block each other."
            )

    @staticmethod
    def smallest_buffer(ratio: float, insert_size: int = 1, sample_size: int = 1) -> float:
        """Return the smallest error buffer that cannot block both sides."""
        # Blocked both: surplus > offset + buffer - insert·ratio and < offset - buffer + sample.
        # Blocked before the first sample: an insert that passes min_size by insert_size - 1.
        return max(ratio * insert_size, (ratio * insert_size + sample_size) / 2)

    def surplus(self, inserts: int, samples: int) -> float:
        """Return ``inserts · ratio - samples``, relative to its value when sampling may begin."""
        return (inserts - self.min_size) * self.ratio - samples

    def can_insert(self, inserts: int, samples: int, count: int = 1) -> bool:
        """Return whether ``count`` more may be inserted after these inserts and samples."""
        if inserts + count <= self.min_size:
            return True
        return self.surplus(inserts + count, samples) <= self.error_buffer + ROUNDING

    def can_sample(self, inserts: int, samples: int, count: int = 1) -> bool:
        """Return whether ``count`` more may be sampled after these inserts and samples."""
        if inserts < self.min_size:
            return False
        return self.surplus(inserts, samples + count) >= -self.error_buffer - ROUNDING
