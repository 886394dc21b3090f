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

_STRIP, _TALL, _TILE = 32, 4, 57  # columns and rows of a block of `transform`, columns of one of `gather`
_THREADS = 256
_PIXELS = 24 << 10  # bytes, at most, of pixels that a block of the matching has beside its keys
_LISTED = 32  # blocks of a position that are not in its chain, sixteen at least
# Measured on an H200 at 256 x 256 and 512 x 512.
_REFERENCES = 5  # references below each other in one block of the matching, or as many as it has memory for,
_SIDE = 3  # as many side by side, and
_DOWN = 3  # candidates below each other in one lane: 39 x 13 lanes fill 512


class Problem(ctypes.Structure):
    """What every kernel is given; `cuda_kernels.cu` has the meaning of each field."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("height", "width", "across", "positions")),
        *((name, ctypes.c_int) for name in ("references", "columns", "begin", "end", "size")),
        ("matrix", ctypes.c_float * 64),
        ("window", ctypes.c_float * 8),
        *((name, ctypes.c_void_p) for name in ("images", "sigma", "largest", "spectra", "groups", "heads")),
        *((name, ctypes.c_void_p) for name in ("lists", "next", "noisy", "guide", "common")),
        ("factor", ctypes.c_float),
        *((name, ctypes.c_void_p) for name in ("blocks", "shares", "numerator", "denominator", "result")),
    )


def read_source(profile: Profile, shape: tuple[int, int], references: int = _REFERENCES) -> str:
    """The text of the kernels for a profile and the groups of images of this shape.

    Arguments: references below each other that are matched together.
    """
    text = Path(__file__).with_suffix(".cu").read_text(encoding="utf-8")
    first, second = (group_size(shape, profile.radius, most) for most in (profile.group1, profile.group2))
    sizes = {"STEP": profile.step, "RADIUS": profile.radius, "REFS": references, "SIDE": _SIDE, "DOWN": _DOWN}
    sizes |= {"LANES": count_lanes(profile.radius), "FIRST": first, "SECOND": second, "LISTED": _LISTED}
    return "".join(f"#define {name} {size}\n" for name, size in sizes.items()) + text


def count_lanes(radius: int) -> int:
    """How many lanes the matching takes, a power of two."""
    span = 2 * radius + 1
    return 1 << (forms.cover(span, _DOWN) * span - 1).bit_length()


def count_references(profile: Profile, device: torch.device) -> int:
    """How many references below each other are matched together, for whose keys a block of threads has memory."""
    if device.type != "cuda":
        return _REFERENCES
    room: int = getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 48 << 10)
    return max(n for n in range(1, _REFERENCES + 1) if n == 1 or key_bytes(profile, n) + _PIXELS <= room)


def key_bytes(profile: Profile, references: int) -> int:
    """Memory that the keys of so many references below each other take."""
    return 4 * references * _SIDE * _DOWN * count_lanes(profile.radius)


def find_kernels(profile: Profile, images: Tensor) -> Kernels | None:
    """The kernels for a CUDA device; None where torch has no compiler for them."""
    height, width = (
        min(size, 2 * BLOCK + profile.radius) for size in images.shape[-2:]
    )  # as far as groups depend on it
    return _find_kernels(profile, (height, width), images.device)


@cache
def _find_kernels(profile: Profile, shape: tuple[int, int], device: torch.device) -> Kernels | None:
    return compile_kernels(read_source(profile, shape, count_references(profile, device)), device)


class Matches(NamedTuple):
    """The groups of a stack of images, and the blocks of groups at each position, in no order; see `match`."""

    groups: Tensor  # int32 (N, references, size), the block positions of each group
    heads: Tensor  # this and the next two as in `cuda_kernels.cu`
    lists: Tensor
    next: Tensor


class Filtered(NamedTuple):
    """The filtered blocks of each group times its weight, (N, references, size, 64), and the weights."""

    blocks: Tensor
    shares: Tensor


class Band(NamedTuple):
    """Rows of references that are matched and filtered while other rows are."""

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
        self.at_once = count_references(profile, images.device)
        self.count, self.height, self.width = images.shape
        self.down, self.across = self.height - BLOCK + 1, self.width - BLOCK + 1
        # As many as `reference_positions` has: every `step` pixels, and one at the very end.
        self.rows, self.columns = (forms.cover(s - BLOCK, profile.step) + 1 for s in (self.height, self.width))

    def bands(self, count: int = 1) -> list[Band]:
        """All references in at most so many parts of about equal size."""
        # The last row may break the step, and has programs of its own.
        regular, last = _groups(self.height, self.profile.step, self.at_once)
        bounds = [k * (regular + last) // count for k in range(count + 1)]
        ends = [self.rows if b == regular + last else min(b * self.at_once, self.rows - last) for b in bounds]
        parts = zip(bounds, bounds[1:], ends, ends[1:], strict=False)
        return [Band(range(a, b), range(c * self.columns, d * self.columns)) for a, b, c, d in parts if a < b]

    def _launch(
        self, name: str, across: int, down: int, *, threads: int = _THREADS, shared: int = 0, part: range = range(0),
        **fields: Any,
    ) -> None:  # fmt: skip
        values = {k: v.data_ptr() if isinstance(v, Tensor) else v for k, v in fields.items()}
        problem = Problem(
            self.height, self.width, self.across, self.down * self.across, self.rows * self.columns, self.columns,
            part.start, part.stop, **values,
        )  # fmt: skip
        grid = (across, down, self.count)
        self.kernels.launch(name, grid, (threads, 1, 1), problem, None, None, shared=shared)

    def transform(self, images: Tensor, analysis: Any) -> Tensor:
        """The spectrum of the block at every position, (N * positions, 64)."""
        out = torch.empty((self.count * self.down * self.across, 64), device=images.device)
        across, down = forms.cover(self.across, _STRIP), forms.cover(self.down, _TALL)
        self._launch("transform", across, down, matrix=analysis, images=images, spectra=out)
        return out

    def prepare(self, size: int) -> tuple[Matches, Filtered]:
        """Memory for what `match` and `filter` find, for groups of so many blocks."""
        references, positions = self.rows * self.columns, self.down * self.across
        options: dict[str, Any] = {"dtype": torch.int32, "device": self.images.device}
        groups, following = torch.empty((2, self.count, references, size), **options)
        heads = torch.zeros((self.count, positions, 2), **options)
        matches = Matches(groups, heads, torch.empty((self.count, positions, _LISTED), **options), following)
        blocks = torch.empty((self.count, references, size, 64), device=self.images.device)
        return matches, Filtered(blocks, torch.empty((self.count, references), device=self.images.device))

    def match(self, guides: Tensor, matches: Matches, band: Band) -> None:
        """Find the groups of a band, and add them to the blocks of each position."""
        threads = min(max(count_lanes(self.profile.radius), 32), _THREADS)
        across, shared = sum(_groups(self.width, self.profile.step, _SIDE)), key_bytes(self.profile, self.at_once)
        self._launch(
            "match", across, len(band.rows), threads=threads, shared=shared, part=band.rows,
            size=matches.groups.shape[2], images=guides, **matches._asdict(),
        )  # fmt: skip

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

        Arguments: groups of `match`; spectra of the noisy images, and of the guides in stage 2; common, (65, 64), what
        two blocks share that lie |dy|, |dx| apart, at 8 |dy| + |dx|, and nothing; factor, the threshold in sigmas, or
        that of sigma^2 in the Wiener filter.
        """
        given: dict[str, Any] = {"groups": groups, "noisy": noisy, "common": common, "sigma": self.sigma}
        given |= {} if guide is None else {"guide": guide}
        name, across = "threshold" if guide is None else "wiener", forms.cover(len(band.references), 2)
        self._launch(name, across, 1, threads=128, part=band.references, factor=factor, **given, **filtered._asdict())

    def assemble(self, matches: Matches, filtered: Filtered, largest: Tensor, synthesis: Any, window: Any) -> Tensor:
        """The images from the weighted blocks of all groups.

        Arguments: matches of `match`; largest pixel of each image; synthesis, with row i times the window's i-th
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
