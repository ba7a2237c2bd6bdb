"""What a graph would cost to compile, judged by how its operations hang together.

OpenVINO joins neighbouring elementwise operations, and the time it takes for that grows with the
square of how many there are side by side, or with the third power where one result is read by all
of them: 600 additions of the same tensor take it 42 s. Real networks have a convolution or a
product of matrices after every few of them, and results that few layers read. For each use of a
size it goes through all that the size is calculated from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from vinoreward.errors import ModelRefusedError

MAX_OPERATIONS = 6000
"""Operations that are left when constants are folded; EfficientNet-B7 has about 1,000."""
MAX_READERS = 128
"""Of one result; DenseNet-264 has 65."""
MAX_CLUSTER = 128
"""Operations that nothing parts which stays when a graph is compiled; a ViT has about 10."""
MAX_STEPS = 50_000
"""Operations behind all sizes, counted for each use of a size; a Swin-L has about 6,000."""

# In ONNX's words and OpenVINO's. These stay what they are, whatever they are given,
_PARTING = frozenset(
    """
    Conv ConvInteger ConvTranspose Convolution ConvolutionBackpropData Einsum Gemm
    GroupConvolution GroupConvolutionBackpropData GroupNormalization InstanceNormalization
    LayerNormalization LogSoftmax MatMul MatMulInteger MVN QLinearConv QLinearMatMul
    RMSNormalization ScaledDotProductAttention SoftMax Softmax
    """.split()  # noqa: SIM905 - read as words
)
# and these if they return more or fewer numbers than they take, else they may be left out.
_RESIZING = frozenset(
    """
    ArgMax ArgMin AveragePool AvgPool Broadcast Concat DepthToSpace Expand Gather GatherND
    GlobalAveragePool GlobalLpPool GlobalMaxPool Interpolate LpPool MaxPool Pad ReduceL1 ReduceL2
    ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum
    ReduceSumSquare Resize Slice Split StridedSlice Tile TopK VariadicSplit
    """.split()  # noqa: SIM905
)


class CompileCost:
    """Takes the operations of a graph in their order and raises when they are too many together."""

    def __init__(self, inputs: Sequence[str]) -> None:
        self._levels = dict.fromkeys(inputs, 0)  # of what depends on the picture
        self._readers: Counter[str] = Counter()
        self._clusters: dict[str, str] = {}  # result to another one of its cluster, at last itself
        self._sizes: Counter[str] = Counter()
        self._behind: dict[str, int] = {}  # what a size is calculated with, a bit for each
        self._steps = 0
        self._left = 0

    def add(
        self, op: str, sources: Sequence[str], results: Sequence[str], *, resized: bool
    ) -> None:
        """Add an operation whose results are not constant numbers.

        Args:
            op: its name in ONNX or OpenVINO.
            sources: names of what it reads; the file's constants do not count.
            results: names of what it gives.
            resized: it returns more or fewer numbers than its first input has.

        Raises:
            ModelRefusedError: there are too many.
        """
        self._left += 1
        if self._left > MAX_OPERATIONS:
            raise ModelRefusedError(f"it has more than {MAX_OPERATIONS} operations")
        before = [self._levels[name] for name in sources if name in self._levels]
        level = max(before, default=-1)
        self._readers.update(name for name in sources if name in self._levels)
        most = max((self._readers[name] for name in sources), default=0)
        if most > MAX_READERS:
            raise ModelRefusedError(f"more than {MAX_READERS} operations read one result")
        self._steps += sum(self._behind.get(name, 0).bit_count() for name in sources)
        if self._steps > MAX_STEPS:
            raise ModelRefusedError(f"its sizes are calculated in more than {MAX_STEPS} steps")
        parting = op in _PARTING or (op in _RESIZING and resized)
        if before:
            self._levels.update(dict.fromkeys(results, level + parting))
        if not parting:
            here = [name for name in sources if self._levels.get(name, -1) == level]
            self._join(results, [name for name in here if name in self._clusters])

    def add_size(self, sources: Sequence[str], results: Sequence[str]) -> None:
        """Add an operation whose results are known before the network runs.

        Args:
            sources: names of what it reads; none if it returns a shape.
            results: names of what it gives.

        """
        behind = 1 << len(self._behind)
        for name in sources:
            behind |= self._behind.get(name, 0)
        self._behind.update(dict.fromkeys(results, behind))

    def _join(self, results: Sequence[str], sources: Sequence[str]) -> None:
        head = results[0]
        size = 1
        for root in {self._root(name) for name in sources}:
            self._clusters[root] = head
            size += self._sizes.pop(root)
        if size > MAX_CLUSTER:
            raise ModelRefusedError(
                f"it has more than {MAX_CLUSTER} operations side by side without a convolution or "
                "the like between them"
            )
        self._clusters.update(dict.fromkeys(results, head))
        self._sizes[head] = size

    def _root(self, name: str) -> str:
        while (above := self._clusters[name]) != name:
            # Half the way is left for the next search.
            self._clusters[name] = name = self._clusters[above]
        return name
