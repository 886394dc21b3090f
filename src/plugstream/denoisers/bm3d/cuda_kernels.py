"""The launches of BM3D's kernels in CUDA C++ (`cuda_kernels.cu`): transforms, groups, and the image from blocks."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from plugstream.base.cuda_source import Kernels, compile_kernels
from plugstream.denoisers import forms
from plugstream.denoisers.bm3d.profile import BLOCK, Profile
from plugstream.denoisers.bm3d.reference import group_size

_STRIP, _TALL, _TILE = 32, 4, 129  # columns and rows of a block of `transform`, columns of one of `gather`
_THREADS = 256
_LISTED = 64  # blocks of a position that are not in its chain, sixteens of them
# Measured on an H200 at 256 x 256 and 512 x 512.
_HIGH = 42  # pixels over which the references below each other of one block of the matching begin,
_SIDE = 4  # references side by side, and
_DOWN = 3  # candidates below each other in one lane: 39 x 13 lanes fill 512


class Problem(ctypes.Structure):
    """What every kernel is given; `cuda_kernels.cu` has the meaning of each field."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("height", "width", "across", "positions")),
        *((name, ctypes.c_int) for name in ("references", "columns", "begin", "end", "size")),
        ("matrix", ctypes.c_float * 64),
        ("window", ctypes.c_float * 8),
        *((name, ctypes.c_void_p) for name in ("images", "sigma", "largest", "spectra", "measured", "groups", "heads")),
        *((name, ctypes.c_void_p) for name in ("lists", "next", "noisy", "guide", "common")),
        ("factor", ctypes.c_float),
        *((name, ctypes.c_void_p) for name in ("blocks", "shares", "numerator", "denominator", "result")),
    )


def read_source(profile: Profile, shape: tuple[int, int]) -> str:
    """The text of the kernels for a profile and the groups of images of this shape."""
    text = Path(__file__).with_suffix(".cu").read_text(encoding="utf-8")
    first, second = (group_size(shape, profile.radius, most) for most in (profile.group1, profile.group2))
    sizes = {"STEP": profile.step, "RADIUS": profile.radius, "SIDE": _SIDE, "DOWN": _DOWN, "FIRST": first}
    sizes |= {"SECOND": second, "LISTED": _LISTED, "WIDE": _TILE + BLOCK - 1}
    sizes |= {"REFS": count_references(profile.step), "LANES": count_lanes(profile.radius)}
    return "".join(f"#define {name} {size}\n" for name, size in sizes.items()) + text


def count_references(step: int) -> int:
    """How many references below each other a block of the matching has."""
    return max(1, _HIGH // step)


def count_lanes(radius: int) -> int:
    """How many lanes the matching takes, a power of two."""
    span = 2 * radius + 1
    return 1 << (forms.cover(span, _DOWN) * span - 1).bit_length()


def find_kernels(profile: Profile, images: Tensor) -> Kernels | None:
    """The kernels for a CUDA device; None where torch has no compiler for them."""
    height, width = (
        min(size, 2 * BLOCK + profile.radius) for size in images.shape[-2:]
    )  # as far as groups depend on it
    return _find_kernels(profile, (height, width), images.device)


@cache
def _find_kernels(profile: Profile, shape: tuple[int, int], device: torch.device) -> Kernels | None:
    return compile_kernels(read_source(profile, shape), device)


class Matches(NamedTuple):
    """The groups of a stack of images, and the blocks of groups at each position, in no order; see `choose`."""

    measured: Tensor  # int32 (N, references, 3, lanes), the keys of each reference's candidates: 6 KB for a reference
    groups: Tensor  # int32 (N, references, size), the block positions of each group
    heads: Tensor  # this and the next two as in `cuda_kernels.cu`
    lists: Tensor
    next: Tensor


class Filtered(NamedTuple):
    """The filtered blocks of each group times its weight, (N, references, size, 64), and the weights."""

    blocks: Tensor
    shares: Tensor


class Band(NamedTuple):
    """Rows of references that are measured, chosen and filtered while other rows are."""

    rows: range  # of groups of references below each other
    references: range


class Launches:
    """The kernels on a stack of images (N, H, W), float32 and contiguous, with a noise level each, (N,).

    Arguments: kernels: those of a CPU, in tests.
    """

    def __init__(self, images: Tensor, sigma: Tensor, profile: Profile, kernels: Kernels | None = None) -> None:
        found = kernels or find_kernels(profile, images)
        assert found is not None, "`has_compiler` says whether there are kernels"
        self.kernels, self.images, self.sigma, self.profile = found, images, sigma, profile
        self.count, self.height, self.width = images.shape
        self.down, self.across = self.height - BLOCK + 1, self.width - BLOCK + 1
        # As many as `reference_positions` has: every `step` pixels, and one at the very end.
        self.rows, self.columns = (forms.cover(s - BLOCK, profile.step) + 1 for s in (self.height, self.width))

    def bands(self, count: int = 1) -> list[Band]:
        """All references in at most so many parts of about equal size."""
        at_once = count_references(self.profile.step)
        groups, _ = _groups(self.height, self.profile.step, at_once)
        bounds = [k * groups // count for k in range(count + 1)]
        # The last row may break the step, and is with the last group.
        ends = [self.rows if b == groups else b * at_once for b in bounds]
        parts = zip(bounds, bounds[1:], ends, ends[1:], strict=False)
        return [Band(range(a, b), range(c * self.columns, d * self.columns)) for a, b, c, d in parts if a < b]

    def _launch(
        self, name: str, across: int, down: int, *, threads: int = _THREADS, parts: int = 1, part: range = range(0),
        **fields: Any,
    ) -> None:  # fmt: skip
        values = {k: v.data_ptr() if isinstance(v, Tensor) else v for k, v in fields.items()}
        problem = Problem(
            self.height, self.width, self.across, self.down * self.across, self.rows * self.columns, self.columns,
            part.start, part.stop, **values,
        )  # fmt: skip
        self.kernels.launch(name, (across, down, self.count * parts), (threads, 1, 1), problem, None, None)

    def transform(self, images: Tensor, analysis: Any) -> Tensor:
        """The spectrum of the block at every position, (N * positions, 64)."""
        out = torch.empty((self.count * self.down * self.across, 64), device=images.device)
        across, down = forms.cover(self.across, _STRIP), forms.cover(self.down, _TALL)
        self._launch("transform", across, down, matrix=analysis, images=images, spectra=out)
        return out

    def prepare(self, size: int) -> tuple[Matches, Filtered]:
        """Memory for what `measure`, `choose` and `filter` find, for groups of so many blocks."""
        references, positions = self.rows * self.columns, self.down * self.across
        options: dict[str, Any] = {"dtype": torch.int32, "device": self.images.device}
        keys = torch.empty((self.count, references, _DOWN, count_lanes(self.profile.radius)), **options)
        groups, following = torch.empty((2, self.count, references, size), **options)
        heads = torch.zeros((self.count, positions, 2), **options)
        matches = Matches(keys, groups, heads, torch.empty((self.count, positions, _LISTED), **options), following)
        blocks = torch.empty((self.count, references, size, 64), device=self.images.device)
        return matches, Filtered(blocks, torch.empty((self.count, references), device=self.images.device))

    def measure(self, guides: Tensor, matches: Matches, band: Band) -> None:
        """Find the keys of the candidates of a band's references."""
        lanes = count_lanes(self.profile.radius)
        threads = min(max(lanes, 32), _THREADS)
        across, down = sum(_groups(self.width, self.profile.step, _SIDE)), len(band.rows)
        self._launch(
            "measure", across, down, threads=threads, parts=forms.cover(lanes, threads), part=band.rows,
            images=guides, measured=matches.measured,
        )  # fmt: skip

    def choose(self, matches: Matches, band: Band) -> None:
        """Find the groups of a band by the keys, and add them to the blocks of each position."""
        across = forms.cover(len(band.references), 4)
        size = matches.groups.shape[2]
        self._launch("choose", across, 1, threads=128, part=band.references, size=size, **matches._asdict())

    def filter(
        self,
        groups: Tensor,
        noisy: Tensor,
        guide: Tensor | None,
        common: Tensor,
        factor: float,
        filtered: Filtered,
        band: Band,
    ) -> None:
        """Filter the groups of a band.

        Arguments: groups of `choose`; spectra of the noisy images, and of the guides in stage 2; common, (65, 64), what
        two blocks share that lie |dy|, |dx| apart, at 8 |dy| + |dx|, and nothing; factor, the threshold in sigmas, or
        that of sigma^2 in the Wiener filter.
        """
        given: dict[str, Any] = {"groups": groups, "noisy": noisy, "common": common, "sigma": self.sigma}
        given |= {} if guide is None else {"guide": guide}
        name, across = "threshold" if guide is None else "wiener", forms.cover(len(band.references), 2)
        self._launch(name, across, 1, threads=128, part=band.references, factor=factor, **given, **filtered._asdict())

    def assemble(self, matches: Matches, filtered: Filtered, largest: Tensor, synthesis: Any, window: Any) -> Tensor:
        """The images from the weighted blocks of all groups.

        Arguments: matches of `choose`; largest pixel of each image; synthesis, with row i times the window's i-th
        number; window.
        """
        device = self.images.device
        numerator = torch.empty((self.count, self.down, self.width, BLOCK), device=device)
        denominator = torch.empty((self.count, self.down, self.width), device=device)
        result = torch.empty_like(self.images)
        given: dict[str, Any] = {
            "matrix": synthesis,
            "window": window,
            "numerator": numerator,
            "denominator": denominator,
        }
        self._launch(
            "gather", forms.cover(self.width, _TILE), self.down, size=matches.groups.shape[2], largest=largest,
            heads=matches.heads, lists=matches.lists, next=matches.next, **filtered._asdict(), **given,
        )  # fmt: skip
        self._launch(
            "fold_rows", forms.cover(self.width, _THREADS), self.height, images=self.images, sigma=self.sigma,
            result=result, **given,
        )  # fmt: skip
        return result


def _groups(size: int, step: int, at_once: int) -> tuple[int, int]:
    """How many groups of so many references an axis has, and 1 if its last reference breaks the step, else 0."""
    return (size - BLOCK) // step // at_once + 1, int((size - BLOCK) % step != 0)
