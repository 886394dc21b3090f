"""A toy denoiser in one file, for complex volumes: every value a little nearer to the mean of its neighbours."""

from __future__ import annotations

from typing import Any

from plugstream.base.registry import Field, Options, register


class NeighbourOptions(Options):
    reach: int = Field(1, ge=1, le=4, description="pixels to the furthest neighbour")


@register("denoiser", "neighbours", "a little nearer to the neighbours", options=NeighbourOptions, licence="ours")
def build(options: NeighbourOptions) -> Any:
    """The denoiser: (1 - t) x + t (mean of x moved by up to `reach` along both last axes), t = sigma / (1 + sigma)."""
    import torch

    from plugstream.denoisers import FromFunction

    def nearer(image: torch.Tensor, sigma: float) -> torch.Tensor:
        moves = [(s, axis) for axis in (-2, -1) for k in range(1, options.reach + 1) for s in (k, -k)]
        mean = sum(torch.roll(image, move, axis) for move, axis in moves) / len(moves)
        share = sigma / (1 + sigma)
        return (1 - share) * image + share * mean

    return FromFunction(nearer, averaged=0.5, ndim=3, takes_complex=True)
