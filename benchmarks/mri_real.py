"""A real multi-coil scan at an eighth of k-space: TV and BM3D against CG-SENSE, every setting chosen on other samples.

    python benchmarks/mri_real.py ../shared/data/mri/cartesian_ksp.npy               five splits, half an hour
    python benchmarks/mri_real.py kspace.npy --splits 2 --online 1                   two, one with few samples a step
    python benchmarks/mri_real.py kspace.npy --record build/mri_real.jsonl           goes on where it was stopped
    python benchmarks/mri_real.py kspace.npy --splits 0 --picture docs/images/brain.png

Nobody has the rest of k-space, so samples outside its fully sampled middle are split at random: 80 % to fit, 10 % to
choose, 10 % to judge. Each method chooses by ||y - H x|| / ||y|| of the second part: CG-SENSE its iteration, the others
their sigma, and each where its coil maps end (`--crop`), or not, with maps everywhere for all. Then each forms an image
of the first two parts with what it chose, and the third, which nothing has seen, judges it. Of CG-SENSE the iteration
that the judging samples like best is shown besides. Everything else is as the library advises; all is by command.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from plugstream import open_scan
from plugstream.cli import main
from plugstream.instruments.mri import MRI
from plugstream.models.coils import find_calibration
from plugstream.scans.baselines.first_image import form_image, relative_residual, scan_model

CROPS = ("0", "0.9", "0.95")
SIGMAS = {"tv": ("4%", "5%", "6%"), "bm3d": ("1%", "1.2%", "1.4%")}
SPLITTING = f"{Path(__file__).parents[1]}/examples/algorithms/gradient_splitting.py:splitting"
PARTS = (0.1, 0.1)  # to choose and to judge
ITERATIONS, PASSES, FALL = 40, 80, 0.3
Bools = NDArray[np.bool_]


def command(*words: object) -> None:
    """Run plugstream in this process, without what it says."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        code = main([str(word) for word in words])
    if code:
        raise SystemExit(said.getvalue())


def split_samples(sampled: Bools, seed: int) -> tuple[Bools, Bools, Bools]:
    """Which samples fit, choose and judge, (H, W) each; the fully sampled middle fits."""
    inside = np.zeros_like(sampled)
    inside[find_calibration(sampled)] = True
    places = np.argwhere(sampled & ~inside)
    order = np.random.default_rng(1000 + seed).permutation(len(places))
    ends = [0, *(round(sum(PARTS[: n + 1]) * len(places)) for n in range(len(PARTS))), len(places)]
    masks = []
    for begin, end in itertools.pairwise(ends):
        mask = np.zeros_like(sampled)
        mask[tuple(places[order[begin:end]].T)] = True
        masks.append(mask)
    choose, judge, fit = masks
    return fit | inside, choose, judge


def noise_alone(kspace: NDArray[Any], seed: int) -> float:
    """What noise would leave of the judging samples, if it is all that those beyond the inscribed ellipse hold."""
    sampled = (kspace != 0).any(0)
    fit, choose, judge = split_samples(sampled, seed)
    axes = [(np.arange(n) - n // 2) / (n / 2) for n in sampled.shape]
    far = np.hypot(axes[0][:, None], axes[1]) > 1
    energy = (np.abs(kspace) ** 2).sum(0)
    return float(np.sqrt(energy[(fit | choose) & far].mean() * judge.sum() / energy[judge].sum()))


class Trial:
    """A scan of some samples with maps that end somewhere, and one of others with the same maps, to judge it by."""

    def __init__(self, kspace: NDArray[Any], fit: Bools, judge: Bools, crop: str, place: Path) -> None:
        place.mkdir()
        self.place = place
        np.save(place / "fit.npy", kspace * fit)
        command("import", "mri", place / "fit.npy", place / "fit.zarr", "--crop", crop)
        self.scan = open_scan(place / "fit.zarr")
        assert isinstance(self.scan.instrument, MRI)
        assert self.scan.instrument.coil_maps is not None
        maps, scale = self.scan.instrument.coil_maps, self.scan.provenance["steps"]["scale"]
        np.savez(place / "judge.npz", kspace=scale * kspace * judge, mask=judge, coil_maps=maps)
        command("import", "mri", place / "judge.npz", place / "judge.zarr", "--scale", "none")
        self.judge = open_scan(place / "judge.zarr")
        self.model = scan_model(self.judge)

    def score(self, image: torch.Tensor) -> float:
        """||y - H x|| / ||y|| of the judging samples."""
        return relative_residual(self.judge, image, self.model)

    def cg_sense(self, iterations: int = 16) -> list[float]:
        """The score after each iteration."""
        curve: list[float] = []
        form_image(self.scan, "cg-sense", iterations=iterations, look=lambda k, x, _: curve.append(self.score(x)))
        return curve

    def form(self, *words: object) -> torch.Tensor:
        """The image that a command forms."""
        with tempfile.TemporaryDirectory() as folder:
            command("reconstruct", self.place / "fit.zarr", "--out", f"{folder}/run", "--report", "none", *words)
            return torch.from_numpy(np.load(f"{folder}/run/result.npy"))

    def all_samples(self, denoiser: str, sigma: str) -> torch.Tensor:
        """All samples a step."""
        words = ["--denoiser", denoiser, "--sampler", "all", "--sigma", sigma]
        return self.form(*words, "--iterations", ITERATIONS, "--every", ITERATIONS)

    def few_samples(self, denoiser: str, sigma: str) -> torch.Tensor:
        """A tenth of the samples a step, each once before any comes again.

        TV is a prox, so that with a step of a tenth a sigma of the root of that weighs the same: it comes after every
        step, and step and sigma fall towards the end, which takes the noise of batches away. BM3D is none: with a small
        sigma it does something else than with a large one, so it comes after each pass, with the sigma of all samples.
        """
        few = max(1, self.scan.n_views // 10)
        steps = -(-self.scan.n_views // few)
        words: list[object] = ["--denoiser", denoiser, "--batch", few, "--every", PASSES * steps]
        if denoiser == "tv":
            first = float(sigma.rstrip("%")) * (few / self.scan.n_views) ** 0.5
            words += ["--step", "overlap", "--step-end", f"{FALL} overlap"]
            words += ["--sigma", f"{first:.4f}%", "--sigma-end", f"{first * FALL**0.5:.4f}%"]
        else:
            words += ["--algorithm", SPLITTING, "--inner-steps", steps, "--momentum", "none", "--sigma", sigma]
        return self.form(*words, "--iterations", PASSES * steps)


def measure_split(kspace: NDArray[Any], seed: int, place: Path) -> dict[str, Any]:
    """What each method chooses, and how it is judged, with maps everywhere and with maps that end where it chose."""
    fit, choose, judge = split_samples((kspace != 0).any(0), seed)
    trials = {crop: Trial(kspace, fit, choose, crop, place / f"choose{crop}") for crop in CROPS}
    finals = {crop: Trial(kspace, fit | choose, judge, crop, place / f"judge{crop}") for crop in CROPS}
    found: dict[str, Any] = {"seed": seed, "everywhere": {}, "chosen": {}}
    curves = {crop: trial.cg_sense() for crop, trial in trials.items()}
    judged = {crop: final.cg_sense() for crop, final in finals.items()}
    for which, crop in (("everywhere", "0"), ("chosen", min(CROPS, key=lambda crop: min(curves[crop])))):
        k = int(np.argmin(curves[crop]))
        best = min(judged[crop])
        found[which]["cg-sense"] = {"left": judged[crop][k], "best": best, "crop": crop, "iteration": k + 1}
    for name, sigmas in SIGMAS.items():
        by_sigma = {sigma: trials["0"].score(trials["0"].all_samples(name, sigma)) for sigma in sigmas}
        sigma = min(sigmas, key=lambda sigma: by_sigma[sigma])
        by_crop = {"0": by_sigma[sigma]}
        by_crop |= {crop: trials[crop].score(trials[crop].all_samples(name, sigma)) for crop in CROPS[1:]}
        crop = min(CROPS, key=lambda crop: by_crop[crop])
        for which, where in {"everywhere": "0", "chosen": crop}.items():
            left = found["everywhere"].get(name) if where == "0" and which == "chosen" else None
            if left is None:
                image = finals[where].all_samples(name, sigma)
                left = {"left": finals[where].score(image), "crop": where, "sigma": sigma}
            found[which][name] = left
    return found


def measure_online(kspace: NDArray[Any], found: dict[str, Any], place: Path) -> None:
    """Add few samples a step, with maps everywhere and the sigma that all samples chose."""
    fit, choose, judge = split_samples((kspace != 0).any(0), found["seed"])
    final = Trial(kspace, fit | choose, judge, "0", place / "online")
    for name in SIGMAS:
        sigma = found["everywhere"][name]["sigma"]
        left = final.score(final.few_samples(name, sigma))
        found["everywhere"][f"{name}, a tenth"] = {"left": left, "crop": "0", "sigma": sigma}


def show_split(found: dict[str, Any]) -> None:
    """A line for each way to have maps."""
    for which in ("everywhere", "chosen"):
        words = []
        for name, one in found[which].items():
            how = f"iteration {one['iteration']}, best {one['best']:.4f}" if "iteration" in one else one["sigma"]
            words.append(f"{name} {one['left']:.4f} ({how}, crop {one['crop']})")
        print(f"split {found['seed']}, maps {which}: {'; '.join(words)}", flush=True)


def show_means(rows: list[dict[str, Any]]) -> None:
    """Mean and standard deviation over splits, and of how far below CG-SENSE and above all samples a step."""
    for which in ("everywhere", "chosen"):
        print(f"maps {which}, {len(rows)} splits: mean and standard deviation")
        for name in dict.fromkeys(name for row in rows for name in row[which]):
            some = [row[which] for row in rows if name in row[which]]
            left = np.array([row[name]["left"] for row in some])
            text = f"    {name}: {left.mean():.4f} +- {left.std():.4f}"
            if "," in name:
                whole = np.array([row[name.split(",")[0]]["left"] for row in some])
                more = 100 * (left / whole - 1)
                text += f", {more.mean():+.2f} % +- {more.std():.2f} of all samples a step"
            elif name != "cg-sense":
                for of, label in (("left", "the iteration it chose"), ("best", "its best")):
                    below = 100 * (1 - left / np.array([row["cg-sense"][of] for row in some]))
                    text += f", {below.mean():.1f} % +- {below.std():.1f} below CG-SENSE at {label}"
            print(text, flush=True)


def draw(kspace: NDArray[Any], place: Path, path: Path) -> None:
    """CG-SENSE, TV and BM3D of nine tenths: amplitude above, phase below where there is any amplitude."""
    import matplotlib.pyplot as plt

    fit, choose, judge = split_samples((kspace != 0).any(0), 0)
    trial = Trial(kspace, fit | choose, judge, "0", place / "picture")
    iterations = 1 + int(np.argmin(trial.cg_sense()))
    images = {"CG-SENSE": form_image(trial.scan, "cg-sense", iterations=iterations)}
    images |= {"TV": trial.all_samples("tv", "6%"), "BM3D": trial.all_samples("bm3d", "1.2%")}
    figure, axes = plt.subplots(2, len(images), figsize=(2.6 * len(images), 6.4), squeeze=False, layout="constrained")
    most = max(float(image.abs().quantile(0.998)) for image in images.values())
    for column, (name, image) in zip(axes.T, images.items(), strict=True):
        size = image.abs()
        shown = column[0].imshow(size, cmap="gray", vmin=0, vmax=most)
        faint = (size / (0.25 * most)).clamp(0, 1).numpy()
        turned = column[1].imshow(image.angle(), cmap="twilight_shifted", vmin=-np.pi, vmax=np.pi, alpha=faint)
        column[0].set_title(name)
        for axis in column:
            axis.set_xticks([])
            axis.set_yticks([])
            axis.set_facecolor("black")
    figure.colorbar(shown, ax=axes[0], shrink=0.8, label="amplitude")
    figure.colorbar(turned, ax=axes[1], shrink=0.8, label="phase (rad)")
    figure.savefig(path, dpi=80)


def run(file: Path, splits: int, online: int, record: Path | None, picture: Path | None) -> None:
    """Measure what is not recorded yet, split by split, and show the means."""
    kspace = np.load(file)
    rows = []
    if record is not None and record.exists():
        rows = [json.loads(line) for line in record.read_text(encoding="utf-8").splitlines()]
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(splits):
            place = Path(folder) / str(seed)
            place.mkdir()
            if seed == len(rows):
                rows.append(measure_split(kspace, seed, place))
            if seed < online and "tv, a tenth" not in rows[seed]["everywhere"]:
                measure_online(kspace, rows[seed], place)
            show_split(rows[seed])
            if record is not None:
                record.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        if rows[:splits]:
            show_means(rows[:splits])
            print(f"noise alone, about {np.mean([noise_alone(kspace, seed) for seed in range(splits)]):.4f}")
        if picture is not None:
            draw(kspace, Path(folder), picture)


if __name__ == "__main__":
    usual = Path("../shared/data/mri/cartesian_ksp.npy")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?", default=usual)
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--online", type=int, default=5, help="of how many splits few samples a step are measured, too")
    parser.add_argument("--record", type=Path, help="JSON lines of splits that were measured; goes on from there")
    parser.add_argument("--picture", type=Path)
    chosen = parser.parse_args()
    if not chosen.file.exists():
        raise SystemExit(f"there is no {chosen.file}: name k-space on a grid, (coils, H, W), zero where not measured")
    run(chosen.file, chosen.splits, chosen.online, chosen.record, chosen.picture)
