// A loop that a callback keeps out of a graph is written out, where it is short.
// RUN: hloom-opt %s -p capture --target h100_sxm | filecheck %s
// Else its body has a region, each time round.
// RUN: hloom-opt %s -p "unroll{trips=1},capture{min_ops=3}" --target h100_sxm | \
// RUN:   filecheck %s --check-prefix=ROUND

// CHECK-LABEL: func.func public @main
// ROUND-LABEL: func.func public @main
func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  // ROUND: stablehlo.while
  %0:2 = stablehlo.while(%i = %zero, %c = %x) : tensor<i32>, tensor<8xf32>
  cond {
    %n = stablehlo.constant dense<2> : tensor<i32>
    %p = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
    // ROUND: } do {
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %1 = stablehlo.sine %c : tensor<8xf32>
    // CHECK-NOT: stablehlo.while
    // CHECK: %[[R:.*]]:3 = stablehlo.composite "hloom.capture_region"
    // CHECK-NEXT: stablehlo.custom_call @xla_ffi_python_gpu_callback(%[[R]]#
    // ROUND: %[[R:.*]]:3 = stablehlo.composite "hloom.capture_region"
    // ROUND-NEXT: stablehlo.custom_call @xla_ffi_python_gpu_callback(%[[R]]#2)
    stablehlo.custom_call @xla_ffi_python_gpu_callback(%1)
        {api_version = 4 : i32, backend_config = {index = 0 : ui64}, has_side_effect = true}
        : (tensor<8xf32>) -> ()
    %2 = stablehlo.cosine %1 : tensor<8xf32>
    %3 = stablehlo.add %i, %one : tensor<i32>
    // ROUND-NEXT: stablehlo.return
    stablehlo.return %3, %2 : tensor<i32>, tensor<8xf32>
  }
  // CHECK-NEXT: stablehlo.custom_call @xla_ffi_python_gpu_callback(%[[R]]#
  // CHECK-NEXT: return %[[R]]#0
  return %0#1 : tensor<8xf32>
}
