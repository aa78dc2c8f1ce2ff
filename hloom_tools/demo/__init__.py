"""`hloom demo` trains a GPT twice on real text, hloom off and on, and prints what changed.

It needs the extra `demo` (flax and optax). It uses only what a user of hloom can use.
"""
