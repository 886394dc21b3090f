"""The Born model through plane waves: one non-uniform FFT of the image serves all views."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import cached_property, reduce

import numpy as np
import torch
from torch import Tensor

from plugstream.base.cuda_graphs import GraphCall
from plugstream.base.linalg import largest_eigenvalue
from plugstream.base.progress import report
from plugstream.images.grid import Points
from plugstream.models import nufft_triton
from plugstream.models.born_dense import fits, weigh
from plugstream.models.born_expansion import Coefficients, Expansion
from plugstream.models.born_geometry import BornGeometry
from plugstream.models.nufft import Nufft, make_nufft

_BLOCK_VALUES = 1 << 24  # products of waves, P^2 an image, that are formed at once
_ROW_VALUES = 1 << 20  # of rows of sources that are taken at once, 8 MB in single precision
_COMPUTED_VALUES = 1 << 17  # of those that are computed at once, in double precision
TABLE_BYTES = {"cpu": 64 << 20, "cuda": 4 << 30}  # of the largest table of the sources of all views that is kept
# Rows are cached up to so many bytes, and only for batches of so many views: a pass over all views would evict others.
_BYTES = 16 << 20
_BATCH = 64


class FastBorn:
    r"""y_i = T_i Phi(x) R^T, where Phi holds the image times every product of two standing plane waves.

    Sources outside the image are sums of phi_a, the P functions cos(k s_p . r) and sin(k s_p . r) of P/2 directions:
    u_i = sum_a T[i, a] phi_a, and the same for receivers with R (`born_expansion.py`). Hence

        y[i, m] = sum_{a, b} T[i, a] Phi[a, b] R[m, b],    Phi[a, b] = sum_n x_n phi_a(r_n) phi_b(r_n).

    Products of cosines and sines are those of sums and differences, so Phi, which is real and symmetric, follows
    from the image's sum and its Fourier transform at k (s_p + s_q), p >= q, and k (s_p - s_q), p < q: P^2/4 frequencies
    and one non-uniform FFT, whatever the number of views. The adjoint is the transpose of each step.

    Holds for sources and receivers beyond the radius of `plan_expansion`, or plane waves and the far field.
    The cost is that of an FFT, of P^2/4 interpolations, and of products with P^2 values for every view; P is about
    2 k a, a the radius of the image. R and the plan of the FFT are kept, and T up to `TABLE_BYTES`; beyond that, the
    rows of a batch are computed when needed, with the same bits and a small cache, so that memory does not grow with
    the views. Images here are (n, H, W), data (n, B, receivers), and `index` the B views or None for all.

    Arguments: geometry; expansion from `plan_expansion`; nufft, the form of the FFT (see `make_nufft`).
    """

    name = "fast"

    def __init__(
        self,
        geometry: BornGeometry,
        expansion: Expansion,
        *,
        device: torch.device,
        dtype: torch.dtype,
        nufft: str = "auto",
    ) -> None:
        directions = expansion.directions
        self.expansion = expansion
        self.shape, self.n_views = geometry.grid.shape, geometry.n_views
        self.device, self.dtype, self.half = device, dtype, directions.half
        self.data_dtype = dtype.to_complex()
        kind = "transmitters" if geometry.transmitters is not None else "plane_waves"
        self._coefficients = Coefficients(geometry, kind, directions)
        self._points = _sources(geometry)
        self._table: Tensor | None = self._computed(self._coefficients, self._points) if self._keeps() else None
        self._recent = RecentRows()
        receivers = Coefficients(geometry, "receivers", directions)
        self._receivers = self._computed(receivers, geometry.receivers).mul_(0.5)  # `expand` leaves out a half
        s = directions.vectors()
        sign = np.where(np.tril(np.ones((self.half, self.half), dtype=bool)), 1.0, -1.0)[..., None]
        frequencies = geometry.wavenumber * geometry.grid.pixel * (s[:, None] + sign * s).reshape(-1, 2)
        self.nufft: Nufft = make_nufft(
            self.shape, frequencies[:, ::-1], expansion.nufft_eps, device=device, dtype=dtype, form=nufft
        )

    @property
    def held(self) -> int:
        """Bytes kept beside the geometry."""
        tensors = [self._receivers]
        if self._table is not None:
            tensors.append(self._table)
        if "_receiver_gram" in vars(self):  # made when it is first asked for
            tensors.append(self._receiver_gram)
        return sum(t.nbytes for t in tensors) + self._coefficients.held + self._recent.held + self.nufft.held

    def forward(self, images: Tensor, index: Tensor | None) -> Tensor:
        return self._call("forward", images, index)

    def _forward(self, images: Tensor, index: Tensor | None, rows: Tensor | None) -> Tensor:
        parts = []
        for part in images.split(self._at_once()):
            products = self._products(part)
            parts.append(_cat([self._scatter(products, some) for _, some in self._blocks(index, rows)], 1))
        return _cat(parts)

    def adjoint(self, data: Tensor, index: Tensor | None) -> Tensor:
        return self._call("adjoint", data, index)

    def _adjoint(self, data: Tensor, index: Tensor | None, rows: Tensor | None) -> Tensor:
        parts = []
        for part in data.split(self._at_once()):
            sums = (self._collect(part[:, views], some) for views, some in self._blocks(index, rows))
            parts.append(self._image(reduce(Tensor.add_, sums)))
        return _cat(parts)

    def gradient(
        self, images: Tensor, data: Tensor, index: Tensor | None, weights: Tensor | None, mask: Tensor | None
    ) -> Tensor:
        """Residual and adjoint on the few numbers of the data, with the sources' rows taken once."""
        return self._call("gradient", images, index, data, weights, mask)

    def _call(self, name: str, tensor: Tensor, index: Tensor | None, *more: Tensor | None) -> Tensor:
        """A product with the views of `index`, by a graph if it is not in blocks of views that are yet to be computed.

        Such rows are computed before, where they can be.
        """
        if self._table is not None:
            return self._graphs[name](tensor, None if index is None else index.to(self.device), None, *more)
        if self._count(index) <= self._views_at_once():
            return self._graphs[name](tensor, None, self._rows(index), *more)
        return self._graphs[name].function(tensor, index, None, *more)

    @cached_property
    def _graphs(self) -> dict[str, GraphCall]:
        normal: dict[str, Callable[..., Tensor]] = {
            "there and back": self._there_and_back,
            "receivers' Gram matrix": self._by_receivers,
            "sources' Gram matrix": self._by_sources,
            "both": self._by_both,
        }
        return {
            "forward": GraphCall(self._forward),
            "adjoint": GraphCall(self._adjoint),
            "gradient": GraphCall(self._gradient),
            **{name: GraphCall(self._in_blocks(apply), steady=(1, 2, 3)) for name, apply in normal.items()},
        }

    def _gradient(
        self,
        images: Tensor,
        index: Tensor | None,
        rows: Tensor | None,
        data: Tensor,
        weights: Tensor | None,
        mask: Tensor | None,
    ) -> Tensor:
        """The gradient by the views of `index`, or by sources with these rows."""

        def collect(products: Tensor, data: Tensor, views: slice, rows: Tensor) -> Tensor:
            residual = self._scatter(products, rows)
            residual -= data[:, views]
            return self._collect(weigh(residual, weights, mask, views), rows)

        parts = []
        for start in range(0, len(images), self._at_once()):
            some_images = slice(start, start + self._at_once())
            products, part = self._products(images[some_images]), data[some_images] if len(data) > 1 else data
            sums = (collect(products, part, views, sources) for views, sources in self._blocks(index, rows))
            parts.append(self._image(reduce(Tensor.add_, sums)))
        return _cat(parts)

    def normal(self, index: Tensor | None, weights: Tensor | None) -> Callable[[Tensor], Tensor]:
        """x -> sum_i w_i Re(H_i^H H_i x) through R^H R, (P, P), if that is smaller than R twice; likewise the sources.

        Holds if no receiver is masked.
        """
        few_receivers, few_views = 2 * len(self._receivers) <= self.waves, 2 * self._count(index) <= self.waves
        tables: tuple[Tensor, ...]
        if few_views:
            rows = self._rows(index)
            weighed = rows if weights is None else weights[:, None] * rows
            name, tables = "there and back", (rows, weighed)
            if not few_receivers:
                name, tables = "receivers' Gram matrix", (stack(rows), stack(weighed), self._receiver_gram)
        else:
            parts = (
                (rows if weights is None else weights[views, None] * rows).mH @ rows
                for views, rows in self._blocks(index)
            )
            sources = reduce(Tensor.add_, parts)  # T^H W T, (P, P)
            name, tables = "sources' Gram matrix", (sources, stack(self._receivers))
            if not few_receivers:
                name, tables = "both", (stack(sources), self._receiver_gram)
        # By one graph for whatever tables of this shape come.
        return lambda images: self._graphs[name](images, *tables)

    def _there_and_back(self, images: Tensor, rows: Tensor, weighed: Tensor) -> Tensor:
        return self._image(self._collect(self._scatter(self._products(images), rows), weighed))

    def _by_receivers(self, images: Tensor, rows: Tensor, weighed: Tensor, gram: Tensor) -> Tensor:
        return self._image(weighed.mT @ stack(join(rows @ self._products(images)) @ gram.mT))

    def _by_sources(self, images: Tensor, sources: Tensor, receivers: Tensor) -> Tensor:
        data = sources @ join(receivers @ self._products(images)).mT  # (n, P, receivers)
        return self._image(stack(data.mT).mT @ receivers)

    def _by_both(self, images: Tensor, sources: Tensor, gram: Tensor) -> Tensor:
        return self._image((join(sources @ self._products(images)) @ gram.mT).real)

    def normal_each(self, images: Tensor, index: Tensor, mask: Tensor | None) -> Tensor:
        """Re(H_i^H H_i x_i), an image for each view."""
        rows, parts = self._rows(index).unsqueeze(1), []
        for start in range(0, len(images), self._at_once()):
            block = slice(start, start + self._at_once())
            data = self._scatter(self._products(images[block]), rows[block])
            data = weigh(data, None, None if mask is None else mask[block, None])
            parts.append(self._image(self._collect(data, rows[block])))
        return torch.cat(parts)

    def squared_norms(self, index: Tensor, mask: Tensor | None, tol: float) -> Tensor:
        """The largest eigenvalue of each Re(H_i^H H_i), from the small matrix with the same: H_i H_i^T over the reals.

        With u_i = v + i w, H_i x = R c with c = sum_n x_n (v + i w) phi(r_n), so that the products of c's real and
        imaginary parts are Phi(v^2), Phi(v w) and Phi(w^2): three FFTs a view, and Lanczos on (2, receivers) after that
        instead of on images.
        """
        step = max(1, self._at_once() // 8)
        masks = [None] * len(index) if mask is None else mask.split(step)
        norms = []
        for number, (part, rows) in enumerate(zip(index.split(step), masks, strict=False)):
            report("estimating L of every view", number * step, len(index))
            norms.append(self._squared_norms(part, rows, tol))
        return torch.cat(norms)

    def _squared_norms(self, index: Tensor, mask: Tensor | None, tol: float) -> Tensor:
        rows = self._rows(index)
        # v^2 on the grid is the transpose of Phi at the products of the coefficients of v. The factors of two that
        # `expand`, `fold` and the receivers' table leave out cancel.
        pairs = [(rows.real, rows.real), (rows.real, rows.imag), (rows.imag, rows.imag)]
        vv, vw, ww = (self._products(self._image(a[:, :, None] * b[:, None, :])) for a, b in pairs)
        moments = torch.cat([torch.cat([vv, vw], 2), torch.cat([vw, ww], 2)], 1)  # (views, 2 P, 2 P)
        del vv, vw, ww
        keep = None if mask is None else mask.to(self.dtype)
        receivers = self._receivers.conj().resolve_conj()

        def apply(data: Tensor) -> Tensor:  # (views, 2, receivers): real and imaginary parts
            data = data if keep is None else data * keep[:, None]
            c = torch.complex(data[:, 0], data[:, 1]) @ receivers  # (views, P)
            real, imag = torch.bmm(torch.cat([c.real, c.imag], 1).unsqueeze(1), moments).squeeze(1).chunk(2, 1)
            back = torch.complex(real, imag) @ self._receivers.mT
            out = torch.stack([back.real, back.imag], 1)
            return out if keep is None else out * keep[:, None]

        like = torch.empty((len(index), 2, len(self._receivers)), device=self.device, dtype=self.dtype)
        return largest_eigenvalue(apply, like, tol=tol)

    @cached_property
    def _receiver_gram(self) -> Tensor:
        """R^H R, (P, P)."""
        return self._receivers.mH @ self._receivers

    def with_geometry(self, geometry: BornGeometry) -> FastBorn:
        """With the views of `geometry`, of which these are the first; receivers and the FFT's plan are shared."""
        out = copy.copy(self)
        vars(out).pop("_graphs", None)  # they have these views
        out.n_views, out._points = geometry.n_views, _sources(geometry)
        if self._table is not None:
            more = self._computed(self._coefficients, out._points[self.n_views :]) if out._keeps() else None
            out._table = None if more is None else torch.cat([self._table, more])
        return out

    def green_squared_norm(self) -> float:
        """The largest eigenvalue of S^H S = that of S S^H = R Phi(1) R^H, with (P, P) matrices only."""
        ones = torch.ones((1, *self.shape), device=self.device, dtype=self.dtype)
        # `expand` gives 2 Phi and the table is R / 2, hence the factor of two.
        phi = 2 * self._products(ones)[0].double().cpu()
        gram = self._receiver_gram.to(torch.complex128).cpu()
        values, vectors = torch.linalg.eigh(phi)
        root = (vectors * values.clamp_min(0).sqrt()).to(torch.complex128)
        # 1 % for what eps, single precision and the cut of small negative eigenvalues may have taken away.
        return 1.01 * float(torch.linalg.eigvalsh(root.mH @ gram @ root)[-1])

    @property
    def waves(self) -> int:
        """P, the number of standing waves."""
        return 2 * self.half

    def _products(self, images: Tensor) -> Tensor:
        values = self.nufft.sample(images).unflatten(-1, (self.half, self.half))
        return expand(values, images.sum((-2, -1)))

    def _image(self, products: Tensor) -> Tensor:
        values, total = fold(products)
        return self.nufft.adjoint(values.flatten(1)).add_(total[:, None, None])

    def _scatter(self, products: Tensor, rows: Tensor) -> Tensor:
        """T Phi R^T, (n, B, receivers), from the side where the first product is the smaller."""
        if rows.shape[-2] <= len(self._receivers):
            return join(stack(rows) @ products) @ self._receivers.mT
        return rows @ join(stack(self._receivers) @ products).mT

    def _collect(self, data: Tensor, rows: Tensor) -> Tensor:
        """The transpose, Re(T^H z conj(R)), (n, P, P)."""
        if rows.shape[-2] <= len(self._receivers):
            half = data.conj().resolve_conj() @ self._receivers  # the conjugate of what is wanted, as R lies
            return stack(rows).mT @ stack(half, conj=True)
        half = data.mT.conj().resolve_conj() @ rows
        return stack(half, conj=True).mT @ stack(self._receivers)

    def _in_blocks(self, apply: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def blocks(images: Tensor, *tables: Tensor) -> Tensor:
            return _cat([apply(part, *tables) for part in images.split(self._at_once())])

        return blocks

    def _at_once(self) -> int:
        return max(1, _BLOCK_VALUES // self.waves**2)

    def _views_at_once(self) -> int:
        return max(1, _ROW_VALUES // self.waves)

    def _count(self, index: Tensor | None) -> int:
        return self.n_views if index is None else len(index)

    def _blocks(self, index: Tensor | None, rows: Tensor | None = None) -> Iterator[tuple[slice, Tensor]]:
        """Slices of the batch of views with their rows, the same blocks with a table and without; one of given rows."""
        if rows is not None:
            yield slice(None), rows
            return
        step = self._views_at_once()
        for start in range(0, self._count(index), step):
            views = slice(start, start + step)
            yield views, self._rows(views if index is None else index[views])

    def _rows(self, views: Tensor | slice | None) -> Tensor:
        if self._table is None:
            which = views.cpu().numpy() if isinstance(views, Tensor) else views or slice(None)
            return self._recent.find(self._points[which], lambda points: self._computed(self._coefficients, points))
        if isinstance(views, Tensor):
            return self._table.index_select(0, views.to(self.device))
        return self._table if views is None else self._table[views]

    def _computed(self, coefficients: Coefficients, points: Points) -> Tensor:
        """Rows of these points, a block at a time, since they are computed in double precision on the CPU."""
        out = torch.empty((len(points), self.waves), device=self.device, dtype=self.data_dtype)
        step = max(1, _COMPUTED_VALUES // self.waves)
        on_gpu = self.device.type == "cuda"  # which then copies by itself
        for start in range(0, len(points), step):
            rows = torch.from_numpy(coefficients(points[start : start + step])).to(self.data_dtype)
            out[start : start + step].copy_(rows.pin_memory() if on_gpu else rows, non_blocking=on_gpu)
        return out

    def _keeps(self) -> bool:
        return fits(TABLE_BYTES, self.n_views * self.waves, self.device, self.dtype)


def _sources(geometry: BornGeometry) -> Points:
    points = geometry.plane_waves if geometry.transmitters is None else geometry.transmitters
    assert points is not None  # a plan was made
    return points


def _cat(parts: list[Tensor], axis: int = 0) -> Tensor:
    return torch.cat(parts, axis) if len(parts) > 1 else parts[0]


class RecentRows:
    """A cache of the rows of points, (n, 2) to (n, P).

    Holds where a row has the same bits whatever rows are computed with it, so that caching changes nothing. A full
    cache is emptied, so that memory does not grow with the number of views; if by then fewer rows were cached than
    computed, there are too many places, and the cache is switched off. Threads may share it.
    """

    def __init__(self) -> None:
        self._rows: dict[bytes, Tensor] = {}
        self._gain = 0  # rows taken from the cache, less rows computed
        self._useful = True

    @property
    def held(self) -> int:
        """Bytes kept."""
        return sum(row.nbytes for row in list(self._rows.values()))

    def find(self, points: Points, compute: Callable[[Points], Tensor]) -> Tensor:
        """The rows of these points; `compute` makes those that are not cached."""
        if not (self._useful and 0 < len(points) <= _BATCH):
            return compute(points)
        places = [point.tobytes() for point in points]
        rows = {place: row for place in places if (row := self._rows.get(place)) is not None}
        missing = {place: number for number, place in enumerate(places) if place not in rows}
        self._gain += len(places) - 2 * len(missing)
        if missing:
            # Clones, since a part of a tensor would keep all of it.
            new = [row.clone() for row in compute(points[list(missing.values())]).unbind()]
            if (len(self._rows) + len(new)) * new[0].nbytes > _BYTES:
                self._rows = {}
                self._useful, self._gain = self._gain >= 0, 0
            computed = dict(zip(missing, new, strict=True))
            if self._useful:
                self._rows.update(computed)
            rows |= computed
        return torch.stack([rows[place] for place in places])


def expand(values: Tensor, total: Tensor) -> Tensor:
    """Twice Phi, (n, P, P), from the image's transform: (n, P/2, P/2) with A below and on the diagonal, B above it.

    A[p, q] = sum x exp(i k (s_p + s_q) . r) is symmetric, B[p, q] = sum x exp(i k (s_p - s_q) . r) Hermitian with the
    image's sum on its diagonal, and 2 cos cos = Re(A + B), 2 sin sin = Re(B - A), 2 sin cos = Im(A + B), 2 cos sin =
    Im(A - B).
    """
    if nufft_triton.serves(values):
        return nufft_triton.expand(values, total)
    half = values.shape[-1]
    a = values.tril() + values.tril(-1).mT
    b = values.triu(1)
    b = b + b.mH
    b.diagonal(dim1=-2, dim2=-1).add_(total[:, None])
    out = torch.empty((len(values), 2 * half, 2 * half), dtype=total.dtype, device=total.device)
    torch.add(a.real, b.real, out=out[:, :half, :half])
    torch.sub(b.real, a.real, out=out[:, half:, half:])
    torch.add(a.imag, b.imag, out=out[:, half:, :half])
    torch.sub(a.imag, b.imag, out=out[:, :half, half:])
    return out


def fold(products: Tensor) -> tuple[Tensor, Tensor]:
    """The transpose of `expand`: (n, P, P) real to (n, P/2, P/2) complex and (n,)."""
    total = products.diagonal(dim1=-2, dim2=-1).sum(-1)  # of cos cos + sin sin, so of B's diagonal
    if nufft_triton.serves(products):
        return nufft_triton.fold(products), total
    half = products.shape[-1] // 2
    cc, cs = products[:, :half, :half], products[:, :half, half:]
    sc, ss = products[:, half:, :half], products[:, half:, half:]
    a = torch.complex(cc - ss, sc + cs)
    b = torch.complex(cc + ss, sc - cs)
    values = a.tril() + a.mT.tril(-1) + (b + b.mH).triu(1)
    return values, total


def stack(rows: Tensor, *, conj: bool = False) -> Tensor:
    """Complex (..., B, P) as real (..., 2 B, P): real parts, then imaginary ones."""
    return torch.cat([rows.real, -rows.imag if conj else rows.imag], -2)


def join(stacked: Tensor) -> Tensor:
    """The inverse of `stack`."""
    half = stacked.shape[-2] // 2
    return torch.complex(stacked[..., :half, :], stacked[..., half:, :])
