"""Total variation: our dual iteration against its torch form, and against scikit-image's Chambolle, in one run.

Claim: on the CPU the native kernel makes an exact TV prox cheap enough to be called in every step.

Both solve min 1/2 ||x - z||^2 + strength TV(x) with forward differences that are zero across the border. For
scikit-image's `weight` this follows from its iteration, q <- (q - tau g) / (1 + tau |g| / weight) with g = D x and
x = z + D^T q: at a fixed point q |g| / weight = -g, that is, q = -weight g / |g| and x = z - weight D^T (g / |g|), the
optimality condition above with strength = weight. (The energy that it prints and stops by weighs the terms
differently; here its number of iterations is given.) Ours has strength = sigma^2 w, so w = weight / sigma^2.

True errors are ||x - x*|| / ||x*||, with x* from a long run in float64; each solver's number of iterations is the
least, in steps of about 10 percent, that reaches the error, and then just that many are timed. "stopped" is our
solver in float64 with tol set to the error, which stops when the duality gap guarantees it; float32 can guarantee
no less than a few 1e-5.

Run: python benchmarks/tv.py
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor

from plugstream import _native
from plugstream.denoisers import tv_triton
from plugstream.denoisers.tv import TV

ERRORS = (1e-3, 1e-4, 1e-5)
LEVELS = (5 / 255, 25 / 255)
STRENGTH = 0.6  # times the noise level: by PSNR the best on this picture is 0.5 at 5/255 and 0.8 at 25/255
LIMIT = 3000


def median_ms(run: Callable[[], object], seconds: float = 1.0) -> float:
    """The median time of a call in milliseconds, after a warm-up, over at least 7 calls and about `seconds`."""
    run()
    times: list[float] = []
    while len(times) < 7 or (sum(times) < seconds and len(times) < 200):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return 1e3 * statistics.median(times)


def counts() -> Iterator[int]:
    """1, 2, 3, ... and from 10 on in steps of about 10 percent."""
    n = 1
    while n <= LIMIT:
        yield n
        n = max(n + 1, round(1.1 * n))


def fewest(solve: Callable[[int], Tensor], exact: Tensor, error: float) -> int | None:
    """The fewest iterations that bring the true relative error to `error`, or None within LIMIT."""
    reached = (n for n in counts() if float((solve(n).double() - exact).norm() / exact.norm()) <= error)
    return next(reached, None)


def picture(side: int) -> Tensor:
    from skimage.data import camera
    from skimage.transform import resize

    return torch.from_numpy(resize(camera().astype(np.float64) / 255, (side, side), anti_aliasing=True))


def per_iteration(forms: dict[str, bool]) -> None:
    """Time of one dual iteration: the difference of 110 and 10, so that what is done once does not count."""
    print(f"time per dual iteration, float32, {torch.get_num_threads()} threads")
    print(f"{'size':>10} " + " ".join(f"{name:>12}" for name in forms) + f" {'ratio':>8}")
    for side in (256, 512):
        z = torch.rand(side, side)
        row = []
        for native in forms.values():

            def run(count: int, native: bool = native, z: Tensor = z) -> Callable[[], object]:
                return lambda: TV(tol=0, max_iterations=count)._solve(z, 0.2, None, native=native)

            row.append((median_ms(run(110)) - median_ms(run(10))) / 100)
        ratio = f"{row[-1] / row[0]:7.1f}x" if len(row) > 1 else "-"
        print(f"{side:>6}^2   " + " ".join(f"{ms:9.3f} ms" for ms in row) + f" {ratio:>8}")


def on_gpu() -> None:
    """Time of one dual iteration on a GPU, fused against the torch form, on random images; needs no scikit-image."""
    fused = tv_triton.serves

    def run(z: Tensor, count: int, ndim: int = 2) -> Callable[[], object]:
        def call() -> None:
            TV(tol=0, max_iterations=count, ndim=ndim)(z, 0.2)
            torch.cuda.synchronize()

        return call

    print(f"time per dual iteration, float32, {torch.cuda.get_device_name()}")
    kinds = [((256, 256), 2), ((8, 256, 256), 2), ((512, 512), 2), ((64, 64, 64), 3), ((128, 128, 128), 3)]
    for shape, ndim in [*kinds, ((256, 256), 0)]:
        # The last is a complex image.
        z = torch.rand(shape, device="cuda", dtype=torch.float32 if ndim else torch.complex64)
        what, ndim = f"{'' if ndim else 'complex '}{shape}", ndim or 2
        times = []
        for takes in (fused, lambda z, ndim=2: False):
            tv_triton.serves = takes  # which form runs
            times.append((median_ms(run(z, 110, ndim)) - median_ms(run(z, 10, ndim))) / 100)
        tv_triton.serves = fused
        print(f"{what:>18} fused {times[0]:.4f} ms, torch {times[1]:.4f} ms, {times[1] / times[0]:.1f}x")


def to_accuracy() -> None:
    """Time to a true relative error, against scikit-image where it is there, on the same float32 image."""
    try:
        from skimage.restoration import denoise_tv_chambolle
    except ImportError:
        print("absent: scikit-image; nothing to compare with")
        return
    clean = picture(256)
    print("\ntime to a true relative error, camera 256x256, float32 (iterations in brackets)")
    print(f"{'noise':>7} {'error':>7} {'ours':>18} {'scikit-image':>20} {'ratio':>8} {'stopped':>12} {'ratio':>8}")
    for level in LEVELS:
        noisy = clean + level * torch.randn(clean.shape, generator=torch.Generator().manual_seed(0)).double()
        weight = STRENGTH * level
        w = weight / level**2
        exact = TV(w, tol=0, max_iterations=20_000)(noisy, level)
        z = noisy.float()
        z_numpy = z.numpy()

        def ours(n: int, w: float = w, z: Tensor = z, level: float = level) -> Tensor:
            return TV(w, tol=0, max_iterations=n)(z, level)

        def theirs(
            n: int, z: np.ndarray[tuple[int, ...], np.dtype[np.float32]] = z_numpy, weight: float = weight
        ) -> Tensor:
            return torch.from_numpy(denoise_tv_chambolle(z, weight=weight, eps=0, max_num_iter=n))

        for error in ERRORS:
            mine, other = fewest(ours, exact, error), fewest(theirs, exact, error)
            if mine is None:
                print(f"{level * 255:4.0f}/255 {error:7.0e}  ours did not reach it in {LIMIT} iterations")
                continue
            more = ">" if other is None else " "  # not reached: the time of LIMIT iterations is a lower bound
            fast = median_ms(partial(ours, mine))
            slow = median_ms(partial(theirs, other or LIMIT))
            sure = median_ms(partial(TV(w, tol=error, max_iterations=20_000), noisy, level))
            print(
                f"{level * 255:4.0f}/255 {error:7.0e} {fast:8.2f} ms ({mine:4d}) {more}{slow:9.2f} ms "
                f"({other or LIMIT:4d}) {more}{slow / fast:6.1f}x {sure:9.2f} ms {more}{slow / sure:6.1f}x"
            )


def blocks(side: int) -> Tensor:
    """A volume of blocks of different values, in float64."""
    values = np.random.default_rng(0).random((4, 4, 4))
    return torch.from_numpy(np.kron(values, np.ones((side // 4,) * 3)))


def in_3d() -> None:
    """Volumes: time per iteration and voxel against that of an image, and to a true error against scikit-image."""
    flat, deep = torch.rand(512, 512), torch.rand(64, 64, 64)

    def each(tv: TV, z: Tensor) -> float:
        def run(count: int) -> Callable[[], object]:
            return lambda: dataclasses.replace(tv, max_iterations=count)(z, 0.2)

        return 1e6 * (median_ms(run(60), 0.3) - median_ms(run(10), 0.3)) / 50 / z.numel()

    pixel, voxel = each(TV(tol=0), flat), each(TV(tol=0, ndim=3), deep)
    pair = each(TV(tol=0), torch.complex(flat, flat.flip(0)))
    print("\ntime per dual iteration: ", end="")
    print(f"a pixel of 512^2 {pixel:.2f} ns, complex {pair:.2f} ns, a voxel of 64^3 {voxel:.2f} ns")
    try:
        from skimage.restoration import denoise_tv_chambolle
    except ImportError:
        return
    side, level = 40, 0.1
    noisy = blocks(side) + level * torch.randn(side, side, side, generator=torch.Generator().manual_seed(0)).double()
    weight = STRENGTH * level
    w, z = weight / level**2, noisy.float()
    exact = TV(w, tol=0, max_iterations=3000, ndim=3)(noisy, level)

    def ours(n: int) -> Tensor:
        return TV(w, tol=0, max_iterations=n, ndim=3)(z, level)

    def theirs(n: int) -> Tensor:
        return torch.from_numpy(denoise_tv_chambolle(z.numpy(), weight=weight, eps=0, max_num_iter=n))

    print(f"time to a true relative error, blocks of {side}^3 with noise {level}, float32 (iterations in brackets)")
    for error in ERRORS[:2]:
        mine, other = fewest(ours, exact, error), fewest(theirs, exact, error)
        if mine is None or other is None:
            print(f"{error:7.0e}  not reached in {LIMIT} iterations")
            continue
        fast, slow = median_ms(partial(ours, mine), 0.3), median_ms(partial(theirs, other), 0.3)
        print(f"{error:7.0e} {fast:8.2f} ms ({mine:4d})  {slow:9.2f} ms ({other:4d})  {slow / fast:6.1f}x")


def main() -> None:
    if torch.cuda.is_available():
        on_gpu()
        return
    kernels = _native.load()
    if kernels is None:
        print("absent: the native kernel (pip install builds it); the torch form is what is measured")
        per_iteration({"torch": False})
    else:
        print(f"native kernel: {kernels.levels()[0]}")
        per_iteration({"native": True, "torch": False})
    to_accuracy()
    in_3d()


if __name__ == "__main__":
    main()
