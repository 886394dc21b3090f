"""Non-uniform FFTs of images and volumes: the Fourier transform at any frequencies, and back.

    sample:   F_j = sum_{a, b} x[a, b] exp(i (v_j (a - H // 2) + w_j (b - W // 2)))
    adjoint:  x[a, b] = sum_j F_j exp(-i (v_j (a - H // 2) + w_j (b - W // 2))), of real images the real part

and likewise in three dimensions. Frequencies (v_j, w_j) are in radians a pixel, along rows and columns. Three forms do
the same: `GridNufft` in torch with tables, for real images of two axes; `SpreadNufft`, without tables, for volumes and
complex images, too; and `FinufftNufft` through the finufft package. In each the adjoint is the exact transpose of
`sample`, to rounding, however coarse the accuracy: both use the same kernel, one to read the oversampled grid and one
to write it.
"""

from __future__ import annotations

import importlib.util
import math
from functools import cache
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream.base.errors import InputError

# Up to this size the tables of `GridNufft` are worth their speed on the CPU; finufft needs none. GPUs have the room.
_TABLE_BYTES = 1 << 29


class Nufft(Protocol):
    """A plan for one image shape and one set of frequencies."""

    name: str

    @property
    def held(self) -> int:
        """Bytes kept for as long as the plan lives."""

    def sample(self, images: Tensor) -> Tensor:
        """(n, *shape) to (n, points) complex."""

    def adjoint(self, values: Tensor) -> Tensor:
        """(n, points) complex to (n, *shape)."""


def make_nufft(
    shape: tuple[int, ...],
    frequencies: NDArray[np.float64],
    eps: float,
    *,
    device: torch.device,
    dtype: torch.dtype,
    form: str = "auto",
    is_complex: bool = False,
) -> Nufft:
    """The form that suits the device and the size.

    On the CPU in single precision, torch's FFT with our own interpolation takes half the time of finufft, which must
    compute in double precision to keep the frequencies exact (`FinufftNufft`), but it needs tables; in double
    precision, or for tables above 512 MB, it is finufft if that is installed. On CUDA it is our own form, or cufinufft
    if asked for. Volumes and complex images use our form without tables, "spread".

    Arguments: shape (H, W) or (D, H, W); frequencies (points, axes) along the axes; eps, the relative accuracy; form,
    "auto", "grid", "spread", "finufft" or "cufinufft"; dtype, the real precision; is_complex, whether images are.
    """
    from plugstream.models.nufft_grid import GridNufft, table_bytes
    from plugstream.models.nufft_spread import PlacedNufft

    flat = len(shape) == 2 and not is_complex
    if form == "auto" and not flat:
        double = dtype == torch.float64 and device.type == "cpu" and finufft_is_here()
        form = "finufft" if double else "spread"
    if form == "spread":
        return PlacedNufft(shape, frequencies, eps, is_complex=is_complex, device=device, dtype=dtype)
    if form == "grid" and not flat:
        raise InputError("the form 'grid' is for real images of two axes; use the form 'spread'")
    if form == "auto":
        large = dtype == torch.float64 or table_bytes((shape[0], shape[1]), len(frequencies), eps, dtype) > _TABLE_BYTES
        form = "finufft" if device.type == "cpu" and large and finufft_is_here() else "grid"
    if form == "grid":
        return GridNufft((shape[0], shape[1]), frequencies, eps, device=device, dtype=dtype)
    if form in ("finufft", "cufinufft"):
        place = "cuda" if form == "cufinufft" else "cpu"
        if device.type != place:
            raise InputError(f"{form} computes on {place}, but the model is on {device}; use the form 'grid'")
        return FinufftNufft(shape, frequencies, eps, device=device, dtype=dtype, is_complex=is_complex)
    raise InputError(f"there is no non-uniform FFT {form!r}; choose auto, grid, spread, finufft or cufinufft")


@cache
def finufft_is_here() -> bool:
    return importlib.util.find_spec("finufft") is not None


class FinufftNufft:
    """The non-uniform FFT through finufft on the CPU, or cufinufft on CUDA; plans are made once and kept.

    finufft takes the frequencies in the precision of the data. A rounded frequency changes the phase of the outermost
    pixel by up to 2 pi u H / 2, u = 6e-8 in single precision, so single-precision plans are used only if that is well
    below eps.

    Arguments: as `make_nufft`.
    Reference: Barnett, Magland and af Klinteberg, SIAM J. Sci. Comput. 41(5), 2019.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        frequencies: NDArray[np.float64],
        eps: float,
        *,
        device: torch.device,
        dtype: torch.dtype,
        is_complex: bool = False,
    ) -> None:
        self.is_complex = is_complex
        self.name = "finufft" if device.type == "cpu" else "cufinufft"
        if importlib.util.find_spec(self.name) is None:
            raise InputError(f"{self.name} is not installed; install it with pip, or use the form 'grid'")
        self.shape, self.eps, self.device, self.dtype = shape, eps, device, dtype
        coarse = 2 * np.pi * 6e-8 * max(shape) / 2 < eps / 4
        self.plan_dtype = torch.complex64 if dtype == torch.float32 and coarse else torch.complex128
        real = np.float32 if self.plan_dtype == torch.complex64 else np.float64
        folded = np.mod(frequencies + np.pi, 2 * np.pi) - np.pi
        self._points = [np.ascontiguousarray(axis, dtype=real) for axis in folded.T]
        self._plans: dict[tuple[int, int], Any] = {}

    @property
    def held(self) -> int:
        plans = max(1, len(self._plans))  # each sorts its points: an index and the coordinates again
        oversampled = int(2 ** len(self.shape) * math.prod(self.shape) * self.plan_dtype.itemsize)
        return sum(p.nbytes for p in self._points) * (1 + plans) + plans * (8 * len(self._points[0]) + oversampled)

    def sample(self, images: Tensor) -> Tensor:
        values = self._plan(2, len(images)).execute(self._hand(images.to(self.plan_dtype)))
        return self._take(values).reshape(len(images), -1).to(self.dtype.to_complex())

    def adjoint(self, values: Tensor) -> Tensor:
        image = self._plan(1, len(values)).execute(self._hand(values.to(self.plan_dtype)))
        images = self._take(image).reshape(-1, *self.shape)
        return (images.to(self.dtype.to_complex()) if self.is_complex else images.real.to(self.dtype)).contiguous()

    def _plan(self, kind: int, count: int) -> Any:
        if (kind, count) not in self._plans:
            package: Any = importlib.import_module(self.name)
            # An oversampling of 1.25 is faster, but its corrections span so many orders of magnitude that forward and
            # adjoint differ by 1e-12 and more from rounding alone, too much in double precision.
            extra: dict[str, Any] = {}
            points: list[Any] = list(self._points)
            if self.name == "finufft":
                extra = {"nthreads": torch.get_num_threads(), "upsampfac": 1.25 if self.dtype == torch.float32 else 2.0}
            else:
                points = [torch.from_numpy(p).to(self.device) for p in points]
            plan_type = np.complex64 if self.plan_dtype == torch.complex64 else np.complex128
            # finufft's error was up to 2.5 times what it was asked for at 1e-3.
            floor = 1e-6 if self.plan_dtype == torch.complex64 else 1e-14
            plan = package.Plan(
                kind, self.shape, n_trans=count, eps=max(self.eps / 3, floor), isign=1 if kind == 2 else -1,
                dtype=plan_type, **extra,
            )  # fmt: skip
            plan.setpts(*points)
            if len(self._plans) >= 4:  # other batch sizes came and went
                self._plans.pop(next(iter(self._plans)))
            self._plans[kind, count] = plan
        return self._plans[kind, count]

    def _hand(self, tensor: Tensor) -> Any:
        tensor = tensor.contiguous() if len(tensor) > 1 else tensor[0].contiguous()
        return tensor.numpy() if self.device.type == "cpu" else tensor

    def _take(self, array: Any) -> Tensor:
        return torch.from_numpy(array) if isinstance(array, np.ndarray) else torch.as_tensor(array)
