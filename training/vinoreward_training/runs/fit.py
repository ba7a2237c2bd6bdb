"""The training loop of ``finetune`` and ``train-vae``, resumable to the step, and its export."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors.torch
import torch
from torch import Tensor, nn

from vinoreward.backends.base import load_backend
from vinoreward.backends.convert import export_onnx
from vinoreward.backends.network import NetworkSpec
from vinoreward.errors import ConfigError, ModelCorruptError, OutputError
from vinoreward.files import save_state
from vinoreward.processes import interrupt_between
from vinoreward_training.runs.machine import freed_memory_kept, threads
from vinoreward_training.runs.run_folder import read_tensors

CHECKPOINT = "checkpoint.pt"
EXPORT_TOLERANCE = 2e-3
"""Largest difference that an exported network may show, in units of its largest number."""
BF16_SHARE = 0.75
"""Share of the steps that may run in bfloat16; the rest run in float32."""

Indices = npt.NDArray[np.int64]
Record = dict[str, float]
Floats = npt.NDArray[np.float32]
Images = npt.NDArray[np.uint8]


def prepare_torch(seed: int) -> None:
    """Set torch's threads and seed; call it before a network is built."""
    torch.set_num_threads(threads())
    torch.manual_seed(seed)


class Fit(abc.ABC):
    """One training: a network, its optimiser and its progress.

    A subclass defines a step's loss, the learning rate, an evaluation, and the constants below.
    Where the processor has bfloat16, the first three quarters of the steps use it.

    Args:
        module: trained in place.
        optimiser: of its parameters.
        train: numbers of the frames to train on.
        folder: holds the checkpoint.
        about: what is trained on and how, by name: a checkpoint must be of the same.
        steps: in all.
        every: steps between evaluations.
        batch_size: frames per step.
        seed: of the order of frames.
        resume: continue from the checkpoint, if there is one.
        patience: epochs without a better score before training stops; None: never.
        shares: (N,) how often each frame is drawn; None: each once an epoch.

    Raises:
        ConfigError, ModelCorruptError: the checkpoint is of something else, or damaged.
    """

    POSTFIX: tuple[str, ...] = ()
    """What the progress bar shows of an evaluation."""
    SAVE_EVERY: int
    """Steps between checkpoints: what a kill can cost."""
    CLIP: float
    """Largest norm of the gradient."""

    def __init__(
        self,
        module: nn.Module,
        optimiser: torch.optim.Optimizer,
        train: Indices,
        folder: Path,
        *,
        about: dict[str, Any],
        steps: int,
        every: int,
        batch_size: int,
        seed: int,
        resume: bool,
        patience: int | None = None,
        shares: npt.NDArray[np.float64] | None = None,
    ) -> None:
        self.module = module
        self.steps = steps
        self.step = 0
        self.history: list[Record] = []
        """One record per evaluation."""
        self._batch_size, self._seed = min(batch_size, len(train)), seed
        self._bf16 = _has_bf16()
        self._optimiser = optimiser
        self._train, self._shares = train, shares
        self._checkpoint, self._about = folder / CHECKPOINT, about
        self._every, self._patience = every, patience
        self._best: dict[str, Tensor] = {}
        self._best_loss, self._best_epoch = math.inf, -1
        self._order: tuple[int, Indices] | None = None
        self._per_epoch = steps_per_epoch(train, batch_size)
        if resume and self._checkpoint.is_file():
            self._load()

    @abc.abstractmethod
    def _loss(self, batch: Indices, random: torch.Generator) -> tuple[Tensor, Record]:
        """Return the loss on some frames, and its parts by name."""

    @abc.abstractmethod
    def _rate(self, step: int) -> float:
        """Return the learning rate of a step."""

    @abc.abstractmethod
    def _evaluate(self, losses: list[Record]) -> tuple[Record, float | None]:
        """Return a record, and a score: the weights of the lowest are kept; None keeps the last.

        ``losses`` are of the steps since the last evaluation.
        """

    def save(self) -> None:
        """Write the checkpoint: weights, optimiser, best weights and the step; atomically."""
        state = {
            "about": self._about,
            "model": self.module.state_dict(),
            "optimiser": self._optimiser.state_dict(),
            "step": self.step,
            "best_loss": self._best_loss,
            "best_epoch": self._best_epoch,
            "best": self._best,
            "history": self.history,
        }
        save_state(self._checkpoint, state)

    def _load(self) -> None:
        """Go on from the checkpoint."""
        path = self._checkpoint
        state = read_tensors(path)
        if (found := state.get("about")) != self._about:
            raise ConfigError(
                f"{path} was written with {found}. Expected {self._about}: a checkpoint goes on "
                "with the same images and settings; train in a new folder with --out."
            )
        try:
            self.module.load_state_dict(state["model"])
            self._optimiser.load_state_dict(state["optimiser"])
            self.step, self.history = int(state["step"]), list(state["history"])
            self._best_loss, self._best_epoch = state["best_loss"], state["best_epoch"]
            self._best = dict(state["best"])
        except (KeyError, RuntimeError, TypeError, ValueError) as error:
            raise ModelCorruptError(
                f"{path} does not fit this run ({str(error).splitlines()[0]}). Expected the "
                "checkpoint of the same architecture; train in a new folder with --out."
            ) from error

    def _half(self) -> torch.autocast:
        """Return a context that computes in bfloat16 where that is due."""
        due = self._bf16 and self.step < BF16_SHARE * self.steps
        return torch.autocast("cpu", dtype=torch.bfloat16, enabled=due)

    def _batch(self) -> Indices:
        epoch, position = divmod(self.step, self._per_epoch)
        if self._order is None or self._order[0] != epoch:
            random = np.random.default_rng([self._seed, epoch])
            if self._shares is None:
                order = random.permutation(self._train)
            else:
                order = random.choice(self._train, len(self._train), p=self._shares)
            self._order = (epoch, order)
        start = position * self._batch_size
        return self._order[1][start : start + self._batch_size]

    def _step(self) -> Record:
        random = torch.Generator().manual_seed(self._seed * 1_000_003 + self.step)
        for group in self._optimiser.param_groups:
            group["lr"] = self._rate(self.step)
        loss, parts = self._loss(self._batch(), random)
        self._optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.module.parameters(), self.CLIP)
        self._optimiser.step()
        self.step += 1
        losses = {"loss": float(loss.detach()), **parts}
        if not math.isfinite(losses["loss"]):
            raise OutputError(
                f"the loss is {losses['loss']} after step {self.step}. Expected a finite number; "
                "lower `learning_rate`, or start again from the last checkpoint."
            )
        return losses

    def run(self, title: str, until: int | None = None) -> None:
        """Train to the end with a progress bar, then load the best weights where a score chooses.

        Ctrl-C lets the step finish, saves the checkpoint and raises KeyboardInterrupt. ``until``
        ends it after that step, to be continued by another call.
        """
        from tqdm import tqdm

        last = self.steps if until is None else min(until, self.steps)
        size = self._batch_size
        bar = tqdm(
            total=last * size, initial=self.step * size, desc=title, unit="frame", disable=None
        )
        self.module.train()
        losses: list[Record] = []
        # Between steps only: half a step saved would not lead to the very same weights again.
        with bar, interrupt_between() as check, freed_memory_kept():
            while self.step < last and not self._flat():
                losses.append(self._step())
                bar.update(size)
                due = self.step % self._every == 0 or self.step == self.steps
                if due:
                    self._record(losses)
                    bar.set_postfix({name: self.history[-1][name] for name in self.POSTFIX})
                    losses = []
                if due or self.step % self.SAVE_EVERY == 0 or self.step == last:
                    self.save()
                check(self.save)
        if self._best and (self.step == self.steps or self._flat()):
            self.module.load_state_dict(self._best)
        self.module.eval()

    def _record(self, losses: list[Record]) -> None:
        """Evaluate, and keep the weights if they are the best so far."""
        self.module.eval()
        record, score = self._evaluate(losses)
        self.module.train()
        if score is not None and score < self._best_loss:
            self._best_loss, self._best_epoch = score, self._epoch()
            weights = self.module.state_dict()
            self._best = {name: one.clone() for name, one in weights.items()}
        self.history.append(record)

    def _epoch(self) -> int:
        return self.step // self._per_epoch

    def _flat(self) -> bool:
        waited = self._epoch() - max(0, self._best_epoch)
        return self._patience is not None and waited >= self._patience


def predict(
    module: nn.Module,
    inputs: npt.NDArray[Any],
    prepare: Callable[[npt.NDArray[Any]], Tensor] = torch.from_numpy,
    *,
    batch_size: int = 32,
) -> Floats:
    """Return a module's outputs (N, ...) for inputs (N, ...), in evaluation mode and in batches.

    Of larger batches the C library would give each layer's memory back to the kernel.
    """
    training = module.training
    module.eval()
    starts = range(0, len(inputs), batch_size)
    with torch.inference_mode():
        parts = [module(prepare(inputs[at : at + batch_size])).float().numpy() for at in starts]
    module.train(training)
    return np.concatenate(parts)


def steps_per_epoch(train: Indices, batch_size: int) -> int:
    """Return how many steps draw as many frames as there are, at least one."""
    return max(1, len(train) // batch_size)


def subsample(images: Images, indices: npt.NDArray[np.int64], count: int) -> Images:
    """Return at most ``count`` of the images with these indices, evenly spaced."""
    return images[indices[:: max(1, len(indices) // count)][:count]]


def weights_of(module: nn.Module, metadata: dict[str, str] | None = None) -> bytes:
    """Return a module's state dict as a ``.safetensors`` file."""
    state = {name: value.contiguous() for name, value in module.state_dict().items()}
    return bytes(safetensors.torch.save(state, metadata=metadata))


def export_checked(module: nn.Module, path: Path, images: Images, expected: Floats) -> float:
    """Write a network with its preprocessing as ONNX; return its largest difference from torch.

    Both runtimes are compared on a few ``images`` (N, H, W, 3) uint8, for which torch gives
    ``expected`` (N, K).
    """
    export_onnx(module, path, *images.shape[1:3])
    spec = NetworkSpec(path, images.shape[1:3], expected.shape[1])
    worst, limit = 0.0, EXPORT_TOLERANCE * max(1.0, float(np.abs(expected).max()))
    for name in ("openvino", "onnxruntime"):
        with load_backend(name, spec) as backend:
            difference = float(np.abs(backend.infer(images) - expected).max())
        if not difference <= limit:
            raise OutputError(
                f"the exported network gives numbers {difference:.4g} away from torch's on {name}. "
                f"Expected at most {limit:.4g}; export with other versions of torch or onnx "
                "(vinoreward doctor lists them)."
            )
        worst = max(worst, difference)
    return worst


def _has_bf16() -> bool:
    """Whether this processor has bfloat16 instructions rather than emulation."""
    if not hasattr(torch.cpu, "get_capabilities"):
        return False
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))
