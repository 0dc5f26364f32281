"""The command ``gpuspawner``."""
