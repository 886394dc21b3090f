"""Large images in pieces: a denoiser on overlapping tiles, one after the other or shared among processes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from plugstream.base.errors import InputError
from plugstream.base.processes import Group
from plugstream.base.progress import report
from plugstream.base.transfers import MemoryTarget, bring, bring_back
from plugstream.denoisers.base import Denoiser, Sigma, Wrapper, require_axes
from plugstream.denoisers.wrap import as_denoiser

Slices = tuple[slice, ...]


@dataclass(frozen=True)
class _Tile:
    """A part of an image: `place` where it lies, `outer` with its halo, and `inside` where it lies in that."""

    place: Slices
    outer: Slices
    inside: Slices


class Tiles(Wrapper):
    """A denoiser on tiles with halos, so that it needs the memory of a tile and can be shared among processes.

    Images are cut along both axes, volumes into slabs along the first axis. Every tile is denoised with `halo` pixels
    around it, as far as the image goes, and of the result the tile itself is kept.

    If a pixel depends on others up to a distance r only (`Denoiser.reach`: TNRD's filters, BM3D's search, a network's
    receptive field, the soft threshold with r = 0), a halo of r gives the result of the whole image, up to rounding,
    and keeps what is known of the denoiser. TV's and NLM's pixels depend on all others; there the error falls with the
    halo (docs/scale.md), and nothing is known of averagedness.

    With a `group` each process denoises its own tiles, and all get the whole image. The result does not depend on the
    number of processes, to the bit, if the tiles are the same.

    Arguments:
        denoiser: any. Means over the image that an adapter takes are those of the tile.
        tile: pixels along an axis, of a tile without its halo; None: as many slabs along the first axis as processes.
        halo: pixels around it; the denoiser's `halo`, or else `reach`, if not given.
        align: tiles with their halos begin at multiples of this, as networks that halve images need (8, say); the
            denoiser's if not given.
        group: from `process_group()`.
        device: that denoises tiles, one after the other, of images that are elsewhere: a GPU with less memory than the
            CPU has, for one process.
    The warm start is that of the denoiser, put together from the tiles.
    """

    def __init__(
        self,
        denoiser: Denoiser | Callable[..., Tensor],
        tile: int | None = None,
        halo: int | None = None,
        *,
        align: int | None = None,
        group: Group | None = None,
        device: torch.device | None = None,
    ) -> None:
        super().__init__(as_denoiser(denoiser), tile=tile, halo=halo, align=align, group=group, device=device)
        inner = self.denoiser
        around = halo if halo is not None else inner.reach if inner.halo is None else inner.halo
        if around is None:
            raise InputError(
                f"how far {inner.describe()} looks is not known; give the halo of tiles, the radius of what it sees"
            )
        if tile is not None and tile < 1:
            raise InputError(f"a tile needs at least one pixel a side, not {tile}")
        if (halo is not None and halo < 0) or (align is not None and align < 1):
            raise InputError(f"the halo of tiles must be >= 0 and align >= 1, not {halo} and {align}")
        self.tile, self.group = tile, Group() if group is None else group
        self.around, self.device = around, device
        self.align = inner.align if align is None else align
        if inner.reach is not None and self.around >= inner.reach and self.align % inner.align == 0:
            self.averaged, self.proximal = inner.averaged, inner.proximal
            self.value = inner.value

    def alone(self) -> Tiles:
        """The same on this process alone, for a call in which the others take no part."""
        return Tiles(self.denoiser, **{**self.options, "group": None})

    def describe(self) -> str:
        size = "slabs, one for each process" if self.tile is None else f"tiles of {self.tile}"
        where = "" if self.device is None else f" on {self.device}"
        return f"{self.denoiser.describe()}, on {size} with a halo of {self.around}{where}"

    def denoise(self, image: Tensor, sigma: Sigma, warm: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        require_axes(image, self)
        tiles = self.tiles(tuple(image.shape[-self.ndim :]))
        if self.group.size == 1:
            if len(tiles) == 1 and self.device in (None, image.device):
                return self.denoiser.denoise(image, sigma, warm)
            return self._denoise_alone(tiles, image, sigma, warm)
        outs: list[Tensor] = []
        afters: list[Tensor] = []
        failure: BaseException | None = None
        try:
            for tile in self._share(tiles, self.group.rank):
                out, after = self._denoise_one(tile, image, sigma, warm)
                outs.append(out)
                afters += [] if after is None else [after]
        except Exception as error:  # the next message passes it on to all processes
            failure = error
        clean = self._join(tiles, outs, torch.empty_like(image), failure)
        # Only a process with a tile knows the shape of a warm start; rank 0 always has one.
        lead = image.ndim - self.axes
        kind = self.group.share((afters[0].shape[lead : -self.ndim], afters[0].dtype) if afters else None)
        if kind is None:
            return clean, None
        shape = (*image.shape[:lead], *kind[0], *image.shape[-self.ndim :])
        return clean, self._join(tiles, afters, torch.empty(shape, dtype=kind[1], device=image.device), None)

    def _denoise_alone(
        self, tiles: list[_Tile], image: Tensor, sigma: Sigma, warm: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """By one process, which puts each tile where it belongs before the next one."""
        clean, afterwards = torch.empty_like(image), None
        for number, tile in enumerate(tiles):
            if self.device is not None:
                report("denoising tiles", number, len(tiles))
            out, after = self._denoise_one(tile, image, sigma, warm)
            _put(out, _part(clean, tile.place))
            if after is None:
                continue
            if afterwards is None:
                shape = (*after.shape[: -self.ndim], *image.shape[-self.ndim :])
                afterwards = torch.empty(shape, dtype=after.dtype, device=image.device)
            _put(after, _part(afterwards, tile.place))
        return clean, afterwards

    def tiles(self, shape: tuple[int, ...]) -> list[_Tile]:
        """The tiles of an image with these spatial axes, in the order of rows."""
        least = self.min_shape
        cuts: list[list[tuple[slice, slice, slice]]] = []
        for axis, length in enumerate(shape):
            if self.tile is None:
                count = min(length, self.group.size) if axis == 0 else 1
            else:
                count = 1 if axis and self.ndim == 3 else -(-length // self.tile)
            edges = [length * number // count for number in range(count + 1)]
            cuts.append([self._cut(edges[k], edges[k + 1], length, least[axis]) for k in range(count)])
        return [_Tile(*(tuple(one[k] for one in parts) for k in range(3))) for parts in itertools.product(*cuts)]

    def _cut(self, start: int, stop: int, length: int, least: int) -> tuple[slice, slice, slice]:
        """One tile along one axis: where it lies, with its halo, and where it lies in that."""
        first = max(0, start - self.around) // self.align * self.align
        last = min(length, max(-(-(stop + self.around) // self.align) * self.align, first + least))
        first = max(0, min(first, last - least)) // self.align * self.align
        return slice(start, stop), slice(first, last), slice(start - first, stop - first)

    def _share(self, tiles: list[_Tile], rank: int) -> list[_Tile]:
        """A process's tiles, nearly equally many for all; rank 0 always has one."""
        size = self.group.size
        return tiles[-(-len(tiles) * rank // size) : -(-len(tiles) * (rank + 1) // size)]

    def _denoise_one(
        self, tile: _Tile, image: Tensor, sigma: Sigma, warm: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        begin = None if warm is None else self._bring(_part(warm, tile.outer))
        if isinstance(sigma, Tensor) and sigma.shape[-self.ndim :] == image.shape[-self.ndim :]:  # a map
            sigma = _part(sigma, tile.outer)
        sigma = self._bring(sigma) if isinstance(sigma, Tensor) else sigma
        out, after = self.denoiser.window(tile.outer).denoise(self._bring(_part(image, tile.outer)), sigma, begin)
        if after is not None and (
            after.shape[-self.ndim :] != out.shape[-self.ndim :]
            or after.shape[: image.ndim - self.axes] != image.shape[: image.ndim - self.axes]
        ):
            after = None  # it cannot be cut; the next call only takes longer
        return _part(out, tile.inside), None if after is None else _part(after, tile.inside)

    def _bring(self, part: Tensor) -> Tensor:
        return part.contiguous() if self.device is None else bring(part, self.device)

    def _join(self, tiles: list[_Tile], parts: list[Tensor], out: Tensor, failure: BaseException | None) -> Tensor:
        """`out`, filled with the parts of all processes."""
        shares = [self._share(tiles, rank) for rank in range(self.group.size)]
        most = max(sum(int(_part(out, tile.place).numel()) for tile in share) for share in shares)
        message = out.new_zeros(most)
        if failure is None:
            flat = [part.reshape(-1) for part in parts]
            used = sum(len(part) for part in flat)
            message[:used] = torch.cat(flat) if flat else message[:0]
        for row, share in zip(self.group.gather(message, failure), shares, strict=True):
            start = 0
            for tile in share:
                target = _part(out, tile.place)
                target.copy_(row[start : start + target.numel()].reshape(target.shape))
                start += target.numel()
        return out


def _part(tensor: Tensor, where: Slices) -> Tensor:
    """A part of a tensor along its last axes."""
    index: Any = (..., *where)
    return tensor[index]


def _put(part: Tensor, place: Tensor) -> None:
    """Copy a part to its place, which may be on another device."""
    if not part.is_cuda or place.is_cuda:
        place.copy_(part)
    elif part.ndim > 3:
        for one, target in zip(part, place, strict=True):
            _put(one, target)
    else:
        ready = torch.cuda.current_stream(part.device).record_event()
        bring_back(part, ready, 0, MemoryTarget(place))
