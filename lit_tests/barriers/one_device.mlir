// One device has no peers.
// RUN: hloom-opt %s > %t.before
// RUN: hloom-opt %s -p barriers > %t.after
// RUN: diff %t.before %t.after
// RUN: hloom-opt %s -p barriers | filecheck %s

module attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  // CHECK-LABEL: func.func public @kernel(
  // CHECK-NEXT:    %[[K:.*]] = stablehlo.custom_call @k(%arg0)
  // CHECK-NEXT:    return %[[K]]
  func.func public @kernel(%x: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.custom_call @k(%x) {hloom.collective = "entry exit=after"} : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
