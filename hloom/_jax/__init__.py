"""The private parts of JAX that hloom uses, one module for each theme.

No other folder may import `jax._src` or jaxlib's internals. tests/_jax/ checks each private
function used here, on the oldest and the newest supported version. The private modules are imported
inside the functions: under a JAX outside the tested range these modules still import, and change
nothing in JAX.
"""
