// Programs that stages leaves as they are.
// RUN: hloom-opt %s -o %t && hloom-opt %s -p stages | diff %t -

// No argument carries hloom.parameter.
func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = stablehlo.tanh %x : tensor<8xf32>
  return %0 : tensor<8xf32>
}
