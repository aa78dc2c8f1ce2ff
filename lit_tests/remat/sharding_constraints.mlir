// A sharding constraint may be where the partitioner puts a collective, which no level repeats, and
// a budget at its price where all that is sent there is known. What provably has its sharding
// already is recomputed like other cheap work.
// RUN: hloom-opt %s -p "remat{min_bytes=0}" --split-input-file | filecheck %s
// RUN: hloom-opt %s -p "remat{min_bytes=0 budget=1B}" --split-input-file | \
// RUN:   filecheck %s --check-prefix=BUDGET

// A matrix product along a sharded axis under two constraints: an all-reduce and a reduce-scatter.
// CHECK-LABEL: func.func public @main
// CHECK-COUNT-2: sdy.sharding_constraint
// CHECK-NOT:   sdy.sharding_constraint
// BUDGET-LABEL: func.func public @main
// BUDGET-COUNT-2: sdy.sharding_constraint
// BUDGET-NOT:   sdy.sharding_constraint
sdy.mesh @mesh = <["a"=8]>
func.func public @main(%x: tensor<64x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"a"}]>}, %w: tensor<512x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {}]>}, %g: tensor<64x64xf32>, %v: tensor<64x64xf32>) -> (tensor<64x64xf32>, tensor<64x64xf32>) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<64x512xf32>, tensor<512x64xf32>) -> tensor<64x64xf32> loc("jvp()/dot_general")
  %1 = sdy.sharding_constraint %0 <@mesh, [{}, {}]> : tensor<64x64xf32> loc("jvp()/sharding_constraint")
  %2 = sdy.sharding_constraint %0 <@mesh, [{"a"}, {}]> : tensor<64x64xf32> loc("jvp()/sharding_constraint")
  %3 = stablehlo.dot_general %1, %v, contracting_dims = [1] x [0] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32> loc("jvp()/dot_general")
  %4 = stablehlo.dot_general %2, %3, contracting_dims = [1] x [0] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32> loc("jvp()/dot_general")
  %5 = stablehlo.dot_general %g, %v, contracting_dims = [1] x [1] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32> loc("transpose(jvp())/dot_general")
  %6 = stablehlo.multiply %5, %1 : tensor<64x64xf32> loc("transpose(jvp())/mul")
  %7 = stablehlo.multiply %6, %2 : tensor<64x64xf32> loc("transpose(jvp())/mul")
  return %4, %7 : tensor<64x64xf32>, tensor<64x64xf32>
}

// -----

// An argument that lies otherwise: a gather of the whole weight. So it is behind cheap work, too.
// A budget gathers it again, for the backward pass.
// CHECK-LABEL: func.func public @main
// CHECK-COUNT-1: sdy.sharding_constraint
// CHECK-NOT:   sdy.sharding_constraint
// BUDGET-LABEL: func.func public @main
// BUDGET:         sdy.sharding_constraint
// BUDGET:         %[[B:.*]] = stablehlo.optimization_barrier %arg0
// BUDGET-NEXT:    %[[T:.*]] = stablehlo.tanh %[[B]]
// BUDGET-NEXT:    sdy.sharding_constraint %[[T]]
// BUDGET-NOT:   sdy.sharding_constraint
sdy.mesh @mesh = <["a"=8]>
func.func public @main(%x: tensor<64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"a"}]>}, %g: tensor<64x64xf32>) -> (tensor<64x64xf32>, tensor<64x64xf32>) {
  %0 = stablehlo.tanh %x : tensor<64x64xf32> loc("jvp()/tanh")
  %1 = sdy.sharding_constraint %0 <@mesh, [{}, {}]> : tensor<64x64xf32> loc("jvp()/sharding_constraint")
  %2 = stablehlo.dot_general %1, %1, contracting_dims = [1] x [0] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32> loc("jvp()/dot_general")
  %3 = stablehlo.dot_general %g, %2, contracting_dims = [1] x [1] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32> loc("transpose(jvp())/dot_general")
  %4 = stablehlo.multiply %3, %1 : tensor<64x64xf32> loc("transpose(jvp())/mul")
  return %2, %4 : tensor<64x64xf32>, tensor<64x64xf32>
}

// -----

// Cheap work on a value that is sharded just so: propagation says that of its result without the
// constraint, which is dropped.
// CHECK-LABEL: func.func public @main
// CHECK:         sdy.sharding_constraint
// CHECK-NOT:     sdy.sharding_constraint
// CHECK:         %[[B:.*]]:2 = stablehlo.optimization_barrier
// CHECK-NEXT:    %[[T:.*]] = stablehlo.tanh %[[B]]#0
// CHECK-NEXT:    stablehlo.multiply %[[B]]#1, %[[T]]
// BUDGET-LABEL: func.func public @main
sdy.mesh @mesh = <["a"=8]>
func.func public @main(%x: tensor<64x512xf32>, %w: tensor<512x64xf32>, %g: tensor<64x64xf32>) -> (tensor<64x64xf32>, tensor<f32>) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<64x512xf32>, tensor<512x64xf32>) -> tensor<64x64xf32> loc("jvp()/dot_general")
  %1 = sdy.sharding_constraint %0 <@mesh, [{"a"}, {}]> : tensor<64x64xf32> loc("jvp()/sharding_constraint")
  %2 = stablehlo.tanh %1 : tensor<64x64xf32> loc("jvp()/tanh")
  %3 = sdy.sharding_constraint %2 <@mesh, [{"a"}, {}]> : tensor<64x64xf32> loc("jvp()/sharding_constraint")
  %4 = stablehlo.dot_general %3, %3, contracting_dims = [1] x [0] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32> loc("jvp()/dot_general")
  %loss = stablehlo.dot_general %4, %4, contracting_dims = [0, 1] x [0, 1] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<f32> loc("jvp()/loss")
  %5 = stablehlo.dot_general %g, %g, contracting_dims = [1] x [1] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32> loc("transpose(jvp())/dot_general")
  %6 = stablehlo.multiply %5, %3 : tensor<64x64xf32> loc("transpose(jvp())/mul")
  %7 = stablehlo.multiply %6, %1 : tensor<64x64xf32> loc("transpose(jvp())/mul")
  return %7, %loss : tensor<64x64xf32>, tensor<f32>
}
