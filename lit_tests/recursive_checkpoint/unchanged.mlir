// Loops that recursive-checkpoint leaves whole.
// RUN: hloom-opt %s -o %t && hloom-opt %s -p "recursive-checkpoint{min_trips=4 min_bytes=1}" | diff %t -

// No backward loop reads what it stacks.
func.func public @forward(%x: tensor<8xf32>) -> tensor<6x8xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %empty = stablehlo.constant dense<0.0> : tensor<6x8xf32>
  %0:3 = stablehlo.while(%i = %zero, %c = %x, %s = %empty)
      : tensor<i32>, tensor<8xf32>, tensor<6x8xf32>
  cond {
    %n = stablehlo.constant dense<6> : tensor<i32>
    %p = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %z = stablehlo.constant dense<0> : tensor<i32>
    %1 = stablehlo.tanh %c : tensor<8xf32>
    %2 = stablehlo.reshape %1 : (tensor<8xf32>) -> tensor<1x8xf32>
    %3 = stablehlo.dynamic_update_slice %s, %2, %i, %z
        : (tensor<6x8xf32>, tensor<1x8xf32>, tensor<i32>, tensor<i32>) -> tensor<6x8xf32>
    %4 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %4, %1, %3 : tensor<i32>, tensor<8xf32>, tensor<6x8xf32>
  }
  return %0#2 : tensor<6x8xf32>
}
