"""The steps: what makes several programs of one step.

`split` cuts a step into its forward and its backward part, `stages` cuts it along its layers; both
are passes, which hloom finds by the entry points `hloom.passes` as it finds anybody's. `halves` is
`hloom.split`, functions of the two parts, and `mpmd` is `hloom.stages`, the driver of the programs.
What the steps take of `hloom` stands in `hloom/api.py`.
"""
