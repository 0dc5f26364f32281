"""The catalogue: one object per language, through which everything is said to people."""

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from decimal import Decimal
from typing import Any, Final
from zoneinfo import ZoneInfo

from babel.dates import format_date, format_time, format_timedelta
from babel.numbers import format_decimal

from gpuspawner.catalogue.language import SUPPORTED
from gpuspawner.catalogue.lines import Line
from gpuspawner.catalogue.placeholders import fill
from gpuspawner.catalogue.sentences import SENTENCES
from gpuspawner.catalogue.translations import translations_for
from gpuspawner.catalogue.words import LIST_SEPARATOR, SENTENCE_SEPARATOR, SHORT, WORDED_VALUES
from gpuspawner.domain.devices import Mode
from gpuspawner.domain.placement import Availability
from gpuspawner.domain.profiles import Profile
from gpuspawner.domain.reasons import Code, Reason
from gpuspawner.domain.slices import Slice
from gpuspawner.domain.units import format_memory_mib

UNKNOWN: Final = "—"

Zone = tzinfo | str | None


class Catalogue:
    """Says reasons, slices, quantities and page strings in one language.

    All answers are plain text with values as given: an edge that writes HTML escapes them.
    """

    def __init__(self, locale: str = "en") -> None:
        if locale not in SUPPORTED:
            raise ValueError(f"expected a locale of {', '.join(SUPPORTED)}, got {locale!r}")
        self.locale = locale
        self.lang = locale.replace("_", "-")
        self._translations = translations_for(locale)

    # Page strings

    def text(self, msgid: str, **values: object) -> str:
        """Say a text that is known by its English wording, with ``{name}`` placeholders filled.

        Raises:
            ValueError: a value that the text names did not come.
        """
        return fill(self._translations.gettext(msgid) if msgid else "", values)

    def plural(self, one: str, many: str, n: int, **values: object) -> str:
        """Say a text that counts; ``{n}`` is the count, spelled for the reader."""
        template = self._translations.ngettext(one, many, n)
        return fill(template, {"n": self.number(n), **values})

    def jinja_globals(self) -> dict[str, Callable[..., str]]:
        """Return ``_`` and its kin for a Jinja environment, which escapes what they return."""
        return {"_": self.text, "gettext": self.text, "ngettext": self.plural}

    # Reasons

    def reason(self, reason: Reason, zone: Zone = None) -> str:
        """Say a reason in full: the rule, the number, and what would work."""
        shown = {
            name: self._shown(reason.code, name, value, zone)
            for name, value in reason.values.items()
        }
        told = ""
        for part in SENTENCES[reason.code]:
            line = next((each for each in part if _holds(each, reason.values)), None)
            if line is None:
                continue
            if told:
                told += "\n" if line.own_line else SENTENCE_SEPARATOR[self.locale]
            told += fill(self._template(line, reason.values), shown)
        return told

    def short(self, reason: Reason) -> str:
        """Say a reason in a few words, for a table."""
        return self.text(SHORT[reason.code])

    def status_reason(self, reason: Reason) -> str:
        """Return the reason's code: the same in every language, for HTTP, metrics and logs."""
        return str(reason.code)

    # What one gets

    def slice(self, slice_: Slice) -> str:
        """Name what was handed out: model, part and memory."""
        values = {"model": slice_.model or "GPU", "memory": self.memory(slice_.memory_mib)}
        if slice_.mode is Mode.WHOLE:
            return self.text("whole {model}, {memory}", **values)
        if slice_.mode is Mode.INSTANCE:
            instance = slice_.instance_profile or UNKNOWN
            return self.text(
                "instance {instance} of {model}, {memory}", **values, instance=instance
            )
        if slice_.compute_percent is None:
            return self.text("share of {model}, {memory}", **values)
        percent = slice_.compute_percent
        return self.text(
            "share of {model}, {memory}, compute {percent}%", **values, percent=percent
        )

    def mode(self, mode: Mode | None) -> str:
        """Name a way of handing out a GPU; None is a server without one."""
        if mode is None:
            return self.text("CPU only")
        if mode is Mode.WHOLE:
            return self.text("Whole GPU")
        if mode is Mode.INSTANCE:
            return self.text("GPU instance")
        if mode is Mode.MPS:
            return self.text("GPU share (MPS)")
        return self.text("GPU share (time-sliced)")

    def isolation(self, profile: Profile) -> str:
        """Say honestly what stands between this profile's holder and others."""
        if profile.mode is None:
            return self.text("No GPU")
        if profile.mode is Mode.WHOLE:
            return self.plural(
                "A whole GPU, nobody else on it",
                "{n} whole GPUs, nobody else on them",
                profile.count,
            )
        if profile.mode is Mode.INSTANCE:
            return self.text("Hardware partition: memory and faults are isolated")
        if profile.mode is Mode.MPS:
            return self.text(
                "Shared with members of your group; memory is limited for each process, faults "
                "are not isolated"
            )
        return self.text("Shared with members of your group; nothing enforces the memory limit yet")

    def availability(self, availability: Availability, profile: Profile) -> str:
        """Say how much of a profile is free now, for a card or a table."""
        counts = {
            "free": self.number(availability.free),
            "total": self.number(availability.total),
            "in_use": self.number(availability.in_use),
            "unavailable": self.number(availability.unavailable),
        }
        if profile.mode is None:
            return self.text("always free")
        if availability.unproven:
            return self.text("not handed out yet: memory limit not enforced")
        if availability.silent_since is not None:
            return self.text("not known right now: no GPU readings")
        if availability.total == 0:
            return self.text("no GPU here fits")
        if availability.free > 0:
            return self.text("{free} of {total} free", **counts)
        if availability.unavailable == 0:
            return self.text("none free: {in_use} in use", **counts)
        if availability.in_use == 0:
            return self.text("none free: {unavailable} unavailable", **counts)
        return self.text("none free: {in_use} in use, {unavailable} unavailable", **counts)

    # Quantities and lists

    def memory(self, memory_mib: int | None) -> str:
        """Spell an amount of memory; unknown is a dash, never 0."""
        return format_memory_mib(memory_mib)

    def number(self, value: float | Decimal | None) -> str:
        """Spell a number with the reader's separators; unknown is a dash."""
        return UNKNOWN if value is None else format_decimal(value, locale=self.locale)

    def join(self, items: Iterable[str]) -> str:
        """List names one after the other, as the reader's language does it."""
        return LIST_SEPARATOR[self.locale].join(items)

    def duration(self, passed: timedelta) -> str:
        """Spell how long something has lasted; before it began, by a clock behind, it is none."""
        return format_timedelta(max(passed, timedelta()), granularity="minute", locale=self.locale)

    def time(self, moment: datetime | None, zone: Zone = None) -> str:
        """Spell a moment in the reader's zone; without one (or an unknown one) in UTC, saying so.

        Raises:
            ValueError: the moment has no zone of its own.
        """
        if moment is None:
            return UNKNOWN
        if moment.tzinfo is None:
            raise ValueError(f"expected a moment with a zone, got {moment!r}")
        reader_zone = _zone(zone)
        local = moment.astimezone(reader_zone)
        date = format_date(local, "medium", locale=self.locale)
        clock = format_time(local, "HH:mm", locale=self.locale)
        return f"{date} {clock} UTC" if reader_zone is UTC else f"{date} {clock}"

    def _template(self, line: Line, values: Mapping[str, Any]) -> str:
        if not line.one:
            return self._translations.gettext(line.text)
        count = values[line.count]
        n = count if isinstance(count, int) else 2
        return self._translations.ngettext(line.one, line.text, n)

    def _shown(self, code: Code, name: str, value: Any, zone: Zone) -> str:
        if value is None:
            return UNKNOWN
        if isinstance(value, list | tuple):
            return self.join(map(str, value)) or UNKNOWN
        if name == "since":
            return self._since(value, zone)
        if isinstance(value, int | float) and name != "exit_code":
            return self.number(value)
        word = WORDED_VALUES.get((code, name), {}).get(str(value))
        return str(value) if word is None else self.text(word)

    def _since(self, value: Any, zone: Zone) -> str:
        try:
            moment = datetime.fromisoformat(str(value))
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=UTC)
            return self.time(moment, zone)
        except (ValueError, OverflowError):  # written by another version: shown as it came
            return str(value)


def _holds(line: Line, values: Mapping[str, Any]) -> bool:
    return all(_is_there(name, values[name]) for name in line.needs)


def _is_there(name: str, value: Any) -> bool:
    if name == "exit_code":
        return value is not None
    return bool(value)


def _zone(zone: Zone) -> tzinfo:
    if isinstance(zone, str):
        try:
            zone = ZoneInfo(zone)
        except (KeyError, ValueError, OSError):  # a name that came from a browser
            return UTC
    if zone is None or str(zone) in ("UTC", "Etc/UTC"):
        return UTC
    return zone
