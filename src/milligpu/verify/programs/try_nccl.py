"""Sum a tensor over two GPUs with NCCL, one process per GPU."""

import os
import socket

import torch
import torch.distributed
import torch.multiprocessing
from driver import answer, mapped

RANKS, ROUNDS = 2, 20


def work(rank, results):
    torch.cuda.set_device(rank)
    torch.distributed.init_process_group("nccl", rank=rank, world_size=RANKS)
    for size in (1 << 10, 1 << 22):
        for _ in range(ROUNDS):
            tensor = torch.full((size,), float(rank + 1), device="cuda")
            torch.distributed.all_reduce(tensor)
    torch.distributed.broadcast(tensor, 0)
    results.put((float((tensor - 3).abs().max()), torch.cuda.mem_get_info()[1], mapped()))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(free.getsockname()[1])
    context = torch.multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    processes = torch.multiprocessing.start_processes(work, (queue,), RANKS, join=False, start_method="spawn")
    found = [queue.get() for _ in range(RANKS)]
    while not processes.join():
        pass
    answer(
        version=torch.__version__ + ", NCCL " + ".".join(map(str, torch.cuda.nccl.version())),
        error=max(error for error, _, _ in found),
        total=max(total for _, total, _ in found),
        mapped=found[0][2],
    )
