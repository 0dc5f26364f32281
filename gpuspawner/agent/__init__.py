"""The loops of a GPU host: look at devices, look at the servers of living leases."""
