"""The registry: what is declared is found by kind and name, without anything slow; mistakes are named."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pydantic import Field, create_model

from plugstream.base import registry
from plugstream.base.errors import InputError
from plugstream.base.registry import Options, entries, find, pattern_of, register


def test_reading_every_list_imports_no_torch() -> None:
    code = (
        "import sys\nfrom plugstream.base.registry import entries\n"
        "for kind in ('sampler', 'momentum', 'gradient', 'loss'):\n    assert entries(kind), kind\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=150)


def test_a_name_that_is_not_there_suggests_the_nearest() -> None:
    with pytest.raises(InputError, match=r"no sampler 'unifrom'; did you mean 'uniform'\?"):
        find("sampler", "unifrom")


def test_what_is_declared_is_found_and_twice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._table, "loss", dict(entries("loss")))

    class Own(Options):
        power: float = Field(1.0, gt=0, description="of the misfit")

    @register("loss", "own", "mine", options=Own, strange=True)
    def build(options: Own) -> float:
        return options.power

    entry = find("loss", "own")
    assert entry.build(entry.options(power=2.0)) == 2.0
    assert entry.facts["strange"]
    with pytest.raises(InputError, match="declared twice"):

        @register("loss", "own", "another")
        def other(options: Options) -> None: ...


def test_options_refuse_what_they_do_not_have() -> None:
    with pytest.raises(ValueError, match="Extra inputs"):
        find("sampler", "all").options(batch=3)


def test_names_with_a_colon_are_patterns() -> None:
    assert pattern_of("deepinv:DRUNet") == "deepinv:NAME"
    assert pattern_of("/a b/c.py:Net") == "FILE.py:NAME"
    assert pattern_of("c.py:9") == ""
    assert pattern_of("bm3d") == ""


def test_every_entry_has_a_line_of_help_and_documented_options() -> None:
    for kind in ("sampler", "momentum", "gradient", "loss"):
        assert len(entries(kind)) > 2, kind
        for entry in entries(kind).values():
            assert entry.help
            assert "\n" not in entry.help
            assert all(field.description for field in entry.options.model_fields.values()), entry.name


def test_no_option_is_called_like_what_sections_do() -> None:
    from pydantic import BaseModel

    from plugstream.settings import Settings
    from plugstream.settings.choices import Choice, Selection
    from plugstream.settings.sections import section_of

    kinds = [kind for kind in map(section_of, Settings.model_fields) if issubclass(kind, Choice | Selection)]
    own = {name for kind in kinds for name in {*dir(kind), "name", "names"} - set(dir(BaseModel))}
    assert {name for name in own if not name.startswith("_")} == registry.RESERVED
    for options in ({"build": (int, 1)}, {"name": (str, "x")}):
        with pytest.raises(InputError, match="an option cannot be called"):
            register("loss", "odd", "odd", options=create_model("Odd", __base__=Options, **options))
