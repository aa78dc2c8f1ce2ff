"""Writes the phases of a dimension's flow as loops over chunks of the dimension.

`analysis/dimension_flow` says of each value of a program whether a loop over chunks of a dimension
makes it a chunk at a time (*split*), a term at a time (*partial*), or needs all of it (*whole*).
This package writes these loops, one `stablehlo.while` a phase, in place of the operations.

Before, with the dimension of 8 in axis 0 of x, and 4 chunks::

    %h = stablehlo.dot_general %x, %w              : tensor<8x64xf32>
    %s = stablehlo.reduce(%h) add across [0]       : tensor<64xf32>

After::

    %r:2 = stablehlo.while(%i = %zero, %sum = %zeros) cond { %i < 4 } do {
      %start = %i * 2
      %chunk = stablehlo.dynamic_slice %x, %start  : tensor<2x16xf32>
      %h = stablehlo.dot_general %chunk, %w        : tensor<2x64xf32>
      %s = stablehlo.reduce(%h) add across [0]     : tensor<64xf32>
      %next = %sum + %s
      stablehlo.return %i + 1, %next
    }

A value that leaves a loop is written into a stack of chunks, or combined in an accumulator, which
may be of a wider type than its terms. Where linear work follows on a partial value, the loop is
left where the accumulators are smallest, and the rest is done once. A whole value that is cut is
cut as far back as parts of operands give its parts: a loop that reads a chunk of `one_hot(labels)`
cuts the labels. A value that is larger than all its operands, e.g. a broadcast or a mask, is
computed again inside of the loop. All other work that does not depend on the dimension is done
once, outside: results of barriers, and values that a scan carries besides the data, e.g. a key that
later code draws from. Where chunks do not divide the dimension, a last shorter one is done after
the loop.

- `plan.plan_loops` decides the contents of each loop and its `Schedule` of chunks, and refuses
  loops that cannot be written; pure. `program` answers its questions about the program and the
  flow.
- `contents` finds the operations of a loop's body, and the parts of code in loops that are done
  before them; `exits` the values that leave loops, their types, the initial values of sums and
  their places; `placement` the places of loops among the other operations; `devices` the loops that
  each device runs on its own part, and its share of the values that they read.
- `gathers` finds sharded values that loops read, and that are better gathered before them;
  `device_terms` sums of products that devices reduce once, after a loop, whatever the mesh.
- `write.apply_loops` writes the loops; `slices` are chunks of a value, and the attributes that hold
  their sizes.
"""
