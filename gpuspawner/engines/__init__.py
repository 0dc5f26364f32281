"""How an engine is asked, and what a slice becomes in its terms."""
