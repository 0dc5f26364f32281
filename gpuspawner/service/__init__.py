"""The hub service ``gpu``: pages and REST."""
