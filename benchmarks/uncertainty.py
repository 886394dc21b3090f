"""How often the true error of an image is within twice its error map: Born scans of pictures, at 20, 30 and 40 dB.

    python benchmarks/uncertainty.py ../shared/data/paper-images --device cuda

Of each picture the scan of the paper (60 views, 360 receivers) is made and reconstructed, with the sigma that a race
finds (as `plugstream reconstruct` does), and the map made from 16 halves of the views, as `--uncertainty 16` does. For
independent Gaussian errors of the standard deviation that the map says it would be 95 %. Prints besides how large the
map is beside the true error, and the rank correlation with |error| from pixel to pixel: of the map, and of the size of
the image's own gradient, which needs no map.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.stats import spearmanr
from sigma_search import chosen_pictures, find_image, picture_arguments

from plugstream import error_map
from plugstream.fidelity.least_squares import LeastSquares
from plugstream.images.pictures import load_picture
from plugstream.images.simulated import add_noise
from plugstream.models.born import BornModel
from plugstream.models.born_geometry import BornGeometry
from plugstream.solver.uncertainty import coverage


def judge(fidelity: LeastSquares, name: str, truth: torch.Tensor, halves: int) -> tuple[float, ...]:
    """SNR, coverage, rms of the map over that of the error, rank correlation of map and of gradient with |error|."""
    going, last, _ = find_image(fidelity, name)
    error, found = (last.image - truth).double(), error_map(going, last, halves=halves, steps=40)
    down, right = torch.gradient(last.image.double())
    map_rank, gradient_rank = (
        float(spearmanr(guess.flatten().cpu(), error.abs().flatten().cpu())[0]) for guess in (found, down.hypot(right))
    )
    ratio = found.square().mean().sqrt() / error.square().mean().sqrt()
    snr = 20 * torch.log10(truth.double().norm() / error.norm())
    return float(snr), coverage(error, found), float(ratio), map_rank, gradient_rank


def main() -> None:
    """Read the arguments and print the table."""
    parser = picture_arguments(__doc__)
    parser.add_argument("--halves", type=int, default=16)
    asked = parser.parse_args()
    chosen = chosen_pictures(asked)
    model = BornModel(BornGeometry.paper(asked.size), device=asked.device)
    print(f"{len(chosen)} pictures of {asked.size} x {asked.size}, {asked.halves} halves of the views")
    columns = f"{'|error| < 2 map':>26}{'map / error':>13}{'ranks: map':>12}{'gradient':>10}"
    print(f"{'denoiser':9}{'input':>7}{'SNR':>8}{columns}")
    for name in asked.denoisers:
        for level in (20.0, 30.0, 40.0):
            rows = []
            for seed, path in enumerate(chosen):
                truth = load_picture(path, asked.size).to(device=model.device, dtype=model.dtype)
                data = add_noise(model.forward(truth).cpu(), level, seed=seed)
                rows.append(judge(LeastSquares(model, data), name, truth, asked.halves))
            snr, covered, ratio, map_rank, gradient_rank = np.array(rows).T
            spread = f"{100 * covered.mean():.0f} % ({100 * covered.min():.0f} to {100 * covered.max():.0f})"
            print(
                f"{name:9}{level:4.0f} dB{snr.mean():8.2f}{spread:>26}{ratio.mean():13.2f}{map_rank.mean():12.2f}"
                f"{gradient_rank.mean():10.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
