"""What tiles cost in accuracy: the difference between a denoiser on tiles and on the whole image, at several halos.

python benchmarks/tiles.py [--size 256] [--tile 64] [--only TV]: prints the table of docs/scale.md. A photograph, or
discs of constant values, with noise is denoised in one piece and on tiles; the error is ||tiles - whole|| relative to
what the denoiser changes, ||whole - noisy||.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable

import torch
from skimage import data

from plugstream import BM3D, NLM, TNRD, TV, ConvexRidge, Denoiser, FromModule, PlugstreamWarning, Tiles

HALOS = (0, 8, 16, 24, 32, 48, 64, 104)


def network(depth: int = 8) -> Denoiser:
    """A network of 3 x 3 filters with weights that nobody trained: what it sees is all that matters here."""
    generator = torch.Generator().manual_seed(0)
    layers: list[torch.nn.Module] = []
    for number in range(depth):
        ends = (1 if number == 0 else 8, 1 if number == depth - 1 else 8)
        layer = torch.nn.Conv2d(*ends, 3, padding=1, bias=False)
        with torch.no_grad():
            layer.weight.copy_(torch.randn(layer.weight.shape, generator=generator) / (3 * ends[0] ** 0.5))
        layers += [layer, torch.nn.ReLU()] if number < depth - 1 else [layer]
    return FromModule(torch.nn.Sequential(*layers))


def photograph(size: int) -> torch.Tensor:
    return torch.from_numpy(data.camera()[:size, 128 : 128 + size]).float() / 255


def discs(size: int) -> torch.Tensor:
    """Large areas of one value, through which TV reaches farthest."""
    y, x = torch.meshgrid(torch.linspace(-1, 1, size), torch.linspace(-1, 1, size), indexing="ij")
    return 0.5 * (y**2 + x**2 < 0.6).float() + 0.5 * ((y + 0.2) ** 2 + (x - 0.2) ** 2 < 0.06).float()


def cases() -> list[tuple[str, Denoiser, Callable[[int], torch.Tensor], float, float]]:
    """Name, denoiser, picture, noise and sigma of each row."""
    tv = TV(tol=1e-5, max_iterations=5000)
    rows: list[tuple[str, Denoiser, Callable[[int], torch.Tensor], float, float]] = []
    rows += [("TV", tv, photograph, 0.1, sigma) for sigma in (0.1, 0.3)]
    rows += [("TV", tv, discs, 0.1, sigma) for sigma in (0.1, 0.3, 0.6)]
    for name, denoiser in (
        ("BM3D", BM3D()),
        ("NLM", NLM()),
        ("TNRD", TNRD()),
        ("ridge", ConvexRidge(tol=1e-5)),
        ("ridge, fast", ConvexRidge("fast", tol=1e-5)),
        ("CNN, 8 layers", network()),
    ):
        rows += [(name, denoiser, photograph, sigma, sigma) for sigma in (0.02, 0.1)]
    return rows


def errors(denoiser: Denoiser, noisy: torch.Tensor, sigma: float, tile: int) -> list[float]:
    """The relative error for each halo."""
    whole = denoiser(noisy, sigma)
    change = torch.linalg.vector_norm(whole - noisy)
    tiled = (Tiles(denoiser, tile, halo)(noisy, sigma) for halo in HALOS)
    return [float(torch.linalg.vector_norm(one - whole) / change) for one in tiled]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--tile", type=int, default=64)
    parser.add_argument("--only", help="one of the denoisers")
    given = parser.parse_args()
    warnings.simplefilter("ignore", PlugstreamWarning)  # of a TV that is solved far better than it need be
    noise = torch.randn((given.size, given.size), generator=torch.Generator().manual_seed(1))
    print("| denoiser | picture | noise | sigma | " + " | ".join(f"halo {halo}" for halo in HALOS) + " | its own |")
    print("| --- | --- | --- | --- |" + " --- |" * (len(HALOS) + 1))
    for name, denoiser, picture, level, sigma in cases():
        if given.only in (None, name):
            cells = [
                f"{error:.0e}" if error else "0"
                for error in errors(denoiser, picture(given.size) + level * noise, sigma, given.tile)
            ]
            own = denoiser.reach if denoiser.halo is None else denoiser.halo
            print(f"| {name} | {picture.__name__} | {level:g} | {sigma:g} | {' | '.join(cells)} | {own} |", flush=True)


if __name__ == "__main__":
    main()
