"""The page of the command line, from its own parser."""

import argparse
from typing import Any, Final

from gpuspawner.cli.main import make_parser
from tools.docs.markdown import code, line, table

_HEAD: Final = """
# Command line

`gpuspawner VERB`. Each verb that reads or writes the books takes `--ledger`; without it the
variable `GPUSPAWNER_LEDGER_URL` counts, else `gpuspawner.sqlite` in the working directory. A
password in `--ledger` is seen by everybody who lists processes: use the variable, or a password
file of PostgreSQL.

Exit status: 0 done, 1 not done (the reason is printed), 2 wrong usage.

Changes are written into the audit with the name of the account that ran the command.
"""
_MORE: Final = {
    "status": "What is unknown is shown as `—`, never as 0. See "
    "[When something is unknown](../how-to/when-something-is-unknown.md).",
    "leases": "With `--json`, times are ISO 8601 in UTC and what is unknown is `null`.",
    "cordon": "See [Take a GPU out of service](../how-to/take-a-gpu-out-of-service.md).",
    "end": "See [When something is unknown](../how-to/when-something-is-unknown.md"
    "#end-a-lease-by-force).",
    "images": "See [Pull images before class](../how-to/pull-images-before-class.md).",
    "backup": "See [Back up and restore](../how-to/back-up-and-restore.md).",
    "restore": "Refused while anybody has the ledger open. "
    "See [Back up and restore](../how-to/back-up-and-restore.md).",
    "verify": "Only reads. The exit status is 1 if the file is damaged or a promise is broken.",
    "agent": "One per GPU host. See [Run service and agent as units]"
    "(../how-to/run-service-and-agent-as-units.md).",
    "service": "Its other settings come from the [environment](environment.md).",
}


def page() -> str:
    """Return the page."""
    parts = [_HEAD.strip()]
    for words, text, parser in verbs():
        parts.append(f"## `gpuspawner {words}`")
        parts.append(f"{text[:1].upper()}{text[1:]}.")
        rows = [_row(action) for action in _actions(parser)]
        if rows:
            parts.append(table(["argument", "default", "what it does"], rows))
        if words.split()[0] in _MORE:
            parts.append(_MORE[words.split()[0]])
    return "\n\n".join(parts)


def verbs() -> list[tuple[str, str, argparse.ArgumentParser]]:
    """Return each verb with its help and its parser."""
    found: list[tuple[str, str, argparse.ArgumentParser]] = []
    _collect(make_parser(), "", "", found)
    return found


def _collect(parser: argparse.ArgumentParser, words: str, text: str, found: list[Any]) -> None:
    below = [item for item in parser._actions if isinstance(item, argparse._SubParsersAction)]
    for action in below:
        texts = {choice.dest: choice.help or "" for choice in action._choices_actions}
        for name, each in action.choices.items():
            _collect(each, f"{words} {name}".strip(), texts[name], found)
    if not below:
        found.append((words, text, parser))


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [item for item in parser._actions if not isinstance(item, argparse._HelpAction)]


def _row(action: argparse.Action) -> list[str]:
    name = ", ".join(action.option_strings) or action.dest
    if action.option_strings and action.nargs != 0:
        name += f" {_value(action)}"
    elif not action.option_strings and action.nargs == "*":
        name += " ..."
    return [code(name).replace("|", "\\|"), _default(action), line(_help(action))]


def _value(action: argparse.Action) -> str:
    if action.choices:
        return "|".join(action.choices)
    return {"limit": "N", "host_id": "NAME", "user": "NAME", "note": "TEXT"}.get(
        action.dest, str(action.metavar or "SECONDS")
    )


def _default(action: argparse.Action) -> str:
    if action.dest == "host_id":
        return "the machine's name"
    if action.dest in ("simulate", "simulation_file"):
        return f"`GPUSPAWNER_{action.dest.upper()}`"
    if action.default in (None, False, "", []) or action.nargs == 0 or not action.option_strings:
        return ""
    return code(action.default)


def _help(action: argparse.Action) -> str:
    texts = {
        "observe_seconds": "how often the devices are looked at",
        "guard_seconds": "how often the servers of living leases are looked at",
        "reconcile_seconds": "how often everything that runs is compared with the books",
        "log_level": "how much is written to the log",
    }
    return action.help or texts[action.dest]
