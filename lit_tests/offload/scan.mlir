// A stack of residuals goes to the host: the forward loop stores its slices there and carries the last
// one out; the backward loop carries the slice that it reads, and loads the next one.
// RUN: hloom-opt %s -p "offload{min_bytes=1 exposed=1000}" --target h100_sxm -o %t && filecheck %s --input-file %t
// Nothing is left to do.
// RUN: hloom-opt %t -p cse -o %t.cse && hloom-opt %t -p "offload{min_bytes=1 exposed=1000}" --target h100_sxm | diff %t.cse -
// For anything but a GPU it does nothing.
// RUN: hloom-opt %s -o %t.off && hloom-opt %s -p "offload{min_bytes=1 exposed=1000}" | diff %t.off -
// Slices as small as these are not hidden.
// RUN: hloom-opt %s -p "offload{min_bytes=1}" --target h100_sxm | diff %t.off -

// CHECK-LABEL: func.func public @main
// CHECK:       %[[F:.*]]:4 = stablehlo.while
// CHECK:         %[[R:.*]] = stablehlo.tanh
// CHECK:         %[[SLICE:.*]] = stablehlo.reshape %[[R]]
// CHECK-NEXT:    %[[PLACED:.*]] = stablehlo.custom_call @annotate_device_placement(%[[SLICE]])
// CHECK-SAME:      has_side_effect = true
// CHECK-SAME:      _xla_buffer_placement = "pinned_host"
// CHECK-NEXT:    stablehlo.dynamic_update_slice %{{.*}}, %[[PLACED]]
// CHECK:         stablehlo.return {{.*}}, %[[SLICE]] :
// CHECK:       stablehlo.while(
// CHECK-SAME:    %[[STACK:[^ ]*]] = %[[F]]#2
// CHECK-SAME:    %[[CARRIED:[^ ]*]] = %[[F]]#3)
// CHECK:         do
// CHECK:         %[[NEXT:.*]] = stablehlo.subtract
// CHECK-NEXT:    %[[INDEX:.*]] = stablehlo.maximum %[[NEXT]],
// CHECK:         %[[LOAD:.*]] = stablehlo.dynamic_slice %[[STACK]], %[[INDEX]]
// CHECK-NEXT:    %[[ONDEVICE:.*]] = stablehlo.custom_call @annotate_device_placement(%[[LOAD]])
// CHECK-SAME:      _xla_buffer_placement = "device"
// CHECK:         stablehlo.reshape %[[CARRIED]]
// CHECK:         stablehlo.return {{.*}}, %[[ONDEVICE]] :
func.func public @main(%x: tensor<8xf32>, %dy: tensor<8xf32>) -> tensor<8xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %none = stablehlo.constant dense<0.0> : tensor<f32>
  %empty = stablehlo.broadcast_in_dim %none, dims = [] : (tensor<f32>) -> tensor<4x8xf32>
  %0:3 = stablehlo.while(%i = %zero, %c = %x, %s = %empty) : tensor<i32>, tensor<8xf32>, tensor<4x8xf32>
  cond {
    %n = stablehlo.constant dense<4> : tensor<i32>
    %p = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %first = stablehlo.constant dense<0> : tensor<i32>
    %1 = stablehlo.tanh %c : tensor<8xf32>
    %2 = stablehlo.reshape %1 : (tensor<8xf32>) -> tensor<1x8xf32>
    %3 = stablehlo.dynamic_update_slice %s, %2, %i, %first : (tensor<4x8xf32>, tensor<1x8xf32>, tensor<i32>, tensor<i32>) -> tensor<4x8xf32>
    %4 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %4, %1, %3 : tensor<i32>, tensor<8xf32>, tensor<4x8xf32>
  }
  %5:3 = stablehlo.while(%i = %zero, %d = %dy, %s = %0#2) : tensor<i32>, tensor<8xf32>, tensor<4x8xf32>
  cond {
    %n = stablehlo.constant dense<4> : tensor<i32>
    %p = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %first = stablehlo.constant dense<0> : tensor<i32>
    %last = stablehlo.constant dense<3> : tensor<i32>
    %6 = stablehlo.subtract %last, %i : tensor<i32>
    %7 = stablehlo.dynamic_slice %s, %6, %first, sizes = [1, 8] : (tensor<4x8xf32>, tensor<i32>, tensor<i32>) -> tensor<1x8xf32>
    %8 = stablehlo.reshape %7 : (tensor<1x8xf32>) -> tensor<8xf32>
    %9 = stablehlo.multiply %d, %8 : tensor<8xf32>
    %10 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %10, %9, %s : tensor<i32>, tensor<8xf32>, tensor<4x8xf32>
  }
  return %5#1 : tensor<8xf32>
}
