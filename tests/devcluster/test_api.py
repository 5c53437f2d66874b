import subprocess
import sys

# Runs in a separate process, because the failure is a crash of the interpreter.
DECODE_FROM_MANY_THREADS = """
import sys, threading
from lightkube.core import decoders
from devcluster import api

gate = threading.Barrier(8)
def decode():
    gate.wait()
    for _ in range(50):
        decoders.decode_object(b'{"metadata": {"name": "x"}, "status": {"capacity": {"cpu": "1"}}}', api.Node)

sys.setswitchinterval(1e-6)
threads = [threading.Thread(target=decode) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


def test_many_threads_can_decode_the_first_objects_at_once() -> None:
    done = subprocess.run(
        [sys.executable, "-c", DECODE_FROM_MANY_THREADS],
        env={"PYTHONPATH": ":".join(sys.path)},
        check=False,
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stderr
