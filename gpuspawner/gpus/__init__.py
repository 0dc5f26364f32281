"""What the hardware says: inventories by NVML and simulated ones."""
