// Stacks that a loop overwrites as a whole start as whatever is in the buffer.
// RUN: hloom-opt %s -p "uninitialized-stacks{min_bytes=1}" --target h100_sxm -o %t && filecheck %s --input-file %t
// Twice is once.
// RUN: hloom-opt %t -p "uninitialized-stacks{min_bytes=1}" --target h100_sxm | diff %t -
// On a CPU XLA has no such buffers, on a TPU it does this itself; smaller stacks are not worth it.
// RUN: hloom-opt %s -p inline,cse,free-constants -o %t.off && hloom-opt %s -p "inline,cse,free-constants,uninitialized-stacks{min_bytes=1}" | diff %t.off -
// RUN: hloom-opt %s -p "inline,cse,free-constants,uninitialized-stacks{min_bytes=1}" --target v5e | diff %t.off -
// RUN: hloom-opt %s -p "inline,cse,free-constants,uninitialized-stacks" --target h100_sxm | diff %t.off -

// Slice i in iteration i. The zeros are gone with the fill, as nobody else reads them.
// CHECK-LABEL: func.func public @upward
// CHECK-NOT:     broadcast_in_dim
// CHECK:         %[[ANY:.*]] = stablehlo.composite "hloom.uninitialized" {{.*}}version = 1 : i32} : () -> tensor<4x8xf32>
// CHECK-NEXT:    stablehlo.while(%{{.*}} = %arg0, %{{.*}} = %[[ANY]])
func.func public @upward(%x: tensor<8xf32>) -> tensor<4x8xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %zeros = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> tensor<4x8xf32>
  %c = stablehlo.constant dense<0> : tensor<i32>
  %0:3 = stablehlo.while(%i = %c, %y = %x, %s = %zeros) : tensor<i32>, tensor<8xf32>, tensor<4x8xf32>
    cond {
      %n = stablehlo.constant dense<4> : tensor<i32>
      %1 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %o = stablehlo.constant dense<0> : tensor<i32>
      %1 = stablehlo.sine %y : tensor<8xf32>
      %2 = stablehlo.reshape %1 : (tensor<8xf32>) -> tensor<1x8xf32>
      %3 = stablehlo.dynamic_update_slice %s, %2, %i, %o : (tensor<4x8xf32>, tensor<1x8xf32>, tensor<i32>, tensor<i32>) -> tensor<4x8xf32>
      %4 = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %4, %1, %3 : tensor<i32>, tensor<8xf32>, tensor<4x8xf32>
    }
  return %0#2 : tensor<4x8xf32>
}

// Slice 3 - i in iteration i, of two stacks that are filled with the same zeros: each has its own buffer.
// The value that they were filled with is read elsewhere, too, and stays.
// CHECK-LABEL: func.func public @downward_twice
// CHECK:         %[[ZEROS:.*]] = stablehlo.broadcast_in_dim
// CHECK:         %[[FIRST:.*]] = stablehlo.composite "hloom.uninitialized"
// CHECK:         %[[SECOND:.*]] = stablehlo.composite "hloom.uninitialized"
// CHECK:         stablehlo.while(%iterArg = %{{.*}}, %{{.*}} = %[[FIRST]], %{{.*}} = %[[SECOND]])
// CHECK:         return %{{.*}}#1, %{{.*}}#2, %[[ZEROS]]
func.func public @downward_twice(%x: tensor<1x8xi4>) -> (tensor<4x8xi4>, tensor<4x8xi4>, tensor<4x8xi4>) {
  %zero = stablehlo.constant dense<0> : tensor<i4>
  %zeros = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<i4>) -> tensor<4x8xi4>
  %c = stablehlo.constant dense<0> : tensor<i32>
  %0:3 = stablehlo.while(%i = %c, %s = %zeros, %t = %zeros) : tensor<i32>, tensor<4x8xi4>, tensor<4x8xi4>
    cond {
      %n = stablehlo.constant dense<4> : tensor<i32>
      %1 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %three = stablehlo.constant dense<3> : tensor<i32>
      %o = stablehlo.constant dense<0> : tensor<i32>
      %1 = stablehlo.subtract %three, %i : tensor<i32>
      %2 = stablehlo.dynamic_update_slice %s, %x, %1, %o : (tensor<4x8xi4>, tensor<1x8xi4>, tensor<i32>, tensor<i32>) -> tensor<4x8xi4>
      %3 = stablehlo.dynamic_update_slice %t, %x, %i, %o : (tensor<4x8xi4>, tensor<1x8xi4>, tensor<i32>, tensor<i32>) -> tensor<4x8xi4>
      %4 = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %4, %2, %3 : tensor<i32>, tensor<4x8xi4>, tensor<4x8xi4>
    }
  return %0#1, %0#2, %zeros : tensor<4x8xi4>, tensor<4x8xi4>, tensor<4x8xi4>
}

// A stack of a loop inside a loop, which is made anew in each iteration of the outer one.
// CHECK-LABEL: func.func public @inside_a_loop
// CHECK:         stablehlo.while
// CHECK:         do
// CHECK:           %[[ANY:.*]] = stablehlo.composite "hloom.uninitialized" {{.*}} : () -> tensor<2x8xcomplex<f32>>
// CHECK-NEXT:      stablehlo.while(%{{.*}} = %{{.*}}, %{{.*}} = %[[ANY]])
func.func public @inside_a_loop(%x: tensor<1x8xcomplex<f32>>, %m: tensor<i32>) -> tensor<2x8xcomplex<f32>> {
  %zero = stablehlo.constant dense<(0.0,0.0)> : tensor<complex<f32>>
  %first = stablehlo.broadcast_in_dim %x, dims = [0, 1] : (tensor<1x8xcomplex<f32>>) -> tensor<2x8xcomplex<f32>>
  %c = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%j = %c, %last = %first) : tensor<i32>, tensor<2x8xcomplex<f32>>
    cond {
      %1 = stablehlo.compare LT, %j, %m : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %zeros = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<complex<f32>>) -> tensor<2x8xcomplex<f32>>
      %1:2 = stablehlo.while(%i = %c, %s = %zeros) : tensor<i32>, tensor<2x8xcomplex<f32>>
        cond {
          %n = stablehlo.constant dense<2> : tensor<i32>
          %2 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %2 : tensor<i1>
        } do {
          %2 = stablehlo.dynamic_update_slice %s, %x, %i, %c : (tensor<2x8xcomplex<f32>>, tensor<1x8xcomplex<f32>>, tensor<i32>, tensor<i32>) -> tensor<2x8xcomplex<f32>>
          %3 = stablehlo.add %i, %one : tensor<i32>
          stablehlo.return %3, %2 : tensor<i32>, tensor<2x8xcomplex<f32>>
        }
      %4 = stablehlo.add %j, %one : tensor<i32>
      stablehlo.return %4, %1#1 : tensor<i32>, tensor<2x8xcomplex<f32>>
    }
  return %0#1 : tensor<2x8xcomplex<f32>>
}

// CHECK-LABEL: func.func private @hloom.uninitialized.0
// CHECK:         %[[ZERO:.*]] = stablehlo.convert
// CHECK:         stablehlo.broadcast_in_dim %[[ZERO]]
