"""Compression of policies: a chain of stages that turns the learner's network into the actors'.

::

    chain = CompressorChain().add(Prune(0.5)).add(Distill()).add(Quantize("int8"))
    small = chain.compress(policy, CompressionContext(policy, observations))

This package computes on arrays; it starts no processes and shares no memory. Only :class:`Distill`
needs torch, which it imports on first use. Stages refuse invalid arguments with a ConfigError.
"""

from vinoreward_actors.compression.chain import (
    CompressionContext,
    CompressorChain,
    Quality,
    Stage,
    check_policy,
    compare_outputs,
)
from vinoreward_actors.compression.compile import Compile
from vinoreward_actors.compression.distill import Distill
from vinoreward_actors.compression.prune import Prune
from vinoreward_actors.compression.quantize import Quantize

__all__ = [
    "Compile",
    "CompressionContext",
    "CompressorChain",
    "Distill",
    "Prune",
    "Quality",
    "Quantize",
    "Stage",
    "check_policy",
    "compare_outputs",
]
