"""Phase retrieval as in Online-RED's code: coded diffraction patterns at 25 dB, batches of 1 and 6 of 6, BM3D.

    python benchmarks/online_red.py [Data/testImages.mat | FOLDER] [--iterations 2000] [--device cuda]

    y_i = |F(A_i x)| + noise,    i = 1, ..., 6,    F the unitary FFT, A_i random phases, noise 25 dB below all y

The pictures are the six of github.com/wustl-cig/2019-ICCVW-OnlineRED (`Data/testImages.mat`, (H, W, n), 0 to 1) or
the first seven of a folder (`--count`); masks and noise are drawn with NumPy's seed 128 in their order. On-RED is
`ps.RED` with B of the six views a step, BM3D of sigma 5/255, a start of 0.01 and their step 1 / (6 + 2 tau);
`ps.ProximalGradient` with the same views is beside it. They optimise tau for each picture by its truth. Here tau, and
the sigma of PnP, are chosen on one picture (`--choose`) and judged on the others.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import plugstream as ps

VIEWS, INPUT_SNR = 6, 25.0
TAUS, SIGMAS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 4.0), (2 / 255, 5 / 255, 10 / 255, 20 / 255)
DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "paper-images"


def read_pictures(place: Path, count: int) -> dict[str, Tensor]:
    if place.suffix == ".mat":
        from scipy.io import loadmat

        stack = loadmat(place, squeeze_me=True)["img"]
        return {str(n): torch.from_numpy(np.ascontiguousarray(stack[..., n])).float() for n in range(stack.shape[2])}
    return {file.stem: ps.load_picture(file).float() for file in sorted(place.glob("*.png"))[:count]}


def draw_masks(shape: tuple[int, ...]) -> NDArray[np.complex128]:
    """Random phases, (views, H, W), drawn as their code does."""
    np.random.seed(128)  # noqa: NPY002
    real = np.random.rand(VIEWS, *shape)  # noqa: NPY002
    imaginary = np.sqrt(1 - real**2)
    real = real * (-1.0) ** np.random.randint(10, size=real.shape)  # noqa: NPY002
    imaginary = imaginary * (-1.0) ** np.random.randint(10, size=real.shape)  # noqa: NPY002
    return np.asarray(real + 1j * imaginary, dtype=np.complex128)


def measure(truth: Tensor, model: ps.FunctionModel) -> Tensor:
    """Magnitudes with noise, (views, H, W)."""
    clean = model.forward(truth).cpu().numpy()
    np.random.seed(128)  # noqa: NPY002
    noise = np.random.randn(VIEWS, truth.numel()).reshape(clean.shape)  # noqa: NPY002
    noise *= np.linalg.norm(clean) / np.linalg.norm(noise) * 10 ** (-INPUT_SNR / 20)
    return torch.from_numpy(clean + noise).float().to(truth.device)


def reconstruct(fidelity: ps.LeastSquares, truth: Tensor, batch: int, iterations: int, **prior: Any) -> float:
    """SNR in dB at the end, by RED with `tau`, or by PnP-SGD with `sigma`."""
    sampler = ps.Epochs(batch) if batch < VIEWS else ps.All()
    algorithm: ps.ProximalGradient
    if "tau" in prior:
        # Their gradient is the sum over the batch, ours the mean.
        step = batch / (VIEWS + 2 * prior["tau"])
        algorithm = ps.RED(
            fidelity, ps.BM3D(), sigma=5 / 255, tau=prior["tau"] / batch, step_size=step, sampler=sampler
        )
    else:
        algorithm = ps.ProximalGradient(fidelity, ps.BM3D(), sigma=prior["sigma"], step_size=0.5, sampler=sampler)
    start = torch.full_like(truth, 0.01)
    return float(ps.snr(ps.solve(algorithm, start, iterations=iterations).image, truth))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pictures", type=Path, nargs="?", default=DATA)
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument("--choose", type=int, default=0, help="the picture by which tau and sigma are chosen")
    parser.add_argument("--count", type=int, default=7, help="pictures of a folder")
    parser.add_argument("--batches", type=int, nargs="+", default=(1, VIEWS), help="views in a step")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    if not options.pictures.exists():
        print(f"there are no pictures at {options.pictures}")
        return
    read = read_pictures(options.pictures, options.count)
    pictures = {name: picture.to(options.device) for name, picture in read.items()}
    shape = next(iter(pictures.values())).shape
    masks = torch.from_numpy(draw_masks(shape)).to(options.device, torch.complex64)

    def look(image: Tensor, views: Tensor) -> Tensor:
        waves: Tensor = torch.fft.fft2(masks[views] * image[..., None, :, :], norm="ortho")
        return waves.abs()

    model = ps.FunctionModel(
        look, n_views=VIEWS, image_shape=tuple(shape), data_shape=tuple(shape), device=options.device
    )
    problems = {name: (truth, ps.LeastSquares(model, measure(truth, model))) for name, truth in pictures.items()}
    first = list(problems)[options.choose]
    for batch in options.batches:
        for method, key, values in (("On-RED", "tau", TAUS), ("PnP-SGD", "sigma", SIGMAS)):
            truth, fidelity = problems[first]
            tried = {value: reconstruct(fidelity, truth, batch, options.iterations, **{key: value}) for value in values}
            best = max(tried, key=tried.__getitem__)
            found = {
                name: reconstruct(fidelity, truth, batch, options.iterations, **{key: best})
                for name, (truth, fidelity) in problems.items()
                if name != first
            }
            mean = float(np.mean(list(found.values())))
            each = ", ".join(f"{name} {value:.2f}" for name, value in found.items())
            print(
                f"{method}, {batch} of {VIEWS}: {mean:.2f} dB ({each}); {key} {best:.3g} chosen on {first}", flush=True
            )


if __name__ == "__main__":
    main()
