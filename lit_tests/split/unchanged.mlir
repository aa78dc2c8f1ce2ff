// Programs that split leaves as they are.
// RUN: hloom-opt %s -o %t && hloom-opt %s -p split | diff %t -

// No argument carries hloom.cotangent.
func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = stablehlo.tanh %x : tensor<8xf32>
  return %0 : tensor<8xf32>
}
