"""The spawners: thin classes that parse, call the broker and render."""
