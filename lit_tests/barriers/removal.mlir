// Where a barrier is left out because another one, or a collective, serves.
// RUN: hloom-opt %s -p barriers -o %t && filecheck %s < %t
// Twice is once.
// RUN: hloom-opt %t -p barriers | diff %t -

module attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
sdy.mesh @mesh = <["x"=4]>

// The exit of one kernel and the entry of the next, which reads its result: one barrier.
// CHECK-LABEL: func.func public @adjacent(
func.func public @adjacent(%arg_x: tensor<16xf32>) -> tensor<16xf32> {
  // CHECK: %[[T1:.*]] = stablehlo.composite "hloom.token"
  // CHECK-NEXT: %[[M1:.*]]:2 = sdy.manual_computation(%{{.*}}, %[[T1]])
  // CHECK-SAME: (%[[X1:.*]]: tensor<4xf32>, %[[T2:.*]]: tensor<ui32>)
  %0 = sdy.manual_computation(%arg_x)
      in_shardings=[<@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}]>]
      manual_axes={"x"} (%x: tensor<4xf32>) {
    // CHECK-NEXT: %[[B1:.*]]:2 = stablehlo.composite "hloom.barrier" %[[T2]], %[[X1]] {
    // CHECK-SAME: kind = "entry"{{.*}}site = "entry of @k1 in @
    // CHECK-NEXT: %[[K1:.*]] = stablehlo.custom_call @k1(%[[B1]]#1)
    %1 = stablehlo.custom_call @k1(%x) {hloom.collective = "entry exit=after"}
        : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[B2:.*]]:2 = stablehlo.composite "hloom.barrier" %[[B1]]#0, %[[K1]],
    // CHECK-SAME: %[[B1]]#1 {
    // CHECK-SAME: kind = "exit+entry"{{.*}}site = "exit of @k1 and entry of @k2 in @
    // CHECK-NEXT: %[[K2:.*]] = stablehlo.custom_call @k2(%[[B2]]#1)
    %r = stablehlo.custom_call @k2(%1) {hloom.collective = "entry exit=after"}
        : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[B3:.*]]:2 = stablehlo.composite "hloom.barrier" %[[B2]]#0, %[[K2]],
    // CHECK-SAME: %[[B2]]#1 {
    // CHECK-SAME: kind = "exit"{{.*}}site = "exit of @k2 in @
    // CHECK-NEXT: sdy.return %[[B3]]#1, %[[B3]]#0
    sdy.return %r : tensor<4xf32>
  } : (tensor<16xf32>) -> tensor<16xf32>
  // CHECK: return %[[M1]]#0
  return %0 : tensor<16xf32>
}

// The operand of the second kernel is there before the first one is left, and something reads what the
// first one gives in between. The barrier is put before that reader; the operand passes it for
// the second kernel alone.
// CHECK-LABEL: func.func public @adjacent_other_operand(
func.func public @adjacent_other_operand(%arg_x: tensor<16xf32>, %arg_y: tensor<16xf32>) -> tensor<16xf32> {
  // CHECK: %[[T1:.*]] = stablehlo.composite "hloom.token"
  // CHECK-NEXT: %[[M1:.*]]:2 = sdy.manual_computation(%{{.*}}, %{{.*}}, %[[T1]])
  // CHECK-SAME: (%[[X1:.*]]: tensor<4xf32>, %[[X2:.*]]: tensor<4xf32>, %[[T2:.*]]: tensor<ui32>)
  %0 = sdy.manual_computation(%arg_x, %arg_y)
      in_shardings=[<@mesh, [{"x"}]>, <@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}]>]
      manual_axes={"x"} (%x: tensor<4xf32>, %y: tensor<4xf32>) {
    // CHECK-NEXT: %[[I1:.*]] = stablehlo.composite "hloom.add_dependency" %[[T2]], %[[X1]]
    // CHECK-NEXT: %[[K1:.*]] = stablehlo.custom_call @k1(%[[I1]])
    %1 = stablehlo.custom_call @k1(%x) {hloom.collective = "exit=after"}
        : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[B1:.*]]:3 = stablehlo.composite "hloom.barrier" %[[T2]], %[[X2]], %[[K1]],
    // CHECK-SAME: %[[I1]] {
    // CHECK-SAME: kind = "exit+entry"{{.*}}site = "exit of @k1 and entry of @k2 in @
    // CHECK-NEXT: %[[S1:.*]] = stablehlo.sine %[[B1]]#2
    %2 = stablehlo.sine %1 : tensor<4xf32>
    // CHECK-NEXT: %[[K2:.*]] = stablehlo.custom_call @k2(%[[B1]]#1)
    %3 = stablehlo.custom_call @k2(%y) {hloom.collective = "entry"}
        : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[A1:.*]] = stablehlo.composite "hloom.after_all" %[[B1]]#0, %[[K2]]
    // CHECK-NEXT: %[[S2:.*]] = stablehlo.add %[[S1]], %[[K2]]
    %r = stablehlo.add %2, %3 : tensor<4xf32>
    // CHECK-NEXT: sdy.return %[[S2]], %[[A1]]
    sdy.return %r : tensor<4xf32>
  } : (tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
  // CHECK: return %[[M1]]#0
  return %0 : tensor<16xf32>
}

// An exit that may wait is served by the entry of a later kernel, which keeps the operand until then.
// CHECK-LABEL: func.func public @deferred_exit(
func.func public @deferred_exit(%arg_x: tensor<16xf32>) -> tensor<16xf32> {
  // CHECK: %[[T1:.*]] = stablehlo.composite "hloom.token"
  // CHECK-NEXT: %[[M1:.*]]:2 = sdy.manual_computation(%{{.*}}, %[[T1]])
  // CHECK-SAME: (%[[X1:.*]]: tensor<4xf32>, %[[T2:.*]]: tensor<ui32>)
  %0 = sdy.manual_computation(%arg_x)
      in_shardings=[<@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}]>]
      manual_axes={"x"} (%x: tensor<4xf32>) {
    // CHECK-NEXT: %[[I1:.*]] = stablehlo.composite "hloom.add_dependency" %[[T2]], %[[X1]]
    // CHECK-NEXT: %[[K1:.*]] = stablehlo.custom_call @k1(%[[I1]])
    %1 = stablehlo.custom_call @k1(%x) {hloom.collective = "exit=module"}
        : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[A1:.*]] = stablehlo.composite "hloom.after_all" %[[T2]], %[[K1]]
    // CHECK-NEXT: %[[S1:.*]] = stablehlo.sine %[[K1]]
    %2 = stablehlo.sine %1 : tensor<4xf32>
    // CHECK-NEXT: %[[B1:.*]]:2 = stablehlo.composite "hloom.barrier" %[[A1]], %[[S1]], %[[I1]] {
    // CHECK-SAME: kind = "exit+entry"{{.*}}site = "entry of @k2 and end after @k1 in @
    // CHECK-NEXT: %[[K2:.*]] = stablehlo.custom_call @k2(%[[B1]]#1)
    %r = stablehlo.custom_call @k2(%2) {hloom.collective = "entry"}
        : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[A2:.*]] = stablehlo.composite "hloom.after_all" %[[B1]]#0, %[[K2]]
    // CHECK-NEXT: sdy.return %[[K2]], %[[A2]]
    sdy.return %r : tensor<4xf32>
  } : (tensor<16xf32>) -> tensor<16xf32>
  // CHECK: return %[[M1]]#0
  return %0 : tensor<16xf32>
}

// And several by one barrier at the end.
// CHECK-LABEL: func.func public @one_at_the_end(
func.func public @one_at_the_end(%arg_x: tensor<16xf32>) -> tensor<16xf32> {
  // CHECK: %[[T1:.*]] = stablehlo.composite "hloom.token"
  // CHECK-NEXT: %[[M1:.*]]:2 = sdy.manual_computation(%{{.*}}, %[[T1]])
  // CHECK-SAME: (%[[X1:.*]]: tensor<4xf32>, %[[T2:.*]]: tensor<ui32>)
  %0 = sdy.manual_computation(%arg_x)
      in_shardings=[<@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}]>]
      manual_axes={"x"} (%x: tensor<4xf32>) {
    // CHECK-NEXT: %[[I1:.*]] = stablehlo.composite "hloom.add_dependency" %[[T2]], %[[X1]]
    // CHECK-NEXT: %[[K1:.*]] = stablehlo.custom_call @k1(%[[I1]])
    %1 = stablehlo.custom_call @k1(%x) {hloom.collective = "exit=module"}
        : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[A1:.*]] = stablehlo.composite "hloom.after_all" %[[T2]], %[[K1]]
    // CHECK-NEXT: %[[S1:.*]] = stablehlo.sine %[[K1]]
    %2 = stablehlo.sine %1 : tensor<4xf32>
    // CHECK-NEXT: %[[I2:.*]] = stablehlo.composite "hloom.add_dependency" %[[A1]], %[[S1]]
    // CHECK-NEXT: %[[K2:.*]] = stablehlo.custom_call @k2(%[[I2]])
    %r = stablehlo.custom_call @k2(%2) {hloom.collective = "exit=module"}
        : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[A2:.*]] = stablehlo.composite "hloom.after_all" %[[A1]], %[[K2]]
    // CHECK-NEXT: %[[B1:.*]]:2 = stablehlo.composite "hloom.barrier" %[[A2]], %[[K2]], %[[I1]],
    // CHECK-SAME: %[[I2]] {
    // CHECK-SAME: kind = "module"{{.*}}site = "end after @k1 and end after @k2 in @
    // CHECK-NEXT: sdy.return %[[B1]]#1, %[[B1]]#0
    sdy.return %r : tensor<4xf32>
  } : (tensor<16xf32>) -> tensor<16xf32>
  // CHECK: return %[[M1]]#0
  return %0 : tensor<16xf32>
}

// A barrier of more partitions serves fewer as well.
// CHECK-LABEL: func.func public @larger_group(
func.func public @larger_group(%arg_x: tensor<16xf32>) -> tensor<16xf32> {
  // CHECK: %[[T1:.*]] = stablehlo.composite "hloom.token"
  // CHECK-NEXT: %[[M1:.*]]:2 = sdy.manual_computation(%{{.*}}, %[[T1]])
  // CHECK-SAME: (%[[X1:.*]]: tensor<4xf32>, %[[T2:.*]]: tensor<ui32>)
  %0 = sdy.manual_computation(%arg_x)
      in_shardings=[<@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}]>]
      manual_axes={"x"} (%x: tensor<4xf32>) {
    // CHECK-NEXT: %[[I1:.*]] = stablehlo.composite "hloom.add_dependency" %[[T2]], %[[X1]]
    // CHECK-NEXT: %[[K1:.*]] = stablehlo.custom_call @k1(%[[I1]])
    %1 = stablehlo.custom_call @k1(%x) {hloom.collective = "exit=module groups=[[0,1]]"}
        : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[A1:.*]] = stablehlo.composite "hloom.after_all" %[[T2]], %[[K1]]
    // CHECK-NEXT: %[[S1:.*]] = stablehlo.sine %[[K1]]
    %2 = stablehlo.sine %1 : tensor<4xf32>
    // CHECK-NEXT: %[[B1:.*]]:2 = stablehlo.composite "hloom.barrier" %[[A1]], %[[S1]], %[[I1]] {
    // CHECK-SAME: kind = "exit+entry"{{.*}}replica_groups = dense<{{\[\[}}0, 1, 2], [3, -1, -1]]>
    // CHECK-SAME: site = "entry of @k2 and end after @k1 in @
    // CHECK-NEXT: %[[K2:.*]] = stablehlo.custom_call @k2(%[[B1]]#1)
    %r = stablehlo.custom_call @k2(%2) {hloom.collective = "entry groups=[[0,1,2]]"}
        : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[A2:.*]] = stablehlo.composite "hloom.after_all" %[[B1]]#0, %[[K2]]
    // CHECK-NEXT: sdy.return %[[K2]], %[[A2]]
    sdy.return %r : tensor<4xf32>
  } : (tensor<16xf32>) -> tensor<16xf32>
  // CHECK: return %[[M1]]#0
  return %0 : tensor<16xf32>
}

// Behind an all-reduce everybody has left the kernel. A hold keeps the operand until then.
// CHECK-LABEL: func.func public @exit_at_an_all_reduce(
func.func public @exit_at_an_all_reduce(%arg_x: tensor<16xf32>) -> tensor<16xf32> {
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
        replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids}> ({
    // CHECK: %[[A2:.*]] = stablehlo.composite "hloom.after_all" %[[A1]], %[[C1]]
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %sum = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %sum : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[B1:.*]] = stablehlo.composite "hloom.barrier" %[[A2]], %[[I1]] {
    // CHECK-SAME: kind = "pin"{{.*}}replica_groups = dense<{{\[\[}}0], [1], [2], [3]]>
    // CHECK-SAME: site = "pin for end after @k in @
    // CHECK-NEXT: sdy.return %[[C1]], %[[B1]]
    sdy.return %r : tensor<4xf32>
  } : (tensor<16xf32>) -> tensor<16xf32>
  // CHECK: return %[[M1]]#0
  return %0 : tensor<16xf32>
}

// Also where the results are to be read only then.
// CHECK-LABEL: func.func public @exit_at_an_all_gather(
func.func public @exit_at_an_all_gather(%arg_x: tensor<16xf32>, %arg_y: tensor<16xf32>) -> tensor<16xf32> {
  // CHECK: %[[T1:.*]] = stablehlo.composite "hloom.token"
  // CHECK-NEXT: %[[M1:.*]]:2 = sdy.manual_computation(%{{.*}}, %{{.*}}, %[[T1]])
  // CHECK-SAME: (%[[X1:.*]]: tensor<4xf32>, %[[X2:.*]]: tensor<4xf32>, %[[T2:.*]]: tensor<ui32>)
  %0 = sdy.manual_computation(%arg_x, %arg_y)
      in_shardings=[<@mesh, [{"x"}]>, <@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}]>]
      manual_axes={"x"} (%x: tensor<4xf32>, %y: tensor<4xf32>) {
    // CHECK-NEXT: %[[I1:.*]] = stablehlo.composite "hloom.add_dependency" %[[T2]], %[[X1]]
    // CHECK-NEXT: %[[K1:.*]] = stablehlo.custom_call @k(%[[I1]])
    %1 = stablehlo.custom_call @k(%x) {hloom.collective = "exit=after"}
        : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[A1:.*]] = stablehlo.composite "hloom.after_all" %[[T2]], %[[K1]]
    // CHECK-NEXT: %[[I2:.*]] = stablehlo.composite "hloom.add_dependency" %[[A1]], %[[X2]]
    // CHECK-NEXT: %[[C1:.*]] = "stablehlo.all_gather"(%[[I2]])
    %2 = "stablehlo.all_gather"(%y) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids}> : (tensor<4xf32>) -> tensor<16xf32>
    // CHECK-NEXT: %[[A2:.*]] = stablehlo.composite "hloom.after_all" %[[A1]], %[[C1]]
    // CHECK-NEXT: %[[B1:.*]]:2 = stablehlo.composite "hloom.barrier" %[[A2]], %[[K1]], %[[I1]] {
    // CHECK-SAME: kind = "pin"{{.*}}replica_groups = dense<{{\[\[}}0], [1], [2], [3]]>
    // CHECK-SAME: site = "pin for exit of @k in @
    // CHECK-NEXT: %[[S1:.*]] = stablehlo.sine %[[B1]]#1
    %r = stablehlo.sine %1 : tensor<4xf32>
    // CHECK-NEXT: sdy.return %[[S1]], %[[B1]]#0
    sdy.return %r : tensor<4xf32>
  } : (tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
  // CHECK: return %[[M1]]#0
  return %0 : tensor<16xf32>
}

// More partitions are all right.
// CHECK-LABEL: func.func public @exit_at_an_all_to_all(
func.func public @exit_at_an_all_to_all(%arg_x: tensor<16xf32>) -> tensor<16xf32> {
  // CHECK: %[[T1:.*]] = stablehlo.composite "hloom.token"
  // CHECK-NEXT: %[[M1:.*]]:2 = sdy.manual_computation(%{{.*}}, %[[T1]])
  // CHECK-SAME: (%[[X1:.*]]: tensor<4xf32>, %[[T2:.*]]: tensor<ui32>)
  %0 = sdy.manual_computation(%arg_x)
      in_shardings=[<@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}]>]
      manual_axes={"x"} (%x: tensor<4xf32>) {
    // CHECK-NEXT: %[[I1:.*]] = stablehlo.composite "hloom.add_dependency" %[[T2]], %[[X1]]
    // CHECK-NEXT: %[[K1:.*]] = stablehlo.custom_call @k(%[[I1]])
    %1 = stablehlo.custom_call @k(%x) {hloom.collective = "exit=module groups=[[0,1],[2,3]]"}
        : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[A1:.*]] = stablehlo.composite "hloom.after_all" %[[T2]], %[[K1]]
    // CHECK-NEXT: %[[I2:.*]] = stablehlo.composite "hloom.add_dependency" %[[A1]], %[[K1]]
    // CHECK-NEXT: %[[C1:.*]] = "stablehlo.all_to_all"(%[[I2]])
    %r = "stablehlo.all_to_all"(%1) <{
        channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
        concat_dimension = 0 : i64, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, split_count = 4 : i64, split_dimension = 0 : i64}>
        : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[A2:.*]] = stablehlo.composite "hloom.after_all" %[[A1]], %[[C1]]
    // CHECK-NEXT: %[[B1:.*]] = stablehlo.composite "hloom.barrier" %[[A2]], %[[I1]] {
    // CHECK-SAME: kind = "pin"{{.*}}replica_groups = dense<{{\[\[}}0], [1], [2], [3]]>
    // CHECK-SAME: site = "pin for end after @k in @
    // CHECK-NEXT: sdy.return %[[C1]], %[[B1]]
    sdy.return %r : tensor<4xf32>
  } : (tensor<16xf32>) -> tensor<16xf32>
  // CHECK: return %[[M1]]#0
  return %0 : tensor<16xf32>
}

// 
// CHECK-LABEL: func.func public @exit_at_a_reduce_scatter(
func.func public @exit_at_a_reduce_scatter(%arg_x: tensor<16xf32>) -> tensor<16xf32> {
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
    // CHECK-NEXT: %[[C1:.*]] = "stablehlo.reduce_scatter"(%[[I2]])
    %2 = "stablehlo.reduce_scatter"(%1) <{
        channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
        replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, scatter_dimension = 0 : i64, use_global_device_ids}> ({
    // CHECK: %[[A2:.*]] = stablehlo.composite "hloom.after_all" %[[A1]], %[[C1]]
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %sum = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %sum : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<1xf32>
    // CHECK-NEXT: %[[B1:.*]] = stablehlo.composite "hloom.barrier" %[[A2]], %[[I1]] {
    // CHECK-SAME: kind = "pin"{{.*}}replica_groups = dense<{{\[\[}}0], [1], [2], [3]]>
    // CHECK-SAME: site = "pin for end after @k in @
    // CHECK-NEXT: %[[S1:.*]] = stablehlo.broadcast_in_dim %[[C1]]
    %r = stablehlo.broadcast_in_dim %2, dims = [0] : (tensor<1xf32>) -> tensor<4xf32>
    // CHECK-NEXT: sdy.return %[[S1]], %[[B1]]
    sdy.return %r : tensor<4xf32>
  } : (tensor<16xf32>) -> tensor<16xf32>
  // CHECK: return %[[M1]]#0
  return %0 : tensor<16xf32>
}

// Behind an all-reduce that everybody enters with the operand in its buffer, peers may read it. Holds
// put it there before and order the kernel behind it; the collective waits for the first hold.
// CHECK-LABEL: func.func public @entry_at_an_all_reduce(
func.func public @entry_at_an_all_reduce(%arg_x: tensor<16xf32>, %arg_y: tensor<16xf32>) -> tensor<16xf32> {
  // CHECK: %[[T1:.*]] = stablehlo.composite "hloom.token"
  // CHECK-NEXT: %[[M1:.*]]:2 = sdy.manual_computation(%{{.*}}, %{{.*}}, %[[T1]])
  // CHECK-SAME: (%[[X1:.*]]: tensor<4xf32>, %[[X2:.*]]: tensor<4xf32>, %[[T2:.*]]: tensor<ui32>)
  %0 = sdy.manual_computation(%arg_x, %arg_y)
      in_shardings=[<@mesh, [{"x"}]>, <@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}]>]
      manual_axes={"x"} (%x: tensor<4xf32>, %y: tensor<4xf32>) {
    // CHECK-NEXT: %[[S1:.*]] = stablehlo.sine %[[X1]]
    %1 = stablehlo.sine %x : tensor<4xf32>
    // CHECK-NEXT: %[[B1:.*]]:2 = stablehlo.composite "hloom.barrier" %[[T2]], %[[S1]] {
    // CHECK-SAME: kind = "pin"{{.*}}replica_groups = dense<{{\[\[}}0], [1], [2], [3]]>
    // CHECK-SAME: site = "pin for entry of @k in @
    // CHECK-NEXT: %[[I1:.*]] = stablehlo.composite "hloom.add_dependency" %[[B1]]#0, %[[X2]]
    // CHECK-NEXT: %[[C1:.*]] = "stablehlo.all_reduce"(%[[I1]])
    %2 = "stablehlo.all_reduce"(%y) <{
        channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
        replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids}> ({
    // CHECK: %[[A1:.*]] = stablehlo.composite "hloom.after_all" %[[B1]]#0, %[[C1]]
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %sum = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %sum : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[B2:.*]]:2 = stablehlo.composite "hloom.barrier" %[[A1]], %[[B1]]#1 {
    // CHECK-SAME: kind = "pin"{{.*}}replica_groups = dense<{{\[\[}}0], [1], [2], [3]]>
    // CHECK-SAME: site = "pin for entry of @k in @
    // CHECK-NEXT: %[[K1:.*]] = stablehlo.custom_call @k(%[[B2]]#1)
    %3 = stablehlo.custom_call @k(%1) {hloom.collective = "entry"}
        : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[A2:.*]] = stablehlo.composite "hloom.after_all" %[[B2]]#0, %[[K1]]
    // CHECK-NEXT: %[[S2:.*]] = stablehlo.add %[[C1]], %[[K1]]
    %r = stablehlo.add %2, %3 : tensor<4xf32>
    // CHECK-NEXT: sdy.return %[[S2]], %[[A2]]
    sdy.return %r : tensor<4xf32>
  } : (tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
  // CHECK: return %[[M1]]#0
  return %0 : tensor<16xf32>
}

// Who has no peers needs no barrier.
// CHECK-LABEL: func.func public @alone(
func.func public @alone(%arg_x: tensor<16xf32>) -> tensor<16xf32> {
  // CHECK: %[[T1:.*]] = stablehlo.composite "hloom.token"
  // CHECK-NEXT: %[[M1:.*]]:2 = sdy.manual_computation(%{{.*}}, %[[T1]])
  // CHECK-SAME: (%[[X1:.*]]: tensor<4xf32>, %[[T2:.*]]: tensor<ui32>)
  %0 = sdy.manual_computation(%arg_x)
      in_shardings=[<@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}]>]
      manual_axes={"x"} (%x: tensor<4xf32>) {
    // CHECK-NEXT: %[[K1:.*]] = stablehlo.custom_call @k(%[[X1]])
    %1 = stablehlo.custom_call @k(%x)
        {hloom.collective = "entry exit=after groups=[[0],[1],[2],[3]]"}
        : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[B1:.*]]:2 = stablehlo.composite "hloom.barrier" %[[T2]], %[[K1]] {
    // CHECK-SAME: kind = "entry"{{.*}}site = "entry of @k2 in @
    // CHECK-NEXT: %[[K2:.*]] = stablehlo.custom_call @k2(%[[B1]]#1)
    %r = stablehlo.custom_call @k2(%1) {hloom.collective = "entry"}
        : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[A1:.*]] = stablehlo.composite "hloom.after_all" %[[B1]]#0, %[[K2]]
    // CHECK-NEXT: sdy.return %[[K2]], %[[A1]]
    sdy.return %r : tensor<4xf32>
  } : (tensor<16xf32>) -> tensor<16xf32>
  // CHECK: return %[[M1]]#0
  return %0 : tensor<16xf32>
}
}
