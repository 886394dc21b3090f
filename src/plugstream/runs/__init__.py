"""Run folders: plan, events, checkpoints, images, report and live page of a reconstruction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plugstream.base.lazy import lazy_names

if TYPE_CHECKING:
    from plugstream.runs.advice import Advised as Advised, advise as advise
    from plugstream.runs.library import reconstruct as reconstruct

__getattr__, __dir__ = lazy_names(__name__)
