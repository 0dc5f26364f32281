"""How fast we are, measured side by side with what others do."""
