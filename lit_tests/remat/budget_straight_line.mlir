// What a straight-line block computes again to hold a budget: at the floor, where the step takes
// as little as it can; at a budget that one product is enough for; at one that needs nothing.
// RUN: hloom-opt %s -p "remat{min_bytes=0 budget=1B}" --split-input-file | filecheck %s
// RUN: hloom-opt %s -p "remat{min_bytes=0 budget=10KiB}" --split-input-file | \
// RUN:   filecheck %s --check-prefix LOOSE
// RUN: hloom-opt %s --split-input-file --debug-info -o %t && \
// RUN:   hloom-opt %s -p "remat{min_bytes=0 budget=1GiB}" --split-input-file --debug-info | \
// RUN:   diff %t -
// Twice is once.
// RUN: hloom-opt %s -p "remat{min_bytes=0 budget=1B}" --split-input-file --debug-info -o %t && \
// RUN:   hloom-opt %t -p "remat{min_bytes=0 budget=1B}" --split-input-file --debug-info | diff %t -

// Two wide products that the backward pass reads. The first one, which is needed last, is computed
// again behind a barrier with the gradient that it is multiplied with. That is the floor as well:
// less than the second product and two wide values around it is at no time in memory.
// CHECK-LABEL: func.func public @two_wide_products
// LOOSE-LABEL: func.func public @two_wide_products
func.func public @two_wide_products(%x: tensor<8x8xf32>, %w: tensor<8x64xf32>, %g: tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<f32>) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x64xf32>) -> tensor<8x64xf32> loc("jvp()/dot")
  // LOOSE: %[[N:.*]] = stablehlo.dot_general %{{.*}}, %arg1, contracting_dims = [1] x [1]
  %1 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [1] : (tensor<8x64xf32>, tensor<8x64xf32>) -> tensor<8x8xf32> loc("jvp()/dot")
  %2 = stablehlo.dot_general %1, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x64xf32>) -> tensor<8x64xf32> loc("jvp()/dot")
  // LOOSE-NEXT: %[[D:.*]] = stablehlo.dot_general %[[N]], %arg1
  %3 = stablehlo.dot_general %2, %w, contracting_dims = [1] x [1] : (tensor<8x64xf32>, tensor<8x64xf32>) -> tensor<8x8xf32> loc("jvp()/dot")
  %loss = stablehlo.dot_general %3, %3, contracting_dims = [0, 1] x [0, 1] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<f32> loc("jvp()/loss")
  // CHECK: %[[G:.*]] = stablehlo.dot_general %arg2, %arg1
  // LOOSE: %[[G:.*]] = stablehlo.dot_general %arg2, %arg1
  %4 = stablehlo.dot_general %g, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x64xf32>) -> tensor<8x64xf32> loc("transpose(jvp())/dot")
  // CHECK-NEXT: stablehlo.multiply %[[G]]
  // LOOSE-NEXT: %[[M:.*]] = stablehlo.multiply %[[G]], %[[D]]
  %5 = stablehlo.multiply %4, %2 : tensor<8x64xf32> loc("transpose(jvp())/mul")
  // CHECK: %[[O:.*]] = stablehlo.dot_general %{{.*}}, %arg1, contracting_dims = [1] x [1]
  // LOOSE-NEXT: %[[O:.*]] = stablehlo.dot_general %[[M]], %arg1
  %6 = stablehlo.dot_general %5, %w, contracting_dims = [1] x [1] : (tensor<8x64xf32>, tensor<8x64xf32>) -> tensor<8x8xf32> loc("transpose(jvp())/dot")
  // LOOSE-NEXT: %[[H:.*]] = stablehlo.dot_general %[[O]], %arg1
  %7 = stablehlo.dot_general %6, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x64xf32>) -> tensor<8x64xf32> loc("transpose(jvp())/dot")
  %8 = stablehlo.multiply %7, %0 : tensor<8x64xf32> loc("transpose(jvp())/mul")
  // CHECK-NEXT: %[[H:.*]] = stablehlo.dot_general %[[O]], %arg1
  // CHECK-NEXT: %[[A:.*]]:3 = stablehlo.optimization_barrier %arg0, %arg1, %[[H]]
  // CHECK-NEXT: %[[C:.*]] = stablehlo.dot_general %[[A]]#0, %[[A]]#1
  // LOOSE-NEXT: %[[A:.*]]:3 = stablehlo.optimization_barrier %arg0, %arg1, %[[H]]
  // LOOSE-NEXT: %[[C:.*]] = stablehlo.dot_general %[[A]]#0, %[[A]]#1
  %9 = stablehlo.dot_general %8, %w, contracting_dims = [1] x [1] : (tensor<8x64xf32>, tensor<8x64xf32>) -> tensor<8x8xf32> loc("transpose(jvp())/dot")
  // CHECK-NEXT: stablehlo.multiply %[[A]]#2, %[[C]]
  // LOOSE-NEXT: stablehlo.multiply %[[A]]#2, %[[C]]
  return %9, %loss : tensor<8x8xf32>, tensor<f32>
}

// -----

// One product, read before and after a large gradient, across which the most is alive. The first
// reader takes it as it is; the second computes it again, so that it is not there at the gradient.
// CHECK-LABEL: func.func public @one_product_read_twice
func.func public @one_product_read_twice(%x: tensor<8x8xf32>, %w: tensor<8x64xf32>, %u: tensor<8x256xf32>, %g: tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<f32>) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x64xf32>) -> tensor<8x64xf32> loc("jvp()/dot")
  %1 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [1] : (tensor<8x64xf32>, tensor<8x64xf32>) -> tensor<8x8xf32> loc("jvp()/dot")
  %loss = stablehlo.dot_general %1, %1, contracting_dims = [0, 1] x [0, 1] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<f32> loc("jvp()/loss")
  // CHECK: %[[D:.*]] = stablehlo.dot_general %arg0, %arg1
  // CHECK: %[[G:.*]] = stablehlo.dot_general %arg3, %arg1
  %2 = stablehlo.dot_general %g, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x64xf32>) -> tensor<8x64xf32> loc("transpose(jvp())/dot")
  %3 = stablehlo.multiply %2, %0 : tensor<8x64xf32> loc("transpose(jvp())/mul")
  %4 = stablehlo.dot_general %3, %w, contracting_dims = [1] x [1] : (tensor<8x64xf32>, tensor<8x64xf32>) -> tensor<8x8xf32> loc("transpose(jvp())/dot")
  %5 = stablehlo.sine %4 : tensor<8x8xf32> loc("transpose(jvp())/sin")
  %6 = stablehlo.sine %5 : tensor<8x8xf32> loc("transpose(jvp())/sin")
  %7 = stablehlo.sine %6 : tensor<8x8xf32> loc("transpose(jvp())/sin")
  %8 = stablehlo.sine %7 : tensor<8x8xf32> loc("transpose(jvp())/sin")
  %9 = stablehlo.sine %8 : tensor<8x8xf32> loc("transpose(jvp())/sin")
  %10 = stablehlo.dot_general %9, %u, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x256xf32>) -> tensor<8x256xf32> loc("transpose(jvp())/dot")
  // CHECK-NEXT: stablehlo.multiply %[[G]], %[[D]]
  // CHECK: stablehlo.dot_general %{{.*}}, %arg2
  %11 = stablehlo.dot_general %10, %u, contracting_dims = [1] x [1] : (tensor<8x256xf32>, tensor<8x256xf32>) -> tensor<8x8xf32> loc("transpose(jvp())/dot")
  %12 = stablehlo.sine %11 : tensor<8x8xf32> loc("transpose(jvp())/sin")
  %13 = stablehlo.sine %12 : tensor<8x8xf32> loc("transpose(jvp())/sin")
  %14 = stablehlo.sine %13 : tensor<8x8xf32> loc("transpose(jvp())/sin")
  %15 = stablehlo.sine %14 : tensor<8x8xf32> loc("transpose(jvp())/sin")
  %16 = stablehlo.sine %15 : tensor<8x8xf32> loc("transpose(jvp())/sin")
  // CHECK: %[[H:.*]] = stablehlo.dot_general %{{.*}}, %arg1
  %17 = stablehlo.dot_general %16, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x64xf32>) -> tensor<8x64xf32> loc("transpose(jvp())/dot")
  %18 = stablehlo.multiply %17, %0 : tensor<8x64xf32> loc("transpose(jvp())/mul")
  // CHECK-NEXT: %[[A:.*]]:3 = stablehlo.optimization_barrier %arg0, %arg1, %[[H]]
  // CHECK-NEXT: %[[C:.*]] = stablehlo.dot_general %[[A]]#0, %[[A]]#1
  %19 = stablehlo.dot_general %18, %w, contracting_dims = [1] x [1] : (tensor<8x64xf32>, tensor<8x64xf32>) -> tensor<8x8xf32> loc("transpose(jvp())/dot")
  // CHECK-NEXT: stablehlo.multiply %[[A]]#2, %[[C]]
  return %19, %loss : tensor<8x8xf32>, tensor<f32>
}

// -----

// Random bits are drawn again where the generator is given its state; see budget_unchanged.mlir.
// CHECK-LABEL: func.func public @random_bits_of_a_given_state
func.func public @random_bits_of_a_given_state(%state: tensor<2xui64>, %w: tensor<8x64xf32>, %u: tensor<8x256xf32>) -> tensor<8x8xf32> {
  %state1, %bits = stablehlo.rng_bit_generator %state, algorithm = THREE_FRY : (tensor<2xui64>) -> (tensor<2xui64>, tensor<8x64xui32>) loc("jvp()/random_bits")
  %0 = stablehlo.bitcast_convert %bits : (tensor<8x64xui32>) -> tensor<8x64xf32> loc("jvp()/bitcast")
  %1 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [1] : (tensor<8x64xf32>, tensor<8x64xf32>) -> tensor<8x8xf32> loc("jvp()/dot")
  %2 = stablehlo.dot_general %1, %u, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x256xf32>) -> tensor<8x256xf32> loc("jvp()/dot")
  // CHECK: %[[G:.*]] = stablehlo.dot_general %{{.*}}, %arg2, contracting_dims = [1] x [1]
  %3 = stablehlo.dot_general %2, %u, contracting_dims = [1] x [1] : (tensor<8x256xf32>, tensor<8x256xf32>) -> tensor<8x8xf32> loc("jvp()/dot")
  %4 = stablehlo.dot_general %3, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x64xf32>) -> tensor<8x64xf32> loc("transpose(jvp())/dot")
  // CHECK-NEXT: %[[H:.*]] = stablehlo.dot_general %[[G]], %arg1
  // CHECK-NEXT: %[[B:.*]]:2 = stablehlo.optimization_barrier %arg0, %[[H]]
  // CHECK-NEXT: %{{.*}}, %[[R:.*]] = stablehlo.rng_bit_generator %[[B]]#0
  // CHECK-NEXT: %[[F:.*]] = stablehlo.bitcast_convert %[[R]]
  // CHECK-NEXT: stablehlo.multiply %[[B]]#1, %[[F]]
  %5 = stablehlo.multiply %4, %0 : tensor<8x64xf32> loc("transpose(jvp())/mul")
  %6 = stablehlo.dot_general %5, %w, contracting_dims = [1] x [1] : (tensor<8x64xf32>, tensor<8x64xf32>) -> tensor<8x8xf32> loc("transpose(jvp())/dot")
  return %6 : tensor<8x8xf32>
}
