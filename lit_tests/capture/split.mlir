// Where one region ends and the next begins.
// RUN: hloom-opt %s -p "capture{min_ops=1}" --target h100_sxm | filecheck %s

// The host's answer is needed in between: two regions.
// CHECK-LABEL: func.func public @an_answer
func.func public @an_answer(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = stablehlo.sine %x : tensor<8xf32>
  // CHECK-NEXT: %[[A:.*]]:2 = stablehlo.composite "hloom.capture_region" %arg0
  // CHECK-NEXT: %[[H:.*]] = stablehlo.custom_call @xla_ffi_python_gpu_callback(%[[A]]#
  %1 = stablehlo.custom_call @xla_ffi_python_gpu_callback(%0)
      {api_version = 4 : i32, backend_config = {index = 0 : ui64}}
      : (tensor<8xf32>) -> tensor<8xf32>
  %2 = stablehlo.cosine %x : tensor<8xf32>
  %3 = stablehlo.add %1, %2 : tensor<8xf32>
  // CHECK-NEXT: %[[B:.*]] = stablehlo.composite "hloom.capture_region" %{{.*}}, %{{.*}} {
  // CHECK-NEXT: return %[[B]]
  return %3 : tensor<8xf32>
}

// Work that needs no answer is in the first region, before the call.
// CHECK-LABEL: func.func public @legacy
func.func public @legacy(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = stablehlo.sine %x : tensor<8xf32>
  // CHECK-NEXT: %[[A:.*]]:2 = stablehlo.composite "hloom.capture_region" %arg0
  // CHECK-SAME: operations = 2 : i64
  // CHECK-NEXT: %[[H:.*]] = stablehlo.custom_call @mine(%[[A]]#0)
  %1 = stablehlo.custom_call @mine(%0) : (tensor<8xf32>) -> tensor<8xf32>
  %2 = stablehlo.cosine %x : tensor<8xf32>
  %3 = stablehlo.add %1, %2 : tensor<8xf32>
  // CHECK-NEXT: %[[B:.*]] = stablehlo.composite "hloom.capture_region" %[[H]], %[[A]]#1
  // CHECK-NEXT: return %[[B]]
  return %3 : tensor<8xf32>
}

// A loop with a collective in it has a region in its body, and none around it.
// CHECK-LABEL: func.func public @a_loop_with_a_collective
func.func public @a_loop_with_a_collective(%x: tensor<8xf32>) -> tensor<8xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  // CHECK: stablehlo.while
  %0:2 = stablehlo.while(%i = %zero, %c = %x) : tensor<i32>, tensor<8xf32>
  cond {
    %n = stablehlo.constant dense<3> : tensor<i32>
    %p = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
    // CHECK: } do {
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %1 = stablehlo.sine %c : tensor<8xf32>
    // CHECK: %[[A:.*]]:2 = stablehlo.composite "hloom.capture_region"
    // CHECK-NEXT: %[[S:.*]] = "stablehlo.all_reduce"(%[[A]]#
    %2 = "stablehlo.all_reduce"(%1) <{
        channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
        replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<8xf32>) -> tensor<8xf32>
    %3 = stablehlo.add %i, %one : tensor<i32>
    // CHECK: stablehlo.return
    stablehlo.return %3, %2 : tensor<i32>, tensor<8xf32>
  }
  return %0#1 : tensor<8xf32>
}

// No composite takes or gives a future, so the start and the end of an exchange are outside.
// CHECK-LABEL: func.func public @a_future
func.func public @a_future(%x: tensor<8xf32>) -> tensor<16xf32> {
  %0 = stablehlo.sine %x : tensor<8xf32>
  // CHECK-NEXT: %[[A:.*]] = stablehlo.composite "hloom.capture_region" %arg0
  // CHECK-NEXT: %[[F:.*]] = "stablehlo.async_start"(%[[A]])
  %1 = "stablehlo.async_start"(%0) ({
  ^bb0(%a: tensor<8xf32>):
    %s = "stablehlo.all_gather"(%a) <{all_gather_dim = 0 : i64, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}> : (tensor<8xf32>) -> tensor<16xf32>
    stablehlo.return %s : tensor<16xf32>
  }) : (tensor<8xf32>) -> !stablehlo.future<tensor<16xf32>>
  // CHECK: %[[D:.*]] = "stablehlo.async_done"(%[[F]])
  %2 = "stablehlo.async_done"(%1) : (!stablehlo.future<tensor<16xf32>>) -> tensor<16xf32>
  %3 = stablehlo.cosine %2 : tensor<16xf32>
  // CHECK-NEXT: %[[B:.*]] = stablehlo.composite "hloom.capture_region" %[[D]]
  // CHECK-NEXT: return %[[B]]
  return %3 : tensor<16xf32>
}

// Nor an index.
// CHECK-LABEL: func.func public @an_index
func.func public @an_index(%x: tensor<8xf32>) -> tensor<8xf32> {
  // CHECK-NEXT: %[[S:.*]] = shape.shape_of %arg0
  %0 = shape.shape_of %x : tensor<8xf32> -> tensor<1xindex>
  // CHECK-NEXT: %[[Y:.*]] = stablehlo.dynamic_reshape %arg0, %[[S]]
  %1 = stablehlo.dynamic_reshape %x, %0 : (tensor<8xf32>, tensor<1xindex>) -> tensor<8xf32>
  %2 = stablehlo.cosine %1 : tensor<8xf32>
  // CHECK-NEXT: %[[B:.*]] = stablehlo.composite "hloom.capture_region" %[[Y]]
  // CHECK-NEXT: return %[[B]]
  return %2 : tensor<8xf32>
}
