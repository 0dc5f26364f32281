"""What the page says, as plain values for the template: sentences, symbols and proportions."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from urllib.parse import quote

from gpuspawner.catalogue import Catalogue
from gpuspawner.domain.choices import allowed_profiles
from gpuspawner.domain.devices import Unavailable
from gpuspawner.domain.knowledge import Unknown
from gpuspawner.domain.leases import HOLDING, Lease, State
from gpuspawner.domain.picture import DevicePicture, Shown, SlicePicture
from gpuspawner.domain.placement import availability
from gpuspawner.domain.uses import LeaseUse
from gpuspawner.service.auth import Asker
from gpuspawner.service.page_notices import Notice, notices_of
from gpuspawner.service.questions import Overview
from gpuspawner.service.settings import Settings
from gpuspawner.service.views import part_label, trouble_label, unknown_sentence

_BAR: Final = 100  # a bar's parts share this many steps; the style sheet has a class for each


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A time for people, with what machines read and how long ago it is."""

    iso: str
    text: str
    ago: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerView:
    """One lease of the reader."""

    name: str
    state: str
    state_class: str
    profile: str
    slices: tuple[str, ...]
    since: Moment
    url: str | None
    why: str | None = None
    unknown: str | None = None
    used: str | None = None  # of its GPUs' memory; None where it has none yet, or no more
    busy: str = "—"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartView:
    """One part of a device: in the bar and in the list below it."""

    shown: str
    label: str
    state: str
    whose: str
    explained: bool  # the state has a sentence of its own
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceView:
    """One card."""

    model: str
    index: str
    memory: str
    used: str
    busy: str
    temperature: str
    trouble: str | None
    parts: tuple[PartView, ...]
    headroom: str | None
    headroom_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HostView:
    """One host's cards."""

    name: str
    devices: tuple[DeviceView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeView:
    """One profile and what is free of it."""

    title: str
    label: str
    some: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PageView:
    """Everything between the page's head and foot. None: not known now."""

    notices: tuple[Notice, ...]
    living: tuple[ServerView, ...] | None = None
    ended: tuple[ServerView, ...] = ()
    free: tuple[FreeView, ...] | None = None
    hosts: tuple[HostView, ...] | None = None


class PageWriter:
    """Writes a page for one reader."""

    def __init__(self, settings: Settings, words: Catalogue, asker: Asker, now: datetime) -> None:
        """Take who reads, in which language, and when."""
        self._settings = settings
        self._words = words
        self._asker = asker
        self._now = now

    def page(self, seen: Overview) -> PageView:
        """Say what the ledger shows."""
        free = None
        if seen.policy is not None:
            allowed = allowed_profiles(seen.policy.profiles, self._asker.groups)
            counted = [(item, availability(seen.pool, item)) for item in allowed]
            free = tuple(
                FreeView(
                    title=item.title,
                    label=self._words.availability(count, item),
                    some=item.mode is None or count.free > 0,
                )
                for item, count in counted
            )
        return PageView(
            notices=tuple(notices_of(seen, self._words, self._asker, self._now)),
            living=tuple(
                self._server(each, seen.own.knowledge.of(each), seen.own.uses.get(each.lease_id))
                for each in seen.own.living
            ),
            ended=tuple(self._server(each, None, None) for each in seen.own.ended),
            free=free,
            hosts=self._hosts(seen.devices),
        )

    def away(self) -> PageView:
        """Say what it means that the ledger does not answer."""
        text = self._words.text(
            "The record of who uses which GPU does not answer right now, so this page cannot show "
            "your servers or the pool. Running servers go on; new ones with a GPU have to wait. "
            "The page tries again by itself."
        )
        return PageView(notices=(Notice(kind="warning", text=text),))

    def _server(self, lease: Lease, unknown: Unknown | None, use: LeaseUse | None) -> ServerView:
        moment = lease.ended_at or lease.running_at or lease.granted_at or lease.requested_at
        if lease.state is State.ENDED:
            moment = lease.finished_at or lease.ended_at or lease.requested_at
        label, style = self._state(lease)
        sentence = unknown_sentence(unknown, self._words)
        if sentence is not None and lease.state is State.RUNNING:
            label, style = self._words.text("Not known"), "unknown"
        return ServerView(
            name=lease.key.server or self._words.text("Default server"),
            state=label,
            state_class=style,
            profile=lease.profile.title,
            slices=tuple(self._words.slice(item) for item in lease.slices),
            since=self._moment(moment),
            url=self._url(lease) if lease.state is State.RUNNING else None,
            why=None if lease.reason is None else self._words.reason(lease.reason),
            unknown=sentence,
            used=self._used(lease, use) if lease.state in HOLDING else None,
            busy=_percent(None if use is None else use.busy_percent),
        )

    def _used(self, lease: Lease, use: LeaseUse | None) -> str:
        """Say how much of its GPUs' memory a server uses; what is not known is a dash."""
        used = self._words.memory(None if use is None else use.memory_mib)
        sizes = [item.memory_mib for item in lease.slices if item.memory_mib is not None]
        if len(sizes) < len(lease.slices):
            return used
        return self._words.text("{used} of {size}", used=used, size=self._words.memory(sum(sizes)))

    def _state(self, lease: Lease) -> tuple[str, str]:
        words = self._words
        if lease.state is State.ENDED and lease.granted_at is None:
            return words.text("Refused"), "ended"
        return {
            State.WAITING: (words.text("Waiting"), "waiting"),
            State.GRANTED: (words.text("Starting"), "waiting"),
            State.RUNNING: (words.text("Running"), "running"),
            State.ENDING: (words.text("Stopping"), "waiting"),
            State.ENDED: (words.text("Ended"), "ended"),
        }[lease.state]

    def _url(self, lease: Lease) -> str:
        """Return the hub's way to a server: it knows the server's own domain, if it has one."""
        server = f"{quote(lease.key.server, safe='')}/" if lease.key.server else ""
        return f"{self._settings.hub_url}user/{quote(lease.key.user, safe='@')}/{server}"

    def _hosts(self, devices: Iterable[DevicePicture]) -> tuple[HostView, ...]:
        by_host: dict[str, list[DeviceView]] = {}
        for picture in devices:
            by_host.setdefault(picture.device.host_id, []).append(self._device(picture))
        return tuple(HostView(name=name, devices=tuple(each)) for name, each in by_host.items())

    def _device(self, picture: DevicePicture) -> DeviceView:
        device, load, words = picture.device, picture.device.load, self._words
        trouble = picture.unavailable
        sizes = [part.memory_mib for part in picture.slices]
        *steps, headroom_steps = _steps([*sizes, picture.headroom_mib])
        return DeviceView(
            model=device.model.removeprefix("NVIDIA ") or words.text("GPU"),
            index=f"#{device.index}" if device.index >= 0 else "—",
            memory=words.memory(device.memory_mib),
            used=words.memory(load.used_mib),
            busy=_percent(load.busy_percent),
            temperature="—" if load.temperature_c is None else f"{load.temperature_c} °C",
            trouble=None if trouble is None else trouble_label(trouble, words),
            parts=tuple(
                self._part(part, each, trouble)
                for part, each in zip(picture.slices, steps, strict=True)
            ),
            headroom=words.memory(picture.headroom_mib) if picture.headroom_mib else None,
            headroom_steps=headroom_steps,
        )

    def _part(self, part: SlicePicture, steps: int, trouble: Unavailable | None) -> PartView:
        words = self._words
        state = {
            Shown.FREE: words.text("free"),
            Shown.OWN: words.text("yours"),
            Shown.BUSY: words.text("busy"),
            Shown.UNAVAILABLE: words.text("unavailable"),
        }[part.shown]
        if part.unavailable not in (None, trouble):
            assert part.unavailable is not None
            state = words.text("unavailable: {why}", why=trouble_label(part.unavailable, words))
        whose = ""
        if part.lease is not None:
            key = part.lease.key
            whose = f"{key.user}/{key.server}".removesuffix("/")
            if part.shown is Shown.OWN:
                whose = key.server or words.text("Default server")
        return PartView(
            shown=str(part.shown), label=part_label(part, words), state=state, whose=whose,
            explained=part.unavailable not in (None, trouble), steps=steps,
        )  # fmt: skip

    def _moment(self, moment: datetime) -> Moment:
        return Moment(
            iso=moment.isoformat(timespec="seconds"),
            text=self._words.time(moment),
            ago=self._words.duration(self._now - moment),
        )


def _percent(value: int | None) -> str:
    return "—" if value is None else f"{value} %"


def _steps(sizes: Sequence[int | None]) -> list[int]:
    """Cut a bar in proportion; what is unknown is as wide as the mean, nothing known is unseen."""
    known = [size for size in sizes if size]
    usual = max(sum(known) // len(known), 1) if known else 1
    widths = [usual if size is None else size for size in sizes]
    whole = sum(widths) or 1
    return [0 if not width else max(round(width * _BAR / whole), 1) for width in widths]
