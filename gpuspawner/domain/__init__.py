"""Pure rules: what a site has, what a person asks for, and what follows.

No module here reads a clock, a file, a socket or a random number; time and facts arrive as
arguments, and answers are values. Vocabulary (one word per idea):

Device: one physical GPU of one host. Slice: what is handed out: a whole device, an instance
(hardware partition) or a share of a device's memory. Profile: what a person can choose. Claim:
what was asked. Lease: the record of a claim from request to end. Hold: one slice held by a lease.
Reason: why something was refused or ended, as a code with values.
"""
