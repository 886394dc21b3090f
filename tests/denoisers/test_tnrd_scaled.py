"""TNRD files whose bumps are scaled, as the authors' for noise of 50: against the definition written out."""

import json

import numpy as np
import pytest
import scipy.io
import torch

from effort import effort, thorough
from plugstream import TNRD, InputError
from plugstream.denoisers.tnrd import ReactionDiffusion, native, triton_form
from plugstream.denoisers.tnrd.tables import CENTRES
from tnrd_models import picture, random_model, written_out
from triton_interpreter import DEVICE, emulated, interpret

PAIRS = [(size, stretch) for size in (5, 7) for stretch in (1.0, 1.25, 0.4)]


def write(path, raw, stretch, precision=None, means=None):
    """A file in the authors' format, with these numbers for parameters."""
    cof = torch.cat([raw.coefficients.flatten(1), raw.log_reaction[:, None], raw.weights.flatten(1)], 1)
    bumps = {
        "means": (stretch * np.array(CENTRES))[:, None] if means is None else means,
        "precision": 0.01 / stretch**2 if precision is None else precision,
        "NumW": 63,
    }
    scipy.io.savemat(path, {"cof": cof.numpy().T, "stage": raw.stages, "MFS": bumps})
    return path


def relative(got, want):
    return float(np.abs(np.asarray(got, dtype=np.float64) - want).max()) / 255


@thorough
@pytest.mark.parametrize(("size", "stretch"), effort([(5, 1.0), (7, 1.25), (5, 0.4)], PAIRS))
def test_the_model_is_the_definition(tmp_path, size, stretch):
    """In double precision, on the scale that it was trained for: sigma = 50/255 of white."""
    raw = random_model(size, sigma=50.0)
    model = TNRD.load(write(tmp_path / "a sigma=50.mat", raw, stretch)).models[0]
    image = picture(8, 9).double()
    want = written_out(raw, image.numpy(), stretch)
    assert relative(model(image[None])[0], want) < 1e-12
    assert relative(TNRD(model, white=255.0)(image, 50.0), want) < 1e-12
    halved = 0.5 * written_out(raw, 2 * image.numpy(), stretch)
    assert relative(TNRD(model, white=255.0)(image, 25.0), halved) < 1e-12


def test_the_native_form_too(tmp_path):
    raw = random_model(sigma=50.0)
    tnrd = TNRD.load(write(tmp_path / "a sigma=50.mat", raw, 1.25), white=255.0)
    image = picture(17, 33)
    if not native.serves(image, tnrd.models[0]):
        pytest.skip("the native kernels are not built")
    assert relative(tnrd(image, 50.0), written_out(raw, image.double().numpy(), 1.25)) < 2e-5


def check_triton():
    raw = random_model(sigma=50.0)
    model = ReactionDiffusion(raw.coefficients, raw.log_reaction, 0.8 * raw.weights, 50.0, 0.8).requires_grad_(False)
    image = picture(1, 9, 12)
    prepared = triton_form.prepare(model, torch.device(DEVICE))
    got = triton_form.tnrd(image.to(DEVICE), torch.tensor([0.8], device=DEVICE), prepared).cpu()
    return relative(got[0], written_out(raw, image[0].double().numpy(), 1.25))


@pytest.mark.slow
@emulated
def test_the_triton_form_too():
    script = f"import sys, json; sys.path.insert(0, {str(__file__.rsplit('/', 1)[0])!r})\n"
    script += "import test_tnrd_scaled as test\nprint(json.dumps(test.check_triton()))"
    assert json.loads(interpret("-c", script)) < 2e-5


def test_saving_keeps_the_scale(tmp_path):
    tnrd = TNRD.load(write(tmp_path / "a sigma=50.mat", random_model(), 1.25))
    tnrd.save(tmp_path / "b.safetensors")
    again = TNRD.load(tmp_path / "b.safetensors")
    assert again.models[0].scale == 0.8
    image = picture(16, 16, white=1.0)
    assert torch.equal(again(image, 0.2), tnrd(image, 0.2))


@pytest.mark.parametrize(
    "bumps",
    [
        {"precision": 0.01},  # ours are not as wide for their distance
        {"precision": np.nan},
        {"precision": [0.0064, 0.0064]},
        {"precision": "words"},
        {"means": 12.5 * np.arange(63.0)},  # not about zero
        {"means": np.array(CENTRES)[::-1].copy()},
        {"means": np.full(63, np.inf)},
        {"means": np.zeros(63)},
        {"means": np.array(CENTRES)[:60]},
        {"means": "words"},
    ],
)
def test_bumps_that_are_no_scaled_ones_are_refused_in_one_line(tmp_path, bumps):
    with pytest.raises(InputError, match="its bumps are not 63") as caught:
        TNRD.load(write(tmp_path / "a sigma=50.mat", random_model(stages=1), 1.25, **bumps))
    assert "\n" not in str(caught.value)


def test_the_files_of_the_authors_are_read_as_before(shared_data):
    """Their bumps are ours, so nothing is scaled."""
    files = sorted((shared_data / "tnrd").glob("*.mat"))
    assert [TNRD.load(file).models[0].scale for file in files] == [1.0, 1.0, 1.0]
