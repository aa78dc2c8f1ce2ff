"""The dependence of a program on one dimension: which values can be computed in chunks, and where.

A dimension, say the batch, is given by seeds: axes of values that are to be cut together into
chunks. Every value of the program then is one of these (`flow.Flow`):

- *whole*: it does not depend on the dimension, or is known in full after a loop over the chunks;
- *split*: a chunk of it, along an axis, is computed from chunks alone;
- *partial*: it is the sum, the maximum or the minimum of the terms of the chunks.

Each operation has a *signature* (`analysis/signatures`): which axes of its operands and results are
the same dimension, which dimensions it reduces, and in which operands it is linear.

Where a signature does not fit, operands are *finished*: their chunks are concatenated, their terms
combined, after a loop, and the reader belongs to the next one. So the analysis never refuses a
program, but a program may need several *phases*, which are loops. Phases are numbered from 1; a
value that is whole after phase p can be read in phase p + 1 and later. An argument is in memory in
full before any loop, and so is the result of light work on arguments: to finish these takes no
phase.

    x[8, 4] of an earlier product, split along axis 0    phase 1
    h = x @ w, where w is whole: split along axis 0      phase 1
    s = sum(h) over axis 0: partial sum                  phase 1
    h - s: s is finished; split along axis 0             phase 2

Code in a loop, a branch or a manual computation runs in one phase as a whole: there nothing can be
finished, and where a value has to be, the operation reads all its operands whole.

- `solve.dimension_flow` computes the flow of one dimension (`result.DimensionFlow`: phases and why
  they end, cuts, exits, values that later phases need again, and the needs of each operation), in
  one pass over the program, the bodies of loops to a fixed point.
- `dimensions.ProgramDimensions` finds all dimensions of a program in one pass, each with the axes
  of arguments that it is in and its share of the matrix products; `accumulate/choice` finds the
  batch among them.
"""
