// Elementwise operations; values of the forward names are read again under backward names.
func.func @functions_of_floats() -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
  %x = stablehlo.constant dense<[0.5, -0.25, 0.75, -0.5]> : tensor<4xf32>
  %0 = stablehlo.abs %x : tensor<4xf32> loc("jvp()/abs")
  %1 = stablehlo.cbrt %0 : tensor<4xf32> loc("jvp()/cbrt")
  %2 = stablehlo.ceil %x : tensor<4xf32> loc("jvp()/ceil")
  %3 = stablehlo.cosine %1 : tensor<4xf32> loc("jvp()/cos")
  %4 = stablehlo.exponential %x : tensor<4xf32> loc("jvp()/exp")
  %5 = stablehlo.exponential_minus_one %x : tensor<4xf32> loc("jvp()/expm1")
  %6 = stablehlo.floor %x : tensor<4xf32> loc("jvp()/floor")
  %7 = stablehlo.log %4 : tensor<4xf32> loc("jvp()/log")
  %8 = stablehlo.log_plus_one %0 : tensor<4xf32> loc("jvp()/log1p")
  %9 = stablehlo.logistic %7 : tensor<4xf32> loc("jvp()/logistic")
  %10 = stablehlo.negate %9 : tensor<4xf32> loc("jvp()/neg")
  %11 = stablehlo.round_nearest_afz %4 : tensor<4xf32> loc("jvp()/round")
  %12 = stablehlo.round_nearest_even %4 : tensor<4xf32> loc("jvp()/round")
  %13 = stablehlo.rsqrt %4 : tensor<4xf32> loc("jvp()/rsqrt")
  %14 = stablehlo.sign %x : tensor<4xf32> loc("jvp()/sign")
  %15 = stablehlo.sine %13 : tensor<4xf32> loc("jvp()/sin")
  %16 = stablehlo.sqrt %4 : tensor<4xf32> loc("jvp()/sqrt")
  %17 = stablehlo.tan %x : tensor<4xf32> loc("jvp()/tan")
  %18 = stablehlo.tanh %17 : tensor<4xf32> loc("jvp()/tanh")
  %19 = stablehlo.reduce_precision %18, format = e5m10 : tensor<4xf32> loc("jvp()/reduce_precision")
  %20 = stablehlo.add %3, %15 : tensor<4xf32> loc("jvp()/add")
  %21 = stablehlo.subtract %20, %10 : tensor<4xf32> loc("jvp()/sub")
  %22 = stablehlo.multiply %2, %6 : tensor<4xf32> loc("transpose(jvp())/mul")
  %23 = stablehlo.multiply %21, %19 : tensor<4xf32> loc("transpose(jvp())/mul")
  %24 = stablehlo.add %5, %8 : tensor<4xf32> loc("transpose(jvp())/add")
  %25 = stablehlo.maximum %11, %12 : tensor<4xf32> loc("transpose(jvp())/max")
  %26 = stablehlo.minimum %14, %16 : tensor<4xf32> loc("transpose(jvp())/min")
  %27 = stablehlo.add %22, %23 : tensor<4xf32> loc("transpose(jvp())/add")
  %28 = stablehlo.subtract %24, %25 : tensor<4xf32> loc("transpose(jvp())/sub")
  return %26, %27, %28 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}

// -----

func.func @main() -> (tensor<3xf64>, tensor<3xf64>, tensor<3xf64>, tensor<3xi1>) {
  %x = stablehlo.constant dense<[1.5, -2.0, 3.25]> : tensor<3xf64>
  %y = stablehlo.constant dense<[0.5, 3.0, -1.0]> : tensor<3xf64>
  %0 = stablehlo.atan2 %x, %y : tensor<3xf64>
  %1 = stablehlo.divide %x, %y : tensor<3xf64>
  %2 = stablehlo.remainder %x, %y : tensor<3xf64>
  %3 = stablehlo.power %1, %1 : tensor<3xf64>
  %4 = stablehlo.is_finite %3 : (tensor<3xf64>) -> tensor<3xi1>
  %5 = stablehlo.clamp %y, %2, %x : tensor<3xf64>
  %6 = stablehlo.select %4, %0, %5 : tensor<3xi1>, tensor<3xf64>
  return %6, %2, %0, %4 : tensor<3xf64>, tensor<3xf64>, tensor<3xf64>, tensor<3xi1>
}

// -----

func.func @bits() -> (tensor<4xi32>, tensor<4xui8>, tensor<4xi1>) {
  %x = stablehlo.constant dense<[1, -2, 77, 2147483647]> : tensor<4xi32>
  %y = stablehlo.constant dense<[3, 1, 0, 31]> : tensor<4xi32>
  %u = stablehlo.constant dense<[0, 1, 128, 255]> : tensor<4xui8>
  %p = stablehlo.constant dense<[true, false, true, false]> : tensor<4xi1>
  %0 = stablehlo.and %x, %y : tensor<4xi32>
  %1 = stablehlo.or %x, %y : tensor<4xi32>
  %2 = stablehlo.xor %0, %1 : tensor<4xi32>
  %3 = stablehlo.not %2 : tensor<4xi32>
  %4 = stablehlo.shift_left %3, %y : tensor<4xi32>
  %5 = stablehlo.shift_right_arithmetic %x, %y : tensor<4xi32>
  %6 = stablehlo.shift_right_logical %x, %y : tensor<4xi32>
  %7 = stablehlo.count_leading_zeros %6 : tensor<4xi32>
  %8 = stablehlo.popcnt %5 : tensor<4xi32>
  %9 = stablehlo.add %7, %8 : tensor<4xi32>
  %10 = stablehlo.add %9, %4 : tensor<4xi32>
  %11 = stablehlo.popcnt %u : tensor<4xui8>
  %12 = stablehlo.not %p : tensor<4xi1>
  return %10, %11, %12 : tensor<4xi32>, tensor<4xui8>, tensor<4xi1>
}

// -----

func.func @complex_numbers() -> (tensor<2xf32>, tensor<2xf32>, tensor<2xcomplex<f32>>) {
  %re = stablehlo.constant dense<[1.0, -2.0]> : tensor<2xf32>
  %im = stablehlo.constant dense<[0.5, 3.0]> : tensor<2xf32>
  %0 = stablehlo.complex %re, %im : tensor<2xcomplex<f32>>
  %c = stablehlo.constant dense<[(1.0, 2.0), (0.0, -1.0)]> : tensor<2xcomplex<f32>>
  %1 = stablehlo.multiply %0, %c : tensor<2xcomplex<f32>>
  %2 = stablehlo.real %1 : (tensor<2xcomplex<f32>>) -> tensor<2xf32>
  %3 = stablehlo.imag %1 : (tensor<2xcomplex<f32>>) -> tensor<2xf32>
  %4 = stablehlo.exponential %1 : tensor<2xcomplex<f32>>
  return %2, %3, %4 : tensor<2xf32>, tensor<2xf32>, tensor<2xcomplex<f32>>
}

// -----

func.func @types() -> (tensor<4xi1>, tensor<4xbf16>, tensor<2x2xi8>, tensor<2xi16>) {
  %x = stablehlo.constant dense<[1.5, -2.0, 0.0, 100.0]> : tensor<4xf32>
  %y = stablehlo.constant dense<[1.5, 2.0, 0.5, 7.0]> : tensor<4xf32>
  %0 = stablehlo.compare GT, %x, %y, FLOAT : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
  %1 = stablehlo.convert %x : (tensor<4xf32>) -> tensor<4xbf16>
  %i = stablehlo.constant dense<[258, -3]> : tensor<2xi16>
  %2 = stablehlo.bitcast_convert %i : (tensor<2xi16>) -> tensor<2x2xi8>
  %3 = stablehlo.bitcast_convert %2 : (tensor<2x2xi8>) -> tensor<2xi16>
  return %0, %1, %2, %3 : tensor<4xi1>, tensor<4xbf16>, tensor<2x2xi8>, tensor<2xi16>
}

// -----

// An argument: its values are made up.
func.func @main(%x: tensor<2x3xf32>, %n: tensor<ui32>, %p: tensor<i1>) -> (tensor<2x3xf32>, tensor<ui32>) {
  %0 = "stablehlo.map"(%x, %x) <{dimensions = array<i64: 0, 1>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %c = stablehlo.multiply %a, %b : tensor<f32>
    stablehlo.return %c : tensor<f32>
  }) : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
  %1 = stablehlo.select %p, %0, %x : tensor<i1>, tensor<2x3xf32>
  %2 = stablehlo.add %n, %n : tensor<ui32>
  return %1, %2 : tensor<2x3xf32>, tensor<ui32>
}
