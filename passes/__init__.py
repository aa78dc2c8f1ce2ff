"""StableHLO to StableHLO: the passes of hloom, and what runs them.

This file stays empty of imports: `import hloom` loads it, and a process that sets no flag must
not pay for the MLIR bindings, numpy or scipy. Import from the modules, e.g.
`from hloom.passes.framework.pipeline import Pipeline`.
"""
