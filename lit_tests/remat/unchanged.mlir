// What remat does not change. Each function differs in one point from one that changes: values of
// 16 KiB, not below the default min_bytes, follow from arguments alone and are read by the backward
// pass.
// RUN: hloom-opt %s --debug-info -o %t && hloom-opt %s -p remat --debug-info | diff %t -
// RUN: hloom-opt %s -p "remat{min_bytes=0}" | filecheck %s

// The step that is missing: a smaller min_bytes, for values of 15.75 KiB.
// CHECK-LABEL: func.func public @values_below_min_bytes_are_kept
func.func public @values_below_min_bytes_are_kept(%x: tensor<64x63xf32>, %g: tensor<64x63xf32>) -> (tensor<64x63xf32>, tensor<f32>) {
  // CHECK-NEXT: %[[T:.*]] = stablehlo.tanh %arg0
  %0 = stablehlo.tanh %x : tensor<64x63xf32> loc("jvp()/tanh")
  // CHECK-NEXT: %[[L:.*]] = stablehlo.dot_general %[[T]], %[[T]]
  %loss = stablehlo.dot_general %0, %0, contracting_dims = [0, 1] x [0, 1] : (tensor<64x63xf32>, tensor<64x63xf32>) -> tensor<f32> loc("jvp()/loss")
  // CHECK-NEXT: %[[B:.*]] = stablehlo.optimization_barrier %arg0
  // CHECK-NEXT: %[[C:.*]] = stablehlo.tanh %[[B]]
  // CHECK-NEXT: %[[G:.*]] = stablehlo.multiply %arg1, %[[C]]
  %1 = stablehlo.multiply %g, %0 : tensor<64x63xf32> loc("transpose(jvp())/mul")
  // CHECK-NEXT: return %[[G]], %[[L]]
  return %1, %loss : tensor<64x63xf32>, tensor<f32>
}

// Nothing is in memory: XLA computes a cheap value that is read once in its reader.
// CHECK-LABEL: func.func public @nothing_is_held
func.func public @nothing_is_held(%x: tensor<64x64xf32>, %g: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %0 = stablehlo.tanh %x : tensor<64x64xf32> loc("jvp()/tanh")
  %1 = stablehlo.multiply %g, %0 : tensor<64x64xf32> loc("transpose(jvp())/mul")
  return %1 : tensor<64x64xf32>
}

// A value that the program returns is in memory anyway.
// CHECK-LABEL: func.func public @results_are_there_anyway
func.func public @results_are_there_anyway(%x: tensor<64x64xf32>, %g: tensor<64x64xf32>) -> (tensor<64x64xf32>, tensor<64x64xf32>, tensor<f32>) {
  %0 = stablehlo.tanh %x : tensor<64x64xf32> loc("jvp()/tanh")
  %loss = stablehlo.dot_general %0, %0, contracting_dims = [0, 1] x [0, 1] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<f32> loc("jvp()/loss")
  %1 = stablehlo.multiply %g, %0 : tensor<64x64xf32> loc("transpose(jvp())/mul")
  return %1, %0, %loss : tensor<64x64xf32>, tensor<64x64xf32>, tensor<f32>
}

// Keeping one value or the other costs the same: nothing is gained, so nothing is recomputed.
// CHECK-LABEL: func.func public @no_gain
func.func public @no_gain(%x: tensor<64x64xf32>, %g: tensor<64x64xf32>) -> (tensor<64x64xf32>, tensor<f32>) {
  %0 = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32> loc("jvp()/dot_general")
  %1 = stablehlo.tanh %0 : tensor<64x64xf32> loc("jvp()/tanh")
  %loss = stablehlo.dot_general %1, %1, contracting_dims = [0, 1] x [0, 1] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<f32> loc("jvp()/loss")
  %2 = stablehlo.multiply %g, %1 : tensor<64x64xf32> loc("transpose(jvp())/mul")
  return %2, %loss : tensor<64x64xf32>, tensor<f32>
}

// Products, convolutions, decompositions and whatever sorts, scatters or gathers.
// CHECK-LABEL: func.func public @expensive_work_is_kept
func.func public @expensive_work_is_kept(%x: tensor<64x64xf32>, %i: tensor<64x1xi32>, %g: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %0 = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32> loc("jvp()/dot_general")
  %1 = stablehlo.convolution(%x, %x) dim_numbers = [b, f]x[i, o]->[b, f], window = {} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32> loc("jvp()/conv_general_dilated")
  %2 = "stablehlo.sort"(%x) <{dimension = 1 : i64}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %c = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  }) : (tensor<64x64xf32>) -> tensor<64x64xf32> loc("jvp()/sort")
  %3 = "stablehlo.scatter"(%x, %i, %x) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %c = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %c : tensor<f32>
  }) : (tensor<64x64xf32>, tensor<64x1xi32>, tensor<64x64xf32>) -> tensor<64x64xf32> loc("jvp()/scatter-add")
  %4 = "stablehlo.gather"(%x, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 64>}> : (tensor<64x64xf32>, tensor<64x1xi32>) -> tensor<64x64xf32> loc("jvp()/gather")
  %5 = stablehlo.cholesky %x, lower = true : tensor<64x64xf32> loc("jvp()/cholesky")
  %6 = stablehlo.custom_call @attention(%x) : (tensor<64x64xf32>) -> tensor<64x64xf32> loc("jvp()/ffi_call")
  %7 = stablehlo.multiply %g, %0 : tensor<64x64xf32> loc("transpose(jvp())/mul")
  %8 = stablehlo.multiply %7, %1 : tensor<64x64xf32> loc("transpose(jvp())/mul")
  %9 = stablehlo.multiply %8, %2 : tensor<64x64xf32> loc("transpose(jvp())/mul")
  %10 = stablehlo.multiply %9, %3 : tensor<64x64xf32> loc("transpose(jvp())/mul")
  %11 = stablehlo.multiply %10, %4 : tensor<64x64xf32> loc("transpose(jvp())/mul")
  %12 = stablehlo.multiply %11, %5 : tensor<64x64xf32> loc("transpose(jvp())/mul")
  %13 = stablehlo.multiply %12, %6 : tensor<64x64xf32> loc("transpose(jvp())/mul")
  return %13 : tensor<64x64xf32>
}

// Random bits: a second draw would be the same here, but is not cheap.
// CHECK-LABEL: func.func public @random_bits_are_kept
func.func public @random_bits_are_kept(%state: tensor<2xui64>, %g: tensor<64x64xui32>) -> (tensor<64x64xui32>, tensor<ui32>) {
  %0, %1 = stablehlo.rng_bit_generator %state, algorithm = THREE_FRY : (tensor<2xui64>) -> (tensor<2xui64>, tensor<64x64xui32>) loc("jvp()/random_bits")
  %loss = stablehlo.dot_general %1, %1, contracting_dims = [0, 1] x [0, 1] : (tensor<64x64xui32>, tensor<64x64xui32>) -> tensor<ui32> loc("jvp()/loss")
  %2 = stablehlo.and %g, %1 : tensor<64x64xui32> loc("transpose(jvp())/and")
  return %2, %loss : tensor<64x64xui32>, tensor<ui32>
}

// A collective that runs twice could match another one on other devices.
// CHECK-LABEL: func.func public @collectives_are_kept
func.func public @collectives_are_kept(%x: tensor<64x64xf32>, %g: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %0 = "stablehlo.all_reduce"(%x) <{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %c = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %c : tensor<f32>
  }) : (tensor<64x64xf32>) -> tensor<64x64xf32> loc("jvp()/psum")
  %1 = "stablehlo.collective_permute"(%x) <{source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>}> : (tensor<64x64xf32>) -> tensor<64x64xf32> loc("jvp()/ppermute")
  %2 = stablehlo.multiply %g, %0 : tensor<64x64xf32> loc("transpose(jvp())/mul")
  %3 = stablehlo.multiply %2, %1 : tensor<64x64xf32> loc("transpose(jvp())/mul")
  return %3 : tensor<64x64xf32>
}

// What a side effect gives is had once, whether a token or has_side_effect orders it.
// CHECK-LABEL: func.func public @side_effects_happen_once
func.func public @side_effects_happen_once(%x: tensor<64x64xf32>, %g: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %0 = stablehlo.create_token : !stablehlo.token loc("jvp()/create_token")
  %1:2 = stablehlo.custom_call @ordered_callback(%0, %x) : (!stablehlo.token, tensor<64x64xf32>) -> (!stablehlo.token, tensor<64x64xf32>) loc("jvp()/io_callback")
  %2 = stablehlo.after_all %1#0 : !stablehlo.token loc("jvp()/after_all")
  %3:2 = stablehlo.custom_call @ordered_callback(%2, %x) {has_side_effect = true}
      : (!stablehlo.token, tensor<64x64xf32>) -> (!stablehlo.token, tensor<64x64xf32>) loc("jvp()/io_callback")
  %4 = stablehlo.multiply %g, %1#1 : tensor<64x64xf32> loc("transpose(jvp())/mul")
  %5 = stablehlo.multiply %4, %3#1 : tensor<64x64xf32> loc("transpose(jvp())/mul")
  %6 = stablehlo.custom_call @ordered_callback(%3#0, %5) {has_side_effect = true}
      : (!stablehlo.token, tensor<64x64xf32>) -> tensor<64x64xf32> loc("transpose(jvp())/io_callback")
  return %6 : tensor<64x64xf32>
}

// A value of unknown size cannot be weighed.
// CHECK-LABEL: func.func public @dynamic_dimensions
func.func public @dynamic_dimensions(%x: tensor<?x64xf32>, %g: tensor<?x64xf32>) -> (tensor<?x64xf32>, tensor<f32>) {
  %0 = stablehlo.tanh %x : tensor<?x64xf32> loc("jvp()/tanh")
  %loss = stablehlo.dot_general %0, %0, contracting_dims = [0, 1] x [0, 1] : (tensor<?x64xf32>, tensor<?x64xf32>) -> tensor<f32> loc("jvp()/loss")
  %1 = stablehlo.multiply %g, %0 : tensor<?x64xf32> loc("transpose(jvp())/mul")
  return %1, %loss : tensor<?x64xf32>, tensor<f32>
}

// What a user's jax.checkpoint recomputes is backward work already: its barrier and all behind it.
// CHECK-LABEL: func.func public @a_users_checkpoint
func.func public @a_users_checkpoint(%x: tensor<64x64xf32>, %g: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %0 = stablehlo.optimization_barrier %x : tensor<64x64xf32> loc("jit(f)/transpose(jvp(jvp()))/remat2")
  %1 = stablehlo.tanh %0 : tensor<64x64xf32> loc("jit(f)/transpose(jvp(jvp()))/checkpoint/rematted_computation/tanh")
  %2 = stablehlo.cosine %1 : tensor<64x64xf32> loc("jit(f)/transpose(jvp(jvp()))/checkpoint/rematted_computation/cos")
  %3 = stablehlo.multiply %g, %2 : tensor<64x64xf32> loc("jit(f)/transpose(jvp(jvp()))/checkpoint/mul")
  %4 = stablehlo.multiply %3, %1 : tensor<64x64xf32> loc("jit(f)/transpose(jvp(jvp()))/checkpoint/mul")
  return %4 : tensor<64x64xf32>
}

// A block that remat has been over is left alone, whatever else it might gain now.
// CHECK-LABEL: func.func public @rematerialized_before
func.func public @rematerialized_before(%x: tensor<64x64xf32>, %y: tensor<64x64xf32>, %g: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %0 = stablehlo.optimization_barrier %x : tensor<64x64xf32> loc("transpose(jvp())/hloom.remat/mul")
  %1 = stablehlo.tanh %0 : tensor<64x64xf32> loc("jvp()/hloom.remat/tanh")
  %2 = stablehlo.multiply %g, %1 : tensor<64x64xf32> loc("transpose(jvp())/mul")
  %3 = stablehlo.cosine %y : tensor<64x64xf32> loc("jvp()/cos")
  %4 = stablehlo.multiply %2, %3 : tensor<64x64xf32> loc("transpose(jvp())/mul")
  return %4 : tensor<64x64xf32>
}
