"""Everything of JAX that hloom uses and that JAX does not promise to keep, a module for each theme.

No other folder may import `jax._src` or jaxlib's internals. tests/_jax/ holds JAX to each thing
used here, on the oldest and the newest supported version. The private modules are imported inside
the functions: on a JAX outside the tested range these modules still import, and nothing of JAX is
touched.
"""
