"""A small conv net on scikit-learn's handwritten digits: 1,797 real images of 8x8 pixels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BATCH = 64


class Net(nn.Module):
    """(N, 1, 8, 8) images to (N, 10) logits."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(0.25),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(), nn.Linear(64 * 4 * 4, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10)
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(images))


def load() -> tuple[TensorDataset, TensorDataset]:
    """Training images (3 of 4) and test images, each with its label."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(data.target)
    train, test = train_test_split(torch.arange(len(labels)), test_size=0.25, random_state=0, stratify=labels)
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


@torch.no_grad()
def accuracy(model: nn.Module, data: TensorDataset, device: str) -> float:
    """Share of the images whose label the model gives."""
    model.eval()
    correct = 0
    for images, labels in DataLoader(data, BATCH):
        correct += (model(images.to(device)).argmax(1) == labels.to(device)).sum().item()
    return correct / len(data)


def run(device: str, epochs: int, console: Console) -> float:
    """Trains with a progress bar; returns the accuracy on the test images."""
    train, test = load()
    batches = DataLoader(train, BATCH, shuffle=True)
    model = Net().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=epochs * len(batches))
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.3f}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("training", total=epochs, loss=float("nan"))
        for _ in range(epochs):
            progress.update(task, advance=1, loss=_epoch(model, batches, optimizer, schedule, device))
    result = accuracy(model, test, device)
    console.print(f"{len(train):,} images, {epochs} epochs; accuracy on {len(test)} others: {result:.2%}\n")
    return result


def _epoch(
    model: nn.Module,
    batches: DataLoader[tuple[torch.Tensor, ...]],
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    device: str,
) -> float:
    """One pass over the training images; the mean loss."""
    model.train()
    total = torch.zeros((), device=device)
    for images, labels in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()
        schedule.step()
        total += loss.detach()
    return total.item() / len(batches)
