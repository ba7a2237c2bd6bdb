"""Classifiers that several threads use for the first time, and threads of other libraries."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from task_runs import run_python
from toy_environments import save_toy_bundle

from vinoreward.rewards.classifier import Classifier

# Everything is imported for the first time here, by all threads at once. A thread that loses the
# race for an import or builds a network twice is seen in what is printed.
FIRST_USE = """
import sys, threading
import numpy as np
from vinoreward.rewards.classifier import Classifier

folder, backend, kind = sys.argv[1:]
THREADS = 6
sys.setswitchinterval(1e-6)
one = Classifier(folder, backend=backend)
classifiers = [one] * THREADS
if kind == "own":
    classifiers = [Classifier(folder, backend=backend) for _ in range(THREADS)]
assert "openvino" not in sys.modules and "onnxruntime" not in sys.modules
images = np.zeros((2, 6, 8, 3), np.uint8)
images[1, ..., 0] = 255
barrier = threading.Barrier(THREADS)
failures, answers, networks = [], [], []

def work(classifier):
    barrier.wait()
    try:
        networks.append(id(classifier.backend))
        answers.append(classifier.predict(images).log_odds.tolist())
    except BaseException as error:
        failures.append(repr(error))

threads = [threading.Thread(target=work, args=(item,)) for item in classifiers]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not failures, failures
assert len(answers) == THREADS and all(item == answers[0] for item in answers), answers
print(len(set(networks)))
for item in classifiers:
    item.close()
"""


@pytest.mark.parametrize(
    ("backend", "kind", "networks"), [("openvino", "own", 6), ("onnxruntime", "shared", 1)]
)
def test_threads_may_use_classifiers_for_the_first_time_together(
    tmp_path: Path, backend: str, kind: str, networks: int
) -> None:
    bundle = save_toy_bundle(tmp_path / "toy")
    command = [sys.executable, "-c", FIRST_USE, str(bundle.path), backend, kind]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=300, check=True)
    assert done.stdout.split() == [str(networks)]


IMPORTED_BY_ANOTHER = """
import sys, threading, time
from vinoreward.backends.runtime import import_openvino
middle = threading.Event()

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("openvino.") and not middle.is_set():
            middle.set()  # openvino is in sys.modules, and nothing is in openvino yet
            time.sleep(0.5)

sys.meta_path.insert(0, Finder())
thread = threading.Thread(target=__import__, args=("openvino",))
thread.start()
middle.wait()
found = import_openvino()
assert found.Core, "half imported"
thread.join()
"""


def test_openvino_that_another_thread_is_importing_is_waited_for() -> None:
    run_python(IMPORTED_BY_ANOTHER)


def test_the_torch_backend_leaves_the_process_its_threads() -> None:
    torch = pytest.importorskip("torch")
    before, seen = torch.get_num_threads(), set()
    hook = torch.nn.modules.module.register_module_forward_hook(
        lambda module, *_: seen.add(torch.get_num_threads())
    )
    try:
        for found, asked in ((3, 1), (1, 2)):
            torch.set_num_threads(found)
            with Classifier("panda-hover-classifier", backend="torch", threads=asked) as classifier:
                seen.clear()
                classifier.predict(np.zeros((1, 96, 128, 3), np.uint8))
                assert torch.get_num_threads() == found
                assert seen == {asked}
    finally:
        hook.remove()
        torch.set_num_threads(before)
