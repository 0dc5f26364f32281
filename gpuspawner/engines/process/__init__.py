"""Servers as plain processes of this machine: for the demo and for work without GPU.

Hub and agent see the same processes only if they run on one machine, in one PID namespace, and as
the same user (or the agent as root). Nothing here keeps a person away from a real GPU.
"""
