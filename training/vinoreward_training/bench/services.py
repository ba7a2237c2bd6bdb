"""The row ``service``: one process that runs the network for many workers, against one in each."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from vinoreward.backends.base import Backend
from vinoreward.backends.serving.client import SharedBackend
from vinoreward.backends.serving.places import FOLDER
from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError
from vinoreward.machine import usable_cores
from vinoreward.processes import environment_variables, starting_processes
from vinoreward.rewards.classifier import Classifier
from vinoreward_training.bench.rows import Row, interleaved, median_row, quartiles
from vinoreward_training.configs import BenchConfig

ENVIRONMENT = "PandaHoverPixels-v0"
TURN = 1.0
"""Seconds of a turn of all workers."""
WARM_UP = 20
"""Steps or calls of each worker before anything is measured."""
ATTACKED = 4
"""Workers that ask while somebody kills."""
PICTURES = 64
"""That these workers ask about."""
ALIKE = 1e-3
"""Of the largest output: answers may differ by so much, as batches of 1, 4 and 16 add in another
order. Any two pictures differ by ten times that."""
KILLED_EVERY = (0.5, 3.0)
"""Seconds between two kills."""
_PAUSE = 0.01


def service_rows(config: BenchConfig) -> list[Row]:
    """Measure a call's overhead, the workers' memory and throughput; kill at random."""
    # A folder of its own, so that nobody else's service takes part.
    with (
        tempfile.TemporaryDirectory(prefix="vinoreward-services-") as folder,
        environment_variables({FOLDER: folder}),
    ):
        return [
            *_overhead(config),
            *_workers(config),
            *_killed(config, Path(folder)),
        ]


def _overhead(config: BenchConfig) -> list[Row]:
    bundle = Bundle.load(config.bundle)
    picture = np.ascontiguousarray(bundle.golden.images[:1])
    with Classifier(bundle) as plain, Classifier(bundle, service="shared") as asked:
        both = {"plain": plain.backend, "asked": asked.backend}
        precision = plain.precision
        times = interleaved(
            {name: partial(one.infer, picture) for name, one in both.items()},
            rounds=config.rounds,
            calls=100,
            warm_up=WARM_UP,
            settle=5,
        )
    extra = [
        1e3 * (slow - fast)
        for slow, fast in zip(times["asked"].wall, times["plain"].wall, strict=True)
    ]
    return [
        median_row(
            "service",
            f"one picture ({precision}), one caller: wall time of a call to the service beyond one "
            "in the process",
            extra,
            "rounds",
            unit="ms",
            target="<= 0.2 ms",
            details={name: timing.median_ms("wall") for name, timing in times.items()},
        )
    ]


# Memory and throughput


def _step(connection: Connection, bundle: str, service: str | None, judged: bool) -> None:
    """Step an environment, or ask about its picture, for as long as told; send how often."""
    arguments: dict[str, Any] = {"bundle": bundle, "service": service}
    env = gym.make(ENVIRONMENT, **(arguments if judged else {"backend": "none", "bundle": bundle}))
    env.action_space.seed(os.getpid())
    picture = env.reset(seed=os.getpid())[0][None]
    classifier: Any = getattr(env.unwrapped, "classifier", None)  # None in a bare environment

    def step() -> None:
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            env.reset()

    def ask() -> None:
        classifier.backend.infer(picture)

    for _ in range(WARM_UP):
        step()
    connection.send(0)
    while (asked := connection.recv()) is not None:
        what, seconds = asked
        call = {"step": step, "ask": ask}[what]
        count, ends = 0, time.perf_counter() + seconds
        while time.perf_counter() < ends:
            call()
            count += 1
        connection.send(count)
    env.close()


@contextlib.contextmanager
def _started(count: int, *arguments: Any) -> Iterator[list[tuple[SpawnProcess, Connection]]]:
    """Start workers, each with its environment; yield them when all are ready."""
    context = multiprocessing.get_context("spawn")
    workers = []
    with contextlib.ExitStack() as stack, starting_processes({"OMP_NUM_THREADS": "1"}):
        for _ in range(count):
            ours, theirs = context.Pipe()
            worker = context.Process(target=_step, args=(theirs, *arguments), daemon=True)
            worker.start()
            theirs.close()
            stack.callback(worker.join)
            stack.callback(worker.kill)
            workers.append((worker, ours))
        for worker, ours in workers:
            _received(worker, ours)
        yield workers
        for _, ours in workers:
            ours.send(None)
        for worker, _ in workers:
            worker.join(30)


def _received(worker: SpawnProcess, connection: Connection) -> int:
    try:
        return int(connection.recv())
    except EOFError as error:
        raise ConfigError(
            f"a worker of the row service ended with {worker.exitcode}. Expected it to step "
            f"{ENVIRONMENT}; its error is above. Use fewer with --service-workers."
        ) from error


def _turn(
    workers: Sequence[tuple[SpawnProcess, Connection]], pids: Sequence[int], what: str
) -> tuple[float, float]:
    """Return calls a second of all workers together, by wall and by the processes' own time."""
    began, used = time.perf_counter(), processor_seconds(pids)
    for _, connection in workers:
        connection.send((what, TURN))
    count = sum(_received(worker, connection) for worker, connection in workers)
    return count / (time.perf_counter() - began), count / (processor_seconds(pids) - used)


def processor_seconds(pids: Sequence[int]) -> float:
    """Return the time that processes have spent on processors."""
    ticks = 0
    for pid in pids:
        # The name, in brackets, may have spaces in it.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _pss(pids: Sequence[int]) -> float:
    """Return the proportional memory of processes in MB: shared pages are counted once."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1])
    return total * 1024 / 1e6


def running_services(folder: str) -> list[int]:
    """Return the process ids of the services of a runtime folder."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if not entry.name.isdigit():
                continue
            command, variables = ((entry / name).read_bytes() for name in ("cmdline", "environ"))
            if b"serving.server" in command and f"{FOLDER}={folder}".encode() in variables.split(
                b"\0"
            ):
                found.append(int(entry.name))
    return found


def _workers(config: BenchConfig) -> list[Row]:
    count = config.service_workers
    arms = {"shared": "shared", "own": None}
    memory: dict[str, float] = {}
    rates: dict[str, list[tuple[float, float]]] = {
        f"{arm} {what}": [] for arm in arms for what in _WHAT
    }
    rounds = max(1, config.rounds // 4)
    # One set at a time: 48 processes would not fit into a small machine.
    with _started(count, config.bundle, None, False) as bare:
        memory["bare"] = _pss([worker.pid or 0 for worker, _ in bare])
    with contextlib.ExitStack() as stack:
        sets, pids = {}, {}
        for arm, service in arms.items():
            sets[arm] = stack.enter_context(_started(count, config.bundle, service, True))
            pids[arm] = [worker.pid or 0 for worker, _ in sets[arm]]
            if service is not None:
                pids[arm] += running_services(os.environ[FOLDER])
            memory[arm] = _pss(pids[arm])
        for turn in range(rounds):
            for arm in list(arms)[:: 1 if turn % 2 else -1]:
                for what in _WHAT:
                    rates[f"{arm} {what}"].append(_turn(sets[arm], pids[arm], what))
    workers = f"{count} workers on {usable_cores()} cores"
    rows = [
        Row(
            "service",
            f"{workers}: memory of the service and its callers beyond the environments alone",
            memory["shared"] - memory["bare"],
            "MB",
            target="< 1000 MB",
            note=f"with a network in each {memory['own'] - memory['bare']:,.0f} MB; proportional "
            "set size, one set after the other, the last beside the one before",
            details=memory,
        )
    ]
    for what, (told, target) in _WHAT.items():
        shared, own = (np.array(rates[f"{arm} {what}"]) for arm in arms)
        for kind, name in enumerate(("wall time", "processor time of all, the service's too")):
            middles = [quartiles(one[:, kind].tolist())[1] for one in (shared, own)]
            rows.append(
                median_row(
                    "service",
                    f"{workers}: {told} of {name}, with the service over a network in each",
                    (shared[:, kind] / own[:, kind]).tolist(),
                    f"turns of {TURN:g} s",
                    target=target if kind == 0 else "",
                    note=f"{middles[0]:,.0f} against {middles[1]:,.0f}; the service computes on "
                    "one thread",
                    details={"shared": shared[:, kind].tolist(), "own": own[:, kind].tolist()},
                )
            )
    return rows


_WHAT = {
    "ask": ("calls of the classifier's network a second", ">= 1.5 x"),
    "step": (f"steps of {ENVIRONMENT}, picture and guard in the worker, a second", ""),
}


# Killed at random


def _different(backend: Backend, seed: int) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Return pictures whose answers tell them apart, and the answers."""
    height, width = backend.input.shape[1:3]
    random = np.random.default_rng(seed)
    kept: list[Any] = []
    answers: list[Any] = []
    for _ in range(50 * PICTURES):
        # Smooth noise: it moves the outputs more than noise of single pixels.
        coarse = random.integers(0, 256, (6, 8, 3), dtype=np.uint8)
        rows = np.arange(height or 1) * 6 // (height or 1)
        columns = np.arange(width or 1) * 8 // (width or 1)
        picture = coarse[rows][:, columns]
        answer = backend.infer(picture[None])[0]
        room = 10 * ALIKE * max(1.0, float(np.abs(answer).max()))
        if all(np.abs(answer - other).max() > room for other in answers):
            kept.append(picture)
            answers.append(answer)
        if len(kept) == PICTURES:
            break
    return np.stack(kept), np.stack(answers)


def _ask(
    tally: str,
    number: int,
    calls: int,
    backend: SharedBackend,
    pictures: NDArray[np.uint8],
    answers: NDArray[np.float32],
) -> None:
    """Ask and check; count in a file, which survives a kill, what was asked, answered and wrong."""
    counts = np.memmap(tally, np.int64, "r+").reshape(-1, 3)[number]
    random = np.random.default_rng([number, os.getpid()])
    with backend:
        while counts[1] < calls:
            chosen = random.integers(len(pictures), size=int(random.integers(1, 4)))
            counts[0] += 1
            found = backend.infer(pictures[chosen])
            expected = answers[chosen]
            limit = ALIKE * np.maximum(1.0, np.abs(expected).max(axis=1, keepdims=True))
            counts[2] += not bool((np.abs(found - expected) <= limit).all())
            counts[1] += 1


def _killed(config: BenchConfig, folder: Path) -> list[Row]:
    bundle = Bundle.load(config.bundle)
    precision = bundle.resolve_precision("openvino", "auto")
    network = bundle.network(precision)
    with bundle.backend("openvino", precision=precision) as plain:
        pictures, answers = _different(plain, config.seed)
    tally = folder / "tally"
    np.zeros((ATTACKED, 3), np.int64).tofile(tally)
    each = -(-config.service_calls // ATTACKED)
    context = multiprocessing.get_context("spawn")

    def start(number: int) -> SpawnProcess:
        backend = SharedBackend(network, precision=precision)
        worker = context.Process(
            target=_ask, args=(str(tally), number, each, backend, pictures, answers), daemon=True
        )
        with starting_processes({"OMP_NUM_THREADS": "1"}):
            worker.start()
        return worker

    random = np.random.default_rng(config.seed)
    deaths = {"service": 0, "worker": 0}
    failed = 0
    workers = [start(number) for number in range(ATTACKED)]
    attack = time.monotonic() + random.uniform(*KILLED_EVERY)
    try:
        while any(worker.is_alive() for worker in workers):
            time.sleep(_PAUSE)
            for number, worker in enumerate(workers):
                if worker.exitcode not in (None, 0):
                    failed += worker.exitcode != -signal.SIGKILL
                    if failed > ATTACKED:
                        break
                    workers[number] = start(number)
            if time.monotonic() > attack:
                attack = time.monotonic() + random.uniform(*KILLED_EVERY)
                victim = workers[int(random.integers(ATTACKED))]
                if random.random() < 0.5 and victim.is_alive():
                    victim.kill()
                    deaths["worker"] += 1
                else:
                    for pid in running_services(str(folder)):
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                            deaths["service"] += 1
    finally:
        for worker in workers:
            worker.kill()
            worker.join()
    counts = np.fromfile(tally, np.int64).reshape(ATTACKED, 3)
    asked, answered, wrong = counts.sum(axis=0).tolist()
    # A killed worker's last request has nobody left to answer to.
    lost = max(0, asked - answered - deaths["worker"]) + failed
    tally.unlink()
    with SharedBackend(network, precision=precision) as last:  # it sweeps what the killed left
        last.load()
    ends = time.monotonic() + 30.0
    while (left := [*running_services(str(folder)), *_slots(), *folder.iterdir()]) and (
        time.monotonic() < ends
    ):
        time.sleep(_PAUSE)
    what = f"{answered:,} calls of {ATTACKED} workers, with the service killed "
    what += f"{deaths['service']} times and a worker {deaths['worker']} times: "
    return [
        Row("service", f"{what}wrong answers", wrong, "", target="<= 0", details=deaths),
        Row("service", f"{what}lost calls", lost, "", target="<= 0"),
        Row(
            "service",
            f"{what}processes, files and shared memory left",
            len(left),
            "",
            target="<= 0",
            details={"left": [str(one) for one in left]},
        ),
    ]


def _slots() -> list[str]:
    """Return names in the folder of shared memory; slots have none, so there must be none."""
    return [path.name for path in Path("/dev/shm").glob("*vinoreward-slot*")]
