"""Values at single points: what a region computes, decided by evaluation at coordinates.

A value of any size is asked for at some coordinates only, so that no array of its size is made.
Elementwise operations, movements and reductions pass the question on to their operands. Every other
value is a *leaf*: a random function of its value number and its coordinates. Arithmetic is that of
float64. So two spellings of one function give equal numbers at the program's own sizes.
"""
