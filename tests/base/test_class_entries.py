"""Entries that are a class: every one can be built, and its options reach the arguments of the class."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import plugstream as ps
from plugstream.base.registry import entries
from plugstream.denoisers.by_name import make

PARTS: dict[str, tuple[Any, ...]] = {
    "loss": (),
    "momentum": (),
    "sampler": (SimpleNamespace(n_views=12, lipschitz_views=torch.ones(12)),),
    "gradient": (5,),
    "monitor": (torch.ones(16, 16), None),
}
BUILT = [(kind, name) for kind in PARTS for name in entries(kind) if ":" not in name]


@pytest.mark.parametrize(("kind", "name"), BUILT)
def test_every_entry_can_be_built_from_its_defaults(kind: str, name: str) -> None:
    entry = entries(kind)[name]
    seed = {"seed": 3} if kind == "sampler" and entry.facts.get("seeded") else {}
    assert entry.make(name, entry.options(), *PARTS[kind], **seed) is not None


@pytest.mark.parametrize(
    ("name", "values", "kind", "fields"),
    [
        ("hqs", {}, "ADMM", {"dual": False}),
        ("red", {"tau": "0.25L"}, "RED", {"tau": "0.25L", "noise": 0.0}),
        ("snore", {"injected_noise": 0.5}, "RED", {"noise": 0.5}),
        ("ipa", {"prox_parts": 2}, "IncrementalADMM", {"parts": 2}),
        ("inexact-admm", {"prox_products": 3}, "InexactADMM", {"products": 3}),
        ("block-admm", {}, "BlockADMM", {}),
        ("pgm", {}, "ProximalGradient", {}),
        ("admm", {}, "ADMM", {"dual": True}),
    ],
)
def test_an_algorithm_has_the_options_of_its_entry(name: str, values: dict, kind: str, fields: dict) -> None:
    entry = entries("algorithm")[name]
    model = ps.MatrixModel(torch.eye(16).reshape(4, 4, 16), (4, 4))
    fidelity = ps.LeastSquares(model, torch.ones(4, 4))
    algorithm = entry.make(name, entry.check(values), fidelity, ps.Identity(), sigma=0.1, sampler=ps.Uniform(2))
    assert type(algorithm).__name__ == kind
    assert algorithm.fidelity is fidelity
    assert {key: getattr(algorithm, key) for key in fields} == fields


def test_options_reach_arguments_of_another_name() -> None:
    assert entries("gradient")["svrg"].build(entries("gradient")["svrg"].options(refresh=0.5), 7) == ps.SVRG(0.5, 7)
    assert entries("gradient")["diagonal"].build(entries("gradient")["diagonal"].options(by_rows=True), 7).rows
    loss = entries("loss")["poisson"]
    assert loss.build(loss.options(background_counts=2.0, floor=3.0)) == ps.Poisson(2.0, 3.0)
    sampler = entries("sampler")["uniform"]
    assert sampler.build(sampler.options(batch=4), None, seed=9) == ps.Uniform(4, 9)
    assert make("bm3d", profile="fast") == ps.BM3D("fast")
    assert make("box", low=0.0, high=2.0) == ps.Box(0.0, 2.0)
