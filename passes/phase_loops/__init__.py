"""The phases of a dimension's flow, written as loops over chunks of the dimension.

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

What leaves a loop is written into a stack of chunks, or combined in an accumulator, which may be of
a wider type than its terms. Where linear work follows on a partial value, the loop is left where
the accumulators are smallest, and the rest is done once. What is whole and cut is cut as far back
as its parts give the parts of it: a loop that reads a chunk of `one_hot(labels)` cuts the labels.
What is larger than all that it is made of, as a broadcast or a mask, is made inside of the loop
again. All else that does not depend on the dimension is done once, outside: what a barrier passes
on, and what a scan carries beside the data, such as a key that code behind it draws from.
Where chunks do not divide the dimension, a last shorter one is done after the loop.

- `plan.plan_loops` decides what each loop holds and its `Schedule` of chunks, and refuses what
  cannot be written; pure. `program` is what it asks of the program and the flow.
- `contents` finds the operations of a loop's body, and what of code in loops is done before them;
  `exits` what leaves loops, in what type, what sums start with and where they are taken;
  `placement` where loops stand among the operations that are in none; `devices` which loops each
  device runs on its own part, and what it has of the values that they read.
- `gathers` finds sharded values that loops read, and that are better gathered before them;
  `device_terms` sums of products that devices reduce once, after a loop, whatever the mesh.
- `write.apply_loops` writes the loops; `slices` are chunks of a value, and the attributes that hold
  their sizes.
"""
