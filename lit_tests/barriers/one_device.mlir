// One device has no peers.
// RUN: hloom-opt %s -o %t && hloom-opt %s -p barriers | diff %t -
// RUN: hloom-opt %s -p barriers | filecheck %s

module attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  // CHECK-LABEL: func.func public @kernel(
  func.func public @kernel(%x: tensor<4xf32>) -> tensor<4xf32> {
    // CHECK-NEXT: %[[K:.*]] = stablehlo.custom_call @k(%arg0)
    %0 = stablehlo.custom_call @k(%x) {hloom.collective = "entry exit=after"}
        : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: return %[[K]]
    return %0 : tensor<4xf32>
  }
}
