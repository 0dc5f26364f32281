"""Who asks: the hub's answer about a token, turned into a reader.

A token that carries ``access:servers!server=`` is a notebook's, whoever owns it (hub facts H3): a
person may open a malicious notebook, so it reaches its own server and nothing else.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from jupyterhub.services.auth import check_scopes

from gpuspawner.domain.leases import ServerKey
from gpuspawner.domain.picture import Viewer

_SERVER_SCOPE: Final = "access:servers!server="


class Kind(StrEnum):
    """What sort of reader it is."""

    PERSON = "person"
    NOTEBOOK = "notebook"
    OTHER = "other"  # known to the hub, with no business here


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """Who asks. ``server`` is the one server that a notebook's token speaks for."""

    kind: Kind
    name: str
    admin: bool = False
    groups: frozenset[str] = frozenset()
    server: str | None = None

    def viewer(self, hub_id: str) -> Viewer:
        """Return this reader as the rules know one."""
        return Viewer(hub_id=hub_id, user=self.name, admin=self.admin)

    def may_act_for(self, user: str, server: str | None = None) -> bool:
        """Whether something of this user, or of this one server, is theirs to change."""
        if self.kind is Kind.NOTEBOOK:
            return (user, server) == (self.name, self.server)
        return self.kind is Kind.PERSON and (self.admin or user == self.name)

    def key(self, hub_id: str) -> ServerKey:
        """Return the one server that a notebook speaks for."""
        assert self.server is not None
        return ServerKey(hub_id=hub_id, user=self.name, server=self.server)


def asker_from(model: Any, service: str) -> Asker:
    """Read the hub's model of a token's owner, with the token's scopes.

    Raises:
        ValueError: this is no answer of a hub.
    """
    if not isinstance(model, Mapping):
        raise ValueError(f"expected the hub's model of a user, got {type(model).__name__}")  # noqa: TRY004 - data, not a type of ours
    name = model.get("name")
    if not isinstance(name, str) or not name:
        raise ValueError("the hub's model of a user has no name")
    scopes = _names(model, "scopes")
    groups = _names(model, "groups")
    nobody = Asker(kind=Kind.OTHER, name=name)
    if model.get("kind") != "user":
        return nobody
    if not check_scopes({"access:services", f"access:services!service={service}"}, scopes):
        return nobody
    servers = {
        scope.removeprefix(_SERVER_SCOPE) for scope in scopes if scope.startswith(_SERVER_SCOPE)
    }
    own = sorted(
        server.removeprefix(f"{name}/") for server in servers if server.startswith(f"{name}/")
    )
    if len(own) == 1:
        return Asker(kind=Kind.NOTEBOOK, name=name, server=own[0])
    # Somebody else's server may be shared with a person, whose own tokens then name it too; they
    # also reach all of the person's own servers. A token that does not is a notebook's.
    wider = "access:servers" in scopes or f"access:servers!user={name}" in scopes
    if own or (servers and not wider):
        return nobody
    return Asker(
        kind=Kind.PERSON,
        name=name,
        admin=model.get("admin") is True,
        groups=groups,
    )


def _names(model: Mapping[str, Any], field: str) -> frozenset[str]:
    value = model.get(field) or []
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError(f"the hub's model of a user has other {field} than a list of names")
    return frozenset(value)
