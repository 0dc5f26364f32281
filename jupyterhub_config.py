"""A hub with shared GPUs, to run and to read: ``make demo`` starts it.

What ``tools/demo.py`` found out about this machine comes in by GPUSPAWNER_DEMO_* variables;
without them the servers are local processes and the GPUs a simulated lab.
"""

import json
import os

import gpuspawner

c = get_config()  # noqa: F821 - JupyterHub provides it

image = os.environ.get("GPUSPAWNER_DEMO_IMAGE")  # a notebook image that the engine has
simulate = os.environ.get("GPUSPAWNER_DEMO_SIMULATE", "mixed-lab")  # empty: the real hardware

# Log-in: four accounts without password, so the hub listens on this machine only.
c.JupyterHub.bind_url = "http://127.0.0.1:8000"
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allowed_users = {"ada", "ben", "cho"}
c.Authenticator.admin_users = {"admin"}
c.JupyterHub.load_groups = {
    "ml101": {"users": ["ada", "ben"]},
    "ml101-staff": {"users": ["cho"]},
}
if proxy := os.environ.get("GPUSPAWNER_DEMO_PROXY"):
    c.ConfigurableHTTPProxy.command = json.loads(proxy)

if image:
    c.JupyterHub.spawner_class = "gpu-docker"
    # Containers reach the hub at the gateway of their own network, and at no other address.
    c.JupyterHub.hub_ip = os.environ["GPUSPAWNER_DEMO_HUB_IP"]
    c.GPUDockerSpawner.network_name = os.environ["GPUSPAWNER_DEMO_NETWORK"]
    c.GPUDockerSpawner.use_internal_ip = True
    c.GPUDockerSpawner.image = image
    c.GPUDockerSpawner.pull_policy = "never"
    # Simulated devices cannot be attached; with real ones this line goes away.
    c.GPUDockerSpawner.attach = "none" if simulate else "nvidia"
else:
    c.JupyterHub.spawner_class = "gpu-local"

c.Spawner.default_url = "/lab"
c.JupyterHub.cleanup_servers = True  # the demo leaves nothing behind; a site keeps notebooks

# What people can choose. Shares are for the members of one group among themselves.
profiles = [
    {
        "name": "cpu",
        "title": "CPU only",
        "description": "For writing, reading and small data. Starts at once.",
        "default": True,
    },
    {
        "name": "share",
        "title": "Small GPU share",
        "description": "A 5 GiB share of a GPU, for exercises of ML101.",
        "mode": "time-sliced",
        "memory": "5GiB",
        "groups": ["ml101"],
    },
    {
        "name": "mig-2g",
        "title": "A100 instance 10 GB",
        "description": "A partition of an A100 of your own.",
        "mode": "mig",
        "instance": "2g.10gb",
    },
    {
        "name": "whole",
        "title": "Whole H100",
        "description": "A GPU for yourself, for training runs.",
        "mode": "whole",
        "models": ["H100"],
        "hour_weight": {"H100": 4},
    },
]
# How devices are handed out: the two small cards in shares, everything else as it is.
devices = [{"select": "2080 Ti", "modes": ["time-sliced"], "headroom": "512MiB"}]
if not simulate:
    profiles = [profiles[0], {"name": "whole", "title": "Whole GPU", "mode": "whole"}]
    devices = []

# The last call of the file: spawner, service, agent, token scopes and the hub's limits.
gpuspawner.configure(c, profiles=profiles, devices=devices, simulate=simulate or None)
