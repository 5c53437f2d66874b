"""Train a small network with PyTorch, and compare its inference on the GPU with that on the CPU."""

import torch
from driver import answer, mapped
from torch import nn

torch.manual_seed(1)
x = torch.randn(256, 32, device="cuda")
y = x[:, :10].argmax(1)
net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10)).cuda()
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
losses = []
for _ in range(30):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(net(x), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
with torch.inference_mode():
    on_gpu = net(x).cpu()
    on_cpu = net.cpu()(x.cpu())
answer(
    version=torch.__version__,
    losses=[losses[0], losses[-1]],
    error=(on_gpu - on_cpu).abs().max().item(),
    total=torch.cuda.mem_get_info()[1],
    mapped=mapped(),
)
