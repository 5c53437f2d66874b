"""Compile a function with torch.compile: Triton must find libcuda, and compute what PyTorch itself computes."""

import torch
from driver import answer, mapped


def gelu_sum(a, b):
    return torch.nn.functional.gelu(a @ b).sum(1)


torch.manual_seed(1)
a, b = torch.randn(128, 64, device="cuda"), torch.randn(64, 96, device="cuda")
compiled = torch.compile(gelu_sum)
answer(
    version=torch.__version__,
    error=(compiled(a, b) - gelu_sum(a, b)).abs().max().item(),
    total=torch.cuda.mem_get_info()[1],
    mapped=mapped(),
)
