"""One OpenVINO Core per process: signals must still be survived when networks come and go."""

from __future__ import annotations

from task_runs import run_python

PROGRAM = """
import gc, os, signal
from vinoreward.bundles.bundle import Bundle

bundle = Bundle.load("panda-hover-classifier")
first, second = bundle.backend("openvino"), bundle.backend("openvino")
for backend in (first, second):
    backend.close()
del first, second, backend
gc.collect()
caught = []
signal.signal(signal.SIGINT, lambda *_: caught.append(1))
os.kill(os.getpid(), signal.SIGINT)
print("caught", len(caught))
"""


def forked(before: str, work: str) -> int:
    """Return how a child ends that is forked after a program and does some work."""
    fork = f"""
import os, signal, warnings

warnings.simplefilter("ignore")  # Python 3.12 warns of forks beside threads
child = os.fork()
if child == 0:
    signal.alarm(60)
    code = 1
    try:
        {work}
        code = 0
    finally:
        os._exit(code)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    return int(run_python(before + fork))


def test_ctrl_c_is_survived_after_two_networks_were_closed_in_the_order_they_were_made() -> None:
    assert run_python(PROGRAM).split() == ["caught", "1"]


OF_CALLER = """
import numpy as np
from vinoreward.backends.runtime import import_openvino
from vinoreward.bundles.bundle import Bundle

ov = import_openvino()
given = ov.opset13.parameter([1, 2], np.float32)
model = ov.Model([ov.opset13.relu(given)], [given])
core = ov.Core()
options = {"NUM_STREAMS": 1, "INFERENCE_NUM_THREADS": 1, "ENABLE_CPU_PINNING": False}  # as ours
theirs = core.compile_model(model, "CPU", options)
theirs(np.zeros((1, 2), np.float32))
del theirs
bundle = Bundle.load("panda-hover-classifier")
images = np.zeros((1, 96, 128, 3), np.uint8)
"""


def test_a_forked_child_does_not_wait_for_threads_of_a_network_that_the_caller_closed() -> None:
    assert forked(OF_CALLER, 'bundle.backend("openvino").load().infer(images)') == 0


FORKS = """
import os, sys, threading, warnings
import vinoreward.backends.runtime as runtime

warnings.simplefilter("ignore")  # Python 3.12 warns of forks beside threads
sys.setswitchinterval(1e-5)
sys.unraisablehook = lambda told: print("unraisable:", told.exc_value)
runtime.shared_core(runtime.import_openvino())

def fork(times):
    for _ in range(times):
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)

threads = [threading.Thread(target=fork, args=(100,)) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("free" if runtime.BUILDING._lock.acquire(timeout=10) else "locked")
"""


def test_threads_that_fork_at_once_release_the_locks_of_their_own() -> None:
    assert run_python(FORKS).split() == ["free"]
