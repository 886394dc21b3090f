"""plugstream as a solver of deepinv's benchmark of inverse problems (github.com/benchopt/benchmark_inverse_problems).

Copy this file into its folder `solvers` and run

    benchopt run benchmark_inverse_problems -s plugstream -s DPIR

The noise level of the denoiser is the best of a few on the training pictures, as the benchmark's other solvers choose
theirs. Its tasks have one view (denoising, blur, inpainting, super-resolution), so that PnP-SGD is PnP-FISTA there.
"""

from __future__ import annotations

from typing import Any

from benchopt import BaseSolver, safe_import_context

with safe_import_context() as import_ctx:
    import deepinv as dinv
    import torch
    from torch.utils.data import DataLoader

    import plugstream as ps


class Solver(BaseSolver):  # type: ignore[misc]
    """PnP-SGD with a denoiser of plugstream, as a `deepinv.models.Reconstructor`."""

    name = "plugstream"
    requirements = ("pip:plugstream",)
    sampling_strategy = "run_once"
    parameters = {"denoiser": ["BM3D", "TV"], "iterations": [60]}  # noqa: RUF012  # as benchopt wants it
    sigmas = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)

    def set_objective(self, train_dataset: Any, physics: Any, image_size: Any = None) -> None:
        """What the benchmark hands over."""
        self.train, self.physics = DataLoader(train_dataset, batch_size=2, shuffle=False), physics
        self.device = dinv.utils.get_freer_gpu() if torch.cuda.is_available() else "cpu"

    def make_model(self, sigma: float) -> Any:
        return ps.PnPSGD(getattr(ps, self.denoiser)(), sigma, iterations=self.iterations)

    def run(self, _: Any) -> None:
        """Choose sigma by the mean PSNR of the training pictures."""
        metric = dinv.metric.PSNR()

        def quality(sigma: float) -> float:
            model = self.make_model(sigma)
            pairs = [(x.to(self.device), y.to(self.device)) for x, y in self.train]
            return float(torch.cat([metric(model(y, self.physics), x) for x, y in pairs]).mean())

        self.model = self.make_model(max(self.sigmas, key=quality))

    def get_result(self) -> dict[str, Any]:
        """What the benchmark's objective judges on its test pictures."""
        return {"model": self.model, "model_name": self.name, "device": self.device}
