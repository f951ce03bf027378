"""An ordinary PyTorch program; the device is its only line about TPUs. Run: python examples/quickstart.py"""

import torch
from torch import nn

device = "tpu"

torch.manual_seed(0)
x = torch.linspace(-3, 3, 512, device=device).unsqueeze(1)
y = torch.sin(2 * x)

model = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

for step in range(301):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(f"step {step}: loss {loss.item():.5f}")

torch.tpu.metrics.report()  # type: ignore[attr-defined]
