"""The notebook image: how it is made, kept and brought into an engine."""
