// What undo-checkpoint leaves as it is.
// RUN: hloom-opt %s -o %t && hloom-opt %s -p undo-checkpoint | diff %t -

// Only cheap work is computed again.
func.func public @cheap(%x: tensor<256x256xf32>) -> tensor<256x256xf32> {
  %0 = stablehlo.tanh %x : tensor<256x256xf32>
  %1 = stablehlo.negate %0 : tensor<256x256xf32>
  %2:2 = stablehlo.optimization_barrier %x, %1 : tensor<256x256xf32>, tensor<256x256xf32>
  %3 = stablehlo.tanh %2#0 : tensor<256x256xf32>
  %4 = stablehlo.multiply %3, %2#1 : tensor<256x256xf32>
  return %4 : tensor<256x256xf32>
}

// No barrier is between the two: XLA merges them.
func.func public @no_barrier(%x: tensor<256x256xf32>) -> tensor<256x256xf32> {
  %0 = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0]
      : (tensor<256x256xf32>, tensor<256x256xf32>) -> tensor<256x256xf32>
  %1 = stablehlo.optimization_barrier %0 : tensor<256x256xf32>
  %2 = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0]
      : (tensor<256x256xf32>, tensor<256x256xf32>) -> tensor<256x256xf32>
  %3 = stablehlo.add %1, %2 : tensor<256x256xf32>
  return %3 : tensor<256x256xf32>
}

// One attribute differs.
func.func public @another_product(%x: tensor<256x256xf32>) -> tensor<256x256xf32> {
  %0 = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0]
      : (tensor<256x256xf32>, tensor<256x256xf32>) -> tensor<256x256xf32>
  %1:2 = stablehlo.optimization_barrier %x, %0 : tensor<256x256xf32>, tensor<256x256xf32>
  %2 = stablehlo.dot_general %1#0, %1#0, contracting_dims = [1] x [1]
      : (tensor<256x256xf32>, tensor<256x256xf32>) -> tensor<256x256xf32>
  %3 = stablehlo.add %1#1, %2 : tensor<256x256xf32>
  return %3 : tensor<256x256xf32>
}

// A custom call may give something else each time, and what is made of it as well.
func.func public @opaque(%x: tensor<256x256xf32>) -> tensor<256x256xf32> {
  %0 = stablehlo.custom_call @kernel(%x) : (tensor<256x256xf32>) -> tensor<256x256xf32>
  %1 = stablehlo.dot_general %0, %x, contracting_dims = [1] x [0]
      : (tensor<256x256xf32>, tensor<256x256xf32>) -> tensor<256x256xf32>
  %2:2 = stablehlo.optimization_barrier %x, %1 : tensor<256x256xf32>, tensor<256x256xf32>
  %3 = stablehlo.custom_call @kernel(%2#0) : (tensor<256x256xf32>) -> tensor<256x256xf32>
  %4 = stablehlo.dot_general %3, %2#0, contracting_dims = [1] x [0]
      : (tensor<256x256xf32>, tensor<256x256xf32>) -> tensor<256x256xf32>
  %5 = stablehlo.add %2#1, %4 : tensor<256x256xf32>
  return %5 : tensor<256x256xf32>
}
