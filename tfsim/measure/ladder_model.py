"""The ladder's model in torch, and the training of one run. Imported only where torch is (``ladder``)."""

from __future__ import annotations

import math
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tfsim.measure.ladder_plan import HEADS, LAYERS, LENGTH, Run
from tfsim.measure.ladder_source import VOCABULARY, Source

WARM_UP = 0.05  # of the steps, linear
LAST = 0.1  # of the peak learning rate, at the end of the cosine
BETAS = (0.9, 0.99)
CLIP = 1.0  # largest norm of the gradient
HELD_OUT = 8_192  # sequences
_HELD_OUT_SEED = 2**40  # no run has it
_CHUNK = 64  # steps whose text is drawn at once


class Layer(nn.Module):
    """Attention and a feed-forward network, each after a LayerNorm and around a residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens, width) -> the same."""
        batch, tokens, width = x.shape
        q, k, v = self.qkv(self.norm_1(x)).view(batch, tokens, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(functional.relu(self.up(self.norm_2(x))))


class Model(nn.Module):
    """``ladder_plan.specification`` in torch; the output matrix is the input table."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(LENGTH, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(width)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=module.weight.shape[1] ** -0.5)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)
        for layer in self.layers:  # what is added to the residual, so that its sum over the layers keeps its size
            for linear in (layer.out, layer.down):
                linear.weight.data /= math.sqrt(2 * LAYERS)

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, tokens) -> logits (batch, tokens, vocabulary)."""
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return functional.linear(self.norm(x), self.tokens.weight)


def loss(model: nn.Module, text: Tensor, reduction: str = "mean") -> Tensor:
    """Cross-entropy [nats] of each token of ``text`` (batch, tokens + 1) after the first."""
    logits = model(text[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten(), reduction=reduction)


def learning_rate(run: Run, step: int) -> float:
    """Linear warm-up, then a cosine to a tenth at the run's last step."""
    warm = max(1.0, WARM_UP * run.steps)
    share = LAST + (1 - LAST) * 0.5 * (1 + math.cos(math.pi * step / run.steps))
    return run.learning_rate * min(1.0, (step + 1) / warm) * share


def train(run: Run, source: Source, device: str = "cpu", *, sequences: int = HELD_OUT) -> dict[str, Any]:
    """Train one run on fresh text, each token seen once, and measure it on the held-out text of so many ``sequences``
    that all runs share.

    Returns ``loss`` [nats per token] with ``loss_se``, the standard error of its text, ``seconds`` and ``cpu_seconds``
    of the training. The same seed on the same kind of machine gives the same loss.
    """
    torch.manual_seed(run.seed)
    model = Model(run.width).to(device)
    optimiser = torch.optim.Adam(model.parameters(), betas=BETAS, fused=True)
    batch = run.batch // LENGTH
    start, start_cpu = time.perf_counter(), time.process_time()
    for step in range(run.steps):
        if step % _CHUNK == 0:
            wanted = batch * min(_CHUNK, run.steps - step)
            drawn = source.sample(wanted, LENGTH + 1, [run.seed, step])
            text = torch.from_numpy(drawn).to(device).long().split(batch)
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(run, step)
        optimiser.zero_grad()
        loss(model, text[step % _CHUNK]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimiser.step()
    mean, error = held_out(model, source, device, sequences)  # reads the loss back, so a GPU has finished
    return {
        "loss": mean,
        "loss_se": error,
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - start_cpu,
    }


def held_out(model: nn.Module, source: Source, device: str, sequences: int) -> tuple[float, float]:
    """Loss [nats per token] less the luck of the text, and its standard error.

    The luck is how much likelier or less likely than usual the text is under the source itself, which is known: the
    loss is the floor plus the mean excess over the source's own logarithm of each token.
    """
    drawn = source.sample(sequences, LENGTH + 1, _HELD_OUT_SEED)
    own = source.nats(drawn).sum(1)
    text = torch.from_numpy(drawn).to(device).long()
    with torch.inference_mode():
        nats = torch.cat([loss(model, part, "none").view(len(part), LENGTH).sum(1) for part in text.split(512)])
    excess = (nats.double().cpu().numpy() - own) / LENGTH
    return source.floor(LENGTH) + float(excess.mean()), float(excess.std() / len(excess) ** 0.5)


def counted(width: int, batch: int) -> tuple[int, int]:
    """Parameters, and FLOPs of one step's matrix products by torch's own counter, which knows attention's if it is
    done by plain products."""
    model = Model(width)
    text = torch.zeros(batch // LENGTH, LENGTH + 1, dtype=torch.long)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        loss(model, text).backward()
    return sum(p.numel() for p in model.parameters()), int(counter.get_total_flops())
