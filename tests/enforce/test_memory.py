"""The memory limit: on every route, for all processes together, however they end."""

import json
import random
import signal
import sys
import time
from pathlib import Path
from subprocess import Popen

import pytest

from tests.enforce.conftest import Tenants
from tests.enforce.rig import CONTEXT, MEMORY_LIMIT, MIB, Tenant

CLIENTS = Path(__file__).parent / "clients"
PATIENCE = 60.0
OUT_OF_MEMORY = 2
NOT_INITIALIZED = 3

PROGRAM = f"import sys; sys.path.insert(0, {str(CLIENTS)!r})\nfrom cuda import *\n"


def say(process: Popen[str], word: str = "") -> None:
    """Let a program that waits for input continue."""
    assert process.stdin is not None
    process.stdin.write(word + "\n")
    process.stdin.flush()


def read(process: Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def finish(process: Popen[str]) -> str:
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    return out.strip()


def python(tenant: Tenant, code: str) -> Popen[str]:
    return tenant.start(sys.executable, "-u", "-c", PROGRAM + code)


def test_every_allocation_route_is_charged_exactly_and_limited(tenant: Tenants) -> None:
    made = tenant()
    done = made.run(sys.executable, CLIENTS / "routes.py")
    results = json.loads(done.stdout.splitlines()[-1])
    assert len(results) == 10
    assert results == {name: [100 * MIB, 0, OUT_OF_MEMORY] for name in results}
    assert made.account().refused == 10


def test_every_way_to_release_memory_is_credited(tenant: Tenants) -> None:
    done = tenant(memory_limit=3 * MEMORY_LIMIT).run(sys.executable, CLIENTS / "endings.py")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "a context with two allocations": [CONTEXT + 21 * MIB, 0],
        "a module with a variable": [64 * MIB, 0],
        "a library with a variable": [64 * MIB, 0],
        "a pool": [30 * MIB, 0],
        "a heap for kernels": [32 * MIB, 0],
        "the primary context, reset": [10 * MIB, 0],
    }


def test_two_processes_share_one_memory_limit(tenant: Tenants) -> None:
    made = tenant(memory_limit=2 * CONTEXT + 200 * MIB)
    one = python(made, f"start(); print(allocate(150 * MIB)[0]); input(); print(allocate({200 * MIB})[0]); input()")
    assert read(one) == "0"
    other = python(made, "start(); print(allocate(60 * MIB)[0], allocate(50 * MIB)[0], memory()[0])")
    assert finish(other) == f"{OUT_OF_MEMORY} 0 0"
    say(one)
    assert read(one) == str(OUT_OF_MEMORY)


def test_memory_of_a_killed_process_is_available_to_the_next(tenant: Tenants) -> None:
    made = tenant(memory_limit=2 * CONTEXT + 200 * MIB)
    killed = python(made, "start(); print(allocate(200 * MIB)[0]); input()")
    assert read(killed) == "0"
    code = "start(); print(allocate(200 * MIB)[0]); input(); print(memory()[0], allocate(200 * MIB)[0])"
    other = python(made, code)
    assert read(other) == str(OUT_OF_MEMORY)
    killed.kill()
    killed.communicate()
    assert made.held() == CONTEXT
    say(other)
    assert finish(other) == f"{CONTEXT + 200 * MIB} 0"


def test_a_changed_memory_limit_applies_to_running_processes(tenant: Tenants) -> None:
    made = tenant()
    code = """
start()
big = allocate(100 * MIB)[1]
print("allocated"); input()
print(allocate(1)[0], memory()[0], memory()[1]); input()
status, pointer = allocate(200 * MIB)
print(status, free(pointer), free(big), memory()[0])
"""
    process = python(made, code)
    assert read(process) == "allocated"
    made.set_limits(CONTEXT + 50 * MIB)
    say(process)
    assert read(process) == f"{OUT_OF_MEMORY} 0 {CONTEXT + 50 * MIB}"
    made.set_limits(CONTEXT + 300 * MIB)
    say(process)
    assert finish(process) == f"0 0 0 {300 * MIB}"


def test_a_forked_child_has_its_own_process_slot_and_its_parents_memory_stays_charged(tenant: Tenants) -> None:
    made = tenant(memory_limit=2 * CONTEXT + 200 * MIB)
    code = """
import os
there, here = os.pipe()
child = os.fork()
if not child:
    os.read(there, 1)
    start()
    print("child", allocate(60 * MIB)[0], allocate(40 * MIB)[0], flush=True)
    os._exit(0)
start()
allocate(150 * MIB)
os.write(here, b"-")
os.waitpid(child, 0)
print("parent", allocate(60 * MIB)[0], allocate(50 * MIB)[0], memory()[1] - memory()[0])
"""
    done = finish(python(made, code)).splitlines()
    assert done[0] == f"child {OUT_OF_MEMORY} 0"
    # The child's context and memory are released, so there is room again.
    assert done[1] == f"parent 0 0 {CONTEXT + 260 * MIB}"


def test_a_forked_child_of_a_process_that_uses_cuda_releases_none_of_its_memory(tenant: Tenants) -> None:
    made = tenant(memory_limit=CONTEXT + 200 * MIB)
    code = """
import os
start()
allocate(150 * MIB)
child = os.fork()
if not child:
    print("child", cuda.cuInit(0), flush=True)
    os._exit(0)
os.waitpid(child, 0)
print("parent", allocate(60 * MIB)[0], allocate(50 * MIB)[0], memory()[1] - memory()[0])
"""
    done = finish(python(made, code)).splitlines()
    assert done == [f"child {NOT_INITIALIZED}", f"parent {OUT_OF_MEMORY} 0 {CONTEXT + 200 * MIB}"]


def test_a_process_that_calls_exec_starts_with_no_memory_charged(tenant: Tenants) -> None:
    made = tenant()
    again = PROGRAM + "start(); print(allocate(200 * MIB)[0], memory()[0])"
    process = python(
        made, f"import os\nstart(); allocate(200 * MIB)\nos.execv(sys.executable, ['p', '-c', {again!r}])"
    )
    assert finish(process) == f"0 {56 * MIB}"


def test_a_program_that_closes_all_descriptors_stays_charged(tenant: Tenants) -> None:
    made = tenant(memory_limit=2 * CONTEXT + 200 * MIB)
    one = python(
        made, "import os\nstart(); allocate(150 * MIB); os.closerange(500, 1000); print('closed'); input()"
    )
    assert read(one) == "closed"
    assert finish(python(made, "start(); print(allocate(100 * MIB)[0])")) == str(OUT_OF_MEMORY)


def test_random_allocations_of_eight_processes_never_exceed_the_memory_limit_and_end_at_zero(
    tenant: Tenants,
) -> None:
    memory_limit = 8 * CONTEXT + 100 * MIB
    made = tenant(memory_limit=memory_limit)
    workers = [made.start(sys.executable, CLIENTS / "churn.py", "4", str(seed)) for seed in range(8)]
    assert [read(worker) for worker in workers] == ["started"] * 8
    for worker in workers:
        say(worker)
    most = 0
    end = time.monotonic() + 4
    while time.monotonic() < end:
        most = max(most, made.gpus.used(), made.account().used)
    refused = [int(read(worker).removeprefix("done ")) for worker in workers]
    assert made.account().used == 8 * CONTEXT
    assert made.account().peak <= memory_limit
    assert most <= memory_limit
    assert sum(refused) == made.account().refused > 0
    for worker in workers:
        worker.communicate()
    assert made.held() == 0


def test_the_memory_account_is_exact_after_processes_are_killed_at_random(tenant: Tenants) -> None:
    memory_limit = 8 * CONTEXT + 60 * MIB
    made = tenant(memory_limit=memory_limit)
    dice = random.Random(7)
    workers = [made.start(sys.executable, CLIENTS / "churn.py", "60", str(seed)) for seed in range(8)]
    assert [read(worker) for worker in workers] == ["started"] * 8
    for worker in workers:
        say(worker)
    while workers:
        victim = workers.pop(dice.randrange(len(workers)))
        time.sleep(dice.random() / 5)
        victim.send_signal(signal.SIGKILL)
        victim.communicate()
        assert made.account().peak <= memory_limit
    assert made.held() == 0
    # A process that needs all of the memory gets all of it.
    code = f"start(); print(allocate({7 * CONTEXT + 60 * MIB})[0], memory()[0])"
    assert finish(python(made, code)) == "0 0"


@pytest.mark.parametrize("content", ["random", "ones", "lock"])
def test_a_corrupt_usage_page_does_not_affect_other_tenants_on_the_gpu(tenant: Tenants, content: str) -> None:
    bad, good = tenant(name="bad"), tenant(name="good")
    head = bad.usage.read_bytes()[:16]
    match content:
        case "random":
            rest = random.Random(1).randbytes(bad.usage.stat().st_size - 16)
        case "ones":
            rest = b"\xff" * (bad.usage.stat().st_size - 16)
        case _:
            rest = (600).to_bytes(4, "little") + bytes(bad.usage.stat().st_size - 20)
    bad.usage.write_bytes(head + rest)
    process = python(bad, "start(); print('alive')")
    process.communicate(timeout=PATIENCE)
    assert process.returncode >= 0, "killed by a signal"
    assert finish(python(good, "start(); print(allocate(200 * MIB)[0])")) == "0"
