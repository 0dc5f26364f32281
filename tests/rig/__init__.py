"""The test rig: real parts that the tests own, started and ended by process id."""
