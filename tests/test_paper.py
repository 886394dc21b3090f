"""The paper's experiment on one of its images: online and batch agree, and both beat back-projection by far."""

import pytest

from plugstream import (
    SNR,
    TV,
    All,
    BornGeometry,
    BornModel,
    LeastSquares,
    ProximalGradient,
    ShiftedViews,
    load_picture,
    simulate,
    snr as snr_of,
    solve,
)


@pytest.mark.slow
def test_online_with_tv_reaches_the_batch_methods_image(shared_data):
    truth = load_picture(shared_data / "paper-images" / "house.png")
    model = BornModel(BornGeometry.paper())
    fidelity = LeastSquares(model, simulate(model, truth, snr=40).data)
    # As measured before (facts.md): the sum over 60 views has L = 1.711e-3, and the result here is up to 1 % above.
    assert 1.711e-3 * 0.999 <= 60 * fidelity.lipschitz <= 1.711e-3 * 1.011

    def final(sampler, iterations):
        algorithm = ProximalGradient(
            fidelity, TV(low=0.0, tol=1e-3), sigma=0.0173, sampler=sampler, momentum="nesterov"
        )
        return float(solve(algorithm, iterations=iterations, monitors=[SNR(truth)]).history["snr"].value[-1])

    batch, online = final(All(), 150), final(ShiftedViews(10), 150)
    backprojection = float(snr_of(fidelity.backprojection(), truth))
    print(f"PnP-FISTA(60) {batch:.2f} dB, PnP-SGD(10) {online:.2f} dB, back-projection {backprojection:.2f} dB")
    assert online >= batch - 0.1
    assert online >= backprojection + 10
