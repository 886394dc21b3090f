"""How good the denoiser is that a run chooses by itself, beside four that are named, and what the choice costs.

    python benchmarks/denoiser_choice.py ../shared/data/images/BSD68 --count 10 --device cuda
    python benchmarks/denoiser_choice.py ../shared/data/images/BSD68 --count 10 --size 64 --levels 20 40

Of each picture small scans of born-2d are made (60 views, 180 receivers), with noise of its own at each level. All
runs search for sigma: those with a denoiser that is named, and the one that is given nothing, which chooses. Prints the
SNR of each, what was chosen, and at the end averages by level: SNR, how far the run that chooses is below the best of
the four of each scan, how far below the denoiser that is best on the average, and its denoiser calls over those of TV.
"""

from __future__ import annotations

import warnings

import numpy as np
from sigma_search import Problem, chosen_pictures, picture_arguments, simulate

DENOISERS = ("tv", "bm3d", "tnrd", "ridge")


def main() -> None:
    """Read the arguments and compare."""
    parser = picture_arguments(__doc__)
    parser.set_defaults(size=64, denoisers=list(DENOISERS))
    parser.add_argument("--levels", type=float, nargs="+", default=[20.0, 30.0, 40.0], help="input SNRs, in dB")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    rows: dict[float, list[list[float]]] = {level: [] for level in asked.levels}
    calls: dict[float, list[list[float]]] = {level: [] for level in asked.levels}
    for path in chosen_pictures(asked):
        for level in asked.levels:
            scan = simulate("born-2d", path, level, None, asked.size)
            runs = [
                Problem(scan, (*words, "--device", asked.device))
                for words in [*(("--denoiser", name) for name in asked.denoisers), ()]
            ]
            found = [run.find() for run in runs]
            rows[level].append([score for score, _, _ in found])
            calls[level].append([float(steps) for _, _, steps in found])
            told = ", ".join(
                f"{name} {score:.2f}" for name, score in zip(asked.denoisers, rows[level][-1], strict=False)
            )
            print(f"{path.stem:16}{level:4.0f} dB  {told}, chosen {runs[-1].chosen} {found[-1][0]:.2f}", flush=True)
    print(
        f"{'':7}" + "".join(f"{name:>8}" for name in [*asked.denoisers, "chosen"]) + "  below best: each, mean; calls"
    )
    for level in asked.levels:
        scores, steps = np.array(rows[level]), np.array(calls[level])
        means, own = scores.mean(0), scores[:, -1]
        each = (own - scores[:, :-1].max(1)).mean()
        more = steps[:, -1].mean() / steps[:, 0].mean()
        print(
            f"{level:4.0f} dB" + "".join(f"{mean:8.2f}" for mean in means)
            + f"{each:+14.2f}{own.mean() - means[:-1].max():+7.2f}{more:7.2f}"
        )  # fmt: skip


if __name__ == "__main__":
    main()
