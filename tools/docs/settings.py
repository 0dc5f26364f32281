"""The page of settings: `configure` and the traits, in the words of their own help."""

import inspect
import re
from typing import Any, Final

from traitlets import TraitType

from gpuspawner.config import GPUSettings
from gpuspawner.hubconfig import configure
from gpuspawner.spawners.docker import GPUDockerSpawner
from gpuspawner.spawners.local import GPULocalSpawner
from tools.docs.markdown import code, line, prose, table

_HEAD: Final = """
# Settings

A site's `jupyterhub_config.py` ends with a call of `gpuspawner.configure(c, ...)`. Its keyword
arguments are those of the next section, and every setting of `GPUSpawner`: `profiles=[...]` there
is the same as `c.GPUSpawner.profiles = [...]`. What a site writes for `c.GPUDockerSpawner` or
`c.GPULocalSpawner` counts for that spawner only. Every setting of JupyterHub's `Spawner` and of
DockerSpawner can be written as before, except what [the last section](#refused-settings) names.
"""
_CHANGES: Final = """
## What `configure` writes

It changes `c` and nothing else: no file is made and nobody is asked.

- `c.JupyterHub.spawner_class` becomes `gpu-docker`, unless the site has set another than
  DockerSpawner. That one is replaced, and its names of containers are kept; SwarmSpawner and
  SystemUserSpawner are refused.
- `c.GPUDockerSpawner.home_path` becomes empty if `volumes` have a mount for each person, or one at
  or below `/home`, and no `home_path` is set.
- `c.JupyterHub.concurrent_spawn_limit` becomes 0, unless the site has set one. `concurrent_starts`
  limits starts instead, after they have their slice.
- `c.JupyterHub.cleanup_servers` becomes False, unless the site has set it: a restart of the hub is
  no reason to stop notebooks.
- `access:services!service=gpu` is added to `c.JupyterHub.extra_user_scopes`, and to a role
  `user` of the site's own, so that people reach the page and notebooks the service.
- `users:activity!user`, `access:servers!server` and `access:services!service=gpu` are added to
  `server_token_scopes`, of `c.Spawner` and of each spawner class that has its own. Where
  one is a callable, the call is refused: let it return these three as well, and set it after the
  call.
- The services `gpu` and, if the hub starts the agent, `gpu-agent` are added to
  `c.JupyterHub.services`. An entry that the site has under one of these names is kept, and gets the
  keys that it lacks. A service `gpu-agent` gets a role of its own with `list:users` and
  `read:servers`.
- The service listens where notebooks reach the hub, and they get `GPUSPAWNER_API_URL`. That is the
  first of `hub_connect_url`, `hub_connect_ip`, `hub_bind_url` and `hub_ip` that names neither
  loopback nor a wildcard; none does by default.

A later assignment to one of these, such as `c.JupyterHub.services = [...]`, drops what was added:
the call stays the last one of the file.
"""
_CHANGED_DEFAULTS: Final = {
    "remove": "Containers are removed after a stop; their end is read first.",
    "name_template": "Names that two hubs on one engine, or two users, never share.",
    "poll_interval": "Seconds between two looks of the hub at a server.",
    "http_timeout": "Seconds that a started server may take to answer.",
    "start_timeout": "`pull_seconds`, `http_timeout` and three minutes: our own limits, each of "
    "which says what took too long, end first.",
}
_REFUSED: Final = """
## Refused settings

With these a start is refused with the reason [`site-setting`](reasons.md#site-setting), since they
contradict a lease:

| setting | why |
| --- | --- |
| `device_requests` in `extra_host_config` | Devices are attached by the lease only. |
| a `restart_policy` other than `no` | A restarted container would keep what was given back. |
| `privileged` | A privileged container sees every GPU of the host. |
| `devices` that name `/dev/nvidia...` | A device node would go around the lease. |
"""


def page() -> str:
    """Return the page."""
    return "\n\n".join([
        _HEAD.strip(),
        _configure(),
        _CHANGES.strip(),
        "## `GPUSpawner`\n\nFor all spawners.",
        *_traits(GPUSettings),
        "## `GPUDockerSpawner`\n\n"
        'DockerSpawner with leases; `spawner_class = "gpu-docker"`. It has every setting of '
        "DockerSpawner.",
        *_traits(GPUDockerSpawner),
        _changed_defaults(),
        "## `GPULocalSpawner`\n\n"
        'Servers as processes of the hub\'s machine; `spawner_class = "gpu-local"`. For the demo '
        "and for work without GPU: it hands out simulated GPUs only.",
        *_traits(GPULocalSpawner),
        _REFUSED.strip(),
    ])  # fmt: skip


def own_traits(cls: Any) -> dict[str, TraitType[Any, Any]]:
    """Return the settings that a class of ours brings, in the order of the source."""
    return {
        name: value
        for name, value in vars(cls).items()
        if isinstance(value, TraitType) and value.metadata.get("config")
    }


def _traits(cls: Any) -> list[str]:
    return [_trait(name, trait) for name, trait in own_traits(cls).items()]


def _trait(name: str, trait: TraitType[Any, Any]) -> str:
    # A default that depends on where the hub runs is described by the help.
    default = "" if name == "ledger_url" else f", default {code(repr(trait.default()))}"
    return f"### `{name}`\n\n{trait.__class__.__name__}{default}.\n\n{prose(trait.help)}"


def _configure() -> str:
    texts = _argument_texts(inspect.getdoc(configure) or "")
    rows = []
    for name, parameter in inspect.signature(configure).parameters.items():
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            continue
        rows.append([code(name), code(repr(parameter.default)), line(texts[name])])
    return f"## `configure`\n\n{table(['argument', 'default', 'what it does'], rows)}"


def _argument_texts(doc: str) -> dict[str, str]:
    section = doc.split("Args:\n", 1)[1].split("\n\n", 1)[0]
    found = re.findall(r"^ {4}\**(\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE)
    return dict(found)


def _changed_defaults() -> str:
    spawner = GPUDockerSpawner()
    rows = []
    for name, why in _CHANGED_DEFAULTS.items():
        # A name is made from a user, whom nobody is here.
        value = (
            "{prefix}-{hub_id}-{safe_user}" if name == "name_template" else getattr(spawner, name)
        )
        rows.append([code(name), code(value), why])
    return (
        "### Other defaults\n\n"
        "These settings of JupyterHub and DockerSpawner have another default here. A site's own "
        f"value counts.\n\n{table(['setting', 'default', 'why'], rows)}"
    )
