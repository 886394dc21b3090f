"""What shows a run while it goes on besides its own folder: programs of others, which somebody asks for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from plugstream.images.space import ImageSpace
from plugstream.runs.callbacks import Callback
from plugstream.runs.event_log import EventLog, Listener

__all__ = ["Viewers"]


@dataclass(frozen=True)
class Viewers:
    """What a run is shown in; it is no setting, since the image does not depend on it.

    Arguments: live_zarr, where to keep the current image as OME-Zarr (`plugstream.runs.live_zarr`); tensorboard,
    whether to write what TensorBoard reads (`plugstream.runs.tensorboard`).
    """

    live_zarr: Path | None = None
    tensorboard: bool = False

    def check(self) -> None:
        """Refuse what cannot be done, before anything is computed or written."""
        if self.live_zarr is not None:
            from plugstream.runs.live_zarr import check_place

            check_place(self.live_zarr)

    def listeners(self, folder: Path) -> tuple[Listener, ...]:
        """What listens to the log of the run in a folder."""
        if not self.tensorboard:
            return ()
        from plugstream.runs.tensorboard import Tensorboard

        return (Tensorboard(folder),)

    def callbacks(self, space: ImageSpace, log: EventLog) -> list[Callback]:
        """What acts after the steps of a run whose image has this space."""
        if self.live_zarr is None:
            return []
        from plugstream.runs.live_zarr import LiveZarr

        return [LiveZarr(self.live_zarr, space, log)]
