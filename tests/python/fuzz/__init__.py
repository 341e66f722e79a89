"""Random small models under random plans, beside the single device.

`programs` is what a random model is, as data and as text that a person can paste; `making` makes one out of
the operators in `operators`; `pairs` runs one under a plan and compares; `shrinking` makes what fails small;
`counting` says what was met; `session` is the loop, and `workers` runs it in processes, so that one that dies
is a finding.

    python -m fuzz --seed 7 --minutes 5 --jobs 2
"""
