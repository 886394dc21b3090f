"""Names of a Born scan's parts where they used to be."""

from __future__ import annotations

from plugstream.grid import Grid, Points
from plugstream.instruments.born import Born2D as Setup
from plugstream.models.born_geometry import BornGeometry, ring
from plugstream.rows import Rows

__all__ = ["BornGeometry", "Grid", "Points", "Rows", "Setup", "ring"]
