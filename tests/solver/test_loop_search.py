"""The image of a run that ends while a search tries several images in turn."""

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
    model, judges = MatrixModel(torch.randn(12, 8, 16) / 4, (4, 4)), torch.arange(10, 12)
    whole = LeastSquares(model, model.forward(torch.randn(4, 4)) + 0.3 * torch.randn(12, 8))
    fewer = whole.with_views(model, torch.arange(10), lipschitz_max=whole.lipschitz_max)
    algorithm = ADMM(fewer, FromFunction(lambda z, sigma: z / (1 + sigma**2)), sigma=0.1, step_size=0.3)
    search = FallingSearch(algorithm, judges, 400, growing=True, fall=5)

    def stop(progress):
        if end == "interrupt" and progress.state.k == 11:
            raise KeyboardInterrupt
        return end == "callback" and progress.state.k == 11

    how = {"monitors": [Distance(), HeldOutMisfit(lambda fidelity: judges)], "every": 1, "callbacks": [stop]}
    how |= {"state": solve(search, iterations=10).state, "time_limit": 1e-9} if end == "time" else {}
    result = solve(search, iterations=100, **how)
    misfits = result.history["held_out"]
    assert result.state.k == 11
    assert result.image_step == misfits.step[misfits.value.argmin()] != 11
