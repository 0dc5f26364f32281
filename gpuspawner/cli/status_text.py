"""What ``gpuspawner status`` says to people, from the same report that scripts get."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from gpuspawner.catalogue import Catalogue
from gpuspawner.cli.common import moment, plain, table
from gpuspawner.domain.knowledge import Why

_NO_AGENT: Final = "No agent has reported a host yet. Is `gpuspawner agent` running?"
_STRAYS: Final = (
    "These use GPUs and have no lease. They are left alone, and their GPUs are handed out to "
    "nobody:"
)
_ABOUT_STRAYS: Final = (
    "Stop what should not run. A monitor may stay: make it anew with the label "
    "org.gpuspawner.ignore=true."
)


def text(report: Mapping[str, Any]) -> str:
    """Return the report for people."""
    parts = [_host(host) for host in report["hosts"]] or [_NO_AGENT]
    parts += [_engine(each) for each in report["engines"] if each["missed"]]
    if report["strays"]:
        parts.append(_strays(report["strays"]))
    return "\n\n".join(parts)


def _host(host: Mapping[str, Any]) -> str:
    notes = []
    if host["simulated"]:
        notes.append("simulated, no real hardware")
    if host["silent"]:
        notes.append(f"silent since {host['observed_at']}: all below may have changed")
    if host["trouble"]:
        notes.append(plain(host["trouble"]))
    if host["attribution_unavailable"]:
        notes.append(f"whose processes run is not known: {plain(host['attribution_unavailable'])}")
    rows = [row for device in host["devices"] for row in _device(device)]
    head = ["DEVICE", "UUID / UNIT", "MEMORY", "USED", "BUSY", "STATE"]
    title = f"Host {host['host_id']}" + (f" ({'; '.join(notes)})" if notes else "")
    return f"{title}\n{table(head, rows)}"


def _device(device: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    words = Catalogue("en")
    free = "" if device["slices"] else "free"
    state = _unavailable(device["unavailable"]) or free
    yield [
        f"#{device['index']} {device['model']}", device["uuid"],
        words.memory(device["memory_mib"]), words.memory(device["used_mib"]),
        _percent(device["busy_percent"]), state,
    ]  # fmt: skip
    for item in device["slices"]:
        size = words.memory(item["memory_mib"])
        used = words.memory(item["used_mib"]) if item["holder"] else ""
        busy = _percent(item["busy_percent"]) if item["holder"] else ""
        name = f"   {item['profile'] or 'slice'}"
        yield [name, item["unit"], size, used, busy, _slice_state(item)]


def _unavailable(why: Mapping[str, Any] | None) -> str:
    return "" if why is None else f"unavailable: {why['trouble']} {plain(why['detail'])}".strip()


def _slice_state(item: Mapping[str, Any]) -> str:
    if not item["holder"]:
        return _unavailable(item["unavailable"]) or "free"
    holder, why = plain(item["holder"]), item["unknown_why"]
    if why is None:
        return holder
    said = "not observed" if why == Why.NOT_OBSERVED else "unknown whether it runs"
    return f"{holder} ({said})"


def _engine(state: Mapping[str, Any]) -> str:
    name = f"engine {state['engine']} of {state['host_id']}"
    when = moment(datetime.fromisoformat(state["unknown_since"]))
    if state["unknown_why"] == Why.AGENT_AWAY:
        said = f"The agent of {state['host_id']} has said nothing of the {name} since {when}."
    else:
        said = f"The {name} has not answered since {when}: {plain(state['detail'])}"
    return f"{said}\n{_held(state['unknown_leases'])}"


def _held(leases: Sequence[int]) -> str:
    if not leases:
        return "No lease depends on it."
    numbers = ", ".join(map(str, leases))
    return (
        f"It is not known whether the servers of these leases run: {numbers}. They stay held, and "
        "none of them is ended."
    )


def _strays(strays: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [
            plain(stray["name"]), stray["host_id"], stray["engine"], stray["run_id"][:12],
            "all of its host" if stray["devices"] is None else ", ".join(stray["devices"]),
        ]
        for stray in strays
    ]  # fmt: skip
    head = ["NAME", "HOST", "ENGINE", "RUN", "GPUS"]
    return f"{_STRAYS}\n{table(head, rows)}\n{_ABOUT_STRAYS}"


def _percent(value: int | None) -> str:
    return "—" if value is None else f"{value} %"
