"""The bench driver: every figure of the project, measured beside its peers on this machine.

Slices are short and alternate between the servers, because disks drift: only ratios of the same round count. Everything
goes through what every user has: the command line, NBD, and the kernel's own counters.
"""
