"""The options form: a card per profile, with what is free now. Works without JavaScript."""

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from gpuspawner.catalogue import Catalogue
from gpuspawner.catalogue.words import LIST_SEPARATOR
from gpuspawner.domain.choices import allowed_profiles
from gpuspawner.domain.devices import Mode
from gpuspawner.domain.placement import Availability, availability, explain
from gpuspawner.domain.pool import Pool
from gpuspawner.domain.profiles import CPU_ONLY, Profile, default_profile
from gpuspawner.domain.reasons import Code, Kind, Reason, reason
from gpuspawner.ledger.store import LedgerAwayError
from gpuspawner.spawners.site import Site

# The hub gives a page about a second; what the ledger has not said by then is shown as unknown.
PATIENCE_SECONDS: Final = 0.5
# Each card has an image list of its own, so that no list can disagree with the chosen card.
IMAGE_FIELD: Final = "image:"

_LANE: Final = "form"

log = logging.getLogger(__name__)

_TEMPLATES: Final = Environment(
    loader=PackageLoader("gpuspawner.spawners"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def options_from_form(data: Mapping[str, Any]) -> dict[str, Any]:
    """Turn form fields into options; what does not belong there is judged in ``start()``.

    Fields come as lists of texts; one that stands alone and is empty was not filled in. Of the
    cards' image lists only the chosen card's counts, and it becomes ``image``.
    """
    options = {}
    for key, value in data.items():
        if key == "_xsrf":
            continue
        single = value[0] if isinstance(value, list) and len(value) == 1 else value
        if single != "":
            options[key] = single
    profile = options.get("profile")
    if isinstance(profile, str):
        chosen = options.get(f"{IMAGE_FIELD}{profile}")
        options = {key: value for key, value in options.items() if not _is_image_field(key)}
        if chosen is not None:
            options.setdefault("image", chosen)
    return options


def _is_image_field(key: object) -> bool:
    return isinstance(key, str) and key.startswith(IMAGE_FIELD)


@dataclass(frozen=True, slots=True)
class Offer:
    """What there is of a profile now, and why nothing of it would be granted."""

    counted: Availability
    why_not: Reason | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the ledger said in time, by the profiles' names; an empty one is "not known"."""

    offers: Mapping[str, Offer] = field(default_factory=dict)
    simulated: bool = False
    away: Reason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One profile as it is shown: plain texts, which the template escapes."""

    name: str
    title: str
    description: str
    gets: Sequence[str]
    status: str = ""
    tone: str = "secondary"
    note: str = ""
    usable: bool = True
    images: Sequence[str] = ()
    has_usual_image: bool = False


@dataclass
class Form:
    """One rendering of the form for one person.

    ``chosen`` is what was chosen last or what a link preselects, and is not trusted: what is not
    on offer is passed over. ``images`` may be chosen where a profile names none of its own.
    """

    site: Site
    groups: frozenset[str]
    chosen: Mapping[str, Any]
    images: list[str]
    reader: Catalogue

    async def render(self) -> str:
        """Return the form's HTML. Never raises for what the ledger does or does not say."""
        profiles = allowed_profiles(self.site.policy.profiles, self.groups)
        has_gpus = any(profile.mode is not None for profile in profiles)
        # A person without a GPU profile needs nothing of the ledger.
        seen = await self._see(profiles) if has_gpus else Seen()
        cards = [self._card(profile, seen.offers.get(profile.name)) for profile in profiles]
        usable = [profile for profile, card in zip(profiles, cards, strict=True) if card.usable]
        return _TEMPLATES.get_template("form.html").render(
            **self.reader.jinja_globals(),
            lang=self.reader.lang,
            cards=cards,
            checked=self._checked(usable),
            image=self.chosen.get("image"),
            image_field=IMAGE_FIELD,
            simulated=seen.simulated,
            counted=bool(seen.offers),
            trouble=self._trouble(seen) if has_gpus else "",
        )

    async def _see(self, profiles: Sequence[Profile]) -> Seen:
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                given_up = time.monotonic() + PATIENCE_SECONDS
                return await self.site.books(_LANE, self._look, profiles, given_up)
        except TimeoutError:
            log.warning("The form shows no free counts: the ledger took too long")
        except LedgerAwayError as error:
            log.warning("The form shows no free counts: %s", error)
        except Exception:
            log.exception("The form shows no free counts")
        return Seen()

    def _look(self, profiles: Sequence[Profile], given_up: float) -> Seen:
        """Count what is free. Blocks."""
        if time.monotonic() > given_up:  # it queued behind slow ones, and nobody waits any more
            return Seen()
        now = self.site.now()
        with self.site.broker.ledger.read() as books:
            hosts, cordons, holds = books.hosts(), books.cordons(), books.holds()
        if not hosts:
            return Seen(away=reason(Code.INVENTORY_AWAY, since=None))
        # This hub's own policy: it becomes the published one before anything is granted.
        pool = Pool(self.site.policy, hosts, cordons, holds, now=now)
        return Seen(
            offers={
                profile.name: _offer(pool, profile, profiles)
                for profile in profiles
                if profile.mode is not None
            },
            simulated=any(host.simulated for host in hosts),
        )

    def _checked(self, usable: Sequence[Profile]) -> str | None:
        wanted = self.chosen.get("profile")
        names = [profile.name for profile in usable]
        if wanted in names:
            return str(wanted)
        return default_profile(usable).name if usable else None

    def _trouble(self, seen: Seen) -> str:
        if seen.away is not None:
            return self.reader.reason(seen.away)
        if seen.offers:
            return ""
        return self.reader.text(
            "How many GPUs are free is not known right now. You can still choose and start; "
            "you will be told if nothing is free."
        )

    def _card(self, profile: Profile, offer: Offer | None) -> Card:
        images = profile.images or self.images
        given: dict[str, Any] = {
            "name": profile.name,
            "title": profile.title,
            "description": profile.description,
            "gets": tuple(self._gets(profile)),
            "images": tuple(images) if len(images) > 1 else (),
            "has_usual_image": not profile.images,
        }
        if profile == CPU_ONLY:  # the one profile whose words are ours
            given |= {"title": self.reader.mode(None), "description": ""}
        if profile.mode is None:
            status = self.reader.text("Always available")
            return Card(**given, status=status, tone="success")
        if offer is None:
            return Card(**given)
        given["status"] = self.reader.availability(offer.counted, profile)
        if offer.why_not is None:
            return Card(**given, tone="success")
        note = self._note(offer.why_not)
        if offer.why_not.kind is Kind.POLICY:
            return Card(**given, note=note, usable=False)
        return Card(**given, note=note, tone="warning")

    def _note(self, why_not: Reason) -> str:
        if why_not.code is not Code.ALL_IN_USE:
            return self.reader.reason(why_not)
        if why_not.values["alternatives"]:
            titles = (f"“{title}”" for title in why_not.values["alternatives"])
            free = LIST_SEPARATOR[self.reader.locale].join(titles)
            return self.reader.text(
                "Starting now would be refused; others are free: {profiles}.", profiles=free
            )
        if why_not.values["in_use"]:
            return self.reader.text(
                "Starting now would be refused; try again when somebody stops a server."
            )
        return self.reader.text("Starting now would be refused; the staff can see why.")

    def _gets(self, profile: Profile) -> Iterator[str]:
        """Say in a few phrases what one gets: mode, size, and what stands between neighbours."""
        isolation = self.reader.isolation(profile)
        if profile.mode is None:
            yield isolation
            return
        if profile.mode is Mode.WHOLE:
            yield isolation  # which says the mode and the count as well
        else:
            mode = self.reader.mode(profile.mode)
            yield f"{mode} {profile.instance}" if profile.instance else mode
        if profile.memory_mib is not None:
            yield self._memory(profile, self.reader.memory(profile.memory_mib))
        if profile.compute_percent is not None:
            yield self.reader.text("compute {percent}%", percent=profile.compute_percent)
        if profile.mode is not Mode.WHOLE:
            yield isolation

    def _memory(self, profile: Profile, memory: str) -> str:
        if profile.mode is not None and profile.mode.is_share:
            return self.reader.text("{memory} GPU memory", memory=memory)
        if profile.count > 1:
            return self.reader.text("at least {memory} GPU memory each", memory=memory)
        return self.reader.text("at least {memory} GPU memory", memory=memory)


def _offer(pool: Pool, profile: Profile, profiles: Sequence[Profile]) -> Offer:
    counted = availability(pool, profile)
    if counted.free > 0:
        return Offer(counted, None)
    why_not = explain(pool, profile)
    if why_not.kind is Kind.CAPACITY:
        why_not = explain(pool, profile, profiles)
    return Offer(counted, why_not)
