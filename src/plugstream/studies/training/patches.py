"""Noisy patches of a folder of pictures, as a pure function of (seed, step), so that training resumes to the bit."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from plugstream.base.errors import InputError

_PICTURES = {".png", ".tif", ".tiff", ".jpg", ".jpeg", ".bmp"}


def load_pictures(folder: str | Path, least: int = 1) -> list[Tensor]:
    """All pictures of a folder in the order of their names, converted to grey, of at least so many pixels a side."""
    from plugstream.images.pictures import load_picture

    path = Path(folder)
    if not path.is_dir():
        raise InputError(f"there is no folder {path}")
    files = sorted(p for p in path.iterdir() if p.suffix.lower() in _PICTURES)
    if not files:
        raise InputError(f"the folder {path} holds no pictures ({', '.join(sorted(_PICTURES))})")
    pictures = [load_picture(file) for file in files]
    if small := [
        f"{f} is {'x'.join(map(str, p.shape))}" for f, p in zip(files, pictures, strict=True) if min(p.shape) < least
    ]:
        raise InputError(f"{small[0]}, and a patch {least}x{least}; use a smaller --patch, or leave it out")
    return pictures


class Patches:
    """Square patches from random places in random pictures, randomly rotated and mirrored.

    The places are drawn on the host, and only they are sent to a GPU, where the pictures already are.

    Arguments:
        pictures: grey pictures (H, W), values from 0 to 1, each at least `size` on a side.
        size: of a patch. seed: of everything random. device: where the patches and their noise are made.
    """

    def __init__(self, pictures: list[Tensor], size: int, *, seed: int = 0, device: str | torch.device = "cpu") -> None:
        if not pictures:
            raise InputError("there are no pictures to train on")
        for number, picture in enumerate(pictures):
            if picture.ndim != 2 or min(picture.shape) < size:
                raise InputError(
                    f"picture {number} is {tuple(picture.shape)}, but patches of {size} x {size} need at least that; "
                    "use smaller patches or leave it out"
                )
        self.pictures, self.size, self.seed, self.device = pictures, size, seed, torch.device(device)
        self._begins = [0, *itertools.accumulate(picture.numel() for picture in pictures[:-1])]
        self._all = torch.cat([picture.reshape(-1).float() for picture in pictures]).to(self.device)

    @classmethod
    def from_folder(
        cls, folder: str | Path, size: int, *, seed: int = 0, device: str | torch.device = "cpu"
    ) -> Patches:
        """All pictures of a folder in the order of their names, converted to grey."""
        return cls(load_pictures(folder, size), size, seed=seed, device=device)

    def draw(self, step: int, count: int) -> Tensor:
        """The patches of a step: (count, size, size)."""
        rng = np.random.Generator(np.random.Philox(key=self.seed, counter=[0, 0, 0, step]))
        places = [self._place(rng) for _ in range(count)]
        first, down, right = torch.tensor(places).to(self.device, non_blocking=True).T[:, :, None, None]
        line = torch.arange(self.size, device=self.device)
        return self._all[first + down * line[:, None] + right * line]

    def _place(self, rng: np.random.Generator) -> tuple[int, int, int]:
        """Where in `_all` a patch begins, and the offsets from there to the pixel below and to the one on the right."""
        which = int(rng.integers(len(self.pictures)))
        height, width = self.pictures[which].shape
        top, left = (int(rng.integers(n - self.size + 1)) for n in (height, width))
        last = self.size - 1
        begin, down, right = self._begins[which] + top * width + left, width, 1
        for _ in range(int(rng.integers(4))):  # a quarter turn to the left
            begin, down, right = begin + last * right, -right, down
        if rng.integers(2):
            begin, down = begin + last * down, -down
        return begin, down, right

    def noise(self, step: int, count: int) -> tuple[Tensor, Tensor]:
        """White noise of variance 1 for the step's patches, (count, size, size), and a uniform number for each.

        A GPU has its own generator, and so its own noise; it too is the same for the same seed and step.
        """
        if self.device.type == "cuda":
            generator = torch.Generator(self.device).manual_seed(((self.seed % 2**23) << 40) + step)
            noise = torch.randn(count, self.size, self.size, device=self.device, generator=generator)
            return noise, torch.rand(count, device=self.device, generator=generator)
        rng = np.random.Generator(np.random.Philox(key=self.seed, counter=[0, 0, 1, step]))
        normal = rng.standard_normal((count, self.size, self.size), dtype=np.float32)
        return torch.from_numpy(normal), torch.from_numpy(rng.random(count, dtype=np.float32))
