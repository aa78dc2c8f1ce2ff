// Products that are made in the type of the sum that they are a term of.
// RUN: hloom-opt %s -p accumulate-in-place --target h100_sxm -o %t
// RUN: filecheck %s --input-file %t
// RUN: hloom-opt %s -p accumulate-in-place --target cpu --print-plan=json 2>&1 >%t.cpu | filecheck %s --check-prefix=CPU
// RUN: hloom-opt %t -p accumulate-in-place --target h100_sxm | diff %t -

// CPU: "does nothing on a CPU: XLA adds products of bfloat16 up unrounded there

// The sum is a loop's carry. As JAX writes a gradient: transposed, then converted.
// CHECK-LABEL: func.func public @carried
// CHECK:         %[[SUM:.*]] = %cst
// CHECK:         %[[D:.*]] = stablehlo.dot_general {{.*}} : (tensor<8x4xbf16>, tensor<8x9xbf16>) -> tensor<4x9xf32>
// CHECK-NEXT:    %[[T:.*]] = stablehlo.transpose %[[D]], dims = [1, 0] : (tensor<4x9xf32>) -> tensor<9x4xf32>
// CHECK-NEXT:    stablehlo.add %{{.*}}, %[[T]] : tensor<9x4xf32>
// CHECK-NOT:     stablehlo.convert
func.func public @carried(%x: tensor<8x4xbf16>, %g: tensor<8x9xbf16>) -> tensor<9x4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %two = stablehlo.constant dense<2> : tensor<i32>
  %zeros = stablehlo.constant dense<0.0> : tensor<9x4xf32>
  %r:2 = stablehlo.while(%i = %zero, %sum = %zeros) : tensor<i32>, tensor<9x4xf32> cond {
    %c = stablehlo.compare LT, %i, %two : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    %d = stablehlo.dot_general %x, %g, contracting_dims = [0] x [0] : (tensor<8x4xbf16>, tensor<8x9xbf16>) -> tensor<4x9xbf16>
    %t = stablehlo.transpose %d, dims = [1, 0] : (tensor<4x9xbf16>) -> tensor<9x4xbf16>
    %f = stablehlo.convert %t : (tensor<9x4xbf16>) -> tensor<9x4xf32>
    %next = stablehlo.add %sum, %f : tensor<9x4xf32>
    %k = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %k, %next : tensor<i32>, tensor<9x4xf32>
  }
  return %r#1 : tensor<9x4xf32>
}

// A plain value, the product its left operand; converted, then reshaped and transposed.
// CHECK-LABEL: func.func public @plain
// CHECK-NEXT:    %[[D:.*]] = stablehlo.dot_general {{.*}} -> tensor<4x6xf32>
// CHECK-NEXT:    %[[R:.*]] = stablehlo.reshape %[[D]] : (tensor<4x6xf32>) -> tensor<4x2x3xf32>
// CHECK-NEXT:    %[[T:.*]] = stablehlo.transpose %[[R]], dims = [2, 0, 1] : (tensor<4x2x3xf32>) -> tensor<3x4x2xf32>
// CHECK-NEXT:    stablehlo.add %[[T]], %arg0
func.func public @plain(%sum: tensor<3x4x2xf32>, %x: tensor<8x4xbf16>, %g: tensor<8x6xbf16>) -> tensor<3x4x2xf32> {
  %d = stablehlo.dot_general %x, %g, contracting_dims = [0] x [0] : (tensor<8x4xbf16>, tensor<8x6xbf16>) -> tensor<4x6xbf16>
  %f = stablehlo.convert %d : (tensor<4x6xbf16>) -> tensor<4x6xf32>
  %r = stablehlo.reshape %f : (tensor<4x6xf32>) -> tensor<4x2x3xf32>
  %t = stablehlo.transpose %r, dims = [2, 0, 1] : (tensor<4x2x3xf32>) -> tensor<3x4x2xf32>
  %next = stablehlo.add %t, %sum : tensor<3x4x2xf32>
  return %next : tensor<3x4x2xf32>
}

// Batches, float16, and attributes that stay.
// CHECK-LABEL: func.func public @batched
// CHECK:         stablehlo.dot_general %arg1, %arg2, batching_dims = [0] x [0], contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] {mhlo.frontend_attributes = {key = "value"}} : (tensor<2x8x4xf16>, tensor<2x8x9xf16>) -> tensor<2x4x9xf32>
// CHECK-NEXT:    stablehlo.add
func.func public @batched(%sum: tensor<2x4x9xf32>, %x: tensor<2x8x4xf16>, %g: tensor<2x8x9xf16>) -> tensor<2x4x9xf32> {
  %d = stablehlo.dot_general %x, %g, batching_dims = [0] x [0], contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] {mhlo.frontend_attributes = {key = "value"}} : (tensor<2x8x4xf16>, tensor<2x8x9xf16>) -> tensor<2x4x9xf16>
  %f = stablehlo.convert %d : (tensor<2x4x9xf16>) -> tensor<2x4x9xf32>
  %next = stablehlo.add %sum, %f : tensor<2x4x9xf32>
  return %next : tensor<2x4x9xf32>
}

// Float8, widened in two steps; and a sum in bfloat16.
// CHECK-LABEL: func.func public @float8
// CHECK-NEXT:    %[[D:.*]] = stablehlo.dot_general {{.*}} -> tensor<4x9xf32>
// CHECK-NEXT:    stablehlo.add %arg0, %[[D]] : tensor<4x9xf32>
// CHECK-NEXT:    %[[E:.*]] = stablehlo.dot_general {{.*}} -> tensor<4x9xbf16>
// CHECK-NEXT:    stablehlo.add %arg1, %[[E]] : tensor<4x9xbf16>
func.func public @float8(%sum: tensor<4x9xf32>, %other: tensor<4x9xbf16>, %x: tensor<8x4xf8E4M3FN>, %g: tensor<8x9xf8E5M2>) -> (tensor<4x9xf32>, tensor<4x9xbf16>) {
  %d = stablehlo.dot_general %x, %g, contracting_dims = [0] x [0] : (tensor<8x4xf8E4M3FN>, tensor<8x9xf8E5M2>) -> tensor<4x9xf8E5M2>
  %h = stablehlo.convert %d : (tensor<4x9xf8E5M2>) -> tensor<4x9xbf16>
  %f = stablehlo.convert %h : (tensor<4x9xbf16>) -> tensor<4x9xf32>
  %next = stablehlo.add %sum, %f : tensor<4x9xf32>
  %e = stablehlo.dot_general %x, %g, contracting_dims = [0] x [0] : (tensor<8x4xf8E4M3FN>, tensor<8x9xf8E5M2>) -> tensor<4x9xf8E5M2>
  %w = stablehlo.convert %e : (tensor<4x9xf8E5M2>) -> tensor<4x9xbf16>
  %last = stablehlo.add %other, %w : tensor<4x9xbf16>
  return %next, %last : tensor<4x9xf32>, tensor<4x9xbf16>
}

// An algorithm that adds up in float32 has the sum.
// CHECK-LABEL: func.func public @algorithm
// CHECK:         stablehlo.dot_general {{.*}} accumulation_type = f32{{.*}} -> tensor<4x9xf32>
// CHECK-NEXT:    stablehlo.add
func.func public @algorithm(%sum: tensor<4x9xf32>, %x: tensor<8x4xbf16>, %g: tensor<8x9xbf16>) -> tensor<4x9xf32> {
  %d = stablehlo.dot_general %x, %g, contracting_dims = [0] x [0], algorithm = <lhs_precision_type = bf16, rhs_precision_type = bf16, accumulation_type = f32, lhs_component_count = 1, rhs_component_count = 1, num_primitive_operations = 1, allow_imprecise_accumulation = false> : (tensor<8x4xbf16>, tensor<8x9xbf16>) -> tensor<4x9xbf16>
  %f = stablehlo.convert %d : (tensor<4x9xbf16>) -> tensor<4x9xf32>
  %next = stablehlo.add %sum, %f : tensor<4x9xf32>
  return %next : tensor<4x9xf32>
}

// Both terms are products: one is added to the other.
// CHECK-LABEL: func.func public @both
// CHECK-NEXT:    %[[D:.*]] = stablehlo.dot_general {{.*}} -> tensor<4x9xf32>
// CHECK-NEXT:    %[[E:.*]] = stablehlo.dot_general {{.*}} -> tensor<4x9xf32>
// CHECK-NEXT:    stablehlo.add %[[D]], %[[E]]
func.func public @both(%x: tensor<8x4xbf16>, %y: tensor<8x4xbf16>, %g: tensor<8x9xbf16>) -> tensor<4x9xf32> {
  %d = stablehlo.dot_general %x, %g, contracting_dims = [0] x [0] : (tensor<8x4xbf16>, tensor<8x9xbf16>) -> tensor<4x9xbf16>
  %e = stablehlo.dot_general %y, %g, contracting_dims = [0] x [0] : (tensor<8x4xbf16>, tensor<8x9xbf16>) -> tensor<4x9xbf16>
  %f = stablehlo.convert %d : (tensor<4x9xbf16>) -> tensor<4x9xf32>
  %h = stablehlo.convert %e : (tensor<4x9xbf16>) -> tensor<4x9xf32>
  %next = stablehlo.add %f, %h : tensor<4x9xf32>
  return %next : tensor<4x9xf32>
}

// Sums of nothing, and sums that are nothing.
// CHECK-LABEL: func.func public @empty
// CHECK:         stablehlo.dot_general {{.*}} : (tensor<0x4xbf16>, tensor<0x9xbf16>) -> tensor<4x9xf32>
// CHECK:         stablehlo.dot_general {{.*}} : (tensor<8x0xbf16>, tensor<8x9xbf16>) -> tensor<0x9xf32>
// CHECK:         stablehlo.dot_general {{.*}} : (tensor<8xbf16>, tensor<8xbf16>) -> tensor<f32>
func.func public @empty(%sum: tensor<4x9xf32>, %none: tensor<0x9xf32>, %one: tensor<f32>, %x: tensor<0x4xbf16>, %y: tensor<0x9xbf16>, %g: tensor<8x0xbf16>, %h: tensor<8x9xbf16>, %v: tensor<8xbf16>) -> (tensor<4x9xf32>, tensor<0x9xf32>, tensor<f32>) {
  %0 = stablehlo.dot_general %x, %y, contracting_dims = [0] x [0] : (tensor<0x4xbf16>, tensor<0x9xbf16>) -> tensor<4x9xbf16>
  %1 = stablehlo.convert %0 : (tensor<4x9xbf16>) -> tensor<4x9xf32>
  %2 = stablehlo.add %sum, %1 : tensor<4x9xf32>
  %3 = stablehlo.dot_general %g, %h, contracting_dims = [0] x [0] : (tensor<8x0xbf16>, tensor<8x9xbf16>) -> tensor<0x9xbf16>
  %4 = stablehlo.convert %3 : (tensor<0x9xbf16>) -> tensor<0x9xf32>
  %5 = stablehlo.add %none, %4 : tensor<0x9xf32>
  %6 = stablehlo.dot_general %v, %v, contracting_dims = [0] x [0] : (tensor<8xbf16>, tensor<8xbf16>) -> tensor<bf16>
  %7 = stablehlo.convert %6 : (tensor<bf16>) -> tensor<f32>
  %8 = stablehlo.add %7, %one : tensor<f32>
  return %2, %5, %8 : tensor<4x9xf32>, tensor<0x9xf32>, tensor<f32>
}

// The weight gradient of a ragged product.
// CHECK-LABEL: func.func public @ragged
// CHECK:         "chlo.ragged_dot"{{.*}} -> tensor<3x4x9xf32>
// CHECK-NEXT:    stablehlo.add %arg0
func.func public @ragged(%sum: tensor<3x4x9xf32>, %x: tensor<8x4xbf16>, %g: tensor<8x9xbf16>, %sizes: tensor<3xi32>) -> tensor<3x4x9xf32> {
  %d = "chlo.ragged_dot"(%x, %g, %sizes) <{ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_contracting_dimensions = [0], rhs_contracting_dimensions = [0], lhs_ragged_dimensions = [0]>}> : (tensor<8x4xbf16>, tensor<8x9xbf16>, tensor<3xi32>) -> tensor<3x4x9xbf16>
  %f = stablehlo.convert %d : (tensor<3x4x9xbf16>) -> tensor<3x4x9xf32>
  %next = stablehlo.add %sum, %f : tensor<3x4x9xf32>
  return %next : tensor<3x4x9xf32>
}
