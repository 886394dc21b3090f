"""TNRD: how long its fast forms take against the torch form, in the same run, and how far they are from it.

    python benchmarks/tnrd.py [--size 256] [--weights model.safetensors] [--device cuda]

Without weights it takes those installed or, where there are none, random ones: the time does not depend on them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor

from plugstream import TNRD, InputError
from plugstream.denoisers.tnrd import ReactionDiffusion


def random_model() -> ReactionDiffusion:
    generator = torch.Generator().manual_seed(0)
    at = torch.arange(-310, 311, 10) / 30
    weights = 0.05 * at * torch.exp(-at * at / 2) * (1 + 0.3 * torch.randn(5, 48, 63, generator=generator))
    coefficients = torch.eye(48) + 0.3 * torch.randn(5, 48, 48, generator=generator)
    return ReactionDiffusion(coefficients, torch.full((5,), -2.0), weights, 5.0).requires_grad_(False)


def load(weights: str | None) -> tuple[TNRD, str]:
    if weights is not None:
        return TNRD.load(weights), weights
    try:
        return TNRD(), "installed weights"
    except InputError:
        return TNRD(random_model()), "random weights"


def picture(size: int) -> Tensor:
    y, x = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    clean = 0.5 + 0.2 * torch.sin(x / 3 + y / 5) + 0.25 * torch.sign(torch.sin(x / 16) * torch.sin(y / 17 + 1))
    return clean + 5 / 255 * torch.randn(size, size, generator=torch.Generator().manual_seed(0))


def fastest(call: Callable[[], Tensor], repeats: int) -> float:
    """Milliseconds of the fastest of several calls: what the machine can do when nothing else runs on it."""
    best = float("inf")
    call()
    for _ in range(repeats):
        began = time.perf_counter()
        result = call()
        if result.is_cuda:
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - began)
    return 1e3 * best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--weights")
    parser.add_argument("--device", default="cpu")
    parsed = parser.parse_args()
    tnrd, name = load(parsed.weights)
    z = picture(parsed.size).to(parsed.device)
    model = tnrd.models[tnrd._nearest(5 / 255)]
    gain = model.sigma / (5 / 255)

    def specification(image: Tensor) -> Tensor:
        with torch.no_grad():
            out: Tensor = model(gain * image[None])[0] / gain
        return out

    fast, slow = fastest(lambda: tnrd(z, 5 / 255), 20), fastest(lambda: specification(z), 2)
    apart = float((tnrd(z, 5 / 255) - specification(z.double())).abs().max() / (z.max() - z.min()))
    print(f"TNRD, {parsed.size} x {parsed.size}, {parsed.device}, {torch.get_num_threads()} threads, {name}")
    print(f"fast form   {fast:9.2f} ms")
    print(f"torch form  {slow:9.2f} ms, {slow / fast:.0f} times as long")
    print(f"largest difference {apart:.1e} of the range")


if __name__ == "__main__":
    main()
