// What barriers does not change. Each function differs in one point from one that changes.
// RUN: hloom-opt %s --debug-info -o %t && hloom-opt %s -p barriers --debug-info | diff %t -
// RUN: hloom-opt %s -p barriers | filecheck %s

module attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
sdy.mesh @mesh = <["x"=4]>

// XLA keeps its own collectives in order.
// CHECK-LABEL: func.func public @collectives_alone(
func.func public @collectives_alone(%arg_x: tensor<16xf32>) -> tensor<16xf32> {
  %0 = sdy.manual_computation(%arg_x)
      in_shardings=[<@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}]>]
      manual_axes={"x"} (%x: tensor<4xf32>) {
    %1 = "stablehlo.all_reduce"(%x) <{
        channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
        replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %sum = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %sum : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    %r = "stablehlo.collective_permute"(%1) <{
        channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
        source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>}>
        : (tensor<4xf32>) -> tensor<4xf32>
    sdy.return %r : tensor<4xf32>
  } : (tensor<16xf32>) -> tensor<16xf32>
  // CHECK-NOT: hloom.token
  // CHECK: return
  return %0 : tensor<16xf32>
}

// Custom calls that say nothing access no peers.
// CHECK-LABEL: func.func public @other_custom_calls(
func.func public @other_custom_calls(%arg_x: tensor<16xf32>) -> tensor<16xf32> {
  %0 = sdy.manual_computation(%arg_x)
      in_shardings=[<@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}]>]
      manual_axes={"x"} (%x: tensor<4xf32>) {
    %r = stablehlo.custom_call @k(%x) {mhlo.frontend_attributes = {other = "entry"}}
        : (tensor<4xf32>) -> tensor<4xf32>
    sdy.return %r : tensor<4xf32>
  } : (tensor<16xf32>) -> tensor<16xf32>
  // CHECK-NOT: hloom.token
  // CHECK: return
  return %0 : tensor<16xf32>
}

// Nor do those whose groups are single partitions.
// CHECK-LABEL: func.func public @alone(
func.func public @alone(%arg_x: tensor<16xf32>) -> tensor<16xf32> {
  %0 = sdy.manual_computation(%arg_x)
      in_shardings=[<@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}]>]
      manual_axes={"x"} (%x: tensor<4xf32>) {
    %r = stablehlo.custom_call @k(%x) {hloom.collective = "entry exit=after groups=[[0],[1]]"}
        : (tensor<4xf32>) -> tensor<4xf32>
    sdy.return %r : tensor<4xf32>
  } : (tensor<16xf32>) -> tensor<16xf32>
  // CHECK-NOT: hloom.token
  // CHECK: return
  return %0 : tensor<16xf32>
}

// set_xla_metadata puts the attribute on everything in its scope: it counts on custom calls.
// CHECK-LABEL: func.func public @attribute_elsewhere(
func.func public @attribute_elsewhere(%arg_x: tensor<16xf32>) -> tensor<16xf32> {
  %0 = sdy.manual_computation(%arg_x)
      in_shardings=[<@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}]>]
      manual_axes={"x"} (%x: tensor<4xf32>) {
    %r = stablehlo.sine %x {mhlo.frontend_attributes = {hloom.collective = "entry"}} : tensor<4xf32>
    sdy.return %r : tensor<4xf32>
  } : (tensor<16xf32>) -> tensor<16xf32>
  // CHECK-NOT: hloom.token
  // CHECK: return
  return %0 : tensor<16xf32>
}
}
