// Products that stay.
// RUN: hloom-opt %s -o %t && hloom-opt %s -p accumulate-in-place --target h100_sxm | diff %t -

// Somebody else reads the product: it would be in memory in the wider type.
func.func public @read(%sum: tensor<4x9xf32>, %x: tensor<8x4xbf16>, %g: tensor<8x9xbf16>) -> (tensor<4x9xf32>, tensor<4x9xbf16>) {
  %d = stablehlo.dot_general %x, %g, contracting_dims = [0] x [0] : (tensor<8x4xbf16>, tensor<8x9xbf16>) -> tensor<4x9xbf16>
  %f = stablehlo.convert %d : (tensor<4x9xbf16>) -> tensor<4x9xf32>
  %next = stablehlo.add %sum, %f : tensor<4x9xf32>
  return %next, %d : tensor<4x9xf32>, tensor<4x9xbf16>
}

// The same of what it is converted to.
func.func public @read_wide(%sum: tensor<4x9xf32>, %x: tensor<8x4xbf16>, %g: tensor<8x9xbf16>) -> (tensor<4x9xf32>, tensor<4x9xf32>) {
  %d = stablehlo.dot_general %x, %g, contracting_dims = [0] x [0] : (tensor<8x4xbf16>, tensor<8x9xbf16>) -> tensor<4x9xbf16>
  %f = stablehlo.convert %d : (tensor<4x9xbf16>) -> tensor<4x9xf32>
  %next = stablehlo.add %sum, %f : tensor<4x9xf32>
  %twice = stablehlo.add %f, %f : tensor<4x9xf32>
  return %next, %twice : tensor<4x9xf32>, tensor<4x9xf32>
}

// What rounds on the way, as the program wants it.
func.func public @rounds(%sum: tensor<4x9xf32>, %x: tensor<8x4xf16>, %g: tensor<8x9xf16>) -> tensor<4x9xf32> {
  %d = stablehlo.dot_general %x, %g, contracting_dims = [0] x [0] : (tensor<8x4xf16>, tensor<8x9xf16>) -> tensor<4x9xf16>
  %h = stablehlo.convert %d : (tensor<4x9xf16>) -> tensor<4x9xbf16>
  %f = stablehlo.convert %h : (tensor<4x9xbf16>) -> tensor<4x9xf32>
  %next = stablehlo.add %sum, %f : tensor<4x9xf32>
  return %next : tensor<4x9xf32>
}

// Work on the product that does not only move it.
func.func public @scaled(%sum: tensor<4x9xf32>, %scale: tensor<4x9xf32>, %x: tensor<8x4xbf16>, %g: tensor<8x9xbf16>) -> tensor<4x9xf32> {
  %d = stablehlo.dot_general %x, %g, contracting_dims = [0] x [0] : (tensor<8x4xbf16>, tensor<8x9xbf16>) -> tensor<4x9xbf16>
  %f = stablehlo.convert %d : (tensor<4x9xbf16>) -> tensor<4x9xf32>
  %s = stablehlo.multiply %f, %scale : tensor<4x9xf32>
  %next = stablehlo.add %sum, %s : tensor<4x9xf32>
  return %next : tensor<4x9xf32>
}

// A sum of the product's own type, and one in float64, which no product of narrower types has.
func.func public @types(%sum: tensor<4x9xbf16>, %wide: tensor<4x9xf64>, %x: tensor<8x4xbf16>, %g: tensor<8x9xbf16>, %y: tensor<8x4xf32>, %h: tensor<8x9xf32>) -> (tensor<4x9xbf16>, tensor<4x9xf64>, tensor<4x9xf64>) {
  %0 = stablehlo.dot_general %x, %g, contracting_dims = [0] x [0] : (tensor<8x4xbf16>, tensor<8x9xbf16>) -> tensor<4x9xbf16>
  %1 = stablehlo.add %sum, %0 : tensor<4x9xbf16>
  %2 = stablehlo.dot_general %x, %g, contracting_dims = [0] x [0] : (tensor<8x4xbf16>, tensor<8x9xbf16>) -> tensor<4x9xbf16>
  %3 = stablehlo.convert %2 : (tensor<4x9xbf16>) -> tensor<4x9xf64>
  %4 = stablehlo.add %wide, %3 : tensor<4x9xf64>
  %5 = stablehlo.dot_general %y, %h, contracting_dims = [0] x [0] : (tensor<8x4xf32>, tensor<8x9xf32>) -> tensor<4x9xf32>
  %6 = stablehlo.convert %5 : (tensor<4x9xf32>) -> tensor<4x9xf64>
  %7 = stablehlo.add %wide, %6 : tensor<4x9xf64>
  return %1, %4, %7 : tensor<4x9xbf16>, tensor<4x9xf64>, tensor<4x9xf64>
}

// Integers wrap where they are added up; of complex numbers there are no narrower ones.
func.func public @integers(%sum: tensor<4x9xi32>, %whole: tensor<4x9xf32>, %other: tensor<4x9xcomplex<f64>>, %x: tensor<8x4xi8>, %g: tensor<8x9xi8>, %y: tensor<8x4xcomplex<f32>>, %h: tensor<8x9xcomplex<f32>>) -> (tensor<4x9xi32>, tensor<4x9xf32>, tensor<4x9xcomplex<f64>>) {
  %0 = stablehlo.dot_general %x, %g, contracting_dims = [0] x [0] : (tensor<8x4xi8>, tensor<8x9xi8>) -> tensor<4x9xi8>
  %1 = stablehlo.convert %0 : (tensor<4x9xi8>) -> tensor<4x9xi32>
  %2 = stablehlo.add %sum, %1 : tensor<4x9xi32>
  %3 = stablehlo.dot_general %x, %g, contracting_dims = [0] x [0] : (tensor<8x4xi8>, tensor<8x9xi8>) -> tensor<4x9xi8>
  %4 = stablehlo.convert %3 : (tensor<4x9xi8>) -> tensor<4x9xf32>
  %5 = stablehlo.add %whole, %4 : tensor<4x9xf32>
  %6 = stablehlo.dot_general %y, %h, contracting_dims = [0] x [0] : (tensor<8x4xcomplex<f32>>, tensor<8x9xcomplex<f32>>) -> tensor<4x9xcomplex<f32>>
  %7 = stablehlo.convert %6 : (tensor<4x9xcomplex<f32>>) -> tensor<4x9xcomplex<f64>>
  %8 = stablehlo.add %other, %7 : tensor<4x9xcomplex<f64>>
  return %2, %5, %8 : tensor<4x9xi32>, tensor<4x9xf32>, tensor<4x9xcomplex<f64>>
}

// An algorithm that adds up in a type that is no wider than its result.
func.func public @algorithm(%sum: tensor<4x9xf32>, %x: tensor<8x4xf16>, %g: tensor<8x9xf16>) -> tensor<4x9xf32> {
  %d = stablehlo.dot_general %x, %g, contracting_dims = [0] x [0], algorithm = <lhs_precision_type = f16, rhs_precision_type = f16, accumulation_type = f16, lhs_component_count = 1, rhs_component_count = 1, num_primitive_operations = 1, allow_imprecise_accumulation = false> : (tensor<8x4xf16>, tensor<8x9xf16>) -> tensor<4x9xf16>
  %f = stablehlo.convert %d : (tensor<4x9xf16>) -> tensor<4x9xf32>
  %next = stablehlo.add %sum, %f : tensor<4x9xf32>
  return %next : tensor<4x9xf32>
}

// A product that is made before a loop is no term that the loop makes.
func.func public @before(%x: tensor<8x4xbf16>, %g: tensor<8x9xbf16>) -> tensor<4x9xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %two = stablehlo.constant dense<2> : tensor<i32>
  %zeros = stablehlo.constant dense<0.0> : tensor<4x9xf32>
  %d = stablehlo.dot_general %x, %g, contracting_dims = [0] x [0] : (tensor<8x4xbf16>, tensor<8x9xbf16>) -> tensor<4x9xbf16>
  %r:2 = stablehlo.while(%i = %zero, %sum = %zeros) : tensor<i32>, tensor<4x9xf32> cond {
    %c = stablehlo.compare LT, %i, %two : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    %f = stablehlo.convert %d : (tensor<4x9xbf16>) -> tensor<4x9xf32>
    %next = stablehlo.add %sum, %f : tensor<4x9xf32>
    %k = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %k, %next : tensor<i32>, tensor<4x9xf32>
  }
  return %r#1 : tensor<4x9xf32>
}

// Sizes that are not known.
func.func public @dynamic(%sum: tensor<?x9xf32>, %x: tensor<8x?xbf16>, %g: tensor<8x9xbf16>) -> tensor<?x9xf32> {
  %d = stablehlo.dot_general %x, %g, contracting_dims = [0] x [0] : (tensor<8x?xbf16>, tensor<8x9xbf16>) -> tensor<?x9xbf16>
  %f = stablehlo.convert %d : (tensor<?x9xbf16>) -> tensor<?x9xf32>
  %next = stablehlo.add %sum, %f : tensor<?x9xf32>
  return %next : tensor<?x9xf32>
}

// A convolution, whose kernels add nothing to their results.
func.func public @convolution(%sum: tensor<1x6x6x2xf32>, %x: tensor<1x8x8x2xbf16>, %k: tensor<3x3x2x2xbf16>) -> tensor<1x6x6x2xf32> {
  %d = stablehlo.convolution(%x, %k) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<1x8x8x2xbf16>, tensor<3x3x2x2xbf16>) -> tensor<1x6x6x2xbf16>
  %f = stablehlo.convert %d : (tensor<1x6x6x2xbf16>) -> tensor<1x6x6x2xf32>
  %next = stablehlo.add %sum, %f : tensor<1x6x6x2xf32>
  return %next : tensor<1x6x6x2xf32>
}
