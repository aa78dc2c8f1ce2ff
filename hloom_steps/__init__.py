"""The steps package: makes several programs of one training step.

`split` cuts a step into its forward and its backward part, `stages` cuts it along its layers; both
are passes, which hloom finds by the entry points `hloom.passes` like any third party's. `halves`
implements `hloom.split`, functions of the two parts, and `mpmd` implements `hloom.stages`, the
driver of the programs. `hloom/api.py` lists the names that the steps import from `hloom`.
"""
