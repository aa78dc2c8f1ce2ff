// One step away from what removal.mlir leaves out: here the barrier has to stay.
// RUN: hloom-opt %s -p barriers -o %t && filecheck %s < %t
// Twice is once.
// RUN: hloom-opt %t -p barriers | diff %t -

module attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
sdy.mesh @mesh = <["x"=4]>

// The second kernel's operand is made of what the first one gives: all have to have left the first
// before it is made, and to have made it before the second.
// CHECK-LABEL: func.func public @work_between(
func.func public @work_between(%arg_x: tensor<16xf32>) -> tensor<16xf32> {
  // CHECK: %[[T1:.*]] = stablehlo.composite "hloom.token"
  // CHECK-NEXT: %[[M1:.*]]:2 = sdy.manual_computation(%{{.*}}, %[[T1]])
  // CHECK-SAME: (%[[X1:.*]]: tensor<4xf32>, %[[T2:.*]]: tensor<ui32>)
  %0 = sdy.manual_computation(%arg_x)
      in_shardings=[<@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}]>]
      manual_axes={"x"} (%x: tensor<4xf32>) {
    // CHECK-NEXT: %[[I1:.*]] = stablehlo.composite "hloom.add_dependency" %[[T2]], %[[X1]]
    // CHECK-NEXT: %[[K1:.*]] = stablehlo.custom_call @k1(%[[I1]])
    %1 = stablehlo.custom_call @k1(%x) {hloom.collective = "exit=after"}
        : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[B1:.*]]:2 = stablehlo.composite "hloom.barrier" %[[T2]], %[[K1]], %[[I1]] {
    // CHECK-SAME: kind = "exit"{{.*}}site = "exit of @k1 in @
    // CHECK-NEXT: %[[S1:.*]] = stablehlo.sine %[[B1]]#1
    %2 = stablehlo.sine %1 : tensor<4xf32>
    // CHECK-NEXT: %[[B2:.*]]:2 = stablehlo.composite "hloom.barrier" %[[B1]]#0, %[[S1]] {
    // CHECK-SAME: kind = "entry"{{.*}}site = "entry of @k2 in @
    // CHECK-NEXT: %[[K2:.*]] = stablehlo.custom_call @k2(%[[B2]]#1)
    %r = stablehlo.custom_call @k2(%2) {hloom.collective = "entry"}
        : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[A1:.*]] = stablehlo.composite "hloom.after_all" %[[B2]]#0, %[[K2]]
    // CHECK-NEXT: sdy.return %[[K2]], %[[A1]]
    sdy.return %r : tensor<4xf32>
  } : (tensor<16xf32>) -> tensor<16xf32>
  // CHECK: return %[[M1]]#0
  return %0 : tensor<16xf32>
}

// A barrier of others serves nothing.
// CHECK-LABEL: func.func public @smaller_group(
func.func public @smaller_group(%arg_x: tensor<16xf32>) -> tensor<16xf32> {
  // CHECK: %[[T1:.*]] = stablehlo.composite "hloom.token"
  // CHECK-NEXT: %[[M1:.*]]:2 = sdy.manual_computation(%{{.*}}, %[[T1]])
  // CHECK-SAME: (%[[X1:.*]]: tensor<4xf32>, %[[T2:.*]]: tensor<ui32>)
  %0 = sdy.manual_computation(%arg_x)
      in_shardings=[<@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}]>]
      manual_axes={"x"} (%x: tensor<4xf32>) {
    // CHECK-NEXT: %[[I1:.*]] = stablehlo.composite "hloom.add_dependency" %[[T2]], %[[X1]]
    // CHECK-NEXT: %[[K1:.*]] = stablehlo.custom_call @k1(%[[I1]])
    %1 = stablehlo.custom_call @k1(%x) {hloom.collective = "exit=module groups=[[0,1,2]]"}
        : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[A1:.*]] = stablehlo.composite "hloom.after_all" %[[T2]], %[[K1]]
    // CHECK-NEXT: %[[S1:.*]] = stablehlo.sine %[[K1]]
    %2 = stablehlo.sine %1 : tensor<4xf32>
    // CHECK-NEXT: %[[B1:.*]]:2 = stablehlo.composite "hloom.barrier" %[[A1]], %[[S1]] {
    // CHECK-SAME: kind = "entry"{{.*}}replica_groups = dense<{{\[\[}}0, 1], [2, 3]]>
    // CHECK-SAME: site = "entry of @k2 in @
    // CHECK-NEXT: %[[K2:.*]] = stablehlo.custom_call @k2(%[[B1]]#1)
    %r = stablehlo.custom_call @k2(%2) {hloom.collective = "entry groups=[[0,1],[2,3]]"}
        : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[A2:.*]] = stablehlo.composite "hloom.after_all" %[[B1]]#0, %[[K2]]
    // CHECK-NEXT: %[[B2:.*]]:2 = stablehlo.composite "hloom.barrier" %[[A2]], %[[K2]], %[[I1]] {
    // CHECK-SAME: kind = "module"{{.*}}replica_groups = dense<{{\[\[}}0, 1, 2], [3, -1, -1]]>
    // CHECK-SAME: site = "end after @k1 in @
    // CHECK-NEXT: sdy.return %[[B2]]#1, %[[B2]]#0
    sdy.return %r : tensor<4xf32>
  } : (tensor<16xf32>) -> tensor<16xf32>
  // CHECK: return %[[M1]]#0
  return %0 : tensor<16xf32>
}

// From a permutation a partition may leave before others have come.
// CHECK-LABEL: func.func public @permute(
func.func public @permute(%arg_x: tensor<16xf32>) -> tensor<16xf32> {
  // CHECK: %[[T1:.*]] = stablehlo.composite "hloom.token"
  // CHECK-NEXT: %[[M1:.*]]:2 = sdy.manual_computation(%{{.*}}, %[[T1]])
  // CHECK-SAME: (%[[X1:.*]]: tensor<4xf32>, %[[T2:.*]]: tensor<ui32>)
  %0 = sdy.manual_computation(%arg_x)
      in_shardings=[<@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}]>]
      manual_axes={"x"} (%x: tensor<4xf32>) {
    // CHECK-NEXT: %[[I1:.*]] = stablehlo.composite "hloom.add_dependency" %[[T2]], %[[X1]]
    // CHECK-NEXT: %[[K1:.*]] = stablehlo.custom_call @k(%[[I1]])
    %1 = stablehlo.custom_call @k(%x) {hloom.collective = "exit=module"}
        : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[A1:.*]] = stablehlo.composite "hloom.after_all" %[[T2]], %[[K1]]
    // CHECK-NEXT: %[[I2:.*]] = stablehlo.composite "hloom.add_dependency" %[[A1]], %[[K1]]
    // CHECK-NEXT: %[[C1:.*]] = "stablehlo.collective_permute"(%[[I2]])
    %r = "stablehlo.collective_permute"(%1) <{
        channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
        source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>}>
        : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[A2:.*]] = stablehlo.composite "hloom.after_all" %[[A1]], %[[C1]]
    // CHECK-NEXT: %[[B1:.*]]:2 = stablehlo.composite "hloom.barrier" %[[A2]], %[[C1]], %[[I1]] {
    // CHECK-SAME: kind = "module"{{.*}}site = "end after @k in @
    // CHECK-NEXT: sdy.return %[[B1]]#1, %[[B1]]#0
    sdy.return %r : tensor<4xf32>
  } : (tensor<16xf32>) -> tensor<16xf32>
  // CHECK: return %[[M1]]#0
  return %0 : tensor<16xf32>
}

// So it may from a broadcast.
// CHECK-LABEL: func.func public @broadcast(
func.func public @broadcast(%arg_x: tensor<16xf32>) -> tensor<16xf32> {
  // CHECK: %[[T1:.*]] = stablehlo.composite "hloom.token"
  // CHECK-NEXT: %[[M1:.*]]:2 = sdy.manual_computation(%{{.*}}, %[[T1]])
  // CHECK-SAME: (%[[X1:.*]]: tensor<4xf32>, %[[T2:.*]]: tensor<ui32>)
  %0 = sdy.manual_computation(%arg_x)
      in_shardings=[<@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}]>]
      manual_axes={"x"} (%x: tensor<4xf32>) {
    // CHECK-NEXT: %[[I1:.*]] = stablehlo.composite "hloom.add_dependency" %[[T2]], %[[X1]]
    // CHECK-NEXT: %[[K1:.*]] = stablehlo.custom_call @k(%[[I1]])
    %1 = stablehlo.custom_call @k(%x) {hloom.collective = "exit=module"}
        : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[A1:.*]] = stablehlo.composite "hloom.after_all" %[[T2]], %[[K1]]
    // CHECK-NEXT: %[[I2:.*]] = stablehlo.composite "hloom.add_dependency" %[[A1]], %[[K1]]
    // CHECK-NEXT: %[[C1:.*]] = "stablehlo.collective_broadcast"(%[[I2]])
    %r = "stablehlo.collective_broadcast"(%1) <{
        channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
        replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>}>
        : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[A2:.*]] = stablehlo.composite "hloom.after_all" %[[A1]], %[[C1]]
    // CHECK-NEXT: %[[B1:.*]]:2 = stablehlo.composite "hloom.barrier" %[[A2]], %[[C1]], %[[I1]] {
    // CHECK-SAME: kind = "module"{{.*}}site = "end after @k in @
    // CHECK-NEXT: sdy.return %[[B1]]#1, %[[B1]]#0
    sdy.return %r : tensor<4xf32>
  } : (tensor<16xf32>) -> tensor<16xf32>
  // CHECK: return %[[M1]]#0
  return %0 : tensor<16xf32>
}

// A collective of fewer serves nothing.
// CHECK-LABEL: func.func public @smaller_collective(
func.func public @smaller_collective(%arg_x: tensor<16xf32>) -> tensor<16xf32> {
  // CHECK: %[[T1:.*]] = stablehlo.composite "hloom.token"
  // CHECK-NEXT: %[[M1:.*]]:2 = sdy.manual_computation(%{{.*}}, %[[T1]])
  // CHECK-SAME: (%[[X1:.*]]: tensor<4xf32>, %[[T2:.*]]: tensor<ui32>)
  %0 = sdy.manual_computation(%arg_x)
      in_shardings=[<@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}]>]
      manual_axes={"x"} (%x: tensor<4xf32>) {
    // CHECK-NEXT: %[[I1:.*]] = stablehlo.composite "hloom.add_dependency" %[[T2]], %[[X1]]
    // CHECK-NEXT: %[[K1:.*]] = stablehlo.custom_call @k(%[[I1]])
    %1 = stablehlo.custom_call @k(%x) {hloom.collective = "exit=module"}
        : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[A1:.*]] = stablehlo.composite "hloom.after_all" %[[T2]], %[[K1]]
    // CHECK-NEXT: %[[I2:.*]] = stablehlo.composite "hloom.add_dependency" %[[A1]], %[[K1]]
    // CHECK-NEXT: %[[C1:.*]] = "stablehlo.all_reduce"(%[[I2]])
    %r = "stablehlo.all_reduce"(%1) <{
        channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
        replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>, use_global_device_ids}> ({
    // CHECK: %[[A2:.*]] = stablehlo.composite "hloom.after_all" %[[A1]], %[[C1]]
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %sum = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %sum : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[B1:.*]]:2 = stablehlo.composite "hloom.barrier" %[[A2]], %[[C1]], %[[I1]] {
    // CHECK-SAME: kind = "module"{{.*}}site = "end after @k in @
    // CHECK-NEXT: sdy.return %[[B1]]#1, %[[B1]]#0
    sdy.return %r : tensor<4xf32>
  } : (tensor<16xf32>) -> tensor<16xf32>
  // CHECK: return %[[M1]]#0
  return %0 : tensor<16xf32>
}

// A collective that reads results which are not final comes too late.
// CHECK-LABEL: func.func public @collective_reads_the_result(
func.func public @collective_reads_the_result(%arg_x: tensor<16xf32>) -> tensor<16xf32> {
  // CHECK: %[[T1:.*]] = stablehlo.composite "hloom.token"
  // CHECK-NEXT: %[[M1:.*]]:2 = sdy.manual_computation(%{{.*}}, %[[T1]])
  // CHECK-SAME: (%[[X1:.*]]: tensor<4xf32>, %[[T2:.*]]: tensor<ui32>)
  %0 = sdy.manual_computation(%arg_x)
      in_shardings=[<@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}]>]
      manual_axes={"x"} (%x: tensor<4xf32>) {
    // CHECK-NEXT: %[[I1:.*]] = stablehlo.composite "hloom.add_dependency" %[[T2]], %[[X1]]
    // CHECK-NEXT: %[[K1:.*]] = stablehlo.custom_call @k(%[[I1]])
    %1 = stablehlo.custom_call @k(%x) {hloom.collective = "exit=after"}
        : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[B1:.*]]:2 = stablehlo.composite "hloom.barrier" %[[T2]], %[[K1]], %[[I1]] {
    // CHECK-SAME: kind = "exit"{{.*}}site = "exit of @k in @
    // CHECK-NEXT: %[[I2:.*]] = stablehlo.composite "hloom.add_dependency" %[[B1]]#0, %[[B1]]#1
    // CHECK-NEXT: %[[C1:.*]] = "stablehlo.all_reduce"(%[[I2]])
    %r = "stablehlo.all_reduce"(%1) <{
        channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
        replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids}> ({
    // CHECK: %[[A1:.*]] = stablehlo.composite "hloom.after_all" %[[B1]]#0, %[[C1]]
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %sum = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %sum : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: sdy.return %[[C1]], %[[A1]]
    sdy.return %r : tensor<4xf32>
  } : (tensor<16xf32>) -> tensor<16xf32>
  // CHECK: return %[[M1]]#0
  return %0 : tensor<16xf32>
}

// That a partition has the result of a collective does not say that its peers have theirs.
// CHECK-LABEL: func.func public @collective_makes_the_operand(
func.func public @collective_makes_the_operand(%arg_x: tensor<16xf32>) -> tensor<16xf32> {
  // CHECK: %[[T1:.*]] = stablehlo.composite "hloom.token"
  // CHECK-NEXT: %[[M1:.*]]:2 = sdy.manual_computation(%{{.*}}, %[[T1]])
  // CHECK-SAME: (%[[X1:.*]]: tensor<4xf32>, %[[T2:.*]]: tensor<ui32>)
  %0 = sdy.manual_computation(%arg_x)
      in_shardings=[<@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}]>]
      manual_axes={"x"} (%x: tensor<4xf32>) {
    // CHECK-NEXT: %[[I1:.*]] = stablehlo.composite "hloom.add_dependency" %[[T2]], %[[X1]]
    // CHECK-NEXT: %[[C1:.*]] = "stablehlo.all_reduce"(%[[I1]])
    %1 = "stablehlo.all_reduce"(%x) <{
        channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
        replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids}> ({
    // CHECK: %[[A1:.*]] = stablehlo.composite "hloom.after_all" %[[T2]], %[[C1]]
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %sum = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %sum : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[B1:.*]]:2 = stablehlo.composite "hloom.barrier" %[[A1]], %[[C1]] {
    // CHECK-SAME: kind = "entry"{{.*}}site = "entry of @k in @
    // CHECK-NEXT: %[[K1:.*]] = stablehlo.custom_call @k(%[[B1]]#1)
    %r = stablehlo.custom_call @k(%1) {hloom.collective = "entry"}
        : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[A2:.*]] = stablehlo.composite "hloom.after_all" %[[B1]]#0, %[[K1]]
    // CHECK-NEXT: sdy.return %[[K1]], %[[A2]]
    sdy.return %r : tensor<4xf32>
  } : (tensor<16xf32>) -> tensor<16xf32>
  // CHECK: return %[[M1]]#0
  return %0 : tensor<16xf32>
}

// A collective before a kernel does not show that peers have left the kernel.
// CHECK-LABEL: func.func public @collective_before_the_kernel(
func.func public @collective_before_the_kernel(%arg_x: tensor<16xf32>, %arg_y: tensor<16xf32>) -> tensor<16xf32> {
  // CHECK: %[[T1:.*]] = stablehlo.composite "hloom.token"
  // CHECK-NEXT: %[[M1:.*]]:2 = sdy.manual_computation(%{{.*}}, %{{.*}}, %[[T1]])
  // CHECK-SAME: (%[[X1:.*]]: tensor<4xf32>, %[[X2:.*]]: tensor<4xf32>, %[[T2:.*]]: tensor<ui32>)
  %0 = sdy.manual_computation(%arg_x, %arg_y)
      in_shardings=[<@mesh, [{"x"}]>, <@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}]>]
      manual_axes={"x"} (%x: tensor<4xf32>, %y: tensor<4xf32>) {
    // CHECK-NEXT: %[[I1:.*]] = stablehlo.composite "hloom.add_dependency" %[[T2]], %[[X1]]
    // CHECK-NEXT: %[[C1:.*]] = "stablehlo.all_reduce"(%[[I1]])
    %1 = "stablehlo.all_reduce"(%x) <{
        channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
        replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids}> ({
    // CHECK: %[[A1:.*]] = stablehlo.composite "hloom.after_all" %[[T2]], %[[C1]]
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %sum = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %sum : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[I2:.*]] = stablehlo.composite "hloom.add_dependency" %[[A1]], %[[X2]]
    // CHECK-NEXT: %[[K1:.*]] = stablehlo.custom_call @k(%[[I2]])
    %2 = stablehlo.custom_call @k(%y) {hloom.collective = "exit=module"}
        : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[A2:.*]] = stablehlo.composite "hloom.after_all" %[[A1]], %[[K1]]
    // CHECK-NEXT: %[[S1:.*]] = stablehlo.add %[[C1]], %[[K1]]
    %r = stablehlo.add %1, %2 : tensor<4xf32>
    // CHECK-NEXT: %[[B1:.*]]:2 = stablehlo.composite "hloom.barrier" %[[A2]], %[[S1]], %[[I2]] {
    // CHECK-SAME: kind = "module"{{.*}}site = "end after @k in @
    // CHECK-NEXT: sdy.return %[[B1]]#1, %[[B1]]#0
    sdy.return %r : tensor<4xf32>
  } : (tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
  // CHECK: return %[[M1]]#0
  return %0 : tensor<16xf32>
}

// The second kernel writes to what others read: it gets a copy, and that is made of final results,
// before its own barrier.
// CHECK-LABEL: func.func public @in_place_behind_an_exit(
func.func public @in_place_behind_an_exit(%arg_x: tensor<16xf32>) -> tensor<16xf32> {
  // CHECK: %[[T1:.*]] = stablehlo.composite "hloom.token"
  // CHECK-NEXT: %[[M1:.*]]:2 = sdy.manual_computation(%{{.*}}, %[[T1]])
  // CHECK-SAME: (%[[X1:.*]]: tensor<4xf32>, %[[T2:.*]]: tensor<ui32>)
  %0 = sdy.manual_computation(%arg_x)
      in_shardings=[<@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}]>]
      manual_axes={"x"} (%x: tensor<4xf32>) {
    // CHECK-NEXT: %[[I1:.*]] = stablehlo.composite "hloom.add_dependency" %[[T2]], %[[X1]]
    // CHECK-NEXT: %[[K1:.*]] = stablehlo.custom_call @k1(%[[I1]])
    %1 = stablehlo.custom_call @k1(%x) {hloom.collective = "exit=after"}
        : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[B1:.*]]:2 = stablehlo.composite "hloom.barrier" %[[T2]], %[[K1]], %[[I1]] {
    // CHECK-SAME: kind = "exit"{{.*}}site = "exit of @k1 in @
    // CHECK-NEXT: %[[B2:.*]]:2 = stablehlo.composite "hloom.barrier" %[[B1]]#0, %[[B1]]#1 {
    // CHECK-SAME: kind = "entry"{{.*}}site = "entry of @k2 in @
    // CHECK-NEXT: %[[K2:.*]] = stablehlo.custom_call @k2(%[[B2]]#1)
    %2 = stablehlo.custom_call @k2(%1)
        {hloom.collective = "entry", output_operand_aliases = [#stablehlo.output_operand_alias<output_tuple_indices = [], operand_index = 0, operand_tuple_indices = []>]}
        : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[A1:.*]] = stablehlo.composite "hloom.after_all" %[[B2]]#0, %[[K2]]
    // CHECK-NEXT: %[[S1:.*]] = stablehlo.add %[[B1]]#1, %[[K2]]
    %r = stablehlo.add %1, %2 : tensor<4xf32>
    // CHECK-NEXT: sdy.return %[[S1]], %[[A1]]
    sdy.return %r : tensor<4xf32>
  } : (tensor<16xf32>) -> tensor<16xf32>
  // CHECK: return %[[M1]]#0
  return %0 : tensor<16xf32>
}

// A collective over nothing is none.
// CHECK-LABEL: func.func public @no_data(
func.func public @no_data(%arg_x: tensor<16xf32>, %arg_y: tensor<0xf32>) -> (tensor<16xf32>, tensor<0xf32>) {
  // CHECK: %[[T1:.*]] = stablehlo.composite "hloom.token"
  // CHECK-NEXT: %[[M1:.*]]:3 = sdy.manual_computation(%{{.*}}, %{{.*}}, %[[T1]])
  // CHECK-SAME: (%[[X1:.*]]: tensor<4xf32>, %[[X2:.*]]: tensor<0xf32>, %[[T2:.*]]: tensor<ui32>)
  %0:2 = sdy.manual_computation(%arg_x, %arg_y)
      in_shardings=[<@mesh, [{"x"}]>, <@mesh, [{}]>] out_shardings=[<@mesh, [{"x"}]>, <@mesh, [{}]>]
      manual_axes={"x"} (%x: tensor<4xf32>, %y: tensor<0xf32>) {
    // CHECK-NEXT: %[[I1:.*]] = stablehlo.composite "hloom.add_dependency" %[[T2]], %[[X1]]
    // CHECK-NEXT: %[[K1:.*]] = stablehlo.custom_call @k(%[[I1]])
    %1 = stablehlo.custom_call @k(%x) {hloom.collective = "exit=module"}
        : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[A1:.*]] = stablehlo.composite "hloom.after_all" %[[T2]], %[[K1]]
    // CHECK-NEXT: %[[C1:.*]] = "stablehlo.all_reduce"(%[[X2]])
    %2 = "stablehlo.all_reduce"(%y) <{
        channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
        replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %sum = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %sum : tensor<f32>
    }) : (tensor<0xf32>) -> tensor<0xf32>
    // CHECK: %[[B1:.*]]:2 = stablehlo.composite "hloom.barrier" %[[A1]], %[[K1]], %[[I1]] {
    // CHECK-SAME: kind = "module"{{.*}}site = "end after @k in @
    // CHECK-NEXT: sdy.return %[[B1]]#1, %[[C1]], %[[B1]]#0
    sdy.return %1, %2 : tensor<4xf32>, tensor<0xf32>
  } : (tensor<16xf32>, tensor<0xf32>) -> (tensor<16xf32>, tensor<0xf32>)
  // CHECK: return %[[M1]]#0, %[[M1]]#1
  return %0#0, %0#1 : tensor<16xf32>, tensor<0xf32>
}
}
