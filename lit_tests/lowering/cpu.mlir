// Marks become the kernels of the CPU.
// RUN: hloom-opt %s -p barriers --lower 2> %t.choices | filecheck %s
// RUN: filecheck %s --check-prefix=CHOICE < %t.choices
// Without a mark nothing changes, not even functions that nobody calls.
// RUN: hloom-opt %s -o %t.input && hloom-opt %s --lower | diff %t.input -

// CHOICE:      remark: lowering: 1 x hloom.token -> hloom.token.v1: a value that XLA cannot know
// CHOICE-NEXT: {{.*}}remark: lowering: 1 x hloom.barrier -> hloom.barrier.v1:
// CHOICE-SAME: a rendezvous of the devices of this process
// CHOICE-NEXT: {{.*}}remark: lowering: 2 x hloom.after_all -> hloom.after.v1:
// CHOICE-SAME: the token keeps its buffer
// CHOICE-NEXT: {{.*}}remark: lowering: 1 x hloom.add_dependency -> hloom.tie.v1:
// CHOICE-SAME: values keep their buffers
// CHOICE-NOT:  remark

module attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
sdy.mesh @mesh = <["x"=4]>

// CHECK-LABEL: func.func public @main(
func.func public @main(%y: tensor<16xf32>) -> (tensor<16xf32>, tensor<16xf32>) {
  // CHECK-NEXT: %[[T:.*]] = stablehlo.custom_call @hloom.token.v1() {api_version = 4
  // CHECK-NEXT: sdy.manual_computation(%{{.*}}, %[[T]])
  // CHECK-SAME: (%[[X:.*]]: tensor<4xf32>, %[[T0:.*]]: tensor<ui32>)
  %0:2 = sdy.manual_computation(%y)
      in_shardings=[<@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}]>, <@mesh, [{"x"}]>]
      manual_axes={"x"} (%x: tensor<4xf32>) {
    // CHECK-NEXT: %[[B:.*]]:2 = stablehlo.custom_call @hloom.barrier.v1(%[[T0]], %[[X]]) {
    // CHECK-SAME: devices = array<i64: 0, 1, 2, 3>
    // CHECK-SAME: has_side_effect = true{{.*}}output_tuple_indices = [1], operand_index = 1
    // CHECK-NEXT: %[[K:.*]] = stablehlo.custom_call @k(%[[B]]#1)
    %k = stablehlo.custom_call @k(%x) {hloom.collective = "entry"}
        : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[T1:.*]] = stablehlo.custom_call @hloom.after.v1(%[[B]]#0, %[[K]])
    // CHECK-NEXT: %[[P:.*]] = stablehlo.custom_call @hloom.tie.v1(%[[T1]], %[[B]]#1) {
    // CHECK-SAME: operand_index = 1
    // CHECK-NEXT: %[[C:.*]] = "stablehlo.collective_permute"(%[[P]])
    %p = "stablehlo.collective_permute"(%x) <{
        channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
        source_target_pairs = dense<[[0, 1], [1, 2], [2, 3], [3, 0]]> : tensor<4x2xi64>}>
        : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK: %{{.*}} = stablehlo.custom_call @hloom.after.v1(%[[T1]], %[[C]]) {
    // CHECK-SAME: operand_index = 0
    sdy.return %k, %p : tensor<4xf32>, tensor<4xf32>
  } : (tensor<16xf32>) -> (tensor<16xf32>, tensor<16xf32>)
  return %0#0, %0#1 : tensor<16xf32>, tensor<16xf32>
}

// CHECK-NOT: composite
// CHECK-NOT: func.func private
}
