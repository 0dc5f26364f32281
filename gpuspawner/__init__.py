"""Shared GPU notebooks for JupyterHub.

This module sits in notebook images as well as on the hub: importing it imports neither
jupyterhub, docker, SQLAlchemy nor pynvml. A site's ``jupyterhub_config.py`` calls
``gpuspawner.configure(c)`` as its last line.
"""

from typing import Any

from gpuspawner._version import __version__

__all__ = ["__version__", "configure"]


def configure(c: Any, **settings: Any) -> None:
    """Wire spawner, service, agent, roles and limits into a JupyterHub configuration.

    See `gpuspawner.hubconfig.configure` for the settings; this wrapper only keeps the import of
    the package light.
    """
    from gpuspawner.hubconfig import configure as configure_hub

    configure_hub(c, **settings)
