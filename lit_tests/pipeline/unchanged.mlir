// Programs without a pipeline in them stay as they are to the byte, and nobody is told.
// RUN: hloom-opt %s -p inline -o %t
// RUN: hloom-opt %t -p "pipeline" 2>&1 | diff %t -

sdy.mesh @mesh = <["stage"=2]>

func.func public @no_loop(%x: tensor<8x4xf32>, %w: tensor<4x4xf32>) -> tensor<8x4xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}
