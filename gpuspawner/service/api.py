"""The REST API. Each handler reads one view of the ledger and spells it for the reader."""

from gpuspawner._version import __version__
from gpuspawner.domain.choices import allowed_profiles
from gpuspawner.service import schemas
from gpuspawner.service.askers import Kind
from gpuspawner.service.handlers import Access, APIHandler
from gpuspawner.service.parts import PartState
from gpuspawner.service.pulse import AgentLook
from gpuspawner.service.questions import Overview, Own, history, of_server, overview
from gpuspawner.service.views import device_body, lease_body, pool_slices, profile_body


class HealthHandler(APIHandler):
    """How the service does; answers at once, whatever is away."""

    access = Access.OPEN
    answer = schemas.Health
    summary = "How the service, ledger, hub and agents do, and since when. Open to everybody."

    async def get(self) -> None:
        """Answer from the last look."""
        self.parameters()
        ledger, hub = self.service.pulse.ledger, self.service.hub.part
        agents = self.service.pulse.agents()
        problems = sorted(self.service.problems | self._problems(agents))
        self.send(
            schemas.Health(
                status="degraded" if problems else "ok",
                version=__version__,
                ledger=ledger.state,
                hub=hub.state,
                since=schemas.Since(ledger=ledger.since, hub=hub.since),
                inventory=[schemas.AgentHealth.model_validate(look) for look in agents],
                problems=problems,
            )
        )

    def _problems(self, agents: list[AgentLook]) -> set[str]:
        ledger, hub = self.service.pulse.ledger.state, self.service.hub
        found = {
            "ledger-unknown": ledger is PartState.UNKNOWN,
            "ledger-away": ledger is PartState.DEGRADED,
            "hub-away": hub.part.state is PartState.DEGRADED,
            "hub-token-refused": hub.token_refused,
            "no-agent-yet": ledger is PartState.OK and not agents,
            "agent-silent": any(look.silent for look in agents),
            "hardware-trouble": any(look.trouble for look in agents),
        }
        return {code for code, holds in found.items() if holds}


class MeHandler(APIHandler):
    """Who asks, and what is theirs."""

    access = Access.NOTEBOOK
    answer = schemas.Me
    summary = "Who asks, their leases, and what is free. A notebook's token: its own server only."

    async def get(self) -> None:
        """Answer a person or a notebook."""
        self.parameters()
        if self.person.kind is Kind.NOTEBOOK:
            await self._notebook()
        else:
            await self._person()

    async def _notebook(self) -> None:
        key = self.person.key(self.hub_id())
        self._send(await self.ask(of_server, key, self.service.clock()), None)

    async def _person(self) -> None:
        viewer = self.person.viewer(self.hub_id())
        seen: Overview = await self.ask(overview, viewer, self.service.clock())
        profiles = None
        if seen.policy is not None:
            allowed = allowed_profiles(seen.policy.profiles, self.person.groups)
            profiles = [profile_body(item, seen.pool, self.words) for item in allowed]
        self._send(seen.own, profiles)

    def _send(self, own: Own, profiles: list[schemas.ProfileBody] | None) -> None:
        words, person = self.words, self.person
        self.send(
            schemas.Me(
                user=person.name,
                kind="notebook" if person.kind is Kind.NOTEBOOK else "person",
                server=person.server,
                admin=person.admin,
                groups=sorted(person.groups),
                living=[
                    lease_body(each, own.knowledge.of(each), own.uses.get(each.lease_id), words)
                    for each in own.living
                ],
                ended=[lease_body(each, None, None, words) for each in own.ended],
                profiles=profiles,
            )
        )


class DevicesHandler(APIHandler):
    """All devices, with their last readings."""

    answer = schemas.Devices
    summary = "All GPUs of the pool with their last readings."

    async def get(self) -> None:
        """Answer with every device."""
        self.parameters()
        viewer = self.person.viewer(self.hub_id())
        seen: Overview = await self.ask(overview, viewer, self.service.clock())
        devices = [device_body(picture, self.words) for picture in seen.devices]
        self.send(schemas.Devices(devices=devices))


class SlicesHandler(APIHandler):
    """All slices; one's own are named, others are busy."""

    answer = schemas.Slices
    summary = "All slices: one's own are named, others are only busy; administrators see names."

    async def get(self) -> None:
        """Answer with every slice."""
        self.parameters()
        viewer = self.person.viewer(self.hub_id())
        seen: Overview = await self.ask(overview, viewer, self.service.clock())
        self.send(schemas.Slices(slices=list(pool_slices(seen.devices, self.words))))


class LeasesHandler(APIHandler):
    """Leases, living and ended."""

    query = schemas.LeasesQuery
    answer = schemas.Leases
    summary = "Leases, newest first: one's own; administrators may ask for everybody's."

    async def get(self) -> None:
        """Answer with one page."""
        asked: schemas.LeasesQuery = self.parameters()
        person = self.person
        if not person.admin and asked.user not in (None, person.name):
            self.refuse(403, "not-allowed", self.words.text(
                "Only administrators see the leases of others."
            ))  # fmt: skip
        user = asked.user if person.admin else person.name
        limit = min(max(asked.limit, 1), schemas.LEASES_AT_ONCE)
        states = frozenset(asked.state)
        found, knowledge, uses = await self.ask(
            history, self.hub_id(), user, states, asked.before, limit, self.service.clock()
        )
        page = found[:limit]
        self.send(
            schemas.Leases(
                leases=[
                    lease_body(each, knowledge.of(each), uses.get(each.lease_id), self.words)
                    for each in page
                ],
                next_before=page[-1].lease_id if len(found) > limit else None,
            )
        )
