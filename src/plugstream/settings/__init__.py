"""Every setting of the command line, described once: defaults, limits, help, flags, and how they are read and written.

Settings come from the defaults of the sections, then a TOML file, then flags and `--set section.key=value`, later ones
winning. This package knows pydantic and nothing of torch, so that mistakes are found before anything slow is imported.
"""

from plugstream.base.text import parse_value
from plugstream.settings.changes import Change, check_sigma, parse_changes, with_changes
from plugstream.settings.iteration import AlgorithmSettings, GradientSettings, MomentumSettings, SamplerSettings
from plugstream.settings.resolution import Draft, resolve
from plugstream.settings.sections import (
    ComputeSettings,
    DenoiserSettings,
    Settings,
    needed_monitors,
    section_of,
    used_sections,
    with_bounds,
)
from plugstream.settings.stages import Stage, StagePlan, hop_steps, open_end, parse_stages, plan_stages
from plugstream.settings.toml import EarlierRun, SettingsFile, to_flags, to_toml
from plugstream.settings.values import (
    all_leaves,
    is_weight,
    leaves,
    needs_sigma,
    parse_assignment,
    parse_setting,
    parse_sigma,
    parse_typed,
    share_of_range,
)

__all__ = [
    "AlgorithmSettings",
    "Change",
    "ComputeSettings",
    "DenoiserSettings",
    "Draft",
    "EarlierRun",
    "GradientSettings",
    "MomentumSettings",
    "SamplerSettings",
    "Settings",
    "SettingsFile",
    "Stage",
    "StagePlan",
    "all_leaves",
    "check_sigma",
    "hop_steps",
    "is_weight",
    "leaves",
    "needed_monitors",
    "needs_sigma",
    "open_end",
    "parse_assignment",
    "parse_changes",
    "parse_setting",
    "parse_sigma",
    "parse_stages",
    "parse_typed",
    "parse_value",
    "plan_stages",
    "resolve",
    "section_of",
    "share_of_range",
    "to_flags",
    "to_toml",
    "used_sections",
    "with_bounds",
    "with_changes",
]
