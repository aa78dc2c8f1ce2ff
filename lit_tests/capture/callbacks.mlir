// Host callbacks that go to the edge.
// RUN: hloom-opt %s -p "capture{min_ops=2}" --target h100_sxm | filecheck %s

// Nothing needs what the host does: it waits for the end, and the work is one region.
// CHECK-LABEL: func.func public @to_the_end
func.func public @to_the_end(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = stablehlo.sine %x : tensor<8xf32>
  // CHECK-NEXT: %[[R:.*]]:2 = stablehlo.composite "hloom.capture_region" %arg0
  // CHECK-NEXT: stablehlo.custom_call @xla_ffi_python_gpu_callback(%[[R]]#1)
  stablehlo.custom_call @xla_ffi_python_gpu_callback(%0)
      {api_version = 4 : i32, backend_config = {index = 0 : ui64}, has_side_effect = true}
      : (tensor<8xf32>) -> ()
  %1 = stablehlo.cosine %0 : tensor<8xf32>
  // CHECK-NEXT: return %[[R]]#0
  return %1 : tensor<8xf32>
}

// It needs no work: it moves to the start, and waits for nothing.
// CHECK-LABEL: func.func public @to_the_start
func.func public @to_the_start(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = stablehlo.sine %x : tensor<8xf32>
  // CHECK-NEXT: %[[H:.*]] = stablehlo.custom_call @xla_ffi_python_gpu_callback(%arg0)
  %1 = stablehlo.custom_call @xla_ffi_python_gpu_callback(%x)
      {api_version = 4 : i32, backend_config = {index = 0 : ui64}}
      : (tensor<8xf32>) -> tensor<8xf32>
  %2 = stablehlo.add %0, %1 : tensor<8xf32>
  // CHECK-NEXT: %[[R:.*]] = stablehlo.composite "hloom.capture_region" %arg0, %[[H]]
  // CHECK-NEXT: return %[[R]]
  return %2 : tensor<8xf32>
}

// Two that do not need each other wait for each other: two regions, and not three.
// CHECK-LABEL: func.func public @together
func.func public @together(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = stablehlo.sine %x : tensor<8xf32>
  // CHECK-NEXT: %[[A:.*]]:2 = stablehlo.composite "hloom.capture_region" %arg0
  // CHECK-NEXT: %[[G:.*]] = stablehlo.custom_call @xla_ffi_python_gpu_callback(%[[A]]#0)
  %1 = stablehlo.custom_call @xla_ffi_python_gpu_callback(%0)
      {api_version = 4 : i32, backend_config = {index = 0 : ui64}}
      : (tensor<8xf32>) -> tensor<8xf32>
  %2 = stablehlo.tanh %1 : tensor<8xf32>
  %3 = stablehlo.cosine %x : tensor<8xf32>
  // CHECK-NEXT: %[[H:.*]] = stablehlo.custom_call @xla_ffi_python_gpu_callback(%[[A]]#1)
  %4 = stablehlo.custom_call @xla_ffi_python_gpu_callback(%3)
      {api_version = 4 : i32, backend_config = {index = 1 : ui64}}
      : (tensor<8xf32>) -> tensor<8xf32>
  %5 = stablehlo.add %2, %4 : tensor<8xf32>
  // CHECK-NEXT: %[[B:.*]] = stablehlo.composite "hloom.capture_region" %[[G]], %[[H]]
  // CHECK-NEXT: return %[[B]]
  return %5 : tensor<8xf32>
}

// What the first one hands to the host is selected by a condition of the result, always false.
// CHECK-LABEL: func.func private @hloom.capture_region_0(%arg0: tensor<8xf32>)
// CHECK-NEXT:    %[[S:.*]] = stablehlo.sine %arg0
// CHECK-NEXT:    %[[C:.*]] = stablehlo.cosine %[[S]]
// CHECK-NEXT:    %[[F:.*]] = stablehlo.slice %[[C]] [0:1]
// CHECK-NEXT:    %[[E:.*]] = stablehlo.reshape %[[F]] : (tensor<1xf32>) -> tensor<f32>
// CHECK-NEXT:    %[[B:.*]] = stablehlo.bitcast_convert %[[E]] : (tensor<f32>) -> tensor<ui32>
// CHECK-NEXT:    %[[ONE:.*]] = stablehlo.constant dense<1> : tensor<ui32>
// CHECK-NEXT:    %[[ODD:.*]] = stablehlo.or %[[B]], %[[ONE]]
// CHECK-NEXT:    %[[ZERO:.*]] = stablehlo.constant dense<0> : tensor<ui32>
// CHECK-NEXT:    %[[NEVER:.*]] = stablehlo.compare EQ, %[[ODD]], %[[ZERO]]
// CHECK:         %[[W:.*]] = stablehlo.select %[[NEVER]], %{{.*}}, %[[S]]
// CHECK-NEXT:    return %[[C]], %[[W]]
