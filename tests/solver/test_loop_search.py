"""The image of a run that ends while a search tries several images in turn."""

from __future__ import annotations

import math

import pytest
import torch

from plugstream import ADMM, Distance, FromFunction, LeastSquares, solve
from plugstream.algorithms import FallingSearch
from plugstream.models.matrix import MatrixModel
from plugstream.solver.monitors import HeldOutMisfit


@pytest.mark.parametrize("end", ["time", "callback", "interrupt"])
def test_a_search_that_is_cut_short_hands_back_the_image_that_predicts_held_out_data_best(end):
    """Neither the last, of a run hardly begun, nor that of the least distance, which other sigmas make small, too."""
    torch.manual_seed(0)
    model = MatrixModel(torch.randn(12, 8, 16) / 4, (4, 4))
    image = torch.randn(4, 4)
    whole = LeastSquares(model, model.forward(image) + 0.3 * torch.randn(12, 8))
    fewer, judges = whole.with_views(model, torch.arange(10), lipschitz_max=whole.lipschitz_max), torch.arange(10, 12)
    algorithm = ADMM(fewer, FromFunction(lambda z, sigma: z / (1 + sigma**2)), sigma=0.1, step_size=0.3)
    search = FallingSearch(algorithm, judges, 400, growing=True, fall=5)

    def stop(progress):
        if progress.state.k == 11 and end == "interrupt":
            raise KeyboardInterrupt
        return progress.state.k == 11 and end == "callback"

    limit = {"time_limit": 1e-9} if end == "time" else {}
    state = solve(search, iterations=10).state if end == "time" else None
    monitors = [Distance(), HeldOutMisfit(lambda fidelity: judges)]
    result = solve(search, iterations=100, state=state, monitors=monitors, every=1, callbacks=[stop], **limit)
    misfits = result.history["held_out"]
    assert result.state.k == 11
    assert math.isfinite(misfits.value.min())
    assert result.image_step == misfits.step[misfits.value.argmin()] != 11
