"""Plug in a denoiser of your own: scikit-image's non-local means as the prior of an online reconstruction.

Any function f(z, sigma) will do. Nobody promises that this one is averaged, so the distance to a fixed point is
watched: it tells whether the iteration settled.

    python examples/own_denoiser.py
"""

from __future__ import annotations

import torch
from skimage.restoration import denoise_nl_means

import plugstream as ps


def non_local_means(z: torch.Tensor, sigma: float) -> torch.Tensor:
    image = denoise_nl_means(z.numpy(), patch_size=5, patch_distance=6, h=0.8 * sigma, sigma=sigma, fast_mode=True)
    return torch.from_numpy(image).to(z)


def main() -> None:
    truth = ps.load_picture("camera", size=96)
    grid = ps.Grid((96, 96), 0.18 / 96)
    model = ps.BornModel(ps.BornGeometry.rings(grid, 0.01, views=48, receivers=160, radius=1.6))
    fidelity = ps.LeastSquares(model, ps.simulate(model, truth, snr=30).data)
    print(f"back-projection   {float(ps.snr(fidelity.backprojection(), truth)):6.2f} dB")
    for name, denoiser, sigma in (
        ("no prior", ps.NonNegative(), 0.0),
        ("TV", ps.TV(low=0.0), 0.05),
        ("non-local means", ps.Clip(non_local_means), 0.01),
    ):
        algorithm = ps.ProximalGradient(
            fidelity, denoiser, sigma=sigma, sampler=ps.ShiftedViews(8), momentum="nesterov"
        )
        result = ps.solve(algorithm, iterations=60, monitors=[ps.SNR(truth), ps.Distance()])
        last = {key: float(series.value[-1]) for key, series in result.history.items()}
        print(
            f"{name:<18}{last['snr']:6.2f} dB, distance to a fixed point {last['relative_distance']:.1e} of its start"
        )


if __name__ == "__main__":
    main()
