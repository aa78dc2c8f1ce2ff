// Attention in a kernel: its calls, with the masks that the kernel makes and those that it is given.
// RUN: hloom-opt %s -p "attention{kernel=emulated min_keys=1}" -o %t && filecheck %s --input-file %t
// RUN: hloom-opt %t -p cse -o %t.cse && hloom-opt %t.cse -p "attention{kernel=emulated min_keys=1}" | diff %t.cse -

// A causal mask is the kernel's. What computed the weights is gone.
// CHECK-LABEL: func.func public @causal
// CHECK-NEXT:    %[[OUT:.*]]:2 = stablehlo.composite "hloom.attention" %arg0, %arg1, %arg2 {composite_attributes = {causal = true, emulated = true, has_bias = false, number = 0 : i64, scale = 5.000000e-01 : f64, window = 0 : i64}
// CHECK-SAME:      (tensor<2x8x2x4xf32>, tensor<2x8x2x4xf32>, tensor<2x8x2x4xf32>) -> (tensor<2x8x2x4xf32>, tensor<2x2x8xf32>)
// CHECK-NEXT:    stablehlo.transpose %[[OUT]]#0
// CHECK-NOT:     stablehlo.exponential
// CHECK:         return
func.func public @causal(%arg0: tensor<2x8x2x4xf32>, %arg1: tensor<2x8x2x4xf32>, %arg2: tensor<2x8x2x4xf32>) -> (tensor<2x8x2x4xf32>) {
  %0 = stablehlo.dot_general %arg0, %arg1, batching_dims = [0, 2] x [0, 2], contracting_dims = [3] x [3] : (tensor<2x8x2x4xf32>, tensor<2x8x2x4xf32>) -> tensor<2x2x8x8xf32>
  %cst = stablehlo.constant dense<5.000000e-01> : tensor<f32>
  %1 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2x2x8x8xf32>
  %2 = stablehlo.multiply %0, %1 : tensor<2x2x8x8xf32>
  %3 = stablehlo.iota dim = 0 : tensor<8xi32>
  %4 = stablehlo.broadcast_in_dim %3, dims = [0] : (tensor<8xi32>) -> tensor<8x1xi32>
  %5 = stablehlo.broadcast_in_dim %3, dims = [1] : (tensor<8xi32>) -> tensor<1x8xi32>
  %6 = stablehlo.broadcast_in_dim %4, dims = [0, 1] : (tensor<8x1xi32>) -> tensor<8x8xi32>
  %7 = stablehlo.broadcast_in_dim %5, dims = [0, 1] : (tensor<1x8xi32>) -> tensor<8x8xi32>
  %8 = stablehlo.compare GE, %6, %7, SIGNED : (tensor<8x8xi32>, tensor<8x8xi32>) -> tensor<8x8xi1>
  %cst_0 = stablehlo.constant dense<-1.000000e+09> : tensor<f32>
  %9 = stablehlo.convert %cst_0 : tensor<f32>
  %10 = stablehlo.broadcast_in_dim %8, dims = [2, 3] : (tensor<8x8xi1>) -> tensor<2x2x8x8xi1>
  %11 = stablehlo.broadcast_in_dim %9, dims = [] : (tensor<f32>) -> tensor<2x2x8x8xf32>
  %12 = stablehlo.select %10, %2, %11 : tensor<2x2x8x8xi1>, tensor<2x2x8x8xf32>
  %cst_1 = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %13 = stablehlo.reduce(%12 init: %cst_1) applies stablehlo.maximum across dimensions = [3] : (tensor<2x2x8x8xf32>, tensor<f32>) -> tensor<2x2x8xf32>
  %14 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<2x2x8xf32>
  %15 = stablehlo.maximum %14, %13 : tensor<2x2x8xf32>
  %16 = stablehlo.broadcast_in_dim %15, dims = [0, 1, 2] : (tensor<2x2x8xf32>) -> tensor<2x2x8x1xf32>
  %17 = stablehlo.broadcast_in_dim %16, dims = [0, 1, 2, 3] : (tensor<2x2x8x1xf32>) -> tensor<2x2x8x8xf32>
  %18 = stablehlo.subtract %12, %17 : tensor<2x2x8x8xf32>
  %19 = stablehlo.exponential %18 : tensor<2x2x8x8xf32>
  %cst_2 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
  %20 = stablehlo.reduce(%19 init: %cst_2) applies stablehlo.add across dimensions = [3] : (tensor<2x2x8x8xf32>, tensor<f32>) -> tensor<2x2x8xf32>
  %21 = stablehlo.broadcast_in_dim %20, dims = [0, 1, 2] : (tensor<2x2x8xf32>) -> tensor<2x2x8x1xf32>
  %22 = stablehlo.broadcast_in_dim %21, dims = [0, 1, 2, 3] : (tensor<2x2x8x1xf32>) -> tensor<2x2x8x8xf32>
  %23 = stablehlo.divide %19, %22 : tensor<2x2x8x8xf32>
  %24 = stablehlo.dot_general %arg2, %23, batching_dims = [0, 2] x [0, 1], contracting_dims = [1] x [3] : (tensor<2x8x2x4xf32>, tensor<2x2x8x8xf32>) -> tensor<2x2x4x8xf32>
  %25 = stablehlo.transpose %24, dims = [0, 3, 1, 2] : (tensor<2x2x4x8xf32>) -> tensor<2x8x2x4xf32>
  return %25 : tensor<2x8x2x4xf32>
}

// The gradient reads the output and the statistics of the call.
// CHECK-LABEL: func.func public @gradient
// CHECK:         %[[OUT:.*]]:2 = stablehlo.composite "hloom.attention" %arg0, %arg1, %arg2
// CHECK-SAME:      causal = false
// CHECK:         %[[GRADIENT:.*]]:3 = stablehlo.composite "hloom.attention_gradient" %arg0, %arg1, %arg2, %[[OUT]]#0, %[[OUT]]#1, %{{.*}} {composite_attributes
// CHECK-DAG:     stablehlo.transpose %[[GRADIENT]]#0
// CHECK-DAG:     stablehlo.transpose %[[GRADIENT]]#1
// CHECK-DAG:     stablehlo.transpose %[[GRADIENT]]#2
// CHECK-NOT:     stablehlo.dot_general
// CHECK:         return
func.func public @gradient(%arg0: tensor<2x8x2x4xf32>, %arg1: tensor<2x8x2x4xf32>, %arg2: tensor<2x8x2x4xf32>, %arg3: tensor<2x8x2x4xf32>) -> (tensor<2x8x2x4xf32>, tensor<2x8x2x4xf32>, tensor<2x8x2x4xf32>, tensor<2x8x2x4xf32>) {
  %0 = stablehlo.dot_general %arg0, %arg1, batching_dims = [0, 2] x [0, 2], contracting_dims = [3] x [3] : (tensor<2x8x2x4xf32>, tensor<2x8x2x4xf32>) -> tensor<2x2x8x8xf32>
  %cst = stablehlo.constant dense<5.000000e-01> : tensor<f32>
  %1 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2x2x8x8xf32>
  %2 = stablehlo.multiply %0, %1 : tensor<2x2x8x8xf32>
  %cst_0 = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %3 = stablehlo.reduce(%2 init: %cst_0) applies stablehlo.maximum across dimensions = [3] : (tensor<2x2x8x8xf32>, tensor<f32>) -> tensor<2x2x8xf32>
  %4 = stablehlo.reshape %3 : (tensor<2x2x8xf32>) -> tensor<2x2x8x1xf32>
  %5 = stablehlo.broadcast_in_dim %4, dims = [0, 1, 2, 3] : (tensor<2x2x8x1xf32>) -> tensor<2x2x8x8xf32>
  %6 = stablehlo.compare EQ, %2, %5, FLOAT : (tensor<2x2x8x8xf32>, tensor<2x2x8x8xf32>) -> tensor<2x2x8x8xi1>
  %7 = stablehlo.convert %6 : (tensor<2x2x8x8xi1>) -> tensor<2x2x8x8xf32>
  %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
  %8 = stablehlo.reduce(%7 init: %cst_1) applies stablehlo.add across dimensions = [3] : (tensor<2x2x8x8xf32>, tensor<f32>) -> tensor<2x2x8xf32>
  %9 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<2x2x8xf32>
  %10 = stablehlo.maximum %9, %3 : tensor<2x2x8xf32>
  %11 = stablehlo.compare EQ, %3, %10, FLOAT : (tensor<2x2x8xf32>, tensor<2x2x8xf32>) -> tensor<2x2x8xi1>
  %cst_2 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
  %12 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<2x2x8xf32>
  %13 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<2x2x8xf32>
  %14 = stablehlo.select %11, %12, %13 : tensor<2x2x8xi1>, tensor<2x2x8xf32>
  %15 = stablehlo.compare EQ, %9, %10, FLOAT : (tensor<2x2x8xf32>, tensor<2x2x8xf32>) -> tensor<2x2x8xi1>
  %cst_3 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
  %16 = stablehlo.broadcast_in_dim %cst_3, dims = [] : (tensor<f32>) -> tensor<2x2x8xf32>
  %17 = stablehlo.select %15, %16, %12 : tensor<2x2x8xi1>, tensor<2x2x8xf32>
  %18 = stablehlo.divide %14, %17 : tensor<2x2x8xf32>
  %19 = stablehlo.broadcast_in_dim %10, dims = [0, 1, 2] : (tensor<2x2x8xf32>) -> tensor<2x2x8x1xf32>
  %20 = stablehlo.broadcast_in_dim %19, dims = [0, 1, 2, 3] : (tensor<2x2x8x1xf32>) -> tensor<2x2x8x8xf32>
  %21 = stablehlo.subtract %2, %20 : tensor<2x2x8x8xf32>
  %22 = stablehlo.exponential %21 : tensor<2x2x8x8xf32>
  %23 = stablehlo.reduce(%22 init: %cst_1) applies stablehlo.add across dimensions = [3] : (tensor<2x2x8x8xf32>, tensor<f32>) -> tensor<2x2x8xf32>
  %24 = stablehlo.broadcast_in_dim %23, dims = [0, 1, 2] : (tensor<2x2x8xf32>) -> tensor<2x2x8x1xf32>
  %25 = stablehlo.broadcast_in_dim %24, dims = [0, 1, 2, 3] : (tensor<2x2x8x1xf32>) -> tensor<2x2x8x8xf32>
  %26 = stablehlo.divide %22, %25 : tensor<2x2x8x8xf32>
  %27 = stablehlo.multiply %24, %24 : tensor<2x2x8x1xf32>
  %28 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<2x2x8x1xf32>
  %29 = stablehlo.divide %28, %27 : tensor<2x2x8x1xf32>
  %30 = stablehlo.dot_general %arg2, %26, batching_dims = [0, 2] x [0, 1], contracting_dims = [1] x [3] : (tensor<2x8x2x4xf32>, tensor<2x2x8x8xf32>) -> tensor<2x2x4x8xf32>
  %31 = stablehlo.transpose %30, dims = [0, 3, 1, 2] : (tensor<2x2x4x8xf32>) -> tensor<2x8x2x4xf32>
  %32 = stablehlo.transpose %arg3, dims = [0, 2, 3, 1] : (tensor<2x8x2x4xf32>) -> tensor<2x2x4x8xf32>
  %33 = stablehlo.dot_general %32, %arg2, batching_dims = [0, 1] x [0, 2], contracting_dims = [2] x [3] : (tensor<2x2x4x8xf32>, tensor<2x8x2x4xf32>) -> tensor<2x2x8x8xf32>
  %34 = stablehlo.dot_general %32, %26, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2] : (tensor<2x2x4x8xf32>, tensor<2x2x8x8xf32>) -> tensor<2x2x4x8xf32>
  %35 = stablehlo.transpose %34, dims = [0, 3, 1, 2] : (tensor<2x2x4x8xf32>) -> tensor<2x8x2x4xf32>
  %36 = stablehlo.broadcast_in_dim %29, dims = [0, 1, 2, 3] : (tensor<2x2x8x1xf32>) -> tensor<2x2x8x8xf32>
  %37 = stablehlo.multiply %33, %36 : tensor<2x2x8x8xf32>
  %38 = stablehlo.multiply %37, %22 : tensor<2x2x8x8xf32>
  %39 = stablehlo.reduce(%38 init: %cst_1) applies stablehlo.add across dimensions = [3] : (tensor<2x2x8x8xf32>, tensor<f32>) -> tensor<2x2x8xf32>
  %40 = stablehlo.reshape %39 : (tensor<2x2x8xf32>) -> tensor<2x2x8x1xf32>
  %41 = stablehlo.negate %40 : tensor<2x2x8x1xf32>
  %42 = stablehlo.divide %33, %25 : tensor<2x2x8x8xf32>
  %43 = stablehlo.reduce(%41 init: %cst_1) applies stablehlo.add across dimensions = [3] : (tensor<2x2x8x1xf32>, tensor<f32>) -> tensor<2x2x8xf32>
  %44 = stablehlo.broadcast_in_dim %43, dims = [0, 1, 2] : (tensor<2x2x8xf32>) -> tensor<2x2x8x8xf32>
  %45 = stablehlo.add %42, %44 : tensor<2x2x8x8xf32>
  %46 = stablehlo.multiply %45, %22 : tensor<2x2x8x8xf32>
  %47 = stablehlo.multiply %46, %1 : tensor<2x2x8x8xf32>
  %48 = stablehlo.dot_general %47, %arg0, batching_dims = [0, 1] x [0, 2], contracting_dims = [2] x [1] : (tensor<2x2x8x8xf32>, tensor<2x8x2x4xf32>) -> tensor<2x2x8x4xf32>
  %49 = stablehlo.transpose %48, dims = [0, 2, 1, 3] : (tensor<2x2x8x4xf32>) -> tensor<2x8x2x4xf32>
  %50 = stablehlo.dot_general %47, %arg1, batching_dims = [0, 1] x [0, 2], contracting_dims = [3] x [1] : (tensor<2x2x8x8xf32>, tensor<2x8x2x4xf32>) -> tensor<2x2x8x4xf32>
  %51 = stablehlo.transpose %50, dims = [0, 2, 1, 3] : (tensor<2x2x8x4xf32>) -> tensor<2x8x2x4xf32>
  return %31, %51, %49, %35 : tensor<2x8x2x4xf32>, tensor<2x8x2x4xf32>, tensor<2x8x2x4xf32>, tensor<2x8x2x4xf32>
}

// Two heads of queries share one of keys.
// CHECK-LABEL: func.func public @grouped
// CHECK:         stablehlo.composite "hloom.attention" %{{.*}} (tensor<2x8x2x4xf32>, tensor<2x8x1x4xf32>, tensor<2x8x1x4xf32>) -> (tensor<2x8x2x4xf32>, tensor<2x2x8xf32>)
// CHECK-NOT:     stablehlo.dot_general
// CHECK:         return
func.func public @grouped(%arg0: tensor<2x8x1x2x4xf32>, %arg1: tensor<2x8x1x4xf32>, %arg2: tensor<2x8x1x4xf32>) -> (tensor<2x8x1x2x4xf32>) {
  %0 = stablehlo.dot_general %arg1, %arg0, batching_dims = [0, 2] x [0, 2], contracting_dims = [3] x [4] : (tensor<2x8x1x4xf32>, tensor<2x8x1x2x4xf32>) -> tensor<2x1x8x8x2xf32>
  %1 = stablehlo.transpose %0, dims = [0, 1, 4, 3, 2] : (tensor<2x1x8x8x2xf32>) -> tensor<2x1x2x8x8xf32>
  %cst = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %2 = stablehlo.reduce(%1 init: %cst) applies stablehlo.maximum across dimensions = [4] : (tensor<2x1x2x8x8xf32>, tensor<f32>) -> tensor<2x1x2x8xf32>
  %3 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2x1x2x8xf32>
  %4 = stablehlo.maximum %3, %2 : tensor<2x1x2x8xf32>
  %5 = stablehlo.broadcast_in_dim %4, dims = [0, 1, 2, 3] : (tensor<2x1x2x8xf32>) -> tensor<2x1x2x8x1xf32>
  %6 = stablehlo.broadcast_in_dim %5, dims = [0, 1, 2, 3, 4] : (tensor<2x1x2x8x1xf32>) -> tensor<2x1x2x8x8xf32>
  %7 = stablehlo.subtract %1, %6 : tensor<2x1x2x8x8xf32>
  %8 = stablehlo.exponential %7 : tensor<2x1x2x8x8xf32>
  %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
  %9 = stablehlo.reduce(%8 init: %cst_0) applies stablehlo.add across dimensions = [4] : (tensor<2x1x2x8x8xf32>, tensor<f32>) -> tensor<2x1x2x8xf32>
  %10 = stablehlo.broadcast_in_dim %9, dims = [0, 1, 2, 3] : (tensor<2x1x2x8xf32>) -> tensor<2x1x2x8x1xf32>
  %11 = stablehlo.broadcast_in_dim %10, dims = [0, 1, 2, 3, 4] : (tensor<2x1x2x8x1xf32>) -> tensor<2x1x2x8x8xf32>
  %12 = stablehlo.divide %8, %11 : tensor<2x1x2x8x8xf32>
  %13 = stablehlo.dot_general %arg2, %12, batching_dims = [0, 2] x [0, 1], contracting_dims = [1] x [4] : (tensor<2x8x1x4xf32>, tensor<2x1x2x8x8xf32>) -> tensor<2x1x4x2x8xf32>
  %14 = stablehlo.transpose %13, dims = [0, 4, 1, 3, 2] : (tensor<2x1x4x2x8xf32>) -> tensor<2x8x1x2x4xf32>
  return %14 : tensor<2x8x1x2x4xf32>
}

// Another mask is a bias, of one head for all. A row without a key is an average: its bias and its
// queries are zeros.
// CHECK-LABEL: func.func public @padded
// CHECK:         %[[MASK:.*]] = stablehlo.select %{{.*}} : tensor<2x2x8x8xi1>, tensor<2x2x8x8xf32>
// CHECK:         %[[BIAS:.*]] = stablehlo.slice %[[MASK]] [0:2, 0:1, 0:8, 0:8]
// CHECK:         %[[LARGEST:.*]] = stablehlo.reduce({{.*}}) applies stablehlo.maximum across dimensions = [3] : (tensor<2x1x8x8xf32>, tensor<f32>) -> tensor<2x1x8xf32>
// CHECK:         stablehlo.compare LE, %[[LARGEST]]
// CHECK:         %[[ADDED:.*]] = stablehlo.maximum %{{.*}} : tensor<2x1x8x8xf32>
// CHECK:         %[[QUERIES:.*]] = stablehlo.select %{{.*}}, %arg0, %{{.*}} : tensor<2x8x2x4xi1>, tensor<2x8x2x4xf32>
// CHECK:         stablehlo.composite "hloom.attention" %[[QUERIES]], %arg1, %arg2, %[[ADDED]] {composite_attributes = {causal = false, emulated = true, has_bias = true
func.func public @padded(%arg0: tensor<2x8x2x4xf32>, %arg1: tensor<2x8x2x4xf32>, %arg2: tensor<2x8x2x4xf32>, %arg3: tensor<2x8xi1>) -> (tensor<2x8x2x4xf32>) {
  %0 = stablehlo.dot_general %arg0, %arg1, batching_dims = [0, 2] x [0, 2], contracting_dims = [3] x [3] : (tensor<2x8x2x4xf32>, tensor<2x8x2x4xf32>) -> tensor<2x2x8x8xf32>
  %cst = stablehlo.constant dense<5.000000e-01> : tensor<f32>
  %1 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2x2x8x8xf32>
  %2 = stablehlo.multiply %0, %1 : tensor<2x2x8x8xf32>
  %3 = stablehlo.broadcast_in_dim %arg3, dims = [0, 3] : (tensor<2x8xi1>) -> tensor<2x1x1x8xi1>
  %cst_0 = stablehlo.constant dense<-1.000000e+09> : tensor<f32>
  %4 = stablehlo.convert %cst_0 : tensor<f32>
  %5 = stablehlo.broadcast_in_dim %3, dims = [0, 1, 2, 3] : (tensor<2x1x1x8xi1>) -> tensor<2x2x8x8xi1>
  %6 = stablehlo.broadcast_in_dim %4, dims = [] : (tensor<f32>) -> tensor<2x2x8x8xf32>
  %7 = stablehlo.select %5, %2, %6 : tensor<2x2x8x8xi1>, tensor<2x2x8x8xf32>
  %cst_1 = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %8 = stablehlo.reduce(%7 init: %cst_1) applies stablehlo.maximum across dimensions = [3] : (tensor<2x2x8x8xf32>, tensor<f32>) -> tensor<2x2x8xf32>
  %9 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<2x2x8xf32>
  %10 = stablehlo.maximum %9, %8 : tensor<2x2x8xf32>
  %11 = stablehlo.broadcast_in_dim %10, dims = [0, 1, 2] : (tensor<2x2x8xf32>) -> tensor<2x2x8x1xf32>
  %12 = stablehlo.broadcast_in_dim %11, dims = [0, 1, 2, 3] : (tensor<2x2x8x1xf32>) -> tensor<2x2x8x8xf32>
  %13 = stablehlo.subtract %7, %12 : tensor<2x2x8x8xf32>
  %14 = stablehlo.exponential %13 : tensor<2x2x8x8xf32>
  %cst_2 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
  %15 = stablehlo.reduce(%14 init: %cst_2) applies stablehlo.add across dimensions = [3] : (tensor<2x2x8x8xf32>, tensor<f32>) -> tensor<2x2x8xf32>
  %16 = stablehlo.broadcast_in_dim %15, dims = [0, 1, 2] : (tensor<2x2x8xf32>) -> tensor<2x2x8x1xf32>
  %17 = stablehlo.broadcast_in_dim %16, dims = [0, 1, 2, 3] : (tensor<2x2x8x1xf32>) -> tensor<2x2x8x8xf32>
  %18 = stablehlo.divide %14, %17 : tensor<2x2x8x8xf32>
  %19 = stablehlo.dot_general %arg2, %18, batching_dims = [0, 2] x [0, 1], contracting_dims = [1] x [3] : (tensor<2x8x2x4xf32>, tensor<2x2x8x8xf32>) -> tensor<2x2x4x8xf32>
  %20 = stablehlo.transpose %19, dims = [0, 3, 1, 2] : (tensor<2x2x4x8xf32>) -> tensor<2x8x2x4xf32>
  return %20 : tensor<2x8x2x4xf32>
}
