// jax.lax.ragged_all_to_all becomes a mark.
// RUN: hloom-opt %s -p barriers -o %t && filecheck %s < %t
// Twice is once.
// RUN: hloom-opt %t -p barriers | diff %t -

module attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
sdy.mesh @mesh = <["x"=4]>

// It takes the token and gives it on.
// CHECK-LABEL: func.func public @alone(
func.func public @alone(%arg_x: tensor<32xf32>, %arg_i: tensor<16xi32>) -> tensor<32xf32> {
  // CHECK: %[[T1:.*]] = stablehlo.composite "hloom.token"
  // CHECK-NEXT: %[[M1:.*]]:2 = sdy.manual_computation(%{{.*}}, %{{.*}}, %[[T1]])
  // CHECK-SAME: (%[[X1:.*]]: tensor<8xf32>, %[[X2:.*]]: tensor<4xi32>, %[[T2:.*]]: tensor<ui32>)
  %0 = sdy.manual_computation(%arg_x, %arg_i)
      in_shardings=[<@mesh, [{"x"}]>, <@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}]>]
      manual_axes={"x"} (%x: tensor<8xf32>, %i: tensor<4xi32>) {
    %r = stablehlo.custom_call @ragged_all_to_all(%x, %x, %i, %i, %i, %i)
        {api_version = 4 : i32, backend_config = {channel_id = 1 : i64, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>}}
        : (tensor<8xf32>, tensor<8xf32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi32>) -> tensor<8xf32>
    // CHECK-NEXT: %[[G1:.*]]:2 = stablehlo.composite "hloom.ragged_all_to_all" %[[T2]], %[[X1]],
    // CHECK-SAME: %[[X1]], %[[X2]], %[[X2]], %[[X2]], %[[X2]] {
    // CHECK-SAME: site = "ragged all-to-all in @
    // CHECK-NEXT: sdy.return %[[G1]]#0, %[[G1]]#1
    sdy.return %r : tensor<8xf32>
  } : (tensor<32xf32>, tensor<16xi32>) -> tensor<32xf32>
  // CHECK: return %[[M1]]#0
  return %0 : tensor<32xf32>
}

// A place in a group is a rank: the groups stay as they are.
// CHECK-LABEL: func.func public @groups(
func.func public @groups(%arg_x: tensor<32xf32>, %arg_i: tensor<16xi32>) -> tensor<32xf32> {
  // CHECK: %[[T1:.*]] = stablehlo.composite "hloom.token"
  // CHECK-NEXT: %[[M1:.*]]:2 = sdy.manual_computation(%{{.*}}, %{{.*}}, %[[T1]])
  // CHECK-SAME: (%[[X1:.*]]: tensor<8xf32>, %[[X2:.*]]: tensor<4xi32>, %[[T2:.*]]: tensor<ui32>)
  %0 = sdy.manual_computation(%arg_x, %arg_i)
      in_shardings=[<@mesh, [{"x"}]>, <@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}]>]
      manual_axes={"x"} (%x: tensor<8xf32>, %i: tensor<4xi32>) {
    %r = stablehlo.custom_call @ragged_all_to_all(%x, %x, %i, %i, %i, %i)
        {api_version = 4 : i32, backend_config = {channel_id = 1 : i64, replica_groups = dense<[[2, 0], [3, 1]]> : tensor<2x2xi64>}}
        : (tensor<8xf32>, tensor<8xf32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi32>) -> tensor<8xf32>
    // CHECK-NEXT: %[[G1:.*]]:2 = stablehlo.composite "hloom.ragged_all_to_all" %[[T2]], %[[X1]],
    // CHECK-SAME: %[[X1]], %[[X2]], %[[X2]], %[[X2]], %[[X2]] {
    // CHECK-SAME: replica_groups = dense<{{\[\[}}2, 0], [3, 1]]>
    // CHECK-SAME: site = "ragged all-to-all in @
    // CHECK-NEXT: sdy.return %[[G1]]#0, %[[G1]]#1
    sdy.return %r : tensor<8xf32>
  } : (tensor<32xf32>, tensor<16xi32>) -> tensor<32xf32>
  // CHECK: return %[[M1]]#0
  return %0 : tensor<32xf32>
}

// Ordered with collectives and kernels. It serves no need: a device without data does not wait.
// CHECK-LABEL: func.func public @in_order(
func.func public @in_order(%arg_x: tensor<32xf32>, %arg_i: tensor<16xi32>) -> tensor<32xf32> {
  // CHECK: %[[T1:.*]] = stablehlo.composite "hloom.token"
  // CHECK-NEXT: %[[M1:.*]]:2 = sdy.manual_computation(%{{.*}}, %{{.*}}, %[[T1]])
  // CHECK-SAME: (%[[X1:.*]]: tensor<8xf32>, %[[X2:.*]]: tensor<4xi32>, %[[T2:.*]]: tensor<ui32>)
  %0 = sdy.manual_computation(%arg_x, %arg_i)
      in_shardings=[<@mesh, [{"x"}]>, <@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}]>]
      manual_axes={"x"} (%x: tensor<8xf32>, %i: tensor<4xi32>) {
    // CHECK-NEXT: %[[I1:.*]] = stablehlo.composite "hloom.add_dependency" %[[T2]], %[[X1]]
    // CHECK-NEXT: %[[C1:.*]] = "stablehlo.all_reduce"(%[[I1]])
    %s = "stablehlo.all_reduce"(%x) <{
        channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
        replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids}> ({
    // CHECK: %[[A1:.*]] = stablehlo.composite "hloom.after_all" %[[T2]], %[[C1]]
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %sum = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %sum : tensor<f32>
    }) : (tensor<8xf32>) -> tensor<8xf32>
    %1 = stablehlo.custom_call @ragged_all_to_all(%s, %x, %i, %i, %i, %i)
        {api_version = 4 : i32, backend_config = {channel_id = 1 : i64, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>}}
        : (tensor<8xf32>, tensor<8xf32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi32>) -> tensor<8xf32>
    // CHECK-NEXT: %[[G1:.*]]:2 = stablehlo.composite "hloom.ragged_all_to_all" %[[A1]], %[[C1]],
    // CHECK-SAME: %[[X1]], %[[X2]], %[[X2]], %[[X2]], %[[X2]] {
    // CHECK-SAME: site = "ragged all-to-all in @
    // CHECK-NEXT: %[[B1:.*]]:2 = stablehlo.composite "hloom.barrier" %[[G1]]#1, %[[G1]]#0 {
    // CHECK-SAME: kind = "entry"{{.*}}site = "entry of @k in @
    // CHECK-NEXT: %[[K1:.*]] = stablehlo.custom_call @k(%[[B1]]#1)
    %r = stablehlo.custom_call @k(%1) {hloom.collective = "entry"}
        : (tensor<8xf32>) -> tensor<8xf32>
    // CHECK-NEXT: %[[A2:.*]] = stablehlo.composite "hloom.after_all" %[[B1]]#0, %[[K1]]
    // CHECK-NEXT: sdy.return %[[K1]], %[[A2]]
    sdy.return %r : tensor<8xf32>
  } : (tensor<32xf32>, tensor<16xi32>) -> tensor<32xf32>
  // CHECK: return %[[M1]]#0
  return %0 : tensor<32xf32>
}
}
