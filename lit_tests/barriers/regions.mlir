// Kernels in loops, conditionals, calls and manual computations.
// RUN: hloom-opt %s -p barriers | filecheck %s
// Once is enough.
// RUN: hloom-opt %s -p barriers > %t.once
// RUN: hloom-opt %t.once -p barriers | diff %t.once -

module attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
sdy.mesh @mesh = <["x"=4]>
sdy.mesh @two = <["y"=2, "z"=2]>

// The token is one more carry. What is behind the loop is in order with what is inside.
// CHECK-LABEL: func.func public @scan(
// CHECK:         %[[T1:.*]] = stablehlo.composite "hloom.token"
// CHECK-NEXT:    %[[M1:.*]]:2 = sdy.manual_computation(%{{.*}}, %{{.*}}, %[[T1]]){{.*}}(%[[X1:.*]]: tensor<4xf32>, %[[X2:.*]]: tensor<i32>, %[[T2:.*]]: tensor<ui32>)
// CHECK:         %[[W1:.*]]:3 = stablehlo.while(%[[L1:.*]] = %{{.*}}, %[[L2:.*]] = %[[X1]], %[[L3:.*]] = %[[T2]])
// CHECK-NEXT:    cond {
// CHECK:         stablehlo.return %{{.*}}
// CHECK-NEXT:    do {
// CHECK:         %[[B1:.*]]:2 = stablehlo.composite "hloom.barrier" %[[L3]], %[[L2]] {{.*}}kind = "entry"{{.*}}site = "entry of @k in @
// CHECK-NEXT:    %[[K1:.*]] = stablehlo.custom_call @k(%[[B1]]#1)
// CHECK-NEXT:    %[[B2:.*]]:2 = stablehlo.composite "hloom.barrier" %[[B1]]#0, %[[K1]], %[[B1]]#1 {{.*}}kind = "exit"{{.*}}site = "exit of @k in @
// CHECK-NEXT:    stablehlo.return %{{.*}}, %[[B2]]#1, %[[B2]]#0
// CHECK:         %[[B3:.*]]:2 = stablehlo.composite "hloom.barrier" %[[W1]]#2, %[[W1]]#1 {{.*}}kind = "entry"{{.*}}site = "entry of @k in @
// CHECK-NEXT:    %[[K2:.*]] = stablehlo.custom_call @k(%[[B3]]#1)
// CHECK-NEXT:    %[[A1:.*]] = stablehlo.composite "hloom.after" %[[B3]]#0, %[[K2]]
// CHECK-NEXT:    sdy.return %[[K2]], %[[A1]]
// CHECK:         return %[[M1]]#0
func.func public @scan(%arg_x: tensor<16xf32>, %arg_i: tensor<i32>) -> tensor<16xf32> {
  %0 = sdy.manual_computation(%arg_x, %arg_i) in_shardings=[<@mesh, [{"x"}]>, <@mesh, []>] out_shardings=[<@mesh, [{"x"}]>] manual_axes={"x"} (%x: tensor<4xf32>, %i: tensor<i32>) {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %loop:2 = stablehlo.while(%k = %zero, %c = %x) : tensor<i32>, tensor<4xf32>
    cond {
      %n = stablehlo.constant dense<3> : tensor<i32>
      %go = stablehlo.compare LT, %k, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %go : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %next = stablehlo.add %k, %one : tensor<i32>
      %w = stablehlo.custom_call @k(%c) {hloom.collective = "entry exit=after"} : (tensor<4xf32>) -> tensor<4xf32>
      stablehlo.return %next, %w : tensor<i32>, tensor<4xf32>
    }
    %r = stablehlo.custom_call @k(%loop#1) {hloom.collective = "entry"} : (tensor<4xf32>) -> tensor<4xf32>
    sdy.return %r : tensor<4xf32>
  } : (tensor<16xf32>, tensor<i32>) -> tensor<16xf32>
  return %0 : tensor<16xf32>
}

// An exit waits for the end of an iteration, not of the program: the next one may write to the
// operand. The entry of the next iteration comes too late for that, as does that behind the loop.
// CHECK-LABEL: func.func public @end_of_an_iteration(
// CHECK:         %[[T1:.*]] = stablehlo.composite "hloom.token"
// CHECK-NEXT:    %[[M1:.*]]:2 = sdy.manual_computation(%{{.*}}, %{{.*}}, %[[T1]]){{.*}}(%[[X1:.*]]: tensor<4xf32>, %[[X2:.*]]: tensor<i32>, %[[T2:.*]]: tensor<ui32>)
// CHECK:         %[[W1:.*]]:3 = stablehlo.while(%[[L1:.*]] = %{{.*}}, %[[L2:.*]] = %[[X1]], %[[L3:.*]] = %[[T2]])
// CHECK-NEXT:    cond {
// CHECK:         stablehlo.return %{{.*}}
// CHECK-NEXT:    do {
// CHECK:         %[[B1:.*]]:2 = stablehlo.composite "hloom.barrier" %[[L3]], %[[L2]] {{.*}}kind = "entry"{{.*}}site = "entry of @k in @
// CHECK-NEXT:    %[[K1:.*]] = stablehlo.custom_call @k(%[[B1]]#1)
// CHECK-NEXT:    %[[A1:.*]] = stablehlo.composite "hloom.after" %[[B1]]#0, %[[K1]]
// CHECK-NEXT:    %[[B2:.*]] = stablehlo.composite "hloom.barrier" %[[A1]], %[[B1]]#1 {{.*}}kind = "module"{{.*}}site = "end after @k in @
// CHECK-NEXT:    stablehlo.return %{{.*}}, %[[K1]], %[[B2]]
// CHECK:         %[[B3:.*]]:2 = stablehlo.composite "hloom.barrier" %[[W1]]#2, %[[W1]]#1 {{.*}}kind = "entry"{{.*}}site = "entry of @k in @
// CHECK-NEXT:    %[[K2:.*]] = stablehlo.custom_call @k(%[[B3]]#1)
// CHECK-NEXT:    %[[A2:.*]] = stablehlo.composite "hloom.after" %[[B3]]#0, %[[K2]]
// CHECK-NEXT:    sdy.return %[[K2]], %[[A2]]
// CHECK:         return %[[M1]]#0
func.func public @end_of_an_iteration(%arg_x: tensor<16xf32>, %arg_i: tensor<i32>) -> tensor<16xf32> {
  %0 = sdy.manual_computation(%arg_x, %arg_i) in_shardings=[<@mesh, [{"x"}]>, <@mesh, []>] out_shardings=[<@mesh, [{"x"}]>] manual_axes={"x"} (%x: tensor<4xf32>, %i: tensor<i32>) {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %loop:2 = stablehlo.while(%k = %zero, %c = %x) : tensor<i32>, tensor<4xf32>
    cond {
      %n = stablehlo.constant dense<3> : tensor<i32>
      %go = stablehlo.compare LT, %k, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %go : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %next = stablehlo.add %k, %one : tensor<i32>
      %w = stablehlo.custom_call @k(%c) {hloom.collective = "entry exit=module"} : (tensor<4xf32>) -> tensor<4xf32>
      stablehlo.return %next, %w : tensor<i32>, tensor<4xf32>
    }
    %r = stablehlo.custom_call @k(%loop#1) {hloom.collective = "entry"} : (tensor<4xf32>) -> tensor<4xf32>
    sdy.return %r : tensor<4xf32>
  } : (tensor<16xf32>, tensor<i32>) -> tensor<16xf32>
  return %0 : tensor<16xf32>
}

// A condition gives no token. So it decides only once its collectives are through, and what is behind
// the loop waits for what the loop gives.
// CHECK-LABEL: func.func public @condition_of_a_loop(
// CHECK:         %[[T1:.*]] = stablehlo.composite "hloom.token"
// CHECK-NEXT:    %[[M1:.*]]:2 = sdy.manual_computation(%{{.*}}, %{{.*}}, %[[T1]]){{.*}}(%[[X1:.*]]: tensor<4xf32>, %[[X2:.*]]: tensor<i32>, %[[T2:.*]]: tensor<ui32>)
// CHECK-NEXT:    %[[W1:.*]]:2 = stablehlo.while(%[[L1:.*]] = %[[X1]], %[[L2:.*]] = %[[T2]])
// CHECK-NEXT:    cond {
// CHECK-NEXT:    %[[I1:.*]] = stablehlo.composite "hloom.tie" %[[L2]], %[[L1]]
// CHECK-NEXT:    %[[C1:.*]] = "stablehlo.all_reduce"(%[[I1]])
// CHECK:         %[[A1:.*]] = stablehlo.composite "hloom.after" %[[L2]], %[[C1]]
// CHECK-NEXT:    %[[S1:.*]] = stablehlo.slice %[[C1]]
// CHECK-NEXT:    %[[S2:.*]] = stablehlo.reshape %[[S1]]
// CHECK:         %[[I2:.*]] = stablehlo.composite "hloom.tie" %[[A1]], %{{.*}}
// CHECK-NEXT:    stablehlo.return %[[I2]]
// CHECK-NEXT:    do {
// CHECK-NEXT:    %[[S3:.*]] = stablehlo.sine %[[L1]]
// CHECK-NEXT:    stablehlo.return %[[S3]], %[[L2]]
// CHECK:         %[[A2:.*]] = stablehlo.composite "hloom.after" %[[W1]]#1, %[[W1]]#0
// CHECK-NEXT:    %[[B1:.*]]:2 = stablehlo.composite "hloom.barrier" %[[A2]], %[[W1]]#0 {{.*}}kind = "entry"{{.*}}site = "entry of @k in @
// CHECK-NEXT:    %[[K1:.*]] = stablehlo.custom_call @k(%[[B1]]#1)
// CHECK-NEXT:    %[[A3:.*]] = stablehlo.composite "hloom.after" %[[B1]]#0, %[[K1]]
// CHECK-NEXT:    sdy.return %[[K1]], %[[A3]]
// CHECK:         return %[[M1]]#0
func.func public @condition_of_a_loop(%arg_x: tensor<16xf32>, %arg_i: tensor<i32>) -> tensor<16xf32> {
  %0 = sdy.manual_computation(%arg_x, %arg_i) in_shardings=[<@mesh, [{"x"}]>, <@mesh, []>] out_shardings=[<@mesh, [{"x"}]>] manual_axes={"x"} (%x: tensor<4xf32>, %i: tensor<i32>) {
    %loop = stablehlo.while(%c = %x) : tensor<4xf32>
    cond {
      %s = "stablehlo.all_reduce"(%c) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids}> ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %sum = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %sum : tensor<f32>
      }) : (tensor<4xf32>) -> tensor<4xf32>
      %first = stablehlo.slice %s [0:1] : (tensor<4xf32>) -> tensor<1xf32>
      %scalar = stablehlo.reshape %first : (tensor<1xf32>) -> tensor<f32>
      %limit = stablehlo.constant dense<1.0> : tensor<f32>
      %go = stablehlo.compare LT, %scalar, %limit : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %go : tensor<i1>
    } do {
      %next = stablehlo.sine %c : tensor<4xf32>
      stablehlo.return %next : tensor<4xf32>
    }
    %r = stablehlo.custom_call @k(%loop) {hloom.collective = "entry"} : (tensor<4xf32>) -> tensor<4xf32>
    sdy.return %r : tensor<4xf32>
  } : (tensor<16xf32>, tensor<i32>) -> tensor<16xf32>
  return %0 : tensor<16xf32>
}

// Barriers stand in the branch of their kernel, since others may not take it. The other one returns the
// token as it got it.
// CHECK-LABEL: func.func public @one_branch(
// CHECK:         %[[T1:.*]] = stablehlo.composite "hloom.token"
// CHECK-NEXT:    %[[M1:.*]]:2 = sdy.manual_computation(%{{.*}}, %{{.*}}, %[[T1]]){{.*}}(%[[X1:.*]]: tensor<4xf32>, %[[X2:.*]]: tensor<i32>, %[[T2:.*]]: tensor<ui32>)
// CHECK-NEXT:    %[[C1:.*]]:2 = "stablehlo.case"(%[[X2]])
// CHECK-NEXT:    %[[B1:.*]]:2 = stablehlo.composite "hloom.barrier" %[[T2]], %[[X1]] {{.*}}kind = "entry"{{.*}}site = "entry of @k in @
// CHECK-NEXT:    %[[K1:.*]] = stablehlo.custom_call @k(%[[B1]]#1)
// CHECK-NEXT:    %[[B2:.*]]:2 = stablehlo.composite "hloom.barrier" %[[B1]]#0, %[[K1]], %[[B1]]#1 {{.*}}kind = "exit"{{.*}}site = "exit of @k in @
// CHECK-NEXT:    stablehlo.return %[[B2]]#1, %[[B2]]#0
// CHECK-NEXT:    }, {
// CHECK-NEXT:    %[[S1:.*]] = stablehlo.sine %[[X1]]
// CHECK-NEXT:    stablehlo.return %[[S1]], %[[T2]]
// CHECK:         %[[I1:.*]] = stablehlo.composite "hloom.tie" %[[C1]]#1, %[[C1]]#0
// CHECK-NEXT:    %[[C2:.*]] = "stablehlo.all_reduce"(%[[I1]])
// CHECK:         %[[A1:.*]] = stablehlo.composite "hloom.after" %[[C1]]#1, %[[C2]]
// CHECK-NEXT:    sdy.return %[[C2]], %[[A1]]
// CHECK:         return %[[M1]]#0
func.func public @one_branch(%arg_x: tensor<16xf32>, %arg_i: tensor<i32>) -> tensor<16xf32> {
  %0 = sdy.manual_computation(%arg_x, %arg_i) in_shardings=[<@mesh, [{"x"}]>, <@mesh, []>] out_shardings=[<@mesh, [{"x"}]>] manual_axes={"x"} (%x: tensor<4xf32>, %i: tensor<i32>) {
    %1 = "stablehlo.case"(%i) ({
      %w = stablehlo.custom_call @k(%x) {hloom.collective = "entry exit=after"} : (tensor<4xf32>) -> tensor<4xf32>
      stablehlo.return %w : tensor<4xf32>
    }, {
      %s = stablehlo.sine %x : tensor<4xf32>
      stablehlo.return %s : tensor<4xf32>
    }) : (tensor<i32>) -> tensor<4xf32>
    %r = "stablehlo.all_reduce"(%1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %sum = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %sum : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    sdy.return %r : tensor<4xf32>
  } : (tensor<16xf32>, tensor<i32>) -> tensor<16xf32>
  return %0 : tensor<16xf32>
}

// A branch without a result that is a token gets one.
// CHECK-LABEL: func.func public @both_branches(
// CHECK:         %[[T1:.*]] = stablehlo.composite "hloom.token"
// CHECK-NEXT:    %[[M1:.*]]:2 = sdy.manual_computation(%{{.*}}, %{{.*}}, %[[T1]]){{.*}}(%[[X1:.*]]: tensor<4xf32>, %[[X2:.*]]: tensor<i32>, %[[T2:.*]]: tensor<ui32>)
// CHECK:         %[[C1:.*]]:2 = "stablehlo.if"(%{{.*}})
// CHECK-NEXT:    %[[B1:.*]]:2 = stablehlo.composite "hloom.barrier" %[[T2]], %[[X1]] {{.*}}kind = "entry"{{.*}}site = "entry of @k in @
// CHECK-NEXT:    %[[K1:.*]] = stablehlo.custom_call @k(%[[B1]]#1)
// CHECK-NEXT:    %[[A1:.*]] = stablehlo.composite "hloom.after" %[[B1]]#0, %[[K1]]
// CHECK-NEXT:    stablehlo.return %[[K1]], %[[A1]]
// CHECK-NEXT:    }, {
// CHECK-NEXT:    %[[I1:.*]] = stablehlo.composite "hloom.tie" %[[T2]], %[[X1]]
// CHECK-NEXT:    %[[C2:.*]] = "stablehlo.all_reduce"(%[[I1]])
// CHECK:         %[[A2:.*]] = stablehlo.composite "hloom.after" %[[T2]], %[[C2]]
// CHECK-NEXT:    stablehlo.return %[[C2]], %[[A2]]
// CHECK:         sdy.return %[[C1]]#0, %[[C1]]#1
// CHECK:         return %[[M1]]#0
func.func public @both_branches(%arg_x: tensor<16xf32>, %arg_i: tensor<i32>) -> tensor<16xf32> {
  %0 = sdy.manual_computation(%arg_x, %arg_i) in_shardings=[<@mesh, [{"x"}]>, <@mesh, []>] out_shardings=[<@mesh, [{"x"}]>] manual_axes={"x"} (%x: tensor<4xf32>, %i: tensor<i32>) {
    %p = stablehlo.constant dense<true> : tensor<i1>
    %r = "stablehlo.if"(%p) ({
      %w = stablehlo.custom_call @k(%x) {hloom.collective = "entry"} : (tensor<4xf32>) -> tensor<4xf32>
      stablehlo.return %w : tensor<4xf32>
    }, {
      %s = "stablehlo.all_reduce"(%x) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids}> ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %sum = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %sum : tensor<f32>
      }) : (tensor<4xf32>) -> tensor<4xf32>
      stablehlo.return %s : tensor<4xf32>
    }) : (tensor<i1>) -> tensor<4xf32>
    sdy.return %r : tensor<4xf32>
  } : (tensor<16xf32>, tensor<i32>) -> tensor<16xf32>
  return %0 : tensor<16xf32>
}

// Where shardings of results are told, the token's is: whole on every device.
// CHECK-LABEL: func.func public @shardings(
// CHECK:         %[[T1:.*]] = stablehlo.composite "hloom.token"
// CHECK-NEXT:    %[[M1:.*]]:2 = sdy.manual_computation(%{{.*}}, %{{.*}}, %[[T1]]){{.*}}(%[[X1:.*]]: tensor<4xf32>, %[[X2:.*]]: tensor<i32>, %[[T2:.*]]: tensor<ui32>)
// CHECK:         %[[W1:.*]]:3 = stablehlo.while(%[[L1:.*]] = %{{.*}}, %[[L2:.*]] = %[[X1]], %[[L3:.*]] = %[[T2]]){{.*}}, <@mesh, []>]>}
// CHECK-NEXT:    cond {
// CHECK:         stablehlo.return %{{.*}}
// CHECK-NEXT:    do {
// CHECK:         %[[B1:.*]]:2 = stablehlo.composite "hloom.barrier" %[[L3]], %[[L2]] {{.*}}kind = "entry"{{.*}}site = "entry of @k in @
// CHECK-NEXT:    %[[K1:.*]] = stablehlo.custom_call @k(%[[B1]]#1)
// CHECK-NEXT:    %[[A1:.*]] = stablehlo.composite "hloom.after" %[[B1]]#0, %[[K1]]
// CHECK-NEXT:    stablehlo.return %{{.*}}, %[[K1]], %[[A1]]
// CHECK:         %[[C1:.*]]:2 = "stablehlo.case"(%[[X2]])
// CHECK-NEXT:    %[[B2:.*]]:2 = stablehlo.composite "hloom.barrier" %[[W1]]#2, %[[W1]]#1 {{.*}}kind = "entry"{{.*}}site = "entry of @k in @
// CHECK-NEXT:    %[[K2:.*]] = stablehlo.custom_call @k(%[[B2]]#1)
// CHECK-NEXT:    %[[A2:.*]] = stablehlo.composite "hloom.after" %[[B2]]#0, %[[K2]]
// CHECK-NEXT:    stablehlo.return %[[K2]], %[[A2]]
// CHECK-NEXT:    }) {sdy.sharding = {{.*}}, <@mesh, []>]>}
// CHECK-NEXT:    sdy.return %[[C1]]#0, %[[C1]]#1
// CHECK:         return %[[M1]]#0
func.func public @shardings(%arg_x: tensor<16xf32>, %arg_i: tensor<i32>) -> tensor<16xf32> {
  %0 = sdy.manual_computation(%arg_x, %arg_i) in_shardings=[<@mesh, [{"x"}]>, <@mesh, []>] out_shardings=[<@mesh, [{"x"}]>] manual_axes={"x"} (%x: tensor<4xf32>, %i: tensor<i32>) {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %loop:2 = stablehlo.while(%k = %zero, %c = %x) : tensor<i32>, tensor<4xf32> attributes {sdy.sharding = #sdy.sharding_per_value<[<@mesh, []>, <@mesh, [{?}]>]>}
    cond {
      %n = stablehlo.constant dense<3> : tensor<i32>
      %go = stablehlo.compare LT, %k, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %go : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %next = stablehlo.add %k, %one : tensor<i32>
      %w = stablehlo.custom_call @k(%c) {hloom.collective = "entry"} : (tensor<4xf32>) -> tensor<4xf32>
      stablehlo.return %next, %w : tensor<i32>, tensor<4xf32>
    }
    %r = "stablehlo.case"(%i) ({
      %w = stablehlo.custom_call @k(%loop#1) {hloom.collective = "entry"} : (tensor<4xf32>) -> tensor<4xf32>
      stablehlo.return %w : tensor<4xf32>
    }) {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{?}]>]>} : (tensor<i32>) -> tensor<4xf32>
    sdy.return %r : tensor<4xf32>
  } : (tensor<16xf32>, tensor<i32>) -> tensor<16xf32>
  return %0 : tensor<16xf32>
}

// Nobody knows whether a collective in a branch or a loop runs.
// CHECK-LABEL: func.func public @conditional_collective_serves_nothing(
// CHECK:         %[[T1:.*]] = stablehlo.composite "hloom.token"
// CHECK-NEXT:    %[[M1:.*]]:2 = sdy.manual_computation(%{{.*}}, %{{.*}}, %[[T1]]){{.*}}(%[[X1:.*]]: tensor<4xf32>, %[[X2:.*]]: tensor<i32>, %[[T2:.*]]: tensor<ui32>)
// CHECK-NEXT:    %[[I1:.*]] = stablehlo.composite "hloom.tie" %[[T2]], %[[X1]]
// CHECK-NEXT:    %[[K1:.*]] = stablehlo.custom_call @k(%[[I1]])
// CHECK-NEXT:    %[[A1:.*]] = stablehlo.composite "hloom.after" %[[T2]], %[[K1]]
// CHECK-NEXT:    %[[C1:.*]]:2 = "stablehlo.case"(%[[X2]])
// CHECK-NEXT:    %[[I2:.*]] = stablehlo.composite "hloom.tie" %[[A1]], %[[K1]]
// CHECK-NEXT:    %[[C2:.*]] = "stablehlo.all_reduce"(%[[I2]])
// CHECK:         %[[A2:.*]] = stablehlo.composite "hloom.after" %[[A1]], %[[C2]]
// CHECK-NEXT:    stablehlo.return %[[C2]], %[[A2]]
// CHECK-NEXT:    }, {
// CHECK-NEXT:    stablehlo.return %[[K1]], %[[A1]]
// CHECK:         %[[B1:.*]]:2 = stablehlo.composite "hloom.barrier" %[[C1]]#1, %[[C1]]#0, %[[I1]] {{.*}}kind = "module"{{.*}}site = "end after @k in @
// CHECK-NEXT:    sdy.return %[[B1]]#1, %[[B1]]#0
// CHECK:         return %[[M1]]#0
func.func public @conditional_collective_serves_nothing(%arg_x: tensor<16xf32>, %arg_i: tensor<i32>) -> tensor<16xf32> {
  %0 = sdy.manual_computation(%arg_x, %arg_i) in_shardings=[<@mesh, [{"x"}]>, <@mesh, []>] out_shardings=[<@mesh, [{"x"}]>] manual_axes={"x"} (%x: tensor<4xf32>, %i: tensor<i32>) {
    %w = stablehlo.custom_call @k(%x) {hloom.collective = "exit=module"} : (tensor<4xf32>) -> tensor<4xf32>
    %r = "stablehlo.case"(%i) ({
      %s = "stablehlo.all_reduce"(%w) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids}> ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %sum = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %sum : tensor<f32>
      }) : (tensor<4xf32>) -> tensor<4xf32>
      stablehlo.return %s : tensor<4xf32>
    }, {
      stablehlo.return %w : tensor<4xf32>
    }) : (tensor<i32>) -> tensor<4xf32>
    sdy.return %r : tensor<4xf32>
  } : (tensor<16xf32>, tensor<i32>) -> tensor<16xf32>
  return %0 : tensor<16xf32>
}

// A call that cannot be inlined takes and gives a token; the function is edited once.
// CHECK-LABEL: func.func public @call(
// CHECK:         %[[T1:.*]] = stablehlo.composite "hloom.token"
// CHECK-NEXT:    %[[M1:.*]]:2 = sdy.manual_computation(%{{.*}}, %{{.*}}, %[[T1]]){{.*}}(%[[X1:.*]]: tensor<4xf32>, %[[X2:.*]]: tensor<i32>, %[[T2:.*]]: tensor<ui32>)
// CHECK-NEXT:    %[[F1:.*]]:2 = func.call @tagged(%[[X1]], %[[T2]])
// CHECK-NEXT:    %[[F2:.*]]:2 = func.call @tagged(%[[F1]]#0, %[[F1]]#1)
// CHECK-NEXT:    sdy.return %[[F2]]#0, %[[F2]]#1
// CHECK:         return %[[M1]]#0
func.func public @call(%arg_x: tensor<16xf32>, %arg_i: tensor<i32>) -> tensor<16xf32> {
  %0 = sdy.manual_computation(%arg_x, %arg_i) in_shardings=[<@mesh, [{"x"}]>, <@mesh, []>] out_shardings=[<@mesh, [{"x"}]>] manual_axes={"x"} (%x: tensor<4xf32>, %i: tensor<i32>) {
    %1 = func.call @tagged(%x) {mhlo.frontend_attributes = {tag = "it"}} : (tensor<4xf32>) -> tensor<4xf32>
    %r = func.call @tagged(%1) {mhlo.frontend_attributes = {tag = "it"}} : (tensor<4xf32>) -> tensor<4xf32>
    sdy.return %r : tensor<4xf32>
  } : (tensor<16xf32>, tensor<i32>) -> tensor<16xf32>
  return %0 : tensor<16xf32>
}

// CHECK-LABEL: func.func private @tagged(
// CHECK:         %[[B1:.*]]:2 = stablehlo.composite "hloom.barrier" %{{.*}}, %{{.*}} {{.*}}kind = "entry"{{.*}}site = "entry of @k in @
// CHECK-NEXT:    %[[K1:.*]] = stablehlo.custom_call @k(%[[B1]]#1)
// CHECK-NEXT:    %[[A1:.*]] = stablehlo.composite "hloom.after" %[[B1]]#0, %[[K1]]
// CHECK-NEXT:    return %[[K1]], %[[A1]]
func.func private @tagged(%x: tensor<4xf32> {jax.note = "x"}) -> (tensor<4xf32> {jax.note = "y"}) {
  %1 = stablehlo.custom_call @k(%x) {hloom.collective = "entry"} : (tensor<4xf32>) -> tensor<4xf32>
  return %1 : tensor<4xf32>
}

// Any other is inlined.
// CHECK-LABEL: func.func public @plain_call(
// CHECK:         %[[T1:.*]] = stablehlo.composite "hloom.token"
// CHECK-NEXT:    %[[M1:.*]]:2 = sdy.manual_computation(%{{.*}}, %{{.*}}, %[[T1]]){{.*}}(%[[X1:.*]]: tensor<4xf32>, %[[X2:.*]]: tensor<i32>, %[[T2:.*]]: tensor<ui32>)
// CHECK-NEXT:    %[[B1:.*]]:2 = stablehlo.composite "hloom.barrier" %[[T2]], %[[X1]] {{.*}}kind = "entry"{{.*}}site = "entry of @k in @
// CHECK-NEXT:    %[[K1:.*]] = stablehlo.custom_call @k(%[[B1]]#1)
// CHECK-NEXT:    %[[A1:.*]] = stablehlo.composite "hloom.after" %[[B1]]#0, %[[K1]]
// CHECK-NEXT:    sdy.return %[[K1]], %[[A1]]
// CHECK:         return %[[M1]]#0
func.func public @plain_call(%arg_x: tensor<16xf32>, %arg_i: tensor<i32>) -> tensor<16xf32> {
  %0 = sdy.manual_computation(%arg_x, %arg_i) in_shardings=[<@mesh, [{"x"}]>, <@mesh, []>] out_shardings=[<@mesh, [{"x"}]>] manual_axes={"x"} (%x: tensor<4xf32>, %i: tensor<i32>) {
    %r = func.call @plain(%x) : (tensor<4xf32>) -> tensor<4xf32>
    sdy.return %r : tensor<4xf32>
  } : (tensor<16xf32>, tensor<i32>) -> tensor<16xf32>
  return %0 : tensor<16xf32>
}
func.func private @plain(%x: tensor<4xf32>) -> tensor<4xf32> {
  %1 = stablehlo.custom_call @k(%x) {hloom.collective = "entry"} : (tensor<4xf32>) -> tensor<4xf32>
  return %1 : tensor<4xf32>
}

// One token goes through all manual computations, and into those inside.
// CHECK-LABEL: func.func public @computations(
// CHECK:         %[[T1:.*]] = stablehlo.composite "hloom.token"
// CHECK-NEXT:    %[[M1:.*]]:2 = sdy.manual_computation(%{{.*}}, %[[T1]]){{.*}}(%[[X1:.*]]: tensor<4xf32>, %[[T2:.*]]: tensor<ui32>)
// CHECK-NEXT:    %[[B1:.*]]:2 = stablehlo.composite "hloom.barrier" %[[T2]], %[[X1]] {{.*}}kind = "entry"{{.*}}site = "entry of @k1 in @
// CHECK-NEXT:    %[[K1:.*]] = stablehlo.custom_call @k1(%[[B1]]#1)
// CHECK-NEXT:    %[[A1:.*]] = stablehlo.composite "hloom.after" %[[B1]]#0, %[[K1]]
// CHECK-NEXT:    sdy.return %[[K1]], %[[A1]]
// CHECK:         %[[S1:.*]] = stablehlo.sine %[[M1]]#0
// CHECK-NEXT:    %[[M2:.*]]:2 = sdy.manual_computation(%[[S1]], %[[M1]]#1){{.*}}(%[[X2:.*]]: tensor<8xf32>, %[[T3:.*]]: tensor<ui32>)
// CHECK-NEXT:    %[[M3:.*]]:2 = sdy.manual_computation(%[[X2]], %[[T3]]){{.*}}(%[[X3:.*]]: tensor<4xf32>, %[[T4:.*]]: tensor<ui32>)
// CHECK-NEXT:    %[[B2:.*]]:2 = stablehlo.composite "hloom.barrier" %[[T4]], %[[X3]] {{.*}}kind = "entry"{{.*}}site = "entry of @k2 in @
// CHECK-NEXT:    %[[K2:.*]] = stablehlo.custom_call @k2(%[[B2]]#1)
// CHECK-NEXT:    %[[A2:.*]] = stablehlo.composite "hloom.after" %[[B2]]#0, %[[K2]]
// CHECK-NEXT:    sdy.return %[[K2]], %[[A2]]
// CHECK:         sdy.return %[[M3]]#0, %[[M3]]#1
// CHECK:         return %[[M2]]#0
func.func public @computations(%arg_x: tensor<16xf32>) -> tensor<16xf32> {
  %0 = sdy.manual_computation(%arg_x) in_shardings=[<@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}]>] manual_axes={"x"} (%x: tensor<4xf32>) {
    %r = stablehlo.custom_call @k1(%x) {hloom.collective = "entry"} : (tensor<4xf32>) -> tensor<4xf32>
    sdy.return %r : tensor<4xf32>
  } : (tensor<16xf32>) -> tensor<16xf32>
  %1 = stablehlo.sine %0 : tensor<16xf32>
  %2 = sdy.manual_computation(%1) in_shardings=[<@two, [{"y", "z"}]>] out_shardings=[<@two, [{"y", "z"}]>] manual_axes={"y"} (%x: tensor<8xf32>) {
    %3 = sdy.manual_computation(%x) in_shardings=[<@two, [{"z"}]>] out_shardings=[<@two, [{"z"}]>] manual_axes={"z"} (%w: tensor<4xf32>) {
      %r = stablehlo.custom_call @k2(%w) {hloom.collective = "entry"} : (tensor<4xf32>) -> tensor<4xf32>
      sdy.return %r : tensor<4xf32>
    } : (tensor<8xf32>) -> tensor<8xf32>
    sdy.return %3 : tensor<8xf32>
  } : (tensor<16xf32>) -> tensor<16xf32>
  return %2 : tensor<16xf32>
}
}
