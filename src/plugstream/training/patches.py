"""Noisy patches of a folder of pictures, as a pure function of (seed, step), so that training resumes to the bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from plugstream.errors import InputError

__all__ = ["Patches"]

_PICTURES = {".png", ".tif", ".tiff", ".jpg", ".jpeg", ".bmp"}


class Patches:
    """Square patches from random places of random pictures, turned and mirrored at random.

    Arguments:
        pictures: grey pictures (H, W), values from 0 to 1, each at least `size` on a side.
        size: of a patch. seed: of everything random.
    """

    def __init__(self, pictures: list[Tensor], size: int, *, seed: int = 0) -> None:
        if not pictures:
            raise InputError("there are no pictures to train on")
        for number, picture in enumerate(pictures):
            if picture.ndim != 2 or min(picture.shape) < size:
                raise InputError(
                    f"picture {number} is {tuple(picture.shape)}, but patches of {size} x {size} need at least that; "
                    "use smaller patches or leave it out"
                )
        self.pictures, self.size, self.seed = pictures, size, seed

    @classmethod
    def from_folder(cls, folder: str | Path, size: int, *, seed: int = 0) -> Patches:
        """All pictures of a folder in the order of their names, colour ones as grey."""
        from plugstream.runs.images import load_picture

        path = Path(folder)
        if not path.is_dir():
            raise InputError(f"there is no folder {path}")
        files = sorted(p for p in path.iterdir() if p.suffix.lower() in _PICTURES)
        if not files:
            raise InputError(f"the folder {path} holds no pictures ({', '.join(sorted(_PICTURES))})")
        return cls([load_picture(file) for file in files], size, seed=seed)

    def draw(self, step: int, count: int) -> Tensor:
        """The patches of a step: (count, size, size)."""
        rng = np.random.Generator(np.random.Philox(key=self.seed, counter=[0, 0, 0, step]))
        out = torch.empty(count, self.size, self.size)
        for k in range(count):
            picture = self.pictures[int(rng.integers(len(self.pictures)))]
            top, left = (int(rng.integers(n - self.size + 1)) for n in picture.shape)
            patch = picture[top : top + self.size, left : left + self.size]
            turned = torch.rot90(patch, int(rng.integers(4)))
            out[k] = turned.flip(0) if rng.integers(2) else turned
        return out

    def noise(self, step: int, count: int) -> tuple[Tensor, Tensor]:
        """White noise of variance 1 for the step's patches, (count, size, size), and a uniform number for each."""
        rng = np.random.Generator(np.random.Philox(key=self.seed, counter=[0, 0, 1, step]))
        noise = rng.standard_normal((count, self.size, self.size), dtype=np.float32)
        return torch.from_numpy(noise), torch.from_numpy(rng.random(count, dtype=np.float32))
