"""`hloom demo` trains the GPT of `examples/` twice, hloom off and on, and prints what changed.

It needs the extra `demo` (flax and optax). It uses only what a user of hloom can use; `program.py`
is a link to `examples/gpt_train.py`.
"""
