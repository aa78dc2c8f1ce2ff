// Kernels in the bodies of loops, and collectives in their conditions.
// RUN: hloom-opt %s -p barriers -o %t && filecheck %s < %t
// Twice is once.
// RUN: hloom-opt %t -p barriers | diff %t -

module attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
sdy.mesh @mesh = <["x"=4]>

// The token is one more carry. What is behind the loop is in order with what is inside.
// CHECK-LABEL: func.func public @scan(
func.func public @scan(%arg_x: tensor<16xf32>, %arg_i: tensor<i32>) -> tensor<16xf32> {
  // CHECK: %[[T1:.*]] = stablehlo.composite "hloom.token"
  // CHECK-NEXT: %[[M1:.*]]:2 = sdy.manual_computation(%{{.*}}, %{{.*}}, %[[T1]])
  // CHECK-SAME: (%[[X1:.*]]: tensor<4xf32>, %[[X2:.*]]: tensor<i32>, %[[T2:.*]]: tensor<ui32>)
  %0 = sdy.manual_computation(%arg_x, %arg_i)
      in_shardings=[<@mesh, [{"x"}]>, <@mesh, []>] out_shardings=[<@mesh, [{"x"}]>]
      manual_axes={"x"} (%x: tensor<4xf32>, %i: tensor<i32>) {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    // CHECK: %[[W1:.*]]:3 = stablehlo.while(%[[L1:.*]] = %{{.*}}, %[[L2:.*]] = %[[X1]],
    // CHECK-SAME: %[[L3:.*]] = %[[T2]])
    %loop:2 = stablehlo.while(%k = %zero, %c = %x) : tensor<i32>, tensor<4xf32>
    // CHECK-NEXT: cond {
    cond {
      %n = stablehlo.constant dense<3> : tensor<i32>
      %go = stablehlo.compare LT, %k, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      // CHECK: stablehlo.return %{{.*}}
      stablehlo.return %go : tensor<i1>
      // CHECK-NEXT: do {
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %next = stablehlo.add %k, %one : tensor<i32>
      // CHECK: %[[B1:.*]]:2 = stablehlo.composite "hloom.barrier" %[[L3]], %[[L2]] {
      // CHECK-SAME: kind = "entry"{{.*}}site = "entry of @k in @
      // CHECK-NEXT: %[[K1:.*]] = stablehlo.custom_call @k(%[[B1]]#1)
      %w = stablehlo.custom_call @k(%c) {hloom.collective = "entry exit=after"}
          : (tensor<4xf32>) -> tensor<4xf32>
      // CHECK-NEXT: %[[B2:.*]]:2 = stablehlo.composite "hloom.barrier" %[[B1]]#0, %[[K1]],
      // CHECK-SAME: %[[B1]]#1 {
      // CHECK-SAME: kind = "exit"{{.*}}site = "exit of @k in @
      // CHECK-NEXT: stablehlo.return %{{.*}}, %[[B2]]#1, %[[B2]]#0
      stablehlo.return %next, %w : tensor<i32>, tensor<4xf32>
    }
    // CHECK: %[[B3:.*]]:2 = stablehlo.composite "hloom.barrier" %[[W1]]#2, %[[W1]]#1 {
    // CHECK-SAME: kind = "entry"{{.*}}site = "entry of @k in @
    // CHECK-NEXT: %[[K2:.*]] = stablehlo.custom_call @k(%[[B3]]#1)
    %r = stablehlo.custom_call @k(%loop#1) {hloom.collective = "entry"}
        : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[A1:.*]] = stablehlo.composite "hloom.after_all" %[[B3]]#0, %[[K2]]
    // CHECK-NEXT: sdy.return %[[K2]], %[[A1]]
    sdy.return %r : tensor<4xf32>
  } : (tensor<16xf32>, tensor<i32>) -> tensor<16xf32>
  // CHECK: return %[[M1]]#0
  return %0 : tensor<16xf32>
}

// An exit waits for the end of an iteration, not of the program: the next one may write to the
// operand. The entry of the next iteration comes too late for that, as does that behind the loop.
// CHECK-LABEL: func.func public @end_of_an_iteration(
func.func public @end_of_an_iteration(%arg_x: tensor<16xf32>, %arg_i: tensor<i32>) -> tensor<16xf32> {
  // CHECK: %[[T1:.*]] = stablehlo.composite "hloom.token"
  // CHECK-NEXT: %[[M1:.*]]:2 = sdy.manual_computation(%{{.*}}, %{{.*}}, %[[T1]])
  // CHECK-SAME: (%[[X1:.*]]: tensor<4xf32>, %[[X2:.*]]: tensor<i32>, %[[T2:.*]]: tensor<ui32>)
  %0 = sdy.manual_computation(%arg_x, %arg_i)
      in_shardings=[<@mesh, [{"x"}]>, <@mesh, []>] out_shardings=[<@mesh, [{"x"}]>]
      manual_axes={"x"} (%x: tensor<4xf32>, %i: tensor<i32>) {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    // CHECK: %[[W1:.*]]:3 = stablehlo.while(%[[L1:.*]] = %{{.*}}, %[[L2:.*]] = %[[X1]],
    // CHECK-SAME: %[[L3:.*]] = %[[T2]])
    %loop:2 = stablehlo.while(%k = %zero, %c = %x) : tensor<i32>, tensor<4xf32>
    // CHECK-NEXT: cond {
    cond {
      %n = stablehlo.constant dense<3> : tensor<i32>
      %go = stablehlo.compare LT, %k, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      // CHECK: stablehlo.return %{{.*}}
      stablehlo.return %go : tensor<i1>
      // CHECK-NEXT: do {
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %next = stablehlo.add %k, %one : tensor<i32>
      // CHECK: %[[B1:.*]]:2 = stablehlo.composite "hloom.barrier" %[[L3]], %[[L2]] {
      // CHECK-SAME: kind = "entry"{{.*}}site = "entry of @k in @
      // CHECK-NEXT: %[[K1:.*]] = stablehlo.custom_call @k(%[[B1]]#1)
      %w = stablehlo.custom_call @k(%c) {hloom.collective = "entry exit=module"}
          : (tensor<4xf32>) -> tensor<4xf32>
      // CHECK-NEXT: %[[A1:.*]] = stablehlo.composite "hloom.after_all" %[[B1]]#0, %[[K1]]
      // CHECK-NEXT: %[[B2:.*]] = stablehlo.composite "hloom.barrier" %[[A1]], %[[B1]]#1 {
      // CHECK-SAME: kind = "module"{{.*}}site = "end after @k in @
      // CHECK-NEXT: stablehlo.return %{{.*}}, %[[K1]], %[[B2]]
      stablehlo.return %next, %w : tensor<i32>, tensor<4xf32>
    }
    // CHECK: %[[B3:.*]]:2 = stablehlo.composite "hloom.barrier" %[[W1]]#2, %[[W1]]#1 {
    // CHECK-SAME: kind = "entry"{{.*}}site = "entry of @k in @
    // CHECK-NEXT: %[[K2:.*]] = stablehlo.custom_call @k(%[[B3]]#1)
    %r = stablehlo.custom_call @k(%loop#1) {hloom.collective = "entry"}
        : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[A2:.*]] = stablehlo.composite "hloom.after_all" %[[B3]]#0, %[[K2]]
    // CHECK-NEXT: sdy.return %[[K2]], %[[A2]]
    sdy.return %r : tensor<4xf32>
  } : (tensor<16xf32>, tensor<i32>) -> tensor<16xf32>
  // CHECK: return %[[M1]]#0
  return %0 : tensor<16xf32>
}

// A condition gives no token. So it decides only once its collectives are through, and what is behind
// the loop waits for what the loop gives.
// CHECK-LABEL: func.func public @condition_of_a_loop(
func.func public @condition_of_a_loop(%arg_x: tensor<16xf32>, %arg_i: tensor<i32>) -> tensor<16xf32> {
  // CHECK: %[[T1:.*]] = stablehlo.composite "hloom.token"
  // CHECK-NEXT: %[[M1:.*]]:2 = sdy.manual_computation(%{{.*}}, %{{.*}}, %[[T1]])
  // CHECK-SAME: (%[[X1:.*]]: tensor<4xf32>, %[[X2:.*]]: tensor<i32>, %[[T2:.*]]: tensor<ui32>)
  %0 = sdy.manual_computation(%arg_x, %arg_i)
      in_shardings=[<@mesh, [{"x"}]>, <@mesh, []>] out_shardings=[<@mesh, [{"x"}]>]
      manual_axes={"x"} (%x: tensor<4xf32>, %i: tensor<i32>) {
    // CHECK-NEXT: %[[W1:.*]]:2 = stablehlo.while(%[[L1:.*]] = %[[X1]], %[[L2:.*]] = %[[T2]])
    %loop = stablehlo.while(%c = %x) : tensor<4xf32>
    // CHECK-NEXT: cond {
    cond {
      // CHECK-NEXT: %[[I1:.*]] = stablehlo.composite "hloom.add_dependency" %[[L2]], %[[L1]]
      // CHECK-NEXT: %[[C1:.*]] = "stablehlo.all_reduce"(%[[I1]])
      %s = "stablehlo.all_reduce"(%c) <{
          channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
          replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids}> ({
      // CHECK: %[[A1:.*]] = stablehlo.composite "hloom.after_all" %[[L2]], %[[C1]]
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %sum = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %sum : tensor<f32>
      }) : (tensor<4xf32>) -> tensor<4xf32>
      // CHECK-NEXT: %[[S1:.*]] = stablehlo.slice %[[C1]]
      %first = stablehlo.slice %s [0:1] : (tensor<4xf32>) -> tensor<1xf32>
      // CHECK-NEXT: %[[S2:.*]] = stablehlo.reshape %[[S1]]
      %scalar = stablehlo.reshape %first : (tensor<1xf32>) -> tensor<f32>
      %limit = stablehlo.constant dense<1.0> : tensor<f32>
      %go = stablehlo.compare LT, %scalar, %limit : (tensor<f32>, tensor<f32>) -> tensor<i1>
      // CHECK: %[[I2:.*]] = stablehlo.composite "hloom.add_dependency" %[[A1]], %{{.*}}
      // CHECK-NEXT: stablehlo.return %[[I2]]
      stablehlo.return %go : tensor<i1>
      // CHECK-NEXT: do {
    } do {
      // CHECK-NEXT: %[[S3:.*]] = stablehlo.sine %[[L1]]
      %next = stablehlo.sine %c : tensor<4xf32>
      // CHECK-NEXT: stablehlo.return %[[S3]], %[[L2]]
      stablehlo.return %next : tensor<4xf32>
      // CHECK: %[[A2:.*]] = stablehlo.composite "hloom.after_all" %[[W1]]#1, %[[W1]]#0
    }
    // CHECK-NEXT: %[[B1:.*]]:2 = stablehlo.composite "hloom.barrier" %[[A2]], %[[W1]]#0 {
    // CHECK-SAME: kind = "entry"{{.*}}site = "entry of @k in @
    // CHECK-NEXT: %[[K1:.*]] = stablehlo.custom_call @k(%[[B1]]#1)
    %r = stablehlo.custom_call @k(%loop) {hloom.collective = "entry"}
        : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[A3:.*]] = stablehlo.composite "hloom.after_all" %[[B1]]#0, %[[K1]]
    // CHECK-NEXT: sdy.return %[[K1]], %[[A3]]
    sdy.return %r : tensor<4xf32>
  } : (tensor<16xf32>, tensor<i32>) -> tensor<16xf32>
  // CHECK: return %[[M1]]#0
  return %0 : tensor<16xf32>
}
}
