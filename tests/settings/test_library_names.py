"""The library and the command call the same thing by the same name."""

import dataclasses

import pytest

import plugstream as ps
from plugstream.runs.parts import prepare
from plugstream.settings import AlgorithmSettings, Settings, resolve
from small_run import main

DIFFERENT = {
    "name",  # which algorithm: in the library its class
    "step_size_end",  # Geometric(start, stop, steps)
    "sigma_end",
    "sigma_steps",
    "search",  # of a run: SigmaRace before the algorithm
    "fall",  # of a run: FallingSearch instead
    "refine_end",  # refine_pace=Cooling(...)
    "changes",
    "stages",  # of a run: algorithms one after another
    "hop",
    "hop_steps",
    "hop_keep",
    "iterations",  # of solve
    "time_limit",
    "distance_limit",
    "arrive",
    "settled",  # of a run: what its log says
}


def test_settings_of_the_algorithm_are_arguments_of_the_library():
    arguments = {field.name for field in dataclasses.fields(ps.ProximalGradient)}
    assert set(AlgorithmSettings.model_fields) - DIFFERENT <= arguments


def test_the_step_has_one_name_and_a_short_flag(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["reconstruct", "--help-all"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert "--step-size X, --step X" in text
    assert "--step-size-end X, --step-end X" in text
    with pytest.raises(ps.InputError, match=r"did you mean 'algorithm.step_size'"):
        resolve(None, [("algorithm", "step", "1/L")])


@pytest.mark.parametrize("flag", ["--step", "--step-size"])
def test_both_flags_set_it(flag, capsys, scan):
    assert main(["reconstruct", str(scan), "--sigma", "1", flag, "one"]) == 2
    assert "'one'" in capsys.readouterr().err


def test_none_is_none_on_both_sides(regression):
    words = ps.ProximalGradient(regression, ps.TV(), sigma=0.1, momentum="none", restart="none")
    nothing = ps.ProximalGradient(regression, ps.TV(), sigma=0.1, momentum=None, restart=None)
    settings = resolve(None, [("momentum", "name", "none"), ("algorithm", "sigma", 0.1)])
    asked = prepare(settings).algorithm(regression)
    for algorithm in (words, nothing, asked):
        assert (algorithm.momentum, algorithm.restart) == ("none", "none")
    a, b = (ps.solve(algorithm, iterations=3).image for algorithm in (words, nothing))
    assert a.equal(b)


def test_settings_default_to_the_librarys_step(regression):
    library = ps.ProximalGradient(regression, ps.TV(), sigma=0.1).step_size
    settings = Settings(algorithm=AlgorithmSettings(sigma=0.1))
    assert prepare(settings).algorithm(regression).step_size == library
