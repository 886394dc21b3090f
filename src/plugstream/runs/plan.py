"""A plan: everything that a run needs, built once from settings and scan, and handed on.

    prepare(settings)   what settings alone determine: device, denoiser, loss, momentum, gradient (`runs.parts`)
    plan(parts, scan)   what they make of a scan's instrument: the denoiser for its images, its model and monitors

Whatever can be refused without computing is refused here, before anything is written. Model, fidelity and algorithm
depend on which views a run has, which its log knows, too: the run asks the plan for each of them once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from numpy.typing import NDArray

from plugstream.algorithms import Algorithm
from plugstream.algorithms.sampling import Sampler
from plugstream.base.errors import InputError
from plugstream.base.processes import Group
from plugstream.base.progress import report
from plugstream.base.registry import Options
from plugstream.base.rows import first_rows
from plugstream.denoisers import Denoiser
from plugstream.denoisers.base import Wrapper
from plugstream.denoisers.shapes import adapt, describe
from plugstream.denoisers.support import with_support
from plugstream.denoisers.tiles import Tiles
from plugstream.fidelity.by_loss import DataFidelity
from plugstream.fidelity.least_squares import Fidelity
from plugstream.fidelity.sign_test import Preference, prefer_bounds
from plugstream.images.global_phase import Phase
from plugstream.images.space import ImageSpace
from plugstream.instruments.base import Block, Columns, Experiment, Instrument, find_instrument
from plugstream.models.base import Model, as_model
from plugstream.models.ct import CTModel
from plugstream.models.ct_slabs import SlabbedCT
from plugstream.runs.bounds import Bounds, build_support, prefer_high, prefer_support
from plugstream.runs.checks import check_batch, check_mask
from plugstream.runs.error_maps import check_error_map
from plugstream.runs.measuring import MeasuredViews
from plugstream.runs.partition import Partition, choose_partition
from plugstream.runs.parts import Parts, complex_parts, in_tiles, prepare
from plugstream.runs.search import check_judges, check_search, search_interval
from plugstream.runs.slabs import choose_worker
from plugstream.runs.stages import check_stages, stages_of
from plugstream.scans.scan import Scan
from plugstream.settings import Draft, Settings, StagePlan, needed_monitors, with_bounds
from plugstream.solver.monitors import PSNR, SNR, HeldOutMisfit, Monitor


@dataclass(frozen=True)
class Plan:
    """Everything that a run needs, for scans of one instrument.

    Attributes: parts, of the settings alone; instrument; truth, the true image where it is known; denoiser, for images
    of this instrument; notes, what a person should know of how it was built; known_model, that of the scan's views
    where it was built already, to simulate them; partition, the blocks of slices by which the run goes, None where it
    goes at once; lipschitz, the L of the step where it is known already, as that of a volume is to its blocks;
    advice, which settings nobody gave, and why they are what they are; checked, of how many views the model
    is known to fit.
    """

    parts: Parts
    instrument: Instrument
    truth: NDArray[Any] | None
    denoiser: Denoiser
    notes: tuple[str, ...] = ()
    known_model: Model | None = None
    partition: Partition | None = None
    lipschitz: float | None = None
    advice: tuple[str, ...] = ()
    checked: int | None = None

    @property
    def settings(self) -> Settings:
        """The settings that it is built from."""
        return self.parts.settings

    def model(self, columns: Columns, n_views: int, previous: Model | None = None) -> Model:
        """The model of the first views; `previous` is that of fewer of them, whose work is used again."""
        if previous is None and self.known_model is not None and self.known_model.n_views == n_views:
            return self.known_model
        parts, options = self.parts, model_options(self.settings, self.instrument)
        rows = first_rows(columns, n_views)
        if previous is None:
            report(f"building the model of {n_views} views")
        if previous is None and n_views != self.checked:
            self.instrument.check_model(rows, n_views, options, device=parts.device, dtype=parts.dtype)
        build = partial(self.instrument.build_model, device=parts.device, dtype=parts.dtype)
        model = as_model(build(rows, n_views, options, previous=previous))
        if parts.worker is None:
            return model
        assert isinstance(model, CTModel)
        return SlabbedCT(model, parts.worker.device, parts.worker.memory)

    def algorithm(self, fidelity: Fidelity, sampler: Sampler | None = None) -> Algorithm[Any]:
        """The algorithm on the views of this fidelity."""
        return self.parts.algorithm(fidelity, self.denoiser, sampler)

    def stages(self, scan: Scan | Experiment, n_views: int) -> tuple[StagePlan, ...]:
        """The stages of the run on the first views of a scan, none where it has one problem from start to end."""
        return stages_of(self.settings, scan, n_views)

    def monitors(self, views: MeasuredViews, *, searched: bool = False) -> list[Monitor]:
        """What is measured, and on which views; `searched` says that sigma is or was searched for by held-out ones."""
        monitors = build_monitors(self.settings, self.truth, views, self.instrument.image.phase)
        if searched and self.settings.monitor.hold_out is None:
            monitors.append(HeldOutMisfit(views.searched))
        return monitors

    def revise(self, settings: Settings) -> Plan:
        """The plan with other settings of the same scan; what both have in common is not built again."""
        revised = _fit(prepare(settings, self.parts), self.instrument, self.truth)
        kept = {"known_model": self.known_model, "partition": self.partition, "lipschitz": self.lipschitz}
        return replace(revised, **kept, advice=self.advice)  # type: ignore[arg-type]

    def prefer_low(self, fidelity: DataFidelity) -> Preference | None:
        """The lower bound that the data asks for, and why; None where somebody gave one."""
        d = self.settings.denoiser
        if d.low != "auto":
            return None
        if d.least is None:
            return Preference(None, "the image is kept below its upper bound alone")
        report("finding the bounds of the image")
        return prefer_bounds(fidelity)

    def settle_bounds(self, fidelity: DataFidelity, columns: Columns, *, ask: bool = True) -> Bounds:
        """Bounds and support of the image that nobody gave, as the data asks, and why; those that are given stay.

        Without `ask` the data is asked for the lower bound alone: a run that goes on and knows of no others has none.
        """
        d, limited = self.settings.denoiser, ask and self.instrument.lacks_angles(columns)
        bounds = Bounds(d.low, d.high, d.support)
        if (low := self.prefer_low(fidelity)) is not None:
            bounds = bounds.add(low.reason, low=low.low)
        follow = self.settings.scan.follow
        if d.support in ("disc", "hull") or (d.support == "auto" and limited and not follow):
            report("finding where the object is")
            support = prefer_support(fidelity, d.support)
            bounds = bounds.add(support.reason, support=support.value)
        elif d.support == "auto":
            bounds = replace(bounds, support="none")
        if d.high == "auto" and limited and not follow:
            report("finding the largest value of the image")
            least = None if isinstance(bounds.low, str) else bounds.low
            high = prefer_high(fidelity, least, build_support(bounds.support, self.instrument.image))
            bounds = bounds.add(high.reason, high=high.value)
        elif d.high == "auto":
            bounds = replace(bounds, high=None)
        return bounds

    def with_bounds(self, bounds: Bounds) -> Plan:
        """The plan with these bounds of the image."""
        settings = with_bounds(self.settings, low=bounds.low, high=bounds.high, support=bounds.support)
        return self if settings == self.settings else self.revise(settings)

    def with_denoiser(self, name: str) -> Plan:
        """The plan with another denoiser, which the search for sigma has chosen; its settings stay as they are."""
        denoiser = self.settings.denoiser.chosen(name)
        return replace(self, denoiser=self.revise(self.settings.model_copy(update={"denoiser": denoiser})).denoiser)

    def with_settings(self, settings: Settings) -> Plan:
        """The plan with settings that build the same, as those with other `changes` do."""
        return replace(self, parts=replace(self.parts, settings=settings))

    def alone(self) -> Plan:
        """The plan for a process that shares nothing with others."""
        made = _fit(replace(self.parts, group=Group()), self.instrument, self.truth)
        return replace(made, partition=self.partition, lipschitz=self.lipschitz, advice=self.advice)

    def cut(self, block: Block, first: int, last: int) -> Plan:
        """The plan for a block of slices, from `first` up to `last`, whose run writes no pictures."""
        where = (slice(first, last), *(slice(0, size) for size in self.instrument.image.shape[1:]))
        quiet = self.settings.run.model_copy(update={"preview": 0.0, "report": "none"})
        settings = self.settings.model_copy(update={"run": quiet})
        return replace(
            self,
            parts=replace(self.parts, settings=settings),
            instrument=block.instrument,
            truth=None if self.truth is None else self.truth[first:last],
            denoiser=self.denoiser.window(where),
            known_model=None,
            partition=None,
            checked=None,
        )

    def check_views(self, scan: Scan | Experiment) -> None:
        """Refuse views that nothing can be made of: of implausible places, all masked, too few, or too many to hold."""
        parts, instrument, columns = self.parts, self.instrument, scan.columns
        instrument.check_plausible(columns)
        check_mask(instrument, columns)
        options = model_options(self.settings, instrument)
        if self.partition is not None:
            block = instrument.block(columns, *self.partition.blocks[0])
            assert block is not None
            instrument, columns = block.instrument, {**columns, **block.columns}
        instrument.check_model(columns, scan.n_views, options, device=parts.device, dtype=parts.dtype)
        check_error_map(self.settings.run.uncertainty, scan.n_views, blocks=self.partition is not None)
        check_batch(self.settings, scan.n_views, search_interval(self.settings, scan.n_views))
        check_judges(self.settings, scan.n_views, self.instrument.data_shape)
        self.stages(scan, scan.n_views)


def plan(
    settings: Settings | Parts, scan: Scan | Experiment, *, divide: bool = False, partition: Partition | None = None
) -> Plan:
    """Build what a run needs, once; whatever must be refused is refused, before anything is written.

    A denoiser of images of another kind than the scan's is adapted to them by itself, and the plan's notes say so.

    Arguments:
        settings: or what was built of them already, so that it is not built again.
        scan: which may be an experiment that is still to be simulated, or a scan whose first view is still to come;
            of the latter `Plan.check_views` refuses what the views show.
        divide: whether the run may go by blocks of slices, where all of a volume takes more memory than there is.
        partition: the blocks by which it goes, where they are known.
    """
    parts = settings if isinstance(settings, Parts) else prepare(settings)
    check_stages(parts.settings)
    instrument = scan.instrument
    instrument.check_plausible()
    made = _fit(parts, instrument, scan.truth)
    made.settings.monitor.check(instrument.image.shape, truth=scan.truth is not None)
    if partition is None and not isinstance(scan, Experiment) and (worker := choose_worker(made, scan)) is not None:
        parts, divide = parts.lend(worker), False
        made = _fit(parts, instrument, scan.truth)
    if divide and partition is None and not isinstance(scan, Experiment):
        partition = parts.group.decide(lambda: choose_partition(made, scan))
    made = replace(made, partition=partition)
    check_search(parts.settings, blocks=partition is not None)
    for name in made.settings.denoiser.rival_names:
        made.with_denoiser(name)  # which refuses one that cannot be
    if scan.n_views > 0:
        made.check_views(scan)
        return made if partition is not None else replace(made, checked=scan.n_views)
    options = model_options(parts.settings, instrument)
    instrument.check_model(None, 1, options, device=parts.device, dtype=parts.dtype)
    return made


def model_options(settings: Settings, instrument: Instrument) -> Options:
    """What a person says of the instrument's model; settings of another instrument are refused."""
    asked = find_instrument(settings.instrument.name).name
    if asked != instrument.name:
        raise InputError(
            f"the scan is of {instrument.name}, but {asked} was asked for; leave --instrument, or [instrument] of the "
            "settings, out"
        )
    return settings.instrument.options


def build_monitors(
    settings: Settings, truth: NDArray[Any] | None, views: MeasuredViews, phase: Phase = "free"
) -> list[Monitor]:
    """What the settings ask to be measured, which of a scan with its truth includes the SNR.

    `phase` says whether the data leave the global phase of complex images free, which then counts for no error.
    """
    known = None if truth is None else torch.from_numpy(truth)
    monitors: list[Monitor] = settings.monitor.assemble(known, views, also=needed_monitors(settings))
    monitors = [replace(one, phase=phase) if isinstance(one, SNR | PSNR) else one for one in monitors]
    if settings.monitor.hold_out is not None:
        monitors.append(HeldOutMisfit(views.held_out))
    return monitors


def _fit(parts: Parts, instrument: Instrument, truth: NDArray[Any] | None) -> Plan:
    """The plan for the images of an instrument."""
    space = instrument.image
    notes: list[str] = []
    if space.is_complex and parts.settings.denoiser.low == "auto":  # complex values have no order
        parts = replace(parts, settings=with_bounds(parts.settings, low=None, high=None))
        notes.append("the image is complex, so that its values have no bounds")
    asked = parts.denoiser()
    _check_guide(asked, space)
    along = parts.settings.denoiser.along
    if along is not None and len(space.spatial) != 3:
        raise InputError("--along is for the slices of a volume, and the scan's images have two axes; leave it out")
    by: Any = None if along is None else "mean" if along == "all" else "zyx".index(along)
    how = complex_parts(parts.settings.denoiser, waves=space.is_complex, free=space.free_phase)
    denoiser = adapt(asked, space.shape, channels=space.channels, volume=by, **how)
    denoiser = with_support(denoiser, build_support(parts.settings.denoiser.support, space))
    if denoiser is not asked:
        notes.append(f"the denoiser is adapted to the image: {describe(denoiser)}")
    group = parts.group
    denoiser = in_tiles(denoiser, parts.settings.compute, group, parts.worker)
    if parts.worker is not None:
        notes.append(parts.worker.note)
    if isinstance(denoiser, Tiles):
        notes.append(f"the denoiser works on tiles: {describe(denoiser)}")
    elif group.size > 1 and parts.device.type == "cuda":
        # GPUs may add in any order; the image of one of them is that of all.
        denoiser = Tiles(denoiser, max(space.spatial), 0, group=group)
    return Plan(parts, instrument, truth, denoiser, tuple(notes))


def _check_guide(denoiser: Denoiser, space: ImageSpace) -> None:
    """Refuse a guide of another size than the image."""
    while isinstance(denoiser, Wrapper):
        denoiser = denoiser.denoiser
    guide = denoiser.guide
    slices = guide is not None and guide.ndim == 2 and len(space.spatial) == 3  # one for all slices of a volume
    if guide is not None and not slices and tuple(guide.shape) != tuple(space.spatial):
        sizes = (" x ".join(map(str, shape)) for shape in (guide.shape, space.spatial))
        raise InputError("the guide is {}, but the image {}".format(*sizes))


def advised_plan(
    draft: Draft, scan: Scan, early: Parts | None = None, group: Group | None = None, *, divide: bool = True
) -> Plan:
    """The plan of a run with the settings that are advised for a scan.

    A run that nobody asked to search for sigma does without where it goes by blocks of slices.

    Arguments: draft of the settings; scan; early, what was built of the draft already; group, the processes that share
    the work; divide, as of `plan`.
    """
    from plugstream.runs.advice import advised_settings
    from plugstream.runs.identity import absolute
    from plugstream.runs.search import SearchByBlocks

    def plan_run(*, search: bool) -> Plan:
        settings, reasons = advised_settings(draft, scan, None if group is None else group.decide, search=search)
        parts = prepare(absolute(settings), early)
        return replace(plan(parts if group is None else parts.share(group), scan, divide=divide), advice=reasons)

    try:
        return plan_run(search=True)
    except SearchByBlocks as error:
        if draft.settings.algorithm.search is not None:  # somebody asked for it
            raise
        try:
            return plan_run(search=False)
        except InputError:
            raise error from None
