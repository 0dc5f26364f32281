"""The Docker engine: pure settings, and a runtime with time limits and lanes."""
