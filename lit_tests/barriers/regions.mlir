// Kernels in conditionals, calls and manual computations.
// RUN: hloom-opt %s -p barriers -o %t && filecheck %s < %t
// Twice is once.
// RUN: hloom-opt %t -p barriers | diff %t -

module attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
sdy.mesh @mesh = <["x"=4]>
sdy.mesh @two = <["y"=2, "z"=2]>

// Barriers stand in the branch of their kernel, since others may not take it. The other one returns the
// token as it got it.
// CHECK-LABEL: func.func public @one_branch(
func.func public @one_branch(%arg_x: tensor<16xf32>, %arg_i: tensor<i32>) -> tensor<16xf32> {
  // CHECK: %[[T1:.*]] = stablehlo.composite "hloom.token"
  // CHECK-NEXT: %[[M1:.*]]:2 = sdy.manual_computation(%{{.*}}, %{{.*}}, %[[T1]])
  // CHECK-SAME: (%[[X1:.*]]: tensor<4xf32>, %[[X2:.*]]: tensor<i32>, %[[T2:.*]]: tensor<ui32>)
  %0 = sdy.manual_computation(%arg_x, %arg_i)
      in_shardings=[<@mesh, [{"x"}]>, <@mesh, []>] out_shardings=[<@mesh, [{"x"}]>]
      manual_axes={"x"} (%x: tensor<4xf32>, %i: tensor<i32>) {
    // CHECK-NEXT: %[[C1:.*]]:2 = "stablehlo.case"(%[[X2]])
    %1 = "stablehlo.case"(%i) ({
      // CHECK-NEXT: %[[B1:.*]]:2 = stablehlo.composite "hloom.barrier" %[[T2]], %[[X1]] {
      // CHECK-SAME: kind = "entry"{{.*}}site = "entry of @k in @
      // CHECK-NEXT: %[[K1:.*]] = stablehlo.custom_call @k(%[[B1]]#1)
      %w = stablehlo.custom_call @k(%x) {hloom.collective = "entry exit=after"}
          : (tensor<4xf32>) -> tensor<4xf32>
      // CHECK-NEXT: %[[B2:.*]]:2 = stablehlo.composite "hloom.barrier" %[[B1]]#0, %[[K1]],
      // CHECK-SAME: %[[B1]]#1 {
      // CHECK-SAME: kind = "exit"{{.*}}site = "exit of @k in @
      // CHECK-NEXT: stablehlo.return %[[B2]]#1, %[[B2]]#0
      stablehlo.return %w : tensor<4xf32>
      // CHECK-NEXT: }, {
    }, {
      // CHECK-NEXT: %[[S1:.*]] = stablehlo.sine %[[X1]]
      %s = stablehlo.sine %x : tensor<4xf32>
      // CHECK-NEXT: stablehlo.return %[[S1]], %[[T2]]
      stablehlo.return %s : tensor<4xf32>
    }) : (tensor<i32>) -> tensor<4xf32>
    // CHECK: %[[I1:.*]] = stablehlo.composite "hloom.add_dependency" %[[C1]]#1, %[[C1]]#0
    // CHECK-NEXT: %[[C2:.*]] = "stablehlo.all_reduce"(%[[I1]])
    %r = "stablehlo.all_reduce"(%1) <{
        channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
        replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids}> ({
    // CHECK: %[[A1:.*]] = stablehlo.composite "hloom.after_all" %[[C1]]#1, %[[C2]]
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %sum = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %sum : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: sdy.return %[[C2]], %[[A1]]
    sdy.return %r : tensor<4xf32>
  } : (tensor<16xf32>, tensor<i32>) -> tensor<16xf32>
  // CHECK: return %[[M1]]#0
  return %0 : tensor<16xf32>
}

// A branch without a result that is a token gets one.
// CHECK-LABEL: func.func public @both_branches(
func.func public @both_branches(%arg_x: tensor<16xf32>, %arg_i: tensor<i32>) -> tensor<16xf32> {
  // CHECK: %[[T1:.*]] = stablehlo.composite "hloom.token"
  // CHECK-NEXT: %[[M1:.*]]:2 = sdy.manual_computation(%{{.*}}, %{{.*}}, %[[T1]])
  // CHECK-SAME: (%[[X1:.*]]: tensor<4xf32>, %[[X2:.*]]: tensor<i32>, %[[T2:.*]]: tensor<ui32>)
  %0 = sdy.manual_computation(%arg_x, %arg_i)
      in_shardings=[<@mesh, [{"x"}]>, <@mesh, []>] out_shardings=[<@mesh, [{"x"}]>]
      manual_axes={"x"} (%x: tensor<4xf32>, %i: tensor<i32>) {
    %p = stablehlo.constant dense<true> : tensor<i1>
    // CHECK: %[[C1:.*]]:2 = "stablehlo.if"(%{{.*}})
    %r = "stablehlo.if"(%p) ({
      // CHECK-NEXT: %[[B1:.*]]:2 = stablehlo.composite "hloom.barrier" %[[T2]], %[[X1]] {
      // CHECK-SAME: kind = "entry"{{.*}}site = "entry of @k in @
      // CHECK-NEXT: %[[K1:.*]] = stablehlo.custom_call @k(%[[B1]]#1)
      %w = stablehlo.custom_call @k(%x) {hloom.collective = "entry"}
          : (tensor<4xf32>) -> tensor<4xf32>
      // CHECK-NEXT: %[[A1:.*]] = stablehlo.composite "hloom.after_all" %[[B1]]#0, %[[K1]]
      // CHECK-NEXT: stablehlo.return %[[K1]], %[[A1]]
      stablehlo.return %w : tensor<4xf32>
      // CHECK-NEXT: }, {
    }, {
      // CHECK-NEXT: %[[I1:.*]] = stablehlo.composite "hloom.add_dependency" %[[T2]], %[[X1]]
      // CHECK-NEXT: %[[C2:.*]] = "stablehlo.all_reduce"(%[[I1]])
      %s = "stablehlo.all_reduce"(%x) <{
          channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
          replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids}> ({
      // CHECK: %[[A2:.*]] = stablehlo.composite "hloom.after_all" %[[T2]], %[[C2]]
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %sum = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %sum : tensor<f32>
      }) : (tensor<4xf32>) -> tensor<4xf32>
      // CHECK-NEXT: stablehlo.return %[[C2]], %[[A2]]
      stablehlo.return %s : tensor<4xf32>
    }) : (tensor<i1>) -> tensor<4xf32>
    // CHECK: sdy.return %[[C1]]#0, %[[C1]]#1
    sdy.return %r : tensor<4xf32>
  } : (tensor<16xf32>, tensor<i32>) -> tensor<16xf32>
  // CHECK: return %[[M1]]#0
  return %0 : tensor<16xf32>
}

// Where shardings of results are told, the token's is: whole on every device.
// CHECK-LABEL: func.func public @shardings(
func.func public @shardings(%arg_x: tensor<16xf32>, %arg_i: tensor<i32>) -> tensor<16xf32> {
  // CHECK: %[[T1:.*]] = stablehlo.composite "hloom.token"
  // CHECK-NEXT: %[[M1:.*]]:2 = sdy.manual_computation(%{{.*}}, %{{.*}}, %[[T1]])
  // CHECK-SAME: (%[[X1:.*]]: tensor<4xf32>, %[[X2:.*]]: tensor<i32>, %[[T2:.*]]: tensor<ui32>)
  %0 = sdy.manual_computation(%arg_x, %arg_i)
      in_shardings=[<@mesh, [{"x"}]>, <@mesh, []>] out_shardings=[<@mesh, [{"x"}]>]
      manual_axes={"x"} (%x: tensor<4xf32>, %i: tensor<i32>) {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    // CHECK: %[[W1:.*]]:3 = stablehlo.while(%[[L1:.*]] = %{{.*}}, %[[L2:.*]] = %[[X1]],
    // CHECK-SAME: %[[L3:.*]] = %[[T2]]){{.*}}, <@mesh, []>]>}
    %loop:2 = stablehlo.while(%k = %zero, %c = %x) : tensor<i32>, tensor<4xf32> attributes {sdy.sharding = #sdy.sharding_per_value<[<@mesh, []>, <@mesh, [{?}]>]>}
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
      %w = stablehlo.custom_call @k(%c) {hloom.collective = "entry"}
          : (tensor<4xf32>) -> tensor<4xf32>
      // CHECK-NEXT: %[[A1:.*]] = stablehlo.composite "hloom.after_all" %[[B1]]#0, %[[K1]]
      // CHECK-NEXT: stablehlo.return %{{.*}}, %[[K1]], %[[A1]]
      stablehlo.return %next, %w : tensor<i32>, tensor<4xf32>
    }
    // CHECK: %[[C1:.*]]:2 = "stablehlo.case"(%[[X2]])
    %r = "stablehlo.case"(%i) ({
      // CHECK-NEXT: %[[B2:.*]]:2 = stablehlo.composite "hloom.barrier" %[[W1]]#2, %[[W1]]#1 {
      // CHECK-SAME: kind = "entry"{{.*}}site = "entry of @k in @
      // CHECK-NEXT: %[[K2:.*]] = stablehlo.custom_call @k(%[[B2]]#1)
      %w = stablehlo.custom_call @k(%loop#1) {hloom.collective = "entry"}
          : (tensor<4xf32>) -> tensor<4xf32>
      // CHECK-NEXT: %[[A2:.*]] = stablehlo.composite "hloom.after_all" %[[B2]]#0, %[[K2]]
      // CHECK-NEXT: stablehlo.return %[[K2]], %[[A2]]
      stablehlo.return %w : tensor<4xf32>
      // CHECK-NEXT: }) {sdy.sharding = {{.*}}, <@mesh, []>]>}
    }) {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{?}]>]>} : (tensor<i32>) -> tensor<4xf32>
    // CHECK-NEXT: sdy.return %[[C1]]#0, %[[C1]]#1
    sdy.return %r : tensor<4xf32>
  } : (tensor<16xf32>, tensor<i32>) -> tensor<16xf32>
  // CHECK: return %[[M1]]#0
  return %0 : tensor<16xf32>
}

// Nobody knows whether a collective in a branch or a loop runs.
// CHECK-LABEL: func.func public @conditional_collective_serves_nothing(
func.func public @conditional_collective_serves_nothing(%arg_x: tensor<16xf32>, %arg_i: tensor<i32>) -> tensor<16xf32> {
  // CHECK: %[[T1:.*]] = stablehlo.composite "hloom.token"
  // CHECK-NEXT: %[[M1:.*]]:2 = sdy.manual_computation(%{{.*}}, %{{.*}}, %[[T1]])
  // CHECK-SAME: (%[[X1:.*]]: tensor<4xf32>, %[[X2:.*]]: tensor<i32>, %[[T2:.*]]: tensor<ui32>)
  %0 = sdy.manual_computation(%arg_x, %arg_i)
      in_shardings=[<@mesh, [{"x"}]>, <@mesh, []>] out_shardings=[<@mesh, [{"x"}]>]
      manual_axes={"x"} (%x: tensor<4xf32>, %i: tensor<i32>) {
    // CHECK-NEXT: %[[I1:.*]] = stablehlo.composite "hloom.add_dependency" %[[T2]], %[[X1]]
    // CHECK-NEXT: %[[K1:.*]] = stablehlo.custom_call @k(%[[I1]])
    %w = stablehlo.custom_call @k(%x) {hloom.collective = "exit=module"}
        : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[A1:.*]] = stablehlo.composite "hloom.after_all" %[[T2]], %[[K1]]
    // CHECK-NEXT: %[[C1:.*]]:2 = "stablehlo.case"(%[[X2]])
    %r = "stablehlo.case"(%i) ({
      // CHECK-NEXT: %[[I2:.*]] = stablehlo.composite "hloom.add_dependency" %[[A1]], %[[K1]]
      // CHECK-NEXT: %[[C2:.*]] = "stablehlo.all_reduce"(%[[I2]])
      %s = "stablehlo.all_reduce"(%w) <{
          channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
          replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids}> ({
      // CHECK: %[[A2:.*]] = stablehlo.composite "hloom.after_all" %[[A1]], %[[C2]]
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %sum = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %sum : tensor<f32>
      }) : (tensor<4xf32>) -> tensor<4xf32>
      // CHECK-NEXT: stablehlo.return %[[C2]], %[[A2]]
      stablehlo.return %s : tensor<4xf32>
      // CHECK-NEXT: }, {
    }, {
      // CHECK-NEXT: stablehlo.return %[[K1]], %[[A1]]
      stablehlo.return %w : tensor<4xf32>
    }) : (tensor<i32>) -> tensor<4xf32>
    // CHECK: %[[B1:.*]]:2 = stablehlo.composite "hloom.barrier" %[[C1]]#1, %[[C1]]#0, %[[I1]] {
    // CHECK-SAME: kind = "module"{{.*}}site = "end after @k in @
    // CHECK-NEXT: sdy.return %[[B1]]#1, %[[B1]]#0
    sdy.return %r : tensor<4xf32>
  } : (tensor<16xf32>, tensor<i32>) -> tensor<16xf32>
  // CHECK: return %[[M1]]#0
  return %0 : tensor<16xf32>
}

// A call that cannot be inlined takes and gives a token; the function is edited once.
// CHECK-LABEL: func.func public @call(
func.func public @call(%arg_x: tensor<16xf32>, %arg_i: tensor<i32>) -> tensor<16xf32> {
  // CHECK: %[[T1:.*]] = stablehlo.composite "hloom.token"
  // CHECK-NEXT: %[[M1:.*]]:2 = sdy.manual_computation(%{{.*}}, %{{.*}}, %[[T1]])
  // CHECK-SAME: (%[[X1:.*]]: tensor<4xf32>, %[[X2:.*]]: tensor<i32>, %[[T2:.*]]: tensor<ui32>)
  %0 = sdy.manual_computation(%arg_x, %arg_i)
      in_shardings=[<@mesh, [{"x"}]>, <@mesh, []>] out_shardings=[<@mesh, [{"x"}]>]
      manual_axes={"x"} (%x: tensor<4xf32>, %i: tensor<i32>) {
    // CHECK-NEXT: %[[F1:.*]]:2 = func.call @tagged(%[[X1]], %[[T2]])
    %1 = func.call @tagged(%x) {mhlo.frontend_attributes = {tag = "it"}} : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[F2:.*]]:2 = func.call @tagged(%[[F1]]#0, %[[F1]]#1)
    %r = func.call @tagged(%1) {mhlo.frontend_attributes = {tag = "it"}} : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: sdy.return %[[F2]]#0, %[[F2]]#1
    sdy.return %r : tensor<4xf32>
  } : (tensor<16xf32>, tensor<i32>) -> tensor<16xf32>
  // CHECK: return %[[M1]]#0
  return %0 : tensor<16xf32>
}

// CHECK-LABEL: func.func private @tagged(
func.func private @tagged(%x: tensor<4xf32> {jax.note = "x"}) -> (tensor<4xf32> {jax.note = "y"}) {
  // CHECK: %[[B1:.*]]:2 = stablehlo.composite "hloom.barrier" %{{.*}}, %{{.*}} {{.*}}kind = "entry"
  // CHECK-SAME: site = "entry of @k in @
  // CHECK-NEXT: %[[K1:.*]] = stablehlo.custom_call @k(%[[B1]]#1)
  %1 = stablehlo.custom_call @k(%x) {hloom.collective = "entry"} : (tensor<4xf32>) -> tensor<4xf32>
  // CHECK-NEXT: %[[A1:.*]] = stablehlo.composite "hloom.after_all" %[[B1]]#0, %[[K1]]
  // CHECK-NEXT: return %[[K1]], %[[A1]]
  return %1 : tensor<4xf32>
}

// Any other is inlined.
// CHECK-LABEL: func.func public @plain_call(
func.func public @plain_call(%arg_x: tensor<16xf32>, %arg_i: tensor<i32>) -> tensor<16xf32> {
  // CHECK: %[[T1:.*]] = stablehlo.composite "hloom.token"
  // CHECK-NEXT: %[[M1:.*]]:2 = sdy.manual_computation(%{{.*}}, %{{.*}}, %[[T1]])
  // CHECK-SAME: (%[[X1:.*]]: tensor<4xf32>, %[[X2:.*]]: tensor<i32>, %[[T2:.*]]: tensor<ui32>)
  %0 = sdy.manual_computation(%arg_x, %arg_i)
      in_shardings=[<@mesh, [{"x"}]>, <@mesh, []>] out_shardings=[<@mesh, [{"x"}]>]
      manual_axes={"x"} (%x: tensor<4xf32>, %i: tensor<i32>) {
    %r = func.call @plain(%x) : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[B1:.*]]:2 = stablehlo.composite "hloom.barrier" %[[T2]], %[[X1]] {
    // CHECK-SAME: kind = "entry"{{.*}}site = "entry of @k in @
    // CHECK-NEXT: %[[K1:.*]] = stablehlo.custom_call @k(%[[B1]]#1)
    // CHECK-NEXT: %[[A1:.*]] = stablehlo.composite "hloom.after_all" %[[B1]]#0, %[[K1]]
    // CHECK-NEXT: sdy.return %[[K1]], %[[A1]]
    sdy.return %r : tensor<4xf32>
  } : (tensor<16xf32>, tensor<i32>) -> tensor<16xf32>
  // CHECK: return %[[M1]]#0
  return %0 : tensor<16xf32>
}
func.func private @plain(%x: tensor<4xf32>) -> tensor<4xf32> {
  %1 = stablehlo.custom_call @k(%x) {hloom.collective = "entry"} : (tensor<4xf32>) -> tensor<4xf32>
  return %1 : tensor<4xf32>
}

// One token goes through all manual computations, and into those inside.
// CHECK-LABEL: func.func public @computations(
func.func public @computations(%arg_x: tensor<16xf32>) -> tensor<16xf32> {
  // CHECK: %[[T1:.*]] = stablehlo.composite "hloom.token"
  // CHECK-NEXT: %[[M1:.*]]:2 = sdy.manual_computation(%{{.*}}, %[[T1]])
  // CHECK-SAME: (%[[X1:.*]]: tensor<4xf32>, %[[T2:.*]]: tensor<ui32>)
  %0 = sdy.manual_computation(%arg_x)
      in_shardings=[<@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}]>]
      manual_axes={"x"} (%x: tensor<4xf32>) {
    // CHECK-NEXT: %[[B1:.*]]:2 = stablehlo.composite "hloom.barrier" %[[T2]], %[[X1]] {
    // CHECK-SAME: kind = "entry"{{.*}}site = "entry of @k1 in @
    // CHECK-NEXT: %[[K1:.*]] = stablehlo.custom_call @k1(%[[B1]]#1)
    %r = stablehlo.custom_call @k1(%x) {hloom.collective = "entry"}
        : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[A1:.*]] = stablehlo.composite "hloom.after_all" %[[B1]]#0, %[[K1]]
    // CHECK-NEXT: sdy.return %[[K1]], %[[A1]]
    sdy.return %r : tensor<4xf32>
  } : (tensor<16xf32>) -> tensor<16xf32>
  // CHECK: %[[S1:.*]] = stablehlo.sine %[[M1]]#0
  %1 = stablehlo.sine %0 : tensor<16xf32>
  // CHECK-NEXT: %[[M2:.*]]:2 = sdy.manual_computation(%[[S1]], %[[M1]]#1)
  // CHECK-SAME: (%[[X2:.*]]: tensor<8xf32>, %[[T3:.*]]: tensor<ui32>)
  %2 = sdy.manual_computation(%1)
      in_shardings=[<@two, [{"y", "z"}]>] out_shardings=[<@two, [{"y", "z"}]>]
      manual_axes={"y"} (%x: tensor<8xf32>) {
    // CHECK-NEXT: %[[M3:.*]]:2 = sdy.manual_computation(%[[X2]], %[[T3]])
    // CHECK-SAME: (%[[X3:.*]]: tensor<4xf32>, %[[T4:.*]]: tensor<ui32>)
    %3 = sdy.manual_computation(%x)
        in_shardings=[<@two, [{"z"}]>] out_shardings=[<@two, [{"z"}]>]
        manual_axes={"z"} (%w: tensor<4xf32>) {
      // CHECK-NEXT: %[[B2:.*]]:2 = stablehlo.composite "hloom.barrier" %[[T4]], %[[X3]] {
      // CHECK-SAME: kind = "entry"{{.*}}site = "entry of @k2 in @
      // CHECK-NEXT: %[[K2:.*]] = stablehlo.custom_call @k2(%[[B2]]#1)
      %r = stablehlo.custom_call @k2(%w) {hloom.collective = "entry"}
          : (tensor<4xf32>) -> tensor<4xf32>
      // CHECK-NEXT: %[[A2:.*]] = stablehlo.composite "hloom.after_all" %[[B2]]#0, %[[K2]]
      // CHECK-NEXT: sdy.return %[[K2]], %[[A2]]
      sdy.return %r : tensor<4xf32>
    } : (tensor<8xf32>) -> tensor<8xf32>
    // CHECK: sdy.return %[[M3]]#0, %[[M3]]#1
    sdy.return %3 : tensor<8xf32>
  } : (tensor<16xf32>) -> tensor<16xf32>
  // CHECK: return %[[M2]]#0
  return %2 : tensor<16xf32>
}
}
